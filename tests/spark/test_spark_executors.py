"""Reads, writes and streams give the same result on several executors, one of which is killed."""

from pathlib import Path

import pytest

from spark.attempts import run_on_servers
from testbed import spark
from testbed.minio import Minio
from testbed.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.postgres]

ROWS = 60_000
# A master and two workers of Spark's own: each executor is a JVM, with Python workers of its own.
ON_A_CLUSTER = f"""
import os, signal, sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast.spark
from holdfast.persist import PersistClient

place, scratch = dict(blob=sys.argv[1], consensus=sys.argv[2]), Path(os.environ["SPARK_HOME"])
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
for name, value in {{
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    "spark.local.dir": str(scratch / "local"),
    "spark.sql.shuffle.partitions": "2",
}}.items():
    builder = builder.config(name, value)
spark = holdfast.spark.configure(builder).getOrCreate()


def executor():
    # The parent of a worker is its executor's daemon for Python, whose parent is the JVM.
    return int(Path(f"/proc/{{os.getppid()}}/stat").read_text().rpartition(")")[2].split()[1])


def who(batches):
    for batch in batches:
        yield pa.record_batch({{"pid": pa.array([executor()] * batch.num_rows, pa.int64())}})


def killing(batches):
    try:
        (scratch / "killed").touch(exist_ok=False)
    except FileExistsError:
        pass
    else:
        os.kill(executor(), signal.SIGKILL)
    yield from batches


with PersistClient.open(**place) as client:
    columns = {{"id": "int64", "item": "string"}}
    orders = holdfast.table(client, "orders", columns=columns, key=["id"], shards=3)
    orders.append(pa.table({{"id": range({ROWS}), "item": ["x"] * {ROWS}}}))
    copies = [holdfast.table(client, name, columns=columns, key=["id"]) for name in ("one", "other")]

    frame = holdfast.spark.read(spark, collection="orders", partitions=4, **place)
    print("executors:", frame.mapInArrow(who, "pid long").distinct().count())
    print("rows:", frame.agg({{"id": "sum"}}).first()[0])

    holdfast.spark.write(frame.mapInArrow(killing, frame.schema), collection="one", **place)
    print("killed:", (scratch / "killed").exists())

    stream = spark.readStream.format("holdfast").options(collection="orders", partitions=4, **place).load()
    writer = stream.writeStream.format("holdfast").options(collection="other", **place)
    writer = writer.option("checkpointLocation", str(scratch / "checkpoint")).trigger(availableNow=True)
    writer.start().awaitTermination()

    for copy in copies:
        ids = copy.read()["id"].to_pylist()
        print("copied:", len(ids), len(set(ids)), sum(ids))
"""


@pytest.mark.long
def test_several_executors_do_what_one_process_does(
    minio: Minio, postgres: PostgresServer, tmp_path: Path
) -> None:
    for folder in ("bin", "jars"):
        (tmp_path / folder).symlink_to(spark.home() / folder)
    # Workers of this kind write below SPARK_HOME, wherever they are told to.
    told = run_on_servers(ON_A_CLUSTER, minio, postgres, SPARK_HOME=str(tmp_path))
    total = sum(range(ROWS))
    copied = f"copied: {ROWS} {ROWS} {total}"
    assert told.splitlines() == ["executors: 2", f"rows: {total}", "killed: True", copied, copied]
