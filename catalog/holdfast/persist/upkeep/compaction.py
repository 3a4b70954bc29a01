"""Compaction: replaces adjacent batches by one with equal contents, consolidated at since.

- The new parts are written first. Then a commit exchanges them for exactly the batches that they were made
  from. If these batches are gone, the result is dropped and its parts are deleted.
- Levels are geometric: merging `compaction_fanin` batches of one level gives one of the next level. So n
  appends leave O(log n) batches, and each update is rewritten O(log n) times.
- A large batch of few runs has a higher level from the start, by its size. So a load of terabytes is not
  rewritten because some small batches were appended after it.
- A process that merges blobs first claims the batches in the state, so that others do something else. A claim
  lives by the heartbeats of its writer. It saves work and protects nothing: a result is correct without a
  claim.
- Each result has its own writer, which registers before the first upload. Its entry ends with the result.
  Once the entry is gone, the sweeper treats the parts as orphans. The entry never comes back, and the result
  is refused.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from holdfast.errors import CLOSED, HandleExpired, HoldfastError, ShardFinalized
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import new_id
from holdfast.persist.parts.chains import joined
from holdfast.persist.parts.part_store import PartGone, delete_parts, read_inline
from holdfast.persist.parts.run_writer import write_run
from holdfast.persist.parts.runs import Since, merged
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

_LEVEL_0_BYTES: Final = 64 * 1024
"""A batch of level 0 has fewer bytes than `compaction_fanin` times these."""


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
    """Return the adjacent batches to merge next, the newest ones that are enough.

    These are `fanin` or more of one level with none of a higher level between them. What lies between them is
    merged too. Two or more batches before one of a higher level are enough as well: nothing is ever appended
    beside them. All of them together are hardly larger than that one, so this costs little.

    Batches that are `claimed` are left to their claimants.
    """
    start = end = 0
    # For each level with none of a higher level after it: the level, its first and last place, their number.
    open_levels: list[tuple[int, int, int, int]] = []
    first = 0
    for place, batch in enumerate(batches):
        if batch.id in claimed:
            start, end = _enough(open_levels, config.compaction_fanin) or (start, end)
            open_levels, first = [], place + 1
            continue
        level = batch.level if batch.size_bytes < _LEVEL_0_BYTES else _level(batch, config.compaction_fanin)
        while open_levels and open_levels[-1][0] < level:
            open_levels.pop()
        before = open_levels[-1][2] + 1 if open_levels else first
        if place - before > 1:
            start, end = before, place
        if open_levels and open_levels[-1][0] == level:
            _, begin, _, count = open_levels.pop()
            open_levels.append((level, begin, place, count + 1))
        else:
            open_levels.append((level, place, place, 1))
    start, end = _enough(open_levels, config.compaction_fanin) or (start, end)
    return tuple(batches[start:end])


def _level(batch: Batch, fanin: int) -> int:
    """The level of a batch: what merges have made it, or a higher one if it has the size of that.

    A batch of many runs needs a merge at any size, because readers have to merge the runs each time.
    """
    level, most_bytes = batch.level, _LEVEL_0_BYTES * fanin ** (batch.level + 1)
    if len(batch.runs) >= fanin:
        return level
    while batch.size_bytes >= most_bytes:
        level, most_bytes = level + 1, most_bytes * fanin
    return level


def _enough(levels: Sequence[tuple[int, int, int, int]], fanin: int) -> tuple[int, int] | None:
    return next(((begin, last + 1) for _, begin, last, count in reversed(levels) if count >= fanin), None)


def claimed_batches(state: ShardState) -> frozenset[int]:
    """Return the ids of all claimed batches."""
    return frozenset(id_ for claim in state.claims.values() for id_ in claim.batch_ids)


def next_compaction(state: ShardState, config: PersistConfig, upper: int = CLOSED) -> tuple[Batch, ...]:
    """Return a shard's batches to merge next, or (). Batches that reach past `upper` are left for later."""
    if state.finalized:
        return ()
    batches = state.batches
    end = len(batches)
    while end > 0 and batches[end - 1].upper > upper:
        end -= 1
    return plan_compaction(batches[:end], config, claimed_batches(state))


def all_batches(state: ShardState) -> tuple[Batch, ...]:
    """Return all batches of a shard, to merge them into one; () if that would gain nothing."""
    return state.batches if _gains(state, state.batches) else ()


def most_unclaimed(state: ShardState) -> tuple[Batch, ...]:
    """Return the most adjacent batches that nobody has claimed and whose merge gains something; () if none.

    Of equally many, these are the newest.
    """
    claimed = claimed_batches(state)
    best: list[Batch] = []
    part: list[Batch] = []
    for batch in state.batches:
        if batch.id in claimed:
            part = []
            continue
        part.append(batch)
        if len(part) >= len(best) and _gains(state, part):
            best = part
    return tuple(best)


