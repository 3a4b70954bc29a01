"""Reads the updates of a shard in the order of time, for a listener that may be far behind.

- Batches cover time without gaps. The reader takes as many as have about `LISTEN_BYTES` of updates at once,
  from the first one that has something new.
- A single batch may have more, because compaction merges many times into one batch, in the order of keys. Its
  updates are sorted by time into temporary files, which are read once from the first time to the last.
- Memory is about three times `LISTEN_BYTES`, plus a few rows if rows are larger than that.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.persist.parts.part_store import read_updates
from holdfast.persist.parts.runs import open_runs
from holdfast.persist.rows.consolidate import consolidate_updates
from holdfast.persist.rows.fold import naming_shard
from holdfast.persist.rows.merge import consolidate_chunk, merge_runs
from holdfast.persist.rows.schema import TIME, Schema
from holdfast.persist.rows.sizes import gathered, pieces_of
from holdfast.persist.rows.spill import Spill
from holdfast.persist.rows.values import values_of
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import Batch, Part, ShardState

LISTEN_BYTES: Final = 64 * 1024 * 1024
"""About how many bytes of updates a listen has in memory and returns at once, or one larger row."""

_CHUNK_BYTES: Final = LISTEN_BYTES // 2
_SPILL_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Between:
    """Updates at times from `earliest` to `latest`."""

    earliest: int
    latest: int

    def names(self, schema: Schema) -> list[str]:
        """Return the columns that distinguish rows."""
        return [*schema.names, TIME]

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch in this interval."""
        times = values_of(rows.column(TIME))
        if not len(times) or self.earliest <= int(times.min()) <= int(times.max()) <= self.latest:
            return rows
        return rows.filter(pa.array((times >= np.uint64(self.earliest)) & (times <= np.uint64(self.latest))))


@dataclass(frozen=True, slots=True)
class InTime:
    """Updates in the order of time up to `frontier`: at once, or in `pieces` if there are too many."""

    frontier: int
    table: pa.Table | None
    pieces: Iterator[pa.Table] | None = None


def in_time(
    machine: Machine, state: ShardState, frontier: int, end: int, beat: Callable[[], None] = lambda: None
) -> InTime:
    """Return the next updates at times from `frontier` on and before `end`, which is at most the upper.

    Raises the errors of `open_runs`, and `Determinate` if there is no space for temporary files. Iterating
    `pieces` raises no errors of the store.
    """
    schema = state.schema
    tables: list[pa.Table] = []
    held, reached = 0, frontier
    for batch in _wanted(state.batches, frontier, end):
        found = _within(machine, schema, batch, frontier, end, LISTEN_BYTES - held)
        if found is None:
            if reached > frontier:
                break
            until = min(batch.upper, end)
            return InTime(until, None, _sorted_by_time(machine, schema, batch, frontier, until, beat))
        tables += found
        held += sum(table.nbytes for table in found)
        reached = min(batch.upper, end)
        if held >= LISTEN_BYTES // 2:
            break
    else:
        reached = end
    with naming_shard(machine.shard_id):
        updates = consolidate_updates(schema, tables, 0)
    return InTime(reached, updates if reached == frontier + 1 else updates.sort_by(TIME))


def _wanted(batches: Sequence[Batch], frontier: int, end: int) -> list[Batch]:
    found = []
    # Usually these are the last few of many.
    for batch in reversed(batches):
        if batch.upper <= frontier:
            break
        if batch.lower < end:
            found.append(batch)
    return found[::-1]


def _within(
    machine: Machine, schema: Schema, batch: Batch, frontier: int, end: int, most_bytes: int
) -> list[pa.Table] | None:
    """Return the wanted updates of a batch; None if they have more than so many bytes."""
    found: list[pa.Table] = []
    held = 0
    for part in batch.parts:
        if not max(part.lower, frontier) < min(part.upper, end):
            continue
        for table in _tables(machine, schema, part, frontier, end):
            held += table.nbytes
            if held > most_bytes and batch.rows > 1:
                return None
            found.append(table)
    return found


def _tables(machine: Machine, schema: Schema, part: Part, frontier: int, end: int) -> Iterator[pa.Table]:
    if part.inline is not None:
        yield read_updates(machine, schema, replace(part, upper=min(part.upper, end)), from_time=frontier)
        return
    for run in open_runs(machine, schema, [(part,)], Between(frontier, end - 1)):
        for rows in run:
            yield pa.Table.from_batches([rows])


def _sorted_by_time(
    machine: Machine, schema: Schema, batch: Batch, frontier: int, until: int, beat: Callable[[], None]
) -> Iterator[pa.Table]:
    """Sort the updates of a batch by time, consolidated. When it returns, all are in temporary files."""
    by = [TIME, *schema.names]
    spills: list[Spill] = []
    waiting: list[pa.RecordBatch] = []

    def spill() -> None:
        if waiting:
            with naming_shard(machine.shard_id):
                rows = consolidate_chunk(by, waiting)
            waiting.clear()
            spills.append(Spill(pieces_of(rows, _SPILL_BYTES)))
            beat()

    try:
        for run in open_runs(machine, schema, batch.runs, Between(frontier, until - 1)):
            for rows in run:
                waiting.append(rows)
                if sum(each.nbytes for each in waiting) >= _CHUNK_BYTES:
                    spill()
        spill()
    except BaseException:
        for each in spills:
            each.close()
        raise
    return _given(machine, by, spills, beat)


def _given(
    machine: Machine, by: Sequence[str], spills: Sequence[Spill], beat: Callable[[], None]
) -> Iterator[pa.Table]:
    try:
        with naming_shard(machine.shard_id):
            yield from gathered(merge_runs(by, map(iter, spills), beat), LISTEN_BYTES // 2)
    finally:
        for spill in spills:
            spill.close()
