# ruff: noqa: D101 - each is the key or the value of the type that it is named after
"""The objects of the catalog at version 14, when they were JSON.

Up to version 14 the key and the value of a row were JSON text behind the kind tag (compact, names sorted,
UTF-8); from version 15 on they are protobuf messages. These types exist for one purpose, to read what such
catalogs hold so that they can be upgraded, and therefore never change: no field is added, renamed or mended
here, whatever the objects of today look like. What isn't migratable (fence token, config, settings, audit
log) was protobuf already and is not here.

Ids are text (`u1`, `s1`, and `p` for the public role), numbers are JSON integers, an absent value is null,
and every field is written. Reading is strict: a field too many, too few or of another type is damage.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum, unique
from types import MappingProxyType, NoneType, UnionType
from typing import Any, get_args, get_type_hints

from holdfast.catalog.upgrade.step import Kind, Row
from holdfast.errors import CorruptBlob

_TAG_BYTES = 2
_ID = re.compile(r"[us](0|[1-9][0-9]{0,19})")


class ObjectId(str):
    """`u1` or `s1`."""

    __slots__ = ()


class RoleId(str):
    """`u1`, `s1` or `p`."""

    __slots__ = ()


class Column(int):
    """The position of a column."""

    __slots__ = ()


@unique
class ObjectType(StrEnum):
    """What an item, or what a privilege is for, can be."""

    CLUSTER = "cluster"
    CLUSTER_REPLICA = "cluster_replica"
    COLLECTION = "collection"
    CONNECTION = "connection"
    DATABASE = "database"
    FUNCTION = "function"
    INDEX = "index"
    MATERIALIZED_VIEW = "materialized_view"
    ROLE = "role"
    SCHEMA = "schema"
    SECRET = "secret"  # noqa: S105 - a type of object
    SINK = "sink"
    SOURCE = "source"
    SYSTEM = "system"
    TABLE = "table"
    TYPE = "type"
    VIEW = "view"


@unique
class Commented(StrEnum):
    """What can have a comment."""

    CLUSTER = "cluster"
    CLUSTER_REPLICA = "cluster_replica"
    DATABASE = "database"
    SCHEMA = "schema"
    ITEM = "item"
    ROLE = "role"


@dataclass(frozen=True)
class IdAllocatorKey:
    name: str


@dataclass(frozen=True)
class IdAllocatorValue:
    next_id: int


@dataclass(frozen=True)
class TimestampKey:
    timeline: str


@dataclass(frozen=True)
class TimestampValue:
    ts: int


@dataclass(frozen=True)
class DatabaseKey:
    id: ObjectId


@dataclass(frozen=True)
class DatabaseValue:
    name: str


@dataclass(frozen=True)
class SchemaKey:
    id: ObjectId


@dataclass(frozen=True)
class SchemaValue:
    database_id: ObjectId | None
    name: str


@dataclass(frozen=True)
class RoleKey:
    id: RoleId


@dataclass(frozen=True)
class RoleValue:
    name: str


@dataclass(frozen=True)
class ClusterKey:
    id: ObjectId


@dataclass(frozen=True)
class ClusterValue:
    name: str


@dataclass(frozen=True)
class ClusterReplicaKey:
    id: ObjectId


@dataclass(frozen=True)
class ClusterReplicaValue:
    cluster_id: ObjectId
    name: str
    size: str
    availability_zone: str | None


@dataclass(frozen=True)
class ClusterIntrospectionSourceIndexKey:
    cluster_id: ObjectId
    name: str


@dataclass(frozen=True)
class ClusterIntrospectionSourceIndexValue:
    index_id: ObjectId


@dataclass(frozen=True)
class ItemKey:
    id: ObjectId


@dataclass(frozen=True)
class ItemValue:
    schema_id: ObjectId
    name: str
    type: ObjectType
    definition: str


@dataclass(frozen=True)
class CommentKey:
    object: Commented
    # `p` is the id of a role only.
    id: RoleId
    column: Column | None


@dataclass(frozen=True)
class CommentValue:
    comment: str


@dataclass(frozen=True)
class DefaultPrivilegeKey:
    database_id: ObjectId | None
    schema_id: ObjectId | None
    object_type: ObjectType
    grantee: RoleId


@dataclass(frozen=True)
class DefaultPrivilegeValue:
    privileges: int


@dataclass(frozen=True)
class SystemPrivilegeKey:
    grantee: RoleId
    grantor: RoleId


@dataclass(frozen=True)
class SystemPrivilegeValue:
    privileges: int


@dataclass(frozen=True)
class SystemConfigurationKey:
    name: str


@dataclass(frozen=True)
class SystemConfigurationValue:
    value: str


@dataclass(frozen=True)
class SystemObjectMappingKey:
    schema_name: str
    object_type: ObjectType
    object_name: str


@dataclass(frozen=True)
class SystemObjectMappingValue:
    id: ObjectId
    fingerprint: str


@dataclass(frozen=True)
class StorageUsageKey:
    id: int


@dataclass(frozen=True)
class StorageUsageValue:
    shard_id: str | None
    size_bytes: int
    collected_at_ms: int


OBJECTS: Mapping[Kind, tuple[type[Any], type[Any]]] = MappingProxyType(
    {
        Kind.ID_ALLOCATOR: (IdAllocatorKey, IdAllocatorValue),
        Kind.TIMESTAMP: (TimestampKey, TimestampValue),
        Kind.DATABASE: (DatabaseKey, DatabaseValue),
        Kind.SCHEMA: (SchemaKey, SchemaValue),
        Kind.ROLE: (RoleKey, RoleValue),
        Kind.CLUSTER: (ClusterKey, ClusterValue),
        Kind.CLUSTER_REPLICA: (ClusterReplicaKey, ClusterReplicaValue),
        Kind.CLUSTER_INTROSPECTION_SOURCE_INDEX: (
            ClusterIntrospectionSourceIndexKey,
            ClusterIntrospectionSourceIndexValue,
        ),
        Kind.ITEM: (ItemKey, ItemValue),
        Kind.COMMENT: (CommentKey, CommentValue),
        Kind.DEFAULT_PRIVILEGE: (DefaultPrivilegeKey, DefaultPrivilegeValue),
        Kind.SYSTEM_PRIVILEGE: (SystemPrivilegeKey, SystemPrivilegeValue),
        Kind.SYSTEM_CONFIGURATION: (SystemConfigurationKey, SystemConfigurationValue),
        Kind.SYSTEM_OBJECT_MAPPING: (SystemObjectMappingKey, SystemObjectMappingValue),
        Kind.STORAGE_USAGE: (StorageUsageKey, StorageUsageValue),
    }
)


def decode(row: Row) -> tuple[Any, Any]:
    """Key and value of a row; `CorruptBlob` naming its kind when they are not JSON of that kind."""
    key, value = OBJECTS[row.kind]
    return _decode(row.kind, key, row.key[_TAG_BYTES:]), _decode(row.kind, value, row.value)


def encode(kind: Kind, key: Any, value: Any) -> Row:
    """The row of an object."""
    return Row(kind.tag + _text(key), _text(value))


def to_json(object_: Any) -> dict[str, Any]:
    """A key or a value as what its JSON text says."""
    return {field.name: getattr(object_, field.name) for field in fields(object_)}


def from_json(object_type: type[Any], found: Any) -> Any:
    """The key or value that JSON stands for; `ValueError` telling what is wrong with it."""
    readers = _FIELDS[object_type]
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    if found.keys() != readers.keys():
        raise ValueError(f"the fields {', '.join(sorted(found)) or 'none'}")
    read = {}
    for name, reader in readers.items():
        try:
            read[name] = reader(found[name])
        except ValueError:
            raise ValueError(f"field {name} {json.dumps(found[name])[:64]}") from None
    if object_type is CommentKey and read["id"] == "p" and read["object"] != Commented.ROLE:
        raise ValueError("a comment on the public role that is no role")
    return object_type(**read)


def parse(text: bytes) -> Any:
    """What JSON text says; `ValueError` where it is none, or names a field twice."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None


