"""Every kind of catalog that the suite tests against the promises of the interfaces."""

import uuid
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import (
    Backend,
    Catalog,
    Object,
    OpenableCatalog,
    OpenMode,
    ReadOnlyCatalog,
    catalog_shard_id,
    linked_catalog,
    persist_catalog,
    shadow_catalog,
)
from holdfast.catalog.objects.registry import ROLES
from holdfast.catalog.one_store import OneStoreCatalog
from holdfast.catalog.opening import wall_clock_ms
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.catalog.stores.stash import StashStore
from holdfast.catalog.stores.store import CatalogStore
from holdfast.persist import PersistClient, PersistConfig
from testbed.minio import Minio

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")
HOLDER = {"holder": "me", "purpose": "a test of the catalog"}


class Catalogs(ABC):
    """One catalog, in the hands of as many processes as a test wants."""

    kind: str

    @abstractmethod
    def openable(self, mode: str = "write") -> OpenableCatalog:
        """The catalog as another process finds it; with mode "read" by one that can't write."""

    @abstractmethod
    def behind(self) -> CatalogStore:
        """Its rows, in the hands of somebody who follows no rules."""

    @property
    @abstractmethod
    def address(self) -> dict[str, str]:
        """Where a process of its own finds it with `open_at`."""

    @abstractmethod
    def close(self) -> None:
        """End all of its processes."""


class PersistCatalogs(Catalogs):
    """One on persist, at the URLs of a location."""

    def __init__(self, kind: str, **address: str) -> None:
        self.kind = kind
        self._address = address
        self._opened: list[PersistClient] = []

    @property
    def address(self) -> dict[str, str]:
        return self._address

    def openable(self, mode: str = "write") -> OpenableCatalog:
        return persist_catalog(self._client(mode), ORG)

    def behind(self) -> CatalogStore:
        return CatalogShard(self._client("write"), catalog_shard_id(ORG), purpose="a test that meddles")

    def close(self) -> None:
        for client in self._opened:
            client.close()

    def _client(self, mode: str) -> PersistClient:
        client = persist_client(self._address, mode)
        self._opened.append(client)
        return client


class _KnownStash(StashStore):
    """A store in a stash that `known` lists, with each further handle that a catalog makes of it."""

    def __init__(self, url: str, known: list[StashStore], *, read_only: bool = False) -> None:
        super().__init__(url, read_only=read_only)
        self._known = known
        known.append(self)

    def another(self, *, purpose: str) -> StashStore:
        return _KnownStash(self._url, self._known, read_only=self._read_only)


