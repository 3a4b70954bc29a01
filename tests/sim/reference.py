"""The code that the audit trusts: the real one, also where a mutant of it is under test.

A mutated run imports this module first, and only then puts the mutant in the place of the package.
"""

from holdfast.persist.state import ShardState, StateDiff, apply, blob_keys, check_step
from holdfast.persist.statecodec import decode_diff

__all__ = ["ShardState", "StateDiff", "apply", "blob_keys", "check_step", "decode_diff"]
