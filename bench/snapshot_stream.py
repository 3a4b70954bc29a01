"""A snapshot as a stream in the order of its keys: 4,000,000 updates in 8 runs over 1,000,000 keys.

The shard is that of `snapshot.py`, written the same way. Timed: the iteration of `reader.snapshot(as_of)`
from its first record batch to its last. It verifies the checksums of the parts, merges the runs, and drops
each batch when the next one comes. Ours returns rows in the total order of (key, value). The peer, the
query of `snapshot.py` by DuckDB over the same files, returns a whole table in no order. 2 threads each.
Before anything is timed, the benchmark checks that both have the same rows, and ours in order.

The second row is memory: the additional growth of a process's peak resident size while it streams
16,000,000 updates in 8 runs, compared with 4,000,000. Each is measured in a separate process that does
nothing else (the peak while it streams, above its size when the reader was open). The peer is the goal, 100
MB.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Polars reads this when it is imported.
os.environ["POLARS_MAX_THREADS"] = "2"

import polars as pl
import pyarrow as pa
import snapshot as at_once
from common import Goal, Row, in_turns, log, main, median, scratch
from snapshot import APPENDS, SCHEMA, UPDATES, check_equal, duckdb_query, is_parquet

from holdfast.persist import PersistClient, PersistConfig

ROUNDS = 7
FACTOR = 4
MEGABYTE = 1e6


def write(folder: Path, factor: int = 1) -> str:
    """Write the shard of `snapshot.py` with `factor` times as many keys and updates; return its id."""
    at_once.UPDATES, at_once.KEYS = factor * UPDATES, factor * at_once.KEYS
    with PersistClient.open(f"file://{folder}", config=PersistConfig(maintenance="off")) as client:
        writer = client.writer(client.new_shard_id(), SCHEMA, purpose="bench snapshot")
        for time, table in enumerate(at_once.appends()):
            writer.compare_and_append(table, time, time + 1)
            log(f"append {time + 1} of {APPENDS}")
    at_once.UPDATES, at_once.KEYS = UPDATES, at_once.KEYS // factor
    return writer.shard_id


def consume(client: PersistClient, shard: str) -> int:
    """Stream the snapshot; return the number of rows."""
    with client.reader(shard, purpose="bench snapshot") as reader:
        return sum(batch.num_rows for batch in reader.snapshot(APPENDS - 1))


def grown(folder: Path, shard: str) -> tuple[int, int]:
    """Return the rows, and the growth of a new process's peak while it streams, in bytes."""
    command = [sys.executable, __file__, "--stream", str(folder), shard]
    rows, size = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return rows, size


def stream(folder: str, shard: str) -> None:
    """Stream in a new process, and print the results."""
    with PersistClient.open(f"file://{folder}", mode="read") as client:
        client.recent_upper(shard)
        before = peak()
        rows = consume(client, shard)
        print(json.dumps([rows, peak() - before]))


def peak() -> int:
    """Return the peak resident size of this process, in bytes."""
    # Not getrusage: its peak includes the peak of the parent process.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def check_ordered(batches: list[pa.RecordBatch]) -> pa.Table:
    """Return the batches as a table; fail if they are not in the total order."""
    table = pa.Table.from_batches(batches)
    frame = pl.DataFrame(pl.from_arrow(table))
    if not frame.equals(frame.sort(SCHEMA.names)):
        raise SystemExit("snapshot_stream: rows are out of order")
    return table


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with scratch() as folder:
        shard = write(folder)
        with PersistClient.open(f"file://{folder}", mode="read") as client:
            files = [str(path) for path in folder.rglob("*") if path.is_file() and is_parquet(path)]
            peer = duckdb_query(files, APPENDS - 1)
            with client.reader(shard, purpose="bench snapshot") as reader:
                check_equal(check_ordered(list(reader.snapshot(APPENDS - 1))), peer())
            ours_s, peer_s = in_turns(lambda: consume(client, shard), peer, rounds=ROUNDS, warmup=1)
        yield Row(
            "snapshot streamed in order 4M updates / DuckDB GROUP BY",
            APPENDS * UPDATES / median(ours_s),
            APPENDS * UPDATES / median(peer_s),
            "updates/s",
            Goal(">=", 0.6),
            f"median of {ROUNDS}: {median(ours_s):.3f} s against {median(peer_s):.3f} s;"
            f" {len(files)} files; {pl.thread_pool_size()} threads each",
        )
        small_rows, small = grown(folder, shard)
    with scratch() as folder:
        large_rows, large = grown(folder, write(folder, FACTOR))
    growth = (large - small) / MEGABYTE
    yield Row(
        "snapshot streamed: memory of 16M updates above that of 4M",
        max(growth, 0.1),
        100,
        "MB",
        Goal("<=", 1),
        f"{small / MEGABYTE:.0f} MB for {small_rows:,} rows out,"
        f" {large / MEGABYTE:.0f} MB for {large_rows:,}",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stream"]:
        stream(*sys.argv[2:])
    else:
        main(rows)
