from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ObjectType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECT_TYPE_UNSPECIFIED: _ClassVar[ObjectType]
    OBJECT_TYPE_CLUSTER: _ClassVar[ObjectType]
    OBJECT_TYPE_CLUSTER_REPLICA: _ClassVar[ObjectType]
    OBJECT_TYPE_COLLECTION: _ClassVar[ObjectType]
    OBJECT_TYPE_CONNECTION: _ClassVar[ObjectType]
    OBJECT_TYPE_DATABASE: _ClassVar[ObjectType]
    OBJECT_TYPE_FUNCTION: _ClassVar[ObjectType]
    OBJECT_TYPE_INDEX: _ClassVar[ObjectType]
    OBJECT_TYPE_MATERIALIZED_VIEW: _ClassVar[ObjectType]
    OBJECT_TYPE_ROLE: _ClassVar[ObjectType]
    OBJECT_TYPE_SCHEMA: _ClassVar[ObjectType]
    OBJECT_TYPE_SECRET: _ClassVar[ObjectType]
    OBJECT_TYPE_SINK: _ClassVar[ObjectType]
    OBJECT_TYPE_SOURCE: _ClassVar[ObjectType]
    OBJECT_TYPE_SYSTEM: _ClassVar[ObjectType]
    OBJECT_TYPE_TABLE: _ClassVar[ObjectType]
    OBJECT_TYPE_TYPE: _ClassVar[ObjectType]
    OBJECT_TYPE_VIEW: _ClassVar[ObjectType]

class AuditLogEventType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIT_LOG_EVENT_TYPE_UNSPECIFIED: _ClassVar[AuditLogEventType]
    AUDIT_LOG_EVENT_TYPE_CREATE: _ClassVar[AuditLogEventType]
    AUDIT_LOG_EVENT_TYPE_ALTER: _ClassVar[AuditLogEventType]
    AUDIT_LOG_EVENT_TYPE_DROP: _ClassVar[AuditLogEventType]
    AUDIT_LOG_EVENT_TYPE_GRANT: _ClassVar[AuditLogEventType]
    AUDIT_LOG_EVENT_TYPE_REVOKE: _ClassVar[AuditLogEventType]
    AUDIT_LOG_EVENT_TYPE_COMMENT: _ClassVar[AuditLogEventType]
OBJECT_TYPE_UNSPECIFIED: ObjectType
OBJECT_TYPE_CLUSTER: ObjectType
OBJECT_TYPE_CLUSTER_REPLICA: ObjectType
OBJECT_TYPE_COLLECTION: ObjectType
OBJECT_TYPE_CONNECTION: ObjectType
OBJECT_TYPE_DATABASE: ObjectType
OBJECT_TYPE_FUNCTION: ObjectType
OBJECT_TYPE_INDEX: ObjectType
OBJECT_TYPE_MATERIALIZED_VIEW: ObjectType
OBJECT_TYPE_ROLE: ObjectType
OBJECT_TYPE_SCHEMA: ObjectType
OBJECT_TYPE_SECRET: ObjectType
OBJECT_TYPE_SINK: ObjectType
OBJECT_TYPE_SOURCE: ObjectType
OBJECT_TYPE_SYSTEM: ObjectType
OBJECT_TYPE_TABLE: ObjectType
OBJECT_TYPE_TYPE: ObjectType
OBJECT_TYPE_VIEW: ObjectType
AUDIT_LOG_EVENT_TYPE_UNSPECIFIED: AuditLogEventType
AUDIT_LOG_EVENT_TYPE_CREATE: AuditLogEventType
AUDIT_LOG_EVENT_TYPE_ALTER: AuditLogEventType
AUDIT_LOG_EVENT_TYPE_DROP: AuditLogEventType
AUDIT_LOG_EVENT_TYPE_GRANT: AuditLogEventType
AUDIT_LOG_EVENT_TYPE_REVOKE: AuditLogEventType
AUDIT_LOG_EVENT_TYPE_COMMENT: AuditLogEventType

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ObjectId(_message.Message):
    __slots__ = ("system", "user")
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    system: int
    user: int
    def __init__(self, system: _Optional[int] = ..., user: _Optional[int] = ...) -> None: ...

class RoleId(_message.Message):
    __slots__ = ("system", "user", "public")
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_FIELD_NUMBER: _ClassVar[int]
    system: int
    user: int
    public: Empty
    def __init__(self, system: _Optional[int] = ..., user: _Optional[int] = ..., public: _Optional[_Union[Empty, _Mapping]] = ...) -> None: ...

