"""The types of columns: their names, their Arrow types, and the Arrow types in which they are stored.

Invariants:

- A type has exactly one text form (`decimal128(10,2)`, never `decimal128(10, 2)`). So equal types have equal
  bytes.
- The stored type has a total order, and one canonical bit pattern per value. It survives Parquet and the
  query engine. A type whose Arrow type doesn't is stored as another one (`holdfast.persist.rows.stored`).
"""

import functools
import json
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
OTHER_NAMES: Final = (
    "timestamp(unit)",
    "timestamp(unit,zone)",
    "time(unit)",
    "list<T>",
    "struct<name: T, ...>",
    "map<T, T>",
)
ALL_TYPES: Final = f"use one of {', '.join((*TYPE_NAMES, *OTHER_NAMES))}"
_DECIMAL = re.compile(r"decimal128\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_TIMESTAMP = re.compile(r"timestamp\(\s*(s|ms|us|ns)\s*(?:,\s*([A-Za-z0-9_+:/-]{1,64})\s*)?\)")
_TIME = re.compile(r"time\(\s*(s|ms|us|ns)\s*\)")
_OFFSET = re.compile(r"[+-]([01]\d|2[0-3]):[0-5]\d")
_MAX_DECIMAL_PRECISION = 38
_OPEN = re.compile(r"\s*(list|struct|map)\s*<")
_LEAF = re.compile(r"\s*(\w+(?:\([^()]*\))?)")
_FIELD = re.compile(r"\s*(?:([A-Za-z_]\w*)|(\"(?:[^\"\\]|\\.)*\"))\s*:", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MARK = re.compile(r"\s*(\?)")
_NEXT = re.compile(r"\s*([,>])\s*")
_MAX_DEPTH = 16


@functools.cache
def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type for a type name. Raises `BadInput` if there is no such type."""
    if (plain := _PLAIN.get(name)) is not None:
        return plain
    if _OPEN.match(name):
        return _Parser(name).whole()
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= _MAX_DECIMAL_PRECISION and scale <= precision:
            return pa.decimal128(precision, scale)
    if match := _TIMESTAMP.fullmatch(name):
        return pa.timestamp(match[1], match[2])
    if match := _TIME.fullmatch(name):
        return _TIMES[match[1]]
    raise BadInput(f"unknown column type {name!r}", hint=ALL_TYPES)


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
    if is_list(type_):
        return f"list<{_element(type_.value_field)}>"
    if pa.types.is_struct(type_) and type_.num_fields:
        return f"struct<{', '.join(f'{_field_name(each.name)}: {_element(each)}' for each in type_)}>"
    if pa.types.is_map(type_):
        return f"map<{_element(type_.key_field)}, {_element(type_.item_field)}>"
    return _refuse(type_)


def is_list(type_: pa.DataType) -> bool:
    """Whether a type is a list, but not a list view: Arrow loses values of views when it casts them."""
    kinds = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
    return any(is_kind(type_) for is_kind in kinds)


@functools.cache
def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which values of a column's Arrow type are stored.

    Parquet has no seconds and no zones but UTC. A zone only says how to show a moment. Nested values are
    stored as bytes (`holdfast.persist.rows.nested`).
    """
    if pa.types.is_nested(type_):
        return pa.binary()
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
    for index in range(type_.num_fields):
        check_zone(type_.field(index).type)
    zone = type_.tz if pa.types.is_timestamp(type_) else None
    if zone is None or _OFFSET.fullmatch(zone):
        return
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        hint = "use a zone such as UTC, Europe/Paris or +02:00"
        raise BadInput(f"unknown time zone {zone!r}", hint=hint) from None


class _Parser:
    """Reads the name of a nested type: `struct<name: string, tags: list<string?>?>`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> pa.DataType:
        type_ = self._type(1)
        if self._at != len(self._text):
            self._fail()
        return type_

    def _type(self, depth: int) -> pa.DataType:
        if (found := self._take(_OPEN)) is None:
            return arrow_type((self._take(_LEAF) or self._fail())[1])
        if depth > _MAX_DEPTH:
            raise BadInput(f"a column type may have at most {_MAX_DEPTH} levels")
        match found[1]:
            case "list":
                type_ = pa.list_(self._element("item", depth))
            case "struct":
                type_ = self._struct(depth)
            case _:
                key = self._element("key", depth)
                self._end(",")
                if key.nullable or pa.types.is_nested(key.type):
                    raise BadInput(f"{self._text}: the keys of a map can't be null or nested")
                type_ = pa.map_(key.type, self._element("value", depth))
        self._end(">")
        return type_

    def _struct(self, depth: int) -> pa.DataType:
        fields: list[pa.Field] = []
        while True:
            name = self._take(_FIELD) or self._fail()
            fields.append(self._element(name[1] or json.loads(name[2]), depth))
            if (ended := _NEXT.match(self._text, self._at)) is None or ended[1] == ">":
                break
            self._end(",")
        names = [each.name for each in fields]
        if len(set(names)) != len(names):
            raise BadInput(f"{self._text}: a field of a struct is given twice")
        return pa.struct(fields)

    def _element(self, name: str, depth: int) -> pa.Field:
        type_ = self._type(depth + 1)
        return pa.field(name, type_, nullable=self._take(_MARK) is not None)

    def _end(self, expected: str) -> None:
        found = self._take(_NEXT)
        if found is None or found[1] != expected:
            self._fail()

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _fail(self) -> NoReturn:
        rest = self._text[self._at :][:40]
        raise BadInput(f"unknown column type {self._text!r}, at {rest!r}", hint=ALL_TYPES)


def _element(field: pa.Field) -> str:
    type_ = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return f"{type_name(type_)}{'?' if field.nullable else ''}"


def _field_name(name: str) -> str:
    return name if _WORD.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _refuse(type_: pa.DataType) -> NoReturn:
    hint = f"cast it to one of {', '.join((*TYPE_NAMES, *OTHER_NAMES))}"
    if pa.types.is_dictionary(type_):
        hint = f"cast it to {type_.value_type}"
    if pa.types.is_null(type_):
        hint = "give the column a type"
    raise BadInput(f"unsupported Arrow type {type_}", hint=hint)
