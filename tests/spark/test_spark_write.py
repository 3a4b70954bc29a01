"""`df.write.format("holdfast")` on real Spark writes each row once, despite faults."""

import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import holdfast.spark
from holdfast.collections import StorageController
from holdfast.errors import BadInput
from holdfast.persist import Schema
from spark.attempts import run_on_servers, run_python
from spark.orders import SCHEMA, blobs, contents, once, rows_of
from testbed.minio import Minio
from testbed.postgres import PostgresServer

pytestmark = pytest.mark.spark
Fill = Callable[..., str]
COLUMNS = ("id", "if(id % 7 = 0, null, concat('o', id)) as name", "double(id) as x")


def frame(spark: SparkSession, first: int, last: int, *, tasks: int = 2) -> DataFrame:
    return spark.range(first, last, 1, tasks).selectExpr(*COLUMNS)


@pytest.fixture
def orders(fill: Fill) -> str:
    """An empty collection in two shards."""
    return fill(f"orders-{uuid.uuid4()}", SCHEMA, {}, shards=2)


def test_rows_are_appended_in_one_step_by_name_at_one_time(
    spark: SparkSession, controller: StorageController, url: str, orders: str
) -> None:
    shuffled = frame(spark, 0, 1000, tasks=3).select("x", "name", "id")
    before_ms = controller.client.clock.wall_ms()
    shuffled.write.format("holdfast").option("url", url).option("collection", orders).mode("append").save()
    upper = controller.frontiers(orders).upper
    assert before_ms < upper
    assert contents(controller, orders) == once(0, 1000)
    with controller.reader(orders, purpose="look") as reader:
        assert reader.snapshot(upper - 2).to_table().num_rows == 0
    # What tasks uploaded is the state's: three tasks, two shards.
    assert len(blobs(controller, orders)) == 6

    changes = spark.createDataFrame(
        [(5, "o5", 5.0, -1), (2000, "o2000", 2000.0, 2)], "id long, name string, x double, _diff int"
    )
    later = upper + 1_000_000
    holdfast.spark.write(changes, url=url, collection=orders, at=later)
    assert controller.frontiers(orders).upper == later + 1
    assert contents(controller, orders) == (once(0, 1000) - Counter([5])) + Counter({2000: 2})
    # Time does not go back, and no column that may be null has to be there.
    spark.createDataFrame([(21, 21.0)], "id int, x float").write.format("holdfast").options(
        url=url, collection=orders
    ).mode("append").save()
    assert contents(controller, orders)[21] == 2
    assert controller.frontiers(orders).upper == later + 2


def test_what_does_not_fit_is_told_in_one_line_and_leaves_nothing(
    spark: SparkSession, controller: StorageController, url: str, fill: Fill
) -> None:
    collection = fill("refusing", SCHEMA, {9: rows_of(0, 3)}, shards=2)
    before = blobs(controller, collection)
    # In one task: what another uploads while the job is given up is left for the sweeper.
    bad = spark.sql("select 4 as id, 1.0D as x union all select 5, null").coalesce(1)
    for rows, message in (
        (bad, "column 'x' is not nullable, but 1 row has a null"),
        (bad.drop("x"), "column 'x' is missing"),
    ):
        with pytest.raises(BadInput) as refused:
            holdfast.spark.write(rows, url=url, collection=collection)
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)
    with pytest.raises(BadInput, match="a collection can't be written with mode 'ignore'"):
        holdfast.spark.write(bad, url=url, collection=collection, mode="ignore")  # type: ignore[arg-type]
    assert contents(controller, collection) == once(0, 3)
    assert blobs(controller, collection) == before


@pytest.mark.long
def test_any_thread_writes(
    spark: SparkSession, controller: StorageController, url: str, orders: str, tmp_path: Path
) -> None:
    rows = frame(spark, 0, 20)

    def write_by_spark() -> None:
        holdfast.spark.register(spark)
        rows.write.format("holdfast").mode("append").options(url=url, collection=orders).save()

    def write_a_stream() -> None:
        holdfast.spark.register(spark)
        stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
        writer = stream.writeStream.format("holdfast").options(url=url, collection=orders)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    rows.write.parquet(str(tmp_path / "rows"))
    for done, write in enumerate(
        (lambda: holdfast.spark.write(rows, url=url, collection=orders), write_by_spark, write_a_stream), 1
    ):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(write).result()
        assert contents(controller, orders) == Counter(dict.fromkeys(range(20), done))


