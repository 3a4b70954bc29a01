"""Checks of a log of objects that has lost some of them, and the errors that report it."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from holdfast.errors import CorruptBlob, LogRegressed
from holdfast.persist.stores.log_codec import (
    CHECKPOINT_FOLDER,
    LOG_FOLDER,
    checkpoint_position,
    decode_checkpoint,
    decode_object,
    object_name,
    position_of,
)
from holdfast.persist.stores.log_state import Floor, LogState
from holdfast.persist.stores.objects import MANY, Objects
from holdfast.persist.stores.traits import Lost
from holdfast.text import count


def losses_hint(arguments: str) -> str:
    """Return what to do about a log that lost objects. `arguments` name the location in commands."""
    return (
        "stop all processes that use the location, and put the missing objects back; to see what is left"
        f" without them, and to continue from there, run: holdfast persist recover {arguments}"
    )


def regressed(where: str, position: int, found: str) -> LogRegressed:
    """Return the error for a log whose object at `position` is gone or was replaced."""
    return LogRegressed(f"the log in {where}", f"object {position}", f"{found} in its place")


def gap(where: str, position: int, beyond: int, hint: str) -> CorruptBlob:
    """Return the error for a log that has no object at `position`, but has later ones up to `beyond`."""
    key = f"{object_name(position)} in {where}"
    return CorruptBlob.missing(key, f"the log goes on to {beyond}", hint=hint)


def no_successor(where: str, position: int, token: bytes, found: bytes, hint: str) -> CorruptBlob:
    """Return the error for an object whose predecessor is not the one in the log."""
    key = f"{object_name(position)} in {where}"
    return CorruptBlob(key, f"predecessor {token.hex()}", found.hex(), hint=hint)


def positions_after(objects: Objects, position: int) -> Iterator[int]:
    """Yield the positions after `position` that have an object, ascending."""
    after = object_name(position)
    while True:
        names = objects.first_names(LOG_FOLDER, after)
        yield from (found for name in names if (found := position_of(name)) is not None)
        if len(names) < MANY:
            return
        after = names[-1]


def first_missing(position: int, listed: Sequence[int]) -> int:
    """Return the first position after `position` that is not in `listed`, which is ascending."""
    return next((p for p, found in enumerate(listed, position + 1) if p != found), position + len(listed) + 1)


def lost(objects: Objects, log_id: bytes | None, position: int, why: CorruptBlob) -> Lost:
    """Describe the objects after `position`, where the log breaks off. Without `log_id`, those of any log."""
    number = last = 0
    heads: dict[str, int] = {}
    for last in positions_after(objects, position):
        number += 1
        found = objects.get(object_name(last))
        try:
            added = None if found is None else decode_object(found.data, last, log_id, objects.description)
        except CorruptBlob:
            continue
        for put in added.puts if added is not None else ():
            heads[put.key] = max(put.seqno, heads.get(put.key, 0))
    rest = f"; {count(number, 'object')} up to {object_name(last)} can't be used" if number else ""
    return Lost(f"{why}{rest}", heads)


def newest_checkpoint(objects: Objects, floor: Floor) -> LogState:
    """Return the state in the newest readable checkpoint, even if the floor names another; empty if none."""
    for name in sorted(objects.first_names(CHECKPOINT_FOLDER), reverse=True):
        found, position = objects.get(name), checkpoint_position(name)
        if found is None or position is None:
            continue
        with suppress(CorruptBlob):
            named = replace(floor, checkpoint=name, checkpoint_position=position)
            return decode_checkpoint(found.data, named, objects.description)
    return LogState()
