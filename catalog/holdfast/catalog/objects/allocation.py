"""Maps id allocators to the object types that use their ids, and lists the values that must not go back.

Invariants
- The allocator of an append-only type is beyond all ids of its objects. So an id is known to be new without
  reading the objects.
- An allocator only grows, and so does a timeline, except in a repair by hand.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from holdfast.catalog.objects.ids import IdKind
from holdfast.catalog.objects.registry import (
    AUDIT_LOG,
    CLUSTER_REPLICAS,
    CLUSTERS,
    DATABASES,
    ID_ALLOCATORS,
    ITEMS,
    ROLES,
    SCHEMAS,
    STORAGE_USAGE,
    TIMESTAMPS,
    Kind,
    ObjectType,
)
from holdfast.errors import BadInput

APPENDED: Mapping[Kind, IdKind] = MappingProxyType(
    {AUDIT_LOG.kind: IdKind.AUDIT_LOG, STORAGE_USAGE.kind: IdKind.STORAGE_USAGE}
)
"""The allocator of each append-only type. The keys of these types are the numbers themselves."""

KEYED: Mapping[IdKind, tuple[ObjectType[Any, Any], str]] = MappingProxyType(
    {
        IdKind.USER_DATABASE: (DATABASES, "user"),
        IdKind.SYSTEM_DATABASE: (DATABASES, "system"),
        IdKind.USER_SCHEMA: (SCHEMAS, "user"),
        IdKind.SYSTEM_SCHEMA: (SCHEMAS, "system"),
        IdKind.USER_ROLE: (ROLES, "user"),
        IdKind.SYSTEM_ROLE: (ROLES, "system"),
        IdKind.USER_CLUSTER: (CLUSTERS, "user"),
        IdKind.SYSTEM_CLUSTER: (CLUSTERS, "system"),
        IdKind.USER_REPLICA: (CLUSTER_REPLICAS, "user"),
        IdKind.SYSTEM_REPLICA: (CLUSTER_REPLICAS, "system"),
        IdKind.USER_ITEM: (ITEMS, "user"),
        IdKind.SYSTEM_ITEM: (ITEMS, "system"),
    }
)
"""The cached type whose keys have the ids of an allocator, and the field of the id with the number."""


def key_with(kind: IdKind, number: int) -> bytes:
    """The key, including its tag, of the object with that id. `kind` must be in `KEYED`."""
    collection, field = KEYED[kind]
    key = collection.key()
    setattr(key.id, field, number)
    encoded: bytes = key.SerializeToString(deterministic=True)
    return collection.kind.tag + encoded


def goes_back(collection: ObjectType[Any, Any], key: Any, there: Any, wanted: Any) -> str | None:
    """Why an allocator or a timeline may not change from `there` to `wanted`. None if it may."""
    if there is None:
        return None
    if collection is ID_ALLOCATORS and wanted is None:
        return f"id allocator {key.name!r} can't be deleted: its ids would be used again"
    if collection is ID_ALLOCATORS and wanted.next_id < there.next_id:
        return f"id allocator {key.name!r} is at {there.next_id} and can't go back to {wanted.next_id}"
    if collection is TIMESTAMPS and wanted is not None and wanted.ts < there.ts:
        return f"timeline {key.timeline!r} is at {there.ts} and can't go back to {wanted.ts}"
    return None


def check_onward(collection: ObjectType[Any, Any], key: Any, there: Any, wanted: Any) -> None:
    """Raise `BadInput` if an allocator or a timeline would go back."""
    if (problem := goes_back(collection, key, there, wanted)) is not None:
        raise BadInput(problem)
