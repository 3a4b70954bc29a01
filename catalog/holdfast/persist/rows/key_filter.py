"""Chooses the rows that have one of some keys, or all other rows.

Statistics of the first column show which row groups have none of the keys. If the first column has numbers in
order, as in a sorted run, the keys are looked up in it. Otherwise each row is compared with the keys by hash.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.persist.rows import arrow_rows
from holdfast.persist.rows.canonical import python_values, to_polars
from holdfast.persist.rows.order import numbers
from holdfast.persist.rows.row_filter import ColumnBounds, PartBounds
from holdfast.persist.rows.schema import Schema
from holdfast.polars_forks import polars_works

if TYPE_CHECKING:
    import polars as pl

_KEYS: Final = "keys"


def among(rows: pa.Table, keys: pa.Table) -> npt.NDArray[np.bool_]:
    """For each row, which has the columns of the keys, whether it equals one of them."""
    names = keys.column_names
    if not polars_works():
        columns = [[*keys.column(name).chunks, *rows.column(name).chunks] for name in names]
        both = pa.table([pa.chunked_array(each) for each in columns], names)
        first = arrow_rows.first_equal(arrow_rows.wide(both), names)
        among: npt.NDArray[np.bool_] = first[keys.num_rows :] < keys.num_rows
        return among
    found = (
        to_polars(rows).with_row_index("_row").join(to_polars(keys), on=names, how="semi", nulls_equal=True)
    )
    return marked(found, rows.num_rows)


def marked(found: "pl.DataFrame", rows: int) -> npt.NDArray[np.bool_]:
    """For each of this number of rows, whether its index is in the column `_row`."""
    mask = np.zeros(rows, np.bool_)
    mask[found["_row"].to_numpy()] = True
    return mask


class KeyFilter:
    """Chooses the rows that have one of the keys, or with `others` the rows that have none of them.

    The keys are a table of the first columns of the schema, or of some of them.
    """

    def __init__(self, schema: Schema, keys: pa.Table, *, others: bool = False) -> None:
        self.schema = schema
        self._keys = keys
        self._others = others
        first = keys.column(0).unique()
        self._first = first.combine_chunks() if isinstance(first, pa.ChunkedArray) else first
        # Arrow's comparisons of floats with NaN are not relied on.
        self._by_first = not pa.types.is_floating(self._first.type)
        known = numbers(self._first) if self._by_first else None
        self._numbers = None if known is None else np.sort(known)
        values = python_values(self._first)
        self._nulls = None in values
        # NaN has no place in an order. A group that may have it has no known bounds.
        self._values = sorted(value for value in values if value is not None and value == value)

    @property
    def columns(self) -> Sequence[str]:
        """See `RowFilter`."""
        return list(self._keys.column_names)

    @property
    def keys(self) -> int:
        """The number of keys."""
        return int(self._keys.num_rows)

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        """See `RowFilter`."""
        found = self._among(rows)
        return pc.invert(found) if self._others else found

    def _among(self, rows: pa.RecordBatch) -> pa.Array:
        names = self._keys.column_names
        given = pa.Table.from_batches([rows]).select(names)
        if not self._by_first:
            return pa.array(among(given, self._keys))
        column = rows.column(names[0])
        found = self._found(column)
        maybe = pc.is_in(column, value_set=self._first) if found is None else pa.array(found)
        if len(names) == 1 or not maybe.true_count:
            return maybe
        return pc.replace_with_mask(maybe, maybe, pa.array(among(given.filter(maybe), self._keys)))

    def places(self, rows: pa.RecordBatch, *, is_sorted: bool) -> pa.Array | None:
        """Return the places of the chosen rows, ascending. None if `mask` must find them.

        It takes a small part of the time of `mask` for rows in order, of which few are chosen. `is_sorted`
        says that the first column is known to be in order.
        """
        if self._others or len(self._keys.column_names) > 1:
            return None
        spans = self._spans(rows.column(self._keys.column_names[0]), is_sorted=is_sorted)
        if spans is None:
            return None
        starts, ends = spans
        counts = ends - starts
        if (counts == 1).all():
            return pa.array(starts)
        before = np.cumsum(counts) - counts
        return pa.array(np.repeat(starts - before, counts) + np.arange(counts.sum()))

    def _found(self, column: pa.Array) -> npt.NDArray[np.bool_] | None:
        """Which values are among the first column of the keys. None if they are not numbers in order."""
        spans = self._spans(column, is_sorted=False)
        if spans is None:
            return None
        # Equal values are next to each other: each key begins them, and ends them.
        steps = np.zeros(len(column) + 1, np.int8)
        steps[spans[0]] += 1
        steps[spans[1]] -= 1
        return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)

    def _spans(
        self, column: pa.Array, *, is_sorted: bool
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]] | None:
        """Where the values that are among the first column of the keys begin and end, ascending.

        None if they are not numbers in order.
        """
        wanted = self._numbers
        if wanted is None or (values := numbers(column)) is None or values.dtype != wanted.dtype:
            return None
        if not is_sorted and not ascends(values):
            return None
        if len(values):
            wanted = wanted[wanted.searchsorted(values[0]) : wanted.searchsorted(values[-1], "right")]
        starts, ends = values.searchsorted(wanted), values.searchsorted(wanted, "right")
        there = starts < ends
        return starts[there], ends[there]

    def groups(self, bounds: PartBounds) -> Sequence[int]:
        """See `RowFilter`."""
        if self._others:
            return range(bounds.groups)
        column = self.schema.columns[0]
        if (_KEYS, column) not in bounds.derived:
            bounds.derived[_KEYS, column] = [_limits(each) for each in bounds.of(column)]
        known: list[tuple[Any, Any, bool]] = bounds.derived[_KEYS, column]
        return [index for index, each in enumerate(known) if self._may_meet(*each)]

    def _may_meet(self, least: Any, greatest: Any, has_nulls: bool) -> bool:
        if self._nulls and has_nulls:
            return True
        if least is None:
            return greatest is None
        place = bisect_left(self._values, least)
        return place < len(self._values) and bool(self._values[place] <= greatest)


def ascends(values: npt.NDArray[Any]) -> bool:
    """Whether no value is less than the one before it."""
    return bool((values[1:] >= values[:-1]).all())


def _limits(bounds: ColumnBounds) -> tuple[Any, Any, bool]:
    """The least and the greatest value of a row group, and whether it may have nulls.

    The greatest is False if there are no values, and both are None if they are not known.
    """
    if not bounds.has_values:
        return None, False, True
    if bounds.values is None:
        return None, None, bounds.has_nulls
    least, greatest = python_values(bounds.values)
    return least, greatest, bounds.has_nulls
