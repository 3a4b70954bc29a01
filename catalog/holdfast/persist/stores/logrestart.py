"""Letting a key of an S3-only log go on at another seqno, for recovery.

Objects of the log only ever add the next entry of a key. So a restart writes a checkpoint, which may begin
a key anywhere, and a floor far above all objects that ever existed: an older copy of the log may end before
objects that were there. A process that is behind finds the floor, and opens the checkpoint. An object that
it puts meanwhile is below the floor, and not of the log.
"""

import uuid
from typing import Final

from holdfast.persist.stores.logcodec import LOG_FOLDER, object_name
from holdfast.persist.stores.logstate import RECENT, LogState
from holdfast.persist.stores.objects import Objects
from holdfast.persist.stores.traits import Entry

_STEP_BITS: Final = 40
_DIGITS: Final = len(object_name(0)) - len(LOG_FOLDER)


def last_position(objects: Objects) -> int:
    """The greatest position that has an object, 0 for none."""
    prefix = ""
    while len(prefix) < _DIGITS:
        found = next(
            (digit for digit in "9876543210" if objects.first_names(LOG_FOLDER + prefix + digit)), None
        )
        if found is None:
            return 0
        prefix += found
    return int(prefix)


def next_beginning(position: int) -> int:
    """Where a recovery goes on: beyond all that a log with this position has ever reached."""
    return ((position >> _STEP_BITS) + 1) << _STEP_BITS


def restarted(state: LogState, key: str, seqno: int, data: bytes, *, position: int) -> LogState:
    """The state at `position`, in which the log of `key` has this entry alone."""
    after = state.copy()
    after.logs[key] = [Entry(seqno, bytes(data))]
    after.live_bytes = sum(len(entry.data) for log in after.logs.values() for entry in log)
    # Nobody's tokens: who has put an object there finds that it is not of the log.
    after.tokens.extend(uuid.uuid4().bytes for _ in range(min(position - state.position, RECENT)))
    after.position = after.checkpoint_position = position
    return after
