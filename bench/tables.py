"""What people do with a table of 1,000,000 rows on local files: ours, and four other libraries.

The table has 4 columns (int64 key, text, float64, int32), in one part or file at the start. Each operation
goes through the library's own API, on a table that is open: append 10 rows, upsert 1 key and 1,000 random
keys, delete 1 key, look up 1 key, read two columns of the rows with `value > 0.99`, and the difference that
an upsert of 1,000 keys made. All libraries run in turns, each on its own table, which the operations change.

The numbers are CPU time (user and system, all threads) of the process per operation, the median of the
rounds. It is the right measure for a machine that does other things too. It does not contain the waiting for
the disk, to which only Holdfast and DuckDB flush what they write.

The peers, of which the best one counts (the note has all of them):

- *deltalake*: `merge`, `delete`, `to_pyarrow_table(filters=...)`, and `load_cdf` of a table with change data
  feed.
- *LanceDB*: `merge_insert`, `delete` and `search().where(...)`, with a B-tree index on the key. It has no
  diff.
- *pyiceberg* (SQL catalog on SQLite): `upsert`, `delete` (copy on write) and `scan`. It has no diff.
- *DuckDB*: its own file, with the key as primary key. It keeps no history, so it has no diff. It has its own
  rows, because a database that replaces rows in place keeps less than the others promise. DuckLake
  is an extension that can't be installed offline for this version of DuckDB.

Two more rows have goals of their own, and measure the time of the clock: `Table.append` of 10 rows, and
`Table.upsert` of 10 random keys, each to a table of 4,000 rows on local files. When a write returns, it is on
disk.

Why goals are missed:

- *`Table.append` of 10 rows.* It takes at least 0.76 ms of CPU time on this machine, and waits for one flush
  of the disk, in the transaction of the consensus store. An append of persist, without a table, takes most of
  that (`append.py`).
- *`Table.upsert` of 10 keys.* It is a lookup of the keys and such an append.
- *Upserts, five times as fast as LanceDB.* An upsert is at least a lookup and an append. The append alone
  takes a fifth of LanceDB's time for 1 key: it encodes and verifies a part, and commits it to the consensus
  store. 1,000 random keys are in nearly all row groups, and each of these is decoded to find the rows that
  go.
- *DuckDB in place, 1 key.* Its index leads to one row, and it changes that row. We decode the row group of
  the key, compare checksums, and write the old and the new row, because the history is kept.
- *A filtered scan* can't be as fast as DuckDB's own file: Arrow needs 15 ms of CPU time only to decode the
  two columns from Parquet, which is more than DuckDB's whole query.
- *The difference* costs about as much as deltalake's. It reads the rows of two writes, and sums them.
"""

import itertools
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

os.environ["POLARS_MAX_THREADS"] = "2"

import duckdb
import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from common import Goal, Row, in_turns, log, main, median, percentile, scratch
from deltalake import DeltaTable, write_deltalake
from lancedb.index import BTree
from pyiceberg.catalog.sql import SqlCatalog
from table_rows import COLUMNS, rows_of

import holdfast

ROWS = 1_000_000
ROUNDS = 5
FIELDS = ["id", "value"]
ABOVE = 0.99
FIVE_TIMES = Goal("<=", 0.2)
AS_FAST = Goal("<=", 1)
SMALL_ROWS = 4000
SMALL_ROUNDS, IN_A_ROW = 60, 5
APPEND_MS, UPSERT_MS = 0.8, 2.0
Actions = Mapping[str, Callable[[], object]]


