"""The two forms of a part: an inline Arrow IPC stream, and a Parquet file.

Invariants:

- Both contain the columns of `Schema.arrow_updates`. A Parquet part is sorted in the total order of (key,
  value, `_time`). Any Parquet reader can open it.
- The footer of a Parquet part contains the format version, the schema id, the schema, and the row groups that
  have NaN in a column. Parquet's own statistics skip NaN, so they alone don't bound such a column.
- Bytes that are not a part of that schema raise `CorruptBlob`, a newer format raises `VersionTooNew`, and a
  format that is no longer supported raises `Deprecated`. No other errors are raised. Page checksums do not
  cover the page headers. So before decoding, call `verify`, which compares the whole object with the shard's
  state, or compare the blocks that are decoded (`holdfast.persist.rows.blocks`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.errors import CorruptBlob, Determinate, HoldfastError
from holdfast.persist.rows.blocks import KEY_BLOCKS, no_sums, put_sums
from holdfast.persist.rows.schema import Schema
from holdfast.persist.rows.sizes import pieces_of
from holdfast.persist.rows.values import Rows, values_of
from holdfast.persist.stores.formats import check_format

PARQUET_FORMAT_VERSION = 1
KEY_FORMAT_VERSION = b"holdfast.format_version"
KEY_SCHEMA_ID = b"holdfast.schema_id"
KEY_SCHEMA = b"holdfast.schema"
KEY_HAS_NAN = b"holdfast.has_nan"

# The errors that Arrow raises for bytes of another kind. ValueError is for names that are not UTF-8.
UNREADABLE = (pa.ArrowException, OSError, ValueError)

_CHECKSUM_BYTES = 1024 * 1024
ROW_GROUP_ROWS = 128 * 1024
"""The most rows of a row group."""
KEYED_GROUP_ROWS = 32 * 1024
"""The most rows of a row group of a shard with a key. To look up a key decodes one row group or a few."""
ROW_GROUP_BYTES = 16 * 1024 * 1024
"""The most bytes of a row group in memory, or one larger row."""
PAGE_BYTES = 128 * 1024
"""About the most bytes of a page. A reader holds one page per column of a large row group."""
# Row groups of values this large have fewer bytes, because a merge of many runs holds one row group per run.
_WIDE_VALUE_BYTES = 16 * 1024
_WIDE_GROUP_BYTES = 1024 * 1024
# With many columns of this few bytes per row group, starting zstd is the largest cost of decoding.
_MANY_COLUMNS = 64
_SMALL_CHUNK_BYTES = 16 * 1024
# A Parquet file from this size on is decoded by several threads.
_THREADS_MIN_BYTES = 1024 * 1024
# The number of first rows that decide how to encode the columns of a part.
_SAMPLE_ROWS = 16 * 1024
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def checksum(data: bytes | memoryview) -> int:
    """Return the CRC-32C of the bytes."""
    if isinstance(data, bytes):
        return int(google_crc32c.value(data))
    # The library takes no view, and a copy of everything would double the memory for a large part.
    crc32c = 0
    for start in range(0, len(data), _CHECKSUM_BYTES):
        crc32c = google_crc32c.extend(crc32c, bytes(data[start : start + _CHECKSUM_BYTES]))
    return int(crc32c)


def verify(data: bytes | memoryview, *, size: int, crc32c: int, key: str) -> None:
    """Compare bytes with the size and checksum in the shard's state. Raises `CorruptBlob` if they differ."""
    check_size(len(data), size, key)
    if (actual := checksum(data)) != crc32c:
        raise CorruptBlob(key, f"crc32c {crc32c:08x}", f"{actual:08x}")


def check_size(found: int, size: int, key: str) -> None:
    """Compare the size of an object with that in the shard's state. Raises `CorruptBlob` if they differ.

    Of an object that is too large, only the beginning may have been read.
    """
    if found != size:
        told = f"more than {size} bytes" if found > size else f"{found} bytes"
        raise CorruptBlob(key, f"{size} bytes", told)


def encode_inline(batch: pa.RecordBatch, schema: Schema | None = None) -> bytes:
    """Encode the updates as one Arrow IPC stream with one record batch, without compression.

    If `schema` is given, the updates have this schema, and it is not encoded again.
    """
    arrow = batch.schema
    if schema is not None and arrow.equals(schema.arrow_updates, check_metadata=True):
        begin = schema.stream_begin
    else:
        begin = arrow.serialize().to_pybytes()
    # This writes the same as a stream writer, at a third of its fixed cost.
    return b"".join((begin, batch.serialize(), _END_OF_STREAM))


