"""What Spark jobs cost, as formulas: CPU time, requests and bytes. Fitted at some sizes, checked at another.

A collection is on MinIO, with its log in SQLite. All requests for objects pass a proxy that counts them. The
jobs run on a Spark cluster of this machine, each executor in a process of its own with one core
(`local-cluster`). The rows are those of `spark.py`.

- *scan*: all rows and columns, of which each was appended once, into the `noop` sink.
- *snapshot*: the same of 8 runs, where six retract and insert values, so that readers consolidate.
- *hydration*: the first collection into a rendition of 4 shards.
- *compaction*: the 8 runs of the second collection into one.

CPU time is that of the driver, the executors and their Python workers, and not that of MinIO. The clock says
nothing here, because this machine has two cores for up to 4 executors. Each job runs once to warm up a
cluster, and is measured twice. The lesser time counts.

The model of each number is `a + b * executors + c * rows`, with `b` only for CPU time. No term is negative.
It is fitted with least squares of the relative errors, for 1, 2 and 4 executors and 1, 2 and 4 million rows.
Then it predicts 8 million rows on 3 executors, which no fit has seen. A row is the error of a prediction.
The notes have the formulas, with rows in millions.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

os.environ["POLARS_MAX_THREADS"] = "1"

import numpy as np
import pyarrow as pa
from common import Goal, Row, log, main, scratch
from pyspark.sql import SparkSession
from snapshot import SCHEMA

import holdfast.spark
from holdfast.collections import CollectionSpec, StorageController
from holdfast.persist import PersistClient, PersistConfig
from holdfast.spark.jobs import compact, hydrate
from holdfast.spark.jobs.spec import CompactSpec, HydrateSpec
from spark import APPENDS, SHARDS, drain, rows_of_one_run, upserts

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.delayproxy import DelayProxy
from testbed.minio import Minio

MILLION = 1_000_000
FITTED = {1: (1, 2), 2: (1, 2)}
"""Millions of rows, by the number of executors."""
CHECKED = (3, 8)
MOST_TASKS = 10_000
TIMES = 2
MOST_ERROR = 20.0
"""In per cent."""
NUMBERS = ("CPU s", "GET", "PUT", "MB read", "MB written")
Job = Callable[[], None]


def cluster(executors: int, folder: Path) -> SparkSession:
    """Start a cluster of executors with one core each. Its files are in the folder."""
    builder = (
        SparkSession.builder.master(f"local-cluster[{executors},1,1536]")
        .config("spark.driver.memory", "2g")
        .config("spark.executor.memory", "1536m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
    )
    spark = holdfast.spark.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def cpu_s(spark: SparkSession) -> float:
    """Return the CPU time of this process, of the driver, and of all processes below it, ended or not."""
    below: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        below.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    used, left = 0, [spark.sparkContext._gateway.proc.pid]  # noqa: SLF001 - nothing public has it
    while left:
        pid = left.pop()
        used += ticks.get(pid, 0)
        left += below.get(pid, ())
    return used / os.sysconf("SC_CLK_TCK") + time.process_time()


def cost(job: Job, spark: SparkSession, proxy: DelayProxy) -> np.ndarray:
    """Run a job, and return the `NUMBERS` of what it cost."""

    def now() -> np.ndarray:
        requests, (sent, received) = proxy.requests(), proxy.moved()
        gets, puts = requests["GET"] + requests["HEAD"], requests["PUT"] + requests["POST"]
        return np.array([cpu_s(spark), gets, puts, received / 1e6, sent / 1e6])

    before = now()
    job()
    found: np.ndarray = now() - before
    if found.min() < 0:
        raise SystemExit("cost_model: an executor ended during a job, and its CPU time is lost")
    return found


class Place:
    """A location on MinIO, and collections with so many millions of rows."""

    def __init__(self, folder: Path, minio: Minio, proxy: DelayProxy, millions: int) -> None:
        self.millions = millions
        self.where = {
            "blob": f"s3://{minio.make_bucket()}/lake?endpoint={proxy.endpoint}",
            "consensus": f"sqlite://{folder}/log-{millions}.db",
        }
        self.client = PersistClient.open(**self.where, config=PersistConfig(maintenance="off"))
        self.controller = StorageController(self.client)
        self.per_append = millions * MILLION // APPENDS
        self.fill("once", rows_of_one_run(self.per_append))
        self.fill("runs", upserts(self.per_append))
        self._copies = 0

    def fill(self, name: str, tables: Iterator[pa.Table]) -> None:
        """Create a collection from these appends."""
        self.controller.create_collection(CollectionSpec(name, name, SCHEMA))
        writer = self.controller.writer(name, purpose="bench")
        for at, table in enumerate(tables):
            writer.append(table, at, at + 1)

    def jobs(self, spark: SparkSession) -> Mapping[str, Callable[[], Job]]:
        """Return what prepares each job, and returns it."""

        def read(name: str) -> Job:
            return lambda: drain(holdfast.spark.read(spark, collection=name, **self.where))

        def hydration() -> Job:
            made = self.controller.renditions.create("once", shards=SHARDS).id
            id_ = self.controller.start_job("once", "hydrate", made, spec={}).job_id
            work = {"job_id": id_, "attempt": 1, "collection": "once", "partitions": MOST_TASKS}
            spec = HydrateSpec(**self.where, **work, rendition=made)

            def run() -> None:
                hydrate.run(spec, say=lambda _: None, spark=spark)
                self._check(id_)

            return run

        def compaction() -> Job:
            self._copies += 1
            name = f"copy{self._copies}"
            self.fill(name, upserts(self.per_append))
            id_ = self.controller.start_job(name, "compact", "now", spec={}).job_id
            spec = CompactSpec(**self.where, job_id=id_, attempt=1, collection=name, partitions=MOST_TASKS)

            def run() -> None:
                compact.run(spec, say=lambda _: None, spark=spark)
                self._check(id_)

            return run

        return {
            "scan": lambda: read("once"),
            "snapshot": lambda: read("runs"),
            "hydration": hydration,
            "compaction": compaction,
        }

    def _check(self, job_id: str) -> None:
        done = self.controller.job(job_id)
        if done is None or (done.result or {}).get("rows") != self.per_append * APPENDS:
            raise SystemExit(f"cost_model: {done}")


def measured(
    places: Mapping[int, Place], proxy: DelayProxy, folder: Path, executors: int, sizes: Sequence[int]
) -> Iterator[tuple[str, int, np.ndarray]]:
    """Run all jobs on one cluster. Yield the job, its millions of rows, and what it cost."""
    spark = cluster(executors, folder)
    try:
        for what in places[sizes[0]].jobs(spark):
            # The first one warms the cluster up.
            cost(places[sizes[-1]].jobs(spark)[what](), spark, proxy)
            for millions in sizes:
                prepare = places[millions].jobs(spark)[what]
                found = min((cost(prepare(), spark, proxy) for _ in range(TIMES)), key=lambda each: each[0])
                told = ", ".join(f"{value:.4g} {name}" for name, value in zip(NUMBERS, found, strict=True))
                log(f"{what} of {millions}M rows on {executors} executors: {told}")
                yield what, millions, found
    finally:
        spark.stop()


def fitted(terms: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the factors of the terms, none of them negative, with the least squares of relative errors.

    `terms` has a row for each value. With so few terms, all sets of them can be tried.
    """
    weights = 1 / np.maximum(values, 1)
    best, least = np.zeros(terms.shape[1]), float((values * weights) @ (values * weights))
    for count in range(1, terms.shape[1] + 1):
        for chosen in map(list, combinations(range(terms.shape[1]), count)):
            factors, *_ = np.linalg.lstsq(terms[:, chosen] * weights[:, None], values * weights, rcond=None)
            left = (terms[:, chosen] @ factors - values) * weights
            if (factors >= 0).all() and left @ left < least:
                least = float(left @ left)
                best = np.zeros(terms.shape[1])
                best[chosen] = factors
    return best


