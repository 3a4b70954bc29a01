"""A table on S3 that is 20 and 50 ms away: ours, and two other libraries, with the number of requests.

MinIO runs behind a proxy that delays each round trip (`testbed.delayproxy`). A new connection costs one more
round trip. The bandwidth has no limit, and there is no encryption. All libraries use the same proxy, in
turns. The times are medians of the clock. The notes have the requests of one operation.

The table has 1,000,000 rows (int64 key, text, float64, int32), written in 8 appends. All its data and
metadata are on S3, but pyiceberg has its catalog in a local SQLite file, which costs it no round trip.

- *open*: from the URL to the columns and the newest version, in a process that has imported the library.
  Only ours must be closed before, which the note has: it writes the state of each shard that it changed.
- *first append*: 10 rows, the first ones to an open table. *append*: 10 more.
- *look up*: 1 key in an open table.
- *read all*: all rows and columns of an open table, the first time after an open.
- *read again*: the same, once more.

Why goals are missed:

- *Open.* It reads all objects of the log since the last checkpoint, 16 at a time. The log gets a checkpoint
  every 64 commits. Then the open reads the states of the shards, and commits the leases of a reader.
- *Look up*, which is the first read of rows: it looks at the log, which takes two requests, and reads the
  part twice, first to verify it.
"""

import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

os.environ["POLARS_MAX_THREADS"] = "2"

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from common import Goal, Row, log, main, median, scratch
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from table_rows import COLUMNS, rows_of

import holdfast

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.delayproxy import DelayProxy
from testbed.minio import Minio

ROWS, APPENDS = 1_000_000, 8
ROUNDS = 5
DELAYS = (20, 50)
AS_FAST = Goal("<=", 1)
CLOSE = "close"
Actions = Mapping[str, Callable[[], object]]


def loads() -> Iterator[pa.Table]:
    for number, ids in enumerate(np.array_split(np.arange(ROWS), APPENDS)):
        yield rows_of(ids, number)


class Given:
    """The rows and keys of one library's operations: the same for each library."""

    def __init__(self) -> None:
        self._next = ROWS
        self._chosen = random.Random(1)

    def new(self) -> pa.Table:
        self._next += 10
        return rows_of(np.arange(self._next - 10, self._next), self._next)

    def key(self) -> int:
        return self._chosen.randrange(ROWS)


def one(rows: pa.Table) -> None:
    assert rows.num_rows == 1


def all_of(rows: pa.Table) -> None:
    assert rows.num_rows >= ROWS


def of_holdfast(url: str) -> Actions:
    given = Given()
    opened = [holdfast.table(url, "rows", columns=COLUMNS, key="id")]
    for rows in loads():
        opened[0].append(rows)

    def reopen() -> None:
        opened.append(holdfast.table(url, "rows"))
        opened[0].latest_time()

    return {
        CLOSE: lambda: opened.pop().close(),
        "open": reopen,
        "first append of 10 rows": lambda: opened[0].append(given.new()),
        "append 10 rows": lambda: opened[0].append(given.new()),
        "look up 1 key": lambda: one(opened[0].scan(where=pc.field("id") == given.key()).read_all()),
        "read all": lambda: all_of(opened[0].read()),
        "read again": lambda: all_of(opened[0].read()),
    }


def of_deltalake(url: str, options: dict[str, str]) -> Actions:
    given = Given()
    for rows in loads():
        write_deltalake(url, rows, mode="append", storage_options=options)
    opened = [DeltaTable(url, storage_options=options)]

    def reopen() -> None:
        opened[0] = DeltaTable(url, storage_options=options)
        assert opened[0].schema()
        assert opened[0].version()

    return {
        "open": reopen,
        "first append of 10 rows": lambda: write_deltalake(opened[0], given.new(), mode="append"),
        "append 10 rows": lambda: write_deltalake(opened[0], given.new(), mode="append"),
        "look up 1 key": lambda: one(opened[0].to_pyarrow_table(filters=[("id", "=", given.key())])),
        "read all": lambda: all_of(opened[0].to_pyarrow_table()),
        "read again": lambda: all_of(opened[0].to_pyarrow_table()),
    }


