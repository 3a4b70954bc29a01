"""Every kind of catalog that the suite holds to the promises of the interfaces."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.durable import (
    Catalog,
    Object,
    OpenableCatalog,
    OpenMode,
    ReadOnlyCatalog,
    catalog_shard_id,
    persist_catalog,
)
from holdfast.durable.registry import ROLES
from holdfast.durable.shard import CatalogShard
from holdfast.durable.store import CatalogStore
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

    @abstractmethod
    def close(self) -> None:
        """End all of its processes."""


class PersistCatalogs(Catalogs):
    """One on persist."""

    def __init__(self, kind: str, open_client: Callable[[str, PersistConfig], PersistClient]) -> None:
        self.kind = kind
        self._open_client = open_client
        self._opened: list[PersistClient] = []

    def openable(self, mode: str = "write") -> OpenableCatalog:
        return persist_catalog(self._client(mode), ORG)

    def behind(self) -> CatalogStore:
        return CatalogShard(self._client("write"), catalog_shard_id(ORG), purpose="a test that meddles")

    def close(self) -> None:
        for client in self._opened:
            client.close()

    def _client(self, mode: str) -> PersistClient:
        client = self._open_client(mode, PersistConfig(debug_validate=True, maintenance="inline"))
        self._opened.append(client)
        return client


KINDS = (
    "persist in memory",
    "persist in files",
    pytest.param("persist on S3 and Postgres", marks=[pytest.mark.s3, pytest.mark.postgres]),
)


EMBEDDED = ("persist in memory",)
"""What needs no server, for tests with many opens."""


def make_catalogs(kind: str, folder: Path, request: pytest.FixtureRequest) -> Catalogs:
    """A new catalog of that kind, not initialized."""
    match kind:
        case "persist in memory":
            return _persist(kind, f"memory://{uuid.uuid4()}")
        case "persist in files":
            return _persist(kind, f"file://{folder}/store")
        case "persist on S3 and Postgres":
            minio: Minio = request.getfixturevalue("minio")
            blob = f"s3://{request.getfixturevalue('bucket')}/catalog?endpoint={minio.endpoint}"
            consensus: str = request.getfixturevalue("postgres_url")
            return PersistCatalogs(
                kind,
                lambda mode, config: PersistClient.open(
                    blob=blob, consensus=consensus, mode="read" if mode == "read" else "write", config=config
                ),
            )
    raise AssertionError(kind)


def _persist(kind: str, url: str) -> PersistCatalogs:
    return PersistCatalogs(
        kind,
        lambda mode, config: PersistClient.open(
            url, mode="read" if mode == "read" else "write", config=config
        ),
    )


def writable(openable: OpenableCatalog, holder: str = "me", generation: int = 0) -> Catalog:
    """The catalog, taken over."""
    return openable.open(
        OpenMode.WRITABLE, deploy_generation=generation, holder=holder, purpose="a test of the catalog"
    )


def role(number: int, name: str) -> Object[pb.RoleKey, pb.RoleValue]:
    """A role of a user."""
    return Object(pb.RoleKey(id=pb.RoleId(user=number)), pb.RoleValue(name=name))


def roles(catalog: ReadOnlyCatalog) -> list[str]:
    """The names of the users' roles."""
    return sorted(
        found.value.name for found in catalog.objects(ROLES) if found.value.name != "holdfast_system"
    )
