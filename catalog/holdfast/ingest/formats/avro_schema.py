"""Schemas of Avro: which ones can be read, and how their fields fill columns. Pure, without fastavro.

A schema is rewritten before fastavro gets it. What makes no difference to a reader is left out, such as
defaults, and so is what fastavro would get wrong:

- Logical types that fastavro may change silently or doesn't know. A decimal gets a reader of its own, which
  never rounds.
- A schema that refers to others gets their types where it uses them first, so that it needs no others.
- A recursive schema is refused. A message can nest its records so deeply that fastavro's C code ends the
  process.
- An array whose items take no bytes is refused. A message of some bytes can have 2**62 of them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from holdfast.ingest.schema_bundle import unbundled

DECIMAL: Final = "holdfast-decimal"
"""The logical type that replaces `decimal`. `holdfast.ingest.formats.avro` reads it."""
_MOST_NESTED: Final = 64
_PRIMITIVE: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NESTED: Final = ("record", "array", "map", "union")
_LOGICAL: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("date", "time-millis"),
    "long": (
        "time-micros",
        "timestamp-millis",
        "timestamp-micros",
        "local-timestamp-millis",
        "local-timestamp-micros",
    ),
}
_CONNECT: Final = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
}
"""The logical types that Debezium means. By default it names its own ones instead."""
_TIMESTAMPS: Final = ("timestamp-millis", "timestamp-micros")
_LOCAL: Final = ("local-timestamp-millis", "local-timestamp-micros")


class UnreadableSchema(Exception):
    """No message with this schema can be decoded. Says why, on one line."""


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type: its kind, its logical type or an empty text, and what fastavro reads it with.

    A union of null and one other type has the kind of that one. `fields` are those of a record.
    """

    kind: str
    logical: str
    inner: Any
    takes_bytes: bool = True
    fields: Mapping[str, "AvroType"] = field(default_factory=dict)


def parse_schema(text: str) -> AvroType:
    """Read the text of a schema, and those that it refers to. Raises `UnreadableSchema`."""
    text, references = unbundled(text)
    reader = _Reader()
    for each in references:
        try:
            reader.type_of(_loaded(each.schema), "", 0)
        except UnreadableSchema as error:
            where = f"version {each.version} of subject {each.subject}"
            raise UnreadableSchema(f"{where}, to which it refers: {error}") from None
    found = reader.type_of(_loaded(text), "", 0)
    return replace(found, inner=_Whole(reader.defined).whole(found.inner, 0)) if references else found


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise UnreadableSchema("it is nested too deeply") from None
    except ValueError:
        # A schema may be the bare name of a primitive type.
        return text.strip()


def ways_of(fields: Mapping[str, AvroType], columns: pa.Schema) -> dict[str, str]:
    """Return how fields fill columns: by name as the "value", or as "json". The others are null.

    Raises `UnreadableSchema` if a column can't have the values of its field.
    """
    return {each.name: way_of(fields[each.name], each) for each in columns if each.name in fields}


def way_of(found: AvroType, column: pa.Field) -> str:
    """Return how values of this type fill a column: as the "value", or as "json".

    Raises `UnreadableSchema` if the column can't have them.
    """
    kind, logical, type_ = found.kind, found.logical, column.type
    if pa.types.is_string(type_) and kind in _NESTED:
        return "json"
    fits = kind == "null" or (
        (pa.types.is_boolean(type_) and kind == "boolean")
        or (pa.types.is_integer(type_) and kind in {"int", "long"} and not logical)
        or (pa.types.is_float64(type_) and kind in {"int", "long", "float", "double"} and not logical)
        or (pa.types.is_float32(type_) and kind == "float")
        or (pa.types.is_string(type_) and kind in {"string", "enum"})
        or (pa.types.is_binary(type_) and kind in {"bytes", "fixed"} and not logical)
        or (pa.types.is_date32(type_) and logical == "date")
        or (pa.types.is_decimal128(type_) and logical == DECIMAL)
        or (pa.types.is_timestamp(type_) and logical in (_TIMESTAMPS if type_.tz else _LOCAL))
    )
    if not fits:
        is_ = f"{kind} ({logical.removeprefix('holdfast-')})" if logical else kind
        raise UnreadableSchema(
            f"column '{column.name}' has type {type_}, and its field has Avro's type {is_}"
        )
    return "value"


