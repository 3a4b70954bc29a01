"""Upkeep of pending batches: merges them, so that a long time without a seal stays cheap.

- A seal may be far away, and the state contains all pending batches. Without merging, each version, rollup
  and opening of a shard would cost more with every write. Merging `compaction_fanin` pending batches of one
  level gives one batch of the next level. So n writes leave O(log n) pending batches, and each update is
  rewritten O(log n) times.
- Times do not change, so a later seal takes the same updates. It finds more of them in one part. A part that
  it cuts is read again with each seal until all of it is sealed.
- The result replaces exactly the batches that it was made from. If a seal has cut or taken one of them since,
  or the entry of the writer is gone, the result is dropped and its parts are deleted.
"""

from collections.abc import Callable, Iterable

from holdfast.errors import HandleExpired
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import new_id
from holdfast.persist.parts.part_store import PartGone, delete_parts
from holdfast.persist.parts.run_writer import write_run
from holdfast.persist.parts.snapshot import replan
from holdfast.persist.state.command import DropStaged, Handle, InstallPending
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import PendingBatch, ShardState, WriteMode
from holdfast.persist.state.transition_staged import staged_below
from holdfast.persist.upkeep.compaction import consolidated, for_one_result, registration


def plan_pending(state: ShardState, config: PersistConfig) -> tuple[PendingBatch, ...]:
    """Return the pending batches to merge next: those of the lowest level that has enough of them.

    Staged batches keep their names, so they are not merged.
    """
    if state.write_mode is WriteMode.APPEND:
        return ()
    levels: dict[int, list[PendingBatch]] = {}
    for batch in state.pending.values():
        levels.setdefault(batch.level, []).append(batch)
    full: Iterable[int] = (
        level for level, batches in levels.items() if len(batches) >= config.compaction_fanin
    )
    return tuple(levels.get(min(full, default=-1), ()))


def drop_passed(machine: Machine) -> None:
    """Drop the staged batches that can't be appended any more, because the upper is past their lower."""
    upper = machine.state.upper
    if staged_below(machine.state, upper):
        commit([(machine, DropStaged(machine.store_ms(), upper))])


def merge_pending(machine: Machine, writer: Handle, between: Callable[[], None] = lambda: None) -> bool:
    """Merge the pending batches of one level. Return whether there were enough of them.

    The bound on memory and the meaning of `between` are the same as for `compact`.
    """
    state = machine.state
    batches = plan_pending(state, machine.config)
    if not batches:
        return False

    writer = for_one_result(writer)
    try:
        parts = write_run(
            machine,
            writer_id=writer.id,
            schema=state.schema,
            schema_id=max(state.schemas),
            before_upload=registration(machine, state, writer),
            pieces=consolidated(machine, state.schema, batches, 0, between),
        )
    except PartGone as gone:
        replan(machine, state, gone)
        return True
    except HandleExpired:
        # The writer was silent for too long. The next attempt uses another writer.
        return True
    runs = (parts,) if parts else ()
    command = InstallPending(batches, new_id("b"), writer.id, runs, machine.store_ms())
    (installed,) = commit([(machine, command)])
    if not installed:
        delete_parts(machine, parts)
    return True
