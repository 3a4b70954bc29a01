"""Parquet files. Their rows must fit into memory, so a file is refused before its values take too much.

A file of a few kilobytes can have gigabytes of values: pages are compressed, and a repeated number or text is
stored once. What a file declares is known before it is read. Texts of a dictionary stay in it until it is
known how long they are together. Texts that are stored in other ways that save bytes are counted first, a few
rows at a time.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.ingest.formats.files import WholeFiles

_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_DECIMAL: Final = 16
_DICTIONARIES: Final = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_SHARED: Final = "DELTA_BYTE_ARRAY"
_SCAN_BYTES: Final = 64 << 20


class Parquet(WholeFiles):
    """Decodes Parquet files. Nested values go as JSON text into a column of type string."""

    def _read(self, file: pa.Buffer) -> tuple[pa.Table, list[tuple[int, str]]]:
        opened = pq.ParquetFile(pa.BufferReader(file))
        schema = opened.schema_arrow
        if twice := [each for each in self._columns.names if schema.names.count(each) > 1]:
            raise ValueError(f"it has column '{twice[0]}' twice")
        chosen = self._chosen(schema.names)
        declared, kept, counted = 0, set(), dict[str, int]()
        for name, chunk, length in _chunks(opened.metadata, chosen):
            width = _WIDTHS.get(chunk.physical_type, max(length, _DECIMAL))
            declared += max(chunk.total_uncompressed_size, chunk.num_values * width)
            encodings = set(chunk.encodings)
            if chunk.physical_type == "BYTE_ARRAY" and encodings & {*_DICTIONARIES, _SHARED}:
                if _is_text(schema.field(name).type) and _SHARED not in encodings:
                    kept.add(name)
                else:
                    counted[name] = max(counted.get(name, 1), chunk.total_uncompressed_size)
        self._check(declared)
        for name, size in counted.items():
            total, rows = declared, max(1, min(1024, _SCAN_BYTES // size))
            for batch in opened.iter_batches(rows, columns=[name]):
                total += batch.nbytes
                self._check(total)
        read = pq.ParquetFile(pa.BufferReader(file), read_dictionary=sorted(kept)).read(chosen)
        self._check(declared + sum(_text_bytes(each) for each in read.columns))
        return self._cast(read)


def _chunks(metadata: Any, chosen: list[str]) -> Iterator[tuple[str, Any, int]]:
    """The chunks of these columns, each with the name of its column and the fixed length of its values."""
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            path = chunk.path_in_schema
            for name in chosen:
                if path == name or path.startswith(f"{name}."):
                    yield name, chunk, metadata.schema.column(index).length


def _is_text(type_: pa.DataType) -> bool:
    return any(
        is_one(type_)
        for is_one in (
            pa.types.is_string,
            pa.types.is_binary,
            pa.types.is_large_string,
            pa.types.is_large_binary,
        )
    )


def _text_bytes(column: pa.ChunkedArray) -> int:
    """How long the texts of a dictionary are together."""
    if not pa.types.is_dictionary(column.type):
        return 0
    lengths = (pc.binary_length(each.dictionary).take(each.indices) for each in column.chunks)
    return sum(pc.sum(each.cast(pa.int64())).as_py() or 0 for each in lengths)
