"""A durable append of 10 rows, with file blobs and SQLite consensus, through the public API.

Timed: `compare_and_append` of an Arrow table of 10 rows (4 columns) on an open writer, with the default
settings, including background maintenance. When it returns, the rows are on disk.

Peers, each with the same rows:

- *SQLite compare-and-set*: the minimum for a durable, conditional write. One transaction (WAL,
  synchronous=FULL) checks the head and inserts as many bytes as our own log rows have (their median).
- *deltalake* and *pyiceberg* (SQL catalog on SQLite): one append of the same table to a local table. The
  first flushes nothing to disk. The second flushes its catalog but no files. So both promise less than we
  do. Their tables stay small here (some hundred appends), which is to their advantage. Each side appends
  some times in a row before the next one's turn. The peers work for so long that an append right after one
  of theirs finds the processor's caches cold. This doubles the time of ours, which is mostly Python. The
  note shows the median of those first appends too.

The p99 is noted, not compared: on a shared disk it depends on the disk.
"""

import sqlite3
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from common import Goal, Row, in_turns, main, median, percentile, scratch
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from holdfast.persist import PersistClient, Schema

ROUNDS = 400
TABLE_ROUNDS = 10
IN_A_ROW = 10
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string", "price": "float64", "at": "timestamp_utc"})


def ten_rows() -> pa.Table:
    """Return the rows of one append."""
    ids = list(range(10))
    return pa.table(
        {
            "id": ids,
            "name": [f"name-{number}" for number in ids],
            "price": [number / 7 for number in ids],
            "at": pa.array([1_700_000_000_000_000 + number for number in ids], pa.timestamp("us", tz="UTC")),
        }
    )


def holdfast_append(client: PersistClient) -> Callable[[], None]:
    """Return an append to a new shard of the client's location."""
    writer = client.writer(client.new_shard_id(), SCHEMA, purpose="bench append")
    rows = ten_rows()

    def append() -> None:
        upper = writer.cached_upper
        writer.compare_and_append(rows, upper, upper + 1)

    return append


def log_row_bytes(folder: Path) -> int:
    """Return the median size of the log rows that appends made."""
    with sqlite3.connect(f"file:{folder / 'consensus.sqlite'}?mode=ro", uri=True) as connection:
        sizes = [size for (size,) in connection.execute("SELECT length(data) FROM consensus")]
    return int(median(sizes))


def sqlite_append(path: Path, size: int) -> Callable[[], None]:
    """Return a plain compare-and-set of `size` bytes, as durable as ours."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE log ("
        "key TEXT NOT NULL, seqno INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (key, seqno))"
    )
    data = bytes(number * 31 % 251 for number in range(size))
    head = 0

    def append() -> None:
        nonlocal head
        connection.execute("BEGIN IMMEDIATE")
        (found,) = connection.execute(
            "SELECT coalesce(max(seqno), 0) FROM log WHERE key = 'shard'"
        ).fetchone()
        assert found == head
        connection.execute("INSERT INTO log VALUES ('shard', ?, ?)", (head + 1, data))
        connection.execute("COMMIT")
        head += 1

    return append


def delta_append(folder: Path) -> Callable[[], None]:
    """Return an append to a new Delta table."""
    rows = ten_rows()
    return lambda: write_deltalake(str(folder), rows, mode="append")


def iceberg_append(folder: Path) -> Callable[[], None]:
    """Return an append to a new Iceberg table."""
    folder.mkdir()
    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("bench")
    rows = ten_rows()
    table = catalog.create_table("bench.rows", schema=rows.schema)
    return lambda: table.append(rows)


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    warnings.simplefilter("ignore")
    with scratch() as folder, PersistClient.open(f"file://{folder}/holdfast") as client:
        append = holdfast_append(client)
        for _ in range(50):
            append()
        size = log_row_bytes(folder / "holdfast")
        ours, bare = in_turns(append, sqlite_append(folder / "bare.sqlite", size), rounds=ROUNDS, warmup=50)
        yield Row(
            "append 10 rows / SQLite compare-and-set",
            median(ours) * 1e3,
            median(bare) * 1e3,
            "ms",
            Goal("<=", 3),
            f"p50 of {ROUNDS}; p99 {percentile(ours, 99) * 1e3:.2f} ms against"
            f" {percentile(bare, 99) * 1e3:.2f} ms; {size} bytes per log row",
        )
        append = holdfast_append(client)
        ours, delta, iceberg = in_turns(
            append,
            delta_append(folder / "delta"),
            iceberg_append(folder / "iceberg"),
            rounds=TABLE_ROUNDS,
            warmup=1,
            in_a_row=IN_A_ROW,
        )
        first = median(ours[::IN_A_ROW]) * 1e3
        for name, peer in (("deltalake", delta), ("pyiceberg", iceberg)):
            note = f"p50 of {len(ours)}; {median(peer) / median(ours):.0f} times as fast; p99"
            note += f" {percentile(ours, 99) * 1e3:.2f} ms against {percentile(peer, 99) * 1e3:.1f} ms;"
            note += f" first of {IN_A_ROW}: {first:.2f} ms against {median(peer[::IN_A_ROW]) * 1e3:.1f} ms"
            yield Row(
                f"append 10 rows / {name} append",
                median(ours) * 1e3,
                median(peer) * 1e3,
                "ms",
                Goal("<=", 1 / 20),
                note,
            )


if __name__ == "__main__":
    main(rows)
