"""Pure transitions of pending batches: they are written, sealed and merged, and share blobs with batches.

Each transition recognizes its own effect, as in `holdfast.persist.state.transition`.
"""

from collections.abc import Iterable
from typing import TypeAlias

from holdfast.persist.state.command import Commit, InstallPending, NoOp, Outcome, Write
from holdfast.persist.state.state import (
    AppendBatch,
    Batch,
    Change,
    Drop,
    ExtendUpper,
    Garbage,
    Part,
    PendingBatch,
    PutEntry,
    SealPending,
    ShardState,
    Writer,
    blob_keys,
    part_keys,
)

Runs: TypeAlias = tuple[tuple[Part, ...], ...]


def written(command: Write, runs: Runs) -> tuple[Change, ...]:
    """Return the changes of a write. `runs` are its runs with the shard's id of their schema."""
    if not runs:
        return ()
    return (PutEntry(PendingBatch(command.batch_id, command.writer.id, *bounds_of(runs), runs)),)


def sealed(state: ShardState, upper: int) -> tuple[Change, ...]:
    """Return the changes that move the upper past pending updates."""
    if any(batch.lower < upper for batch in state.pending.values()):
        return (SealPending(upper),)
    if state.batches:
        return (ExtendUpper(upper),)
    return (AppendBatch(Batch(state.seqno + 1, 0, upper)),)


def bounds_of(runs: Runs) -> tuple[int, int]:
    """Return the smallest interval `[lower, upper)` that contains the times of the runs."""
    parts = [part for run in runs for part in run]
    return min(part.lower for part in parts), max(part.upper for part in parts)


def garbage_of(
    state: ShardState,
    gone: Iterable[Batch | PendingBatch],
    kept: Iterable[Batch | PendingBatch],
    wall_ms: int,
) -> list[PutEntry]:
    """Return the garbage of a change: blobs that removed batches name and kept batches don't."""
    named = set(blob_keys(kept))
    keys = dict.fromkeys(key for key in blob_keys(gone) if key not in named)
    return [PutEntry(Garbage(key, state.seqno + 1, wall_ms)) for key in keys]


def install_pending(state: ShardState, command: InstallPending) -> Outcome:
    """Replace the pending batches that were merged by the result."""
    new_keys = {part.blob_key for run in command.runs for part in run if part.blob_key}
    # One key is enough: a seal takes parts of the result, and a compaction may replace each part separately.
    if command.batch_id in state.pending or not new_keys.isdisjoint(part_keys(state)):
        return NoOp(True)
    if any(state.pending.get(batch.id) != batch for batch in command.replaced):
        # If a new key is garbage, the result was installed, and was replaced by another one later.
        return NoOp(not new_keys.isdisjoint(state.garbage))
    if new_keys and (command.writer_id not in state.writers or not new_keys.isdisjoint(state.garbage)):
        return NoOp(False)
    changes: list[Change] = [Drop(PendingBatch, batch.id) for batch in command.replaced]
    if command.runs:
        level = max(batch.level for batch in command.replaced) + 1
        bounds = bounds_of(command.runs)
        changes.append(
            PutEntry(PendingBatch(command.batch_id, command.writer_id, *bounds, command.runs, level))
        )
    gone = {batch.id for batch in command.replaced}
    kept = [batch for batch in state.pending.values() if batch.id not in gone]
    changes += garbage_of(state, command.replaced, [*state.batches, *kept], command.wall_ms)
    if command.writer_id in state.writers:
        changes.append(Drop(Writer, command.writer_id))
    return Commit(tuple(changes), True)
