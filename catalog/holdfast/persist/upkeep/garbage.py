"""Garbage: blobs that the live state stopped to name, and the log below the newest rollup.

- A blob is deleted after the commit that made it garbage, and forgotten after it was deleted: a deletion that
  is forgotten is done again, one too early can't happen.
- How long it has waited is told by the store's own clock, where it has one: hosts disagree.
- While a shard has two histories nothing of it goes. After such a look the next one waits, up to a minute, as
  it lists blobs: commits go on, and only a person ends the state.
- A part goes only when the newest rollup does not name it any more: should the log be lost, all that the
  newest rollup names is there. Of an ended shard nothing is to be restored.
"""

from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import rollup_seqno
from holdfast.persist.state.command import ForgetGarbage
from holdfast.persist.state.cuts import cut_finalized_log, cut_log
from holdfast.persist.state.divergence import why_keep
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import Garbage, ShardState
from holdfast.persist.stores import Row
from holdfast.persist.upkeep.rollup import rollup_due, write_rollup


def ripe(state: ShardState, config: PersistConfig, now_ms: int) -> list[Garbage]:
    """The garbage that has waited long enough: `now_ms` is the store's time.

    A part waits for the readers that may be reading a version that names it, for `gc_grace_s` for those that
    nobody knows of, and for `retain_for_s` for a restore. A rollup waits for a restore only: who misses it
    finds a newer one in the log. That of an ended shard waits for nobody.
    """
    hold = state.seqno_hold
    retain_ms = config.retain_for_s * 1000
    grace_ms = max(config.gc_grace_s * 1000, retain_ms)
    found = []
    for garbage in state.garbage.values():
        waited = now_ms - garbage.wall_ms
        if is_rollup(garbage.blob_key):
            if waited >= retain_ms or retain_ms == 0 or _is_tombstone(state, garbage):
                found.append(garbage)
        elif garbage.seqno <= hold and waited >= grace_ms:
            found.append(garbage)
    return found


def deletable(state: ShardState, config: PersistConfig, now_ms: int) -> list[Garbage]:
    """The ripe garbage that the newest rollup does not name."""
    found = ripe(state, config, now_ms)
    if state.finalized:
        return found
    newest = state.latest_rollup
    covered = newest.seqno if newest else 0
    return [garbage for garbage in found if is_rollup(garbage.blob_key) or garbage.seqno <= covered]


def uncovered(state: ShardState, config: PersistConfig, now_ms: int) -> bool:
    """Whether garbage is ripe that only a newer rollup lets go."""
    return len(ripe(state, config, now_ms)) > len(deletable(state, config, now_ms))


def is_rollup(key: str) -> bool:
    """Whether a blob key is that of a rollup."""
    return key.partition("/")[2].startswith("v")


def _is_tombstone(state: ShardState, garbage: Garbage) -> bool:
    """Whether a rollup was written after the end of its shard: it tells no more than any later one."""
    if not state.finalized:
        return False
    (end,) = state.batches
    seqno = rollup_seqno(garbage.blob_key)
    return seqno is not None and seqno >= end.id


def now_for(machine: Machine) -> int:
    """The store's time, asked for only where some garbage waits for it; else 0."""
    waits = machine.config.retain_for_s > 0 or not all(map(is_rollup, machine.state.garbage))
    return machine.store_ms() if waits and machine.state.garbage else 0


def cover_and_collect(machine: Machine) -> None:
    """Write a rollup where one is due, or garbage waits for it alone, and collect what can go then."""
    if rollup_due(machine.state, machine.config) or uncovered(
        machine.state, machine.config, now_for(machine)
    ):
        write_rollup(machine)
    collect_garbage(machine)


def collect_garbage(machine: Machine) -> None:
    """Delete what is no longer needed and truncate the log below the newest rollup."""
    # What this process believes may be of a history that the store has lost.
    machine.refresh()
    state, digest = machine.version
    known = Row(state.seqno, digest)
    dead = deletable(state, machine.config, now_for(machine))
    newest = state.latest_rollup
    gc_seqno = newest.seqno + state.finalized if newest else 0
    if (not dead and gc_seqno <= state.gc_seqno) or machine.keeps_everything():
        return
    why = why_keep(machine)
    machine.keep_everything(why)
    if why:
        return
    for garbage in dead:
        machine.location.blob.delete(garbage.blob_key)
    if gc_seqno > state.gc_seqno:
        if state.finalized:
            cut_finalized_log(machine.location, machine.shard_id, gc_seqno, known)
        elif not cut_log(machine.location, machine.shard_id, gc_seqno, known):
            gc_seqno = state.gc_seqno
    if dead or gc_seqno > state.gc_seqno:
        keys = tuple(garbage.blob_key for garbage in dead)
        commit([(machine, ForgetGarbage(keys, gc_seqno))])


def garbage_due(state: ShardState, config: PersistConfig, now_ms: int) -> bool:
    """Whether garbage has waited for its grace, or the log of a finalized shard can shrink."""
    return bool(ripe(state, config, now_ms)) or (state.finalized and rollup_due(state, config))


def log_is_long(state: ShardState, config: PersistConfig) -> bool:
    """Whether the log has more rows than a newcomer is to replay, also below the newest rollup.

    Where each client writes a rollup when it closes, no other rollup is ever due.
    """
    return state.seqno - state.gc_seqno >= config.rollup_every
