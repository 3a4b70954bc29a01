"""The types of columns: their names, their Arrow types, and the Arrow types in which they are stored.

Invariants:

- A type has exactly one text form (`decimal128(10,2)`, never `decimal128(10, 2)`). So equal types have equal
  bytes.
- The stored type has a total order, and one canonical bit pattern per value. It survives Parquet and the
  query engine. A type whose Arrow type doesn't is stored as another one (`holdfast.persist.rows.stored`).
"""

import functools
import re
import zoneinfo
from typing import Final, NoReturn

import pyarrow as pa

from holdfast.errors import BadInput

_PLAIN: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date32": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp_utc": pa.timestamp("us", tz="UTC"),
}
_NAMES: dict[pa.DataType, str] = {
    **{type_: name for name, type_ in _PLAIN.items()},
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
}
_TIMES: Final = {
    "s": pa.time32("s"),
    "ms": pa.time32("ms"),
    "us": pa.time64("us"),
    "ns": pa.time64("ns"),
}
TYPE_NAMES = (*_PLAIN, "decimal128(p,s)")
"""The names of the types that are stored as they are."""
OTHER_NAMES: Final = ("timestamp(unit)", "timestamp(unit,zone)", "time(unit)")
_ALL: Final = f"use one of {', '.join((*TYPE_NAMES, *OTHER_NAMES))}"
_DECIMAL = re.compile(r"decimal128\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_TIMESTAMP = re.compile(r"timestamp\(\s*(s|ms|us|ns)\s*(?:,\s*([A-Za-z0-9_+:/-]{1,64})\s*)?\)")
_TIME = re.compile(r"time\(\s*(s|ms|us|ns)\s*\)")
_OFFSET = re.compile(r"[+-]([01]\d|2[0-3]):[0-5]\d")
_MAX_DECIMAL_PRECISION = 38


@functools.cache
def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type for a type name. Raises `BadInput` if there is no such type."""
    if (plain := _PLAIN.get(name)) is not None:
        return plain
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= _MAX_DECIMAL_PRECISION and scale <= precision:
            return pa.decimal128(precision, scale)
    if match := _TIMESTAMP.fullmatch(name):
        return pa.timestamp(match[1], match[2])
    if match := _TIME.fullmatch(name):
        return _TIMES[match[1]]
    raise BadInput(f"unknown column type {name!r}", hint=_ALL)


def type_name(type_: pa.DataType) -> str:
    """Return the name of an Arrow type. Raises `BadInput` if a shard can't store it without loss."""
    if (name := _NAMES.get(type_)) is not None:
        return name
    if pa.types.is_decimal128(type_) and 0 <= type_.scale <= type_.precision:
        return f"decimal128({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        name = f"timestamp({type_.unit},{type_.tz})" if type_.tz else f"timestamp({type_.unit})"
        if _TIMESTAMP.fullmatch(name):
            return name
        raise BadInput(f"unsupported time zone {type_.tz!r}", hint="use a zone such as UTC or Europe/Paris")
    if pa.types.is_time(type_):
        return f"time({type_.unit})"
    return _refuse(type_)


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which values of a column's Arrow type are stored.

    Parquet has no seconds and no zones but UTC. A zone only says how to show a moment.
    """
    if pa.types.is_timestamp(type_):
        return pa.timestamp("ms" if type_.unit == "s" else type_.unit, "UTC" if type_.tz else None)
    return _TIMES["ms"] if type_ == _TIMES["s"] else type_


def is_basic(name: str) -> bool:
    """Whether values of a type are stored as they are, and every format and tool has such a type."""
    return name in _PLAIN or _DECIMAL.fullmatch(name) is not None


def check_zone(type_: pa.DataType) -> None:
    """Raise `BadInput` if a timestamp's time zone is not known here.

    Only new columns need this: stored ones stay readable where the zone is not known.
    """
    zone = type_.tz if pa.types.is_timestamp(type_) else None
    if zone is None or _OFFSET.fullmatch(zone):
        return
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        hint = "use a zone such as UTC, Europe/Paris or +02:00"
        raise BadInput(f"unknown time zone {zone!r}", hint=hint) from None


def _refuse(type_: pa.DataType) -> NoReturn:
    hint = f"cast it to one of {', '.join((*TYPE_NAMES, *OTHER_NAMES))}"
    if pa.types.is_dictionary(type_):
        hint = f"cast it to {type_.value_type}"
    if pa.types.is_null(type_):
        hint = "give the column a type"
    raise BadInput(f"unsupported Arrow type {type_}", hint=hint)
