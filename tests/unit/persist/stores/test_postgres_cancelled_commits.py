"""A commit whose wait for the synchronous standby is broken off is in doubt until the standby has it.

Postgres has then committed, and reports success with a warning. No standby ever comes here: the server waits
for one that is named until the setting is taken back, which is when a standby would have confirmed.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from holdfast.errors import Determinate, Indeterminate, StorageError
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.stores import Entry, Put
from holdfast.persist.stores.postgres import PostgresConsensus
from holdfast.pg_session import PostgresAddress, Sessions, open_hint
from holdfast.stash import Stash, StashUpdate, open_stash
from testbed.postgres import PostgresServer
from unit.persist.open_stores import SCHEMA, SHARD, contents, rows

pytestmark = pytest.mark.postgres

WAYS = ["pg_cancel_backend", "pg_terminate_backend"]


class Standby:
    """A synchronous standby that the server waits for, and that confirms nothing until it `confirms`."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._connection = psycopg.connect(server.url(), autocommit=True)

    def goes(self) -> None:
        self._set("nobody")

    def confirms(self) -> None:
        self._set("")

    def _set(self, names: str) -> None:
        self._connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self._connection.execute("SELECT pg_reload_conf()")
        with psycopg.connect(self.server.url(), autocommit=True) as fresh:
            while fresh.execute("SHOW synchronous_standby_names").fetchone() != (names,):
                pass
            # Commits wait once the checkpointer has read the setting. It reads it before a checkpoint.
            fresh.execute("CHECKPOINT")

    def breaks_off(self, how: str) -> None:
        """Break off the wait of a session, once there is one."""
        waiting = f"SELECT {how}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        while self._connection.execute(waiting).fetchone() is None:
            pass

    def close(self) -> None:
        self.confirms()
        self._connection.close()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.start() as server:
        yield server


@pytest.fixture
def standby(server: PostgresServer) -> Iterator[Standby]:
    standby = Standby(server)
    yield standby
    standby.close()


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with server.database() as name:
        yield server.url(name)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


Call = Callable[[], object]


def until_waiting(standby: Standby, call: "Future[Any] | None" = None) -> None:
    """Until a session waits for the standby, or the call is over."""
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with psycopg.connect(standby.server.url(), autocommit=True) as connection:
        while connection.execute(waiting).fetchone() is None and not (call and call.done()):
            pass


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("keys", [["a"], ["a", "b"]], ids=["one key", "two keys"])
def test_an_append_whose_commit_is_cancelled_is_in_doubt_until_the_standby_has_it(
    url: str, standby: Standby, pool: ThreadPoolExecutor, how: str, keys: list[str]
) -> None:
    store = PostgresConsensus(url)
    assert store.compare_and_set([Put(key, 1, b"1") for key in keys])
    standby.goes()
    told: Future[bool] = pool.submit(store.compare_and_set, [Put(key, 2, b"2") for key in keys])
    standby.breaks_off(how)
    with pytest.raises(Indeterminate):
        told.result(60)

    # Nobody resolves it from a server that may be lost with it.
    looked: Future[list[Entry]] = pool.submit(store.scan, "a", 2, 1)
    standby.breaks_off("pg_cancel_backend")
    with pytest.raises(Determinate, match="standby"):
        looked.result(60)
    looked = pool.submit(store.scan, "a", 2, 1)
    until_waiting(standby)
    assert not looked.done()
    standby.confirms()
    assert looked.result(60) == [Entry(2, b"2")]
    assert store.compare_and_set([Put(key, 3, b"3") for key in keys])
    store.close()


@pytest.mark.parametrize("how", WAYS)
def test_a_writer_resolves_a_cancelled_commit_to_one_truth(
    url: str, standby: Standby, pool: ThreadPoolExecutor, how: str, tmp_path: Any
) -> None:
    config = PersistConfig(maintenance="off", retry_deadline_s=60.0)
    client = PersistClient.open(blob=tmp_path.as_uri(), consensus=url, config=config)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 1)
    standby.goes()
    done = pool.submit(writer.compare_and_append, rows(2), 1, 2)
    standby.breaks_off(how)
    until_waiting(standby)
    assert not done.done(), "it was acknowledged and the standby lacks it"
    standby.confirms()
    done.result(60)
    writer.compare_and_append(rows(3), 2, 3)
    found = contents(client.reader(SHARD, purpose="test").snapshot(2).to_table())
    assert found == {(1, "x"): 1, (2, "x"): 1, (3, "x"): 1}
    client.close()


