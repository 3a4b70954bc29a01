"""Processes of `builds.py`, one after the other, forked from one that has imported its library.

The library is the one that PYTHONPATH leads to. To import it takes longer than the work.
"""

import io
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc

import holdfast
from holdfast import stash
from holdfast.persist import PersistClient, Schema
from holdfast.stash import open_stash

# An earlier library names it Update.
_StashUpdate = getattr(stash, "StashUpdate", None) or stash.Update
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string", "price": "float64", "at": "timestamp_utc"})
COLUMNS = {"id": "int64", "name": "string", "price": "float64", "count": "int64"}
TEN = range(10)
ROWS = pa.table(
    {
        "id": list(TEN),
        "name": [f"name-{number}" for number in TEN],
        "price": [number / 7 for number in TEN],
        "at": pa.array([1_700_000_000_000_000 + number for number in TEN], pa.timestamp("us", tz="UTC")),
    }
)


_stdin = io.FileIO(0, closefd=False)


@contextmanager
def stash_work(kind: str, url: str) -> Iterator[Callable[[], object]]:
    """Appends of one row or 20 rows to a new stash."""
    times = count()
    rows = 20 if kind.endswith("-20") else 1
    value = bytes(range(200))

    with open_stash(url, create=True, names={1: "one"}) as stash:

        def append() -> None:
            at = next(times)
            stash.append(
                [_StashUpdate(1, b"key-%d-%d" % (number, at), value, 1) for number in range(rows)], at
            )

        append()
        yield append


@contextmanager
def persist_work(kind: str, blob: str, consensus: str = "") -> Iterator[Callable[[], object]]:
    """What is done many times, on a new shard of a new location."""
    stores = {"blob": blob, "consensus": consensus} if consensus else {"url": blob}
    with PersistClient.open(**stores) as client:
        yield work_of(kind, client)


def work_of(kind: str, client: PersistClient) -> Callable[[], object]:
    """Return the work to repeat, on a new shard."""
    shard_id = client.new_shard_id()
    writer = client.writer(shard_id, SCHEMA, purpose="bench builds")

    def append() -> None:
        upper = writer.cached_upper
        writer.compare_and_append(ROWS, upper, upper + 1)

    append()
    return append if kind == "append" else lambda: client.recent_upper(shard_id)


@contextmanager
def table_work(kind: str, url: str) -> Iterator[Callable[[], object]]:
    """Reads and writes of a table whose last rows are not in its sorted run."""
    size = {"table-scan": 100_000, "table-append": 4_000, "table-upsert": 4_000}.get(kind, 1_000_000)
    with holdfast.table(url, "rows", columns=COLUMNS, key="id") as table:
        table.append(table_rows(range(size)))
        table.append(table_rows(range(size, size + 10)))
        chosen, following = random.Random(1), count(size + 10, 10)

        def upsert(keys: int) -> int:
            return table.upsert(table_rows(sorted(chosen.sample(range(size), keys)), chosen.random()))

        def append() -> None:
            first = next(following)
            table.append(table_rows(range(first, first + 10)))

        work: dict[str, Callable[[], object]] = {
            "table-scan": lambda: table.scan(["id", "price"]).read_all(),
            "table-append": append,
            "table-upsert": lambda: upsert(10),
            "table-upsert-1": lambda: upsert(1),
            "table-upsert-1000": lambda: upsert(1000),
            "table-delete-1": lambda: table.delete([chosen.randrange(size)]),
            "table-lookup": lambda: table.scan(where=pc.field("id") == chosen.randrange(size)).read_all(),
        }
        if kind == "table-diff":
            times = upsert(1000), upsert(1000)
            yield lambda: table.diff(*times)
        else:
            yield work[kind]


def table_rows(ids: Sequence[int], price: float = 0.0) -> pa.Table:
    """Rows with these keys."""
    names = [f"name {number % 500}" for number in ids]
    return pa.table({"id": ids, "name": names, "price": [price + number for number in ids], "count": ids})


def main() -> None:
    """Start a process for each line with work and place. It reads further lines, until an empty one."""
    print(holdfast.__file__, flush=True)
    while task := _line().split():
        if os.fork() == 0:
            run(*task)
            os._exit(0)
        os.wait()


def run(kind: str, *urls: str) -> None:
    """Do the work as often as each line says, and print the CPU seconds so far after each line."""
    # Import it now, or its time is in the work that first has many rows.
    import polars as pl  # noqa: F401

    of = {"stash": stash_work, "table": table_work}.get(kind.partition("-")[0], persist_work)
    with of(kind, *urls) as work:
        while times := _line():
            for _ in range(int(times)):
                work()
            print(time.process_time(), flush=True)
    print("closed", flush=True)


def _line() -> str:
    # Without a buffer: the next lines are for the other process.
    return _stdin.readline().decode().strip()


if __name__ == "__main__":
    main()
