"""`spark.read.format("holdfast")`: a collection at one time as a DataFrame.

- A DataFrame is one frozen snapshot: the time is fixed when it is made (`schema()`), never when it is used.
  The same goes for a temporary view. A table of Spark's catalog is refused: 4.3 loses its options.
- There is no `pushFilters`, and never may be: Spark 4.3 keeps the filtered reader on the relation, so a
  second use of the same DataFrame silently loses rows. The `columns` option is the only pruning.
- Nothing here runs in the user's process: Spark makes, plans and reads a source in Python workers. Each
  worker opens the location once, read-only, so reading needs no right to write and leaves nothing behind.
- There is no hold: when the collection's `since` passes the time of a DataFrame, reading it fails with
  `AsOfTooEarly`. It never shows other rows.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.spark.options import parse_options

# Spark imports this module in a process of its own only to learn the name of the source, and starts another
# one after each error: what reads data is imported, which takes a second, where data is read.
if TYPE_CHECKING:
    from holdfast.spark.scan import Scan, ScanTask


class HoldfastDataSource(DataSource):
    """The data source named "holdfast"; its options are those of `holdfast.spark.options`."""

    # Spark pickles the source after schema() and plans with the copy, so what is found there is kept.
    _found: "Scan | None" = None

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "holdfast"

    def schema(self) -> StructType:
        """Find the collection, fix the time, and tell the columns."""
        options = parse_options(self.options)
        from holdfast.spark import scan
        from holdfast.spark.types import spark_schema

        self._found = scan.find(options)
        return spark_schema(self._found.schema, self._found.columns)

    def reader(self, schema: StructType) -> "HoldfastReader":
        """A reader with the columns of `schema`, which may be the user's own choice."""
        from holdfast.spark import scan
        from holdfast.spark.types import check_fits

        # schema() is not called where the user gives one.
        found = self._found or scan.find(parse_options(self.options))
        check_fits(schema, found.schema)
        return HoldfastReader(found.with_columns(schema.fieldNames()), schema)


class HoldfastPartition(InputPartition):
    """A few parts of the snapshot."""

    def __init__(self, task: "ScanTask") -> None:
        super().__init__(task)
        self.task = task


class HoldfastReader(DataSourceReader):
    """Plans a scan and reads its tasks."""

    def __init__(self, found: "Scan", schema: StructType) -> None:
        self._scan = found
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Few and fat: a task costs Spark some 30 ms whatever it reads."""
        from holdfast.spark import scan

        return [HoldfastPartition(task) for task in scan.plan(self._scan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in exactly the Arrow types that Spark wants."""
        from holdfast.spark import scan
        from holdfast.spark.batches import conform, rows_of
        from holdfast.spark.types import batch_schema

        # Spark makes one partition of nothing where there are none.
        if not isinstance(partition, HoldfastPartition):
            return
        wanted = batch_schema(self._schema)
        for updates in scan.read(partition.task):
            for rows in rows_of(updates, where=partition.task.where):
                yield conform(rows, wanted)
