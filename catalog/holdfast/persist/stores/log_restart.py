"""Recovery in an S3-only log: make the log of a key continue at another seqno.

A log object can only add the next entry of a key. So a restart writes a checkpoint, in which a key may begin
anywhere. It also writes a floor far above all objects that ever existed, because an older copy of the log may
end before some of them. A process that is behind reads the floor and opens the checkpoint. An object that
such a process puts before it reads the floor is below the floor, and so is not part of the log.
"""

import uuid
from typing import Final

from holdfast.persist.stores.log_codec import LOG_FOLDER, object_name
from holdfast.persist.stores.log_state import RECENT, LogState
from holdfast.persist.stores.objects import Objects
from holdfast.persist.stores.traits import Entry

_STEP_BITS: Final = 40
_DIGITS: Final = len(object_name(0)) - len(LOG_FOLDER)


def last_position(objects: Objects) -> int:
    """Return the greatest position that has an object; 0 if there is none."""
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
    """Return the position at which a recovery continues: beyond all that this log has ever reached."""
    return ((position >> _STEP_BITS) + 1) << _STEP_BITS


def restarted(state: LogState, key: str, seqno: int, data: bytes, *, position: int) -> LogState:
    """Return the state at `position` in which the log of `key` has only this entry."""
    after = state.copy()
    after.logs[key] = [Entry(seqno, bytes(data))]
    after.live_bytes = sum(len(entry.data) for log in after.logs.values() for entry in log)
    # These tokens belong to no object. A process that put an object there learns that it is not in the log.
    after.tokens.extend(uuid.uuid4().bytes for _ in range(min(position - state.position, RECENT)))
    after.position = after.checkpoint_position = position
    return after
