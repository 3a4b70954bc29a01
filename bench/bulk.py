"""A bulk append of 4,000,000 rows of 60 bytes in no order, through the batch builder, with little memory.

The rows (int64 key; string, float64 and timestamp values) are in an Arrow file and are read from it in
record batches of 65,536. Ours: `batch_builder`, `add` for each batch, `compare_and_append`, on files and
SQLite. This includes the sort by key and value, parts with statistics and checksums, the flush of each file
and its folder to disk, and the commit. The peer does the same without Holdfast: it reads the same file,
sorts by the key with Polars, and writes one Parquet file with pyarrow's `write_table` and the same codec,
flushed to disk. Each run is a separate process, and only the time from the first batch to durability
counts. The sides run in turns, with 2 threads each. The benchmark checks once that both hold the same rows.

The second row is memory: the peak resident size of ours, including interpreter and libraries, against the
goal of 400 MB. The note shows the peer's.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# Polars reads this when it is imported.
os.environ["POLARS_MAX_THREADS"] = "2"

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from common import Goal, Row, log, main, median, scratch

from holdfast.persist import PersistClient, Schema

ROWS = 4_000_000
BATCH = 65_536
ROUNDS = 5
MEGABYTE = 1e6
MOST_MEMORY = 400
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string", "price": "float64", "at": "timestamp_utc"})


def write_input(path: Path, rows: int = ROWS) -> int:
    """Write the Arrow file with the rows; return the bytes of memory of one row as an update."""
    ids = np.random.default_rng(11).permutation(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA.arrow) as writer:
        for start in range(0, rows, BATCH):
            batch = generated(ids[start : start + BATCH])
            writer.write_batch(batch)
    return int(batch.nbytes / batch.num_rows) + 16


def generated(ids: np.ndarray) -> pa.RecordBatch:
    """Return the rows of these keys."""
    mixed = (ids * 2654435761) & 0xFFFFFFFF
    columns = {
        "id": pa.array(ids),
        "name": pa.array(np.char.add("customer-", (mixed % 1_000_000).astype(str))),
        "price": pa.array((mixed % 1_000_003) / 7),
        "at": pa.array(1_700_000_000_000_000 + mixed * 1000, pa.timestamp("us", tz="UTC")),
    }
    return pa.record_batch(columns).cast(SCHEMA.arrow)


def batches(path: str) -> Iterator[pa.RecordBatch]:
    """Yield the input in record batches."""
    with pa.OSFile(path) as file:
        reader = pa.ipc.open_file(file)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def ours(source: str, folder: str) -> float:
    """Append all rows; return the seconds."""
    with PersistClient.open(f"file://{folder}") as client:
        writer = client.writer(client.new_shard_id(), SCHEMA, purpose="bench bulk")
        start = time.perf_counter()
        with writer.batch_builder() as builder:
            builder.add(batches(source))
            builder.compare_and_append(0, 1)
        return time.perf_counter() - start


def peer(source: str, folder: str) -> float:
    """Sort and write all rows; return the seconds."""
    pa.set_cpu_count(2)
    start = time.perf_counter()
    table = pa.Table.from_batches(batches(source))
    ordered = pl.DataFrame(pl.from_arrow(table)).sort("id").to_arrow().cast(table.schema)
    with Path(folder, "peer.parquet").open("wb") as file:
        pq.write_table(ordered, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


SIDES = {"ours": ours, "peer": peer}


def run(side: str, source: Path, folder: Path) -> tuple[float, int]:
    """Run one side in a new process; return its seconds and its peak memory in bytes."""
    folder.mkdir()
    command = [sys.executable, __file__, "--side", side, str(source), str(folder)]
    seconds, peak = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return seconds, peak


def one(side: str, source: str, folder: str) -> None:
    """Run one side, in its own process."""
    seconds = SIDES[side](source, folder)
    # Not getrusage: its peak includes the peak of the parent process.
    status = Path("/proc/self/status").read_text()
    print(json.dumps([seconds, int(status.split("VmHWM:")[1].split()[0]) * 1024]))


def check_equal(ours: Path, theirs: Path) -> None:
    """Fail if the results differ."""
    with PersistClient.open(f"file://{ours}", mode="read") as client:
        (shard,) = client.shards()
        with client.reader(shard, purpose="bench bulk") as reader:
            found = pa.Table.from_batches(reader.snapshot(0)).drop_columns("_diff")
    if not found.equals(pq.read_table(theirs / "peer.parquet").cast(found.schema)):
        raise SystemExit("bulk: the builder and the peer disagree")


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with scratch() as folder:
        source = folder / "input.arrow"
        width = write_input(source)
        log(f"{ROWS:,} rows of {width} bytes")
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        peaks: dict[str, list[int]] = {side: [] for side in SIDES}
        for number in range(ROUNDS):
            for side in list(SIDES)[:: 1 if number % 2 else -1]:
                took, peak = run(side, source, folder / f"{side}{number}")
                seconds[side].append(took)
                peaks[side].append(peak)
                log(f"{side} {took:.2f} s, {peak / MEGABYTE:.0f} MB")
            if number == 0:
                check_equal(folder / "ours0", folder / "peer0")
        ours_s, peer_s = (median(seconds[side]) for side in ("ours", "peer"))
        yield Row(
            f"bulk append {ROWS // 1_000_000}M rows of {width} B / sort + write_table",
            ROWS / ours_s,
            ROWS / peer_s,
            "rows/s",
            Goal(">=", 0.8),
            f"median of {ROUNDS}: {ours_s:.2f} s against {peer_s:.2f} s;"
            f" {pl.thread_pool_size()} threads each",
        )
        ours_mb, peer_mb = (max(peaks[side]) / MEGABYTE for side in ("ours", "peer"))
        yield Row(
            "bulk append: peak memory",
            ours_mb,
            MOST_MEMORY,
            "MB",
            Goal("<=", 1),
            f"the peer took {peer_mb:.0f} MB",
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        one(*sys.argv[2:])
    else:
        main(rows)
