"""Writes rows of a snapshot or an export into Parquet files."""

import itertools
import uuid
from collections.abc import Iterable, Iterator
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.collections.record.comments import NO_COMMENTS, Comments, commented
from holdfast.collections.snapshots.folder import SnapshotFolder
from holdfast.collections.snapshots.manifest import SnapshotFile, checksum_of, file_schema
from holdfast.persist.rows.schema import Schema
from holdfast.persist.rows.stored import logical_rows

_MODULUS = 1 << 64
_ROW_GROUP_ROWS = 512 * 1024
_ROW_GROUP_BYTES = 128 << 20


def write_rows(
    rows: Iterable[pa.RecordBatch],
    schema: Schema,
    folder: SnapshotFolder,
    index: int,
    comments: Comments = NO_COMMENTS,
) -> SnapshotFile | None:
    """Write batches with the columns of `schema` to a new file in `folder`; None, and no file, without rows.

    The fields of its Arrow schema have the comments. The name is unique, so a task that Spark runs twice
    never writes into a file of its first run. A file only gets its name when it is complete and durable.
    """
    groups = groups_of(rows)
    first = next(groups, None)
    if first is None:
        return None
    return _write_file(first, groups, schema, folder, part_name(index), comments)


def write_named(
    rows: Iterable[pa.RecordBatch], schema: Schema, folder: SnapshotFolder, name: str
) -> SnapshotFile:
    """Like `write_rows`, to a file with this name, which has only the columns if there are no rows.

    Only one process may write it.
    """
    groups = groups_of(rows)
    first = next(groups, schema.arrow_diff.empty_table())
    return _write_file(first, groups, schema, folder, name, NO_COMMENTS)


def write_empty(schema: Schema, folder: SnapshotFolder, comments: Comments = NO_COMMENTS) -> SnapshotFile:
    """Write a file without rows, from which readers of an empty snapshot get its columns."""
    return _write_file(schema.arrow_diff.empty_table(), (), schema, folder, part_name(0), comments)


def part_name(index: int) -> str:
    """Return a file name for a task that no other run of the task uses."""
    return f"part-{index:05d}-{uuid.uuid4().hex[:12]}.parquet"


def write_groups(
    out: IO[bytes], first: pa.Table, more: Iterable[pa.Table], schema: Schema, written_as: pa.Schema
) -> tuple[int, int, pq.FileMetaData]:
    """Write rows of `schema`. Return the row count, checksum and Parquet metadata."""
    count = checksum = 0
    metadata: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        out, written_as, compression="zstd", version="2.6", metadata_collector=metadata
    ) as writer:
        for group in itertools.chain([first], more):
            table = group.select(schema.names)
            written = logical_rows(table, schema).select(written_as.names).cast(written_as)
            writer.write_table(written, row_group_size=_ROW_GROUP_ROWS)
            count += table.num_rows
            checksum = (checksum + checksum_of(table, schema)) % _MODULUS
    return count, checksum, metadata[0]


def groups_of(
    batches: Iterable[pa.RecordBatch], most_rows: int = _ROW_GROUP_ROWS, most_bytes: int = _ROW_GROUP_BYTES
) -> Iterator[pa.Table]:
    """Combine batches into tables of the size of a row group: about so many rows, or so many bytes."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= most_rows or size >= most_bytes:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


def _write_file(
    first: pa.Table,
    more: Iterable[pa.Table],
    schema: Schema,
    folder: SnapshotFolder,
    name: str,
    comments: Comments,
) -> SnapshotFile:
    with folder.writing(name) as out:
        count, checksum, _ = write_groups(out, first, more, schema, commented(file_schema(schema), comments))
        size = out.tell()
    return SnapshotFile(name=name, rows=count, bytes=size, checksum=checksum)
