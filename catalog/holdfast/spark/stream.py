"""`spark.readStream.format("holdfast")`: the contents of a collection, then all its changes, exactly once.

- An offset is a time: all changes up to it have been read. The changes between two offsets are definite, so
  a batch that is read again, even after a restart, is the same.
- The first batch is a snapshot. If the option `from` gives the time to begin after, the first batch is empty.
- Each stream has its own name, which is part of its offsets and so of its checkpoint. A durable hold with
  that name keeps readable what the stream has not read yet, even while the stream is stopped.
  `holdfast collection release` ends the hold.
- With `mode` `diff`, the rows are changes with `_time` and `_diff`. Without it, they are the rows that were
  added, and a removed row ends the stream with an error.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.collections import ChangesPart, CollectionReader, DurableHold, StorageController
from holdfast.errors import BadInput, CollectionNotFound, LocationMismatch, NoMultiset
from holdfast.persist import PersistClient
from holdfast.spark import scan
from holdfast.spark.options import ReadMode, ReadOptions
from holdfast.spark.partition import HoldfastPartition, read_task

Offset = dict[str, Any]
_OPENED: Final = ("_reader", "_looking", "_controller", "_writing")
BEFORE_ALL: Final = -1
"""The time of an offset up to which nothing has been read."""


def hold_name(stream: str) -> str:
    """Return the purpose of the durable hold of a stream."""
    return f"spark stream {stream}"


class HoldfastStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one stream.

    It lives in one process as long as the query runs; other processes read the batches.
    """

    def __init__(self, found: scan.Scan, schema: StructType, options: ReadOptions) -> None:
        self._scan = found
        self._schema = schema
        self._is_diff = options.mode is ReadMode.DIFF
        self._after = BEFORE_ALL if options.after is None else options.after
        self._limit = options.rows_per_trigger
        self._last: int | None = None
        self._first: Offset | None = None
        self._held: DurableHold | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open, because the copies that read don't need it."""
        return {name: value for name, value in self.__dict__.items() if name not in _OPENED} | {"_held": None}

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, here and below
        """Return where a stream without a checkpoint begins. This gives the stream its name."""
        if self._first is None:
            self._first = {
                "stream": uuid.uuid4().hex,
                "location": str(self._scan.location_id),
                "collection": self._scan.collection_id,
                "from": self._after,
                "time": self._after,
            }
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the number of changes per batch that the option sets; a time is never split."""
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next batch goes, at most to the latest complete time.

        Raises `BadInput` where that is before `start`: the option `from` is of a time to come.
        """
        last = self._reader.upper() - 1 if self._last is None else self._last
        # What is refused leaves no hold behind.
        self._check(start)
        if start["time"] > last:
            raise BadInput(
                f"{self._scan.name} can't be read as a stream from {start['time']} on: "
                + ("nothing has been written yet" if last == BEFORE_ALL else f"it is complete up to {last}"),
                hint="leave the option 'from' out, or give a complete time, in a new checkpoint",
            )
        if last > BEFORE_ALL:
            # Before the offset is in the checkpoint: nobody may take away what it stands for, or comes next.
            self._hold(start["stream"], last if start["time"] == BEFORE_ALL else start["time"])
        if last == start["time"]:
            return start
        if start["time"] > BEFORE_ALL and isinstance(limit, ReadMaxRows):
            last = self._reader.changed_within(start["time"], last, limit.max_rows)
        return {**start, "time": last}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return the latest complete time."""
        return {**self.initialOffset(), "time": self._reader.upper() - 1}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than what is complete now."""
        self._last = self._reader.upper() - 1

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of a batch: a snapshot at `end`, or all changes from `start` to `end`."""
        self._check(end)
        after, until = start["time"], end["time"]
        if until == BEFORE_ALL:
            # Spark plans a first batch even where nothing is complete yet.
            return []
        self._hold(end["stream"], until if after == BEFORE_ALL else after)
        wanted = replace(self._scan, fixed=until)
        if after == BEFORE_ALL:
            return [HoldfastPartition(task) for task in scan.plan(wanted, self._looking)]
        return [HoldfastPartition(task) for task in scan.plan_diff(wanted, after, self._looking)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition, in exactly the Arrow types that Spark requires."""
        # Spark makes one partition of nothing where there are none.
        if not isinstance(partition, HoldfastPartition):
            return
        try:
            yield from read_task(partition.task, self._schema, changes=self._is_diff)
        except NoMultiset as error:
            if not isinstance(partition.task.part, ChangesPart):
                raise
            raise BadInput(
                f"{error.args[0]}: rows were removed, and this stream can only return added rows",
                hint='add .option("mode", "diff"), in a new checkpoint',
            ) from None

    def commit(self, end: Offset) -> None:
        """All up to `end` has arrived: nothing before it is needed any more.

        Raises `HandleExpired` where somebody has released the hold.
        """
        if self._held is not None and end["time"] > BEFORE_ALL:
            self._held.downgrade(end["time"])

    def stop(self) -> None:
        """Close what is open. The hold stays, because the stream may continue from its checkpoint."""
        for name in _OPENED:
            if opened := self.__dict__.pop(name, None):
                opened.close()
        self._held = None

    @cached_property
    def _writing(self) -> PersistClient:
        return self._scan.place.open_to_write(self._scan.location_id)

    @cached_property
    def _controller(self) -> StorageController:
        return StorageController(self._writing, who="spark")

    @cached_property
    def _looking(self) -> PersistClient:
        # A reader of this one has no lease, which would outlive a query that is killed.
        return self._scan.place.open_to_read(self._scan.location_id)

    @cached_property
    def _reader(self) -> CollectionReader:
        return StorageController(self._looking).reader(self._scan.collection_id, purpose="spark stream")

    def _hold(self, stream: str, since: int) -> None:
        if self._held is None:
            self._held = self._controller.hold(self._scan.collection_id, hold_name(stream), since=since)

    def _check(self, offset: Offset) -> None:
        """Refuse a checkpoint of another location, collection or option `from`."""
        if offset["location"] != str(self._scan.location_id):
            raise LocationMismatch(
                f"{self._scan.place} is not the location that the checkpoint started with",
                hint="start a new checkpoint, or give the location that the checkpoint started with",
            )
        if offset["collection"] != self._scan.collection_id:
            raise CollectionNotFound(
                f"the checkpoint started with a collection other than {self._scan.name}",
                hint="start a new checkpoint, or name the collection that the checkpoint started with",
            )
        if offset["from"] != self._after:
            now, then = (
                "not given" if each == BEFORE_ALL else each for each in (self._after, offset["from"])
            )
            raise BadInput(
                f"option 'from' is {now}, but the checkpoint started with {then}",
                hint="start a new checkpoint, or give the value that the checkpoint started with",
            )
