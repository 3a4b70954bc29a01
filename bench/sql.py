"""SQL by DuckDB on tables of 4,000,000 rows on files, and on plain Parquet with the same rows.

A table has 4 columns (int64 key, text, float64, int32) and one shard. One table is consolidated: it has one
run of two parts, sorted by the key. The other one got 5 appends more, of 2,000 rows and of 20, which nobody
has compacted. The peer is DuckDB on one Parquet file with the rows of the first table in the same order, in
row groups of 131,072 rows. `groups` sums a column for each of 100 values of another one, `all columns` counts
distinct hashes of whole rows, `a range of keys` reads 1 % of the rows, and `a value` those with one of 100
values. The goal is 1.3 times DuckDB's time for the consolidated table.

There are two ways to run a query. `holdfast.sql` names the location, in a process that has it open for the
table. So each query looks at the location, opens the table and a connection of DuckDB, and closes them. The
client of the location stays open for some seconds, and is used again if the location is still the same.
`to_duckdb` is the table as a relation of a connection, which stays open. The peer has such a connection too.
All run in turns. The first turn does not count: it reads and verifies the parts as a whole. The times are
those of the clock, the shortest of the rounds: what else the machine does only adds to it. The note has the
CPU time of the process, also the shortest.

Holdfast verifies what it reads. All read only the columns that a query needs. DuckDB checks no bytes.

DuckDB decodes the parts itself, with all of its threads, if their rows are the contents as they are. For
`to_duckdb` the table must be consolidated when the relation is made. Otherwise DuckDB takes the rows as a
stream of Arrow. Two threads of ours decode it ahead, and Python makes each batch of it. In a row group,
DuckDB decodes only the rows for which a condition holds. Arrow's reader decodes whole row groups. For
`a value`, the table of several runs also reads the key for each query: if an interrupted read has to continue
with other parts, it goes on after a key.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

os.environ["POLARS_MAX_THREADS"] = "2"

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import Goal, Row, in_turns, main, scratch

import holdfast
from holdfast.persist.rows.part import ROW_GROUP_ROWS

ROWS = 4_000_000
ROUNDS = 5
MORE = (2000, 2000, 2000, 20, 20)
COLUMNS = {"id": "int64", "name": "string", "value": "float64", "count": "int32"}
QUERIES = {
    "groups": "SELECT count, sum(value) FROM {} GROUP BY count",
    "all columns": "SELECT count(DISTINCT hash(id, name, value, count)) FROM {}",
    "a value": "SELECT sum(value) FROM {} WHERE count = 7",
    "a range of keys": f"SELECT sum(value) FROM {{}} WHERE id >= {ROWS // 2} AND id < {ROWS // 100 * 51}",
}


def contents(count: int = ROWS, first: int = 0) -> pa.Table:
    rng = np.random.default_rng(1 + first)
    names = pa.array([f"name {number}" for number in range(5000)])
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "name": names.take(pa.array(np.arange(count) % 5000)),
            "value": rng.random(count),
            "count": rng.integers(0, 100, count).astype("int32"),
        }
    )


def rows() -> Iterator[Row]:
    with scratch() as folder:
        plain = folder / "rows.parquet"
        pq.write_table(contents(), plain, compression="zstd", row_group_size=ROW_GROUP_ROWS)
        for appends in ((), MORE):
            url = (folder / f"lake{len(appends)}").as_uri()
            with holdfast.table(url, "ours", columns=COLUMNS, key="id") as table:
                table.append(contents())
                for number, count in enumerate(appends):
                    table.append(contents(count, ROWS + number * max(MORE)))
                yield from compared(url, table, plain, f", {1 + len(appends)} runs" if appends else "")


def compared(url: str, table: holdfast.Table, plain: Path, kind: str) -> Iterator[Row]:
    with duckdb.connect() as connection, duckdb.connect() as other:
        for each in (connection, other):
            each.execute("SET threads = 2")
        connection.register("ours", table.to_duckdb(connection=connection))
        for name, query in QUERIES.items():

            def by_sql(query: str = query) -> pa.Table:
                with holdfast.sql(url, query.format("ours")) as result:
                    return result.read()

            def by_relation(query: str = query) -> pa.Table:
                return connection.sql(query.format("ours")).to_arrow_table()

            def peer(query: str = query) -> pa.Table:
                return other.sql(query.format(f"'{plain}'")).to_arrow_table()

            ways = by_sql, by_relation, peer
            assert len({way().num_rows for way in ways}) == 1
            *ours, theirs = (1000 * min(each) for each in in_turns(*ways, rounds=ROUNDS))
            cpu = in_turns(*ways, rounds=ROUNDS, warmup=0, clock=time.process_time)
            *ours_cpu, peer_cpu = (1000 * min(each) for each in cpu)
            for way, found, used in zip(("SQL", "SQL by to_duckdb"), ours, ours_cpu, strict=True):
                yield Row(
                    f"{way}, {name}{kind} / DuckDB on Parquet",
                    found,
                    theirs,
                    "ms",
                    Goal("<=", 1.3),
                    f"CPU {used:.4g} against {peer_cpu:.4g} ms, ratio {used / peer_cpu:.3g}",
                )


if __name__ == "__main__":
    main(rows)
