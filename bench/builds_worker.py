"""Processes of `builds.py`, one after the other, forked from one that has imported its library.

The library is the one that PYTHONPATH leads to. To import it takes longer than the work.
"""

import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pyarrow as pa

import holdfast
from holdfast import stash
from holdfast.persist import PersistClient, Schema
from holdfast.stash import open_stash

# An earlier library names it Update.
_StashUpdate = getattr(stash, "StashUpdate", None) or stash.Update
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string", "price": "float64", "at": "timestamp_utc"})
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
    with (stash_work if kind.startswith("stash") else persist_work)(kind, *urls) as work:
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
