"""Lossless casts: converts Arrow columns and Python values to the type of a schema's column.

Invariants:

- A cast never loses anything. A value that does not fit raises `BadInput`, which names the column, and for
  Python values also the row and the value. The one exception: Python floats are rounded to float32, because
  Python has no float32 literals.
- Numbers, text, binary and times of day are converted only to the same kind. The text "12" is not an int64, a
  date is not a timestamp, and a time with a zone is not a time without one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadInput

_FLOAT32: Final = pa.float32()
_NONE: Final = type(None)

# The allowed casts. Floats become integers because data frames store integers with nulls as floats.
_CASTS: Final = {
    "integer": {"integer", "float", "decimal", "null"},
    "float": {"integer", "float", "null"},
    "decimal": {"integer", "decimal", "null"},
    "string": {"string", "null"},
    "binary": {"binary", "null"},
    "bool": {"bool", "null"},
    "date": {"date", "null"},
    "timestamp": {"timestamp", "null"},
    "instant": {"instant", "null"},
    "time": {"time", "null"},
}

# The Python types that Arrow converts exactly or refuses by itself, apart from the zones of times.
_PLAIN: Final[dict[str, frozenset[type]]] = {
    "integer": frozenset({int, _NONE}),
    "float": frozenset({float, int, _NONE}),
    "decimal": frozenset({Decimal, int, _NONE}),
    "string": frozenset({str, _NONE}),
    "binary": frozenset({bytes, _NONE}),
    "bool": frozenset({bool, _NONE}),
    "date": frozenset({date, _NONE}),
    "timestamp": frozenset({datetime, _NONE}),
    "instant": frozenset({datetime, _NONE}),
    "time": frozenset({time, _NONE}),
}
# The types that are as good, or are once `_plain` has seen each value.
_ALIKE: Final[dict[str, tuple[type, ...]]] = {
    "integer": (int, float, Decimal, np.integer, np.float16, np.float32, pa.Scalar),
    "float": (float, int, np.float16, np.float32, np.integer, pa.Scalar),
    "decimal": (Decimal, int, pa.Scalar),
    "string": (str, pa.Scalar),
    "binary": (bytes, bytearray, memoryview, pa.Scalar),
    "bool": (bool, np.bool_, pa.Scalar),
    "date": (pa.Scalar,),
    "timestamp": (datetime, pa.Scalar),
    "instant": (datetime, pa.Scalar),
    "time": (time, pa.Scalar),
}
WILD_EXPONENT: Final = r"[eE][+-]?0*(7[7-9]|[89][0-9]|[0-9]{3,})$"
"""The exponent of a text beyond all digits of decimals. Arrow reads beyond a table for such a text, and ends
the process."""
_MOST_DIGITS: Final = 76
_UNITS: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}
_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000}
_UNFIT: Final = (pa.ArrowException, OverflowError, ValueError, TypeError)


def becomes(given: pa.DataType, want: pa.DataType) -> bool:
    """Whether values of one type may be converted to another type, value by value."""
    return _kind(given) in _CASTS.get(_kind(want), ())


def _another_kind(name: str, given: pa.DataType, want: pa.DataType) -> BadInput:
    hint = ""
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(want):
        hint = "remove the time zone"
        if want.tz is not None:
            hint = "give them a time zone: dt.tz_localize in pandas, dt.replace_time_zone in Polars"
    return BadInput(f"column {name!r} is {given}, which can't be converted to {want} without loss", hint=hint)


def cast_column(
    name: str, given: pa.Array | pa.ChunkedArray, want: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    """Return the column in another type, with the same values. Raises `BadInput` if that is impossible."""
    if pa.types.is_dictionary(given.type):
        given = decoded(given)
        if given.type == want:
            return given
    if not becomes(given.type, want):
        raise _another_kind(name, given.type, want)
    try:
        if pa.types.is_decimal(want) and pa.types.is_integer(given.type):
            # Arrow requires room for every integer of the type, so check the values themselves.
            given = given.cast(pa.decimal256(20 + want.scale, want.scale))
        cast = given.cast(want, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadInput(f"column {name!r} does not fit {want}: {_beyond(given, want) or error}") from None
    # Arrow's safe cast drops the low bits of a float64.
    if want == _FLOAT32 and given.type == pa.float64():
        # A null appears as NaN here.
        source = given.to_numpy(zero_copy_only=False)
        exact = cast.to_numpy(zero_copy_only=False).astype(np.float64)
        if not ((exact == source) | np.isnan(source)).all():
            raise BadInput(f"column {name!r} has values that float32 can't hold exactly")
    return cast


def decoded(given: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column without its dictionary."""
    values = given.type.value_type
    if pa.types.is_string_view(values):
        # Arrow can't take from views. Categories of Polars are views.
        given = given.cast(pa.dictionary(given.type.index_type, pa.large_string()))
        values = pa.large_string()
    return given.cast(values)