def _gains(state: ShardState, batches: Sequence[Batch]) -> bool:
    """Whether a merge of batches into one gains something."""
    if state.finalized:
        return False
    return len(batches) > 1 or any(batch.since < state.since for batch in batches)


def claim_compaction(
    machine: Machine, writer: Handle, batches: Sequence[Batch] | None = None
) -> CompactionTask | None:
    """Claim `batches`, or the batches to merge next. Return None if there are none, or others were first."""
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
    """Return the handle for uploading one result."""
    return replace(writer, id=new_id("w"))


def _claim(machine: Machine, task: CompactionTask, heartbeat: int) -> bool:
    claim = ClaimBatches(task.claim_id, task.writer, task.batch_ids, heartbeat)
    (granted,) = commit([(machine, claim)])
    return granted is True


def renew(machine: Machine, task: CompactionTask) -> bool:
    """Renew the claim. Return whether it still exists, or exists again.

    Once its writer sent no heartbeat for the length of the lease, it never exists again.
    """
    known = machine.refresh().writers.get(task.writer.id)
    return _claim(machine, task, known.heartbeats + 1 if known else 1)


def renewal(machine: Machine, task: CompactionTask) -> Callable[[], None]:
    """Return a function that renews a claim if that is due. Call it often while you work on the claim.

    It raises `HandleExpired` once no heartbeat was sent for the length of the lease.
    """
    wait_s = task.writer.lease_ms / 4000
    next_beat = machine.clock.monotonic() + wait_s

    def beat() -> None:
        nonlocal next_beat
        machine.check_open()
        if machine.clock.monotonic() < next_beat:
            return
        # If the claim can't be renewed, it may end. Then another process does the same work, which is
        # harmless.
        with suppress(HoldfastError):
            renew(machine, task)
        if task.writer.id not in machine.state.writers:
            raise HandleExpired(f"claim {task.claim_id} on {task.shard_id} was not renewed for too long")
        next_beat = machine.clock.monotonic() + wait_s

    return beat


def registration(machine: Machine, state: ShardState, writer: Handle) -> Callable[[], None]:
    """Return a function that registers a writer before its first upload, and renews its lease before others.

    It raises `HandleExpired` once the entry is gone, and `ShardFinalized` if the shard was finalized.
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
    """Release the claim. The batches do not change."""
    commit([(machine, ReleaseClaim(task.claim_id))])


def end_claims(machine: Machine, purposes: Container[str]) -> None:
    """End the claims with one of these purposes, of any process.

    Their results can't be installed any more, unless a result is part of the state already.
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
    """Provide a version that has the batches of a task, and the batches, for a block that reads them.

    Raises `HandleExpired` if they are gone, before the block or in it.
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
    """Merge the batches of a task into parts for `install`, and renew the claim during the merge.

    Blobs are merged piece by piece: about one part of the result is in memory.

    Raises:
        HandleExpired: the batches are gone, because another process has merged them or the shard was
            finalized; or the writer sent no heartbeat for too long.
    """
    with batches_of(machine, task) as (state, batches):
        renew_when_due = renewal(machine, task)

        def beat() -> None:
            between()
            renew_when_due()

        return _merge(machine, task, state, batches, beat)


def install(machine: Machine, task: CompactionTask, parts: tuple[Part, ...]) -> bool:
    """Replace exactly the batches that a result was made from by the result. Return whether that happened.

    If not, the batches had changed or the writer's entry is gone, and the parts are deleted. The claims on
    the batches end with them. If the function raises, the parts stay, because they may have been installed.
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
    """Merge one run of batches. Return whether there was one. Calls `between` from time to time.

    Batches that reach past `upper` are left for later.
    """
    state = machine.state
    batches = next_compaction(state, machine.config, upper)
    if not batches:
        return False
    if all(part.inline is not None for batch in batches for part in batch.parts):
        # A claim or a fingerprint would cost as much as the work. Nobody else installs the result.
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
        # After any error, even lack of memory: a claim that stays would keep others from the work.
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
    """Yield the updates of batches in a range, in `schema`, consolidated at since, in the total order."""
    runs = [run for batch in batches for run in batch.runs]
    inline = [part for run in runs for part in run if part.inline is not None]
    if len(inline) == sum(map(len, runs)) and wanted == EVERYTHING:
        # The batches are small, so the stream's fixed cost would dominate.
        sources = [read_inline(machine, schema, part) for part in inline]
        with naming_shard(machine.shard_id):
            updates = consolidate_updates(schema, sources, since)
        yield updates
        return
    runs = joined(runs, machine.schema_of, schema)
    for piece in merged(machine, schema, runs, Since(since), wanted, between=between):
        yield piece
        between()