class _Reader:
    """Reads one schema. Named types get new names, so that no rule about names can refuse them."""

    def __init__(self) -> None:
        # None: a record whose end was not reached yet.
        self._named: dict[str, AvroType | None] = {}

    @property
    def defined(self) -> dict[str, Any]:
        """The definitions of named types, by their new names."""
        return {each.inner["name"]: each.inner for each in self._named.values() if each is not None}

    def type_of(self, given: Any, namespace: str, depth: int) -> AvroType:
        if depth > _MOST_NESTED:
            raise UnreadableSchema("it is nested too deeply")
        if isinstance(given, str):
            return self._by_name(given, namespace)
        if isinstance(given, list):
            return self._union(given, namespace, depth)
        if not isinstance(given, dict) or "type" not in given:
            raise UnreadableSchema(f"{_short(given)} is not a type")
        kind = given["type"]
        if not isinstance(kind, str):
            return self.type_of(kind, namespace, depth + 1)
        if kind in {"array", "map"}:
            return self._repeated(kind, given, namespace, depth)
        if kind in {"record", "error", "enum", "fixed"}:
            return self._define(kind, given, namespace, depth)
        if kind in _PRIMITIVE:
            return _logical(kind, given, kind)
        return self._by_name(kind, namespace)

    def _by_name(self, name: str, namespace: str) -> AvroType:
        if name in _PRIMITIVE:
            return AvroType(name, "", name, name != "null")
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for each in (full, name):
            if each in self._named:
                found = self._named[each]
                if found is None:
                    raise UnreadableSchema(f"its record {each} is recursive, which is not supported")
                return replace(found, inner=found.inner["name"])
        raise UnreadableSchema(f"it has no type {_short(name)}")

    def _union(self, given: list[Any], namespace: str, depth: int) -> AvroType:
        found = [self.type_of(each, namespace, depth + 1) for each in given]
        if not found or any(isinstance(each.inner, list) for each in found):
            raise UnreadableSchema("it has a union without types, or in a union")
        some = [each for each in found if each.kind != "null"]
        inner = [each.inner for each in found]
        if len(some) > 1:
            return AvroType("union", "", inner)
        only = some[0] if some else found[0]
        return AvroType(only.kind, only.logical, inner, fields=only.fields)

    def _repeated(self, kind: str, given: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        what = "items" if kind == "array" else "values"
        if what not in given:
            raise UnreadableSchema(f"its {kind} has no {what}")
        found = self.type_of(given[what], namespace, depth + 1)
        if kind == "array" and not found.takes_bytes:
            raise UnreadableSchema("it has an array whose items take no bytes, which is not supported")
        return AvroType(kind, "", {"type": kind, what: found.inner})

    def _define(self, kind: str, given: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        name = given.get("name")
        if not isinstance(name, str) or not name:
            raise UnreadableSchema(f"its {kind} has no name")
        of = given.get("namespace", namespace)
        if "." in name:
            full, of = name, name.rpartition(".")[0]
        else:
            full = f"{of}.{name}" if isinstance(of, str) and of else name
            of = of if isinstance(of, str) else ""
        if full in self._named:
            raise UnreadableSchema(f"it defines {full} twice")
        self._named[full] = None
        new = f"T{len(self._named)}"
        if kind in {"record", "error"}:
            found = self._record(new, given, of, depth)
        elif kind == "enum":
            symbols = given.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
                raise UnreadableSchema(f"its enum {full} has no symbols")
            found = AvroType("enum", "", {"type": "enum", "name": new, "symbols": symbols})
        else:
            size = given.get("size")
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise UnreadableSchema(f"its fixed {full} has no size")
            found = _logical("fixed", given, {"type": "fixed", "name": new, "size": size}, size > 0)
        self._named[full] = found
        return found

    def _record(self, new: str, given: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        fields: dict[str, AvroType] = {}
        given_fields = given.get("fields")
        if not isinstance(given_fields, list):
            raise UnreadableSchema("its record has no fields")
        for each in given_fields:
            name = each.get("name") if isinstance(each, dict) else None
            if not isinstance(name, str) or "type" not in each or name in fields:
                raise UnreadableSchema(f"it has a bad field {_short(each)}")
            fields[name] = self.type_of(each["type"], namespace, depth + 1)
        inner = [{"name": name, "type": each.inner} for name, each in fields.items()]
        takes = any(each.takes_bytes for each in fields.values())
        return AvroType("record", "", {"type": "record", "name": new, "fields": inner}, takes, fields)


class _Whole:
    """Puts the definition of each named type to the place where it is used first."""

    def __init__(self, defined: Mapping[str, Any]) -> None:
        self._defined = defined
        self._used: set[str] = set()

    def whole(self, inner: Any, depth: int) -> Any:
        """Return a type that needs no other ones. Raises `UnreadableSchema`."""
        if depth > _MOST_NESTED:
            raise UnreadableSchema("it is nested too deeply")
        if isinstance(inner, list):
            return [self.whole(each, depth + 1) for each in inner]
        name = inner if isinstance(inner, str) else inner.get("name")
        if name in self._defined:
            if name in self._used:
                return name
            self._used.add(name)
            inner = self._defined[name]
        if isinstance(inner, str):
            return inner
        if inner["type"] == "record":
            fields = [{**each, "type": self.whole(each["type"], depth + 1)} for each in inner["fields"]]
            return {**inner, "fields": fields}
        nested = {each: self.whole(inner[each], depth + 1) for each in ("items", "values") if each in inner}
        return {**inner, **nested}


def _logical(kind: str, given: Mapping[str, Any], inner: Any, takes_bytes: bool = True) -> AvroType:
    """The type with its logical type, if that is a known one. Otherwise it is what it is without."""
    logical = given.get("logicalType") or _CONNECT.get(str(given.get("connect.name")))
    plain = {"type": inner} if isinstance(inner, str) else inner
    if kind in {"bytes", "fixed"} and logical == "decimal":
        precision, scale = given.get("precision"), given.get("scale", 0)
        if _is_count(precision, 1) and _is_count(scale, 0) and scale <= precision:
            of = {"logicalType": DECIMAL, "precision": precision, "scale": scale}
            return AvroType(kind, DECIMAL, {**plain, **of}, takes_bytes)
    if logical in _LOGICAL.get(kind, ()):
        return AvroType(kind, str(logical), {**plain, "logicalType": logical}, takes_bytes)
    return AvroType(kind, "", inner, takes_bytes and kind != "null")


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
