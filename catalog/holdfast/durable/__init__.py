"""The durable catalog: what a database environment consists of, fenced, versioned and time-travelling.

One registry (`holdfast.durable.registry`) declares the object types; `persist_catalog` gives the catalog of
an organization, `stash_catalog` the one in a stash, to be opened for reading, for writing, or for trying.
`linked_catalog` is the one in either of two, wherever it was moved.
"""

from holdfast.durable.backend_migration.detach import detach
from holdfast.durable.backend_migration.emergency import emergency_catalog
from holdfast.durable.backend_migration.linked import LinkedCatalog, linked_catalog
from holdfast.durable.backend_migration.reopen import reopened
from holdfast.durable.backend_migration.truth import Backend, Strategy
from holdfast.durable.codec import Object
from holdfast.durable.fence import FenceToken
from holdfast.durable.ids import IdKind, format_id, parse_object_id
from holdfast.durable.initialize import Bootstrap
from holdfast.durable.interfaces import (
    Catalog,
    Change,
    OpenableCatalog,
    OpenMode,
    ReadOnlyCatalog,
    Subscription,
)
from holdfast.durable.persist_catalog import persist_catalog
from holdfast.durable.registry import COLLECTIONS, Collection, Kind
from holdfast.durable.shadow import shadow_catalog
from holdfast.durable.shadow_handle import ShadowCatalog, ShadowReader
from holdfast.durable.shard import catalog_shard_id
from holdfast.durable.stash_store import stash_catalog
from holdfast.durable.transaction import Transaction
from holdfast.durable.version import CATALOG_VERSION, MIN_VERSION

__all__ = [
    "CATALOG_VERSION",
    "COLLECTIONS",
    "MIN_VERSION",
    "Backend",
    "Bootstrap",
    "Catalog",
    "Change",
    "Collection",
    "FenceToken",
    "IdKind",
    "Kind",
    "LinkedCatalog",
    "Object",
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
