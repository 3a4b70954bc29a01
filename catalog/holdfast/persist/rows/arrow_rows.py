"""Sorts and compares rows with Arrow alone: few rows, or in a process in which Polars would hang.

`holdfast.polars_forks` has the reason for the second one.

The order is the total order of `canonical`, in which floats are canonical. Two values are equal if their bits
are equal, and null equals null.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Indices: TypeAlias = npt.NDArray[np.int64]

FEW_ROWS: Final = 4096
"""Up to this many rows, Arrow takes less time than it takes to start Polars."""


def wide(rows: pa.Table) -> pa.RecordBatch:
    """Return the rows as one batch, whose text and bytes may exceed 2 GiB."""
    fields = [pa.field(field.name, _wide_type(field.type), field.nullable) for field in rows.schema]
    schema = pa.schema(fields)
    table = rows.replace_schema_metadata().cast(schema).combine_chunks()
    arrays = [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def taken(rows: pa.RecordBatch, which: Indices, schema: pa.Schema) -> pa.Table:
    """Return these `wide` rows as a table of the schema. One chunk holds at most 2 GiB."""
    try:
        return pa.Table.from_batches([rows.take(pa.array(which))]).cast(schema)
    except pa.ArrowInvalid:
        if len(which) <= 1:
            raise
    half = len(which) // 2
    return pa.concat_tables([taken(rows, which[:half], schema), taken(rows, which[half:], schema)])


def in_order(rows: pa.RecordBatch, by: Sequence[str]) -> Indices:
    """Return the indexes of the rows in the total order of the columns `by`."""
    arrays: list[pa.Array] = []
    for name in by:
        array = rows.column(name)
        if array.null_count:
            arrays.append(array.is_valid())  # nulls are first
        arrays.append(array)
    names = [str(index) for index in range(len(arrays))]
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    indices = pc.sort_indices(batch, sort_keys=[(name, "ascending") for name in names])
    order: Indices = indices.to_numpy().astype(np.int64)
    return order


def differing(rows: pa.RecordBatch, by: Sequence[str], order: Indices) -> npt.NDArray[np.bool_]:
    """Whether each row, in this order, differs from the previous one in one of the columns `by`."""
    fresh = np.ones(len(order), np.bool_)
    if len(order) < 2:
        return fresh
    fresh[1:] = False
    places = pa.array(order)
    for name in by:
        column = _bits(rows.column(name).take(places))
        one, other = column[1:], column[:-1]
        same = pc.equal(one, other).fill_null(False)
        if column.null_count:
            same = pc.or_(same, pc.and_(one.is_null(), other.is_null()))
        fresh[1:] |= ~same.to_numpy(zero_copy_only=False)
    return fresh


def first_equal(rows: pa.RecordBatch, by: Sequence[str]) -> Indices:
    """Return for each row the index of the first row that is equal to it in the columns `by`."""
    order = in_order(rows, by)
    fresh = differing(rows, by, order)
    found = np.empty(len(order), np.int64)
    if len(order):
        found[order] = np.minimum.reduceat(order, np.flatnonzero(fresh))[np.cumsum(fresh) - 1]
    return found


def _wide_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_string(type_):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(type_) else type_


def _bits(array: pa.Array) -> pa.Array:
    if pa.types.is_floating(array.type):
        return array.view(pa.int64() if array.type.bit_width == 64 else pa.int32())
    return array
