"""Compaction: neighbouring batches give way to one of equal contents, consolidated at since.

- The parts are written first, then committed in exchange for exactly the batches that they were made from; a
  result whose batches are gone is dropped and its parts deleted.
- Geometric levels: merging `compaction_fanin` batches of one level gives one of the next, so n appends leave
  O(log n) batches and each update is rewritten O(log n) times.
- Who merges blobs claims the batches in the state first, so that others do something else meanwhile. A claim
  lives by the heartbeats of its writer. It saves work and protects nothing: a result is right without it.
- Each result has a writer of its own, known before the first upload; its entry ends with the result. Once it
  is gone the sweeper takes the parts for orphans: it never comes back, and the result is refused.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.errors import CLOSED, HandleExpired, HoldfastError, ShardFinalized
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import new_id
from holdfast.persist.parts.partstore import PartGone, delete_parts, read_inline
from holdfast.persist.parts.runs import Since, merged
from holdfast.persist.parts.runwriter import write_run
from holdfast.persist.parts.snapshot import replan
from holdfast.persist.rows.consolidate import consolidate_updates
from holdfast.persist.rows.fold import naming_shard
from holdfast.persist.rows.order import EVERYTHING, KeyRange
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.command import (
    ClaimBatches,
    ExpireHandles,
    Handle,
    InstallCompaction,
    RegisterWriter,
    ReleaseClaim,
)
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import Batch, Part, PendingBatch, ShardState
from holdfast.persist.state.transition_upkeep import fingerprint, neighbours


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Batches that a writer has claimed, to be merged as of `since`. Picklable: any process may do it."""

    shard_id: str
    claim_id: str
    writer: Handle
    batch_ids: tuple[int, ...]
    since: int
    fingerprint: bytes


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


def next_compaction(state: ShardState, config: PersistConfig, upper: int = CLOSED) -> tuple[Batch, ...]:
    """The batches of a shard to merge next, none where nothing is due; what reaches past `upper` waits."""
    if state.finalized:
        return ()
    batches = state.batches
    end = len(batches)
    while end > 0 and batches[end - 1].upper > upper:
        end -= 1
    return plan_compaction(batches[:end], config, claimed_batches(state))


def all_batches(state: ShardState) -> tuple[Batch, ...]:
    """All batches of a shard, to be merged into one; none where that would gain nothing."""
    if state.finalized:
        return ()
    gains = len(state.batches) > 1 or any(batch.since < state.since for batch in state.batches)
    return state.batches if gains else ()


def claim_compaction(
    machine: Machine, writer: Handle, batches: Sequence[Batch] | None = None
) -> CompactionTask | None:
    """Claim `batches`, or those to merge next; None where there are none, or another was first."""
    state = machine.state
    wanted = batches or next_compaction(state, machine.config)
    if not wanted:
        return None
    task = _task(machine, writer, wanted, fingerprint(wanted))
    return task if _claim(machine, task, 0) else None


def _task(
    machine: Machine, writer: Handle, batches: Sequence[Batch], contents: bytes = b""
) -> CompactionTask:
    ids = tuple(batch.id for batch in batches)
    return CompactionTask(
        machine.shard_id,
        new_id("k"),
        for_one_result(writer),
        ids,
        machine.state.since,
        contents,
    )


def for_one_result(writer: Handle) -> Handle:
    """The handle under which one result is uploaded."""
    return replace(writer, id=new_id("w"))


def _claim(machine: Machine, task: CompactionTask, heartbeat: int) -> bool:
    claim = ClaimBatches(task.claim_id, task.writer, task.batch_ids, heartbeat)
    (granted,) = commit([(machine, claim)])
    return granted is True


def renew(machine: Machine, task: CompactionTask) -> bool:
    """Say that the work goes on; whether the claim still stands, or stands again.

    It never does once it was silent for the lease.
    """
    known = machine.refresh().writers.get(task.writer.id)
    return _claim(machine, task, known.heartbeats + 1 if known else 1)


def renewal(machine: Machine, task: CompactionTask) -> Callable[[], None]:
    """What renews a claim when that is due, for a caller who works on it and calls often.

    It raises `HandleExpired` once the claim was silent for the lease.
    """
    wait_s = task.writer.lease_ms / 4000
    next_beat = machine.clock.monotonic() + wait_s

    def beat() -> None:
        nonlocal next_beat
        machine.check_open()
        if machine.clock.monotonic() < next_beat:
            return
        # A claim that can't be renewed may die: then another does the same work, no more.
        with suppress(HoldfastError):
            renew(machine, task)
        if task.writer.id not in machine.state.writers:
            raise HandleExpired(f"claim {task.claim_id} on {task.shard_id} was not renewed for too long")
        next_beat = machine.clock.monotonic() + wait_s

    return beat


def registration(machine: Machine, state: ShardState, writer: Handle) -> Callable[[], None]:
    """What makes a writer known before its first upload, and says that it lives with those that follow.

    It raises `HandleExpired` once the entry is gone, `ShardFinalized` where the shard has ended.
    """
    next_beat: float | None = None

    def register() -> None:
        nonlocal next_beat
        beat = 0
        if next_beat is not None:
            if machine.clock.monotonic() < next_beat:
                return
            known = machine.state.writers.get(writer.id)
            beat = known.heartbeats + 1 if known else 1
        commit([(machine, RegisterWriter(writer, state.schema, state.write_mode, beat))])
        next_beat = machine.clock.monotonic() + writer.lease_ms / 4000

    return register


