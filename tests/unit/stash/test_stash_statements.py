"""The size of statements and their memory, counted where they leave the process."""

import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast.stash import MAX_ROW_BYTES, MAX_STATEMENT_BYTES, StashUpdate, open_stash, sqlite_file
from testbed.postgres import PostgresServer
from testbed.wiretap import WireTap


class CountingConnection(sqlite_file.Connection):
    """Adds up text and values of each statement."""

    statements: ClassVar[list[int]] = []

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self.statements.append(len(sql) + _size(parameters))
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        def counted() -> Iterator[Any]:
            for row in parameters:
                self.statements.append(len(sql) + _size(row))
                yield row

        return super().executemany(sql, counted())


def _size(values: Iterable[object]) -> int:
    return sum(len(value) if isinstance(value, bytes) else 9 for value in values)


@pytest.fixture
def counted(
    request: pytest.FixtureRequest, stash_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, list[int]]]:
    """The URL of a stash, and what the statements of whoever uses it take, one after the other."""
    if stash_url.startswith("sqlite"):
        monkeypatch.setattr(CountingConnection, "statements", [])
        monkeypatch.setattr(sqlite_file, "Connection", CountingConnection)
        yield stash_url, CountingConnection.statements
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        tap = WireTap(server.port)
        # Neither encryption nor its offer, so that the bytes can be read.
        yield (
            stash_url.replace(f":{server.port}/", f":{tap.port}/") + "?sslmode=disable&gssencmode=disable",
            tap.statements,
        )
        tap.close()


def many_rows() -> Iterator[StashUpdate]:
    return (StashUpdate(number % 7, b"%d" % number, bytes(900), 1) for number in range(20_000))


def large_rows() -> Iterator[StashUpdate]:
    noise = random.Random(1).randbytes(MAX_ROW_BYTES)
    for number, size in enumerate((MAX_ROW_BYTES, 9 << 20, 9 << 20, 3 << 20, 3 << 20, 100)):
        yield StashUpdate(1, b"%d" % number, noise[: size - 1], 1)


@pytest.mark.parametrize("rows", [many_rows, large_rows])
@pytest.mark.long
def test_no_statement_is_too_large(
    counted: tuple[str, list[int]], rows: Callable[[], Iterator[StashUpdate]]
) -> None:
    url, statements = counted
    payload = sum(len(row.key) + len(row.value) for row in rows())
    with open_stash(url, create=True) as stash:
        stash.append(rows(), 0)
        assert sum(statements) > payload, "all statements are counted"
        assert sum(1 for _ in stash.rows(0)) == sum(1 for _ in rows())

        # Consolidation carries rows too. Of the many a part is enough.
        stash.append((row._replace(diff=-1) for row, _ in zip(rows(), range(5000), strict=False)), 1)
        stash.append([], 2)
        stash.allow_compaction(2)
        assert stash.consolidate()
        assert sum(1 for _ in stash.rows(2)) == max(0, sum(1 for _ in rows()) - 5000)
    assert max(statements) < MAX_STATEMENT_BYTES < payload


def test_the_count_would_find_a_large_statement(
    counted: tuple[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: without a limit a row goes as it is."""
    url, statements = counted
    monkeypatch.setattr("holdfast.stash.stash.MAX_ROW_BYTES", 1 << 30)
    with open_stash(url, create=True) as stash:
        stash.append([StashUpdate(1, b"k", bytes(MAX_STATEMENT_BYTES), 1)], 0)
    assert max(statements) > MAX_STATEMENT_BYTES


@pytest.mark.long
def test_memory_does_not_grow_with_a_commit_or_a_read(stash_url: str) -> None:
    """160 MB in rows of 4 MB, and many small ones, go through a process that keeps none of them."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("stash_memory.py"), stash_url],
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = map(int, done.stdout.split())
    assert after - before < 80, "MiB"