def _beyond(given: pa.Array | pa.ChunkedArray, want: pa.DataType) -> str:
    """Return a value that is outside of an integer type, with the type's bounds; "" if there is none."""
    if pa.types.is_integer(want):
        bounds = np.iinfo(want.to_pandas_dtype())
        for value in pc.min_max(given).as_py().values():
            if value is not None and not bounds.min <= value <= bounds.max:
                return f"{value} is not from {bounds.min} to {bounds.max}"
    return ""


def row_place(row: int) -> str:
    """Where a value is, if its rows come from no file."""
    return f"row {row}"


def column_of(
    name: str, values: Sequence[Any], want: pa.DataType, *, place: Callable[[int], str] = row_place
) -> pa.Array:
    """Return a column of Python values. None is null.

    Floats are rounded to float32 if that is the type. Raises `BadInput`, which names the first value that
    does not fit and where it is: `place` returns that for the index of a value, such as "line 3".
    """
    try:
        return _converted(values, want)
    except _UNFIT as error:
        raise _misfit(name, values, want, error, place) from None


def _converted(values: Sequence[Any], want: pa.DataType) -> pa.Array:
    if pa.types.is_nested(want):
        return _nested(values, want)
    kind = _kind(want)
    types = set(map(type, values))
    if not types <= _PLAIN[kind]:
        alike = _ALIKE[kind]
        for type_ in types - _PLAIN[kind]:
            if not issubclass(type_, alike) or (type_ is bool and kind != "bool"):
                raise _KindError(type_)
        if kind == "integer":
            values = [_whole(value) for value in values]
    if kind == "decimal":
        for value in values:
            if isinstance(value, Decimal):
                _check_exponent(value)
    if kind in ("timestamp", "instant", "time"):
        for value in values:
            if isinstance(value, datetime | time):
                _check_moment(value, want.unit, zoned=kind == "instant")
    array = pa.array(values, want)
    if want == _FLOAT32 and _overflows(values, array):
        raise ValueError("beyond what float32 holds")
    return array


def _nested(values: Sequence[Any], want: pa.DataType) -> pa.Array:
    known = Mapping if pa.types.is_struct(want) else (list, tuple, np.ndarray)
    for value in values:
        is_map = pa.types.is_map(want) and isinstance(value, Mapping)
        if value is not None and not is_map and not isinstance(value, known):
            raise _KindError(type(value))
    nulls = np.array([value is None for value in values], np.bool_)
    mask = pa.array(nulls) if nulls.any() else None
    if pa.types.is_struct(want):
        arrays = [_field(values, field) for field in want]
        for value in values:
            if value and (unknown := [each for each in value if want.get_field_index(each) < 0]):
                raise ValueError(f"it has an unknown field {unknown[0]!r}")
        return pa.StructArray.from_arrays(arrays, fields=list(want), mask=mask)
    if pa.types.is_map(want):
        values = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
    offsets = np.concatenate([[0], np.cumsum([0 if each is None else len(each) for each in values])])
    flat = list(chain.from_iterable(each for each in values if each is not None))
    starts = pa.array(offsets.astype(np.int32))
    if not pa.types.is_map(want):
        return pa.ListArray.from_arrays(starts, _inner(flat, want.value_field), type=want, mask=mask)
    for each in flat:
        if not isinstance(each, tuple | list) or len(each) != 2:
            raise ValueError(f"{shown(each)} is not a pair of a key and a value")
    keys, items = (
        _inner([each[0] for each in flat], want.key_field),
        _inner([each[1] for each in flat], want.item_field),
    )
    return pa.MapArray.from_arrays(starts, keys, items, type=want, mask=mask)


