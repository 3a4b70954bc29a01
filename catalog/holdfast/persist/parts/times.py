"""Counts how many updates happened at which times, and adds up their counts.

- Of a stored part it decodes only the column `_time`, and `_diff` to add up counts. It reads only row groups
  that can have times in the interval.
- In memory are a batch of times, and the first or last times of all, as many as the caller asks for.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.persist.parts.runs import open_part
from holdfast.persist.rows.groups import group_bounds
from holdfast.persist.rows.part import UNREADABLE, check_footer, decode_inline, read_error
from holdfast.persist.rows.schema import DIFF, TIME, Schema
from holdfast.persist.rows.values import values_of
from holdfast.persist.state.machine import Machine, retry
from holdfast.persist.state.state import Part

_BATCH_ROWS: Final = 64 * 1024
_MOST: Final = 2**63 - 1


class TimeCounts:
    """How many updates there are at the first times of `[first, last]`.

    Counting stops at the time at which the total exceeds `most`. This is the last counted time.
    """

    def __init__(self, first: int, last: int, most: int) -> None:
        self.first = first
        self.last = last
        self.most = min(most, _MOST)
        # The times in order, and the number of updates at each.
        self.times = np.empty(0, np.uint64)
        self.counts = np.empty(0, np.int64)

    @property
    def total(self) -> int:
        """The number of counted updates."""
        return int(self.counts.sum())

    @property
    def within(self) -> int:
        """The number of first times that together have at most `most` updates."""
        return int(np.searchsorted(np.cumsum(self.counts), self.most, side="right"))

    def add(self, times: npt.NDArray[np.uint64], counts: npt.NDArray[np.int64] | None = None) -> None:
        """Count updates at these times, in any order: one per time, or as many as `counts`."""
        inside = (times >= np.uint64(self.first)) & (times <= np.uint64(self.last))
        added = np.ones(len(times), np.int64) if counts is None else counts
        self.times, self.counts = _summed(self.times, self.counts, times[inside], added[inside])
        within = self.within
        if within < len(self.times):
            self.last = int(self.times[within])
            self.times, self.counts = self.times[: within + 1], self.counts[: within + 1]

    def merge(self, other: "TimeCounts") -> None:
        """Add the counts of another object, whose interval is within this one or extends beyond its end."""
        self.add(other.times, other.counts)


class TimeSums:
    """How many rows were added and removed at each of the last `most` times of `[first, last]`.

    `first` moves forward to the earliest of these times once there are more.
    """

    def __init__(self, first: int, last: int, most: int) -> None:
        self.first = first
        self.last = last
        self.most = most
        self.more = False
        """Whether there are changes at earlier times than the last `most`."""
        # The times in order, and the rows added and removed at each.
        self.times = np.empty(0, np.uint64)
        self.sums = np.empty((0, 2), np.int64)

    def add(self, times: npt.NDArray[np.uint64], diffs: npt.NDArray[np.int64]) -> None:
        """Add updates at these times, in any order, with their diffs."""
        signs = np.stack([np.maximum(diffs, 0), np.maximum(-diffs, 0)], axis=1)
        self._add(times, signs)

    def merge(self, other: "TimeSums") -> None:
        """Add the sums of another object."""
        self.more |= other.more
        self._add(other.times, other.sums)

    def _add(self, times: npt.NDArray[np.uint64], sums: npt.NDArray[np.int64]) -> None:
        inside = (times >= np.uint64(self.first)) & (times <= np.uint64(self.last))
        self.times, self.sums = _summed(self.times, self.sums, times[inside], sums[inside])
        if len(self.times) > self.most:
            self.more = True
            self.times, self.sums = self.times[-self.most :], self.sums[-self.most :]
            self.first = int(self.times[0])


def _summed(
    known: npt.NDArray[np.uint64],
    counts: npt.NDArray[np.int64],
    times: npt.NDArray[np.uint64],
    added: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """All the times in order, and at each the sum of its counts, which may have several columns."""
    found, index = np.unique(np.concatenate([known, times]), return_inverse=True)
    sums = np.zeros((len(found), *counts.shape[1:]), np.int64)
    np.add.at(sums, index, np.concatenate([counts, added]))
    return found, sums


def sum_part(machine: Machine, part: Part, sums: TimeSums) -> None:
    """Add the updates of a part to the sums. Raises the same errors as `open_runs`."""
    first, last = max(part.lower, sums.first), min(part.upper - 1, sums.last)
    if first > last:
        return

    def attempt() -> TimeSums:
        found = TimeSums(first, last, sums.most)
        own = machine.schema_of(part)
        if part.inline is None:
            pieces: Iterable[pa.RecordBatch] = _stored(machine, part, own, found, [TIME, DIFF])
        else:
            pieces = decode_inline(part.inline, own, key="an inline part").to_batches()
        for rows in pieces:
            found.add(values_of(rows.column(TIME)), values_of(rows.column(DIFF)))
        return found

    sums.merge(retry(attempt, machine.config, machine.clock))


def count_part(machine: Machine, part: Part, counts: TimeCounts) -> None:
    """Count the updates of a part.

    A part with a single time is not read. Its stored row count is used. Raises the same errors as
    `open_runs`.
    """
    first, last = max(part.lower, counts.first), min(part.upper - 1, counts.last)
    if first > last:
        return
    if part.lower == part.upper - 1:
        counts.add(np.array([part.lower], np.uint64), np.array([part.rows], np.int64))
        return

    def attempt() -> TimeCounts:
        found = TimeCounts(first, last, counts.most)
        for times in _times(machine, part, found):
            found.add(times)
        return found

    counts.merge(retry(attempt, machine.config, machine.clock))


def _times(machine: Machine, part: Part, wanted: TimeCounts) -> Iterator[npt.NDArray[np.uint64]]:
    own = machine.schema_of(part)
    if part.inline is None:
        for rows in _stored(machine, part, own, wanted, [TIME]):
            yield values_of(rows.column(TIME))
    else:
        table = decode_inline(part.inline, own, key="an inline part")
        yield from (values_of(chunk) for chunk in table.column(TIME).chunks)


def _stored(
    machine: Machine, part: Part, own: Schema, wanted: TimeCounts | TimeSums, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """Columns of the row groups of a part that can have wanted times."""
    key = str(part.blob_key)
    with open_part(machine, part) as file:
        try:
            with pq.ParquetFile(file, pre_buffer=False) as parquet:
                check_footer(parquet.metadata, own, key=key)
                for index, group in enumerate(group_bounds(own, parquet.metadata)):
                    if group.earliest <= wanted.last and wanted.first <= group.latest:
                        yield from parquet.iter_batches(_BATCH_ROWS, row_groups=[index], columns=columns)
        except UNREADABLE as error:
            raise read_error(error, key) from error
