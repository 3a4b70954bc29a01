"""Garbage: blobs that the live state stopped to name, and the log below the newest rollup.

A blob is deleted after the commit that made it garbage, and forgotten after it was deleted: a deletion that
is forgotten is done again, one too early can't happen.
"""

from holdfast.persist.command import ForgetGarbage
from holdfast.persist.config import PersistConfig
from holdfast.persist.machine import Machine, commit
from holdfast.persist.rollup import rollup_due
from holdfast.persist.state import Garbage, ShardState


def deletable(state: ShardState, config: PersistConfig, now_ms: int) -> list[Garbage]:
    """The garbage that nobody can need any more.

    A part waits for the readers that may be reading a version that names it, and for `gc_grace_s` for
    those that nobody knows of. A rollup does not wait: who misses it finds a newer one in the log.
    """
    hold = state.seqno_hold
    grace_ms = config.gc_grace_s * 1000
    return [
        garbage
        for garbage in state.garbage.values()
        if is_rollup(garbage.blob_key) or (garbage.seqno <= hold and now_ms - garbage.wall_ms >= grace_ms)
    ]


def is_rollup(key: str) -> bool:
    """Whether a blob key is that of a rollup."""
    return key.split("/")[1].startswith("v")


def collect_garbage(machine: Machine) -> None:
    """Delete what is no longer needed and truncate the log below the newest rollup."""
    state = machine.state
    dead = deletable(state, machine.config, machine.clock.wall_ms())
    for garbage in dead:
        machine.location.blob.delete(garbage.blob_key)
    newest = state.latest_rollup
    gc_seqno = newest.seqno + 1 if newest else 0
    if gc_seqno > state.gc_seqno:
        machine.location.consensus.truncate(machine.shard_id, gc_seqno)
    if dead or gc_seqno > state.gc_seqno:
        keys = tuple(garbage.blob_key for garbage in dead)
        commit([(machine, ForgetGarbage(keys, gc_seqno))])


def garbage_due(state: ShardState, config: PersistConfig, now_ms: int) -> bool:
    """Whether garbage has waited for its grace, or the log of a finalized shard can shrink."""
    return bool(deletable(state, config, now_ms)) or (state.finalized and rollup_due(state, config))