def terms_of(executors: int, millions: int, number: str) -> list[float]:
    """Return the terms of the model of a number."""
    return [1, executors if number == "CPU s" else 0, millions]


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    costs: dict[str, dict[tuple[int, int], np.ndarray]] = {}
    with scratch() as folder, Minio.start() as minio, DelayProxy(minio.port) as proxy:
        os.environ.update(minio.credentials)
        os.environ["AWS_REGION"] = "us-east-1"
        checked_on, checked = CHECKED
        sizes = {millions for each in FITTED.values() for millions in each} | {checked}
        places = {millions: Place(folder, minio, proxy, millions) for millions in sorted(sizes)}
        for executors, wanted in {**FITTED, checked_on: (checked,)}.items():
            for what, millions, found in measured(places, proxy, folder, executors, wanted):
                costs.setdefault(what, {})[executors, millions] = found
    for what, by_size in costs.items():
        seen = by_size.pop(CHECKED)
        for index, number in enumerate(NUMBERS):
            terms = np.array([terms_of(*each, number) for each in by_size])
            factors = fitted(terms, np.array([each[index] for each in by_size.values()]))
            predicted = float(np.array(terms_of(*CHECKED, number)) @ factors)
            error = 100 * abs(predicted - seen[index]) / max(seen[index], 1)
            a, b, c = factors
            formula = f"{a:.3g} + " + (f"{b:.3g} executors + " if number == "CPU s" else "") + f"{c:.3g} rows"
            yield Row(
                f"{what}, {number}, error of the model / {MOST_ERROR:.0f} %",
                error,
                MOST_ERROR,
                "%",
                Goal("<=", 1),
                f"{formula}; predicted {predicted:.4g}, measured {seen[index]:.4g}",
            )


if __name__ == "__main__":
    main(rows)
