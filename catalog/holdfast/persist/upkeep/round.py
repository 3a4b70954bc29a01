"""One round of upkeep of a shard: expiry of leases, compaction, rollup, garbage collection, log truncation.

The order makes sure that a crash at any point loses nothing. The parts of a compaction are written, and then
a commit exchanges them for exactly their batches. A rollup is written, and then a commit records it and makes
the older ones garbage. Blobs are deleted after the commit that made them garbage. The log is truncated last,
below the newest rollup.
"""

from collections.abc import Callable

from holdfast.errors import BadInput, CorruptBlob, DiffOverflow, HoldfastError
from holdfast.persist.config import PersistConfig
from holdfast.persist.state.command import Handle
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import ShardState
from holdfast.persist.state.transition_staged import staged_below
from holdfast.persist.upkeep.compaction import compact, next_compaction
from holdfast.persist.upkeep.garbage import collect_garbage, cover_and_collect
from holdfast.persist.upkeep.leases import LeaseWatch, drop_handles
from holdfast.persist.upkeep.pending import drop_passed, merge_pending, plan_pending
from holdfast.persist.upkeep.rollup import rollup_due


def due(state: ShardState, config: PersistConfig) -> bool:
    """Whether a shard needs upkeep now."""
    if rollup_due(state, config) or next_compaction(state, config):
        return True
    return bool(plan_pending(state, config) or staged_below(state, state.upper))


def maintain(
    machine: Machine, leases: LeaseWatch, writer: Handle, between: Callable[[], None] = lambda: None
) -> None:
    """Do all the upkeep that a shard needs now. Call `between` from time to time if it takes long.

    Batches that are appended during the round wait for the next one. Otherwise a busy writer would make the
    round merge a few batches at a time.
    """
    state = machine.refresh()
    if not state.exists:
        return
    drop_handles(machine, leases.expired(machine.state))
    drop_passed(machine)
    unreadable: HoldfastError | None = None
    try:
        while merge_pending(machine, writer, between) or compact(machine, writer, between, state.upper):
            between()
    except (BadInput, CorruptBlob, DiffOverflow) as error:
        # If updates can't be merged, the log and the garbage must not grow as well.
        unreadable = error
    if machine.state.finalized:
        # Collect before the last rollup, so that it names no garbage. The shard may end during a compaction.
        collect_garbage(machine)
    cover_and_collect(machine)
    if unreadable is not None:
        raise unreadable
