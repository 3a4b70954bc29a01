"""The object types of the catalog, one row each. Transactions, dumps and encodings come from these rows.

`catalog/getters.py` has a getter for each row.

Invariants
- The tag of a kind is the prefix of every key permanently. It is never changed and never reused.
- Every message has one encoding (no maps, floats or unknown fields), so equal objects have equal bytes.
- Types that aren't migratable are readable by every version. Fence token and config decide whether the rest
  is.
- Append-only types aren't cached in memory. They are inserted, and read by a streaming getter.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import IntEnum, unique
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from holdfast._pb import objects_pb2 as pb

K = TypeVar("K", bound=Message)
V = TypeVar("V", bound=Message)


@unique
class Kind(IntEnum):
    """The tag of each object type: two bytes, big-endian, at the beginning of its keys. Never reused."""

    FENCE_TOKEN = 1
    CONFIG = 2
    SETTING = 3
    ID_ALLOCATOR = 4
    TIMESTAMP = 5
    DATABASE = 6
    SCHEMA = 7
    ROLE = 8
    CLUSTER = 9
    CLUSTER_REPLICA = 10
    CLUSTER_INTROSPECTION_SOURCE_INDEX = 11
    ITEM = 12
    COMMENT = 13
    DEFAULT_PRIVILEGE = 14
    SYSTEM_PRIVILEGE = 15
    SYSTEM_CONFIGURATION = 16
    SYSTEM_OBJECT_MAPPING = 17
    AUDIT_LOG = 18
    STORAGE_USAGE = 19

    @property
    def tag(self) -> bytes:
        """The prefix of every key of this kind."""
        return self.to_bytes(2, "big")


@dataclass(frozen=True, eq=False)
class ObjectType(Generic[K, V]):
    """One object type.

    `name` is its name in dumps and in its getter (`get_<name>`). `unique_by` returns the part of a value that
    no two values of the type may have in common.
    """

    kind: Kind
    name: str
    key: type[K]
    value: type[V]
    unique_by: Callable[[V], Hashable] | None = None
    cached: bool = True
    migratable: bool = True
    append_only: bool = False

    def __str__(self) -> str:
        return self.name


def _id(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


FENCE_TOKENS = ObjectType(
    Kind.FENCE_TOKEN, "fence_token", pb.FenceTokenKey, pb.FenceTokenValue, migratable=False
)
CONFIGS = ObjectType(Kind.CONFIG, "config", pb.ConfigKey, pb.ConfigValue, migratable=False)
SETTINGS = ObjectType(Kind.SETTING, "settings", pb.SettingKey, pb.SettingValue, migratable=False)
ID_ALLOCATORS = ObjectType(Kind.ID_ALLOCATOR, "id_allocators", pb.IdAllocatorKey, pb.IdAllocatorValue)
TIMESTAMPS = ObjectType(Kind.TIMESTAMP, "timestamps", pb.TimestampKey, pb.TimestampValue)
DATABASES = ObjectType(
    Kind.DATABASE,
    "databases",
    pb.DatabaseKey,
    pb.DatabaseValue,
    unique_by=lambda value: value.name,
)
SCHEMAS = ObjectType(
    Kind.SCHEMA,
    "schemas",
    pb.SchemaKey,
    pb.SchemaValue,
    unique_by=lambda value: (_id(value.database_id), value.name),
)
ROLES = ObjectType(Kind.ROLE, "roles", pb.RoleKey, pb.RoleValue, unique_by=lambda value: value.name)
CLUSTERS = ObjectType(
    Kind.CLUSTER, "clusters", pb.ClusterKey, pb.ClusterValue, unique_by=lambda value: value.name
)
CLUSTER_REPLICAS = ObjectType(
    Kind.CLUSTER_REPLICA,
    "cluster_replicas",
    pb.ClusterReplicaKey,
    pb.ClusterReplicaValue,
    unique_by=lambda value: (_id(value.cluster_id), value.name),
)
CLUSTER_INTROSPECTION_SOURCE_INDEXES = ObjectType(
    Kind.CLUSTER_INTROSPECTION_SOURCE_INDEX,
    "cluster_introspection_source_indexes",
    pb.ClusterIntrospectionSourceIndexKey,
    pb.ClusterIntrospectionSourceIndexValue,
    unique_by=lambda value: _id(value.index_id),
)
ITEMS = ObjectType(
    Kind.ITEM,
    "items",
    pb.ItemKey,
    pb.ItemValue,
    unique_by=lambda value: (_id(value.schema_id), value.name),
)
COMMENTS = ObjectType(Kind.COMMENT, "comments", pb.CommentKey, pb.CommentValue)
DEFAULT_PRIVILEGES = ObjectType(
    Kind.DEFAULT_PRIVILEGE, "default_privileges", pb.DefaultPrivilegeKey, pb.DefaultPrivilegeValue
)
SYSTEM_PRIVILEGES = ObjectType(
    Kind.SYSTEM_PRIVILEGE, "system_privileges", pb.SystemPrivilegeKey, pb.SystemPrivilegeValue
)
SYSTEM_CONFIGURATIONS = ObjectType(
    Kind.SYSTEM_CONFIGURATION,
    "system_configurations",
    pb.SystemConfigurationKey,
    pb.SystemConfigurationValue,
)
SYSTEM_OBJECT_MAPPINGS = ObjectType(
    Kind.SYSTEM_OBJECT_MAPPING,
    "system_object_mappings",
    pb.SystemObjectMappingKey,
    pb.SystemObjectMappingValue,
    unique_by=lambda value: _id(value.id),
)
AUDIT_LOG = ObjectType(
    Kind.AUDIT_LOG,
    "audit_log",
    pb.AuditLogKey,
    pb.AuditLogValue,
    cached=False,
    migratable=False,
    append_only=True,
)
STORAGE_USAGE = ObjectType(
    Kind.STORAGE_USAGE,
    "storage_usage",
    pb.StorageUsageKey,
    pb.StorageUsageValue,
    cached=False,
    append_only=True,
)

_ROWS: tuple[ObjectType[Any, Any], ...] = (
    FENCE_TOKENS,
    CONFIGS,
    SETTINGS,
    ID_ALLOCATORS,
    TIMESTAMPS,
    DATABASES,
    SCHEMAS,
    ROLES,
    CLUSTERS,
    CLUSTER_REPLICAS,
    CLUSTER_INTROSPECTION_SOURCE_INDEXES,
    ITEMS,
    COMMENTS,
    DEFAULT_PRIVILEGES,
    SYSTEM_PRIVILEGES,
    SYSTEM_CONFIGURATIONS,
    SYSTEM_OBJECT_MAPPINGS,
    AUDIT_LOG,
    STORAGE_USAGE,
)
OBJECT_TYPES: Mapping[Kind, ObjectType[Any, Any]] = MappingProxyType({row.kind: row for row in _ROWS})
BY_NAME: Mapping[str, ObjectType[Any, Any]] = MappingProxyType({row.name: row for row in _ROWS})
