"""The state that 10,000 small appends leave, with file blobs, SQLite consensus and upkeep in the background.

Each append has 10 rows. A critical hold follows 100 times behind, as retention does. Garbage has no grace
time, so that deletions happen within the run. All other settings are the defaults. Checked every 100
appends: the rows of the log, the batches, and the blobs in the store compared with those that the newest
version names. The time of an open is the median of some opens by a new client, until it returns the shard's
upper.

There is no peer: the second number is our own limit.
"""

import time
from collections.abc import Callable, Iterator

import pyarrow as pa
from common import Goal, Row, log, main, median, scratch

from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.state.state import live_keys

APPENDS = 10_000
EVERY = 100
OPENINGS = 21
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string", "price": "float64"})
CONFIG = PersistConfig(gc_grace_s=0.0)


def rows(at: int) -> pa.Table:
    """Return the rows of one append."""
    ids = list(range(at * 10, at * 10 + 10))
    return pa.table({"id": ids, "name": [f"name-{id_}" for id_ in ids], "price": [id_ / 7 for id_ in ids]})


def opening(url: str, shard: str) -> Callable[[], None]:
    """Open the location with a new client; return the seconds."""

    def act() -> None:
        with PersistClient.open(url, mode="read") as client:
            assert client.recent_upper(shard) == APPENDS

    return act


def churn() -> Iterator[Row]:
    """Append, check the state, open, and yield the rows of this benchmark."""
    with scratch() as folder:
        url = f"file://{folder}"
        most_rows = most_batches = 0
        surplus = 0.0
        with PersistClient.open(url, config=CONFIG) as client:
            shard = client.new_shard_id()
            writer = client.writer(shard, SCHEMA, purpose="bench churn")
            hold = None
            began = time.perf_counter()
            for at in range(APPENDS):
                writer.compare_and_append(rows(at), at, at + 1)
                if (at + 1) % EVERY:
                    continue
                hold = hold or client.critical_since(shard, purpose="retention")
                hold.downgrade(max(0, at - EVERY))
                state = client.session.machine(shard).state
                stored = sum(1 for _ in client.location.blob.list(shard))
                most_rows = max(most_rows, len(client.location.consensus.scan(shard, 0, 10**6)))
                most_batches = max(most_batches, len(state.batches))
                surplus = max(surplus, stored / max(1, len(live_keys(state))))
            batches = len(client.session.machine(shard).state.batches)
            took = time.perf_counter() - began
        log(f"{APPENDS:,} appends in {took:.1f} s")
        with PersistClient.open(url, mode="read") as client:
            state = client.session.machine(shard).refresh()
            stored = sum(1 for _ in client.location.blob.list(shard))
        seconds = []
        open_it = opening(url, shard)
        for _ in range(OPENINGS):
            start = time.perf_counter()
            open_it()
            seconds.append(time.perf_counter() - start)
    within = Goal("<=", 1.0)
    yield Row("open after 10,000 appends", median(seconds) * 1e3, 20, "ms", within)
    yield Row("rows of the log, at most", most_rows, 300, "rows", within)
    note = f"with the last append; at most {most_batches} on the way, where appends are faster than upkeep"
    yield Row("batches after 10,000 appends", batches, 60, "batches", within, note)
    yield Row(
        "blobs in the store after 10,000 appends",
        stored,
        2 * max(1, len(live_keys(state))),
        "blobs",
        within,
        f"the bound is twice the live ones; at most {surplus:.1f} times the live ones on the way",
    )


if __name__ == "__main__":
    main(churn)
