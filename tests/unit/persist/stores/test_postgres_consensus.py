"""What only consensus in Postgres meets: sleepers, locks, lost connections, secrets, opening."""

import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from holdfast.errors import (
    BadInput,
    Determinate,
    HoldfastError,
    Indeterminate,
    NotWritable,
    StoreUnreachable,
    VersionTooNew,
)
from holdfast.persist import Clock, PersistClient, PersistConfig
from holdfast.persist.stores import Entry, Expect, Head, Location, MemoryBlob, Put
from holdfast.persist.stores.postgres import PostgresConsensus
from holdfast.pg_session import PostgresAddress
from testbed.postgres import PostgresServer

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[tuple[object, ...]]
HOUR_MS = 3_600_000


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresConsensus]:
    store = PostgresConsensus(postgres_url)
    yield store
    store.close()


@pytest.fixture
def other(postgres_url: str) -> Iterator[Connection]:
    """A session that a test drives statement by statement; each test ends its transactions."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SET search_path = holdfast")
        # It never breaks a deadlock off itself: the store is always the victim.
        connection.execute("SET deadlock_timeout = '10min'")
        yield connection


@pytest.fixture
def watcher(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SET search_path = holdfast")
        yield connection


@contextmanager
def _meanwhile(call: Callable[[], object]) -> Iterator[Future[object]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)


def _wait_until_blocked(watcher: Connection, by: Connection) -> int:
    """The server's process id of a session that waits for `by`."""
    statement = "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    while True:
        row = watcher.execute(statement, (by.info.backend_pid,)).fetchone()
        if row is not None:
            assert isinstance(row[0], int)
            return row[0]


def _fill(store: PostgresConsensus, key: str, count: int) -> None:
    for seqno in range(1, count + 1):
        assert store.compare_and_set([Put(key, seqno, b"%d" % seqno)])


def _append_and_truncate(other: Connection, first: int, last: int) -> None:
    for seqno in range(first, last + 1):
        other.execute("INSERT INTO entries VALUES ('a', %s, 'other')", (seqno,))
    other.execute("DELETE FROM entries WHERE key = 'a' AND seqno < %s", (last,))


@pytest.mark.parametrize("keys", [["a"], ["a", "b"]], ids=["one key", "two keys"])
def test_a_sleeper_whose_predecessor_was_truncated_loses(
    store: PostgresConsensus, other: Connection, watcher: Connection, keys: list[str]
) -> None:
    """Its statement began, and took its snapshot, when its predecessor was the head."""
    for key in keys:
        _fill(store, key, 3)
    other.execute("BEGIN")
    other.execute("SELECT FROM keys WHERE key = 'a' FOR UPDATE")
    with _meanwhile(lambda: store.compare_and_set([Put(key, 4, b"stale") for key in keys])) as told:
        _wait_until_blocked(watcher, other)
        _append_and_truncate(other, 4, 8)
        other.execute("COMMIT")

        assert told.result(60) is False
    assert store.scan("a", 0, 100) == [Entry(8, b"other")]
    assert store.heads(["b"]) == ({} if keys == ["a"] else {"b": Head(3, b"3")})


def test_the_sleeper_would_win_if_it_did_not_lock_its_predecessor(
    store: PostgresConsensus, other: Connection, watcher: Connection
) -> None:
    """The negative control: the predecessor is looked up, as of the statement's beginning, and not locked."""
    _fill(store, "a", 3)
    store._sql.append_one = store._sql.append_one.replace(b" FOR KEY SHARE OF prev", b"")
    other.execute("BEGIN")
    other.execute("SELECT FROM keys WHERE key = 'a' FOR UPDATE")
    with _meanwhile(lambda: store.compare_and_set([Put("a", 4, b"stale")])) as told:
        _wait_until_blocked(watcher, other)
        _append_and_truncate(other, 4, 8)
        other.execute("COMMIT")

        assert told.result(60) is True
    assert [entry.seqno for entry in store.scan("a", 0, 100)] == [4, 8]


def test_a_sleeper_with_the_first_entry_loses(
    store: PostgresConsensus, other: Connection, watcher: Connection
) -> None:
    other.execute("BEGIN")
    other.execute("INSERT INTO keys VALUES ('a')")
    with _meanwhile(lambda: store.compare_and_set([Put("a", 1, b"stale")])) as told:
        _wait_until_blocked(watcher, other)
        _append_and_truncate(other, 1, 5)
        other.execute("COMMIT")

        assert told.result(60) is False
    assert store.scan("a", 0, 100) == [Entry(5, b"other")]


