"""A durable append of 10 rows, with file blobs and Postgres consensus, through the public API.

Timed: `compare_and_append` of an Arrow table of 10 rows (4 columns) on an open writer, with the default
settings, including background maintenance. When it returns, the rows are on the server's disk.

The peer is the minimum for a program with psycopg: one transaction (`with connection.transaction()`) with
one INSERT of as many bytes as our own log rows have (their median), on the same server. It checks no head.
A second row compares the store alone, one `compare_and_set`, with the same INSERT.

The server is that of the test bed: on loopback, fsync on, otherwise with Debian's defaults.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
from append import holdfast_append
from common import Goal, Row, in_turns, main, median, percentile, scratch

from holdfast.persist import PersistClient
from holdfast.persist.stores import Put
from holdfast.persist.stores.postgres import PostgresConsensus

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.postgres import PostgresServer

ROUNDS = 400


def log_row_bytes(connection: psycopg.Connection[tuple[int]]) -> int:
    """Return the median size of the log rows that appends made."""
    with connection.transaction():
        rows = connection.execute("SELECT length(data) FROM holdfast.entries").fetchall()
    return int(median([size for (size,) in rows]))


def bare_insert(connection: psycopg.Connection[tuple[int]], size: int) -> Callable[[], None]:
    """Return a transaction that inserts `size` bytes."""
    with connection.transaction():
        connection.execute("CREATE TABLE bare (key text, seqno bigint, data bytea, PRIMARY KEY (key, seqno))")
    data = bytes(number * 31 % 251 for number in range(size))
    head = 0

    def insert() -> None:
        nonlocal head
        with connection.transaction():
            connection.execute("INSERT INTO bare VALUES (%s, %s, %s)", ("shard", head + 1, data))
        head += 1

    return insert


def store_append(store: PostgresConsensus, size: int) -> Callable[[], None]:
    """Return a compare-and-set of `size` bytes."""
    data = bytes(number * 31 % 251 for number in range(size))
    head = 1
    assert store.compare_and_set([Put("bench", head, data)])

    def append() -> None:
        nonlocal head
        assert store.compare_and_set([Put("bench", head + 1, data)])
        head += 1

    return append


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with scratch() as folder, PostgresServer.start() as server, server.database() as name:
        url = server.url(name)
        connection: psycopg.Connection[tuple[int]] = psycopg.connect(url)
        with connection, PersistClient.open(blob=f"file://{folder}", consensus=url) as client:
            append = holdfast_append(client)
            for _ in range(50):
                append()
            size = log_row_bytes(connection)
            store = PostgresConsensus(f"{url}?schema=bench")
            actions = (append, store_append(store, size), bare_insert(connection, size))
            ours, step, bare = in_turns(*actions, rounds=ROUNDS, warmup=50)
            for label, seconds, goal in (
                ("append 10 rows / Postgres INSERT", ours, 2.5),
                ("consensus compare-and-set / Postgres INSERT", step, 1.5),
            ):
                yield Row(
                    label,
                    median(seconds) * 1e3,
                    median(bare) * 1e3,
                    "ms",
                    Goal("<=", goal),
                    f"p50 of {ROUNDS}; p99 {percentile(seconds, 99) * 1e3:.2f} ms against"
                    f" {percentile(bare, 99) * 1e3:.2f} ms; {size} bytes per log row",
                )
            store.close()


if __name__ == "__main__":
    main(rows)
