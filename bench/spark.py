"""Collections on Spark, on two cores of one machine, against Spark's own work on the same Parquet files.

- A snapshot of 4,000,000 updates in 8 runs over 1,000,000 keys as a DataFrame, all columns (int64 key;
  string, float64 and timestamp values), into the `noop` sink. The first two appends add new keys. Each of
  the other six retracts the values of 250,000 keys and inserts others. The peer reads the parts of the
  collection with `spark.read.parquet`, and computes a snapshot in Spark:
  `groupBy(<columns>).agg(sum(_diff))`, without rows of sum 0.
- A scan of 4,000,000 rows that were appended once, in key order. Nothing has to be consolidated, so this
  shows the cost of rows from Python compared with Spark's own Parquet reader, which is the peer.
- The hydration job: the 4,000,000 rows of that collection into a rendition of 4 shards, read, sorted,
  encoded, uploaded and committed. The peer reads the same files, sorts them into 4 ranges of keys, and
  writes Parquet.
- The compaction job: the 4,000,000 updates in 8 runs of the first collection, a new copy of it each time,
  into one run, with 4 tasks. No times can be merged yet, so as many updates are written as are read. The
  peer reads the same files, sorts them into 4 ranges of keys, in the order of a run, and writes Parquet.

Both run in one session of `local[2]`, with the settings of `holdfast.spark.configure`. Before anything is
timed, the benchmark checks that both give the same rows. Files and SQLite; maintenance is off. The notes
have the rate of one core. `docs/explanation/spark-at-scale.md` uses it to estimate ten terabytes.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

# Polars reads this when it is imported.
os.environ["POLARS_MAX_THREADS"] = "1"

import numpy as np
import pyarrow as pa
from common import Goal, Row, in_turns, log, main, median, scratch
from handover import contents
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from snapshot import APPENDS, SCHEMA, UPDATES, is_parquet, updates

import holdfast.spark
from holdfast.collections import CollectionSpec, StorageController
from holdfast.persist import PersistClient, PersistConfig
from holdfast.spark.jobs import compact, hydrate
from holdfast.spark.jobs.spec import CompactSpec, HydrateSpec

CORES = 2
ROUNDS = 5
SHARDS = 4
ROWS = 4_000_000


def session(folder: Path) -> SparkSession:
    """Start Spark on two cores of this machine."""
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", 2 * CORES)
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.ui.showConsoleProgress", "false")
    )
    made = holdfast.spark.configure(builder).getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def drain(frame: DataFrame) -> None:
    """Compute all rows, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def check_equal(ours: DataFrame, peer: DataFrame) -> None:
    """Fail if the results differ."""
    price = f.col("price").cast("decimal(20, 3)")
    sums = [f.count("*"), f.sum("id"), f.countDistinct("name"), f.sum(price), f.max("at")]
    mine, theirs = (frame.agg(*sums).first() for frame in (ours, peer))
    if [str(each) for each in mine] != [str(each) for each in theirs]:
        raise SystemExit(f"spark: {mine} is not {theirs}")


def filled(folder: Path, tables: Iterator[pa.Table]) -> list[str]:
    """Create the collection `rows` from these appends; return its parts."""
    with PersistClient.open(f"file://{folder}", config=PersistConfig(maintenance="off")) as client:
        controller = StorageController(client)
        made = controller.create_collection(CollectionSpec("c", "rows", SCHEMA))
        (shard,) = made.holding.shards
        writer = controller.writer("rows", purpose="bench")
        for time, table in enumerate(tables):
            writer.append(table, time, time + 1)
            log(f"append {time + 1} of {APPENDS}")
    parts = [path for path in folder.rglob("*") if path.is_file() and shard in str(path) and is_parquet(path)]
    return sorted(map(str, parts))


def row(
    what: str, goal: float, count: int, unit: str, ours: Callable[[], None], peer: Callable[[], None]
) -> Row:
    """Return a comparison of rates."""
    ours_s, peer_s = (median(each) for each in in_turns(ours, peer, rounds=ROUNDS))
    rate = f"{count / ours_s / CORES:,.0f} {unit} a core"
    note = f"median of {ROUNDS}: {ours_s:.2f} s against {peer_s:.2f} s; {rate}"
    return Row(what, count / ours_s, count / peer_s, unit, Goal(">=", goal), note)


