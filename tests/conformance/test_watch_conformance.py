"""A watch reports appends of the same store object at once, and appends of others soon."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.persist.stores import Consensus, MemoryConsensus, Put, SqliteConsensus
from holdfast.persist.stores.postgres import PostgresConsensus
from holdfast.persist.stores.watch import Watch
from testbed.faults import FaultyConsensus, ScriptedPlan

PATIENCE_S = 30.0
Opener = Callable[[], Consensus]


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "decorated"]
)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same store as one client after another."""
    memory = MemoryConsensus()
    opened: list[Consensus] = []
    # Before the yield, so that the database is dropped after the stores are closed.
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""

    def opens() -> Consensus:
        match request.param:
            case "memory":
                store: Consensus = memory
            case "decorated":
                store = FaultyConsensus(memory, ScriptedPlan({}))
            case "sqlite":
                store = SqliteConsensus(tmp_path / "consensus.sqlite")
            case _:
                store = PostgresConsensus(url)
        opened.append(store)
        return store

    yield opens
    for store in opened:
        store.close()


def _watch(store: Consensus, key: str) -> Watch:
    watch = store.watch(key)
    assert watch is not None
    return watch


def _settled(store: Consensus, other: Consensus, key: str) -> Watch:
    """A watch that hears of what `other` appends, and has no hint left from its beginning."""
    watch = _watch(store, key)
    assert other.compare_and_set([Put(key, 1, b"first")])
    assert watch.wait(PATIENCE_S)
    while watch.wait(0.3):
        pass
    return watch


def test_an_append_of_the_same_store_is_hinted_at_once(opener: Opener) -> None:
    store = opener()
    watch = _watch(store, "a")
    for seqno in range(1, 5):
        assert store.compare_and_set([Put("a", seqno, b"x")])
        assert watch.wait(0), "the hint was there before the append returned"


def test_an_append_of_another_client_is_hinted(opener: Opener) -> None:
    store, other = opener(), opener()
    watch = _settled(store, other, "a")
    for seqno in range(2, 8):
        assert other.compare_and_set([Put("a", seqno, b"x")])
        assert watch.wait(PATIENCE_S)


def test_a_step_on_several_keys_hints_each_and_no_other(opener: Opener) -> None:
    store, other = opener(), opener()
    watches = [_settled(store, other, key) for key in ("a", "b", "c")]
    while watches[2].wait(0.3):
        pass
    assert other.compare_and_set([Put("a", 2, b"x"), Put("b", 2, b"x")])
    assert [watch.wait(PATIENCE_S) for watch in watches[:2]] == [True, True]
    assert not watches[2].wait(0)


def test_each_of_several_watches_of_a_key_gets_the_hint(opener: Opener) -> None:
    store = opener()
    watches = [_watch(store, "a") for _ in range(3)]
    assert store.compare_and_set([Put("a", 1, b"x")])
    assert [watch.wait(0) for watch in watches] == [True] * 3


def test_a_refused_append_is_no_hint(opener: Opener) -> None:
    store = opener()
    watch = _settled(store, store, "a")
    assert not store.compare_and_set([Put("a", 5, b"x")])
    assert not watch.wait(0)


def test_what_comes_while_nobody_waits_is_not_lost(opener: Opener) -> None:
    """The order that a listener relies on: watch, look, wait."""
    store, other = opener(), opener()
    watch = _settled(store, other, "a")
    told = threading.Event()
    thread = threading.Thread(target=lambda: (other.compare_and_set([Put("a", 2, b"x")]), told.set()))
    thread.start()
    assert told.wait(PATIENCE_S)
    thread.join()
    assert watch.wait(PATIENCE_S)


@pytest.mark.parametrize(
    "opener", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_closing_a_store_wakes_who_waits(opener: Opener) -> None:
    before = {*threading.enumerate()}
    store = opener()
    watch = _settled(store, store, "a")
    store.close()
    assert watch.wait(0)
    sessions = [thread for thread in {*threading.enumerate()} - before if thread.name == "holdfast-hints"]
    assert not sessions


@pytest.mark.postgres
def test_a_session_that_the_server_ended_comes_back(postgres_url: str) -> None:
    store, other = PostgresConsensus(postgres_url), PostgresConsensus(postgres_url)
    watch = _settled(store, other, "a")
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        ended = admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        ).fetchall()
    assert ended
    assert watch.wait(PATIENCE_S), "who waits looks: hints may have been lost"
    assert watch.wait(PATIENCE_S), "and looks again when they can come again"
    while watch.wait(0.3):
        pass
    assert other.compare_and_set([Put("a", 2, b"x")])
    assert watch.wait(PATIENCE_S)
    store.close()
    other.close()


@pytest.mark.postgres
def test_appends_in_a_row_share_their_notifications(postgres_url: str) -> None:
    """NOTIFY takes a lock of the whole cluster: many appends must not mean as many of them."""
    store, other = PostgresConsensus(postgres_url), PostgresConsensus(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as ear:
        ear.execute("LISTEN hf_holdfast")
        for seqno in range(1, 101):
            assert other.compare_and_set([Put("a", seqno, b"x")])
        assert other.compare_and_set([Put("end", 1, b"x")])
        heard = 0
        for told in ear.notifies(timeout=PATIENCE_S):
            if told.payload == "end":
                break
            heard += told.payload == "a"
    assert 1 <= heard < 100
    store.close()
    other.close()


def test_without_inotify_a_file_is_asked_at_a_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.persist.stores.sqlite_watch.FolderWrites.of", lambda *_: None)
    store, other = SqliteConsensus(tmp_path / "log"), SqliteConsensus(tmp_path / "log")
    watch = _settled(store, other, "a")
    assert other.compare_and_set([Put("a", 2, b"x")])
    assert watch.wait(PATIENCE_S)
    store.close()
    other.close()