def test_a_first_entry_that_was_rolled_back_leaves_its_place_to_the_next(
    store: PostgresConsensus, other: Connection, watcher: Connection
) -> None:
    other.execute("BEGIN")
    other.execute("INSERT INTO keys VALUES ('a')")
    other.execute("INSERT INTO entries VALUES ('a', 1, 'other')")
    with _meanwhile(lambda: store.compare_and_set([Put("a", 1, b"mine")])) as told:
        _wait_until_blocked(watcher, other)
        other.execute("ROLLBACK")

        assert told.result(60) is True
    assert store.scan("a", 0, 100) == [Entry(1, b"mine")]


def test_a_truncation_waits_for_an_append_and_spares_its_predecessor_or_its_entry(
    store: PostgresConsensus, other: Connection, watcher: Connection
) -> None:
    _fill(store, "a", 3)
    other.execute("BEGIN")
    other.execute("SELECT FROM keys WHERE key = 'a' FOR NO KEY UPDATE")
    other.execute("INSERT INTO entries VALUES ('a', 4, 'other')")
    with _meanwhile(lambda: store.truncate("a", 100)) as told:
        _wait_until_blocked(watcher, other)
        other.execute("COMMIT")

        assert told.result(60) == 2
    assert [entry.seqno for entry in store.scan("a", 0, 100)] == [3, 4]


def test_a_condition_holds_until_the_commit(
    store: PostgresConsensus, other: Connection, watcher: Connection
) -> None:
    """While a step that depends on the head of "lock" is open, nobody can move that head."""
    _fill(store, "lock", 1)
    other.execute("BEGIN")
    other.execute("SELECT FROM keys WHERE key = 'lock' FOR SHARE")
    with _meanwhile(lambda: store.compare_and_set([Put("lock", 2, b"x")])) as told:
        assert store.compare_and_set([Put("a", 1, b"x")], [Expect("lock", 1)]), "conditions share the lock"
        _wait_until_blocked(watcher, other)
        other.execute("COMMIT")

        assert told.result(60) is True


@pytest.mark.parametrize("head", [0, 1])
def test_a_condition_that_ends_while_it_is_waited_for_fails(
    store: PostgresConsensus, other: Connection, watcher: Connection, head: int
) -> None:
    _fill(store, "lock", head)
    other.execute("BEGIN")
    other.execute("INSERT INTO keys VALUES ('lock') ON CONFLICT DO NOTHING")
    other.execute("SELECT FROM keys WHERE key = 'lock' FOR NO KEY UPDATE")
    other.execute("INSERT INTO entries VALUES ('lock', %s, 'other')", (head + 1,))
    with _meanwhile(lambda: store.compare_and_set([Put("a", 1, b"x")], [Expect("lock", head)])) as told:
        _wait_until_blocked(watcher, other)
        other.execute("COMMIT")

        assert told.result(60) is False
    assert store.heads(["a"]) == {}


def test_a_deadlock_is_tried_again(store: PostgresConsensus, other: Connection, watcher: Connection) -> None:
    _fill(store, "a", 1)
    _fill(store, "b", 1)
    other.execute("BEGIN")
    other.execute("SELECT FROM keys WHERE key = 'b' FOR UPDATE")
    with _meanwhile(lambda: store.compare_and_set([Put("a", 2, b"x"), Put("b", 2, b"x")])) as told:
        _wait_until_blocked(watcher, other)
        other.execute("SELECT FROM keys WHERE key = 'a' FOR UPDATE")
        other.execute("COMMIT")

        assert told.result(60) is True
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    watcher.execute("SELECT pg_stat_force_next_flush()")
    while watcher.execute(deadlocks).fetchone() == (0,):
        watcher.execute("SELECT pg_stat_clear_snapshot()")
    assert store.heads(["a"])["a"].seqno == store.heads(["b"])["b"].seqno == 2


@pytest.mark.parametrize(
    ("puts", "kind"),
    [([Put("a", 4, b"x")], Indeterminate), ([Put("a", 4, b"x"), Put("b", 1, b"x")], Determinate)],
    ids=["in a statement that commits", "before COMMIT"],
)
def test_a_connection_lost_in_an_append(
    store: PostgresConsensus,
    other: Connection,
    watcher: Connection,
    puts: list[Put],
    kind: type[HoldfastError],
) -> None:
    _fill(store, "a", 3)
    other.execute("BEGIN")
    other.execute("SELECT FROM keys WHERE key = 'a' FOR UPDATE")
    with _meanwhile(lambda: store.compare_and_set(puts)) as told:
        watcher.execute("SELECT pg_terminate_backend(%s)", (_wait_until_blocked(watcher, other),))
        with pytest.raises(kind, match="connection"):
            told.result(60)
    other.execute("COMMIT")
    assert store.heads(["a", "b"]) == {"a": Head(3, b"3")}
    assert store.compare_and_set(puts), "the store has a new connection"


