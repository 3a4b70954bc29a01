"""The catalog: the list of what a database system has. It is fenced, versioned and keeps its history.

The registry (`holdfast.catalog.objects.registry`) declares the object types. `persist_catalog` returns the
catalog of an organization on persist, and `stash_catalog` the one in a stash. `linked_catalog` returns a
catalog that is in two linked stores, and finds the one that is its source of truth. You can open each for
reading, for writing, or for trying changes in memory.
"""

from holdfast.catalog.fence import FenceToken
from holdfast.catalog.initialize import Bootstrap
from holdfast.catalog.interfaces import (
    Catalog,
    ObjectChange,
    OpenableCatalog,
    OpenMode,
    ReadOnlyCatalog,
    Subscription,
)
from holdfast.catalog.move.detach import detach
from holdfast.catalog.move.emergency import emergency_catalog
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.reopen import reopened
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.catalog.objects.codec import Object
from holdfast.catalog.objects.ids import IdKind, format_id, parse_object_id
from holdfast.catalog.objects.registry import OBJECT_TYPES, Kind, ObjectType
from holdfast.catalog.one_store import persist_catalog, stash_catalog
from holdfast.catalog.shadow.handle import ShadowCatalog, ShadowReader
from holdfast.catalog.shadow.openable import shadow_catalog
from holdfast.catalog.stores.persist import catalog_shard_id
from holdfast.catalog.transaction import Transaction
from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION

__all__ = [
    "CATALOG_VERSION",
    "MIN_VERSION",
    "OBJECT_TYPES",
    "Backend",
    "Bootstrap",
    "Catalog",
    "FenceToken",
    "IdKind",
    "Kind",
    "LinkedCatalog",
    "Object",
    "ObjectChange",
    "ObjectType",
    "OpenMode",
    "OpenableCatalog",
    "ReadOnlyCatalog",
    "ShadowCatalog",
    "ShadowReader",
    "Strategy",
    "Subscription",
    "Transaction",
    "catalog_shard_id",
    "detach",
    "emergency_catalog",
    "format_id",
    "linked_catalog",
    "parse_object_id",
    "persist_catalog",
    "reopened",
    "shadow_catalog",
    "stash_catalog",
]
