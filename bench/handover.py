"""Collections: a handover seen by a listening reader, writes to several shards, and idle collections.

- A handover of a collection of 4,000,000 rows (int64 key; string, float64 and timestamp values). A listen
  that is just before the handover continues across it, until it has returned everything at and before that
  time. The two renditions have one shard each, and 1 % of the rows differ. Without a difference shard, the
  listen sums the contents of both. With one, it reads that shard. Then the same is handed over to a copy,
  without any differences. The peer of all is `snapshot(as_of).to_table()` of the collection before the
  handover, in the same process. The number of returned updates is checked before anything is timed.
- Appends of 200,000, 50,000 and 10,000 rows to a collection of 8 shards against the same to one with one
  shard. Large appends are the purpose of shards. In a small one, the parts are the cost: each is a Parquet
  file. Encoding takes about 0.8 ms and a durable write 0.6 ms of a processor, however few its rows. 8 of
  them instead of one cost as much as all the rest of an append of 10,000 rows to one shard.
- 500 collections that have a writer and a reader, written once, in a process that does nothing else: the
  resident memory of each, and the p50 of an append of one row to another collection in that process,
  against the append to the only collection of another client.

Files and SQLite; maintenance is off. With `BENCH_CLOCK=cpu` in the environment, times are CPU seconds of
the process, for a machine with other load.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# Polars reads this when it is imported.
os.environ["POLARS_MAX_THREADS"] = "2"

import numpy as np
import pyarrow as pa
from common import Goal, Row, in_turns, log, main, median, scratch

from holdfast.collections import CollectionReader, CollectionSpec, Recipe, StorageController
from holdfast.persist import PersistClient, PersistConfig, Progress, Schema

ROWS = 4_000_000
CHUNK = 500_000
DIFFERS_EVERY = 100
ROUNDS = 3
SHARDS = 8
APPENDS = {200_000: 8, 50_000: 15, 10_000: 30}
IDLE = 500
SMALL_APPENDS = 300
MEGABYTE = 1e6
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string", "price": "float64", "at": "timestamp_utc"})
CLOCK = time.process_time if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter


def contents(start: int, count: int, version: int = 0) -> pa.Table:
    """Return rows whose values depend on the key and, for one key in a hundred, on the version."""
    ids = np.arange(start, start + count)
    mixed = (ids * 2654435761 + np.where(ids % DIFFERS_EVERY == 0, version, 0) * 40503) & 0xFFFFFFFF
    return pa.table(
        {
            "id": ids,
            "name": np.char.add("name-", (mixed % 100_000).astype(str)),
            "price": (mixed % 1_000_003) / 7,
            "at": pa.array(1_700_000_000_000_000 + mixed * 1000, pa.timestamp("us", tz="UTC")),
        }
    )


def opened(folder: Path) -> PersistClient:
    """Open a client of the location in a folder."""
    return PersistClient.open(f"file://{folder}", config=PersistConfig(maintenance="off"))


def handed_over(controller: StorageController) -> int:
    """Create the collection, hand it over to a rendition with 1 % other rows, and return the time."""
    controller.create_collection(CollectionSpec("c", "rows", SCHEMA))
    writer = controller.writer("rows", purpose="bench")
    for number in range(ROWS // CHUNK):
        writer.append(contents(number * CHUNK, CHUNK), number, number + 1)
    upper = writer.upper()
    made = controller.renditions.create("rows", shards=1, recipe=Recipe.SOURCE)
    pipeline = controller.rendition_writer("rows", made.id, purpose="bench")
    other = [contents(number * CHUNK, CHUNK, 1) for number in range(ROWS // CHUNK)]
    pipeline.append(pa.concat_tables(other), 0, upper)
    at = controller.renditions.hand_over("rows", made.id).held_from
    pipeline.append(None, upper, at + 1)
    return at


def copied(controller: StorageController) -> int:
    """Hand the collection over to a copy of it, and return the time."""
    made = controller.renditions.create("rows", shards=1)
    controller.renditions.catch_up("rows", made.id)
    at = controller.renditions.hand_over("rows", made.id).held_from
    controller.writer("rows", purpose="bench").seal(at + 1)
    return at


def across(reader: CollectionReader, at: int) -> int:
    """Run a listen across the handover; return the number of its updates."""
    listen = reader.listen(at - 1)
    told = 0
    while listen.frontier <= at:
        for event in listen.next():
            if not isinstance(event, Progress):
                told += event.table.num_rows
    return told


def handover_rows(folder: Path) -> Iterator[Row]:
    """Measure the cost of a handover for a listening reader."""
    with opened(folder) as client, StorageController(client) as controller:
        at = handed_over(controller)
        with controller.reader("rows", purpose="bench") as reader:

            def measured(
                what: str, goal: Goal, at: int = at, expected: int = 2 * ROWS // DIFFERS_EVERY
            ) -> Row:
                if (told := across(reader, at)) != expected:
                    raise SystemExit(f"handover: told {told} updates")

                def snapshot() -> pa.Table:
                    return reader.snapshot(at - 1).to_table()

                ours_s, peer_s = in_turns(lambda: across(reader, at), snapshot, rounds=ROUNDS, clock=CLOCK)
                note = f"median of {ROUNDS}: {median(ours_s):.3f} s against {median(peer_s):.3f} s"
                return Row(
                    f"handover of 4M rows {what} / one snapshot",
                    median(ours_s),
                    median(peer_s),
                    "s",
                    goal,
                    note,
                )

            yield measured("computed", Goal("<=", 2.3))
            controller.renditions.make_difference("rows")
            yield measured("from a difference shard", Goal("<=", 0.3))
            yield measured("to a copy", Goal("<=", 0.3), copied(controller), expected=0)


def write_row(folder: Path, count: int) -> Row:
    """Compare appends of so many rows to 8 shards with those to one."""
    with opened(folder) as client, StorageController(client) as controller:

        def appending(shards: int) -> Callable[[], None]:
            name = f"of {shards}"
            controller.create_collection(CollectionSpec(name, name, SCHEMA, shards=shards))
            writer = controller.writer(name, purpose="bench")
            batch = contents(0, count)
            upper = 0

            def append() -> None:
                nonlocal upper
                writer.append(batch, upper, upper + 1)
                upper += 1

            return append

        seconds = in_turns(appending(SHARDS), appending(1), rounds=APPENDS[count], warmup=2, clock=CLOCK)
    ours, peer = (count / median(each) for each in seconds)
    return Row(
        f"writes of {count // 1000}k rows through {SHARDS} shards / one",
        ours,
        peer,
        "rows/s",
        Goal(">=", 0.8),
        f"median of {APPENDS[count]}: {count / ours * 1000:.1f} ms against {count / peer * 1000:.1f} ms",
    )


def resident() -> int:
    """Return the resident size of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def idle_rows(folder: Path) -> Iterator[Row]:
    """Measure the cost of open collections that nobody uses."""
    command = [sys.executable, __file__, "--idle", str(folder)]
    size, ours, peer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    yield Row(
        f"{IDLE} idle collections with writer and reader / 30 KB each", size / 1000, 30, "KB", Goal("<=", 1)
    )
    yield Row(
        f"append of one row beside {IDLE} idle collections / alone, p50",
        ours * 1000,
        peer * 1000,
        "ms",
        Goal("<=", 1.5),
        f"{SMALL_APPENDS} each",
    )


