"""Converts objects of any version of the catalog's format between rows and the JSON of dumps.

`dump`, `load` and `edit` use this for a catalog that isn't upgraded yet. Upgrade steps know only their own
two versions, and the rest of the library knows only the current one.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from holdfast.catalog.config import check_version
from holdfast.catalog.damage import corrupt
from holdfast.catalog.objects import codec
from holdfast.catalog.objects.codec import Row
from holdfast.catalog.objects.json import message_from_json
from holdfast.catalog.objects.message_json import message_to_json
from holdfast.catalog.objects.registry import OBJECT_TYPES, Kind, ObjectType
from holdfast.catalog.upgrade import legacy_json_objects as legacy
from holdfast.catalog.version import CATALOG_VERSION
from holdfast.errors import BadInput

JSON_VERSION = 14
"""The version whose migratable objects are JSON. In all later versions they are protobuf."""


@cache
def collections_of(version: int) -> Mapping[Kind, ObjectType[Any, Any]]:
    """The object types that are protobuf in a version, with the messages of that version.

    Raises `VersionTooNew`, `Deprecated`.
    """
    check_version(version)
    if version == CATALOG_VERSION:
        return OBJECT_TYPES
    # In version 14 only object types that never change are protobuf, so the messages of any version fit.
    module = import_module(f"holdfast._pb.objects_v{max(version, JSON_VERSION + 1)}_pb2")
    return MappingProxyType(
        {
            kind: replace(
                row, key=getattr(module, row.key.__name__), value=getattr(module, row.value.__name__)
            )
            for kind, row in OBJECT_TYPES.items()
            if hasattr(module, row.key.__name__) and not (version == JSON_VERSION and kind in legacy.OBJECTS)
        }
    )


def decode(version: int, row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """Key and value of a row, as the JSON of a dump.

    Messages are proto JSON with the field names of the .proto file, and include default values. Raises
    `CorruptBlob` if the row is not one of that version, and raises like `collections_of`.
    """
    if (collection := collections_of(version).get(row.kind)) is not None:
        object_ = codec.decode(collection, row)
        return message_to_json(object_.key), message_to_json(object_.value)
    if version == JSON_VERSION:
        key, value = legacy.decode(row)
        return legacy.to_json(key), legacy.to_json(value)
    raise corrupt("a row of the catalog", f"a kind of version {version}", str(OBJECT_TYPES[row.kind]))


def encode(version: int, kind: Kind, key: Any, value: Any) -> Row:
    """The row of an object, from JSON as `decode` returns it.

    Raises `BadInput` with the name of the type if the JSON is not such an object, and raises like
    `collections_of`.
    """
    if (collection := collections_of(version).get(kind)) is not None:
        return codec.encode(
            collection, _message(collection, "key", key), _message(collection, "value", value)
        )
    if version == JSON_VERSION:
        key_type, value_type = legacy.OBJECTS[kind]
        return legacy.encode(
            kind, _legacy(kind, "key", key_type, key), _legacy(kind, "value", value_type, value)
        )
    raise BadInput(f"there are no {OBJECT_TYPES[kind]} at version {version} of the catalog")


def _message(collection: ObjectType[Any, Any], part: str, found: Any) -> Message:
    if not isinstance(found, dict):
        raise BadInput(f"this is not a {part} of {collection}: it is not a JSON object")
    message_type: type[Message] = collection.key if part == "key" else collection.value
    return message_from_json(message_type, found, f"{part} of {collection}")


def _legacy(kind: Kind, part: str, object_type: type[Any], found: Any) -> Any:
    try:
        return legacy.from_json(object_type, found)
    except ValueError as error:
        raise BadInput(f"this is not a {part} of {OBJECT_TYPES[kind]}: {error}") from None