class AclItem(_message.Message):
    __slots__ = ("grantee", "grantor", "privileges")
    GRANTEE_FIELD_NUMBER: _ClassVar[int]
    GRANTOR_FIELD_NUMBER: _ClassVar[int]
    PRIVILEGES_FIELD_NUMBER: _ClassVar[int]
    grantee: RoleId
    grantor: RoleId
    privileges: int
    def __init__(self, grantee: _Optional[_Union[RoleId, _Mapping]] = ..., grantor: _Optional[_Union[RoleId, _Mapping]] = ..., privileges: _Optional[int] = ...) -> None: ...

class FenceTokenKey(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FenceTokenValue(_message.Message):
    __slots__ = ("deploy_generation", "epoch", "holder", "purpose", "nonce")
    DEPLOY_GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    deploy_generation: int
    epoch: int
    holder: str
    purpose: str
    nonce: bytes
    def __init__(self, deploy_generation: _Optional[int] = ..., epoch: _Optional[int] = ..., holder: _Optional[str] = ..., purpose: _Optional[str] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class ConfigKey(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class ConfigValue(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class SettingKey(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SettingValue(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: str
    def __init__(self, value: _Optional[str] = ...) -> None: ...

class IdAllocatorKey(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class IdAllocatorValue(_message.Message):
    __slots__ = ("next_id",)
    NEXT_ID_FIELD_NUMBER: _ClassVar[int]
    next_id: int
    def __init__(self, next_id: _Optional[int] = ...) -> None: ...

class TimestampKey(_message.Message):
    __slots__ = ("timeline",)
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    timeline: str
    def __init__(self, timeline: _Optional[str] = ...) -> None: ...

class TimestampValue(_message.Message):
    __slots__ = ("ts",)
    TS_FIELD_NUMBER: _ClassVar[int]
    ts: int
    def __init__(self, ts: _Optional[int] = ...) -> None: ...

class DatabaseKey(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: ObjectId
    def __init__(self, id: _Optional[_Union[ObjectId, _Mapping]] = ...) -> None: ...

class DatabaseValue(_message.Message):
    __slots__ = ("name", "owner_id", "privileges")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    PRIVILEGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner_id: RoleId
    privileges: _containers.RepeatedCompositeFieldContainer[AclItem]
    def __init__(self, name: _Optional[str] = ..., owner_id: _Optional[_Union[RoleId, _Mapping]] = ..., privileges: _Optional[_Iterable[_Union[AclItem, _Mapping]]] = ...) -> None: ...

class SchemaKey(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: ObjectId
    def __init__(self, id: _Optional[_Union[ObjectId, _Mapping]] = ...) -> None: ...

class SchemaValue(_message.Message):
    __slots__ = ("database_id", "name", "owner_id", "privileges")
    DATABASE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    PRIVILEGES_FIELD_NUMBER: _ClassVar[int]
    database_id: ObjectId
    name: str
    owner_id: RoleId
    privileges: _containers.RepeatedCompositeFieldContainer[AclItem]
    def __init__(self, database_id: _Optional[_Union[ObjectId, _Mapping]] = ..., name: _Optional[str] = ..., owner_id: _Optional[_Union[RoleId, _Mapping]] = ..., privileges: _Optional[_Iterable[_Union[AclItem, _Mapping]]] = ...) -> None: ...

class RoleKey(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: RoleId
    def __init__(self, id: _Optional[_Union[RoleId, _Mapping]] = ...) -> None: ...

class RoleAttributes(_message.Message):
    __slots__ = ("inherit", "create_role", "create_database", "create_cluster", "superuser", "login")
    INHERIT_FIELD_NUMBER: _ClassVar[int]
    CREATE_ROLE_FIELD_NUMBER: _ClassVar[int]
    CREATE_DATABASE_FIELD_NUMBER: _ClassVar[int]
    CREATE_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SUPERUSER_FIELD_NUMBER: _ClassVar[int]
    LOGIN_FIELD_NUMBER: _ClassVar[int]
    inherit: bool
    create_role: bool
    create_database: bool
    create_cluster: bool
    superuser: bool
    login: bool
    def __init__(self, inherit: _Optional[bool] = ..., create_role: _Optional[bool] = ..., create_database: _Optional[bool] = ..., create_cluster: _Optional[bool] = ..., superuser: _Optional[bool] = ..., login: _Optional[bool] = ...) -> None: ...

class RoleMembership(_message.Message):
    __slots__ = ("role", "grantor")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    GRANTOR_FIELD_NUMBER: _ClassVar[int]
    role: RoleId
    grantor: RoleId
    def __init__(self, role: _Optional[_Union[RoleId, _Mapping]] = ..., grantor: _Optional[_Union[RoleId, _Mapping]] = ...) -> None: ...

class RoleValue(_message.Message):
    __slots__ = ("name", "attributes", "memberships")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    attributes: RoleAttributes
    memberships: _containers.RepeatedCompositeFieldContainer[RoleMembership]
    def __init__(self, name: _Optional[str] = ..., attributes: _Optional[_Union[RoleAttributes, _Mapping]] = ..., memberships: _Optional[_Iterable[_Union[RoleMembership, _Mapping]]] = ...) -> None: ...

class ClusterKey(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: ObjectId
    def __init__(self, id: _Optional[_Union[ObjectId, _Mapping]] = ...) -> None: ...

class ManagedCluster(_message.Message):
    __slots__ = ("size", "replication_factor", "availability_zones")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    AVAILABILITY_ZONES_FIELD_NUMBER: _ClassVar[int]
    size: str
    replication_factor: int
    availability_zones: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, size: _Optional[str] = ..., replication_factor: _Optional[int] = ..., availability_zones: _Optional[_Iterable[str]] = ...) -> None: ...

class ClusterValue(_message.Message):
    __slots__ = ("name", "unmanaged", "managed", "owner_id", "privileges")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNMANAGED_FIELD_NUMBER: _ClassVar[int]
    MANAGED_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    PRIVILEGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    unmanaged: Empty
    managed: ManagedCluster
    owner_id: RoleId
    privileges: _containers.RepeatedCompositeFieldContainer[AclItem]
    def __init__(self, name: _Optional[str] = ..., unmanaged: _Optional[_Union[Empty, _Mapping]] = ..., managed: _Optional[_Union[ManagedCluster, _Mapping]] = ..., owner_id: _Optional[_Union[RoleId, _Mapping]] = ..., privileges: _Optional[_Iterable[_Union[AclItem, _Mapping]]] = ...) -> None: ...

class ClusterReplicaKey(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: ObjectId
    def __init__(self, id: _Optional[_Union[ObjectId, _Mapping]] = ...) -> None: ...

class ClusterReplicaValue(_message.Message):
    __slots__ = ("cluster_id", "name", "size", "availability_zone")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    AVAILABILITY_ZONE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: ObjectId
    name: str
    size: str
    availability_zone: str
    def __init__(self, cluster_id: _Optional[_Union[ObjectId, _Mapping]] = ..., name: _Optional[str] = ..., size: _Optional[str] = ..., availability_zone: _Optional[str] = ...) -> None: ...

class ClusterIntrospectionSourceIndexKey(_message.Message):
    __slots__ = ("cluster_id", "name")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    cluster_id: ObjectId
    name: str
    def __init__(self, cluster_id: _Optional[_Union[ObjectId, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class ClusterIntrospectionSourceIndexValue(_message.Message):
    __slots__ = ("index_id",)
    INDEX_ID_FIELD_NUMBER: _ClassVar[int]
    index_id: ObjectId
    def __init__(self, index_id: _Optional[_Union[ObjectId, _Mapping]] = ...) -> None: ...

class ItemKey(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: ObjectId
    def __init__(self, id: _Optional[_Union[ObjectId, _Mapping]] = ...) -> None: ...

class ItemValue(_message.Message):
    __slots__ = ("schema_id", "name", "type", "definition", "owner_id", "privileges")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    PRIVILEGES_FIELD_NUMBER: _ClassVar[int]
    schema_id: ObjectId
    name: str
    type: ObjectType
    definition: str
    owner_id: RoleId
    privileges: _containers.RepeatedCompositeFieldContainer[AclItem]
    def __init__(self, schema_id: _Optional[_Union[ObjectId, _Mapping]] = ..., name: _Optional[str] = ..., type: _Optional[_Union[ObjectType, str]] = ..., definition: _Optional[str] = ..., owner_id: _Optional[_Union[RoleId, _Mapping]] = ..., privileges: _Optional[_Iterable[_Union[AclItem, _Mapping]]] = ...) -> None: ...

class CommentKey(_message.Message):
    __slots__ = ("cluster_id", "cluster_replica_id", "database_id", "schema_id", "item_id", "role_id", "column")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    DATABASE_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_ID_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    cluster_id: ObjectId
    cluster_replica_id: ObjectId
    database_id: ObjectId
    schema_id: ObjectId
    item_id: ObjectId
    role_id: RoleId
    column: int
    def __init__(self, cluster_id: _Optional[_Union[ObjectId, _Mapping]] = ..., cluster_replica_id: _Optional[_Union[ObjectId, _Mapping]] = ..., database_id: _Optional[_Union[ObjectId, _Mapping]] = ..., schema_id: _Optional[_Union[ObjectId, _Mapping]] = ..., item_id: _Optional[_Union[ObjectId, _Mapping]] = ..., role_id: _Optional[_Union[RoleId, _Mapping]] = ..., column: _Optional[int] = ...) -> None: ...

class CommentValue(_message.Message):
    __slots__ = ("comment",)
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    comment: str
    def __init__(self, comment: _Optional[str] = ...) -> None: ...

class DefaultPrivilegeKey(_message.Message):
    __slots__ = ("database_id", "schema_id", "object_type", "grantee")
    DATABASE_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    OBJECT_TYPE_FIELD_NUMBER: _ClassVar[int]
    GRANTEE_FIELD_NUMBER: _ClassVar[int]
    database_id: ObjectId
    schema_id: ObjectId
    object_type: ObjectType
    grantee: RoleId
    def __init__(self, database_id: _Optional[_Union[ObjectId, _Mapping]] = ..., schema_id: _Optional[_Union[ObjectId, _Mapping]] = ..., object_type: _Optional[_Union[ObjectType, str]] = ..., grantee: _Optional[_Union[RoleId, _Mapping]] = ...) -> None: ...

class DefaultPrivilegeValue(_message.Message):
    __slots__ = ("privileges",)
    PRIVILEGES_FIELD_NUMBER: _ClassVar[int]
    privileges: int
    def __init__(self, privileges: _Optional[int] = ...) -> None: ...

class SystemPrivilegeKey(_message.Message):
    __slots__ = ("grantee", "grantor")
    GRANTEE_FIELD_NUMBER: _ClassVar[int]
    GRANTOR_FIELD_NUMBER: _ClassVar[int]
    grantee: RoleId
    grantor: RoleId
    def __init__(self, grantee: _Optional[_Union[RoleId, _Mapping]] = ..., grantor: _Optional[_Union[RoleId, _Mapping]] = ...) -> None: ...

class SystemPrivilegeValue(_message.Message):
    __slots__ = ("privileges",)
    PRIVILEGES_FIELD_NUMBER: _ClassVar[int]
    privileges: int
    def __init__(self, privileges: _Optional[int] = ...) -> None: ...

class SystemConfigurationKey(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SystemConfigurationValue(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: str
    def __init__(self, value: _Optional[str] = ...) -> None: ...

class SystemObjectMappingKey(_message.Message):
    __slots__ = ("schema_name", "object_type", "object_name")
    SCHEMA_NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECT_TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_NAME_FIELD_NUMBER: _ClassVar[int]
    schema_name: str
    object_type: ObjectType
    object_name: str
    def __init__(self, schema_name: _Optional[str] = ..., object_type: _Optional[_Union[ObjectType, str]] = ..., object_name: _Optional[str] = ...) -> None: ...

class SystemObjectMappingValue(_message.Message):
    __slots__ = ("id", "fingerprint")
    ID_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    id: ObjectId
    fingerprint: str
    def __init__(self, id: _Optional[_Union[ObjectId, _Mapping]] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class AuditLogKey(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class AuditLogDetail(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class AuditLogValue(_message.Message):
    __slots__ = ("event_type", "object_type", "object_id", "object_name", "details", "user", "occurred_at_ms")
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    OBJECT_NAME_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    OCCURRED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    event_type: AuditLogEventType
    object_type: ObjectType
    object_id: str
    object_name: str
    details: _containers.RepeatedCompositeFieldContainer[AuditLogDetail]
    user: str
    occurred_at_ms: int
    def __init__(self, event_type: _Optional[_Union[AuditLogEventType, str]] = ..., object_type: _Optional[_Union[ObjectType, str]] = ..., object_id: _Optional[str] = ..., object_name: _Optional[str] = ..., details: _Optional[_Iterable[_Union[AuditLogDetail, _Mapping]]] = ..., user: _Optional[str] = ..., occurred_at_ms: _Optional[int] = ...) -> None: ...

class StorageUsageKey(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class StorageUsageValue(_message.Message):
    __slots__ = ("shard_id", "size_bytes", "collected_at_ms")
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    COLLECTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    shard_id: str
    size_bytes: int
    collected_at_ms: int
    def __init__(self, shard_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., collected_at_ms: _Optional[int] = ...) -> None: ...