class StashCatalogs(Catalogs):
    """One in a stash."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self._url = url
        self._opened: list[StashStore] = []

    @property
    def address(self) -> dict[str, str]:
        return {"stash": self._url}

    def openable(self, mode: str = "write") -> OpenableCatalog:
        store = _KnownStash(self._url, self._opened, read_only=mode == "read")
        return OneStoreCatalog(store, wall_clock_ms)

    def behind(self) -> CatalogStore:
        return _KnownStash(self._url, self._opened)

    def close(self) -> None:
        for store in self._opened:
            store.close()


class ShadowCatalogs(Catalogs):
    """One on two stores, of which every difference is an error."""

    def __init__(self, kind: str, primary: Catalogs, secondary: Catalogs) -> None:
        self.kind = kind
        self.primary, self.secondary = primary, secondary

    @property
    def address(self) -> dict[str, str]:
        return self.primary.address

    def openable(self, mode: str = "write") -> OpenableCatalog:
        return shadow_catalog(self.primary.openable(mode), self.secondary.openable(mode), strict=True)

    def behind(self) -> CatalogStore:
        return self.primary.behind()

    def close(self) -> None:
        self.primary.close()
        self.secondary.close()


class LinkedCatalogs(Catalogs):
    """One in a stash and on persist, linked: `truth` is the one that has it."""

    def __init__(self, kind: str, truth: Backend, stash: Catalogs, persist: Catalogs) -> None:
        self.kind = kind
        self._truth = truth
        self._stores = {Backend.STASH: stash, Backend.PERSIST: persist}

    @property
    def address(self) -> dict[str, str]:
        return self._stores[self._truth].address

    def openable(self, mode: str = "write") -> OpenableCatalog:
        stash, persist = (self._stores[backend].openable(mode) for backend in Backend)
        return linked_catalog(stash, persist, backend=self._truth)

    def behind(self) -> CatalogStore:
        return self._stores[self._truth].behind()

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


def persist_client(address: dict[str, str], mode: str = "write") -> PersistClient:
    """A client as a process of its own has it."""
    config = PersistConfig(debug_validate=True, maintenance="inline")
    return PersistClient.open(**address, mode="read" if mode == "read" else "write", config=config)


def catalogs_at(address: dict[str, str]) -> Catalogs:
    """The catalog at an address, in the hands of a process of its own."""
    kind = "of another process"
    return StashCatalogs(kind, address["stash"]) if "stash" in address else PersistCatalogs(kind, **address)


def open_at(address: dict[str, str]) -> OpenableCatalog:
    """The catalog at an address, by a process that only reads."""
    return catalogs_at(address).openable("read")


_SERVERS = [pytest.mark.s3, pytest.mark.postgres]

EMBEDDED = ("persist in memory", "stash in SQLite")
"""What needs no server, for tests with many opens."""

SHARED = (
    "persist in files",
    "stash in SQLite",
    pytest.param("persist on S3 and Postgres", marks=_SERVERS),
    pytest.param("stash in Postgres", marks=pytest.mark.postgres),
)
"""What processes of their own find."""

PLAIN = ("persist in memory", *SHARED)
"""What has one store, with which a test may meddle."""

ONE_STORE_EACH = (*PLAIN, "persist shadowed by a stash", "stash shadowed by persist")
"""What begins at time 0, with an open for each epoch: two stores take commits to be linked."""

LINKED = ("linked, in the stash", "linked, on persist")

KINDS = (*ONE_STORE_EACH, *LINKED)

PROTOCOL = (*EMBEDDED, "persist shadowed by a stash")
"""For what is decided by code that is written once over every store, and by no store: a test of its own asks
whether the stores keep their side of it (`test_catalog_contract.py`, `KINDS`)."""

RETAINING = ("holdfast.catalog.stores.persist", "holdfast.catalog.stores.stash")
"""The modules that say how much of the past a store keeps."""


def make_catalogs(kind: str, folder: Path, request: pytest.FixtureRequest) -> Catalogs:
    """A new catalog of that kind, not initialized."""
    match kind:
        case "persist in memory":
            return PersistCatalogs(kind, url=f"memory://{uuid.uuid4()}")
        case "persist in files":
            return PersistCatalogs(kind, url=f"file://{folder}/store")
        case "persist on S3 and Postgres":
            minio: Minio = request.getfixturevalue("minio")
            blob = f"s3://{request.getfixturevalue('bucket')}/catalog?endpoint={minio.endpoint}"
            return PersistCatalogs(kind, blob=blob, consensus=request.getfixturevalue("postgres_url"))
        case "stash in SQLite":
            return StashCatalogs(kind, f"sqlite://{folder}/stash.sqlite")
        case "stash in Postgres":
            return StashCatalogs(kind, request.getfixturevalue("postgres_url"))
        case "persist shadowed by a stash" | "stash shadowed by persist":
            primary, secondary = EMBEDDED if kind.startswith("persist") else reversed(EMBEDDED)
            return ShadowCatalogs(
                kind,
                make_catalogs(primary, folder / "primary", request),
                make_catalogs(secondary, folder / "secondary", request),
            )
        case "linked, in the stash" | "linked, on persist":
            persist, stash = EMBEDDED
            return LinkedCatalogs(
                kind,
                Backend.STASH if kind.endswith("stash") else Backend.PERSIST,
                make_catalogs(stash, folder, request),
                make_catalogs(persist, folder, request),
            )
    raise AssertionError(kind)


def writable(openable: OpenableCatalog, holder: str = "me", generation: int = 0) -> Catalog:
    """The catalog, taken over."""
    return openable.open(
        OpenMode.WRITABLE, deploy_generation=generation, holder=holder, purpose="a test of the catalog"
    )


def role(number: int, name: str) -> Object[pb.RoleKey, pb.RoleValue]:
    """A role of a user."""
    return Object(pb.RoleKey(id=pb.RoleId(user=number)), pb.RoleValue(name=name))


def of(object_: Object[pb.RoleKey, pb.RoleValue]) -> tuple[pb.RoleKey, pb.RoleValue]:
    """Key and value of a role."""
    return object_.key, object_.value


def roles(catalog: ReadOnlyCatalog) -> list[str]:
    """The names of the users' roles."""
    return sorted(
        found.value.name for found in catalog.objects(ROLES) if found.value.name != "holdfast_system"
    )