class Given:
    """The rows and keys of one library's operations: the same for each library."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._chosen = random.Random(1)
        self._next = ROWS

    def new(self) -> pa.Table:
        self._next += 10
        return rows_of(np.arange(self._next - 10, self._next), next(self._numbers))

    def some(self, count: int) -> pa.Table:
        ids = np.array(sorted(self._chosen.sample(range(ROWS // 2), count)))
        return rows_of(ids, next(self._numbers))

    def gone(self) -> int:
        # Never deleted before, and not among the keys of upserts and lookups.
        return ROWS // 2 + next(self._numbers)

    def key(self) -> int:
        return self._chosen.randrange(ROWS // 2)


def checked(rows: pa.Table) -> None:
    assert rows.num_rows == 1


def of_holdfast(folder: Path) -> Actions:
    given = Given()
    table = holdfast.table((folder / "holdfast").as_uri(), "rows", columns=COLUMNS, key="id")
    table.append(rows_of(np.arange(ROWS), 0))
    times = [table.latest_time()]

    def upsert_many() -> None:
        times.append(table.upsert(given.some(1000)))

    def difference() -> None:
        assert table.diff(times[-2], times[-1]).num_rows == 2000

    return {
        "append 10 rows": lambda: table.append(given.new()),
        "upsert 1 key": lambda: table.upsert(given.some(1)),
        "delete 1 key": lambda: table.delete([given.gone()]),
        "look up 1 key": lambda: checked(table.scan(where=pc.field("id") == given.key()).read_all()),
        "filtered scan of 2 columns": lambda: table.scan(FIELDS, pc.field("value") > ABOVE).read_all(),
        "upsert 1,000 keys": upsert_many,
        "diff of 1,000 keys": difference,
    }


def of_deltalake(folder: Path) -> Actions:
    given, path = Given(), str(folder / "delta")
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(path, rows_of(np.arange(ROWS), 0))
    write_deltalake(f"{path}-feed", rows_of(np.arange(ROWS), 0), configuration=feed)
    table, fed = DeltaTable(path), DeltaTable(f"{path}-feed")

    def upsert(into: DeltaTable, count: int) -> None:
        merge = into.merge(given.some(count), "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    upsert(fed, 1000)

    def difference() -> None:
        version = fed.version()
        found = pa.table(fed.load_cdf(starting_version=version, ending_version=version))
        assert found.num_rows == 2000

    return {
        "append 10 rows": lambda: write_deltalake(table, given.new(), mode="append"),
        "upsert 1 key": lambda: upsert(table, 1),
        "delete 1 key": lambda: table.delete(f"id = {given.gone()}"),
        "look up 1 key": lambda: checked(table.to_pyarrow_table(filters=[("id", "=", given.key())])),
        "filtered scan of 2 columns": lambda: table.to_pyarrow_table(
            columns=FIELDS, filters=[("value", ">", ABOVE)]
        ),
        "upsert 1,000 keys": lambda: upsert(table, 1000),
        "diff of 1,000 keys": difference,
    }


def of_lancedb(folder: Path) -> Actions:
    given = Given()
    table = lancedb.connect(str(folder / "lance")).create_table("rows", rows_of(np.arange(ROWS), 0))
    table.create_index("id", config=BTree())

    def upsert(count: int) -> None:
        merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(given.some(count))

    return {
        "append 10 rows": lambda: table.add(given.new()),
        "upsert 1 key": lambda: upsert(1),
        "delete 1 key": lambda: table.delete(f"id = {given.gone()}"),
        "look up 1 key": lambda: checked(table.search().where(f"id = {given.key()}").to_arrow()),
        "filtered scan of 2 columns": lambda: (
            table.search().where(f"value > {ABOVE}").select(FIELDS).limit(ROWS).to_arrow()
        ),
        "upsert 1,000 keys": lambda: upsert(1000),
    }


def of_pyiceberg(folder: Path) -> Actions:
    given = Given()
    place = folder / "iceberg"
    place.mkdir()
    catalog = SqlCatalog("bench", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
    catalog.create_namespace("bench")
    first = rows_of(np.arange(ROWS), 0)
    table = catalog.create_table("bench.rows", schema=first.schema)
    table.append(first)
    return {
        "append 10 rows": lambda: table.append(given.new()),
        "upsert 1 key": lambda: table.upsert(given.some(1), join_cols=["id"]),
        "delete 1 key": lambda: table.delete(f"id = {given.gone()}"),
        "look up 1 key": lambda: checked(table.scan(f"id = {given.key()}").to_arrow()),
        "filtered scan of 2 columns": lambda: table.scan(
            f"value > {ABOVE}", selected_fields=tuple(FIELDS)
        ).to_arrow(),
        "upsert 1,000 keys": lambda: table.upsert(given.some(1000), join_cols=["id"]),
    }


def of_duckdb(folder: Path) -> Actions:
    given = Given()
    connection = duckdb.connect(folder / "rows.duckdb")
    connection.execute("SET threads = 2")
    connection.execute("CREATE TABLE kept (id BIGINT PRIMARY KEY, name TEXT, value DOUBLE, count INTEGER)")

    def write(rows: pa.Table) -> None:
        connection.register("given", rows)
        connection.execute("INSERT OR REPLACE INTO kept FROM given")

    write(rows_of(np.arange(ROWS), 0))
    select = connection.sql
    return {
        "append 10 rows": lambda: write(given.new()),
        "upsert 1 key": lambda: write(given.some(1)),
        "delete 1 key": lambda: connection.execute(f"DELETE FROM kept WHERE id = {given.gone()}"),
        "look up 1 key": lambda: checked(select(f"FROM kept WHERE id = {given.key()}").to_arrow_table()),
        "filtered scan of 2 columns": lambda: select(
            f"SELECT id, value FROM kept WHERE value > {ABOVE}"
        ).to_arrow_table(),
        "upsert 1,000 keys": lambda: write(given.some(1000)),
    }


def small_writes() -> Iterator[Row]:
    """Writes of 10 rows to small tables, compared with their goals."""
    chosen = random.Random(1)
    count = (SMALL_ROUNDS + 1) * IN_A_ROW
    new = [rows_of(np.arange(10) + SMALL_ROWS + 10 * number, number) for number in range(count)]
    known = [
        rows_of(np.array(sorted(chosen.sample(range(SMALL_ROWS), 10))), number) for number in range(count)
    ]
    with scratch() as folder:
        location = (folder / "small").as_uri()
        names = "appended", "upserted"
        appended, upserted = (holdfast.table(location, each, columns=COLUMNS, key="id") for each in names)
        for table in (appended, upserted):
            table.append(rows_of(np.arange(SMALL_ROWS), 0))
        seconds = in_turns(
            lambda: appended.append(new.pop()),
            lambda: upserted.upsert(known.pop()),
            rounds=SMALL_ROUNDS,
            in_a_row=IN_A_ROW,
        )
    for what, found, goal in zip(
        ("Table.append of 10 rows", f"Table.upsert of 10 keys in {SMALL_ROWS:,} rows"),
        seconds,
        (APPEND_MS, UPSERT_MS),
        strict=True,
    ):
        note = f"p50 of {len(found)}; p99 {1000 * percentile(found, 99):.3g} ms"
        yield Row(f"{what} / goal", 1000 * median(found), goal, "ms", Goal("<=", 1), note)


def rows() -> Iterator[Row]:
    warnings.simplefilter("ignore")
    log("small writes")
    yield from small_writes()
    makers = {
        "holdfast": of_holdfast,
        "deltalake": of_deltalake,
        "lancedb": of_lancedb,
        "pyiceberg": of_pyiceberg,
        "duckdb": of_duckdb,
    }
    with scratch() as folder:
        actions = {}
        for name, make in makers.items():
            log(f"table of {name}")
            actions[name] = make(folder)
        for what in actions["holdfast"]:
            log(what)
            those = {name: each[what] for name, each in actions.items() if what in each}
            seconds = in_turns(*those.values(), rounds=ROUNDS, clock=time.process_time)
            found = {name: 1000 * median(each) for name, each in zip(those, seconds, strict=True)}
            ours, in_place = found.pop("holdfast"), found.pop("duckdb", None)
            best = min(found, key=lambda name: found[name])
            note = "CPU; " + ", ".join(f"{name} {number:.4g}" for name, number in found.items())
            goal = FIVE_TIMES if what.startswith("upsert") else AS_FAST
            yield Row(f"{what} / {best}", ours, found[best], "ms", goal, note)
            if in_place is not None:
                yield Row(f"{what} / DuckDB in place", ours, in_place, "ms", AS_FAST, "CPU")


if __name__ == "__main__":
    main(rows)