def of_pyiceberg(url: str, folder: Path, options: dict[str, str]) -> Actions:
    given = Given()

    def catalog() -> SqlCatalog:
        return SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=url, **options)

    first = catalog()
    first.create_namespace("bench")
    opened = [first.create_table("bench.rows", schema=next(loads()).schema)]
    for rows in loads():
        opened[0].append(rows)

    def reopen() -> None:
        opened[0] = catalog().load_table("bench.rows")
        assert opened[0].schema()
        assert opened[0].current_snapshot()

    return {
        "open": reopen,
        "first append of 10 rows": lambda: opened[0].append(given.new()),
        "append 10 rows": lambda: opened[0].append(given.new()),
        "look up 1 key": lambda: one(opened[0].scan(f"id = {given.key()}").to_arrow()),
        "read all": lambda: all_of(opened[0].scan().to_arrow()),
        "read again": lambda: all_of(opened[0].scan().to_arrow()),
    }


def counted(proxy: DelayProxy, action: Callable[[], object]) -> str:
    """The requests of an action, as a note shows them."""
    before = proxy.requests()
    action()
    made = {method: number - before[method] for method, number in proxy.requests().items()}
    return " + ".join(f"{number} {method}" for method, number in made.items() if number) or "none"


def rows() -> Iterator[Row]:
    warnings.simplefilter("ignore")
    with scratch() as folder, Minio.start() as minio, DelayProxy(minio.port) as proxy:
        os.environ.update(minio.credentials)
        os.environ["AWS_REGION"] = "us-east-1"
        bucket = minio.make_bucket()
        delta = {
            "AWS_ENDPOINT_URL": proxy.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": minio.access_key,
            "AWS_SECRET_ACCESS_KEY": minio.secret_key,
            "AWS_REGION": "us-east-1",
            "conditional_put": "etag",
        }
        iceberg = {
            "s3.endpoint": proxy.endpoint,
            "s3.access-key-id": minio.access_key,
            "s3.secret-access-key": minio.secret_key,
            "s3.region": "us-east-1",
        }
        log("tables")
        libraries = {
            "holdfast": of_holdfast(f"s3://{bucket}/holdfast?endpoint={proxy.endpoint}"),
            "deltalake": of_deltalake(f"s3://{bucket}/delta", delta),
            "pyiceberg": of_pyiceberg(f"s3://{bucket}/iceberg", folder, iceberg),
        }
        for delay in DELAYS:
            proxy.delay = delay / 1000
            yield from compared(proxy, libraries, delay)


def compared(proxy: DelayProxy, libraries: Mapping[str, Actions], delay: int) -> Iterator[Row]:
    """Yield a row for each operation, behind a delay in milliseconds."""
    # A first read is one after an open.
    seconds: dict[str, dict[str, list[float]]] = {}
    requests: dict[str, dict[str, str]] = {}
    for number in range(-1, ROUNDS):
        for turn in range(len(libraries)):
            library = list(libraries)[(turn + number) % len(libraries)]
            for what, action in libraries[library].items():
                start = time.perf_counter()
                made = counted(proxy, action)
                if number >= 0:
                    seconds.setdefault(what, {}).setdefault(library, []).append(time.perf_counter() - start)
                    requests.setdefault(what, {})[library] = made
    closing = ""
    for what, of_library in seconds.items():
        found = {library: 1000 * median(each) for library, each in of_library.items()}
        ours = found.pop("holdfast")
        if what == CLOSE:
            closing = f"; close {ours:.4g}, {requests[what]['holdfast']}"
            continue
        others = ", ".join(f"{library} {ms:.4g}" for library, ms in found.items())
        note = "; ".join(f"{library} {made}" for library, made in requests[what].items())
        best = min(found, key=lambda library: found[library])
        if what == "open":
            note += closing
        yield Row(f"S3 at {delay} ms, {what} / {best}", ours, found[best], "ms", AS_FAST, f"{others}; {note}")


if __name__ == "__main__":
    main(rows)