@pytest.mark.parametrize("how", WAYS)
def test_a_stash_whose_commit_is_cancelled_is_in_doubt_until_the_standby_has_it(
    url: str, standby: Standby, pool: ThreadPoolExecutor, how: str
) -> None:
    stash = open_stash(url, create=True)
    upper = stash.frontiers().upper
    standby.goes()
    told = pool.submit(stash.append, [], upper)
    standby.breaks_off(how)
    with pytest.raises(Indeterminate):
        told.result(60)
    looked = pool.submit(stash.frontiers)
    standby.breaks_off("pg_cancel_backend")
    with pytest.raises(StorageError, match="standby"):
        looked.result(60)
    standby.confirms()
    assert stash.frontiers().upper == upper + 1
    stash.append([], upper + 1)
    stash.close()


STEPS: dict[str, Callable[[Stash], object]] = {
    "hold": lambda stash: stash.hold("kept", 1),
    "release": lambda stash: stash.release("there"),
    "allow_compaction": lambda stash: stash.allow_compaction(1),
    "consolidate": lambda stash: stash.consolidate(),
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_every_commit_of_a_stash_is_in_doubt_until_the_standby_has_it(
    url: str, standby: Standby, pool: ThreadPoolExecutor, how: str, step: Callable[[Stash], object]
) -> None:
    with open_stash(url, create=True) as stash:
        for time, diff in enumerate((1, -1, 1)):
            stash.append([StashUpdate(1, b"k", b"v", diff)], time)
        if step is STEPS["consolidate"]:
            stash.allow_compaction(1)
        stash.hold("there", 2)
        standby.goes()
        told = pool.submit(step, stash)
        standby.breaks_off(how)
        with pytest.raises(Indeterminate):
            told.result(60)
        looked = pool.submit(stash.holds)
        until_waiting(standby, looked)
        assert not looked.done(), "others are told of what the standby lacks"
        standby.confirms()
        looked.result(60)
        # By the same thread, which the warning came to.
        pool.submit(stash.append, [], 3).result(60)


@pytest.mark.parametrize("opens", [PostgresConsensus, lambda url: open_stash(url, create=True)])
def test_the_first_call_waits_while_the_schema_may_lack_the_standby(
    url: str, standby: Standby, pool: ThreadPoolExecutor, opens: Callable[[str], PostgresConsensus | Stash]
) -> None:
    standby.goes()
    opened = pool.submit(opens, url)
    standby.breaks_off("pg_cancel_backend")
    store = opened.result(60)
    look = store.holds if isinstance(store, Stash) else store.list_keys
    looked = pool.submit(look)
    until_waiting(standby, looked)
    assert not looked.done()
    standby.confirms()
    assert not looked.result(60)
    store.close()


def test_a_warning_of_before_is_no_word_about_the_next_commit(
    url: str, standby: Standby, pool: ThreadPoolExecutor
) -> None:
    sessions = Sessions(PostgresAddress.parse(url), size=1)

    def write() -> None:
        with sessions.connection() as connection:
            connection.execute("CREATE TABLE made ()")

    def commit() -> None:
        with sessions.connection():
            sessions.standby_waits.check("a store")

    standby.goes()
    told = pool.submit(write)
    standby.breaks_off("pg_cancel_backend")
    told.result(60)
    standby.confirms()
    pool.submit(commit).result(60)
    sessions.close()


def test_a_cancelled_statement_before_the_commit_changes_nothing(
    url: str, standby: Standby, pool: ThreadPoolExecutor
) -> None:
    """A `statement_timeout` while the statement waits for a lock, and no standby in play."""
    with psycopg.connect(url, autocommit=True) as admin:
        (name,) = admin.execute("SELECT current_database()").fetchone() or ("",)
        admin.execute(f"ALTER DATABASE \"{name}\" SET statement_timeout = '100ms'")
    store = PostgresConsensus(url)
    assert store.compare_and_set([Put("a", 1, b"1")])
    held = threading.Event()
    with psycopg.connect(url) as other:
        other.execute("SET statement_timeout = 0")
        other.execute("SELECT FROM holdfast.keys FOR UPDATE")
        held.set()
        with pytest.raises(Determinate, match="statement timeout"):
            store.compare_and_set([Put("a", 2, b"2")])
        other.rollback()
    assert store.compare_and_set([Put("a", 2, b"other")])
    store.close()


def test_a_statement_timeout_is_named_when_a_store_is_opened() -> None:
    cancelled = psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
    assert "statement_timeout" in open_hint(cancelled)
