"""Reads columns with a dictionary as they are stored, and measures them before it decodes them.

A dictionary has each value once, so a column with few long values takes few bytes in a part, and many in
memory. The footer has no number for that. So such columns are read as their dictionary and the place of each
row's value in it, which take about as many bytes as the footer says, and then decoded in pieces that fit.
"""

from collections.abc import Callable, Collection, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.persist.rows.schema import Schema

_OFFSET_BYTES = 4


def columns_with_dictionary(metadata: pq.FileMetaData, schema: Schema, names: Collection[str]) -> list[str]:
    """Those of these columns, with texts or bytes, that have a dictionary in one of the row groups of a part.

    The part was written under the schema. Values of other types are never longer than the footer says.
    """
    return [
        column.name
        for place, column in enumerate(schema.columns)
        if column.name in names and _is_long(column.stored.type) and _has_dictionary(metadata, place)
    ]


def decoded_bytes(rows: pa.RecordBatch) -> int:
    """How many bytes the rows take without dictionaries."""
    return int(_sizes(rows).sum()) if _coded(rows) else int(rows.nbytes)


def coded_bytes(rows: pa.RecordBatch) -> int:
    """How many bytes the columns with dictionaries take."""
    return sum(int(column.indices.nbytes + column.dictionary.nbytes) for column in _coded(rows))


def decoded(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows without dictionaries."""
    if not _coded(rows):
        return rows
    columns = [_decoded(column) for column in rows.columns]
    fields = [field.with_type(column.type) for field, column in zip(rows.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def decoded_pieces(rows: pa.RecordBatch, share: Callable[[int], int]) -> Iterator[pa.RecordBatch]:
    """The same rows without dictionaries, in pieces of about `share` bytes, or of one row.

    `share` gets the bytes of a row, on average.
    """
    if not _coded(rows):
        yield rows
        return
    most = _most_bytes(rows)
    if most <= share(most // max(1, rows.num_rows)):
        yield decoded(rows)
        return
    # For each row, the bytes of all rows up to it.
    ends = np.cumsum(_sizes(rows))
    total = int(ends[-1])
    # Pieces of equal size: a small rest would cost as much time as a whole piece.
    piece = total // max(1, round(total / share(total // rows.num_rows)))
    start = 0
    while start < rows.num_rows:
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + piece, "right")))
        yield decoded(rows.slice(start, end - start))
        start = end


def _coded(rows: pa.RecordBatch) -> list[pa.DictionaryArray]:
    return [column for column in rows.columns if pa.types.is_dictionary(column.type)]


def _row_bytes(rows: pa.RecordBatch) -> int:
    """The bytes of a row without the values of dictionaries."""
    plain = sum(column.nbytes for column in rows.columns if not pa.types.is_dictionary(column.type))
    return -(-int(plain) // max(1, int(rows.num_rows))) + _OFFSET_BYTES * len(_coded(rows))


def _most_bytes(rows: pa.RecordBatch) -> int:
    """The bytes of the rows without dictionaries if all of them had the longest value of each dictionary."""
    longest = sum(int(_lengths(column).max(initial=0)) for column in _coded(rows))
    return int(rows.num_rows) * (_row_bytes(rows) + longest)


def _sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The bytes of each row without dictionaries."""
    sizes = np.full(rows.num_rows, _row_bytes(rows), np.int64)
    for column in _coded(rows):
        if len(column.dictionary):
            places = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
            sizes += _lengths(column)[places]
    return sizes


def _lengths(column: pa.DictionaryArray) -> npt.NDArray[np.int32]:
    found: npt.NDArray[np.int32] = pc.binary_length(column.dictionary).to_numpy(zero_copy_only=False)
    return found


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_long(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def _has_dictionary(metadata: pq.FileMetaData, place: int) -> bool:
    groups = (metadata.row_group(index) for index in range(metadata.num_row_groups))
    return any(group.column(place).has_dictionary_page for group in groups)
