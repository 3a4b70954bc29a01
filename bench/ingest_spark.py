"""Messages of a real Kafka broker into a collection, by the Spark job, against Spark's connector for Kafka.

The topic has JSON messages of about 80 bytes in 4 partitions. Each side runs in a new process, with a session
of `local[2]`, on files and SQLite. The time counts from the start of work in the session that is there, to
the end of the topic. The sides run in turns.

- *into a collection*: the job `holdfast.spark.jobs.ingest` with envelope None. The peer reads the same
  messages with Spark's connector, decodes them with `from_json`, and appends with `format("holdfast")`.
- *into Parquet*: the same job. The peer does the same, but writes Parquet files: no commit with positions,
  no order, no times.
- *a goal of the design*: the job against 150,000 rows/s. It is missed. The job takes 12.2 s of CPU time,
  of the 14.1 s that two cores have in the 7.1 s of a run. The broker runs on the same cores.

The CPU time in the notes is that of all processes of a side, without the broker.
"""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

# Polars reads this when it is imported.
os.environ["POLARS_MAX_THREADS"] = "1"

from common import Goal, Row, log, main, median, scratch
from ingest import MESSAGES, PARTITIONS, SCHEMA, block, fill
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast.spark
from holdfast.collections import CollectionSpec, StorageController
from holdfast.ingest.made_from import made_from
from holdfast.ingest.spec import parse
from holdfast.persist import PersistClient
from holdfast.spark.jobs import ingest
from holdfast.spark.jobs.spec import IngestJobSpec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.kafka import Kafka, connector

ROUNDS = 3
CORES = 2
SHARDS = 1
DDL = "id long, customer string, amount double"


def session(folder: Path) -> SparkSession:
    """Start Spark on two cores, with the jars of the connector."""
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.driver.memory", "3g")
        .config("spark.jars", ",".join(map(str, connector())))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.ui.showConsoleProgress", "false")
    )
    made = holdfast.spark.configure(builder).getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    # The first job of a session starts the Python workers.
    made.range(CORES).mapInArrow(lambda batches: batches, "id long").count()
    return made


def job(spark: SparkSession, servers: str, topic: str, url: str) -> None:
    """Feed the collection with our job."""
    with PersistClient.open(url) as client:
        controller = StorageController(client)
        # The consumer group has the id in its name, so each run has its own.
        collection = controller.describe("orders").collection_id
        record = controller.start_job(collection, "ingest", "bench", spec={})
    spec = IngestJobSpec(
        url=url,
        collection=collection,
        job_id=record.job_id,
        attempt=record.attempt,
        source=block(servers, topic),
        once=True,
        partitions=PARTITIONS,
    )
    ingest.run(spec, say=lambda _: None, spark=spark)


def decoded(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    """Read the whole topic with Spark's connector, and decode it."""
    messages = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    return messages.select(f.from_json(f.col("value").cast("string"), DDL).alias("row")).select("row.*")


def appended(spark: SparkSession, servers: str, topic: str, url: str) -> None:
    """Append to the collection with Spark's connector."""
    rows = decoded(spark, servers, topic)
    rows.write.format("holdfast").option("url", url).option("collection", "orders").mode("append").save()


def parquet(spark: SparkSession, servers: str, topic: str, url: str) -> None:
    """Write Parquet with Spark's connector."""
    decoded(spark, servers, topic).write.parquet(f"{url}/parquet")


SIDES = {"job": job, "connector": appended, "parquet": parquet}


def one(side: str, servers: str, topic: str, folder: str) -> None:
    """Run one side in this process, and print the seconds, the CPU time and the rows."""
    url = f"file://{folder}/to"
    fed = side == "job"
    spec = parse(block(servers, topic))
    with PersistClient.open(url) as client:
        StorageController(client).create_collection(
            CollectionSpec(
                str(uuid.uuid4()),
                "orders",
                SCHEMA,
                SHARDS,
                source_fed=fed,
                made_from=made_from(spec) if fed else "",
            )
        )
    spark = session(Path(folder))
    before, start = cpu(), time.perf_counter()
    SIDES[side](spark, servers, topic, url)
    seconds, used = time.perf_counter() - start, cpu() - before
    if side == "parquet":
        total = spark.read.parquet(f"{url}/parquet").count()
    else:
        with (
            PersistClient.open(url) as client,
            StorageController(client).reader("orders", purpose="bench") as reader,
        ):
            total = sum(batch.num_rows for batch in reader.snapshot())
    spark.stop()
    print(json.dumps([seconds, used, total]))


def cpu() -> float:
    """Return the CPU time of this process and of all below it, in seconds."""
    below = {os.getpid()}
    processes: dict[int, tuple[int, int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            processes[int(each.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    while True:
        more = {pid for pid, (parent, _) in processes.items() if parent in below} - below
        if not more:
            break
        below |= more
    ticks = sum(processes[pid][1] for pid in below if pid in processes)
    return ticks / os.sysconf("SC_CLK_TCK")


def run(side: str, servers: str, topic: str) -> tuple[float, float]:
    """Run one side in a new process. Returns rows per second and CPU seconds."""
    with scratch() as folder:
        command = [sys.executable, __file__, "--side", side, servers, topic, str(folder)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        seconds, used, total = json.loads(done.stdout.splitlines()[-1])
    assert total == MESSAGES, (side, total)
    log(f"{side}: {total / seconds:,.0f} rows/s, {used:.1f} CPU s")
    return total / seconds, used


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    rates: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}
    with Kafka.start() as broker:
        topic = broker.make_topic(PARTITIONS, retention_ms="-1")
        fill(broker, topic, 0, MESSAGES)
        for _ in range(ROUNDS):
            for side in SIDES:
                speed, seconds = run(side, broker.servers, topic)
                rates.setdefault(side, []).append(speed)
                used.setdefault(side, []).append(seconds)
    rate = {side: median(each) for side, each in rates.items()}
    busy = {side: median(each) for side, each in used.items()}

    def row(name: str, peer: str, goal: float) -> Row:
        runs = f"median of {ROUNDS} runs with {MESSAGES:,} messages"
        note = f"{runs}; CPU {busy['job']:.1f} and {busy[peer]:.1f} s"
        return Row(name, rate["job"], rate[peer], "rows/s", Goal(">=", goal), note)

    yield row("ingest on Spark / Spark's connector into a collection", "connector", 1.5)
    yield row("ingest on Spark / Spark's connector into Parquet", "parquet", 1)
    yield Row(
        "ingest on Spark: rows/s", rate["job"], 150_000, "rows/s", Goal(">=", 1), "the peer is the goal"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        one(*sys.argv[2:])
    else:
        main(rows)
