"""Pure transitions of what is pending: it is written, sealed, merged, and shares blobs with batches.

As in `holdfast.persist.state.transition`, each recognizes its own effect.
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
    Put,
    SealPending,
    ShardState,
    Writer,
    blob_keys,
    part_keys,
)

Runs: TypeAlias = tuple[tuple[Part, ...], ...]


def written(command: Write, runs: Runs) -> tuple[Change, ...]:
    """What a write adds: `runs` are its runs as the shard names their schema."""
    if not runs:
        return ()
    return (Put(PendingBatch(command.batch_id, command.writer.id, *bounds_of(runs), runs)),)


def sealed(state: ShardState, upper: int) -> tuple[Change, ...]:
    """What moves the upper over what is pending."""
    if any(batch.lower < upper for batch in state.pending.values()):
        return (SealPending(upper),)
    if state.batches:
        return (ExtendUpper(upper),)
    return (AppendBatch(Batch(state.seqno + 1, 0, upper)),)


def bounds_of(runs: Runs) -> tuple[int, int]:
    """The least `[lower, upper)` around the times of some runs."""
    parts = [part for run in runs for part in run]
    return min(part.lower for part in parts), max(part.upper for part in parts)


def garbage_of(
    state: ShardState,
    gone: Iterable[Batch | PendingBatch],
    kept: Iterable[Batch | PendingBatch],
    wall_ms: int,
) -> list[Put]:
    """What becomes garbage where some batches go: the blobs that none of those that are kept names too."""
    named = set(blob_keys(kept))
    keys = dict.fromkeys(key for key in blob_keys(gone) if key not in named)
    return [Put(Garbage(key, state.seqno + 1, wall_ms)) for key in keys]


def install_pending(state: ShardState, command: InstallPending) -> Outcome:
    """Put the result of a merge in the place of the pending batches that it was made from."""
    new_keys = {part.blob_key for run in command.runs for part in run if part.blob_key}
    # Any of them: a seal takes parts of the result, and each gives way to another by itself.
    if command.batch_id in state.pending or not new_keys.isdisjoint(part_keys(state)):
        return NoOp(True)
    if any(state.pending.get(batch.id) != batch for batch in command.replaced):
        # In garbage: the result was in, and has given way to another since.
        return NoOp(not new_keys.isdisjoint(state.garbage))
    if new_keys and (command.writer_id not in state.writers or not new_keys.isdisjoint(state.garbage)):
        return NoOp(False)
    changes: list[Change] = [Drop(PendingBatch, batch.id) for batch in command.replaced]
    if command.runs:
        level = max(batch.level for batch in command.replaced) + 1
        bounds = bounds_of(command.runs)
        changes.append(Put(PendingBatch(command.batch_id, command.writer_id, *bounds, command.runs, level)))
    gone = {batch.id for batch in command.replaced}
    kept = [batch for batch in state.pending.values() if batch.id not in gone]
    changes += garbage_of(state, command.replaced, [*state.batches, *kept], command.wall_ms)
    if command.writer_id in state.writers:
        changes.append(Drop(Writer, command.writer_id))
    return Commit(tuple(changes), True)
