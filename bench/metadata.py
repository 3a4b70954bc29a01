"""Shards with 100,000 and 1,000,000 parts: commits, opening, memory, and planning.

The parts are synthetic: entries of the state without objects in the store, in one batch of one run, 128 MiB
each. All else is real: a location with file blobs and SQLite consensus, rollups, and the public API with its
default upkeep. The state is stored as a rollup, as upkeep would store it.

- *commit*: an append of one row, on shards of 100,000 and of 100 parts in turns.
- *bytes*: what the process writes for 512 such appends, with the rollups that upkeep writes.
- *open*: a process that has another shard open reads the newest version. Median of 3 processes.
- *memory*: how much more memory that process has at its peak than before.
- *a million*: the same, and the peers are ten times those of 100,000 parts.
- *pieces*: a shard of about 100 real parts in one run. A new process plans 16 pieces by key, and another one
  reads one of them. Bytes are those that the process asks the kernel for. The peers are the stored bytes of
  the shard, and the share of one piece.

The peers of the rows about open and memory are goals.
"""

import multiprocessing
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from common import Goal, Row, in_turns, log, main, median, percentile, scratch

from holdfast.persist import PersistClient, PersistConfig, Schema, SnapshotPart
from holdfast.persist.state.machine import Version
from holdfast.persist.state.state import Part
from holdfast.persist.upkeep.rollup import write_rollup

SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string?"})
FEW, MANY, MOST = 100, 100_000, 1_000_000
COMMITS = 512
REAL_ROWS, PIECES = 4_000_000, 16
RANGED = PersistConfig(maintenance="off", part_target_bytes=1024 * 1024)


def one_row(number: int) -> pa.Table:
    return pa.table({"id": [number], "name": ["a"]})


def shard_of(url: str, parts: int) -> str:
    """Make a shard whose only batch has this number of parts, and return its id."""
    shard_id = f"s{uuid.uuid4()}"
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        client.writer(shard_id, SCHEMA, purpose="bench").compare_and_append(one_row(0), 0, 1)
        machine = client.session.machine(shard_id)
        state = machine.refresh()
        run = tuple(
            Part(
                1_000_000, 1, 0, 1, 128 << 20, 0, f"{shard_id}/c1-{number}.{number * 2654435761 % 2**32:08x}"
            )
            for number in range(parts)
        )
        state = replace(state, batches=(replace(state.batches[0], runs=(run,)),))
        machine.publish(Version(state, machine.version.digest))
        write_rollup(machine)
    return shard_id


def appender(client: PersistClient, shard_id: str) -> Callable[[], None]:
    writer = client.writer(shard_id, SCHEMA, purpose="bench")

    def append() -> None:
        upper = writer.cached_upper
        writer.compare_and_append(one_row(upper), upper, upper + 1)

    return append


def counted(file: str, what: str) -> int:
    """One of the numbers that the kernel has of this process, in a file of `/proc/self`."""
    lines = Path("/proc/self", file).read_text().splitlines()
    (number,) = (line.split()[1] for line in lines if line.startswith(f"{what}:"))
    return int(number)


def written(url: str, shard_id: str) -> float:
    """The kB that each of `COMMITS` appends writes."""
    with PersistClient.open(url) as client:
        append = appender(client, shard_id)
        append()
        before = counted("io", "wchar")
        for _ in range(COMMITS):
            append()
    return (counted("io", "wchar") - before) / COMMITS / 1000


def opened(url: str, small: str, large: str) -> tuple[float, float]:
    """The seconds to open a shard in this process, and the MB that its memory grows by, at the peak."""
    with PersistClient.open(url) as client:
        client.recent_upper(small)
        before, began_s = counted("status", "VmHWM"), time.perf_counter()
        assert client.recent_upper(large) > 0
        return time.perf_counter() - began_s, (counted("status", "VmHWM") - before) / 1000


def planned(url: str, shard_id: str) -> tuple[float, int, list[SnapshotPart]]:
    """The seconds and the bytes to plan pieces, and these."""
    with PersistClient.open(url, config=RANGED) as client, client.reader(shard_id, purpose="bench") as reader:
        before, began_s = counted("io", "rchar"), time.perf_counter()
        found = reader.snapshot_parts(0, PIECES)
        return time.perf_counter() - began_s, counted("io", "rchar") - before, found


def read(url: str, first: SnapshotPart, piece: SnapshotPart) -> tuple[float, int]:
    """The seconds and the bytes to read a piece. The first one imports the modules that a read needs."""
    with PersistClient.open(url, config=RANGED) as client:
        client.read_snapshot_part(first).to_table()
        before, began_s = counted("io", "rchar"), time.perf_counter()
        assert client.read_snapshot_part(piece).to_table().num_rows > 0
        return time.perf_counter() - began_s, counted("io", "rchar") - before


def rows() -> Iterator[Row]:
    new = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    with scratch() as folder, new, ExitStack() as clients:
        url = (folder / "lake").as_uri()
        few, many, most = (shard_of(url, parts) for parts in (FEW, MANY, MOST))
        log("made")
        client = clients.enter_context(PersistClient.open(url))
        ours, peer = in_turns(appender(client, many), appender(client, few), rounds=COMMITS, warmup=16)
        clients.close()
        yield Row(
            f"commit to {MANY:,} parts / to {FEW} parts",
            median(ours) * 1e3,
            median(peer) * 1e3,
            "ms",
            Goal("<=", 2),
            f"p99 {percentile(ours, 99) * 1e3:.1f} ms against {percentile(peer, 99) * 1e3:.1f} ms",
        )
        yield Row("... bytes written for each", written(url, many), written(url, few), "kB", Goal("<=", 2))
        for parts, shard_id, factor in ((MANY, many, 1), (MOST, most, 10)):
            runs = [new.submit(opened, url, few, shard_id).result() for _ in range(3)]
            took_s, grown_mb = (median(each) for each in zip(*runs, strict=True))
            name = f"open of {parts:,} parts"
            yield Row(f"{name} / goal of {factor} s", took_s, factor, "s", Goal("<=", 1))
            yield Row(f"... memory / goal of {300 * factor} MB", grown_mb, 300 * factor, "MB", Goal("<=", 1))
        yield from key_range(new, (folder / "ranges").as_uri())


def key_range(new: ProcessPoolExecutor, url: str) -> Iterator[Row]:
    shard_id = f"s{uuid.uuid4()}"
    with PersistClient.open(url, config=RANGED) as client:
        ids = np.arange(REAL_ROWS)
        with client.writer(shard_id, SCHEMA, purpose="bench").batch_builder() as builder:
            builder.add(pa.table({"id": ids, "name": np.char.mod("%x", ids * 2654435761 % 2**32)}))
            builder.compare_and_append(0, 1)
        (batch,) = client.session.machine(shard_id).state.batches
        parts = [*batch.parts]
    took_s, count, pieces = new.submit(planned, url, shard_id).result()
    bytes_ = sum(part.size_bytes for part in parts)
    note = f"{took_s * 1e3:.0f} ms"
    yield Row(
        f"plan of {PIECES} pieces of {len(parts):,} parts / all bytes",
        count,
        bytes_,
        "B",
        Goal("<=", 1),
        note,
    )
    took_s, count = new.submit(read, url, pieces[0], pieces[PIECES // 2]).result()
    own = bytes_ / PIECES
    note = f"{took_s * 1e3:.0f} ms; {len(pieces)} pieces"
    yield Row("read of one of these pieces / its own bytes", count, own, "B", Goal("<=", 3), note)


if __name__ == "__main__":
    main(rows)
