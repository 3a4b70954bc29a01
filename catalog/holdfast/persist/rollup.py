"""Rollups: the whole state of a shard in one blob, so that opening it replays a short log.

The blob is written before the version that names it; the older rollups become garbage with that version.
"""

from typing import Final

from holdfast.persist.command import AddRollup
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import rollup_key
from holdfast.persist.machine import Machine, commit
from holdfast.persist.part import checksum
from holdfast.persist.state import Rollup, ShardState
from holdfast.persist.statecodec import encode_state

# Recording a rollup and forgetting what it made garbage.
_ROLLUP_VERSIONS: Final = 2


def rollup_due(state: ShardState, config: PersistConfig) -> bool:
    """Whether the log since the newest rollup has become long; of a finalized shard, has anything to lose."""
    newest = state.latest_rollup
    if state.finalized:
        # The one batch that is left has the version of the end as its id.
        (end,) = state.batches
        return newest is None or newest.seqno < end.id or state.seqno - newest.seqno > _ROLLUP_VERSIONS
    return state.seqno - (newest.seqno if newest else 0) >= config.rollup_every


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
