"""Writes the tasks of a scan to Parquet files, on Spark's executors."""

import functools
from collections.abc import Callable, Sequence

from pyspark import SparkContext

from holdfast.collections.record.comments import Comments
from holdfast.collections.snapshots.folder import SnapshotFolder
from holdfast.collections.snapshots.manifest import SnapshotFile
from holdfast.collections.snapshots.parquet import write_empty, write_rows
from holdfast.persist.rows.schema import Schema
from holdfast.spark import scan
from holdfast.spark.batches import rows_of
from holdfast.spark.jobs.tasks import run_tasks


def write_task(
    numbered: tuple[int, scan.ScanTask], *, schema: Schema, comments: Comments, folder: SnapshotFolder
) -> SnapshotFile | None:
    """Read the pieces of one task and write their rows to one file. Runs in an executor."""
    index, task = numbered
    batches = (rows for updates in scan.read(task) for rows in rows_of(updates, where=task.where))
    return write_rows(batches, schema, folder, index, comments)


def export(
    context: SparkContext,
    tasks: Sequence[scan.ScanTask],
    found: scan.Scan,
    folder: SnapshotFolder,
    *,
    progress: Callable[[int], None],
) -> tuple[SnapshotFile, ...]:
    """Run the tasks and return their files.

    `progress` is called in this thread with the number of finished tasks. If there are no rows, the result is
    one file that has only the columns. Raises `HoldfastError` with a one-line message if a task fails.
    """
    write = functools.partial(write_task, schema=found.schema, comments=found.comments, folder=folder)
    numbered = list(enumerate(tasks))
    written = run_tasks(context, numbered, write, what=f"export into {folder}", progress=progress)
    files = tuple(file for file in written if file is not None)
    return files or (write_empty(found.schema, folder, found.comments),)
