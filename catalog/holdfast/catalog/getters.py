"""The getters of an open catalog: one method for each object type in the registry."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TypeAlias

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.objects.codec import Object
from holdfast.catalog.objects.registry import (
    AUDIT_LOG,
    CLUSTER_INTROSPECTION_SOURCE_INDEXES,
    CLUSTER_REPLICAS,
    CLUSTERS,
    COMMENTS,
    CONFIGS,
    DATABASES,
    DEFAULT_PRIVILEGES,
    FENCE_TOKENS,
    ID_ALLOCATORS,
    ITEMS,
    ROLES,
    SCHEMAS,
    SETTINGS,
    STORAGE_USAGE,
    SYSTEM_CONFIGURATIONS,
    SYSTEM_OBJECT_MAPPINGS,
    SYSTEM_PRIVILEGES,
    TIMESTAMPS,
    K,
    ObjectType,
    V,
)

Objects: TypeAlias = tuple[Object[K, V], ...]
"""All objects of a type."""


class Getters(ABC):
    """What `ReadOnlyCatalog` offers for each object type.

    Types that a catalog keeps in memory have getters that return a tuple. The append-only types have
    getters that read the store and return an iterator, in no particular order.
    """

    @abstractmethod
    def objects(self, collection: ObjectType[K, V]) -> Objects[K, V]:
        """Return all objects of a type. Raises `BadInput` if the catalog does not keep the type in memory."""

    @abstractmethod
    def stream(self, collection: ObjectType[K, V]) -> Iterator[Object[K, V]]:
        """Read all objects of any type from the store, in no particular order."""

    def get_fence_token(self) -> Objects[pb.FenceTokenKey, pb.FenceTokenValue]:
        """Return the stored fence token."""
        return self.objects(FENCE_TOKENS)

    def get_config(self) -> Objects[pb.ConfigKey, pb.ConfigValue]:
        """Return the configuration values."""
        return self.objects(CONFIGS)

    def get_settings(self) -> Objects[pb.SettingKey, pb.SettingValue]:
        """Return the settings."""
        return self.objects(SETTINGS)

    def get_id_allocators(self) -> Objects[pb.IdAllocatorKey, pb.IdAllocatorValue]:
        """Return the id allocators."""
        return self.objects(ID_ALLOCATORS)

    def get_timestamps(self) -> Objects[pb.TimestampKey, pb.TimestampValue]:
        """Return the timestamps."""
        return self.objects(TIMESTAMPS)

    def get_databases(self) -> Objects[pb.DatabaseKey, pb.DatabaseValue]:
        """Return all databases."""
        return self.objects(DATABASES)

    def get_schemas(self) -> Objects[pb.SchemaKey, pb.SchemaValue]:
        """Return all schemas."""
        return self.objects(SCHEMAS)

    def get_roles(self) -> Objects[pb.RoleKey, pb.RoleValue]:
        """Return all roles."""
        return self.objects(ROLES)

    def get_clusters(self) -> Objects[pb.ClusterKey, pb.ClusterValue]:
        """Return all clusters."""
        return self.objects(CLUSTERS)

    def get_cluster_replicas(self) -> Objects[pb.ClusterReplicaKey, pb.ClusterReplicaValue]:
        """Return all cluster replicas."""
        return self.objects(CLUSTER_REPLICAS)

    def get_cluster_introspection_source_indexes(
        self,
    ) -> Objects[pb.ClusterIntrospectionSourceIndexKey, pb.ClusterIntrospectionSourceIndexValue]:
        """Return the introspection source indexes of all clusters."""
        return self.objects(CLUSTER_INTROSPECTION_SOURCE_INDEXES)

    def get_items(self) -> Objects[pb.ItemKey, pb.ItemValue]:
        """Return all items."""
        return self.objects(ITEMS)

    def get_comments(self) -> Objects[pb.CommentKey, pb.CommentValue]:
        """Return all comments."""
        return self.objects(COMMENTS)

    def get_default_privileges(self) -> Objects[pb.DefaultPrivilegeKey, pb.DefaultPrivilegeValue]:
        """Return all default privileges."""
        return self.objects(DEFAULT_PRIVILEGES)

    def get_system_privileges(self) -> Objects[pb.SystemPrivilegeKey, pb.SystemPrivilegeValue]:
        """Return all system privileges."""
        return self.objects(SYSTEM_PRIVILEGES)

    def get_system_configurations(
        self,
    ) -> Objects[pb.SystemConfigurationKey, pb.SystemConfigurationValue]:
        """Return the system configuration."""
        return self.objects(SYSTEM_CONFIGURATIONS)

    def get_system_object_mappings(
        self,
    ) -> Objects[pb.SystemObjectMappingKey, pb.SystemObjectMappingValue]:
        """Return the system object mappings."""
        return self.objects(SYSTEM_OBJECT_MAPPINGS)

    def get_audit_log(self) -> Iterator[Object[pb.AuditLogKey, pb.AuditLogValue]]:
        """Read the entries of the audit log from the store."""
        return self.stream(AUDIT_LOG)

    def get_storage_usage(self) -> Iterator[Object[pb.StorageUsageKey, pb.StorageUsageValue]]:
        """Read the records of storage usage from the store."""
        return self.stream(STORAGE_USAGE)
