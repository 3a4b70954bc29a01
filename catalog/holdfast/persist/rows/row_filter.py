"""Filters of rows, and what the footer of a Parquet part says about the rows of its row groups.

Invariants:

- A filter chooses equal rows alike. So it chooses a row and its retraction, or neither of them, and the
  chosen rows can be summed without the others.
- Every value of a group is within its bounds. Parquet's statistics skip NaN, so a column that may have NaN
  has no bounds.
- Bounds only save work. They come from bytes whose checksum was verified.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.persist.rows.evolution import evolution_fault, fitted, lowered, widens
from holdfast.persist.rows.groups import extremes, groups_with_nan
from holdfast.persist.rows.schema import Column, Schema


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """What is known of a column in one row group. `values` has its least and its greatest value, or is None.

    `has_nulls` and `has_values` are False only if there are certainly no nulls, or nothing else.
    """

    values: pa.Array | None = None
    has_nulls: bool = True
    has_values: bool = True


_UNKNOWN: Final = ColumnBounds()
_NULLS: Final = ColumnBounds(has_values=False)
_FEW: Final = 0.1
"""To copy this share of the rows costs less than a second filter of all rows."""


class PartBounds:
    """The bounds of the columns of a part's row groups. The part was written under the schema `own`."""

    def __init__(self, own: Schema, metadata: pq.FileMetaData) -> None:
        self._own = own
        self._metadata = metadata
        self.groups = metadata.num_row_groups
        self.derived: dict[Any, Any] = {}
        """What filters have derived from the bounds, so that the next one need not derive it again."""

    def of(self, column: Column) -> list[ColumnBounds]:
        """The bounds of a column in each row group, as values of the column's type."""
        names = self._own.names
        if column.name not in names:
            return [_NULLS] * self.groups
        index = names.index(column.name)
        was = self._own.columns[index]
        if not widens(was, column):
            return [_UNKNOWN] * self.groups
        nan = groups_with_nan(was, self._metadata)
        found = []
        for number in range(self.groups):
            group = self._metadata.row_group(number)
            is_bounded = nan is not None and number not in nan
            found.append(_bounds(was, column, group.column(index).statistics, group.num_rows, is_bounded))
        return found


class ConditionFailed(Exception):
    """A condition can't be evaluated for one of some rows. `error` is the error if that row is wanted.

    The updates that a read sees may contain rows that were removed later. So a read that gets this evaluates
    the condition again, for the rows that are left when all updates are summed.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class RowFilter(Protocol):
    """Chooses rows by their values. `schema` is the schema in which it sees rows."""

    @property
    def schema(self) -> Schema:
        """The schema in which it sees rows."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the schema that it needs to see."""

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        """For each row, which has at least the columns that it needs, whether it is chosen.

        Raises `ConditionFailed` if there is no answer for one of the rows, such as after a division by zero.
        """

    def groups(self, bounds: PartBounds) -> Sequence[int]:
        """The row groups that can have chosen rows, ascending."""


def both(first: RowFilter, second: RowFilter) -> RowFilter:
    """The filter that chooses what two filters of one schema choose.

    If the first one chooses few rows, the second one gets only these.
    """
    return _BothFilters(first, second)


class _BothFilters:
    def __init__(self, first: RowFilter, second: RowFilter) -> None:
        self.schema = first.schema
        self._filters = (first, second)

    @property
    def columns(self) -> Sequence[str]:
        needed = {name for each in self._filters for name in each.columns}
        return [name for name in self.schema.names if name in needed]

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        first, second = self._filters
        mask = first.mask(rows)
        if mask.true_count > rows.num_rows * _FEW:
            return pc.and_(mask, second.mask(rows))
        if not mask.true_count:
            return mask
        return pc.replace_with_mask(mask, mask, second.mask(rows.filter(mask)))

    def groups(self, bounds: PartBounds) -> Sequence[int]:
        first, second = (each.groups(bounds) for each in self._filters)
        return sorted(set(first) & set(second))


def chosen(rows: pa.RecordBatch, schema: Schema, wanted: RowFilter) -> pa.RecordBatch:
    """Return the rows that a filter chooses. They are contents (columns and `_diff`) of `schema`.

    They need only have the columns that the filter needs, if `schema` has no others.
    """
    if not rows.num_rows:
        return rows
    seen = rows
    if schema != wanted.schema:
        seen = _seen(rows, schema, wanted.schema.narrowed({*schema.names, *wanted.columns}))
    return rows.filter(wanted.mask(seen))


def _seen(rows: pa.RecordBatch, schema: Schema, wanted: Schema) -> pa.RecordBatch:
    if not evolution_fault(schema, wanted):
        return fitted(rows, wanted.arrow_diff)
    # The rows are of a time that was complete under the earlier schema, so none of them needs the later one.
    contents = lowered(pa.Table.from_batches([rows]), schema, wanted, where="a part")
    return contents.combine_chunks().to_batches()[0]


def _bounds(
    was: Column, column: Column, found: pq.Statistics | None, rows: int, is_bounded: bool
) -> ColumnBounds:
    if found is None or not found.has_null_count:
        return _UNKNOWN
    if found.null_count == rows:
        return _NULLS
    has_nulls = found.null_count > 0
    if not is_bounded or not found.has_min_max:
        return ColumnBounds(None, has_nulls)
    return ColumnBounds(extremes(was, found).cast(column.stored.type), has_nulls)