def encode_small(updates: Rows, schema: Schema, most_bytes: int) -> bytes | None:
    """Return `encode_inline` of updates; None if it has more than `most_bytes` bytes."""
    batches = [updates] if isinstance(updates, pa.RecordBatch) else updates.to_batches()
    # This costs little and counts all but the schema.
    if sum(pa.ipc.get_record_batch_size(batch) for batch in batches) > most_bytes:
        return None
    if len(batches) != 1:
        batches = updates.combine_chunks().to_batches()
    data = encode_inline(batches[0], schema)
    return data if len(data) <= most_bytes else None


def decode_inline(data: bytes, schema: Schema, *, key: str) -> pa.Table:
    """Decode the updates of an inline part. Errors name it by `key`.

    Raises `CorruptBlob` if the bytes are not exactly one batch of updates of the schema.
    """
    # Arrow accepts a stream without its end mark as complete.
    if not data.endswith(_END_OF_STREAM):
        raise CorruptBlob(key, "an Arrow stream", "a stream without an end")
    try:
        source = pa.BufferReader(data)
        if data.startswith(schema.stream_begin):
            # A stream reader would parse the schema again, which takes four times as long as the rest.
            source.seek(len(schema.stream_begin))
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema.arrow_updates)
        else:
            reader = pa.ipc.open_stream(source)
            if not reader.schema.equals(schema.arrow_updates):
                raise CorruptBlob(key, f"updates of {schema}", f"({', '.join(map(str, reader.schema))})")
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (*UNREADABLE, EOFError, StopIteration) as error:
        raise CorruptBlob(key, "an Arrow stream of one batch", _one_line(error) or "no batch") from None
    if source.tell() != len(data) - len(_END_OF_STREAM):
        raise CorruptBlob(key, "one batch", "more data after it")
    return pa.Table.from_batches([batch])


def has_wide_values(width: int, columns: int) -> bool:
    """Whether rows of `width` bytes in so many columns have large values."""
    return width >= _WIDE_VALUE_BYTES * columns


def row_group_bytes(width: int, columns: int) -> int:
    """Return how many bytes make a row group, for rows of `width` bytes, or one larger row."""
    return _WIDE_GROUP_BYTES if has_wide_values(width, columns) else ROW_GROUP_BYTES


def group_rows(schema: Schema) -> int:
    """Return the most rows that a new row group of the schema has."""
    return KEYED_GROUP_ROWS if schema.key else ROW_GROUP_ROWS


