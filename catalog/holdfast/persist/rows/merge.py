"""The merge of sorted runs into consolidated rows, in order and with bounded memory.

Invariants
- Input is any number of runs: batches of rows with the columns `by` and `_diff`, in the total order of `by`
  within a batch and from batch to batch. Output has each row of `by` once, in that order, with the sum of its
  diffs, never 0; a sum beyond int64 is an error, one that only passes beyond it is not.
- Of each run one batch is in memory, or two of at most `_SMALL_BATCH_BYTES`, and of the output one chunk.
  The least of the last keys in memory bounds a chunk: every row up to it, of every run, is there, but for
  more rows equal to it. So the last row of a chunk is carried over to the next one.
- A chunk is in memory several times while it is sorted. Where there are more than `_LARGE_BYTES`
  of rows of many MiB, a chunk is one row, which needs no sorting: memory is a row of each run and a few more.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.persist.rows.canonical import values_of
from holdfast.persist.rows.fold import INT64_MAX, Indices, first_beyond, fold, overflow, sort_ties
from holdfast.persist.rows.order import RowKey, rows_up_to
from holdfast.persist.rows.schema import DIFF

_SMALL_BATCH_BYTES: Final = 8 * 1024 * 1024
_LARGE_BYTES: Final = 32 * 1024 * 1024
_LARGE_ROW_BYTES: Final = 4 * 1024 * 1024


def merge_runs(by: Sequence[str], runs: Iterable[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The rows of all runs consolidated: batches of `by` and `_diff`, in the total order, none empty.

    Raises:
        DiffOverflow: a sum of diffs leaves int64.
    """
    live = [_Run(by, run) for run in runs]
    carry: _Carry | None = None
    while True:
        live = [run for run in live if run.fill()]
        bound = min((run.last for run in live), default=None)
        if bound is None:
            break
        if sum(run.large_bytes for run in live) > _LARGE_BYTES:
            row, diff = _least(live)
            if carry is not None and RowKey(by, carry.row, 0) < RowKey(by, row, 0):
                if carry.diff:
                    yield _with_sums(by, carry.row, [carry.diff])
                carry = None
            carry = _Carry(row, diff + (carry.diff if carry is not None else 0))
            continue
        pieces = [piece for run in live for piece in run.take(bound)]
        chunk, carry = _consolidated(by, pieces, carry)
        if chunk.num_rows:
            yield chunk
    if carry is not None and carry.diff:
        yield _with_sums(by, carry.row, [carry.diff])


def _least(live: Sequence["_Run"]) -> tuple[pa.RecordBatch, int]:
    """Take the least row in memory from all runs: the row, and the sum of its diffs."""
    least = min(run.first for run in live)
    row, total = None, 0
    for run in live:
        for piece in run.take(least):
            row = piece.slice(0, 1) if row is None else row
            total += sum(piece.column(DIFF).to_pylist())
    assert row is not None
    return row.take(pa.array([0])), total


class _Carry(NamedTuple):
    """The last row of a chunk, of which the next batch may begin with more; its sum may leave int64."""

    row: pa.RecordBatch
    diff: int


class _Run:
    """The part of a run that is in memory, and the rest of it."""

    def __init__(self, by: Sequence[str], batches: Iterator[pa.RecordBatch]) -> None:
        self._by = by
        self._rest = batches
        self._pieces: deque[tuple[pa.RecordBatch, RowKey]] = deque()
        self._bytes: deque[int] = deque()

    @property
    def first(self) -> RowKey:
        """The key of the first row in memory."""
        return RowKey(self._by, self._pieces[0][0], 0)

    @property
    def last(self) -> RowKey:
        """The key of the last row in memory."""
        return self._pieces[-1][1]

    @property
    def large_bytes(self) -> int:
        """About how many bytes are in memory of batches of large rows."""
        batches = zip(self._pieces, self._bytes, strict=True)
        return sum(size for (rows, _), size in batches if size >= _LARGE_ROW_BYTES * rows.num_rows)

    def fill(self) -> bool:
        """Have two small batches in memory while there are more, or one; False at the end of the run.

        With one, the run whose batch ends first would hold the others to what little is below that end.
        """
        while not self._pieces or (len(self._pieces) == 1 and self._bytes[0] <= _SMALL_BATCH_BYTES):
            batch = next(self._rest, None)
            if batch is None:
                break
            if batch.num_rows:
                self._pieces.append((batch, RowKey(self._by, batch, batch.num_rows - 1)))
                self._bytes.append(batch.nbytes)
        return bool(self._pieces)

    def take(self, bound: RowKey) -> Iterator[pa.RecordBatch]:
        """Remove the rows up to `bound`."""
        while self._pieces and self._pieces[0][1] <= bound:
            self._bytes.popleft()
            yield self._pieces.popleft()[0]
        if self._pieces:
            batch, last = self._pieces[0]
            if count := rows_up_to(self._by, batch, bound):
                self._pieces[0] = (batch.slice(count), last)
                yield batch.slice(0, count)


def consolidate_chunk(by: Sequence[str], pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Rows in any order, consolidated, in the total order. Raises as `merge_runs` does."""
    rows, kept, sums = _folded(by, pieces, None)
    return _with_sums(by, rows.take(pa.array(kept)), sums)


def _consolidated(
    by: Sequence[str], pieces: Sequence[pa.RecordBatch], carry: _Carry | None
) -> tuple[pa.RecordBatch, _Carry | None]:
    """The rows of a chunk but for the last, which is the next carry."""
    rows, kept, sums = _folded(by, pieces, carry)
    if not len(kept):
        return rows.slice(0, 0), None
    last = rows.take(pa.array(kept[-1:]))
    return _with_sums(by, rows.take(pa.array(kept[:-1])), sums[:-1]), _Carry(last, int(sums[-1]))


def _folded(
    by: Sequence[str], pieces: Sequence[pa.RecordBatch], carry: _Carry | None
) -> tuple[pa.RecordBatch, Indices, npt.NDArray[Any]]:
    """The rows given, which of them are left and in which order, and their sums, none 0."""
    given = [carry.row, *pieces] if carry is not None else pieces
    rows = pa.concat_batches(given) if len(given) > 1 else given[0]
    diffs = values_of(rows.column(DIFF))
    if carry is not None:
        first = [carry.diff]
        fits = -INT64_MAX <= carry.diff <= INT64_MAX
        diffs = np.concatenate([np.array(first, np.int64 if fits else object), diffs[1:]])
    kept, sums = fold(by, rows, diffs)
    if not (nonzero := (sums != 0).astype(np.bool_)).all():
        kept, sums = kept[nonzero], sums[nonzero]
    if (order := sort_ties(by, rows, kept)) is not None:
        kept, sums = kept[order], sums[order]
    return rows, kept, sums


def _with_sums(
    by: Sequence[str], rows: pa.RecordBatch, sums: npt.NDArray[Any] | Sequence[int]
) -> pa.RecordBatch:
    """The rows with these sums, which all must fit, as their diffs."""
    try:
        diffs = pa.array(sums, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        raise overflow(by, rows, first_beyond(sums)) from None
    return rows.set_column(rows.num_columns - 1, rows.schema.field(DIFF), diffs)
