"""Rollups: the whole state of a shard in one blob, so that opening it replays a short log.

The blob is written before the version that names it; the older rollups become garbage with that version.
Rollups are also what is left of a shard when its log is lost. So each client that closes writes one of every
shard that it wrote to. While clients stay open, a young shard gets its first before its log is long, and
then one whenever the log has doubled, in the background and at most a few in its life.
"""

from typing import Final

from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import EPOCH_BITS, rollup_key
from holdfast.persist.rows.part import checksum
from holdfast.persist.state.codec import encode_state
from holdfast.persist.state.command import AddRollup
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import Rollup, ShardState

# Recording a rollup and forgetting what it made garbage.
_ROLLUP_VERSIONS: Final = 2
_FEW: Final = 8


def rollup_due(state: ShardState, config: PersistConfig) -> bool:
    """Whether the log since the newest rollup has become long; of a finalized shard, has anything to lose."""
    newest = state.latest_rollup
    if state.finalized:
        # The one batch that is left has the version of the end as its id.
        (end,) = state.batches
        return newest is None or newest.seqno < end.id or state.seqno - newest.seqno > _ROLLUP_VERSIONS
    return state.seqno - (newest.seqno if newest else 0) >= config.rollup_every


def early_rollup_due(state: ShardState) -> bool:
    """Whether a shard would lose half of its versions or more with its log."""
    if not state.exists or state.finalized:
        return False
    newest = state.latest_rollup
    if newest is None:
        return True
    before = newest.seqno & ((1 << EPOCH_BITS) - 1)
    return state.seqno - newest.seqno >= max(_FEW, before)


def write_early_rollup(machine: Machine) -> None:
    """Write a rollup if the newest version wants one early. Raises as `commit` does."""
    if early_rollup_due(machine.state) and early_rollup_due(machine.refresh()):
        _ = machine.fence.held  # Who is known to be fenced uploads nothing.
        write_rollup(machine)


def write_closing_rollup(machine: Machine, written: int) -> None:
    """Write a rollup unless the newest one has version `written`. Raises as `commit` does."""
    state = machine.state
    newest = state.latest_rollup
    if not state.exists or state.finalized or (newest is not None and newest.seqno >= written):
        return
    _ = machine.fence.held  # A client that knows that it is fenced uploads nothing.
    write_rollup(machine)


def write_rollup(machine: Machine) -> None:
    """Write the newest version as a rollup and record it."""
    state = machine.state
    data = encode_state(state)
    key = rollup_key(machine.shard_id, state.seqno)
    machine.location.blob.put(key, data)
    rollup = Rollup(state.seqno, key, len(data), checksum(data))
    (installed,) = commit([(machine, AddRollup(rollup, machine.store_ms()))])
    if not installed:
        machine.location.blob.delete(key)