def _field(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """A field of dicts. It may be missing if it is nullable."""
    if not field.nullable and any(each is not None and each.get(field.name) is None for each in values):
        raise ValueError(f"its field {field.name!r} must not be null")
    found = [None if each is None else each.get(field.name) for each in values]
    return _inner(found, field.with_nullable(True))


def _inner(values: list[Any], field: pa.Field) -> pa.Array:
    if not field.nullable and any(each is None for each in values):
        raise ValueError("it has a null inside")
    try:
        return _converted(values, field.type)
    except _KindError as wrong:
        raise ValueError(f"it has {_described(wrong.kind)} where a value must be {field.type}") from None


def _whole(value: Any) -> Any:
    """Return a number as an integer, if it is a whole number. Return other values unchanged."""
    if not isinstance(value, float | Decimal | np.floating):
        return value
    whole = int(value)
    if whole != value:
        raise ValueError("it is not an integer")
    return whole


def _check_exponent(value: Decimal) -> None:
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and not -_MOST_DIGITS <= exponent <= _MOST_DIGITS:
        raise ValueError(f"its exponent is beyond {_MOST_DIGITS} digits")


def _check_moment(value: datetime | time, unit: str, *, zoned: bool) -> None:
    if (value.tzinfo is not None) is not zoned:
        raise ValueError("it has no time zone" if zoned else "it has a time zone")
    # Times in a data frame are subclasses with a finer resolution.
    finer = getattr(value, "nanosecond", 0)
    if (unit != "ns" and finer) or value.microsecond % _MICROSECONDS.get(unit, 1):
        raise ValueError(f"it is finer than {_UNITS[unit]}")


def _overflows(values: Sequence[Any], array: pa.Array) -> bool:
    infinite = np.isinf(array.to_numpy(zero_copy_only=False))
    return any(
        not isinstance(values[row], pa.Scalar) and not math.isinf(values[row])
        for row in map(int, np.flatnonzero(infinite))
    )


def _misfit(
    name: str, values: Sequence[Any], want: pa.DataType, error: Exception, place: Callable[[int], str]
) -> BadInput:
    for row, value in enumerate(values):
        try:
            _converted([value], want)
        except _KindError as wrong:
            kind = _described(wrong.kind)
            return BadInput(
                f"column {name!r}, {place(row)}: {shown(value)} is {kind}, but the column is {want}"
            )
        except _UNFIT as why:
            # Arrow's message for an integer is about types of C.
            is_large = isinstance(value, int) and pa.types.is_integer(want)
            reason = "it is beyond the range of this type" if is_large else why
            return BadInput(f"column {name!r} does not fit {want}: {shown(value)} in {place(row)}: {reason}")
    return BadInput(f"column {name!r} does not fit {want}: {error}")


class _KindError(TypeError):
    """A Python value is of a kind that is never converted to the type of its column."""

    def __init__(self, kind: type) -> None:
        super().__init__(kind)
        self.kind = kind


def _described(kind: type) -> str:
    match kind.__name__:
        case "str":
            return "a string"
        case "int":
            return "an integer"
        case "bytes":
            return "binary"
        case name:
            return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def shown(value: Any) -> str:
    """Return a value as messages show it."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        # Python refuses to print very long integers.
        return f"a very long {type(value).__name__}"


def _kind(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_):
        return "integer"
    if pa.types.is_floating(type_):
        return "float"
    if pa.types.is_decimal(type_):
        return "decimal"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "string"
    if pa.types.is_timestamp(type_):
        return "instant" if type_.tz else "timestamp"
    if pa.types.is_date(type_):
        return "date"
    if pa.types.is_time(type_):
        return "time"
    if pa.types.is_null(type_):
        return "null"
    if pa.types.is_boolean(type_):
        return "bool"
    binary = (
        pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_)
    )
    return "binary" if binary or pa.types.is_binary_view(type_) else str(type_)
