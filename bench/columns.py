"""Iterating rows of 5,000 columns, against the same snapshot at once.

10 appends of 20 and of 200 rows with 5,000 columns of int64 are not compacted. What is timed is the iteration
of `reader.snapshot(as_of)` to its end; its peer is `to_table()` of the same snapshot. The work per column
outweighs all else. That both have the same rows, and the iteration in order, is checked before anything is
timed.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from common import Goal, Row, in_turns, log, main, median, scratch

from holdfast.persist import PersistClient, PersistConfig, Schema, Snapshot

COLUMNS = 5000
APPENDS = 10
ROUNDS = 5
SCHEMA = Schema.of({"id": "int64"}, {f"c{index}": "int64?" for index in range(COLUMNS)})


def write(client: PersistClient, rows: int) -> str:
    """A shard of appends of so many rows, whose keys are mixed; its id."""
    rng = np.random.default_rng(5)
    ids = rng.permutation(APPENDS * rows).reshape(APPENDS, rows)
    with client.writer(client.new_shard_id(), SCHEMA, purpose="bench columns") as writer:
        for time in range(APPENDS):
            columns = {f"c{index}": ids[time] // 7 + index for index in range(COLUMNS)}
            writer.compare_and_append(pa.table({"id": ids[time]} | columns), time, time + 1)
        log(f"{APPENDS} appends of {rows} rows")
        return writer.shard_id


def consume(snapshot: Snapshot) -> int:
    """Iterate; how many rows came."""
    return sum(batch.num_rows for batch in snapshot)


def check(snapshot: Snapshot) -> None:
    """Refuse rows that differ, or that come out of order."""
    streamed = pa.Table.from_batches(list(snapshot)).combine_chunks()
    if not streamed.equals(snapshot.to_table().sort_by("id").combine_chunks()):
        raise SystemExit("columns: the iteration has other rows than the table, or another order")


def measured(folder: Path, rows: int) -> Row:
    """The row for appends of so many rows."""
    with PersistClient.open(f"file://{folder}", config=PersistConfig(maintenance="off")) as client:
        shard = write(client, rows)
        with client.reader(shard, purpose="bench columns") as reader:
            check(reader.snapshot(APPENDS - 1))
            ours_s, peer_s = in_turns(
                lambda: consume(reader.snapshot(APPENDS - 1)),
                lambda: reader.snapshot(APPENDS - 1).to_table(),
                rounds=ROUNDS,
            )
    return Row(
        f"iterate 5,000 columns, {APPENDS} batches of {rows} rows / to_table",
        median(ours_s),
        median(peer_s),
        "s",
        Goal("<=", 3),
        f"median of {ROUNDS}; both read the same parts",
    )


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for count in (20, 200):
        with scratch() as folder:
            yield measured(folder, count)


if __name__ == "__main__":
    main(rows)
