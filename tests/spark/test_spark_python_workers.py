"""Functions on the executors open tables, in Python workers that Spark's daemon has forked."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast

pytestmark = pytest.mark.spark


def test_a_function_on_an_executor_reads_and_writes_a_table(spark: SparkSession, url: str) -> None:
    def work(part: int) -> Any:
        import holdfast as imported
        from holdfast.polars_forks import polars_works

        with imported.table(url, "tasks") as table:
            table.upsert([{"id": 10_000 + part}])
            return table.read().num_rows >= 5_000, polars_works()

    with holdfast.table(url, "tasks", columns={"id": "int64"}, key=["id"]) as table:
        table.append([{"id": number} for number in range(5_000)])
        assert table.read().num_rows == 5_000
        # Twice: the second time, workers are there already.
        for _ in range(2):
            done = spark.sparkContext.parallelize([1, 2], 2).map(work).collect()
            assert done == [(True, True)] * 2
        assert table.read().num_rows == 5_002
