"""Writing the tasks of a scan to Parquet files on Spark's executors.

A task reads and writes columns in one Python process: no row passes through the JVM. Only the files of
attempts of a task that succeeded are told to the driver.
"""

import functools
import re
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from holdfast.errors import HoldfastError
from holdfast.persist.schema import Schema
from holdfast.spark import scan
from holdfast.spark.batches import rows_of
from holdfast.spark.parquet import write_rows
from holdfast.storage.manifest import SnapshotFile

_POLL_S = 0.2
_ERROR_LINE = re.compile(r"^\s*holdfast\.errors\.\w+: (.+)$", re.MULTILINE)


def write_task(numbered: tuple[int, scan.ScanTask], *, schema: Schema, folder: Path) -> SnapshotFile | None:
    """Read the pieces of one task and write their rows to one file; runs in an executor."""
    index, task = numbered
    batches = (rows for updates in scan.read(task) for rows in rows_of(updates, where=task.where))
    return write_rows(batches, schema, folder, index)


def export(
    context: SparkContext,
    tasks: Sequence[scan.ScanTask],
    schema: Schema,
    folder: Path,
    *,
    progress: Callable[[int], None],
) -> tuple[SnapshotFile, ...]:
    """Run the tasks and return their files; `progress` is told how many tasks are done, in this thread.

    Raises `HoldfastError` with the one line of what was wrong in a task.
    """
    write = functools.partial(write_task, schema=schema, folder=folder)
    work = context.parallelize(list(enumerate(tasks)), max(1, len(tasks))).map(write)
    group = f"holdfast-export-{uuid.uuid4()}"

    def collect() -> list[SnapshotFile | None]:
        # A job group belongs to a thread, and a thread of Python to one of the JVM.
        context.setJobGroup(group, f"export into {folder}", interruptOnCancel=True)
        return work.collect()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(collect)
        told = 0
        try:
            while True:
                try:
                    written = running.result(timeout=_POLL_S)
                except NotYet:
                    if (done := _tasks_done(context, group)) > told:
                        told = done
                        progress(done)
                else:
                    return tuple(file for file in written if file is not None)
        except (PySparkException, Py4JJavaError) as error:
            if found := _ERROR_LINE.findall(str(error)):
                raise HoldfastError(f"a task failed: {found[-1]}") from None
            raise
        except BaseException:
            context.cancelJobGroup(group)
            raise


def _tasks_done(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    stages = (tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds)
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
