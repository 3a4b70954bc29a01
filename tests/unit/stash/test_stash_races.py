"""Processes commit to one stash at once. The tests kill processes, and the server under them."""

import random
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import StorageError, StoreUnreachable
from holdfast.persist.stores import Put, SqliteConsensus
from holdfast.persist.stores import sqlite as sqlite_consensus
from holdfast.stash import Stash, StashUpdate, open_stash
from holdfast.stash import sqlite as sqlite_stash
from testbed.postgres import PostgresServer

WRITER = Path(__file__).with_name("stash_writer.py")
ROWS = 3
Process = subprocess.Popen[str]
Claim = tuple[int, str]


@contextmanager
def started(url: str, what: str, *names: str, count: int) -> Iterator[list[Process]]:
    """Processes that begin together; those that still run at the end are killed."""
    arguments = [[sys.executable, WRITER, url, what, name, str(count)] for name in names]
    processes = [
        subprocess.Popen(each, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for each in arguments
    ]
    try:
        for process in processes:
            assert line(process) == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def rest(process: Process) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readlines()


def claims_of(lines: Sequence[str]) -> list[Claim]:
    return [(int(time), payload) for time, payload in (each.split() for each in lines if each.endswith("\n"))]


def judge(stash: Stash, claims: Sequence[Claim]) -> int:
    """Every claimed commit is at its time, whole and alone; how many are there that nobody claimed."""
    stored: dict[int, list[StashUpdate]] = {time: [] for time in range(stash.frontiers().upper)}
    for time, update in stash.changes(0):
        stored[time].append(update)
    for time, updates in stored.items():
        assert len(updates) == ROWS, f"the commit at {time} has {len(updates)} rows"
        assert len({update.key for update in updates}) == 1, f"two commits at {time}"
    times = Counter(time for time, _ in claims)
    assert not [time for time, count in times.items() if count > 1], "a time was claimed twice"
    for time, payload in claims:
        assert stored[time][0].key == payload.encode(), f"{payload} is not at {time}"
    keys = [updates[0].key for updates in stored.values()]
    assert len(set(keys)) == len(keys), "a commit is there twice"
    return len(stored) - len(claims)


def test_one_commit_for_each_upper(stash_url: str) -> None:
    with started(stash_url, "commit", "a", "b", "c", count=25) as processes:
        lines = [each for process in processes for each in rest(process)]
    with open_stash(stash_url) as stash:
        assert judge(stash, claims_of(lines)) == 0
        assert stash.frontiers().upper == 75


def test_the_judge_convicts(stash_url: str) -> None:
    """The negative control: commits that went past the upper, and claims of what did not happen."""

    def rows(name: str) -> list[StashUpdate]:
        return [StashUpdate(number, name.encode(), b"", 1) for number in range(ROWS)]

    with open_stash(stash_url, create=True) as stash:
        stash.append(rows("a/0"), 0)
        assert judge(stash, [(0, "a/0")]) == 0
        with pytest.raises(AssertionError, match="claimed twice"):
            judge(stash, [(0, "a/0"), (0, "b/0")])
        with pytest.raises(AssertionError, match="is not at"):
            judge(stash, [(0, "b/0")])
        stash.append([*rows("a/1"), *rows("b/1")], 1)
        with pytest.raises(AssertionError, match="commit at 1"):
            judge(stash, [(0, "a/0"), (1, "a/1")])


def test_killed_processes_lose_nothing_that_they_told(stash_url: str) -> None:
    chance = random.Random(5)
    lines = []
    with started(stash_url, "commit", "a", "b", "c", count=1_000_000) as processes:
        for process in processes:
            lines += [line(process) for _ in range(chance.randrange(5, 25))]
            process.kill()
            lines += rest(process)
    with open_stash(stash_url) as stash:
        assert judge(stash, claims_of(lines)) <= 3, "each may have made one commit that it could not tell"
        stash.append([StashUpdate(number, b"on", b"", 1) for number in range(ROWS)], stash.frontiers().upper)


def test_a_process_killed_in_a_commit_leaves_nothing_of_it(stash_url: str) -> None:
    """It has sent 10 MB, in several statements, and stands still before the end."""
    with open_stash(stash_url, create=True) as stash:
        stash.append([StashUpdate(1, b"k", b"v", 1)], 0)
        with started(stash_url, "hang", "a", count=10_000) as (process,):
            assert line(process) == "hanging\n"
            assert list(stash.rows(0)) == [StashUpdate(1, b"k", b"v", 1)], "nobody sees half of it"
        stash.append([StashUpdate(1, b"l", b"v", 1)], 1)
        assert {row.key for row in stash.rows(1)} == {b"k", b"l"}


def test_a_process_killed_while_it_consolidates_changes_no_read(stash_url: str) -> None:
    rows = [StashUpdate(1, b"%d" % number, b"v", 1) for number in range(5000)]
    with open_stash(stash_url, create=True) as stash:
        stash.append(rows, 0)
        stash.append((row._replace(diff=-1) for row in rows), 1)
        stash.append(rows[:7], 2)
        stash.append([], 3)
        stash.allow_compaction(2)
        for batches in (1, 2):
            with started(stash_url, "consolidate", "a", count=0) as (process,):
                assert [line(process) for _ in range(batches)] == ["batch\n"] * batches
                process.kill()
            for as_of in (2, 3):
                assert sorted(stash.rows(as_of)) == sorted(rows[:7])
        # What the killed process had locked the server frees when it notices.
        while not stash.consolidate():
            pass
        assert sorted(stash.rows(3)) == sorted(rows[:7])


def test_processes_that_make_a_stash_at_once_make_one(stash_url: str) -> None:
    with started(stash_url, "commit", "a", "b", "c", count=1) as processes:
        assert [process.wait(60) for process in processes] == [0, 0, 0]
    with open_stash(stash_url) as stash:
        assert stash.frontiers().upper == 3


@pytest.mark.postgres
def test_a_server_that_goes_and_comes_loses_nothing() -> None:
    with PostgresServer.start() as server, started(server.url(), "commit", "a", "b", count=60) as processes:
        lines = []
        for end in (server.kill, server.stop):
            lines += [line(process) for process in processes for _ in range(10)]
            end()
            server.resume()
        lines += [each for process in processes for each in rest(process)]
        assert [process.wait(60) for process in processes] == [0, 0]
        with open_stash(server.url()) as stash:
            assert judge(stash, claims_of(lines)) == 0
            assert stash.frontiers().upper == 120


@pytest.mark.postgres
@pytest.mark.long
def test_an_open_stash_outlives_an_outage() -> None:
    row = StashUpdate(1, b"k", b"v", 1)
    with PostgresServer.start() as server, open_stash(server.url(), create=True) as stash:
        stash.append([row], 0)
        server.kill()
        with ThreadPoolExecutor(3) as pool:
            asked = [
                pool.submit(stash.frontiers),
                pool.submit(lambda: list(stash.rows(0))),
                pool.submit(stash.append, [row], 1),
            ]
            for each in asked:
                assert type(each.exception(60)) is StoreUnreachable
        with pytest.raises(StorageError):
            open_stash(server.url())
        server.resume()
        stash.append([row._replace(diff=-1)], 1)
        assert (list(stash.rows(0)), list(stash.rows(1))) == ([row], [])


@pytest.mark.parametrize("store", ["stash", "consensus"])
def test_a_writer_that_opens_waits_while_the_file_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """SQLite has a file locked for moments that no test can hold: a stand-in refuses twice in its place."""
    left = [2]

    def refuses(check: Callable[..., None]) -> Callable[..., None]:
        def checked(connection: sqlite3.Connection, path: Path) -> None:
            check(connection, path)
            # SQLite itself waits for a connection that only reads.
            writes = connection.execute("PRAGMA journal_size_limit").fetchone() != (-1,)
            if left[0] and (writes or store == "consensus"):
                left[0] -= 1
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
                raise error

        return checked

    path = tmp_path / "file.sqlite"
    if store == "stash":
        monkeypatch.setattr(sqlite_stash, "check_is_stash", refuses(sqlite_stash.check_is_stash))
        with open_stash(f"sqlite://{path}", create=True) as stash:
            stash.append([StashUpdate(1, b"k", b"v", 1)], 0)
            assert stash.frontiers().upper == 1
    else:
        monkeypatch.setattr(sqlite_consensus, "_check_format", refuses(sqlite_consensus._check_format))
        consensus = SqliteConsensus(path)
        assert consensus.compare_and_set([Put("a", 1, b"x")])
        consensus.close()
    assert left == [0]
