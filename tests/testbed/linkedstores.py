"""A stash and a catalog on persist in memory, which any number of simulated processes can open."""

import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import psycopg
from psycopg import sql

from holdfast.catalog import FenceToken, OpenableCatalog, config, persist_catalog, stash_catalog
from holdfast.catalog.move.link import Terms
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.move.two_stores import TwoStores, read_both, take_over_both
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.replacement import is_content
from holdfast.catalog.stores.persist import CatalogShard, catalog_shard_id
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.catalog.stores.stash import StashStore
from holdfast.catalog.stores.store import CatalogStore
from holdfast.persist import PersistClient
from holdfast.stash import DEFAULT_SCHEMA
from holdfast.stash.pg_schema import TABLES

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")
WHO: Mapping[str, str] = {"holder": "me", "purpose": "a test of two stores"}


class LinkedPlace:
    """Two stores, empty at first; the stash is in SQLite."""

    def __init__(self, folder: Path, stash_url: str | None = None) -> None:
        self._stash_file, self._backup_file = folder / "stash.sqlite", folder / "backup.sqlite"
        self._stash_url = stash_url or f"sqlite://{self._stash_file}"
        self.client = PersistClient.open(url=f"memory://{uuid.uuid4()}")

    def stash(self) -> OpenableCatalog:
        """The stash alone."""
        return stash_catalog(self._stash_url)

    def persist(self) -> OpenableCatalog:
        """The catalog on persist alone."""
        return persist_catalog(self.client, ORG)

    def alone(self, backend: Backend) -> OpenableCatalog:
        """One of them alone."""
        return self.stash() if backend is Backend.STASH else self.persist()

    def stores(self, terms: Terms | None = None) -> TwoStores:
        """Both stores."""
        return TwoStores(
            StashStore(self._stash_url),
            CatalogShard(self.client, catalog_shard_id(ORG), purpose="a test"),
            terms or Terms(),
        )

    def seen(self) -> Seen:
        """What both say of themselves."""
        return read_both(self.stores())

    def configs(self) -> dict[Backend, dict[str, int]]:
        """The config of both."""
        return {backend: self.seen().of(backend).config for backend in Backend}

    def uppers(self) -> tuple[int, int]:
        """Of stash and persist: whether anything was written."""
        seen = self.seen()
        return seen.stash.upper, seen.persist.upper

    def set_config(self, backend: Backend, **wanted: int | None) -> None:
        """Change what no rule lets anybody change."""
        store = self.stores().of(backend)
        seen = read_preamble(store, store.upper())
        updates = seen.configured(wanted)
        if updates:
            store.append(updates, seen.upper, fence=seen.fence_row)

    def moved(self, to: Backend) -> None:
        """What a migration of a link with ONE_TOMBSTONE comes to, all at once."""
        stores = self.stores()
        taken = take_over_both(stores, claim(holder="migration"))
        source, target = stores.of(to.other), stores.of(to)
        # The times of the target go on from those of the source.
        while target.upper() < source.upper() + 2:
            self.set_config(to, filler=target.upper())
        self.set_config(to.other, truth=None)
        at = self.seen().of(to)
        there = contents(target)
        wanted = {row for row in there if not is_content(row)}
        wanted |= {row for row in contents(source) if is_content(row)}
        updates = [RowUpdate(row, -1) for row in there - wanted] + [
            RowUpdate(row, 1) for row in wanted - there
        ]
        updates += at.configured({config.TRUTH_SINCE: at.upper})
        target.append(updates, at.upper, fence=at.fence_row)
        self.set_config(Backend.STASH, tombstone=int(to is Backend.PERSIST))
        self.set_config(to, truth=1)
        assert taken.token == self.seen().stash.token

    def back_up_stash(self) -> None:
        """Keep the stash as it is."""
        _copy(self._stash_file, self._backup_file)

    def restore_stash(self) -> None:
        """Put what was kept in the place of the stash."""
        _copy(self._backup_file, self._stash_file)

    def lose_stash(self) -> None:
        """Lose what is in the stash."""
        self._stash_file.unlink()

    def renew_persist(self) -> None:
        """Lose what is on persist."""
        self.client.close()
        self.client = PersistClient.open(url=f"memory://{uuid.uuid4()}")

    def close(self) -> None:
        """End all processes."""
        self.client.close()


class PostgresLinkedPlace(LinkedPlace):
    """The same with the stash in a database of Postgres."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self._url = url

    def back_up_stash(self) -> None:
        """See `LinkedPlace`."""
        self._copy(DEFAULT_SCHEMA, "backup")

    def restore_stash(self) -> None:
        """See `LinkedPlace`."""
        self._copy("backup", DEFAULT_SCHEMA)

    def lose_stash(self) -> None:
        """See `LinkedPlace`."""
        with psycopg.connect(self._url) as connection:
            _drop(connection, DEFAULT_SCHEMA)

    def _copy(self, source: str, target: str) -> None:
        with psycopg.connect(self._url) as connection:
            _drop(connection, target)
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(target)))
            for table in TABLES:
                names = (sql.Identifier(target, table), sql.Identifier(source, table))
                connection.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(*names))
                connection.execute(sql.SQL("INSERT INTO {} SELECT * FROM {}").format(*names))


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as kept, closing(sqlite3.connect(target)) as copy:
        kept.backup(copy)


def _drop(connection: "psycopg.Connection[tuple[object, ...]]", schema: str) -> None:
    connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def claim(generation: int = 0, holder: str = "me") -> FenceToken:
    """Who takes over."""
    return FenceToken(generation, 0, holder, "a test of two stores")


def contents(store: CatalogStore) -> set[Row]:
    """All rows."""
    upper = store.upper()
    return set(store.rows(upper - 1)) if upper else set()


def stored_contents(store: CatalogStore, upper: int) -> frozenset[Row]:
    """What a migration moves, of a store at `upper - 1`."""
    return frozenset(filter(is_content, store.rows(upper - 1) if upper else ()))
