"""The merge of sorted runs into consolidated rows, in order and with bounded memory.

Invariants
- Input is any number of runs: batches of rows with the columns `by` and `_diff`, in the total order of `by`
  within a batch and from batch to batch. Output has each row of `by` once, in that order, with the sum of its
  diffs, never 0; a sum beyond int64 is an error, one that only passes beyond it is not.
- Of each run no more than two batches are in memory, and of the output one chunk. The least of the last keys
  in memory bounds a chunk: every row up to it, of every run, is there, but for more rows equal to it. So the
  last row of a chunk is carried over to the next one.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import polars as pl
import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.persist.canonical import values_of
from holdfast.persist.order import Key, key_at, rows_up_to
from holdfast.persist.schema import DIFF

_INT64_MAX = 2**63 - 1


def merge_runs(by: Sequence[str], runs: Iterable[Iterator[pa.RecordBatch]]) -> Iterator[pl.DataFrame]:
    """The rows of all runs consolidated: frames of `by` and `_diff`, in the total order, none empty.

    Raises:
        BadInput: a sum of diffs leaves int64.
    """
    live = [_Run(by, run) for run in runs]
    carry: pl.DataFrame | None = None
    while True:
        live = [run for run in live if run.fill()]
        bound = min((run.last for run in live), default=None)
        if bound is None:
            break
        pieces = [piece for run in live for piece in run.take(bound)]
        chunk = _summed(by, pieces, carry)
        # A batch to come may begin with more of the last row.
        carry = chunk.tail(1)
        chunk = chunk.head(-1)
        if (out := _narrow(chunk.filter(pl.col(DIFF) != 0))).height:
            yield out
    if carry is not None and (out := _narrow(carry.filter(pl.col(DIFF) != 0))).height:
        yield out


class _Run:
    """The part of a run that is in memory, and the rest of it."""

    def __init__(self, by: Sequence[str], batches: Iterator[pa.RecordBatch]) -> None:
        self._by = by
        self._rest = batches
        self._pieces: deque[tuple[pa.RecordBatch, Key]] = deque()

    @property
    def last(self) -> Key:
        """The key of the last row in memory."""
        return self._pieces[-1][1]

    def fill(self) -> bool:
        """Have two batches in memory while there are more; False at the end of the run.

        With one, the run whose batch ends first would hold the others to what little is below that end.
        """
        while len(self._pieces) < 2 and (batch := next(self._rest, None)) is not None:
            if batch.num_rows:
                self._pieces.append((batch, key_at(self._by, batch, batch.num_rows - 1)))
        return bool(self._pieces)

    def take(self, bound: Key) -> Iterator[pa.RecordBatch]:
        """Remove the rows up to `bound`."""
        while self._pieces and self._pieces[0][1] <= bound:
            yield self._pieces.popleft()[0]
        if self._pieces:
            batch, last = self._pieces[0]
            if count := rows_up_to(self._by, batch, bound):
                self._pieces[0] = (batch.slice(count), last)
                yield batch.slice(0, count)


def _summed(by: Sequence[str], pieces: list[pa.RecordBatch], carry: pl.DataFrame | None) -> pl.DataFrame:
    most = max(_largest(piece) for piece in pieces)
    rows = sum(piece.num_rows for piece in pieces)
    frame = pl.DataFrame(pl.from_arrow(pa.Table.from_batches(pieces)))
    if carry is not None:
        most = max(most, abs(int(carry.item(0, DIFF))))
        frame = frame.with_columns(pl.col(DIFF).cast(carry.schema[DIFF]))
        frame = pl.concat([carry, frame])
    if most * (rows + 1) > _INT64_MAX:
        frame = frame.with_columns(pl.col(DIFF).cast(pl.Int128))
    summed = frame.lazy().group_by(by).agg(pl.col(DIFF).sum()).sort(by, nulls_last=False)
    return summed.collect()


def _largest(piece: pa.RecordBatch) -> int:
    diffs = values_of(piece.column(DIFF))
    return max(-int(diffs.min()), int(diffs.max()))


def _narrow(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with diffs of int64, which all must fit."""
    if frame.schema[DIFF] == pl.Int64:
        return frame
    diffs = frame.get_column(DIFF)
    if not diffs.is_between(-_INT64_MAX - 1, _INT64_MAX).all():
        raise BadInput("the sum of the diffs of one (key, value) does not fit int64")
    return frame.with_columns(diffs.cast(pl.Int64))
