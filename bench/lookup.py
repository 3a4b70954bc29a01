"""A point lookup by key in a table of 10,000,000 rows on files: `scan(where=pc.field("id") == key)`.

The table has 4 columns (int64 key, text, float64, int32) and one shard, and is written in 8 appends. Timed:
`table.scan(...).read_all()` for random keys, each of which finds one row, on an open table. It reads the
newest time from the consensus store, excludes row groups by statistics, and verifies what it reads. The first
lookup of the process, which verifies all parts as a whole, is in the note.

The peer of the first row is the goal, 20 ms. The peer of the second row is the same lookup by
`pyarrow.dataset` in one Parquet file with the same rows and the same size of row groups, without a check of
any bytes. Both are measured in turns.
"""

import os
import random
import time
from collections.abc import Iterator

os.environ["POLARS_MAX_THREADS"] = "2"

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from common import Goal, Row, in_turns, log, main, median, percentile, scratch

import holdfast
from holdfast.persist.rows.part import KEYED_GROUP_ROWS

ROWS = 10_000_000
APPENDS = 8
LOOKUPS = 200
GOAL_MS = 20.0
COLUMNS = {"id": "int64", "name": "string", "value": "float64", "count": "int32?"}


def appends() -> Iterator[pa.Table]:
    rng, rows = np.random.default_rng(1), ROWS // APPENDS
    for start in range(0, ROWS, rows):
        yield pa.table(
            {
                "id": np.arange(start, start + rows),
                "name": [f"name {number % 5000}" for number in range(rows)],
                "value": rng.random(rows),
                "count": rng.integers(0, 100, rows).astype("int32"),
            }
        )


def rows() -> Iterator[Row]:
    with scratch() as folder:
        table = holdfast.table((folder / "lake").as_uri(), "rows", columns=COLUMNS, key="id")
        file = pq.ParquetWriter(folder / "rows.parquet", table.schema, compression="zstd")
        for number, each in enumerate(appends()):
            table.append(each)
            file.write_table(each.cast(table.schema), row_group_size=KEYED_GROUP_ROWS)
            log(f"append {number + 1} of {APPENDS}")
        file.close()
        plain, chosen = ds.dataset(folder / "rows.parquet"), random.Random(1)

        def ours() -> None:
            found = table.scan(where=pc.field("id") == chosen.randrange(ROWS)).read_all()
            assert found.num_rows == 1

        def peer() -> None:
            assert plain.to_table(filter=pc.field("id") == chosen.randrange(ROWS)).num_rows == 1

        start = time.perf_counter()
        ours()
        first_ms = 1000 * (time.perf_counter() - start)
        mine, other = in_turns(ours, peer, rounds=LOOKUPS, warmup=5)
        table.close()
    p50, p99 = 1000 * median(mine), 1000 * percentile(mine, 99)
    note = f"p50 of {LOOKUPS}; p99 {p99:.1f} ms; first of the process {first_ms:.0f} ms"
    yield Row("lookup of a key in 10M rows / goal", p50, GOAL_MS, "ms", Goal("<=", 1), note)
    yield Row("lookup of a key in 10M rows / pyarrow.dataset", p50, 1000 * median(other), "ms", Goal("<=", 1))


if __name__ == "__main__":
    main(rows)
