"""Opens a linked catalog while persist can't be reached: only the stash, if its own state shows that it
counts.

A process that would move the truth away needs its token in the stash. An open of this kind overwrites that
token, so the next commit of the other process is refused. So the stash alone is enough if no tombstone of
persist matters.

This fences every other writer of this catalog. Persist doesn't know about it. A process that had the catalog
open may write to other shards on persist, guarded by its token there (the operator does). It is fenced only
once it asks the stash again, which it does before each such write. A write that is already in flight may
succeed.
"""

from collections.abc import Callable

from holdfast.catalog.interfaces import OpenableCatalog
from holdfast.catalog.move.link import strategy_of
from holdfast.catalog.move.records import running_of
from holdfast.catalog.move.standing import in_progress
from holdfast.catalog.move.truth import Strategy, tombstone
from holdfast.catalog.one_store import OneStoreCatalog
from holdfast.catalog.stores.preamble import Preamble
from holdfast.catalog.stores.standing import Standing
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import BadInput, NeedsPersist


def emergency_catalog(stash: OpenableCatalog) -> OpenableCatalog:
    """The catalog in a stash, opened without its persist store. For emergencies.

    `stash` is a `stash_catalog`. Opening, loading and fencing raise `NeedsPersist` if the stash alone doesn't
    show that it is the source of truth: with ONE_TOMBSTONE while its tombstone is set, with TWO_TOMBSTONES
    once it has a tombstone. They raise `MigrationInProgress` while a migration runs. Other writers of the
    catalog are fenced. Guarded writes on persist that are in flight are not.
    """
    stored = _stored(stash)
    return OneStoreCatalog(stored.store, stored.now_ms, standing=_Emergency(stored.now_ms))


def check_emergency(stash: OpenableCatalog) -> None:
    """Raise `NeedsPersist` if the stash alone doesn't show that it is the source of truth."""
    stored = _stored(stash)
    _Emergency(stored.now_ms).check_read(stored.preamble(), stored.place)


def _stored(stash: OpenableCatalog) -> OneStoreCatalog:
    if not isinstance(stash, OneStoreCatalog):
        raise BadInput(f"the catalog in {stash.place} is not in a stash", hint="pass a stash_catalog")
    return stash


class _Emergency(Standing):
    """The standing of a process that has only the stash, and can't ask persist."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def check_read(self, seen: Preamble, place: str) -> None:
        """Raise `NeedsPersist` unless the stash is certainly the source of truth."""
        if not seen.is_linked:
            if not seen.is_initialized:
                raise NeedsPersist(f"the stash in {place} is empty: nothing shows that the catalog is in it")
            return
        retired = tombstone(seen.config)
        if strategy_of(seen.config) is Strategy.TWO_TOMBSTONES:
            if retired is not None:
                raise NeedsPersist(f"the catalog was moved before: {place} alone can't show where it is")
        elif retired:
            raise NeedsPersist(f"the catalog is not in {place}: it was moved to persist")

    def check_write(self, seen: Preamble, place: str) -> None:
        """Like `check_read`. Also raises `MigrationInProgress`."""
        self.check_read(seen, place)
        running = running_of(seen.config)
        if running is not None and running.shuts_out(self._now_ms()):
            raise in_progress(running, seen)

    def confirm_linked(self, store: CatalogStore, seen: Preamble) -> int:
        """See `Standing`. Raises `NeedsPersist`."""
        self.check_read(seen, store.place)
        return seen.truth_since