def upserts(count: int) -> Iterator[pa.Table]:
    """Yield two appends of so many new keys, then appends with other values for half as many keys each."""
    random = np.random.default_rng(7)
    keys = 2 * count
    versions = np.zeros(keys, np.int64)
    for number in range(APPENDS):
        if number < 2:
            ids = random.permutation(count) + number * count
            yield updates(ids, versions[ids], np.ones(count, np.int64))
            continue
        ids = random.permutation(keys)[: count // 2]
        versions[ids] += 1
        both = np.concatenate([versions[ids] - 1, versions[ids]])
        yield updates(np.tile(ids, 2), both, np.repeat([-1, 1], count // 2))


def rows_of_many_runs(spark: SparkSession, folder: Path) -> Iterator[Row]:
    """Measure a snapshot and a compaction."""
    runs = filled(folder / "runs", upserts(UPDATES))

    def snapshot() -> DataFrame:
        return holdfast.spark.read(spark, url=f"file://{folder}/runs", collection="rows")

    def grouped() -> DataFrame:
        parts = spark.read.parquet(*runs)
        summed = parts.groupBy(*SCHEMA.names).agg(f.sum("_diff").alias("_diff"))
        return summed.where("_diff <> 0")

    check_equal(snapshot(), grouped())
    yield row(
        "snapshot of 4M updates in 8 runs / Spark's groupBy of their files",
        1.5,
        APPENDS * UPDATES,
        "updates/s",
        lambda: drain(snapshot()),
        lambda: drain(grouped()),
    )

    yield from compacting(spark, folder, runs)


def compacting(spark: SparkSession, folder: Path, runs: list[str]) -> Iterator[Row]:
    """Measure a compaction."""
    updates = APPENDS * UPDATES
    copies = [folder / f"copy-{number}" for number in range(1 + ROUNDS)]
    for copy in copies:
        shutil.copytree(folder / "runs", copy)
    left = iter(copies)

    def merge() -> None:
        url = f"file://{next(left)}"
        with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
            controller = StorageController(client)
            job = controller.start_job("c", "compact", "now", spec={})
            work = {"job_id": job.job_id, "attempt": 1, "collection": "rows", "partitions": 2 * CORES}
            compact.run(CompactSpec(url=url, **work), say=lambda _: None, spark=spark)
            done = controller.job(job.job_id)
            if done is None or (done.result.get("batches"), done.result.get("rows")) != (APPENDS, updates):
                raise SystemExit(f"spark: {done}")

    def sort() -> None:
        parts = spark.read.parquet(*runs).repartitionByRange(2 * CORES, "id")
        parts.sortWithinPartitions(*SCHEMA.names, "_time").write.mode("overwrite").parquet(
            str(folder / "merged")
        )

    yield row(
        "compaction of 4M updates in 8 runs / Spark reads, sorts, writes Parquet",
        0.5,
        updates,
        "updates/s",
        merge,
        sort,
    )
    compacted = holdfast.spark.read(spark, url=f"file://{copies[-1]}", collection="rows")
    check_equal(compacted, holdfast.spark.read(spark, url=f"file://{folder}/runs", collection="rows"))


def rows_of_one_run(count: int) -> Iterator[pa.Table]:
    """Yield appends of so many rows each, in key order."""
    for number in range(APPENDS):
        yield contents(number * count, count)


def scanning_rows(spark: SparkSession, folder: Path) -> Iterator[Row]:
    """Measure a scan and a hydration."""
    parts, url = filled(folder / "rows", rows_of_one_run(UPDATES)), f"file://{folder}/rows"

    def scan() -> DataFrame:
        return holdfast.spark.read(spark, url=url, collection="rows")

    def native() -> DataFrame:
        return spark.read.parquet(*parts).select(*SCHEMA.names)

    check_equal(scan(), native())
    yield row(
        "scan of 4M rows / Spark's own scan of their files",
        0.4,
        ROWS,
        "rows/s",
        lambda: drain(scan()),
        lambda: drain(native()),
    )

    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        controller = StorageController(client)

        def fill() -> None:
            made = controller.renditions.create("rows", shards=SHARDS).id
            job = controller.start_job("c", "hydrate", made, spec={})
            work = {"job_id": job.job_id, "attempt": 1, "collection": "rows", "rendition": made}
            hydrate.run(HydrateSpec(url=url, partitions=2 * CORES, **work), say=lambda _: None, spark=spark)
            if (done := controller.job(job.job_id)) is None or (done.result or {}).get("rows") != ROWS:
                raise SystemExit(f"spark: {done}")
            controller.renditions.abort("rows", made)

        def sort() -> None:
            ranges = native().repartitionByRange(SHARDS, "id").sortWithinPartitions("id")
            ranges.write.mode("overwrite").parquet(str(folder / "sorted"))

        yield row(
            "hydration of 4M rows into 4 shards / Spark reads, sorts, writes Parquet",
            0.5,
            ROWS,
            "rows/s",
            fill,
            sort,
        )


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with scratch() as folder:
        spark = session(folder)
        try:
            yield from rows_of_many_runs(spark, folder)
            yield from scanning_rows(spark, folder)
        finally:
            spark.stop()


if __name__ == "__main__":
    main(rows)