def release(machine: Machine, task: CompactionTask) -> None:
    """Give the claim up; the batches are as they were."""
    commit([(machine, ReleaseClaim(task.claim_id))])


def end_claims(machine: Machine, purposes: Container[str]) -> None:
    """End the claims that were made with one of these purposes, whoever has them.

    No result of theirs is installed from then on, but one that is in the state itself.
    """
    while True:
        state = machine.refresh()
        writers = (state.writers.get(claim.writer_id) for claim in state.claims.values())
        ended = tuple(
            (known.id, known.heartbeats)
            for known in writers
            if known is not None and known.purpose in purposes
        )
        if not ended:
            return
        commit([(machine, ExpireHandles((), ended))])


@contextmanager
def batches_of(machine: Machine, task: CompactionTask) -> Iterator[tuple[ShardState, tuple[Batch, ...]]]:
    """A version that has the batches of a task, and these, for a block that reads them.

    Raises `HandleExpired` where they are gone, before the block or in it.
    """
    state = machine.state if neighbours(machine.state, task.batch_ids) else machine.refresh()
    batches = neighbours(state, task.batch_ids)
    if not batches or fingerprint(batches) != task.fingerprint:
        raise _gone(task)
    try:
        yield state, batches
    except PartGone as gone:
        replan(machine, state, gone)
        raise _gone(task) from None


def _gone(task: CompactionTask) -> HandleExpired:
    return HandleExpired(f"the batches of claim {task.claim_id} on {task.shard_id} are gone")


def merge_task(
    machine: Machine, task: CompactionTask, between: Callable[[], None] = lambda: None
) -> tuple[Part, ...]:
    """Merge the batches of a task into parts that `install` takes, renewing the claim meanwhile.

    What is in blobs is merged piece by piece: memory holds about one part of the result.

    Raises:
        HandleExpired: the batches are gone: another has merged them, or the shard has ended; or the writer
            was silent for too long.
    """
    with batches_of(machine, task) as (state, batches):
        renew_when_due = renewal(machine, task)

        def beat() -> None:
            between()
            renew_when_due()

        return _merge(machine, task, state, batches, beat)


def install(machine: Machine, task: CompactionTask, parts: tuple[Part, ...]) -> bool:
    """Put a result in the place of exactly the batches that it was made from; whether that was done.

    If not, others were there, or the writer's entry is gone, and the parts are deleted. The claims on the
    batches end with them. Where it raises the parts stay: it may have been done before.
    """
    now_ms = machine.store_ms()
    command = InstallCompaction(task.batch_ids, task.since, parts, task.writer.id, now_ms, task.fingerprint)
    (installed,) = commit([(machine, command)])
    if not installed:
        delete_parts(machine, parts)
    return bool(installed)


def compact(
    machine: Machine, writer: Handle, between: Callable[[], None] = lambda: None, upper: int = CLOSED
) -> bool:
    """Merge one run of batches; whether there was one. `between` is called now and then meanwhile.

    Batches that reach past `upper` are left for later.
    """
    state = machine.state
    batches = next_compaction(state, machine.config, upper)
    if not batches:
        return False
    if all(part.inline is not None for batch in batches for part in batch.parts):
        # A claim would cost as much as the work, and so would a fingerprint: nobody else installs the result.
        task = _task(machine, writer, batches)
        register = registration(machine, state, task.writer)
        with suppress(HandleExpired, ShardFinalized):
            install(machine, task, _merge(machine, task, state, batches, between, register))
        return True
    claimed = claim_compaction(machine, writer, batches)
    if claimed is None:
        return True
    try:
        install(machine, claimed, merge_task(machine, claimed, between))
    except HandleExpired:
        return True
    except BaseException:
        # Whatever went wrong, running out of memory too: a claim that stays would keep others from the work.
        with suppress(HoldfastError):
            release(machine, claimed)
        raise
    return True


def _merge(
    machine: Machine,
    task: CompactionTask,
    state: ShardState,
    batches: Sequence[Batch],
    between: Callable[[], None],
    before_upload: Callable[[], None] = lambda: None,
) -> tuple[Part, ...]:
    return write_run(
        machine,
        writer_id=task.writer.id,
        schema=state.schema,
        schema_id=max(state.schemas),
        before_upload=before_upload,
        pieces=consolidated(machine, state.schema, batches, task.since, between),
    )


def consolidated(
    machine: Machine,
    schema: Schema,
    batches: Sequence[Batch | PendingBatch],
    since: int,
    between: Callable[[], None] = lambda: None,
    wanted: KeyRange = EVERYTHING,
) -> Iterator[pa.Table]:
    """The updates of batches in a range, seen through `schema`, consolidated at since, in the total order."""
    runs = [run for batch in batches for run in batch.runs]
    inline = [part for run in runs for part in run if part.inline is not None]
    if len(inline) == sum(map(len, runs)) and wanted == EVERYTHING:
        # Small: the stream's fixed cost would be most of it.
        sources = [read_inline(machine, schema, part) for part in inline]
        with naming_shard(machine.shard_id):
            updates = consolidate_updates(schema, sources, since)
        yield updates
        return
    for piece in merged(machine, schema, runs, Since(since), wanted, between=between):
        yield piece
        between()
