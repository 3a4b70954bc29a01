"""Compaction: neighbouring batches give way to one of equal contents, consolidated at since.

- The parts are written first, then committed in exchange for exactly the batches that they were made from; a
  result whose batches are gone is dropped and its parts deleted.
- Geometric levels: merging `compaction_fanin` batches of one level gives one of the next, so n appends leave
  O(log n) batches and each update is rewritten O(log n) times.
- Who merges blobs claims the batches in the state first, so that others do something else meanwhile. A claim
  lives by the heartbeats of its writer. It saves work and protects nothing: a result is right without it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import HandleExpired, HoldfastError
from holdfast.persist.command import ClaimBatches, Handle, InstallCompaction, ReleaseClaim
from holdfast.persist.config import PersistConfig
from holdfast.persist.consolidate import consolidate_updates
from holdfast.persist.ids import new_id
from holdfast.persist.machine import Machine, commit
from holdfast.persist.partstore import PartGone, delete_parts, read_inline
from holdfast.persist.runs import Since, merged
from holdfast.persist.runwriter import write_run
from holdfast.persist.snapshot import replan
from holdfast.persist.state import Batch, Part, PendingBatch, ShardState
from holdfast.persist.transition_upkeep import neighbours


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Batches that a writer has claimed, to be merged as of `since`. Picklable: any process may do it."""

    shard_id: str
    claim_id: str
    writer: Handle
    batch_ids: tuple[int, ...]
    since: int


def plan_compaction(
    batches: Sequence[Batch], config: PersistConfig, claimed: frozenset[int] = frozenset()
) -> tuple[Batch, ...]:
    """The neighbouring batches to merge next: the newest run of one level that is long enough.

    Merging `fanin` batches of a level gives one of the next, so n appends leave O(log n) batches and each
    update is rewritten O(log n) times. Batches that are `claimed` are left to who claimed them.
    """
    end = len(batches)
    while end > 0:
        if batches[end - 1].id in claimed:
            end -= 1
            continue
        start = end
        while (
            start > 0
            and batches[start - 1].level == batches[end - 1].level
            and batches[start - 1].id not in claimed
        ):
            start -= 1
        if end - start >= config.compaction_fanin:
            return tuple(batches[start:end])
        end = start
    return ()


def claimed_batches(state: ShardState) -> frozenset[int]:
    """The batches that somebody has claimed."""
    return frozenset(id_ for claim in state.claims.values() for id_ in claim.batch_ids)


def next_compaction(state: ShardState, config: PersistConfig) -> tuple[Batch, ...]:
    """The batches of a shard to merge next, none where nothing is due."""
    if state.finalized:
        return ()
    return plan_compaction(state.batches, config, claimed_batches(state))


def claim_compaction(
    machine: Machine, writer: Handle, batches: Sequence[Batch] | None = None
) -> CompactionTask | None:
    """Claim `batches`, or those to merge next; None where there are none, or another was first."""
    state = machine.state
    wanted = tuple(batch.id for batch in batches or next_compaction(state, machine.config))
    if not wanted:
        return None
    task = CompactionTask(machine.shard_id, new_id("k"), writer, wanted, state.since)
    return task if renew(machine, task) else None


def renew(machine: Machine, task: CompactionTask) -> bool:
    """Say that the work goes on; whether the claim still stands, or stands again."""
    known = machine.refresh().writers.get(task.writer.id)
    beat = known.heartbeats + 1 if known else 1
    claim = ClaimBatches(task.claim_id, task.writer, task.batch_ids, beat)
    (granted,) = commit([(machine, claim)])
    machine.settled.add(task.writer.id)
    return granted is True


def release(machine: Machine, task: CompactionTask) -> None:
    """Give the claim up; the batches are as they were."""
    commit([(machine, ReleaseClaim(task.claim_id))])


def merge_task(
    machine: Machine, task: CompactionTask, between: Callable[[], None] = lambda: None
) -> tuple[Part, ...]:
    """Merge the batches of a task into parts that `install` takes, renewing the claim meanwhile.

    What is in blobs is merged piece by piece: memory holds about one part of the result.

    Raises:
        HandleExpired: the batches are gone: another has merged them, or the shard has ended.
    """
    state = machine.state if neighbours(machine.state, task.batch_ids) else machine.refresh()
    batches = neighbours(state, task.batch_ids)
    if not batches:
        raise HandleExpired(f"the batches of claim {task.claim_id} on {task.shard_id} are gone")
    wait_s = task.writer.lease_ms / 4000
    next_beat = machine.clock.monotonic() + wait_s

    def beat() -> None:
        nonlocal next_beat
        between()
        if machine.clock.monotonic() >= next_beat:
            # A claim that can't be renewed may die: then another does the same work, no more.
            with suppress(HoldfastError):
                renew(machine, task)
            next_beat = machine.clock.monotonic() + wait_s

    try:
        return _merge(machine, task.writer.id, state, batches, task.since, beat)
    except PartGone as gone:
        replan(machine, state, gone)
        raise HandleExpired(f"the batches of claim {task.claim_id} on {task.shard_id} are gone") from None


def install(machine: Machine, batch_ids: tuple[int, ...], since: int, parts: tuple[Part, ...]) -> bool:
    """Put a result in the place of exactly the batches that it was made from; whether that was done.

    If not, others were there, and the parts are deleted. The claims on the batches end with them.
    """
    try:
        command = InstallCompaction(batch_ids, since, parts, machine.store_ms())
    except HoldfastError:
        delete_parts(machine, parts)
        raise
    (installed,) = commit([(machine, command)])
    if not installed:
        delete_parts(machine, parts)
    return bool(installed)


def compact(machine: Machine, writer: Handle, between: Callable[[], None] = lambda: None) -> bool:
    """Merge one run of batches; whether there was one. `between` is called now and then meanwhile."""
    state = machine.state
    batches = next_compaction(state, machine.config)
    if not batches:
        return False
    if all(part.inline is not None for batch in batches for part in batch.parts):
        # A claim would cost as much as the work.
        parts = _merge(machine, writer.id, state, batches, state.since, between)
        install(machine, tuple(batch.id for batch in batches), state.since, parts)
        return True
    task = claim_compaction(machine, writer, batches)
    if task is None:
        return True
    try:
        install(machine, task.batch_ids, task.since, merge_task(machine, task, between))
    except HandleExpired:
        return True
    except HoldfastError:
        with suppress(HoldfastError):
            release(machine, task)
        raise
    return True


def _merge(
    machine: Machine,
    writer_id: str,
    state: ShardState,
    batches: Sequence[Batch],
    since: int,
    between: Callable[[], None],
) -> tuple[Part, ...]:
    return write_run(
        machine,
        writer_id=writer_id,
        schema=state.schema,
        schema_id=max(state.schemas),
        pieces=consolidated(machine, state, batches, since, between),
    )


def consolidated(
    machine: Machine,
    state: ShardState,
    batches: Sequence[Batch | PendingBatch],
    since: int,
    between: Callable[[], None],
) -> Iterator[pa.Table]:
    """The updates of batches consolidated at since, in the total order."""
    schema = state.schema
    runs = [run for batch in batches for run in batch.runs]
    inline = [part for run in runs for part in run if part.inline is not None]
    if len(inline) == sum(map(len, runs)):
        # Small: the stream's fixed cost would be most of it.
        sources = [read_inline(machine, schema, part) for part in inline]
        yield consolidate_updates(schema, sources, since)
        return
    for piece in merged(machine, schema, runs, Since(since)):
        yield piece
        between()
