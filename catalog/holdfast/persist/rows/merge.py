"""Merges sorted runs into consolidated rows, in order and with bounded memory.

Invariants:

- The input is any number of runs: batches of rows with the columns `by` and `_diff`, in the total order of
  `by` within a batch and across batches. The output has each row of `by` once, in that order, with the sum of
  its diffs, which is never 0. A sum beyond int64 is an error. A sum that exceeds int64 only in between is
  not.
- All runs together have about `MERGE_BYTES` in memory, for any number of runs. If batches are larger, it is
  one batch of each of `_FAN_IN` runs. If the runs would take more, some of them are merged into one run in a
  temporary file. A run has one batch in memory, or two if they have at most its share of half of
  `MERGE_BYTES`.
- One chunk of the output is in memory. The least of the last keys in memory bounds a chunk: every row up to
  it, of every run, is in memory, except for further rows that equal it. So the last row of a chunk is carried
  over to the next one. If all rows are few, a run that is in memory to its end bounds no chunk.
- A chunk is in memory several times while it is sorted. If there are more than `_LARGE_BYTES` of rows of many
  MiB, a chunk is one row, which needs no sorting. Then memory is that of the runs and a few more rows.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.persist.rows.fold import INT64_MAX, Indices, first_beyond, fold, is_range, overflow, sort_ties
from holdfast.persist.rows.order import Key, RowKey, rows_before, rows_up_to
from holdfast.persist.rows.schema import DIFF
from holdfast.persist.rows.sizes import pieces_of
from holdfast.persist.rows.spill import Spill
from holdfast.persist.rows.values import values_of

MERGE_BYTES: Final = 128 * 1024 * 1024
"""About how many bytes all runs of a merge have in memory, including their read buffers."""

_FAN_IN: Final = 4
"""At least this many runs are merged at once, even if their batches are large."""

_SPILL_BYTES: Final = 1024 * 1024
_FEW_ROWS: Final = 2
_CHUNK_BYTES: Final = 32 * 1024 * 1024
_LARGE_BYTES: Final = 32 * 1024 * 1024
_LARGE_ROW_BYTES: Final = 4 * 1024 * 1024


class Buffered:
    """About how many bytes of buffers a run holds to read its next batches."""

    def __init__(self) -> None:
        self.size = 0


class HeldRows(Iterator[pa.RecordBatch]):
    """The batches of a run, and the buffers that it holds to read the next ones."""

    def __init__(self, rows: Iterator[pa.RecordBatch], held: Buffered) -> None:
        self._rows = rows
        self.held = held

    def __next__(self) -> pa.RecordBatch:
        return next(self._rows)


def merge_runs(
    by: Sequence[str],
    runs: Iterable[Iterator[pa.RecordBatch]],
    between: Callable[[], None] = lambda: None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all runs, consolidated: batches of `by` and `_diff`, in the total order, none empty.

    `between` is called from time to time if the next batch takes long.

    Raises:
        DiffOverflow: a sum of diffs does not fit int64.
        Determinate: there is no space for a temporary file.
    """
    given = list(runs)
    live = [_Run(by, run, MERGE_BYTES // 4 // max(1, len(given))) for run in given]
    return _merged(by, live, between, _with_sums)


def interleaved(
    key: Sequence[str], runs: Iterable[Iterator[pa.RecordBatch]], between: Callable[[], None] = lambda: None
) -> Iterator[tuple[pa.Table, Key | None]]:
    """Yield the rows of all runs as they are, in the order of the columns `key`, which they have first.

    Each table comes with a key: all rows before it have been yielded, and no others. None for the last table.
    Rows of one table are in no order. In memory are one or two batches of each run, and the rows of one key.
    """
    given = list(runs)
    live = [_Run(key, run, MERGE_BYTES // 4 // max(1, len(given))) for run in given]
    waiting: list[pa.RecordBatch] = []
    while live := [run for run in live if run.fill()]:
        between()
        bound = min((run.last for run in live if not run.ended), default=None)
        pieces = [*waiting, *(piece for run in live for piece in run.take(bound))]
        if bound is None:
            waiting = pieces
            continue
        # The next batch may have more rows of the last key.
        place = bound.key()
        counts = [rows_before(key, piece, place) for piece in pieces]
        waiting = [p.slice(count) for p, count in zip(pieces, counts, strict=True) if count < p.num_rows]
        if any(counts):
            done = [p.slice(0, count) for p, count in zip(pieces, counts, strict=True) if count]
            yield pa.Table.from_batches(done), place
    if waiting:
        yield pa.Table.from_batches(waiting), None


_Sums = Callable[
    [Sequence[str], pa.RecordBatch, npt.NDArray[Any] | Sequence[int]],
    pa.RecordBatch,
]


def _merged(
    by: Sequence[str], live: list["_Run"], between: Callable[[], None], with_sums: _Sums
) -> Iterator[pa.RecordBatch]:
    carry: _Carry | None = None
    spills: list[Spill] = []
    try:
        while live := _filled(by, live, spills, between):
            if sum(run.large_bytes for run in live) > _LARGE_BYTES:
                row, diff = _least(live)
                if carry is not None and RowKey(by, carry.row, 0) < RowKey(by, row, 0):
                    if carry.diff:
                        yield with_sums(by, carry.row, [carry.diff])
                    carry = None
                carry = _Carry(row, diff + (carry.diff if carry is not None else 0))
                continue
            small = sum(run.held_bytes for run in live) <= _CHUNK_BYTES
            bound = min((run.last for run in live if not (small and run.ended)), default=None)
            pieces = [piece for run in live for piece in run.take(bound)]
            chunk, carry = _consolidated(by, pieces, carry, with_sums, is_last=bound is None)
            # Free the chunk before the next one is read.
            pieces.clear()
            if chunk.num_rows:
                yield chunk
            del chunk
        if carry is not None and carry.diff:
            yield with_sums(by, carry.row, [carry.diff])
    finally:
        for spill in spills:
            spill.close()


def _filled(
    by: Sequence[str], live: Iterable["_Run"], spills: list[Spill], between: Callable[[], None]
) -> list["_Run"]:
    """Fill the runs and return those with rows. If they take too much memory, merge some of them first."""
    waiting, filled = deque(live), list["_Run"]()
    held = sum(run.held_bytes for run in waiting)
    while waiting:
        run = waiting.popleft()
        held -= run.held_bytes
        if not run.fill():
            continue
        held += run.held_bytes
        filled.append(run)
        if held > MERGE_BYTES and len(filled) >= _FAN_IN and waiting:
            held -= sum(each.held_bytes for each in filled)
            # The first ones are the shortest. A merged one goes to the end.
            waiting.append(_spilled(by, filled, spills, between))
            filled = []
    return filled


def _spilled(
    by: Sequence[str], runs: list["_Run"], spills: list[Spill], between: Callable[[], None]
) -> "_Run":
    """Merge the rest of some runs into a temporary file. Return it as one run."""

    def pieces() -> Iterator[pa.RecordBatch]:
        for rows in _merged(by, runs, between, _with_parts_of_sums):
            yield from pieces_of(rows, _SPILL_BYTES)
            between()

    share = min(run.share_bytes for run in runs)
    spill = Spill(pieces())
    spills.append(spill)
    return _Run(by, iter(spill), share)


def _least(live: Sequence["_Run"]) -> tuple[pa.RecordBatch, int]:
    """Take the least row in memory from all runs. Return the row and the sum of its diffs."""
    least = min(run.first for run in live)
    row, total = None, 0
    for run in live:
        for piece in run.take(least):
            row = piece.slice(0, 1) if row is None else row
            total += sum(piece.column(DIFF).to_pylist())
    assert row is not None
    return row.take(pa.array([0])), total


class _Carry(NamedTuple):
    """The last row of a chunk, because the next batch may have more of it. Its sum may exceed int64."""

    row: pa.RecordBatch
    diff: int


class _Run:
    """The part of a run that is in memory, and the rest of the run."""

    def __init__(self, by: Sequence[str], batches: Iterator[pa.RecordBatch], share_bytes: int) -> None:
        self._by = by
        self._rest = batches
        self._pieces: deque[tuple[pa.RecordBatch, RowKey]] = deque()
        self._bytes: deque[int] = deque()
        self._held = batches.held if isinstance(batches, HeldRows) else Buffered()
        self._size = 0
        self.share_bytes = share_bytes
        """If a batch has at most this many bytes, a second one is in memory."""
        self.ended = False
        """Whether the rest of the run is in memory."""

    @property
    def first(self) -> RowKey:
        """The key of the first row in memory."""
        return RowKey(self._by, self._pieces[0][0], 0)

    @property
    def last(self) -> RowKey:
        """The key of the last row in memory."""
        return self._pieces[-1][1]

    @property
    def held_bytes(self) -> int:
        """About how many bytes the run has in memory, including its buffers."""
        return self._size + self._held.size

    @property
    def large_bytes(self) -> int:
        """About how many bytes of batches with large rows are in memory."""
        batches = zip(self._pieces, self._bytes, strict=True)
        return sum(size for (rows, _), size in batches if size >= _LARGE_ROW_BYTES * rows.num_rows)

    def fill(self) -> bool:
        """Fill memory up to two small batches, or one. Return False at the end of the run.

        With one, the run whose batch ends first would limit the others to the few rows below that end.
        """
        while not self.ended and (not self._pieces or self._has_room()):
            batch = next(self._rest, None)
            if batch is None:
                self.ended = True
            elif batch.num_rows:
                self._pieces.append((batch, RowKey(self._by, batch, batch.num_rows - 1)))
                self._bytes.append(batch.nbytes)
                self._size += self._bytes[-1]
        return bool(self._pieces)

    def _has_room(self) -> bool:
        return (
            len(self._pieces) == 1
            and self._bytes[0] <= self.share_bytes
            and self._pieces[0][0].num_rows >= _FEW_ROWS
        )

    def take(self, bound: RowKey | None) -> Iterator[pa.RecordBatch]:
        """Remove and yield the rows up to `bound`, or all rows if it is None."""
        while self._pieces and (bound is None or self._pieces[0][1] <= bound):
            self._size -= self._bytes.popleft()
            yield self._pieces.popleft()[0]
        if self._pieces and bound is not None:
            batch, last = self._pieces[0]
            # The last row is beyond the bound.
            if batch.num_rows > 1 and (count := rows_up_to(self._by, batch, bound)):
                self._pieces[0] = (batch.slice(count), last)
                yield batch.slice(0, count)


def consolidate_chunk(by: Sequence[str], pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Consolidate rows in any order, into the total order. Raises the errors of `merge_runs`."""
    rows, kept, sums = _folded(by, pieces, None)
    return _with_sums(by, _taken(rows, kept), sums)


def _consolidated(
    by: Sequence[str],
    pieces: Sequence[pa.RecordBatch],
    carry: _Carry | None,
    with_sums: _Sums,
    *,
    is_last: bool,
) -> tuple[pa.RecordBatch, _Carry | None]:
    """Return the consolidated rows of a chunk. Its last row is the next carry, if more rows may equal it."""
    rows, kept, sums = _folded(by, pieces, carry)
    if not len(kept):
        return rows.slice(0, 0), None
    if is_last:
        return with_sums(by, _taken(rows, kept), sums), None
    last = rows.take(pa.array(kept[-1:]))
    return with_sums(by, _taken(rows, kept[:-1]), sums[:-1]), _Carry(last, int(sums[-1]))


def _taken(rows: pa.RecordBatch, kept: Indices) -> pa.RecordBatch:
    # A slice would keep all rows in memory.
    if 4 * len(kept) > 3 * rows.num_rows and is_range(kept):
        return rows.slice(int(kept[0]), len(kept))
    return rows.take(pa.array(kept))


def _folded(
    by: Sequence[str], pieces: Sequence[pa.RecordBatch], carry: _Carry | None
) -> tuple[pa.RecordBatch, Indices, npt.NDArray[Any]]:
    """Return all rows, the indexes of the rows to keep in their order, and their sums, none 0."""
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
    """Return the rows with these sums as their diffs. Raises if a sum does not fit int64."""
    try:
        diffs = pa.array(sums, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        raise overflow(by, rows, first_beyond(sums)) from None
    return rows.set_column(rows.num_columns - 1, rows.schema.field(DIFF), diffs)


def _with_parts_of_sums(
    by: Sequence[str], rows: pa.RecordBatch, sums: npt.NDArray[Any] | Sequence[int]
) -> pa.RecordBatch:
    """Like `_with_sums`, for rows that are merged again: a row whose sum does not fit comes several times."""
    if isinstance(sums, np.ndarray) and sums.dtype != np.object_:
        return _with_sums(by, rows, sums)
    indices, parts = [], []
    for index, left in enumerate(map(int, sums)):
        while True:
            part = max(-INT64_MAX, min(left, INT64_MAX))
            indices.append(index)
            parts.append(part)
            left -= part
            if not left:
                break
    return _with_sums(by, rows.take(pa.array(indices, pa.int64())), parts)
