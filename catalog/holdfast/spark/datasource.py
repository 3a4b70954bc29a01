"""`format("holdfast")`: reads a collection at one time, or its changes, as a DataFrame or a stream, and
writes it.

- A DataFrame is one fixed snapshot. The time is chosen when it is created (`schema()`), and not when it is
  used. The same is true for a temporary view. Spark 4.3 reads a table of its catalog without options, so such
  a table is refused: by CREATE TABLE, or, if that names columns or `saveAsTable` gives rows, when it is read.
- There is no `pushFilters`, and there must never be: Spark 4.3 keeps the filtered reader on the relation, so
  a second use of the same DataFrame silently loses rows. The options `columns` and `where` prune instead.
- Nothing here runs in the user's process: Spark creates, plans and reads a source in Python workers. Each
  worker opens the location once, read-only. So reading needs no right to write and leaves nothing behind.
- A batch read has no hold. If the collection's since passes the time of a DataFrame, reading it raises
  `AsOfTooEarly`. It never shows other rows. `holdfast.spark.hold` keeps the time readable. A stream has a
  hold.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.spark.options import ReadMode, for_batch, for_stream, parse_options

# Spark imports this module in a separate process only to learn the name of the source, and starts another
# process after each error. So modules that read data, which take a second to import, are imported where data
# is read.
from holdfast.spark.partition import HoldfastPartition, read_task
from holdfast.spark.write_options import parse_write_options

if TYPE_CHECKING:
    from holdfast.spark.planned_write import WritePlan
    from holdfast.spark.scan import Scan
    from holdfast.spark.stream import HoldfastStreamReader
    from holdfast.spark.writer import HoldfastStreamWriter, HoldfastWriter


class HoldfastDataSource(DataSource):
    """The data source named "holdfast". `holdfast.spark.options` documents its options."""

    # Spark pickles the source after schema() and plans with the copy, so the scan is kept here.
    _found: "Scan | None" = None

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "holdfast"

    def schema(self) -> StructType:
        """Find the collection, fix the time, and return the columns."""
        options = parse_options(self.options)
        from holdfast.spark import scan
        from holdfast.spark.types import spark_schema

        found = self._found = scan.find(options)
        changes = options.mode is ReadMode.DIFF
        as_of = found.fixed if options.or_earlier else None
        return spark_schema(found.schema, found.columns, found.comments, changes=changes, as_of=as_of)

    def reader(self, schema: StructType) -> "HoldfastReader":
        """A reader with the columns of `schema`, which the user may have chosen."""
        options = for_batch(parse_options(self.options))
        wanted = self._wanted(schema)
        if options.after is not None and options.as_of is None:
            from holdfast.spark import scan

            wanted = scan.reaching(wanted, options.after)
        return HoldfastReader(wanted, schema, options.after)

    def streamReader(self, schema: StructType) -> "HoldfastStreamReader":  # noqa: N802 - Spark's name
        """A reader of a stream with the columns of `schema`."""
        options = for_stream(parse_options(self.options))
        from holdfast.spark.stream import HoldfastStreamReader

        return HoldfastStreamReader(self._wanted(schema), schema, options)

    def writer(self, schema: StructType, overwrite: bool) -> "HoldfastWriter":
        """A batch write of rows with the columns of `schema`, which are added or `overwrite` the contents."""
        from holdfast.spark.writer import HoldfastWriter

        return HoldfastWriter(self._plan_write(schema, overwrite, stream=False)())

    def streamWriter(self, schema: StructType, overwrite: bool) -> "HoldfastStreamWriter":  # noqa: N802
        """The write of one batch of a stream, or its commit. With `overwrite`, output mode complete."""
        from holdfast.spark.writer import HoldfastStreamWriter

        return HoldfastStreamWriter(self._plan_write(schema, overwrite, stream=True))

    def _plan_write(self, schema: StructType, overwrite: bool, *, stream: bool) -> "Callable[[], WritePlan]":
        options = parse_write_options(self.options, stream=stream)
        from holdfast.spark import planned_write
        from holdfast.spark.types import check_writes

        check = partial(check_writes, schema, counted=not overwrite)
        return partial(planned_write.plan, options, check, replaces=overwrite)

    def _wanted(self, schema: StructType) -> "Scan":
        """The scan, with the columns of `schema`."""
        from holdfast.spark import scan
        from holdfast.spark.types import check_fits

        options = parse_options(self.options)
        # Spark doesn't call schema() if the user gives a schema.
        found = self._found or scan.find(options)
        check_fits(schema, found.name, found.schema, changes=options.mode is ReadMode.DIFF)
        return found.with_columns([name for name in schema.fieldNames() if name in found.schema.names])


class HoldfastReader(DataSourceReader):
    """Plans a scan and reads its tasks: the changes `after` a time if it is given, otherwise a snapshot."""

    def __init__(self, found: "Scan", schema: StructType, after: int | None) -> None:
        self._scan = found
        self._schema = schema
        self._after = after

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the scan: few and large, because each task costs Spark at least about 30 ms."""
        from holdfast.spark import scan

        if self._after is None:
            return [HoldfastPartition(task) for task in scan.plan(self._scan)]
        return [HoldfastPartition(task) for task in scan.plan_diff(self._scan, self._after)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in exactly the Arrow types that Spark expects."""
        # If there are no partitions, Spark creates one itself.
        if isinstance(partition, HoldfastPartition):
            yield from read_task(partition.task, self._schema, changes=self._after is not None)
