"""The rows of a table for some keys, without reading the whole table for a few keys.

Rows are chosen before they are merged, and statistics show which row groups have none of the keys. What is
read of a part is verified.
"""

from collections.abc import Callable

import pyarrow as pa

from holdfast.collections import CollectionInfo, CollectionReader
from holdfast.collections.record.column_names import ColumnNames, without_aliases
from holdfast.persist.rows.evolution import fitted
from holdfast.persist.rows.key_filter import KeyFilter
from holdfast.tables.changes import ChangedSince, Chosen
from holdfast.tables.filters import ChosenBy, filter_of


def rows_of(
    reader: CollectionReader,
    described: Callable[[], CollectionInfo],
    as_of: int,
    keys: Chosen,
    names: ColumnNames,
) -> pa.Table:
    """The rows at `as_of` with these keys, with `_diff`. All rows for None. `names` are those of the columns.

    The time must be complete, as it is if a writer's position is past it. Raises like
    `CollectionReader.snapshot`, or for `ChangedSince` like `CollectionReader.changes`.
    """
    if isinstance(keys, ChangedSince):
        changes = list(reader.changes(keys.time, as_of, names=names))
        # The record, read after the rows, has a schema that all of theirs lead to.
        wanted = names.shown_schema(described().stored_schema).arrow_diff
        return pa.Table.from_batches([fitted(each, wanted) for each in changes], wanted)
    if keys is None:
        return reader.complete_snapshot(as_of, names).to_table()
    if isinstance(keys, ChosenBy):
        snapshot = reader.complete_snapshot(as_of, names)
        # An expression may name a column by its place, among those that people see.
        return snapshot.filtered(filter_of(keys.where, without_aliases(snapshot.schema))).to_table()
    if not keys.num_rows:
        return names.shown_schema(reader.info.stored_schema).arrow_diff.empty_table()
    snapshot = reader.complete_snapshot(as_of, names)
    found = snapshot.filtered(KeyFilter(snapshot.schema, keys)).to_table()
    # Compare only now: before it read the rows, the reader may have known an earlier schema than theirs.
    if found.schema.equals(names.shown_schema(reader.info.stored_schema).arrow_diff):
        return found
    # A shard that this process last saw before the collection evolved is read in its earlier schema. The
    # record, read after the rows, has a schema that all of theirs lead to.
    return fitted(found, names.shown_schema(described().stored_schema).arrow_diff)
