"""Writing the rows of one part of a snapshot into one Parquet file, durable before anybody is told of it."""

import uuid
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.persist.schema import Schema
from holdfast.storage.manifest import SnapshotFile, checksum_of
from holdfast.storage.snapshotfolder import SnapshotFolder

_MODULUS = 1 << 64
_ROW_GROUP_ROWS = 512 * 1024
_ROW_GROUP_BYTES = 128 << 20


def write_rows(
    rows: Iterable[pa.RecordBatch], schema: Schema, folder: SnapshotFolder, index: int
) -> SnapshotFile | None:
    """Write batches with the columns of `schema` to a new file in `folder`; None, and no file, without rows.

    The name is unique, so a task that Spark runs twice never writes into a file of its first run. A file
    only gets its name when it is complete and durable.
    """
    groups = _groups(rows)
    group = next(groups, None)
    if group is None:
        return None
    name = f"part-{index:05d}-{uuid.uuid4().hex[:12]}.parquet"
    count = checksum = 0
    with folder.writing(name) as out:
        with pq.ParquetWriter(out, schema.arrow, compression="zstd", version="2.6") as writer:
            while group is not None:
                table = group.select(schema.names).cast(schema.arrow)
                writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
                count += table.num_rows
                checksum = (checksum + checksum_of(table, schema)) % _MODULUS
                group = next(groups, None)
        size = out.tell()
    return SnapshotFile(name=name, rows=count, bytes=size, checksum=checksum)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches together in tables of the size of a row group."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)
