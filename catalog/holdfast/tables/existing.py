"""The rows of a table for some keys, without reading the whole table for a few keys.

Rows are sorted by the first key column, and statistics show which parts a range doesn't need. A few keys are
read as one small range each, more keys as one range from the least to the greatest.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from holdfast.collections import CollectionInfo, CollectionPart, CollectionReader, read_collection_part
from holdfast.collections.record.column_names import ColumnNames
from holdfast.persist import PersistClient
from holdfast.persist.rows.canonical import python_values
from holdfast.persist.rows.evolution import fitted
from holdfast.persist.rows.order import following
from holdfast.tables.changes import Chosen, matching
from holdfast.tables.filters import ChosenBy, filter_of

_FEW_KEYS: Final = 8


def rows_of(
    client: PersistClient,
    reader: CollectionReader,
    described: Callable[[], CollectionInfo],
    as_of: int,
    keys: Chosen,
    names: ColumnNames,
) -> pa.Table:
    """The rows at `as_of` with these keys, with `_diff`. All rows for None. `names` are those of the columns.

    Raises like `CollectionReader.snapshot`.
    """
    if keys is None:
        return reader.snapshot(as_of, names=names).to_table()
    if isinstance(keys, ChosenBy):
        snapshot = reader.snapshot(as_of, names=names)
        return snapshot.filtered(filter_of(keys.where, snapshot.schema)).to_table()
    if not keys.num_rows:
        return names.shown_schema(reader.info.stored_schema).arrow_diff.empty_table()
    tables = [pa.Table.from_batches([each]) for each in _batches(client, reader, as_of, keys, names)]
    # Compare only now: before it read the rows, the reader may have known an earlier schema than theirs.
    wanted = names.shown_schema(reader.info.stored_schema).arrow_diff
    if any(not table.schema.equals(wanted) for table in tables):
        # A shard that this process last saw before the collection evolved is read in its earlier schema. The
        # record, read after the rows, has a schema that all of theirs lead to.
        wanted = names.shown_schema(described().stored_schema).arrow_diff
    return pa.concat_tables([wanted.empty_table(), *(fitted(table, wanted) for table in tables)])


def _batches(
    client: PersistClient, reader: CollectionReader, as_of: int, keys: pa.Table, names: ColumnNames
) -> Iterator[pa.RecordBatch]:
    # Plan one piece for each whole shard, then narrow it to the ranges.
    whole = [part for each in reader.snapshot_parts(as_of, 1, names=names) for part in each.parts]
    limits = _limits(keys)
    parts = tuple(replace(part, lower=lower, upper=upper) for part in whole for lower, upper in limits)
    piece = CollectionPart(reader.info.collection_id, as_of, parts, names)
    for batch in read_collection_part(client, piece):
        found = matching(batch, keys)
        if found.num_rows:
            yield found


def _limits(keys: pa.Table) -> list[tuple[Any, Any]]:
    """Ranges of the first key column that contain all the keys, as limits of `SnapshotPart`."""
    column = keys.column(0).unique()
    values = python_values(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    there = sorted(value for value in values if value is not None)
    nulls = len(there) < len(values)
    if nulls or not there:
        # Nulls sort first, and no lower limit includes them.
        return [(None, following(there[-1]) if there else None)]
    if len(there) <= _FEW_KEYS and following(there[-1]) is not None:
        return [(value, following(value)) for value in there]
    return [(there[0], following(there[-1]))]
