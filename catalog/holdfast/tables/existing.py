"""The rows of a table for some keys, without reading the whole table for a few keys.

Rows are chosen before they are merged, and statistics show which row groups have none of the keys. Each part
is verified as a whole when this process first reads it, and later only what is read of it.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections import CollectionInfo, CollectionReader
from holdfast.collections.record.column_names import ColumnNames, without_aliases
from holdfast.persist.rows.canonical import python_values
from holdfast.persist.rows.evolution import fitted
from holdfast.persist.rows.row_filter import ColumnBounds, PartBounds
from holdfast.persist.rows.schema import Schema
from holdfast.tables.changes import ChangedSince, Chosen, among
from holdfast.tables.filters import ChosenBy, filter_of

_KEYS: Final = "keys"


def rows_of(
    reader: CollectionReader,
    described: Callable[[], CollectionInfo],
    as_of: int,
    keys: Chosen,
    names: ColumnNames,
) -> pa.Table:
    """The rows at `as_of` with these keys, with `_diff`. All rows for None. `names` are those of the columns.

    Raises like `CollectionReader.snapshot`, or for `ChangedSince` like `CollectionReader.changes`.
    """
    if isinstance(keys, ChangedSince):
        changes = list(reader.changes(keys.time, as_of, names=names))
        # The record, read after the rows, has a schema that all of theirs lead to.
        wanted = names.shown_schema(described().stored_schema).arrow_diff
        return pa.Table.from_batches([fitted(each, wanted) for each in changes], wanted)
    if keys is None:
        return reader.snapshot(as_of, names=names).to_table()
    if isinstance(keys, ChosenBy):
        snapshot = reader.snapshot(as_of, names=names)
        # An expression may name a column by its place, among those that people see.
        return snapshot.filtered(filter_of(keys.where, without_aliases(snapshot.schema))).to_table()
    if not keys.num_rows:
        return names.shown_schema(reader.info.stored_schema).arrow_diff.empty_table()
    snapshot = reader.snapshot(as_of, names=names)
    found = snapshot.filtered(_KeyFilter(snapshot.schema, keys)).to_table()
    # Compare only now: before it read the rows, the reader may have known an earlier schema than theirs.
    if found.schema.equals(names.shown_schema(reader.info.stored_schema).arrow_diff):
        return found
    # A shard that this process last saw before the collection evolved is read in its earlier schema. The
    # record, read after the rows, has a schema that all of theirs lead to.
    return fitted(found, names.shown_schema(described().stored_schema).arrow_diff)


class _KeyFilter:
    """Chooses the rows that have one of some keys."""

    def __init__(self, schema: Schema, keys: pa.Table) -> None:
        self.schema = schema
        self._keys = keys
        first = keys.column(0).unique()
        self._first = first.combine_chunks() if isinstance(first, pa.ChunkedArray) else first
        # Arrow's comparisons of floats with NaN are not relied on.
        self._by_first = not pa.types.is_floating(self._first.type)
        values = python_values(self._first)
        self._nulls = None in values
        # NaN has no place in an order. A group that may have it has no known bounds.
        self._values = sorted(value for value in values if value is not None and value == value)

    @property
    def columns(self) -> Sequence[str]:
        return list(self._keys.column_names)

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        given = pa.Table.from_batches([rows]).select(self._keys.column_names)
        if not self._by_first:
            return pa.array(among(given, self._keys))
        maybe = pc.is_in(rows.column(self._keys.column_names[0]), value_set=self._first)
        if len(self._keys.column_names) == 1 or not maybe.true_count:
            return maybe
        return pc.replace_with_mask(maybe, maybe, pa.array(among(given.filter(maybe), self._keys)))

    def groups(self, bounds: PartBounds) -> Sequence[int]:
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
