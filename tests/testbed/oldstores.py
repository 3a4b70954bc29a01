"""Catalogs of older versions in real stores."""

import uuid
from collections.abc import Iterable

from holdfast.durable import OpenableCatalog, persist_catalog
from holdfast.durable.codec import Row, Update
from holdfast.durable.registry import Kind
from holdfast.durable.shard import CatalogShard, catalog_shard_id
from holdfast.durable.store import CatalogStore
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.storage import Location, MemoryBlob, MemoryConsensus
from holdfast.persist.storage.faults import FaultPlan, FaultyBlob, FaultyConsensus, ScriptedPlan

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")


class MemoryPlace:
    """One location in memory that any number of processes open, each with its own faults."""

    def __init__(self) -> None:
        self._blob, self._consensus = MemoryBlob(), MemoryConsensus()
        self._location_id = Location.of(self._blob, self._consensus).location_id

    def client(self, plan: FaultPlan | None = None, *, mode: str = "write") -> PersistClient:
        """A process of its own."""
        plan = plan or ScriptedPlan({})
        location = Location(
            FaultyBlob(self._blob, plan), FaultyConsensus(self._consensus, plan), self._location_id
        )
        config = PersistConfig(maintenance="off", debug_validate=True)
        return PersistClient(location, mode="read" if mode == "read" else "write", config=config)

    def store(self, plan: FaultPlan | None = None) -> CatalogStore:
        """The catalog's store, as a process of its own has it."""
        return CatalogShard(self.client(plan), catalog_shard_id(ORG), purpose="test")

    def catalog(self, plan: FaultPlan | None = None, *, mode: str = "write") -> OpenableCatalog:
        """The catalog, as a process of its own has it."""
        return persist_catalog(self.client(plan, mode=mode), ORG, now_ms=lambda: 1)

    def versions(self) -> int:
        """How often anything in the shard's state has changed."""
        return self.client().inspect(catalog_shard_id(ORG)).seqno


def begin(store: CatalogStore, rows: Iterable[Row]) -> None:
    """Make the store's catalog of these rows."""
    store.append((Update(row, 1) for row in rows), store.upper(), take_hold=True)


def contents(store: CatalogStore) -> list[Row]:
    """What the catalog holds, but for its fence token."""
    return but_fence(store.rows(store.upper() - 1))


def but_fence(rows: Iterable[Row]) -> list[Row]:
    """The rows in order, but for the fence token."""
    return sorted(row for row in rows if row.key[:2] != Kind.FENCE_TOKEN.tag)
