"""A Holdfast that doesn't know the notes of linked stores. It works concurrently with this one.

It treats the notes as contents, like every key of the config that it does not know. It neither writes nor
checks notes.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from holdfast.catalog import config
from holdfast.catalog.move import attempt, link, linked_takeover, two_stores
from holdfast.catalog.move.other_store import OtherStore

_KNOWN = config.RESERVED
_PREFIXES = (config.MIGRATION_RECORD, config.MIGRATION_TARGET)


@contextmanager
def as_older() -> Iterator[None]:
    """Everything in the block is done by it."""
    with ExitStack() as patches:

        def put(where: object, name: str, to: object) -> None:
            patches.enter_context(patch.object(where, name, to))

        put(config, "is_reserved", lambda key: key in _KNOWN or key.startswith(_PREFIXES))
        for module in (attempt, linked_takeover, two_stores):
            put(module, "looked", lambda seen, backend: {})
        for module in (linked_takeover, two_stores):
            put(module, "has_looked", lambda seen, backend: True)
        for module in (attempt, linked_takeover):
            put(module, "arriving", lambda backend, move: {})
            put(module, "completing", lambda backend, move: {})
        put(attempt.Attempt, "_check_target", lambda self, seen: None)
        put(link, "_check_notes", lambda seen, truth, places: None)
        for name in ("begins_on_persist", "links_stash"):
            put(two_stores, name, _without_notes(getattr(link, name)))
        put(OtherStore, "confirm", lambda self, *, always: None)
        yield


def _without_notes(given):  # type: ignore[no-untyped-def]
    def made(*of: object) -> dict[str, int | None]:
        return {key: value for key, value in given(*of).items() if not key.startswith(config.LINK_NOTE)}

    return made