def test_a_connection_lost_in_the_commit_is_indeterminate(
    store: PostgresConsensus, other: Connection, watcher: Connection
) -> None:
    """A deferred trigger holds COMMIT up, until the session is ended in the middle of it."""
    watcher.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$"
    )
    watcher.execute(
        "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON entries DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION hold()"
    )
    other.execute("SELECT pg_advisory_lock(7)")
    with _meanwhile(lambda: store.compare_and_set([Put("a", 1, b"x"), Put("b", 1, b"x")])) as told:
        watcher.execute("SELECT pg_terminate_backend(%s)", (_wait_until_blocked(watcher, other),))
        with pytest.raises(Indeterminate):
            told.result(60)
    other.execute("SELECT pg_advisory_unlock(7)")
    assert store.heads(["a", "b"]) == {}


def test_a_statement_that_the_server_refuses_is_determinate(
    store: PostgresConsensus, watcher: Connection
) -> None:
    _fill(store, "a", 1)
    watcher.execute("ALTER TABLE entries ADD CONSTRAINT small CHECK (length(data) < 10)")

    with pytest.raises(Determinate, match="small"):
        store.compare_and_set([Put("a", 2, b"x" * 10)])
    with pytest.raises(Determinate, match="small"):
        store.compare_and_set([Put("a", 2, b"x" * 10), Put("b", 1, b"x")])

    assert store.compare_and_set([Put("a", 2, b"x"), Put("b", 1, b"x")])


@pytest.mark.long
def test_a_restarted_server_is_found_again_and_an_absent_one_is_told(postgres_url: str) -> None:
    with PostgresServer.start() as server:
        store = PostgresConsensus(server.url())
        _fill(store, "a", 1)
        server.stop()
        server.resume()

        assert store.compare_and_set([Put("a", 2, b"x")]), "the dead connection was not used"
        server.kill()
        with pytest.raises(Determinate) as write:
            store.compare_and_set([Put("a", 3, b"x")])
        with pytest.raises(Determinate, match="no connection"):
            store.heads(["a"])
        server.resume()

        assert store.heads(["a"]) == {"a": Head(2, b"x")}
        assert store.compare_and_set([Put("a", 3, b"x")])
        assert server.password not in str(write.value)
        store.close()


def test_an_unreachable_server_is_told_at_once_and_without_secrets(postgres: PostgresServer) -> None:
    with postgres.database() as name:
        right = postgres.url(name)
    port = f":{postgres.port}/"
    for url, says in [
        (right.replace(port, ":1/"), "refused"),
        (right, "does not exist"),
        (right.replace(postgres.password, "hunter2hunter2"), "password authentication failed"),
        (right.replace("postgres:", "nobody:"), "password authentication failed"),
    ]:
        with pytest.raises(StoreUnreachable) as caught:
            PostgresConsensus(url)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
        told = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caught.value.hint
        assert postgres.password not in told
        assert "hunter2" not in told


def test_nothing_that_is_shown_has_the_password(
    postgres: PostgresServer, postgres_url: str, store: PostgresConsensus
) -> None:
    address = PostgresAddress.parse(postgres_url)
    assert postgres.password in postgres_url
    for shown in (store.description, repr(store), str(store), repr(address), repr(store._sessions)):
        assert postgres.password not in shown
    assert f"127.0.0.1:{postgres.port}/" in store.description
    assert "postgres@" not in store.description


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:12/secret@host/db",
        "postgresql://u:secret/x@host/db",
        "postgresql://u:x@secret@host/db",
        "postgresql://u:x@host:secret/db",
        "postgresql://u:x@host/db?secret=1",
        "postgresql://u:x@host/db?schema=secret%22",
        "postgresql://u:x@host/db?schema=",
    ],
)
def test_a_url_without_meaning_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        PostgresConsensus(url)
    assert "secret" not in "".join(traceback.format_exception(caught.value)[-1:]) + caught.value.hint


