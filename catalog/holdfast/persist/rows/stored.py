"""Converts values between the types that people see and the types in which they are stored.

Invariants:

- Both directions keep every value. Two values are equal if and only if their stored forms are equal.
- Seconds are stored as milliseconds, moments with a time zone in UTC, and nested values as bytes.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadInput, CorruptBlob
from holdfast.persist.rows.column_types import stored_type
from holdfast.persist.rows.iso_times import NS_PER
from holdfast.persist.rows.nested import decode, encoded
from holdfast.persist.rows.schema import Schema
from holdfast.persist.rows.values import R, canonical_floats, count_type

_DAY_NS: Final = 86_400 * NS_PER["s"]


def stored_array(name: str, given: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return values of a column `name` in the form in which they are stored. `type_` is its logical type.

    Scalar values have that type. Nested values may have any type that can become it, or be stored already.
    Raises `BadInput` for text that is not UTF-8, a time of day beyond 24 hours, seconds that milliseconds
    can't hold, and nested values that do not fit.
    """
    want = stored_type(type_)
    if not pa.types.is_nested(type_):
        return _cast(name, _canonical(name, given), want)
    if pa.types.is_null(given.type):
        return pa.nulls(len(given), pa.binary())

    def leaf(scalars: pa.Array) -> pa.Array:
        return _canonical(name, scalars)

    if not (pa.types.is_binary(given.type) or pa.types.is_large_binary(given.type)):
        return encoded(name, given, type_, leaf)
    try:
        stored = encoded(name, decode(name, given, type_), type_, leaf)
    except CorruptBlob:
        raise BadInput(f"column {name!r} is binary, and its bytes are no values of {type_}") from None
    if not stored.equals(given.cast(pa.binary())):
        raise BadInput(f"column {name!r} is binary, and its bytes are not canonical values of {type_}")
    return stored


def logical_array(
    name: str, stored: pa.Array | pa.ChunkedArray, type_: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    """Return stored values of a column `name` in its logical type."""
    if not pa.types.is_nested(type_):
        return stored.cast(type_)
    if isinstance(stored, pa.ChunkedArray):
        return pa.chunked_array([decode(name, each, type_) for each in stored.chunks], type_)
    return decode(name, stored, type_)


def stored_rows(rows: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Return rows with the logical types of a schema in the types in which they are stored.

    Raises `BadInput` like `stored_array`.
    """
    if schema.is_plain:
        return rows
    for column in schema.columns:
        if not column.is_plain:
            index = rows.schema.get_field_index(column.name)
            array, type_ = rows.column(index), column.arrow.type
            array = array if pa.types.is_nested(type_) else array.cast(type_)
            rows = rows.set_column(index, column.stored, stored_array(column.name, array, type_))
    return rows


def logical_rows(rows: R, schema: Schema) -> R:
    """Return rows of a shard as people see them. They have any columns of the schema, and any others."""
    if schema.is_plain:
        return rows
    for column in schema.columns:
        if not column.is_plain and (index := rows.schema.get_field_index(column.name)) >= 0:
            array = logical_array(column.name, rows.column(index), column.arrow.type)
            rows = rows.set_column(index, column.arrow, array)
    return rows


def logical_schema(fields: pa.Schema, schema: Schema) -> pa.Schema:
    """Return the Arrow schema of `logical_rows` for rows with these fields."""
    known = {column.name: column.arrow for column in schema.columns}
    return pa.schema([known.get(field.name, field) for field in fields])


def _canonical(name: str, given: pa.Array) -> pa.Array:
    """Scalar values with one bit pattern for each value. Raises `BadInput` for values that don't exist."""
    type_ = given.type
    if pa.types.is_floating(type_):
        return canonical_floats(given)
    if pa.types.is_string(type_):
        try:
            given.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BadInput(f"column {name!r} is not valid UTF-8: {error}") from None
    if pa.types.is_decimal(type_):
        # A cast checks this, but some readers make arrays with more digits than their type has.
        try:
            given.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BadInput(f"column {name!r} does not fit {type_}: {error}") from None
    if pa.types.is_time(type_):
        _check_within_day(name, given)
    return given


def _cast(name: str, given: pa.Array, type_: pa.DataType) -> pa.Array:
    if given.type == type_:
        return given
    try:
        return given.cast(type_)
    except pa.ArrowInvalid as error:
        raise BadInput(f"column {name!r} does not fit {given.type}: {error}") from None


def _check_within_day(name: str, given: pa.Array) -> None:
    found = pc.min_max(given.view(count_type(given.type)))
    least, greatest = found["min"].as_py(), found["max"].as_py()
    if least is not None and not 0 <= least <= greatest < _DAY_NS // NS_PER[given.type.unit]:
        raise BadInput(f"column {name!r} does not fit {given.type}: a time of day is from 00:00 to 24:00")
