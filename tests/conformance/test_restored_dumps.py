"""A `pg_dump` that was taken under load is restored: elsewhere, and in place under live clients.

Clients that know newer rows stop. Later clients see the dumped state. No client mixes the two.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conformance.catalogs import Catalogs, PersistCatalogs, StashCatalogs, role, roles, writable
from holdfast.catalog import Catalog, OpenMode
from holdfast.catalog.objects.registry import ROLES
from holdfast.errors import (
    CatalogOutOfSync,
    Fenced,
    FenceRegressed,
    HoldfastError,
    LogRegressed,
    OtherHistory,
    StorageError,
)
from holdfast.persist import PersistClient, PersistConfig, Updates
from testbed.errors import PostgresError
from testbed.postgres import PostgresServer
from unit.persist.open_stores import SCHEMA, SHARD, contents, rows

pytestmark = pytest.mark.postgres

BEFORE = AFTER = 6
"""Number of commits before a dump begins, and after it has ended."""

IMPATIENCE_S = 0.2
"""The retry deadline of who meets a store that is half restored."""


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    with postgres.database() as name:
        yield name


@contextmanager
def repeated(action: Callable[[], object]) -> Iterator[None]:
    """Do it all the time, in a thread, once at least."""
    ended = threading.Event()

    def repeat() -> None:
        action()
        while not ended.is_set():
            action()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(repeat)
        try:
            yield
        finally:
            ended.set()
        done.result()


def dumped(
    postgres: PostgresServer, database: str, commit: Callable[[], object], *, clean: bool
) -> list[str]:
    """A dump; `commit` is called before it, all the time that it takes, and after it."""
    for _ in range(BEFORE):
        commit()
    with repeated(commit):
        found = postgres.dump(database, clean=clean)
    for _ in range(AFTER):
        commit()
    return found


WAYS = ("in one transaction", "piece by piece", "into a database that was dropped")


def restore(
    way: str, postgres: PostgresServer, database: str, pieces: list[str], meanwhile: Callable[[], object]
) -> None:
    """Restore in place; `meanwhile` is called after each piece, or all the time where calls have to wait."""
    if way == "in one transaction":
        with repeated(meanwhile):
            while True:
                try:
                    postgres.restore(pieces, database, at_once=True)
                except PostgresError as error:
                    # Clients hold the tables that it drops. Nothing happened.
                    assert "deadlock detected" in str(error)  # noqa: PT017
                    continue
                return
    if way == "into a database that was dropped":
        postgres.empty(database)
    postgres.restore(pieces, database, between=meanwhile)


def has_tables(postgres: PostgresServer, database: str) -> bool:
    """Whether a restore has begun; before that, who comes finds an empty database, and makes what is new."""
    query = "SELECT count(*) > 0 FROM pg_tables WHERE schemaname LIKE 'holdfast%'"
    with psycopg.connect(postgres.url(database)) as connection:
        return connection.execute(query).fetchone() == (True,)


@contextmanager
def opened(folder: Path, url: str, **settings: Any) -> Iterator[PersistClient]:
    config = PersistConfig(
        **{"maintenance": "off", "inline_max_bytes": 0, "retry_deadline_s": IMPATIENCE_S, **settings}
    )
    client = PersistClient.open(blob=(folder / "blob").as_uri(), consensus=url, config=config)
    yield client
    client.close()


class Writer:
    """A client that appends one row at a time, of its own value."""

    def __init__(self, client: PersistClient, value: str) -> None:
        self.client, self.value = client, value
        self._writer = client.writer(SHARD, SCHEMA, purpose=value)
        self.acknowledged: list[int] = []

    def append(self) -> None:
        at = self._writer.cached_upper
        self._writer.compare_and_append(rows(at, value=self.value), at, at + 1)
        self.acknowledged.append(at)


def snapshot(client: PersistClient) -> dict[int, str]:
    """Who wrote at each time."""
    with client.reader(SHARD, purpose="look") as reader:
        found = contents(reader.snapshot(client.recent_upper(SHARD) - 1).to_table())
    assert set(found.values()) == {1}
    assert len(dict(found)) == len(found)
    return dict(key for key in found)


def version(client: PersistClient) -> int:
    """The number of the newest row of the shard's log."""
    return client.location.consensus.heads([SHARD])[SHARD].seqno


