"""Streams the rows of a table as an Arrow record batch reader.

- The reader keeps the table's hold until it is read to its end, closed or collected, or fails.
- `TableScan` reads an Arrow IPC stream that is made as it is read. Of all readers that pyarrow can make, only
  this kind can be subclassed. So a scan is a `pyarrow.RecordBatchReader`, `close` gives up the hold, and
  errors keep their classes. It costs one copy of each batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from holdfast.collections import CollectionReader
from holdfast.collections.collection_snapshot import CollectionSnapshot
from holdfast.errors import AsOfNotYetAvailable, BadInput
from holdfast.persist import Schema
from holdfast.persist.checks import check_columns
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.constants import are_ones
from holdfast.persist.rows.schema import DIFF
from holdfast.persist.rows.stored import logical_rows
from holdfast.tables.filters import Where, filter_of
from holdfast.tables.opened import OpenTable
from holdfast.tables.rows import check_counts, repeated_pieces
from holdfast.text import naming

Contents: TypeAlias = Iterator[pa.RecordBatch]
_MANY: Final = 1 << 40
_MOST: Final = 2**63 - 1


class TableScan(pa.ipc.RecordBatchStreamReader):  # type: ignore[misc] # pyarrow has no types
    """The rows of a table, as a `pyarrow.RecordBatchReader`. Not thread-safe."""

    def __init__(self, source: "_Stream") -> None:
        super().__init__(source)
        self._source = source

    def close(self) -> None:
        """Give up the hold. Nothing more can be read."""
        self._source.close()


def scan(
    table: OpenTable,
    time: int | None,
    columns: Sequence[str] | None,
    where: Where | None,
    limit: int | None,
    metadata: Mapping[bytes, bytes] | None = None,
) -> TableScan:
    """Scan a table at a time (None: the latest). `metadata` is that of the reader's schema.

    Raises like `Table.scan`.
    """
    check_limit(limit)
    schema, contents, end = begin(table, time, columns, where)
    names = list(schema.names if columns is None else columns)
    rows = rows_of_contents(table, schema, contents, names, limit)
    return stream(pa.schema([schema.arrow.field(name) for name in names], metadata), rows, end)


def check_limit(limit: int | None) -> None:
    """Raise `BadInput` unless this is a number of rows, or None."""
    if limit is None:
        return
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= _MOST:
        raise BadInput(f"limit must be a number of rows from 0 to 2^63 - 1, not {shown(limit)}")


def stream(schema: pa.Schema, batches: Iterator[pa.RecordBatch], end: Callable[[], None]) -> TableScan:
    """A reader of record batches. `end` is called once: when it is read to its end, closed or collected."""
    return TableScan(_Stream(schema, batches, end))


def begin(
    table: OpenTable, time: int | None, columns: Sequence[str] | None, where: Where | None
) -> tuple[Schema, Contents, Callable[[], None]]:
    """The schema and the rows of a table that a condition chooses, with `_diff`, and what ends the hold.

    The hold of the table stays until the last of these was called. Raises like `Table.scan`.
    """

    def plan(reader: CollectionReader) -> tuple[Schema, Contents]:
        schema, snapshot = snapshot_of(reader, time)
        with naming(f"table {table.name}"):
            check_columns(schema, columns)
            wanted = None if where is None else filter_of(where, schema)
        if snapshot is None:
            return schema, iter(())
        snapshot = snapshot.narrowed(schema.names if columns is None else columns)
        return schema, iter(snapshot if wanted is None else snapshot.filtered(wanted))

    return *table.reading.begin(plan), table.reading.end


def snapshot_of(reader: CollectionReader, time: int | None) -> tuple[Schema, CollectionSnapshot | None]:
    """The schema and the snapshot at a time (None: the latest). No snapshot if nothing has been written."""
    try:
        snapshot = reader.snapshot(time)
    except AsOfNotYetAvailable as error:
        # `OpenTable.complete` has let the time pass.
        if error.upper:
            raise
        return reader.schema, None
    return snapshot.schema, snapshot


def count(table: OpenTable, time: int | None, where: Where | None) -> int:
    """The number of rows that a condition chooses. Raises like `Table.count`."""
    _, contents, end = begin(table, time, (), where)
    try:
        total = 0
        for batch in contents:
            if are_ones(batch.column(DIFF)):
                total += batch.num_rows
                continue
            with naming(f"table {table.name}"):
                check_counts(batch)
            counts = batch.column(DIFF).to_numpy()
            total += _total(counts)
    finally:
        end()
    return total


def _total(counts: np.ndarray) -> int:
    # A sum of many large counts may exceed int64.
    if int(counts.max(initial=0)) > _MANY:
        return sum(counts.tolist())
    return int(counts.sum())


def rows_of_contents(
    table: OpenTable, schema: Schema, contents: Contents, names: Sequence[str], limit: int | None = None
) -> Iterator[pa.RecordBatch]:
    """These columns of contents, each row as often as its count says. Raises `BadInput` for negative counts.

    Also raises it if the table was closed.
    """
    left = limit
    if left == 0:
        return
    for rows in stored_rows_of_contents(table, contents, names):
        yield logical_rows(rows if left is None else rows.slice(0, left), schema)
        if left is not None:
            left -= rows.num_rows
            if left <= 0:
                return


def stored_rows_of_contents(
    table: OpenTable, contents: Contents, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Like `rows_of_contents`, in the types in which rows are stored."""
    for batch in contents:
        # Without its hold, the table may lose the rest of the rows.
        table.check_open()
        with naming(f"table {table.name}"):
            for piece in repeated_pieces(pa.Table.from_batches([batch]).select([*names, DIFF])):
                yield from piece.to_batches()


class _Stream:
    """An Arrow IPC stream of record batches, as a file that can be read. `end` is called once."""

    closed = False

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], end: Callable[[], None]) -> None:
        self._batches: Iterator[pa.RecordBatch] | None = batches
        self._end: Callable[[], None] | None = end
        self._waiting = memoryview(schema.serialize())
        self._is_closed = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int) -> memoryview | bytes:
        """Return the next bytes of the stream. Raises `BadInput` after `close`."""
        if self._is_closed:
            raise BadInput("the scan is closed", hint="scan the table again")
        if not self._waiting and size:
            try:
                batch = None if self._batches is None else next(self._batches, None)
            except BaseException:
                self._finish()
                raise
            if batch is None:
                # The end of the file ends the stream.
                self._finish()
                return b""
            self._waiting = memoryview(batch.serialize())
        found, self._waiting = self._waiting[:size], self._waiting[size:]
        return found

    def close(self) -> None:
        """End the stream. Does nothing the second time."""
        self._is_closed = True
        self._finish()

    def _finish(self) -> None:
        end, self._end = self._end, None
        self._batches = None
        if end is not None:
            end()

    def __del__(self) -> None:
        self._finish()