def _decode(kind: Kind, object_type: type[Any], text: bytes) -> Any:
    try:
        return from_json(object_type, parse(text))
    except ValueError as error:
        raise CorruptBlob(
            f"a row of kind {kind.name.lower()}", f"the JSON of a {object_type.__name__}", str(error)
        ) from None


def _text(object_: Any) -> bytes:
    return json.dumps(to_json(object_), ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field that is named twice")
    return found


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    # JSON can spell half a surrogate pair, which is no text.
    value.encode()
    return value


def _number(value: Any, bits: int = 64) -> int:
    # True is an int to Python, but not to JSON.
    if type(value) is not int or not 0 <= value < 1 << bits:
        raise ValueError
    return value


def _object_id(value: Any) -> ObjectId:
    if not isinstance(value, str) or not _ID.fullmatch(value) or int(value[1:]) >= 1 << 64:
        raise ValueError
    return ObjectId(value)


def _role_id(value: Any) -> RoleId:
    return RoleId(value if value == "p" else _object_id(value))


_READERS: Mapping[Any, Callable[[Any], Any]] = {
    str: _string,
    int: _number,
    Column: lambda value: Column(_number(value, 32)),
    ObjectId: _object_id,
    RoleId: _role_id,
    ObjectType: ObjectType,
    Commented: Commented,
}


def _reader(hint: Any) -> Callable[[Any], Any]:
    if not isinstance(hint, UnionType):
        return _READERS[hint]
    (inner,) = (_READERS[part] for part in get_args(hint) if part is not NoneType)
    return lambda value: None if value is None else inner(value)


_FIELDS: Mapping[type[Any], Mapping[str, Callable[[Any], Any]]] = {
    object_type: {name: _reader(hint) for name, hint in get_type_hints(object_type).items()}
    for pair in OBJECTS.values()
    for object_type in pair
}
