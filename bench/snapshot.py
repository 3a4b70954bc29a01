"""A snapshot of 4,000,000 updates in 8 runs over 1,000,000 keys, all at once, through the public API.

8 appends of 500,000 updates each write the shard: upserts that retract a key's current value and insert the
next one (int64 key; string, float64 and timestamp values). Maintenance is off, so that all 8 runs have to
be merged. Timed: `reader.snapshot(as_of).to_table()`. It reads the parts from files, verifies their
checksums, decodes them and consolidates them into one Arrow table.

The peer is DuckDB in the same process with 2 threads over the same Parquet files: `SELECT <columns>,
sum(_diff) ... WHERE _time <= as_of GROUP BY ALL HAVING sum(_diff) <> 0`, fetched as an Arrow table. It
verifies no checksum of the whole file. Ours has 2 threads too. Both results are compared before anything is
timed. The files are in the page cache.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

# Polars reads this when it is imported.
os.environ["POLARS_MAX_THREADS"] = "2"

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
from common import Goal, Row, in_turns, log, main, median, scratch

from holdfast.persist import PersistClient, PersistConfig, Schema

APPENDS = 8
UPDATES = 500_000
KEYS = 1_000_000
ROUNDS = 9
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string", "price": "float64", "at": "timestamp_utc"})


def appends() -> Iterator[pa.Table]:
    """Yield each append's updates: random keys get a new value and lose their current one; in no order."""
    random = np.random.default_rng(7)
    versions = np.zeros(KEYS, np.int64)
    for _ in range(APPENDS):
        keys = random.permutation(KEYS)
        cost = np.where(versions[keys] > 0, 2, 1).cumsum()
        keys = keys[: np.searchsorted(cost, UPDATES, side="right")]
        old = keys[versions[keys] > 0]
        ids = np.concatenate([old, keys])
        version = np.concatenate([versions[old], versions[keys] + 1])
        diffs = np.concatenate([np.full(len(old), -1), np.full(len(keys), 1)])
        versions[keys] += 1
        # An odd row is missing where the last key would cost two; an extra copy fills it up.
        order = random.permutation(len(ids))
        order = np.concatenate([order, order[: UPDATES - len(order)]])
        yield updates(ids[order], version[order], diffs[order])


def updates(ids: np.ndarray, version: np.ndarray, diffs: np.ndarray) -> pa.Table:
    """Return values that depend only on the key and on how often it was written."""
    mixed = (ids * 2654435761 + version * 40503) & 0xFFFFFFFF
    return pa.table(
        {
            "id": ids,
            "name": np.char.add("name-", (mixed % 100_000).astype(str)),
            "price": (mixed % 1_000_003) / 7,
            "at": pa.array(1_700_000_000_000_000 + mixed * 1000, pa.timestamp("us", tz="UTC")),
            "_diff": diffs,
        }
    )


def rows() -> Iterator[Row]:
    """Yield the row of this benchmark."""
    with (
        scratch() as folder,
        PersistClient.open(f"file://{folder}", config=PersistConfig(maintenance="off")) as client,
    ):
        writer = client.writer(client.new_shard_id(), SCHEMA, purpose="bench snapshot")
        for time, table in enumerate(appends()):
            writer.compare_and_append(table, time, time + 1)
            log(f"append {time + 1} of {APPENDS}")
        reader = client.reader(writer.shard_id, purpose="bench snapshot")
        as_of = APPENDS - 1
        files = [str(path) for path in folder.rglob("*") if path.is_file() and is_parquet(path)]

        def ours() -> pa.Table:
            return reader.snapshot(as_of).to_table()

        peer = duckdb_query(files, as_of)
        check_equal(ours(), peer())
        ours_s, peer_s = in_turns(ours, peer, rounds=ROUNDS, warmup=2)
        size = sum(Path(file).stat().st_size for file in files)
        yield Row(
            "snapshot to_table 4M updates / DuckDB GROUP BY",
            APPENDS * UPDATES / median(ours_s),
            APPENDS * UPDATES / median(peer_s),
            "updates/s",
            Goal(">=", 1.1),
            f"median of {ROUNDS}: {median(ours_s):.3f} s against {median(peer_s):.3f} s;"
            f" {len(files)} files, {size / 1e6:.0f} MB; {pl.thread_pool_size()} threads each",
        )


def is_parquet(path: Path) -> bool:
    """Return whether the file is a part, and not a rollup."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def duckdb_query(files: list[str], as_of: int) -> Callable[[], pa.Table]:
    """Return the peer: a query for the same contents from the same files."""
    connection = duckdb.connect(config={"threads": 2})
    columns = ", ".join(f'"{name}"' for name in SCHEMA.names)
    query = (
        f"SELECT {columns}, sum(_diff)::BIGINT AS _diff FROM read_parquet({files})"
        f" WHERE _time <= {as_of} GROUP BY ALL HAVING sum(_diff) <> 0"
    )
    return lambda: connection.sql(query).to_arrow_table()


def check_equal(ours: pa.Table, peer: pa.Table) -> None:
    """Fail if the results differ."""
    mine, theirs = (
        pl.DataFrame(pl.from_arrow(table.select([*SCHEMA.names, "_diff"]).cast(ours.schema))).sort(pl.all())
        for table in (ours, peer)
    )
    if not mine.equals(theirs):
        raise SystemExit("snapshot: DuckDB and the snapshot disagree")


if __name__ == "__main__":
    main(rows)
