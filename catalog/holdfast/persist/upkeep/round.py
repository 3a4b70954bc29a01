"""Upkeep of a shard: expiry of leases, compaction, rollup, garbage collection, truncation of the log.

Order, so that a crash at any point loses nothing: a compaction's parts are written, then committed in
exchange for exactly their batches; a rollup is written, then committed (which makes the older ones garbage);
blobs are deleted after the commit that made them garbage; the log is truncated last, below the newest rollup.
"""

from collections.abc import Callable

from holdfast.errors import BadInput, CorruptBlob, DiffOverflow, HoldfastError
from holdfast.persist.config import PersistConfig
from holdfast.persist.state.command import Handle
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import ShardState
from holdfast.persist.upkeep.compaction import compact, next_compaction
from holdfast.persist.upkeep.garbage import collect_garbage, cover_and_collect
from holdfast.persist.upkeep.leases import LeaseWatch, drop_handles
from holdfast.persist.upkeep.pending import merge_pending, plan_pending
from holdfast.persist.upkeep.rollup import rollup_due


def due(state: ShardState, config: PersistConfig) -> bool:
    """Whether a shard wants upkeep now."""
    if rollup_due(state, config) or next_compaction(state, config):
        return True
    return bool(plan_pending(state, config))


def maintain(
    machine: Machine, leases: LeaseWatch, writer: Handle, between: Callable[[], None] = lambda: None
) -> None:
    """Do all the upkeep that a shard wants now; `between` is called now and then where it takes long.

    What is appended meanwhile is for the next time: a busy writer would have it merged a few batches at once.
    """
    state = machine.refresh()
    if not state.exists:
        return
    drop_handles(machine, leases.expired(machine.state))
    unreadable: HoldfastError | None = None
    try:
        while merge_pending(machine, writer, between) or compact(machine, writer, between, state.upper):
            between()
    except (BadInput, CorruptBlob, DiffOverflow) as error:
        # Updates that can't be merged must not let the log and the garbage grow too.
        unreadable = error
    if machine.state.finalized:
        # Before it, so that the last rollup has no garbage to name; perhaps it ended while we compacted.
        collect_garbage(machine)
    cover_and_collect(machine)
    if unreadable is not None:
        raise unreadable
