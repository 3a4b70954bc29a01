"""What a log of objects looks like after objects of it were lost, and the errors that say so."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from holdfast.errors import CorruptBlob, LogRegressed
from holdfast.persist.stores.logcodec import (
    CHECKPOINT_FOLDER,
    LOG_FOLDER,
    checkpoint_position,
    decode_checkpoint,
    decode_object,
    object_name,
    position_of,
)
from holdfast.persist.stores.logstate import Floor, LogState
from holdfast.persist.stores.objects import MANY, Objects
from holdfast.persist.stores.traits import Lost

HINT: Final = (
    "stop all processes that use the location; put the missing objects back, or run 'holdfast persist"
    " recover', which shows what is left and goes on from there"
)
LOG_CAUSES: Final = "objects that were deleted, or a restored backup"
"""Why a log of objects goes back to an older state."""


def regressed(where: str, position: int, found: str) -> LogRegressed:
    """The error for a log whose object at `position` is not there any more."""
    return LogRegressed(
        f"the log in {where}", f"object {position}", f"{found} in its place", causes=LOG_CAUSES
    )


def gap(where: str, position: int, beyond: int) -> CorruptBlob:
    """The error for a log that has no object at `position`, and went on to `beyond`."""
    expected = f"an object, because the log goes on to {beyond}"
    return CorruptBlob(f"{object_name(position)} in {where}", expected, "nothing", hint=HINT)


def no_successor(where: str, position: int, token: bytes, found: bytes) -> CorruptBlob:
    """The error for an object that was put after another one than the log has."""
    key = f"{object_name(position)} in {where}"
    return CorruptBlob(key, f"predecessor {token.hex()}", found.hex(), hint=HINT)


def positions_after(objects: Objects, position: int) -> Iterator[int]:
    """The positions after `position` that have an object, ascending."""
    after = object_name(position)
    while True:
        names = objects.first_names(LOG_FOLDER, after)
        yield from (found for name in names if (found := position_of(name)) is not None)
        if len(names) < MANY:
            return
        after = names[-1]


def first_missing(position: int, listed: Sequence[int]) -> int:
    """The first position after `position` that is not listed; those listed are ascending."""
    return next((p for p, found in enumerate(listed, position + 1) if p != found), position + len(listed) + 1)


def lost(objects: Objects, log_id: bytes | None, position: int, why: CorruptBlob) -> Lost:
    """What is known of the objects after `position`, where the log breaks off; of any log without its id."""
    count = last = 0
    heads: dict[str, int] = {}
    for last in positions_after(objects, position):
        count += 1
        found = objects.get(object_name(last))
        try:
            added = None if found is None else decode_object(found.data, last, log_id, objects.description)
        except CorruptBlob:
            continue
        for put in added.puts if added is not None else ():
            heads[put.key] = max(put.seqno, heads.get(put.key, 0))
    rest = f"; {count:,} objects up to {object_name(last)} can't be used" if count else ""
    return Lost(f"{why}{rest}", heads)


def newest_checkpoint(objects: Objects, floor: Floor) -> LogState:
    """The state in the newest checkpoint that can be read, whatever the floor names; empty if none can."""
    for name in sorted(objects.first_names(CHECKPOINT_FOLDER), reverse=True):
        found, position = objects.get(name), checkpoint_position(name)
        if found is None or position is None:
            continue
        with suppress(CorruptBlob):
            named = replace(floor, checkpoint=name, checkpoint_position=position)
            return decode_checkpoint(found.data, named, objects.description)
    return LogState()
