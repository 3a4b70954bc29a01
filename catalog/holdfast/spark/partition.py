"""One task of a scan: what the driver plans and an executor reads."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from holdfast.spark.scan import ScanTask


class HoldfastPartition(InputPartition):
    """A few parts of the snapshot, or the changes of some times."""

    def __init__(self, task: "ScanTask") -> None:
        super().__init__(task)
        self.task = task


def read_task(task: "ScanTask", schema: StructType, *, changes: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task with the columns of `schema`, in exactly the Arrow types that Spark requires.

    Changes have `_time` and `_diff`. Otherwise a row is repeated as often as the collection contains it.
    Raises `BadInput` for a row whose count is negative.
    """
    from holdfast.spark import scan
    from holdfast.spark.batches import conform, rows_of
    from holdfast.spark.types import batch_schema

    wanted = batch_schema(schema)
    for updates in scan.read(task):
        if changes:
            yield conform(scan.with_time(updates, task), wanted)
        else:
            for rows in rows_of(updates, where=task.where):
                yield conform(rows, wanted)
