"""Which objects an object refers to, and whether they exist, for changes by hand. Pure.

Invariants
- References are found by the types and names of fields, so a new type of object is checked too.
- System items need not be stored, so references to them are not checked.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.objects.registry import (
    CLUSTER_REPLICAS,
    CLUSTERS,
    DATABASES,
    ITEMS,
    ROLES,
    SCHEMAS,
    ObjectType,
)

_NAMED: Mapping[str, ObjectType[Any, Any]] = MappingProxyType(
    {
        "database_id": DATABASES,
        "schema_id": SCHEMAS,
        "cluster_id": CLUSTERS,
        "cluster_replica_id": CLUSTER_REPLICAS,
        "item_id": ITEMS,
    }
)
_NEEDED: Mapping[str, str] = MappingProxyType({ITEMS.name: "schema_id", CLUSTER_REPLICAS.name: "cluster_id"})
"""The field that names the object's parent. Without it the object would be nowhere."""


def dangling(
    collection: ObjectType[Any, Any],
    key: Message,
    value: Message,
    is_there: Callable[[ObjectType[Any, Any], Message], bool],
) -> str | None:
    """What is wrong with the ids in an object: one is empty, or refers to nothing.

    None if nothing is wrong.
    """
    if "id" in key.DESCRIPTOR.fields_by_name and _is_id(key, "id") and not key.HasField("id"):
        return f"the key of {collection} has no id"
    needed = _NEEDED.get(collection.name)
    if needed is not None and not value.HasField(needed):
        return f"the value of {collection} has no {needed}"
    for name, id_ in (*_ids(key), *_ids(value)):
        kind = id_.WhichOneof("id")
        if kind is None:
            return f"{name} of {collection} is empty"
        referent = ROLES if isinstance(id_, pb.RoleId) else _NAMED.get(name)
        if name == "id" or referent is None or kind == "public" or (referent, kind) == (ITEMS, "system"):
            continue
        if not is_there(referent, referent.key(id=id_)):
            return f"{name} of {collection} is {kind} {getattr(id_, kind)}, which is not in {referent}"
    return None


def _is_id(message: Message, name: str) -> bool:
    kind = message.DESCRIPTOR.fields_by_name[name].message_type
    return kind is not None and kind.name in {"ObjectId", "RoleId"}


def _ids(message: Message) -> Iterator[tuple[str, Any]]:
    """Every id in a message, with the name of its field."""
    for field, found in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in [found] if isinstance(found, Message) else found:
            if _is_id(message, field.name):
                yield field.name, each
            else:
                yield from _ids(each)
