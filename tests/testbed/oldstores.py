"""Catalogs of older versions in real stores, and stores with faults."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from holdfast.catalog import OpenableCatalog
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.one_store import OneStoreCatalog
from holdfast.catalog.stores.persist import CatalogShard, catalog_shard_id
from holdfast.catalog.stores.stash import StashStore
from holdfast.catalog.stores.store import CatalogStore, Feed, Kept
from holdfast.persist import PersistClient, PersistConfig, Prepared
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus
from testbed.faults import (
    FaultPlan,
    FaultyBlob,
    FaultyConsensus,
    Operation,
    ScriptedPlan,
    suffer,
)

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")


class Place(ABC):
    """One catalog that any number of processes open, each with its own faults."""

    @abstractmethod
    def store(
        self, plan: FaultPlan | None = None, *, mode: Literal["write", "read"] = "write"
    ) -> CatalogStore:
        """The catalog's store, as a process of its own has it."""

    def catalog(
        self, plan: FaultPlan | None = None, *, mode: Literal["write", "read"] = "write"
    ) -> OpenableCatalog:
        """The catalog, as a process of its own has it."""
        return OneStoreCatalog(self.store(plan, mode=mode), lambda: 1)


class MemoryPlace(Place):
    """On persist, in memory."""

    def __init__(self) -> None:
        self._blob, self._consensus = MemoryBlob(), MemoryConsensus()
        self._location_id = Location.of(self._blob, self._consensus).location_id

    def client(
        self, plan: FaultPlan | None = None, *, mode: Literal["write", "read"] = "write"
    ) -> PersistClient:
        """A process of its own."""
        plan = plan or ScriptedPlan({})
        location = Location(
            FaultyBlob(self._blob, plan), FaultyConsensus(self._consensus, plan), self._location_id
        )
        return PersistClient(
            location, mode=mode, config=PersistConfig(maintenance="off", debug_validate=True)
        )

    def store(
        self, plan: FaultPlan | None = None, *, mode: Literal["write", "read"] = "write"
    ) -> CatalogStore:
        """The shard."""
        return CatalogShard(self.client(plan, mode=mode), catalog_shard_id(ORG), purpose="test")

    def versions(self) -> int:
        """How often anything in the shard's state has changed."""
        return self.client().inspect(catalog_shard_id(ORG)).seqno


class StashPlace(Place):
    """In a stash, by its URL; faults are met before and after what changes something."""

    def __init__(self, url: str) -> None:
        self._url = url

    @classmethod
    def in_folder(cls, folder: Path) -> "StashPlace":
        """A new one in a file."""
        return cls(f"sqlite://{folder}/{uuid.uuid4()}.db")

    def store(
        self, plan: FaultPlan | None = None, *, mode: Literal["write", "read"] = "write"
    ) -> CatalogStore:
        """The stash."""
        return FaultyStore(StashStore(self._url, read_only=mode == "read"), plan or ScriptedPlan({}))


class FaultyStore(CatalogStore):
    """`inner` as a process has it that meets the faults of `plan` wherever it changes something."""

    def __init__(self, inner: CatalogStore, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan

    @property
    def place(self) -> str:
        """That of the inner one, as is all else."""
        return self._inner.place

    @property
    def writable(self) -> bool:
        """As the inner one."""
        return self._inner.writable

    @property
    def max_row_bytes(self) -> int | None:
        """As the inner one."""
        return self._inner.max_row_bytes

    def another(self, *, purpose: str) -> "FaultyStore":
        """One with the same faults."""
        return FaultyStore(self._inner.another(purpose=purpose), self._plan)

    def upper(self) -> int:
        """As the inner one."""
        return self._inner.upper()

    @property
    def since(self) -> int:
        """As the inner one."""
        return self._inner.since

    def rows(self, as_of: int, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        """As the inner one."""
        return self._inner.rows(as_of, kinds)

    def changes(
        self, lower: int, upper: int, *, fence: Row | None = None
    ) -> list[tuple[int, list[RowUpdate]]]:
        """As the inner one."""
        return self._inner.changes(lower, upper, fence=fence)

    def feed(self, lower: int, *, fence: Row | None = None) -> Feed:
        """As the inner one."""
        return self._inner.feed(lower, fence=fence)

    def append(
        self, updates: Iterable[RowUpdate], at: int, *, fence: Row | None = None, take_hold: bool = False
    ) -> None:
        """One durable operation."""
        suffer(
            self._plan,
            Operation("store.append", (str(at),)),
            lambda: self._inner.append(updates, at, fence=fence, take_hold=take_hold),
        )

    def advance(self, at: int, to: int, *, fence: Row | None = None) -> None:
        """One durable operation."""
        suffer(
            self._plan,
            Operation("store.advance", (str(at),)),
            lambda: self._inner.advance(at, to, fence=fence),
        )

    def expect(self, upper: int) -> Prepared:
        """As the inner one."""
        return self._inner.expect(upper)

    def move_holds(self, upper: int) -> None:
        """As the inner one."""
        self._inner.move_holds(upper)

    def release_before(self, upper: int) -> None:
        """As the inner one."""
        self._inner.release_before(upper)

    def keep(self, time: int, version: int) -> None:
        """One durable operation."""
        suffer(self._plan, Operation("store.keep", (str(version),)), lambda: self._inner.keep(time, version))

    def kept(self) -> list[Kept]:
        """As the inner one."""
        return self._inner.kept()

    def let_go(self, version: int) -> None:
        """One durable operation."""
        suffer(self._plan, Operation("store.let_go", (str(version),)), lambda: self._inner.let_go(version))

    def reopen(self) -> None:
        """As the inner one."""
        self._inner.reopen()

    def close(self) -> None:
        """As the inner one."""
        self._inner.close()


def durable(operation: Operation) -> bool:
    """Whether an operation of either kind of store changes something."""
    return operation.writes or operation.name.startswith("store.")


def begin(store: CatalogStore, rows: Iterable[Row]) -> None:
    """Commit these rows."""
    store.append((RowUpdate(row, 1) for row in rows), store.upper(), take_hold=True)


def contents(store: CatalogStore) -> list[Row]:
    """What the catalog holds, but for its fence token."""
    return but_fence(store.rows(store.upper() - 1))


def but_fence(rows: Iterable[Row]) -> list[Row]:
    """The rows in order, but for the fence token."""
    return sorted(row for row in rows if row.key[:2] != Kind.FENCE_TOKEN.tag)