def test_the_password_may_come_from_the_environment(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    with postgres.database() as name:
        store = PostgresConsensus(postgres.url(name, password=False))
        _fill(store, "a", 2)
        assert store.heads(["a"])["a"].seqno == 2
        store.close()


def test_the_schema_is_made_once_by_whoever_comes_first(postgres_url: str) -> None:
    start = threading.Barrier(6)

    def open_one(number: int) -> bool:
        start.wait()
        store = PostgresConsensus(postgres_url)
        done = store.compare_and_set([Put(f"k{number}", 1, b"x")])
        store.close()
        return done

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(open_one, range(6)))
    store = PostgresConsensus(postgres_url, create=False)
    assert store.list_keys() == [f"k{number}" for number in range(6)]
    store.close()


def test_schemas_of_one_database_are_apart(postgres_url: str, store: PostgresConsensus) -> None:
    second = PostgresConsensus(f"{postgres_url}?schema=other_one&application_name=second")
    _fill(second, "a", 2)

    assert store.list_keys() == []
    assert second.list_keys() == ["a"]
    second.close()


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}], ids=repr)
def test_missing_tables_are_told_and_not_made(
    postgres_url: str, watcher: Connection, options: dict[str, bool]
) -> None:
    with pytest.raises(StoreUnreachable, match="no consensus tables"):
        PostgresConsensus(postgres_url, **options)

    assert watcher.execute("SELECT FROM pg_namespace WHERE nspname = 'holdfast'").fetchall() == []


def test_a_store_for_reading_writes_nothing(postgres_url: str, store: PostgresConsensus) -> None:
    _fill(store, "a", 2)
    reading = PostgresConsensus(postgres_url, read_only=True)

    with pytest.raises(NotWritable):
        reading.compare_and_set([Put("a", 3, b"x")])
    with pytest.raises(NotWritable):
        reading.truncate("a", 2)
    assert reading.heads(["a"]) == {"a": Head(2, b"2")}
    reading.close()


def test_a_later_format_is_refused(postgres_url: str, store: PostgresConsensus, watcher: Connection) -> None:
    watcher.execute("UPDATE format SET version = 2")

    with pytest.raises(VersionTooNew, match="format 2"):
        PostgresConsensus(postgres_url)


def test_a_database_with_weak_defaults_is_used_with_strong_ones(
    postgres_url: str, watcher: Connection
) -> None:
    database = watcher.info.dbname
    for setting in ("synchronous_commit = off", "default_transaction_isolation = 'serializable'"):
        watcher.execute(f'ALTER DATABASE "{database}" SET {setting}')
    store = PostgresConsensus(postgres_url)

    with store._sessions.connection() as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
    store.close()


def test_the_pool_is_bounded(postgres_url: str, watcher: Connection) -> None:
    store = PostgresConsensus(f"{postgres_url}?application_name=bounded", pool_size=2)
    most = []

    def work(number: int) -> None:
        _fill(store, f"k{number}", 10)
        most.append(
            watcher.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded'"
            ).fetchone()
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))

    told_by = 1
    assert max(most)[0] <= 2 + told_by, "two sessions of the pool, and one that tells of commits"
    assert len(store.list_keys()) == 16
    store.close()