@pytest.mark.long
def test_a_write_with_a_name_is_done_once(
    spark: SparkSession, controller: StorageController, url: str, orders: str
) -> None:
    for _ in range(2):
        holdfast.spark.write(frame(spark, 0, 50), url=url, collection=orders, write_id="monday")
    assert contents(controller, orders) == once(0, 50)
    assert len(blobs(controller, orders)) == 4
    holdfast.spark.write(frame(spark, 50, 60), url=url, collection=orders, write_id="tuesday")
    assert contents(controller, orders) == once(0, 60)


def test_an_overwrite_takes_the_place_of_all_that_is_there(
    spark: SparkSession, controller: StorageController, url: str, orders: str
) -> None:
    holdfast.spark.write(frame(spark, 0, 100), url=url, collection=orders)
    before = controller.frontiers(orders).upper - 1
    holdfast.spark.write(frame(spark, 50, 120), url=url, collection=orders, mode="overwrite")
    assert contents(controller, orders) == once(50, 120)
    assert contents(controller, orders, before) == once(0, 100)


class Stream:
    """Files of ten rows each, written to a collection one at a time."""

    def __init__(self, spark: SparkSession, url: str, collection: str, folder: Path) -> None:
        self.files = folder / "files"
        self.files.mkdir()
        self._began = self.files.stat().st_mtime
        self.checkpoint = folder / "checkpoint"
        self._spark = spark
        self._options = {"url": url, "collection": collection}
        self._count = 0

    def put(self, count: int) -> None:
        """Put some files more."""
        for _ in range(count):
            rows = pa.table({"id": pa.array(range(10 * self._count, 10 * self._count + 10), pa.int64())})
            file = self.files / f"{self._count:03}.parquet"
            pq.write_table(rows, file)
            # Spark takes them by their times, and those of one time in any order.
            os.utime(file, (self._began + self._count,) * 2)
            self._count += 1

    def run(self) -> None:
        """Write all that is there now."""
        frame = self._spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        query = (
            frame.parquet(str(self.files))
            .selectExpr(*COLUMNS)
            .writeStream.format("holdfast")
            .options(**self._options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)

    def forget_last(self) -> None:
        """As a driver leaves it that dies after the commit and before Spark has noted that."""
        last = max(int(each.name) for each in (self.checkpoint / "commits").glob("[0-9]*"))
        (self.checkpoint / "commits" / f"{last}").unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


@pytest.mark.long
def test_a_stream_writes_each_batch_once_also_one_that_is_done_again(
    spark: SparkSession, controller: StorageController, url: str, orders: str, tmp_path: Path
) -> None:
    stream = Stream(spark, url, orders, tmp_path)
    stream.put(2)
    stream.run()
    assert contents(controller, orders) == once(0, 20)
    upper = controller.frontiers(orders).upper
    stream.forget_last()
    stream.run()
    assert controller.frontiers(orders).upper == upper
    stream.put(1)
    stream.run()
    assert contents(controller, orders) == once(0, 30)
    (job,) = controller.jobs(orders)
    assert (job.kind, job.result["batch"], job.result["updates"]) == ("spark-stream", 2, 10)


@pytest.mark.long
def test_a_stream_of_whole_results_replaces_them(
    spark: SparkSession, controller: StorageController, url: str, fill: Fill, tmp_path: Path
) -> None:
    collection = fill("counted", Schema.of(key={"k": "int64"}, value={"count": "int64"}), {})
    for number in range(2):
        pq.write_table(pa.table({"id": pa.array(range(10), pa.int64())}), tmp_path / f"{number}.parquet")
        query = (
            spark.readStream.schema("id long")
            .parquet(str(tmp_path))
            .groupBy((F.col("id") % 2).alias("k"))
            .count()
            .writeStream.format("holdfast")
            .outputMode("complete")
            .options(url=url, collection=collection, checkpointLocation=str(tmp_path / "_checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        with controller.reader(collection, purpose="look") as reader:
            found = reader.snapshot().to_table().sort_by("k").to_pylist()
        count = 5 * (number + 1)
        assert found == [{"k": k, "count": count, "_diff": 1} for k in range(2)]


# Runs a stream whose driver, all of it, is killed before or after the commit of its first batch.
KILLED = """
import os, signal, sys
from pyspark.sql import SparkSession
from holdfast.spark import configure
from holdfast.spark.datasource import HoldfastDataSource
from holdfast.spark.writer import HoldfastStreamWriter

url, collection, files, checkpoint, moment, *columns = sys.argv[1:]
spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()
driver = [spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(), os.getpid()]

class KilledWriter(HoldfastStreamWriter):
    def commit(self, messages, batchId):
        if moment == "after":
            HoldfastStreamWriter.commit(self, messages, batchId)
        for each in driver:
            os.kill(each, signal.SIGKILL)

class Killed(HoldfastDataSource):
    @classmethod
    def name(cls):
        return "killed"

    def streamWriter(self, schema, overwrite):
        return KilledWriter(HoldfastDataSource.streamWriter(self, schema, overwrite)._make)

spark.dataSource.register(Killed)
frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(files).selectExpr(*columns)
writer = frame.writeStream.format("killed").options(url=url, collection=collection)
writer.option("checkpointLocation", checkpoint).start().awaitTermination()
"""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.long
def test_a_stream_whose_driver_is_killed_at_a_commit_goes_on_and_nothing_is_there_twice(
    spark: SparkSession, controller: StorageController, url: str, orders: str, tmp_path: Path, moment: str
) -> None:
    stream = Stream(spark, url, orders, tmp_path)
    stream.put(2)
    arguments = [url, orders, str(stream.files), str(stream.checkpoint), moment, *COLUMNS]
    killed = run_python(KILLED, *arguments)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert contents(controller, orders) == (once(0, 10) if moment == "after" else Counter())
    stream.run()
    assert contents(controller, orders) == once(0, 20)


# Writes with tasks that fail after they have uploaded, for the first time; twice, by one name.
FAILING_ONCE = """
import sys
from pyspark import TaskContext
from pyspark.sql import SparkSession
import holdfast.spark
from holdfast.persist import PersistClient, Schema
from holdfast.persist.ids import BLOB_NAME
from holdfast.spark import configure
from holdfast.spark.datasource import HoldfastDataSource
from holdfast.spark.writer import HoldfastWriter
from holdfast.collections import CollectionSpec, StorageController

class FailingWriter(HoldfastWriter):
    def write(self, iterator):
        done = HoldfastWriter.write(self, iterator)
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the machine is gone")
        return done

class Failing(HoldfastDataSource):
    @classmethod
    def name(cls):
        return "failing"

    def writer(self, schema, overwrite):
        return FailingWriter(HoldfastDataSource.writer(self, schema, overwrite)._plan)

place = dict(blob=sys.argv[1], consensus=sys.argv[2])
with PersistClient.open(**place) as client:
    controller = StorageController(client)
    schema = Schema.of(key={"id": "int64"})
    shards = controller.create_collection(CollectionSpec("c1", "orders", schema, shards=2)).data_shards
    spark = configure(SparkSession.builder.master("local[2,3]")).getOrCreate()
    spark.dataSource.register(Failing)
    frame = spark.range(0, 500, 1, 2)
    frame.write.format("failing").mode("append").options(collection="orders", **place).save()
    parts = [meta for shard in shards for meta in client.location.blob.list(shard)
             if BLOB_NAME.fullmatch(meta.key)["writer"]]
    assert len(parts) == 2 * 2 * len(shards), parts
    for _ in range(2):
        holdfast.spark.write(frame, collection="orders", write_id="again", **place)
    rows = controller.reader("c1", purpose="look").snapshot().to_table()
    assert sorted(rows["id"].to_pylist()) == list(range(500))
    assert set(rows["_diff"].to_pylist()) == {2}
"""


@pytest.mark.s3
@pytest.mark.postgres
@pytest.mark.long
def test_on_s3_and_postgres_tasks_that_fail_and_run_again_upload_twice_and_count_once(
    minio: Minio, postgres: PostgresServer
) -> None:
    run_on_servers(FAILING_ONCE, minio, postgres, timeout=600)