def group_weight(size: int, rows: int, columns: int) -> float:
    """Return the size of a row group relative to a usual one. It is below 1 if values are large."""
    wide = rows > 0 and row_group_bytes(size // rows, columns) < ROW_GROUP_BYTES
    return min(1.0, size / ROW_GROUP_BYTES) if wide else 1.0


@dataclass(frozen=True, slots=True)
class Encoding:
    """The columns of a part that have a dictionary, and the encodings of the others that are not plain.

    `compression` is the compression of all columns.
    """

    dictionary: tuple[str, ...]
    others: Mapping[str, str]
    compression: str = "zstd"


class PartFile:
    """A Parquet part that is encoded row group by row group, with the rows in total order.

    The encoded bytes are in memory. `raw_bytes` is the size of the rows before encoding. If no encoding is
    given, the first rows decide it.
    """

    def __init__(self, schema: Schema, schema_id: int, encoding: Encoding | None = None) -> None:
        self._schema = schema
        self._schema_id = schema_id
        self._encoding = encoding
        self._sink = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None
        self._nan: dict[str, list[int]] = {}
        self._groups = 0
        self.raw_bytes = 0

    def write_group(self, rows: pa.Table) -> None:
        """Add one row group."""
        if self._writer is None:
            self._writer = self._open(rows)
        for name in _columns_with_nan(self._schema, rows):
            self._nan.setdefault(name, []).append(self._groups)
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._groups += 1
        self.raw_bytes += rows.nbytes

    def finish(self) -> memoryview:
        """Return the whole file. Nothing can be added afterwards."""
        assert self._writer is not None
        before = self._sink.tell()
        footer = {
            KEY_FORMAT_VERSION: str(PARQUET_FORMAT_VERSION).encode(),
            KEY_SCHEMA_ID: str(self._schema_id).encode(),
            KEY_SCHEMA: schema_json(self._schema).encode(),
            KEY_HAS_NAN: json.dumps(self._nan).encode(),
            KEY_BLOCKS: no_sums(before),
        }
        self._writer.add_key_value_metadata(footer)
        self._writer.close()
        data = memoryview(self._sink.getvalue()).cast("B")
        put_sums(data, before)
        return data.toreadonly()

    def _open(self, sample: pa.Table) -> pq.ParquetWriter:
        encoding = self._encoding or choose_encoding(self._schema, sample)
        columns = len(self._schema.columns) + 1
        return pq.ParquetWriter(
            self._sink,
            self._schema.arrow_updates,
            version="2.6",
            compression=encoding.compression,
            data_page_size=PAGE_BYTES,
            write_statistics=True,
            sorting_columns=[pq.SortingColumn(i, nulls_first=True) for i in range(columns)],
            write_page_checksum=True,
            store_schema=False,
            use_dictionary=list(encoding.dictionary),
            column_encoding=dict(encoding.others),
        )


def encode_parquet(
    schema: Schema,
    schema_id: int,
    table: Rows,
    *,
    row_group_rows: int | None = None,
    encoding: Encoding | None = None,
) -> bytes:
    """Encode updates that are in total order as one Parquet file."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    file = PartFile(schema, schema_id, encoding)
    group_bytes = row_group_bytes(table.nbytes // max(1, table.num_rows), table.num_columns)
    most_rows = row_group_rows or group_rows(schema)
    for group in pieces_of(table, group_bytes, most_rows) if table.num_rows else [table]:
        file.write_group(group)
    return bytes(file.finish())


def choose_encoding(schema: Schema, sample: Rows) -> Encoding:
    """Choose how to encode parts of rows that are in total order and similar to `sample`, the first ones.

    A dictionary of values that hardly repeat is the most expensive part of encoding, and larger than the
    values. The first column ascends, so the differences of its integers are small.
    """
    first = schema.arrow_updates.field(0)
    encodings = {}
    if pa.types.is_integer(first.type) or pa.types.is_temporal(first.type):
        encodings[first.name] = "DELTA_BINARY_PACKED"
    small = sample.num_columns >= _MANY_COLUMNS and sample.nbytes < _SMALL_CHUNK_BYTES * sample.num_columns
    sample = sample.slice(0, _SAMPLE_ROWS)
    dictionary = tuple(
        name
        for name in sample.schema.names
        if name not in encodings
        and 2 * pc.count_distinct(sample.column(name), mode="all").as_py() <= sample.num_rows
    )
    return Encoding(dictionary, encodings, "lz4" if small else "zstd")


def decode_parquet(
    data: bytes | pa.NativeFile,
    schema: Schema,
    columns: Sequence[str] | None = None,
    *,
    key: str,
) -> pa.Table:
    """Decode the updates of a Parquet part, or only some of their columns. Page checksums are verified.

    `data` is the file's bytes or an open file. Raises `CorruptBlob`, `VersionTooNew` and `Deprecated`.
    """
    names = schema.arrow_updates.names if columns is None else list(columns)
    source = pa.BufferReader(data) if isinstance(data, bytes) else data
    try:
        with pq.ParquetFile(source, page_checksum_verification=True) as file:
            check_footer(file.metadata, schema, key=key)
            # Threads don't make small files faster. A thread that still holds `data` when Python exits aborts
            # the process.
            threads = source.size() > _THREADS_MIN_BYTES
            table = file.read(columns=names, use_threads=threads).select(names).replace_schema_metadata()
            table.validate(full=True)
    except UNREADABLE as error:
        raise CorruptBlob(key, "a Parquet part", _one_line(error)) from None
    return table


def check_footer(metadata: pq.FileMetaData, schema: Schema, *, key: str) -> None:
    """Raise an error unless the file is a part of this schema, in a format that this version reads."""
    footer = metadata.metadata or {}
    version = footer.get(KEY_FORMAT_VERSION)
    if version is None or not version.isdigit():
        raise CorruptBlob(key, "a part of Holdfast", "a Parquet file without holdfast.format_version")
    check_format(int(version), PARQUET_FORMAT_VERSION, where=key, what="part format")
    if (found := footer.get(KEY_SCHEMA, b"").decode(errors="replace")) != schema_json(schema):
        raise CorruptBlob(key, f"updates of {schema}", found or "no schema")
    arrow = metadata.schema.to_arrow_schema()
    if not arrow.equals(schema.arrow_updates):
        raise CorruptBlob(key, f"the columns of {schema}", ", ".join(map(str, arrow)))


def schema_json(schema: Schema) -> str:
    """Return the schema as the footer contains it: canonical JSON."""
    return schema.as_json


def _columns_with_nan(schema: Schema, rows: pa.Table) -> list[str]:
    found = []
    for column in schema.columns:
        if not column.type.startswith("float"):
            continue
        for chunk in rows.column(column.name).chunks:
            nan = np.isnan(values_of(chunk))
            if chunk.null_count:
                nan &= chunk.is_valid().to_numpy(zero_copy_only=False)
            if nan.any():
                found.append(column.name)
                break
    return found


def read_error(error: Exception, key: str) -> HoldfastError:
    """Convert an error of `UNREADABLE` that happened while an open Parquet part was read.

    If the system reported a reason, the store failed, and the result is `Determinate`. Otherwise the bytes
    are not a part.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return Determinate(f"can't read {key}: {_one_line(error)}")
    return CorruptBlob(key, "a Parquet part", _one_line(error))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
