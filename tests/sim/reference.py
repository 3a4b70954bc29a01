"""The code that the audit uses: the real code, even if a mutant of it is under test.

A mutated run imports this module first, and only then replaces the package by the mutant.
"""

from holdfast.persist.state.codec import decode_diff, decode_state
from holdfast.persist.state.invariants import check_step
from holdfast.persist.state.lock import LOCK_KEY, LockRow, decode_lock
from holdfast.persist.state.state import PendingBatch, ShardState, StateDiff, WriteMode, apply, part_keys

__all__ = [
    "LOCK_KEY",
    "LockRow",
    "PendingBatch",
    "ShardState",
    "StateDiff",
    "WriteMode",
    "apply",
    "check_step",
    "decode_diff",
    "decode_lock",
    "decode_state",
    "part_keys",
]
