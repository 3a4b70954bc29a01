"""SQL by DuckDB on a consolidated table of 4,000,000 rows on files, and on plain Parquet with the same rows.

The table has 4 columns (int64 key, text, float64, int32), one shard and one part, sorted by the key. The peer
is DuckDB on one Parquet file with the same rows in the same order, in row groups of 131,072 rows. Both get
the same queries on one connection, in turns: `groups` sums a column for each of 100 values of another one,
`all columns` counts distinct hashes of whole rows, and `a range of keys` reads 1 % of the rows. The goal is
1.3 times DuckDB's time.

Holdfast verifies what it reads. Both read only the columns that a query needs. DuckDB checks no bytes.
"""

import os
from collections.abc import Iterator

os.environ["POLARS_MAX_THREADS"] = "2"

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import Goal, Row, in_turns, main, median, scratch

import holdfast
from holdfast.persist.rows.part import ROW_GROUP_ROWS

ROWS = 4_000_000
COLUMNS = {"id": "int64", "name": "string", "value": "float64", "count": "int32"}
QUERIES = {
    "groups": "SELECT count, sum(value) FROM {} GROUP BY count",
    "all columns": "SELECT count(DISTINCT hash(id, name, value, count)) FROM {}",
    "a range of keys": f"SELECT sum(value) FROM {{}} WHERE id >= {ROWS // 2} AND id < {ROWS // 100 * 51}",
}


def contents() -> pa.Table:
    rng = np.random.default_rng(1)
    names = pa.array([f"name {number}" for number in range(5000)])
    return pa.table(
        {
            "id": np.arange(ROWS),
            "name": names.take(pa.array(np.arange(ROWS) % 5000)),
            "value": rng.random(ROWS),
            "count": rng.integers(0, 100, ROWS).astype("int32"),
        }
    )


def rows() -> Iterator[Row]:
    with scratch() as folder:
        table = holdfast.table((folder / "lake").as_uri(), "rows", columns=COLUMNS, key="id")
        table.append(contents())
        plain = folder / "rows.parquet"
        pq.write_table(contents(), plain, compression="zstd", row_group_size=ROW_GROUP_ROWS)
        with table, duckdb.connect() as connection:
            connection.execute("SET threads = 2")
            connection.register("ours", table.to_duckdb(connection=connection))
            for name, query in QUERIES.items():

                def answer(source: str, query: str = query) -> pa.Table:
                    return connection.sql(query.format(source)).to_arrow_table()

                assert answer("ours").num_rows == answer(f"'{plain}'").num_rows
                mine, other = in_turns(
                    lambda: answer("ours"), lambda: answer(f"'{plain}'"), rounds=5, warmup=1
                )
                yield Row(
                    f"SQL, {name} / DuckDB on Parquet",
                    1000 * median(mine),
                    1000 * median(other),
                    "ms",
                    Goal("<=", 1.3),
                )
            connection.unregister("ours")


if __name__ == "__main__":
    main(rows)