def is_regressed(action: Callable[[], object]) -> bool:
    """Whether it says so; whatever else it raises must be an error of the store."""
    try:
        action()
    except LogRegressed:
        return True
    except StorageError:
        return False
    return False


def test_a_dump_of_consensus_is_a_moment_of_it_elsewhere(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    with opened(tmp_path, postgres.url(database), retry_deadline_s=30.0) as old:
        a = Writer(old, "a")
        pieces = dumped(postgres, database, a.append, clean=False)
        with postgres.database() as other:
            postgres.restore(pieces, other)
            with opened(tmp_path, postgres.url(other), retry_deadline_s=30.0) as new:
                upper = new.recent_upper(SHARD)
                assert BEFORE <= upper <= len(a.acknowledged) - AFTER
                assert snapshot(new) == dict.fromkeys(range(upper), "a")
                old.close()
                b = Writer(new, "b")
                for _ in range(3):
                    b.append()
                assert snapshot(new) == dict.fromkeys(range(upper), "a") | dict.fromkeys(b.acknowledged, "b")


@pytest.mark.parametrize("idle", [False, True], ids=["busy", "idle until their rows are passed"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.long
def test_clients_that_know_newer_rows_of_consensus_stop(
    postgres: PostgresServer, database: str, tmp_path: Path, way: str, idle: bool
) -> None:
    url = postgres.url(database)
    with (
        opened(tmp_path, url) as writing,
        opened(tmp_path, url) as looking,
        opened(tmp_path, url) as following,
    ):
        a = Writer(writing, "a")
        pieces = dumped(postgres, database, a.append, clean=not way.startswith("into"))
        newest = len(a.acknowledged)
        assert looking.recent_upper(SHARD) == newest
        listen = following.reader(SHARD, purpose="listener").listen(0)
        while listen.frontier < newest:
            listen.next(30)

        heard: set[str] = set()

        def tail() -> None:
            for event in listen.next(0.1):
                if isinstance(event, Updates):
                    heard.update(row["v"] for row in event.table.to_pylist())

        live = [a.append, lambda: looking.recent_upper(SHARD), tail]

        def newcomer() -> None:
            if has_tables(postgres, database):
                with opened(tmp_path, url) as client:
                    Writer(client, "newcomer").append()

        def meanwhile() -> None:
            for action in () if idle else live:
                is_regressed(action)
            if way != "in one transaction":
                with suppress(StorageError):
                    newcomer()

        latest = version(writing)
        restore(way, postgres, database, pieces, meanwhile)
        lost = a.acknowledged[:]
        for action in () if idle else live * 2:
            with pytest.raises(LogRegressed):
                action()
        with opened(tmp_path, url, retry_deadline_s=30.0) as new:
            there = snapshot(new)
            upper = [*there.values()].count("a")
            assert BEFORE <= upper <= newest - AFTER
            assert [there[time] for time in range(upper)] == ["a"] * upper
            assert {there[time] for time in range(upper, len(there))} <= {"newcomer"}
            b = Writer(new, "b")
            while version(new) <= latest or len(b.acknowledged) <= newest - len(there):
                b.append()
            # All that the lost history reached is passed.
            for action in live * 2:
                with pytest.raises(LogRegressed):
                    action()
            assert snapshot(new) == there | dict.fromkeys(b.acknowledged, "b")
        assert a.acknowledged == lost
        assert heard <= {"a"}


class Commits:
    """Roles that a process of the catalog makes; what the catalog held at each upper."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self.catalog, self.name = catalog, name
        self.held = {catalog.upper: roles(catalog)}

    def __call__(self) -> None:
        number = self.catalog.upper
        self.catalog.set_objects(ROLES, [role(number, f"{self.name}{number}")])
        self.held[self.catalog.upper] = roles(self.catalog)


@pytest.fixture(params=["persist", "stash"])
def catalogs(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Catalogs]:
    impatient = partial(PersistConfig, retry_deadline_s=IMPATIENCE_S)
    monkeypatch.setattr("conformance.catalogs.PersistConfig", impatient)
    url = postgres.url(database)
    if request.param == "persist":
        made: Catalogs = PersistCatalogs("persist", blob=(tmp_path / "blob").as_uri(), consensus=url)
    else:
        made = StashCatalogs("stash", url)
    yield made
    made.close()


STOPPED = (FenceRegressed, Fenced, LogRegressed, CatalogOutOfSync)


def test_a_dump_of_a_catalog_is_a_moment_of_it_elsewhere(
    postgres: PostgresServer, database: str, tmp_path: Path, catalogs: Catalogs
) -> None:
    a = Commits(writable(catalogs.openable(), "a"), "a")
    pieces = dumped(postgres, database, a, clean=False)
    with postgres.database() as other:
        postgres.restore(pieces, other)
        url = postgres.url(other)
        there = (
            StashCatalogs("stash", url)
            if catalogs.kind == "stash"
            else PersistCatalogs("persist", blob=catalogs.address["blob"], consensus=url)
        )
        reader = there.openable("read").open(OpenMode.READ_ONLY)
        assert roles(reader) == a.held[reader.upper]
        assert BEFORE <= len(roles(reader)) <= len(a.held) - 1 - AFTER
        catalogs.close()
        b = Commits(writable(there.openable(), "b"), "b")
        before = roles(b.catalog)
        for _ in range(3):
            b()
        assert before == roles(reader)
        reader.sync()
        assert roles(reader) == roles(b.catalog) == roles(writable(there.openable(), "c"))
        there.close()


@pytest.mark.parametrize("comes", ["nobody", "another", "another before it asks"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.long
def test_who_knows_newer_rows_of_a_catalog_stops(
    postgres: PostgresServer, database: str, catalogs: Catalogs, way: str, comes: str
) -> None:
    a = Commits(writable(catalogs.openable(), "a"), "a")
    pieces = dumped(postgres, database, a, clean=not way.startswith("into"))
    reader = catalogs.openable("read").open(OpenMode.READ_ONLY)
    subscription = reader.subscribe()
    lost = reader.upper

    def meanwhile() -> None:
        actions = (a, a.catalog.confirm_leadership, reader.sync, lambda: subscription.next(0.0))
        for action in actions if comes != "another before it asks" else ():
            with suppress(HoldfastError):
                action()

    restore(way, postgres, database, pieces, meanwhile)
    if comes != "nobody":
        b = Commits(writable(catalogs.openable(), "b"), "b")
        while b.catalog.upper <= lost + 2:
            b()
    for action in (a, a.catalog.confirm_leadership, a.catalog.sync) * 2:
        with pytest.raises(STOPPED):
            action()
    with pytest.raises((OtherHistory, LogRegressed)):
        subscription.next(1.0)
    fresh = catalogs.openable("read").open(OpenMode.READ_ONLY)
    found = [name for name in roles(fresh) if name.startswith("a")]
    assert found in a.held.values()
    assert BEFORE <= len(found) <= len(a.held) - 1 - AFTER
    if comes != "nobody":
        assert roles(fresh) == roles(b.catalog)
        b()
    else:
        assert roles(fresh) == found == a.held[fresh.upper]
    assert [name for name in roles(writable(catalogs.openable(), "c")) if name.startswith("a")] == found


def test_who_comes_while_a_catalog_is_restored_commits_to_what_was_dumped(
    postgres: PostgresServer, database: str, catalogs: Catalogs
) -> None:
    a = Commits(writable(catalogs.openable(), "a"), "a")
    pieces = dumped(postgres, database, a, clean=False)
    mine: list[str] = []

    def newcomer() -> None:
        if has_tables(postgres, database):
            with suppress(HoldfastError):
                catalog = writable(catalogs.openable(), "newcomer")
                name = f"new{len(mine)}"
                catalog.set_objects(ROLES, [role(1000 + len(mine), name)])
                mine.append(name)

    restore("into a database that was dropped", postgres, database, pieces, newcomer)
    found = roles(catalogs.openable("read").open(OpenMode.READ_ONLY))
    dumped_roles = [name for name in found if name.startswith("a")]
    assert dumped_roles in a.held.values()
    assert BEFORE <= len(dumped_roles) <= len(a.held) - 1 - AFTER
    assert [name for name in found if name not in dumped_roles] == mine
    assert mine, "nobody came before the end of the restore"