def idle(folder: Path) -> tuple[float, float, float]:
    """Measure the bytes of a collection, and the seconds of an append with idle collections and alone."""
    row = [{"id": 1, "name": "one", "price": 1.0, "at": None}]
    row[0]["at"] = pa.scalar(0, pa.timestamp("us", tz="UTC")).as_py()

    def appender(controller: StorageController, name: str) -> Callable[[], None]:
        controller.create_collection(CollectionSpec(name, name, SCHEMA))
        writer = controller.writer(name, purpose="bench")
        upper = 0

        def append() -> None:
            nonlocal upper
            writer.append(row, upper, upper + 1)
            upper += 1

        return append

    with opened(folder / "many") as many, opened(folder / "alone") as alone:
        crowd, single = StorageController(many), StorageController(alone)
        appends = [appender(crowd, "warm"), appender(single, "alone")]
        for append in appends:
            append()
        before = resident()
        kept = []
        for number in range(IDLE):
            append = appender(crowd, f"idle {number}")
            append()
            kept.append((append, crowd.reader(f"idle {number}", purpose="bench")))
            if number % 100 == 99:
                log(f"{number + 1} idle collections")
        size = (resident() - before) / IDLE
        ours_s, peer_s = in_turns(*appends, rounds=SMALL_APPENDS, warmup=20, clock=CLOCK)
        return size, median(ours_s), median(peer_s)


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with scratch() as folder:
        yield from handover_rows(folder)
    for count in APPENDS:
        with scratch() as folder:
            yield write_row(folder, count)
    with scratch() as folder:
        yield from idle_rows(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--idle"]:
        print(json.dumps(idle(Path(sys.argv[2]))))
    else:
        main(rows)
