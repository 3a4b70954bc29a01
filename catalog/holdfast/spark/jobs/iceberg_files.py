"""The data files of an Iceberg table, written by Spark's tasks. See `holdfast.tables.iceberg.files`."""

import functools
from collections.abc import Callable, Sequence

from pyspark import SparkContext

from holdfast.collections.snapshots.parquet import groups_of
from holdfast.persist.rows.schema import Schema
from holdfast.spark import scan
from holdfast.spark.batches import rows_of
from holdfast.spark.jobs.tasks import run_tasks
from holdfast.tables.iceberg.files import IcebergFile, TableLocation, write_file


def export(
    context: SparkContext,
    tasks: Sequence[scan.ScanTask],
    schema: Schema,
    place: TableLocation,
    *,
    progress: Callable[[int], None],
) -> tuple[IcebergFile, ...]:
    """Run the tasks and return their files. Like `export.export`."""
    write = functools.partial(write_task, schema=schema, place=place)
    numbered = list(enumerate(tasks))
    written = run_tasks(context, numbered, write, what=f"export into {place.folder}", progress=progress)
    return tuple(file for file in written if file is not None)


def write_task(
    numbered: tuple[int, scan.ScanTask], *, schema: Schema, place: TableLocation
) -> IcebergFile | None:
    """Read the pieces of one task and write their rows to one file.

    Without rows, returns None and writes no file.
    """
    index, task = numbered
    groups = groups_of(rows for updates in scan.read(task) for rows in rows_of(updates, where=task.where))
    first = next(groups, None)
    return None if first is None else write_file(index, first, groups, schema=schema, place=place)
