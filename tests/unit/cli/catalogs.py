"""The places of catalogs for the commands: the options that name one, and all its stored data."""

import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg import sql

from holdfast.catalog import OpenableCatalog, catalog_shard_id, persist_catalog
from holdfast.catalog.one_store import stash_catalog
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.catalog.stores.store import CatalogStore
from holdfast.cli import main
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.stores import Blob
from testbed.minio import Minio

ORG = "11111111-2222-3333-4444-555555555555"
WRITER = "the-writer"
"""The host that a catalog opened by the test names in what it commits."""


class Place(ABC):
    """One catalog and whoever uses it."""

    options: tuple[str, ...]

    @abstractmethod
    def openable(self) -> OpenableCatalog:
        """The catalog in the hands of another process, as a database uses it."""

    @abstractmethod
    def stored(self) -> Mapping[str, Any]:
        """All that is stored, by its place."""

    @abstractmethod
    def close(self) -> None:
        """End those processes."""

    def run(self, command: str, *arguments: str, text: str | None = None) -> Result:
        """A command of `holdfast catalog` on it; `text` is its standard input."""
        return CliRunner().invoke(main, ["catalog", command, *self.options, *arguments], input=text)

    def dump(self) -> str:
        """What `holdfast catalog dump` prints."""
        result = self.run("dump")
        assert result.exit_code == 0, result.output
        return result.stdout


class PersistPlace(Place):
    """On persist: `blob` and `consensus`, or one URL."""

    def __init__(self, url: str, consensus: str | None, stored: Callable[[], Mapping[str, Any]]) -> None:
        self._url, self._consensus, self._stored = url, consensus, stored
        self._clients: list[PersistClient] = []
        apart = () if consensus is None else ("--consensus", consensus)
        self.options = ("--persist", url, *apart, "--organization-id", ORG)

    def client(self) -> PersistClient:
        """A client as that of a database, which keeps its whole log."""
        config = PersistConfig(hostname=WRITER, maintenance="inline", rollup_every=1_000_000)
        if self._consensus is None:
            client = PersistClient.open(self._url, config=config)
        else:
            client = PersistClient.open(blob=self._url, consensus=self._consensus, config=config)
        self._clients.append(client)
        return client

    def openable(self) -> OpenableCatalog:
        return persist_catalog(self.client(), ORG)

    def behind(self) -> CatalogStore:
        """Its rows, in the hands of somebody who follows no rules."""
        return CatalogShard(self.client(), catalog_shard_id(ORG), purpose="a test that meddles")

    def stored(self) -> Mapping[str, Any]:
        return self._stored()

    def close(self) -> None:
        for client in self._clients:
            client.close()


class StashPlace(Place):
    """In a stash."""

    def __init__(self, url: str, stored: Callable[[], Mapping[str, Any]]) -> None:
        self._url, self._stored = url, stored
        self.options = ("--stash", url)

    def openable(self) -> OpenableCatalog:
        return stash_catalog(self._url)

    def stored(self) -> Mapping[str, Any]:
        return self._stored()

    def close(self) -> None:
        """Nothing stays open."""


S3_AND_POSTGRES = pytest.param("persist on S3 and Postgres", marks=[pytest.mark.s3, pytest.mark.postgres])
KINDS = (
    "persist in files",
    "stash in a file",
    pytest.param("stash in Postgres", marks=pytest.mark.postgres),
    S3_AND_POSTGRES,
)


def make_place(kind: str, folder: Path, request: pytest.FixtureRequest) -> Place:
    """A place of that kind where nothing is yet."""
    match kind:
        case "persist in memory":
            return PersistPlace(f"memory://{uuid.uuid4()}", None, dict)
        case "persist in files":
            return PersistPlace(f"file://{folder}/at", None, lambda: files(folder))
        case "stash in a file":
            return StashPlace(f"sqlite://{folder}/stash.sqlite", lambda: files(folder))
        case "stash in Postgres":
            stash: str = request.getfixturevalue("postgres_url")
            return StashPlace(stash, lambda: rows(stash))
        case "persist on S3 and Postgres":
            minio: Minio = request.getfixturevalue("minio")
            url: str = request.getfixturevalue("postgres_url")
            blob = f"s3://{request.getfixturevalue('bucket')}/{uuid.uuid4()}?endpoint={minio.endpoint}"
            apart = PersistPlace(blob, url, lambda: {**objects(apart.client().location.blob), **rows(url)})
            return apart
    raise AssertionError(kind)


def files(folder: Path) -> dict[str, Any]:
    """All files and folders, a SQLite database by its rows too; not the index in which readers lock."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_dir():
            found[name] = None
        elif not path.name.endswith("-shm"):
            found[name] = path.read_bytes()
            if found[name].startswith(b"SQLite format 3"):
                found[f"{name} rows"] = _sqlite_rows(path)
    return found


def _sqlite_rows(path: Path) -> list[str]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def objects(blob: Blob) -> dict[str, Any]:
    """All objects of a blob store."""
    return {meta.key: blob.get(meta.key) for meta in blob.list("")}


def rows(url: str) -> dict[str, Any]:
    """All rows of a Postgres database, each with the transaction that wrote it."""
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        return {
            f"{schema}.{table}": connection.execute(
                sql.SQL("SELECT t::text, t.xmin::text FROM {} t ORDER BY 1").format(
                    sql.Identifier(schema, table)
                )
            ).fetchall()
            for schema, table in tables
        }
