"""A snapshot of a collection, planned in one process and read in others. Needs no pyspark.

- What is planned names its time, so a task that runs again, elsewhere or later, reads the same.
- A location is opened read-only: tasks change nothing and need no right to.
- Worker processes live on and keep a location open. What they are given names its identity, so that none
  answers from one that was removed and made anew at the same address.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa

from holdfast.persist.schema import Schema
from holdfast.spark.options import ReadOptions, check_columns
from holdfast.spark.place import Place
from holdfast.storage import CollectionPart, StorageController, read_collection_part
from holdfast.storage.frontiers import check_as_of, latest

ROWS_PER_TASK: Final = 100_000
"""Stored updates that are worth a task of their own."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A collection at one time; `columns` None is all of them."""

    place: Place
    location_id: UUID
    collection_id: str
    name: str
    schema: Schema
    as_of: int
    columns: tuple[str, ...] | None
    partitions: int

    def with_columns(self, columns: Sequence[str]) -> "Scan":
        """The same contents, of which only these columns are wanted."""
        return dataclasses.replace(self, columns=tuple(columns))


@dataclass(frozen=True)
class ScanTask:
    """A piece of the snapshot, for one task; `where` names the whole in errors."""

    place: Place
    location_id: UUID
    where: str
    part: CollectionPart
    columns: tuple[str, ...] | None


def find(options: ReadOptions) -> Scan:
    """Look the collection up and fix the time.

    Raises `CollectionNotFound`; `AsOfTooEarly` and `AsOfNotYetAvailable` for a time outside
    `[since, upper)`; `BadInput` for a column that isn't there.
    """
    place = Place(options.url, options.blob, options.consensus)
    with place.open_to_read() as client:
        controller = StorageController(client)
        info = controller.describe(options.collection)
        if options.columns is not None:
            check_columns(options.columns, info.schema.names)
        frontiers = controller.frontiers(info.collection_id)
        as_of = latest(frontiers.upper) if options.as_of is None else options.as_of
        check_as_of(as_of, frontiers.since, frontiers.upper)
        return Scan(
            place=place,
            location_id=client.location_id,
            collection_id=info.collection_id,
            name=info.name,
            schema=info.schema,
            as_of=as_of,
            columns=options.columns,
            partitions=options.partitions,
        )


def plan(scan: Scan) -> list[ScanTask]:
    """At most `scan.partitions` tasks that have all of the snapshot, each piece in one of them.

    A shard with few rows is one piece: a Python task costs as much as reading some ten thousand rows.
    """
    where = f"collection {scan.name} at {scan.as_of}"
    with scan.place.open_to_read(scan.location_id) as client:
        reader = StorageController(client).reader(scan.collection_id, purpose="spark scan")
        shards = reader.info.holding.shards
        rows = sum(client.inspect(shard).rows for shard in shards)
        worth = max(len(shards), math.ceil(rows / ROWS_PER_TASK))
        parts = reader.snapshot_parts(scan.as_of, min(scan.partitions, worth))
    return [ScanTask(scan.place, scan.location_id, where, part, scan.columns) for part in parts]


def read(task: ScanTask) -> Iterator[pa.RecordBatch]:
    """The consolidated updates of a task: the columns wanted and `_diff`."""
    yield from read_collection_part(_kept_open(task.place, task.location_id), task.part, task.columns)


_kept_open = functools.lru_cache(maxsize=8)(Place.open_to_read)
