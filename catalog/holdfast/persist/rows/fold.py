"""Sorts rows and sums the diffs of equal rows, on one chunk in memory. Every merge uses it.

Invariants:

- The result is that of a sort by all columns and a sum over equal neighbours. If there are many rows, and
  the first column is a number that distinguishes most of them, neither is done in full. Rows are sorted by
  that column alone (a chunk is a sequence of sorted runs, which makes the sort fast). Equal rows are found by
  a hash and then compared. Of the remaining rows, only those with the same number are sorted by the other
  columns.
- Rows are equal only if all of their columns are equal. A hash selects which rows to compare. It never
  decides.
- Sums are exact, even beyond int64.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import DiffOverflow
from holdfast.persist.rows import arrow_rows
from holdfast.persist.rows.canonical import to_polars
from holdfast.persist.rows.order import RowKey, numbers
from holdfast.polars_forks import polars_works

if TYPE_CHECKING:
    import polars as pl

Indices: TypeAlias = npt.NDArray[np.int64]

INT64_MAX: Final = 2**63 - 1
_HIGH_HALF: Final = np.uint64(32)
# Comparing this few rows one by one is faster than a query.
_FEW_ROWS: Final = 4


def fold(by: Sequence[str], rows: pa.RecordBatch, diffs: npt.NDArray[np.int64]) -> tuple[Indices, Any]:
    """Return which rows to keep, in the total order of `by`, and the sum of diffs of each.

    Each distinct row is kept once, even if its sum is 0. The sums are an array of int64, or of Python
    integers if a sum might not fit.
    """
    if _is_ascending(by, rows):
        # A single run, or a sequence of runs.
        return np.arange(rows.num_rows), diffs
    if not _is_small(rows):
        frame = to_polars(rows.select(list(by)))
        order, fresh = _by_number(frame, rows.column(by[0])) or _by_all(frame)
    else:
        order = arrow_rows.in_order(rows, by)
        fresh = arrow_rows.differing(rows, by, order)
    starts = np.flatnonzero(fresh)
    if len(starts) == len(order):
        sums = diffs[order]
    else:
        ordered = diffs[order]
        most = max(-int(ordered.min()), int(ordered.max()))
        exact = ordered.astype(object) if most * len(ordered) > INT64_MAX else ordered
        sums = np.add.reduceat(exact, starts)
    return order[starts], sums


def sort_ties(by: Sequence[str], rows: pa.RecordBatch, kept: Indices) -> Indices | None:
    """Return the order of `kept` by all columns, if it is sorted only by the first; None if it is right.

    `kept` is what `fold` returned for the rows.
    """
    if _is_small(rows):
        return None
    first = numbers(rows.column(by[0]))
    if first is None:
        return None
    values = first[kept]
    same = values[1:] == values[:-1]
    if not same.any():
        return None
    tied = np.zeros(len(kept), np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    # Rows with the same number are neighbours, so each group stays where it is.
    places = np.flatnonzero(tied)
    order = np.arange(len(kept))
    if len(places) > arrow_rows.FEW_ROWS and polars_works():
        frame = to_polars(rows.select(list(by)))[kept[places]]
        order[places] = places[_arg_sort(frame)]
    else:
        order[places] = places[arrow_rows.in_order(rows.take(pa.array(kept[places])), by)]
    return order


def _is_small(rows: pa.RecordBatch) -> bool:
    """Whether rows are sorted by all columns with Arrow."""
    return rows.num_rows <= arrow_rows.FEW_ROWS or not polars_works()


def _is_ascending(by: Sequence[str], rows: pa.RecordBatch) -> bool:
    """Whether each row is known to follow the previous one. False if it would take time to find out."""
    first = numbers(rows.column(by[0]))
    if first is not None and (first[1:] > first[:-1]).all():
        return True
    if rows.num_rows > _FEW_ROWS:
        return False
    keys = [RowKey(by, rows, index) for index in range(rows.num_rows)]
    return all(before < after for before, after in pairwise(keys))


def is_range(kept: Indices) -> bool:
    """Whether these indexes are consecutive, and not empty."""
    return len(kept) > 0 and bool((kept[1:] - kept[:-1] == 1).all())


def _by_number(frame: "pl.DataFrame", column: pa.Array) -> tuple[Indices, npt.NDArray[np.bool_]] | None:
    """Return an order in which equal rows are neighbours, and which rows differ from the previous one.

    Rows with the same number are in no order. Return None if the column has no numbers, or hashes collide.
    """
    first = numbers(column)
    if first is None:
        return None
    # A stable sort is faster on a sequence of sorted runs, the other sort on rows in no order.
    descents = np.count_nonzero(first[1:] < first[:-1])
    order = np.argsort(first, kind="stable" if descents < len(first) // 64 else "quicksort")
    ordered = first[order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = ordered[1:] != ordered[:-1]
    if fresh.all() or frame.width == 1:
        return order, fresh
    # The group's number above half of a hash: the same order, with the equal rows of a group as neighbours.
    hashes = frame.hash_rows().to_numpy()[order]
    labels = (np.cumsum(fresh).astype(np.uint64) << _HIGH_HALF) | (hashes >> _HIGH_HALF)
    inner = np.argsort(labels)
    order, labels = order[inner], labels[inner]
    alike = np.flatnonzero(labels[1:] == labels[:-1])
    if not _equal(frame, order[alike], order[alike + 1]).all():
        return None
    fresh[:] = True
    fresh[alike + 1] = False
    return order, fresh


def _by_all(frame: "pl.DataFrame") -> tuple[Indices, npt.NDArray[np.bool_]]:
    order = _arg_sort(frame)
    hashes = frame.hash_rows().to_numpy()[order]
    alike = np.flatnonzero(hashes[1:] == hashes[:-1])
    fresh = np.ones(len(order), np.bool_)
    fresh[alike + 1] = ~_equal(frame, order[alike], order[alike + 1])
    return order, fresh


def _arg_sort(frame: "pl.DataFrame") -> Indices:
    import polars as pl

    order = frame.select(pl.arg_sort_by(frame.columns, nulls_last=False)).to_series()
    return order.to_numpy().astype(np.int64)


def _equal(frame: "pl.DataFrame", left: Indices, right: Indices) -> npt.NDArray[np.bool_]:
    """Whether these pairs of rows are equal. Null equals null, and NaN equals NaN."""
    equal = np.ones(len(left), np.bool_)
    for column in frame:
        equal &= column[left].eq_missing(column[right]).to_numpy()
    return equal


@contextmanager
def naming_shard(shard_id: str) -> Iterator[None]:
    """If diffs overflow in the block, name the shard of the row in the error."""
    try:
        yield
    except DiffOverflow as error:
        raise DiffOverflow(error.row, shard_id=shard_id) from None


def overflow(by: Sequence[str], rows: pa.RecordBatch | pa.Table, index: int) -> DiffOverflow:
    """Return the error for a row whose sum of diffs does not fit int64."""
    return DiffOverflow(shown_row(by, rows, index))


def shown_row(by: Sequence[str], rows: pa.RecordBatch | pa.Table, index: int) -> str:
    """Return the values of a row in these columns, for a message."""
    return ", ".join(f"{name}={_shown(rows.column(name)[index])}" for name in by)


def first_beyond(sums: Sequence[Any] | npt.NDArray[Any]) -> int:
    """Return the index of the first sum that does not fit int64."""
    return next(index for index, each in enumerate(sums) if not -INT64_MAX - 1 <= each <= INT64_MAX)


def _shown(value: pa.Scalar) -> str:
    try:
        return f"{value.as_py()!r:.60}"
    except (ValueError, OverflowError):
        # Python has no times after the year 9999.
        return f"{value.type} {value.value}"
