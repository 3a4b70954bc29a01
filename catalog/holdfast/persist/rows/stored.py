"""Converts values between the types that people see and the types in which they are stored.

Invariants:

- Both directions keep every value. Two values are equal if and only if their stored forms are equal.
- Seconds are stored as milliseconds, and moments with a time zone in UTC.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadInput
from holdfast.persist.rows.column_types import stored_type
from holdfast.persist.rows.schema import Schema
from holdfast.persist.rows.values import R

_PER_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def stored_array(name: str, given: pa.Array) -> pa.Array:
    """Return values of a column `name` in the type in which they are stored.

    Raises `BadInput` for a time of day beyond 24 hours, and for seconds that milliseconds can't hold.
    """
    if pa.types.is_time(given.type):
        _check_within_day(name, given)
    try:
        return given.cast(stored_type(given.type))
    except pa.ArrowInvalid as error:
        raise BadInput(f"column {name!r} does not fit {given.type}: {error}") from None


def logical_array(stored: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return stored values in the type that people see."""
    return stored.cast(type_)


def stored_rows(rows: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Return rows with the logical types of a schema in the types in which they are stored.

    Raises `BadInput` like `stored_array`.
    """
    if schema.is_plain:
        return rows
    for column in schema.columns:
        if not column.is_plain:
            index = rows.schema.get_field_index(column.name)
            array = rows.column(index).cast(column.arrow.type)
            rows = rows.set_column(index, column.stored, stored_array(column.name, array))
    return rows


def logical_rows(rows: R, schema: Schema) -> R:
    """Return rows of a shard as people see them. They have any columns of the schema, and any others."""
    if schema.is_plain:
        return rows
    for column in schema.columns:
        if not column.is_plain and (index := rows.schema.get_field_index(column.name)) >= 0:
            array = logical_array(rows.column(index), column.arrow.type)
            rows = rows.set_column(index, column.arrow, array)
    return rows


def logical_schema(fields: pa.Schema, schema: Schema) -> pa.Schema:
    """Return the Arrow schema of `logical_rows` for rows with these fields."""
    known = {column.name: column.arrow for column in schema.columns}
    return pa.schema([known.get(field.name, field) for field in fields])


def _check_within_day(name: str, given: pa.Array) -> None:
    counts = given.view(pa.int32() if pa.types.is_time32(given.type) else pa.int64())
    found = pc.min_max(counts)
    least, greatest = found["min"].as_py(), found["max"].as_py()
    if least is not None and not 0 <= least <= greatest < _PER_DAY[given.type.unit]:
        raise BadInput(f"column {name!r} does not fit {given.type}: a time of day is from 00:00 to 24:00")
