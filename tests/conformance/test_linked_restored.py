"""A sample of the matrix of restored stores on real servers: consensus in Postgres, blobs in S3.

Postgres copies and restores the databases, and SQLite's backup a stash. The tests pair each store at each
point with the other store at each other point. They open each pair to read and to write.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import permutations
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast.catalog import OpenMode, ReadOnlyCatalog, linked_catalog, persist_catalog, stash_catalog
from holdfast.catalog.move.linked import LinkedCatalog
from holdfast.catalog.move.migration import BackendMigration, Verify
from holdfast.catalog.move.truth import Backend
from holdfast.errors import LinkConflict
from holdfast.persist import PersistClient
from testbed.linkedstores import ORG, WHO
from testbed.minio import Minio
from testbed.postgres import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.s3]

Point = tuple[str, frozenset[str]]


class Database:
    """A database that can be copied and brought back, by Postgres itself."""

    def __init__(self, server: PostgresServer, stack: ExitStack) -> None:
        self._server = server
        self._stack = stack
        self._name = stack.enter_context(server.database())
        self.url = server.url(self._name)

    def copy(self, point: str) -> None:
        """Keep it as it is."""
        self._run(f'CREATE DATABASE "{self._copy(point)}" TEMPLATE "{self._name}"')
        self._stack.callback(self._run, f'DROP DATABASE "{self._copy(point)}" WITH (FORCE)')

    def restore(self, point: str) -> None:
        """Put what was kept in its place."""
        self._run(f'DROP DATABASE "{self._name}" WITH (FORCE)')
        self._run(f'CREATE DATABASE "{self._name}" TEMPLATE "{self._copy(point)}"')

    def _copy(self, point: str) -> str:
        return f"{self._name}_{point}"

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            connection.execute(statement.encode())


class File:
    """A stash in SQLite that can be copied and brought back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"sqlite://{folder}/stash.sqlite"

    def copy(self, point: str) -> None:
        """See `Database`."""
        with (
            closing(sqlite3.connect(urlsplit(self.url).path)) as stash,
            closing(sqlite3.connect(self._folder / point)) as copy,
        ):
            stash.backup(copy)

    def restore(self, point: str) -> None:
        """See `Database`."""
        for suffix in ("-wal", "-shm"):
            (self._folder / f"stash.sqlite{suffix}").unlink(missing_ok=True)
        shutil.copy(self._folder / point, self._folder / "stash.sqlite")


class Place:
    """The two stores, opened anew for each use, so that no process knows what it did before."""

    def __init__(self, stash: Database | File, consensus: Database, blob: str) -> None:
        self.stash, self.consensus, self._blob = stash, consensus, blob

    def opened(self, stack: ExitStack) -> LinkedCatalog:
        """The catalog, of a new client."""
        client = stack.enter_context(PersistClient.open(blob=self._blob, consensus=self.consensus.url))
        return linked_catalog(
            stash_catalog(self.stash.url), persist_catalog(client, ORG), backend=Backend.STASH
        )

    def write(self, name: str) -> None:
        """Add an item."""
        with (
            ExitStack() as stack,
            self.opened(stack).open(OpenMode.WRITABLE, **WHO) as catalog,
        ):
            catalog.ensure_item("holdfast", "public", name)

    def move(self, migration: str, *, rollback: bool = False) -> None:
        """Move the catalog to persist, or back."""
        with (
            ExitStack() as stack,
            BackendMigration(
                self.opened(stack),
                migration_id=migration,
                target=Backend.PERSIST,
                verify=Verify.COMPARE,
                rollback=rollback,
                holder="me",
            ) as moving,
        ):
            moving.run()

    def restored(self, stash: str, persist: str) -> None:
        """Bring both stores back to these points."""
        self.stash.restore(stash)
        self.consensus.restore(persist)


@pytest.fixture(params=["SQLite", "Postgres"])
def place(
    request: pytest.FixtureRequest, postgres: PostgresServer, bucket: str, minio: Minio, tmp_path: Path
) -> Iterator[Place]:
    with ExitStack() as stack:
        consensus = Database(postgres, stack)
        stash = File(tmp_path) if request.param == "SQLite" else Database(postgres, stack)
        yield Place(stash, consensus, f"s3://{bucket}/shop?endpoint={minio.endpoint}")


def points(place: Place) -> Iterator[Point]:
    """Write, move, write, move back and write; the items at each point."""

    def at(name: str, *items: str) -> Point:
        place.stash.copy(name)
        place.consensus.copy(name)
        return name, frozenset(items)

    place.write("a")
    yield at("written", "a")
    place.move("m")
    yield at("moved", "a")
    place.write("b")
    yield at("moved_and_written", "a", "b")
    place.move("m", rollback=True)
    place.write("c")
    yield at("back_and_written", "a", "b", "c")


def items(catalog: ReadOnlyCatalog) -> frozenset[str]:
    return frozenset(each.value.name for each in catalog.get_items())


def found(place: Place, mode: OpenMode) -> frozenset[str] | LinkConflict:
    try:
        with ExitStack() as stack, place.opened(stack).open(mode, **WHO) as catalog:
            return items(catalog)
    except LinkConflict as error:
        return error


@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_pair_of_stores_from_different_times_is_refused_or_whole(place: Place) -> None:
    known = dict(points(place))
    for point, wanted in known.items():
        place.restored(point, point)
        for mode in (OpenMode.READ_ONLY, OpenMode.WRITABLE):
            assert found(place, mode) == wanted, f"both stores of {point}, {mode}"
    refused = 0
    order = list(known)
    for stash, persist in permutations(known, 2):
        place.restored(stash, persist)
        newest = known[max(stash, persist, key=order.index)]
        for mode in (OpenMode.READ_ONLY, OpenMode.WRITABLE):
            held = found(place, mode)
            refused += isinstance(held, LinkConflict)
            assert isinstance(held, LinkConflict) or held >= newest, (
                f"stash {stash}, persist {persist}, {mode}"
            )
    assert refused >= 20