def test_a_closed_store_refuses(store: PostgresConsensus) -> None:
    store.close()

    with pytest.raises(Determinate, match="is closed"):
        store.heads(["a"])
    with pytest.raises(Determinate, match="is closed"):
        store.compare_and_set([Put("a", 1, b"x")])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(store: PostgresConsensus) -> None:
    _fill(store, "a", 1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            done = store.compare_and_set([Put("a", 2, b"child")])
            status = 0 if done and store.heads(["a"])["a"].seqno == 2 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert store.compare_and_set([Put("a", 3, b"parent")])
    assert [entry.data for entry in store.scan("a", 0, 9)] == [b"1", b"child", b"parent"]


def test_what_is_not_installed_is_told() -> None:
    program = """if True:
        import sys
        sys.modules["psycopg"] = None
        from holdfast.errors import BadInput
        from holdfast.persist.stores import Location
        try:
            Location.open(blob="memory://x", consensus="postgresql://u:secret@host/db")
        except BadInput as error:
            print(error, error.hint)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "psycopg" in done.stdout
    assert "pip install 'holdfast[postgres]'" in done.stdout
    assert "secret" not in done.stdout


class FastClock(Clock):
    """A clock that is an hour ahead."""

    def wall_ms(self) -> int:
        return super().wall_ms() + HOUR_MS


def test_a_fast_clock_is_bounded_by_that_of_the_server(
    postgres_url: str, store: PostgresConsensus, caplog: pytest.LogCaptureFixture
) -> None:
    # Files on the fast host have its clock.
    clock = FastClock()
    location = Location.of(MemoryBlob(clock=clock.wall_ms), store)
    with PersistClient(location, config=PersistConfig(maintenance="off"), clock=clock) as client:
        assert abs(client.now_ms() - Clock().wall_ms()) < 60_000
        (warning,) = [each.getMessage() for each in caplog.records if "clock" in each.getMessage()]
        assert f"ahead of the clock of {store.description}" in warning
    # It was closed: nothing is sent for it.
    told = store.clock_ms()
    assert told is not None
    assert abs(told - Clock().wall_ms()) < 60_000


def test_the_clock_of_the_server_comes_with_heads(store: PostgresConsensus, other: Connection) -> None:
    assert store.clock_ms() is None
    assert store.heads(["missing"]) == {}
    assert store.clock_ms() is None
    _fill(store, "key", 1)
    store.heads(["key"])
    told = store.clock_ms()
    ((now_ms,),) = other.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchall()
    assert told is not None
    assert abs(int(str(now_ms)) - told) < 10_000


def test_a_reply_that_took_long_does_not_set_the_clock(
    store: PostgresConsensus, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(store, "key", 1)
    read = store._read

    def stopped(*call: Any) -> Any:
        found = read(*call)
        monkeypatch.setattr(time, "monotonic", lambda: real() + 600)
        return found

    real = time.monotonic
    monkeypatch.setattr(store, "_read", stopped)
    store.heads(["key"])
    assert store.clock_ms() is None


STEPS: dict[str, Callable[[PostgresConsensus], object]] = {
    "the next entry": lambda store: store.compare_and_set([Put("key", 3, b"new")]),
    "a first entry": lambda store: store.compare_and_set([Put("new", 1, b"new")]),
    "entries of two keys": lambda store: store.compare_and_set(
        [Put("key", 3, b"new"), Put("other", 2, b"new")]
    ),
    "a restart": lambda store: store.restart("key", 5, b"new"),
}


@pytest.mark.parametrize(
    ("step", "table"),
    [*((step, "entries") for step in STEPS), ("a first entry", "keys"), ("a restart", "keys")],
)
def test_nothing_is_inserted_while_a_restore_has_not_made_the_primary_key(
    store: PostgresConsensus, other: Connection, step: str, table: str
) -> None:
    """`pg_dump` writes the rows of a table before its key; clients may run meanwhile."""
    _fill(store, "key", 2)
    _fill(store, "other", 1)
    columns = {"entries": "key, seqno", "keys": "key"}[table]
    before = other.execute("SELECT * FROM entries ORDER BY 1, 2").fetchall()
    other.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey".encode())
    with pytest.raises(Determinate, match="lacks its primary key") as caught:
        STEPS[step](store)
    assert "restore" in caught.value.hint
    assert other.execute("SELECT * FROM entries ORDER BY 1, 2").fetchall() == before
    other.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({columns})".encode())
    assert STEPS[step](store)


@pytest.mark.parametrize(
    ("hosts", "shown"),
    [
        ("h", "h"),
        ("h:5", "h:5"),
        ("h:5,i:6", "h:5,i:6"),
        ("h,i:6", "h,i:6"),
        ("h,i", "h,i"),
    ],
)
def test_messages_show_hosts_as_the_url_has_them(hosts: str, shown: str) -> None:
    address = PostgresAddress.parse(f"postgresql://me@{hosts}/db?target_session_attrs=read-write")
    assert address.description == f"postgresql://{shown}/db (schema holdfast)"


def test_a_turn_begins_when_the_one_before_ends(store: PostgresConsensus, postgres_url: str) -> None:
    order: list[str] = []
    waits = threading.Event()

    def take() -> None:
        with closing(PostgresConsensus(postgres_url)) as second:
            waits.set()
            with second.turn(["k"]):
                order.append("second")

    thread = threading.Thread(target=take)
    with store.turn(["k"]):
        thread.start()
        assert waits.wait(60)
        # The turn holds no lock that an append needs.
        assert store.compare_and_set([Put("k", 1, b"first")])
        time.sleep(0.3)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_who_keeps_a_turn_delays_the_others_and_no_more(store: PostgresConsensus, postgres_url: str) -> None:
    begin_s = time.monotonic()
    with store.turn(["k"]), closing(PostgresConsensus(postgres_url)) as second:
        for number in (1, 2):
            with second.turn(["k"]):
                assert second.compare_and_set([Put("k", number, b"second")])
        with closing(PostgresConsensus(postgres_url)) as third, third.turn(["k"]):
            # The server ends the turn of a client that does nothing in it for 10 seconds.
            assert time.monotonic() - begin_s < 8
