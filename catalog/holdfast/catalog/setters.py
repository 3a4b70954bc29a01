"""Targeted setters: changes of the catalog that need no explicit transaction. Each is one commit.

They use `in_transaction`, so every implementation of the catalog has all of them. A call that changes nothing
commits nothing.

They raise what `Catalog.commit_transaction` does, and `TransactionInProgress` while a transaction is open.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import items
from holdfast.catalog.objects.codec import Object, encode_key
from holdfast.catalog.objects.ids import IdKind, format_id
from holdfast.catalog.objects.registry import (
    CLUSTER_INTROSPECTION_SOURCE_INDEXES,
    CLUSTER_REPLICAS,
    CLUSTERS,
    COMMENTS,
    CONFIGS,
    SETTINGS,
    STORAGE_USAGE,
    SYSTEM_CONFIGURATIONS,
    SYSTEM_OBJECT_MAPPINGS,
    TIMESTAMPS,
    K,
    ObjectType,
    V,
)
from holdfast.catalog.transaction import Transaction
from holdfast.errors import BadInput

T = TypeVar("T")

_U64 = 1 << 64


class TargetedSetters(ABC):
    """The targeted setters of a catalog that is open for writing."""

    @abstractmethod
    def in_transaction(self, change: Callable[[Transaction], T]) -> T:
        """Run `change` in a new transaction, commit, and return its result. Commits nothing if it raises.

        Threads that share the handle wait for each other.
        """

    def set_objects(self, collection: ObjectType[K, V], objects: Iterable[Object[K, V]]) -> None:
        """Insert objects of one type, or replace their values."""

        def change(tx: Transaction) -> None:
            for object_ in objects:
                tx.set(collection, object_.key, object_.value)

        self.in_transaction(change)

    def delete_objects(self, collection: ObjectType[K, V], keys: Iterable[K]) -> int:
        """Remove objects of one type. Returns how many of them existed."""
        return self.in_transaction(lambda tx: _delete(tx, collection, keys))

    def allocate_ids(self, kind: IdKind, n: int = 1) -> list[int]:
        """Allocate `n` ids that were never used and that no object of the kind has."""
        return self.in_transaction(lambda tx: tx.allocate_ids(kind, n))

    def set_system_object_mappings(
        self, mappings: Iterable[Object[pb.SystemObjectMappingKey, pb.SystemObjectMappingValue]]
    ) -> None:
        """Map system objects to their ids and the fingerprints of their definitions."""
        self.set_objects(SYSTEM_OBJECT_MAPPINGS, mappings)

    def set_introspection_source_indexes(
        self,
        indexes: Iterable[
            Object[pb.ClusterIntrospectionSourceIndexKey, pb.ClusterIntrospectionSourceIndexValue]
        ],
    ) -> None:
        """Set the ids of the indexes of a cluster's introspection sources."""
        self.set_objects(CLUSTER_INTROSPECTION_SOURCE_INDEXES, indexes)

    def set_cluster_replicas(
        self, replicas: Iterable[Object[pb.ClusterReplicaKey, pb.ClusterReplicaValue]]
    ) -> None:
        """Insert replicas, or replace their values, such as size and availability zone."""
        self.set_objects(CLUSTER_REPLICAS, replicas)

    def replace_cluster_replicas(
        self,
        cluster_id: pb.ObjectId,
        replicas: Iterable[Object[pb.ClusterReplicaKey, pb.ClusterReplicaValue]],
    ) -> None:
        """Make these the only replicas of a cluster.

        Raises `BadInput` if there is no such cluster, or if a replica belongs to another one.
        """
        wanted = list(replicas)

        def change(tx: Transaction) -> None:
            if tx.get(CLUSTERS, pb.ClusterKey(id=cluster_id)) is None:
                raise BadInput(f"there is no cluster {format_id(cluster_id)} in the catalog")
            keys = {encode_key(CLUSTER_REPLICAS, replica.key) for replica in wanted}
            for found in list(tx.objects(CLUSTER_REPLICAS)):
                mine = found.value.cluster_id == cluster_id
                if mine and encode_key(CLUSTER_REPLICAS, found.key) not in keys:
                    tx.delete(CLUSTER_REPLICAS, found.key)
            for replica in wanted:
                there = tx.get(CLUSTER_REPLICAS, replica.key)
                if any(each is not None and each.cluster_id != cluster_id for each in (replica.value, there)):
                    raise BadInput(f"replica {format_id(replica.key.id)} belongs to another cluster")
                tx.set(CLUSTER_REPLICAS, replica.key, replica.value)

        self.in_transaction(change)

    def set_timestamps(self, timestamps: Mapping[str, int]) -> None:
        """Advance timelines, by name. Raises `BadInput`, and advances none, if one would go back."""

        def change(tx: Transaction) -> None:
            for timeline, ts in timestamps.items():
                stored = pb.TimestampValue(ts=_u64(ts, f"the time of {timeline!r}"))
                tx.set(TIMESTAMPS, pb.TimestampKey(timeline=timeline), stored)

        self.in_transaction(change)

    def set_config(self, key: str, value: int) -> None:
        """Set a config value. Raises `BadInput` for a key that only an open, upgrade or migration writes."""
        stored = pb.ConfigValue(value=_u64(value, f"config {key}"))
        self.set_objects(CONFIGS, [Object(pb.ConfigKey(key=key), stored)])

    def set_setting(self, name: str, value: str | None) -> None:
        """Set a setting, or remove it (None)."""
        key = pb.SettingKey(name=name)
        if value is None:
            self.delete_objects(SETTINGS, [key])
        else:
            self.set_objects(SETTINGS, [Object(key, pb.SettingValue(value=value))])

    def upsert_system_configuration(self, name: str, value: str) -> None:
        """Set a system variable."""
        stored = pb.SystemConfigurationValue(value=value)
        self.set_objects(SYSTEM_CONFIGURATIONS, [Object(pb.SystemConfigurationKey(name=name), stored)])

    def remove_system_configuration(self, name: str) -> bool:
        """Reset a system variable to its default. Returns False if it had the default already."""
        return self.delete_objects(SYSTEM_CONFIGURATIONS, [pb.SystemConfigurationKey(name=name)]) == 1

    def clear_system_configurations(self) -> int:
        """Reset all system variables to their defaults. Returns how many had other values."""
        return self.in_transaction(
            lambda tx: _delete(
                tx, SYSTEM_CONFIGURATIONS, [found.key for found in tx.objects(SYSTEM_CONFIGURATIONS)]
            )
        )

    def set_comment(self, key: pb.CommentKey, comment: str | None) -> None:
        """Set the comment of an object or one of its columns, or remove it (None)."""
        if key.WhichOneof("object") is None:
            raise BadInput("the key of a comment names no object")
        if comment is None:
            self.delete_objects(COMMENTS, [key])
        else:
            self.set_objects(COMMENTS, [Object(key, pb.CommentValue(comment=comment))])

    def append_storage_usage(self, events: Iterable[pb.StorageUsageValue]) -> list[int]:
        """Add events to the record of storage usage. Returns their ids."""
        wanted = list(events)

        def change(tx: Transaction) -> list[int]:
            ids = tx.allocate_ids(IdKind.STORAGE_USAGE, len(wanted))
            for event_id, event in zip(ids, wanted, strict=True):
                tx.insert(STORAGE_USAGE, pb.StorageUsageKey(id=event_id), event)
            return ids

        return self.in_transaction(change)

    def append_audit_event(
        self,
        event_type: pb.AuditLogEventType,
        object_type: pb.ObjectType,
        object_id: str,
        object_name: str,
        *,
        user: str = "",
        details: Mapping[str, str] | None = None,
    ) -> int:
        """Add an event to the audit log. Returns its id. To combine it with a change, use one transaction."""
        return self.in_transaction(
            lambda tx: tx.audit(event_type, object_type, object_id, object_name, user=user, details=details)
        )

    def ensure_item(self, database: str, schema: str, name: str, *, definition: str = "") -> str:
        """Create the collection's item, or update its definition, and return its id (`u1`).

        Idempotent. Raises `BadInput` if the database or the schema doesn't exist, or if the name is taken.
        """
        return self.in_transaction(
            lambda tx: items.ensure_item(tx, database, schema, name, definition=definition)
        )

    def drop_item(self, database: str, schema: str, name: str) -> str | None:
        """Remove the item and return its id. Returns None if it doesn't exist."""
        return self.in_transaction(lambda tx: items.drop_item(tx, database, schema, name))


def _delete(tx: Transaction, collection: ObjectType[K, V], keys: Iterable[K]) -> int:
    found = 0
    for key in keys:
        if tx.get(collection, key) is not None:
            tx.delete(collection, key)
            found += 1
    return found


def _u64(value: int, what: str) -> int:
    if not 0 <= value < _U64:
        raise BadInput(f"{what} is {value}, which is not in [0, 2^64)")
    return value
