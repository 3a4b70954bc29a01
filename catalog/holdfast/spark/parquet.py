"""Writing the rows of one part of a snapshot into one Parquet file, durable before anybody is told of it."""

import os
import uuid
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.persist.schema import Schema
from holdfast.storage.manifest import SnapshotFile, checksum_of

_MODULUS = 1 << 64
_ROW_GROUP_ROWS = 512 * 1024
_ROW_GROUP_BYTES = 128 << 20


def write_rows(
    rows: Iterable[pa.RecordBatch], schema: Schema, folder: Path, index: int
) -> SnapshotFile | None:
    """Write batches with the columns of `schema` to a new file in `folder`; None, and no file, without rows.

    The name is unique, so a task that Spark runs twice never writes into a file of its first run. A file
    only gets its name when it is complete and on disk.
    """
    name = f"part-{index:05d}-{uuid.uuid4().hex[:12]}.parquet"
    # Spark and other readers of a folder pass over names that begin with an underscore.
    unfinished = folder / f"_{name}"
    count = checksum = 0
    writer: pq.ParquetWriter | None = None
    try:
        with unfinished.open("wb") as out:
            for group in _groups(rows):
                table = group.select(schema.names).cast(schema.arrow)
                writer = writer or pq.ParquetWriter(out, schema.arrow, compression="zstd", version="2.6")
                writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
                count += table.num_rows
                checksum = (checksum + checksum_of(table, schema)) % _MODULUS
            if writer is not None:
                writer.close()
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        if count == 0:
            return None
        unfinished.rename(folder / name)
    finally:
        unfinished.unlink(missing_ok=True)
    return SnapshotFile(name=name, rows=count, bytes=size, checksum=checksum)


def sync_folder(folder: Path) -> None:
    """Make the names of the files in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.Table]:
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
