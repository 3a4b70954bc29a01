"""From JSON to protobuf: every migratable row is written anew with the same contents.

JSON had no types of its own: each reader had to know what a field may be, and a change of a type could only
be told from what was missing. From version 15 on the messages are declared, and each version is kept.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf.message import Message

from holdfast._pb import objects_v15_pb2 as v15
from holdfast.catalog.upgrade import legacy_json_objects as v14
from holdfast.catalog.upgrade.step import Kind, OldRows, Step, Update, encode


def _updates(old: OldRows) -> Iterator[Update]:
    for kind, convert in _CONVERT.items():
        for row in old.rows(kind):
            yield Update(row, -1)
            yield Update(encode(kind, *convert(*v14.decode(row))), 1)


STEP = Step(14, 15, _updates)


def _object_id(text: str) -> v15.ObjectId:
    number = int(text[1:])
    return v15.ObjectId(user=number) if text[0] == "u" else v15.ObjectId(system=number)


def _maybe_object_id(text: str | None) -> v15.ObjectId | None:
    return None if text is None else _object_id(text)


def _role_id(text: str) -> v15.RoleId:
    if text == "p":
        return v15.RoleId(public=v15.Empty())
    number = int(text[1:])
    return v15.RoleId(user=number) if text[0] == "u" else v15.RoleId(system=number)


def _object_type(found: v14.ObjectType) -> v15.ObjectType:
    number: v15.ObjectType = getattr(v15.ObjectType, f"OBJECT_TYPE_{found.name}")
    return number


def _id_allocator(key: v14.IdAllocatorKey, value: v14.IdAllocatorValue) -> tuple[Message, Message]:
    return v15.IdAllocatorKey(name=key.name), v15.IdAllocatorValue(next_id=value.next_id)


def _timestamp(key: v14.TimestampKey, value: v14.TimestampValue) -> tuple[Message, Message]:
    return v15.TimestampKey(timeline=key.timeline), v15.TimestampValue(ts=value.ts)


def _database(key: v14.DatabaseKey, value: v14.DatabaseValue) -> tuple[Message, Message]:
    return v15.DatabaseKey(id=_object_id(key.id)), v15.DatabaseValue(name=value.name)


def _schema(key: v14.SchemaKey, value: v14.SchemaValue) -> tuple[Message, Message]:
    return v15.SchemaKey(id=_object_id(key.id)), v15.SchemaValue(
        database_id=_maybe_object_id(value.database_id), name=value.name
    )


def _role(key: v14.RoleKey, value: v14.RoleValue) -> tuple[Message, Message]:
    return v15.RoleKey(id=_role_id(key.id)), v15.RoleValue(name=value.name)


def _cluster(key: v14.ClusterKey, value: v14.ClusterValue) -> tuple[Message, Message]:
    return v15.ClusterKey(id=_object_id(key.id)), v15.ClusterValue(name=value.name)


def _cluster_replica(key: v14.ClusterReplicaKey, value: v14.ClusterReplicaValue) -> tuple[Message, Message]:
    return v15.ClusterReplicaKey(id=_object_id(key.id)), v15.ClusterReplicaValue(
        cluster_id=_object_id(value.cluster_id),
        name=value.name,
        size=value.size,
        availability_zone=value.availability_zone,
    )


def _introspection_index(
    key: v14.ClusterIntrospectionSourceIndexKey, value: v14.ClusterIntrospectionSourceIndexValue
) -> tuple[Message, Message]:
    return v15.ClusterIntrospectionSourceIndexKey(
        cluster_id=_object_id(key.cluster_id), name=key.name
    ), v15.ClusterIntrospectionSourceIndexValue(index_id=_object_id(value.index_id))


def _item(key: v14.ItemKey, value: v14.ItemValue) -> tuple[Message, Message]:
    return v15.ItemKey(id=_object_id(key.id)), v15.ItemValue(
        schema_id=_object_id(value.schema_id),
        name=value.name,
        type=_object_type(value.type),
        definition=value.definition,
    )


def _comment(key: v14.CommentKey, value: v14.CommentValue) -> tuple[Message, Message]:
    commented: dict[str, Any] = {
        f"{key.object}_id": _role_id(key.id) if key.object is v14.Commented.ROLE else _object_id(key.id)
    }
    return v15.CommentKey(**commented, column=key.column), v15.CommentValue(comment=value.comment)


def _default_privilege(
    key: v14.DefaultPrivilegeKey, value: v14.DefaultPrivilegeValue
) -> tuple[Message, Message]:
    return v15.DefaultPrivilegeKey(
        database_id=_maybe_object_id(key.database_id),
        schema_id=_maybe_object_id(key.schema_id),
        object_type=_object_type(key.object_type),
        grantee=_role_id(key.grantee),
    ), v15.DefaultPrivilegeValue(privileges=value.privileges)


def _system_privilege(
    key: v14.SystemPrivilegeKey, value: v14.SystemPrivilegeValue
) -> tuple[Message, Message]:
    return v15.SystemPrivilegeKey(
        grantee=_role_id(key.grantee), grantor=_role_id(key.grantor)
    ), v15.SystemPrivilegeValue(privileges=value.privileges)


def _system_configuration(
    key: v14.SystemConfigurationKey, value: v14.SystemConfigurationValue
) -> tuple[Message, Message]:
    return v15.SystemConfigurationKey(name=key.name), v15.SystemConfigurationValue(value=value.value)


def _system_object_mapping(
    key: v14.SystemObjectMappingKey, value: v14.SystemObjectMappingValue
) -> tuple[Message, Message]:
    return v15.SystemObjectMappingKey(
        schema_name=key.schema_name, object_type=_object_type(key.object_type), object_name=key.object_name
    ), v15.SystemObjectMappingValue(id=_object_id(value.id), fingerprint=value.fingerprint)


def _storage_usage(key: v14.StorageUsageKey, value: v14.StorageUsageValue) -> tuple[Message, Message]:
    return v15.StorageUsageKey(id=key.id), v15.StorageUsageValue(
        shard_id=value.shard_id, size_bytes=value.size_bytes, collected_at_ms=value.collected_at_ms
    )


_CONVERT: Mapping[Kind, Callable[[Any, Any], tuple[Message, Message]]] = {
    Kind.ID_ALLOCATOR: _id_allocator,
    Kind.TIMESTAMP: _timestamp,
    Kind.DATABASE: _database,
    Kind.SCHEMA: _schema,
    Kind.ROLE: _role,
    Kind.CLUSTER: _cluster,
    Kind.CLUSTER_REPLICA: _cluster_replica,
    Kind.CLUSTER_INTROSPECTION_SOURCE_INDEX: _introspection_index,
    Kind.ITEM: _item,
    Kind.COMMENT: _comment,
    Kind.DEFAULT_PRIVILEGE: _default_privilege,
    Kind.SYSTEM_PRIVILEGE: _system_privilege,
    Kind.SYSTEM_CONFIGURATION: _system_configuration,
    Kind.SYSTEM_OBJECT_MAPPING: _system_object_mapping,
    Kind.STORAGE_USAGE: _storage_usage,
}
