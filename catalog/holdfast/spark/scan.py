"""A snapshot of a collection, or its changes, planned in one process and read in others. Needs no pyspark.

- What is planned names its times, so a task that runs again, elsewhere or later, reads the same.
- A location is opened read-only: tasks change nothing and need no right to.
- Worker processes live on and keep a location open. What they are given names its identity, so that none
  answers from one that was removed and made anew at the same address.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa

from holdfast.collections import (
    ChangesPart,
    CollectionPart,
    CollectionReader,
    StorageController,
    plan_changes,
    read_changes,
    read_collection_part,
)
from holdfast.collections.frontiers import check_as_of, check_forward, latest
from holdfast.collections.record.comments import Comments
from holdfast.forks import kept_in_process
from holdfast.persist import PersistClient
from holdfast.persist.rows.schema import DIFF, TIME, Schema
from holdfast.spark.conditions import Condition, conditions, kept, narrowed
from holdfast.spark.options import ReadOptions, check_columns, tasks_worth
from holdfast.spark.place import Place

CHANGES_PER_TASK: Final = 100_000
"""Changes that are worth a task of their own, which has a piece of them in memory."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A collection, and what of it is wanted; `columns` None is all of them."""

    place: Place
    location_id: UUID
    collection_id: str
    name: str
    schema: Schema
    comments: Comments
    fixed: int | None
    """The time of it; None where nothing was complete yet: then there is nothing to plan."""
    columns: tuple[str, ...] | None
    conditions: tuple[Condition, ...]
    partitions: int

    @property
    def as_of(self) -> int:
        """The time that was fixed. Raises `AsOfNotYetAvailable` where there was none."""
        return latest(0) if self.fixed is None else self.fixed

    @property
    def needed(self) -> tuple[str, ...] | None:
        """The columns to read: those that are wanted and those of the conditions."""
        if self.columns is None:
            return None
        return tuple(dict.fromkeys((*self.columns, *(each.column for each in self.conditions))))

    def with_columns(self, columns: Sequence[str]) -> "Scan":
        """The same contents, of which only these columns are wanted."""
        return dataclasses.replace(self, columns=tuple(columns))


@dataclass(frozen=True)
class ScanTask:
    """A piece of a snapshot, or of the changes between two times, for one task.

    `where` names the whole in errors.
    """

    place: Place
    location_id: UUID
    where: str
    part: CollectionPart | ChangesPart
    columns: tuple[str, ...] | None
    conditions: tuple[Condition, ...] = ()


def find(options: ReadOptions) -> Scan:
    """Look the collection up and fix the time.

    Raises `CollectionNotFound`; `AsOfTooEarly` and `AsOfNotYetAvailable` for a time outside
    `[since, upper)`; `BadInput` for a column that isn't there, a condition that doesn't fit it, or changes
    after a time that end before it.
    """
    if options.as_of is not None and options.after is not None:
        check_forward(options.after, options.as_of)
    place = Place(options.url, options.blob, options.consensus)
    with place.open_to_read() as client:
        controller = StorageController(client)
        info = controller.describe(options.collection)
        if options.columns is not None:
            check_columns(options.columns, info.schema.names)
        frontiers = controller.frontiers(info.collection_id)
        as_of = options.as_of
        if as_of is None and frontiers.upper:
            as_of = latest(frontiers.upper)
        if as_of is not None:
            check_as_of(as_of, frontiers.since, frontiers.upper)
        return Scan(
            place=place,
            location_id=client.location_id,
            collection_id=info.collection_id,
            name=info.name,
            schema=info.schema,
            comments=info.comments,
            fixed=as_of,
            columns=options.columns,
            conditions=conditions(options.where, info.schema, options.zone),
            partitions=options.partitions,
        )


def plan(scan: Scan, client: PersistClient | None = None) -> list[ScanTask]:
    """At most `scan.partitions` tasks that have all of the snapshot, each piece in one of them.

    A shard with few rows is one piece: a Python task costs Spark as much as reading a hundred thousand rows.
    Plans with `client`, one to read, or with one of its own.
    """
    if scan.fixed is None:
        return []
    with _client(scan, client) as opened:
        reader = _reader(StorageController(opened), scan)
        shards = reader.info.holding.shards
        sizes = [opened.stored(shard) for shard in shards]
        rows, size_bytes = (sum(each) for each in zip(*sizes, strict=True))
        worth = max(len(shards), tasks_worth(rows, size_bytes))
        pieces = reader.snapshot_parts(scan.as_of, min(scan.partitions, worth))
    where = f"collection {scan.name} at {scan.as_of}"
    return [_task(scan, where, part) for each in pieces if (part := _wanted(each, scan)).parts]


def plan_diff(scan: Scan, after: int, client: PersistClient | None = None) -> list[ScanTask]:
    """Tasks that have all changes after a time and up to that of the scan, in the order of time.

    About `scan.partitions` at most, but more where a handover cuts what comes before it from the rest. Plans
    with a client as `plan` does.
    """
    if scan.fixed is None:
        return []
    with _client(scan, client) as opened:
        reader = _reader(StorageController(opened), scan)
        rows = sum(count for time, count in reader.change_counts(after) if time <= scan.as_of)
        worth = max(CHANGES_PER_TASK, math.ceil(rows / scan.partitions))
        parts = plan_changes(reader, after, scan.as_of, worth)
    where = f"collection {scan.name} from {after} to {scan.as_of}"
    return [_task(scan, where, part) for part in parts]


def read(task: ScanTask) -> Iterator[pa.RecordBatch]:
    """The updates of a task: the columns wanted and those of its conditions, and `_diff`.

    Those of a snapshot are consolidated; changes have their `_time` too, in the order of it.
    """
    client = _kept_open(task.place, task.location_id)
    match task.part:
        case CollectionPart():
            batches = read_collection_part(client, task.part, task.columns)
        case ChangesPart():
            names = None if task.columns is None else [*task.columns, TIME, DIFF]
            tables = read_changes(client, task.part)
            batches = (
                batch
                for table in tables
                for batch in (table if names is None else table.select(names)).to_batches()
            )
    for batch in batches:
        yield kept(batch, task.conditions)


def with_time(batch: pa.RecordBatch, task: ScanTask) -> pa.RecordBatch:
    """What `read` gave, as updates that have a `_time`: those of a snapshot have that of it."""
    if isinstance(task.part, ChangesPart):
        return batch
    times = pa.repeat(pa.scalar(task.part.as_of, pa.uint64()), batch.num_rows)
    return batch.append_column(TIME, times)


def _client(scan: Scan, given: PersistClient | None) -> AbstractContextManager[PersistClient]:
    return scan.place.open_to_read(scan.location_id) if given is None else nullcontext(given)


def _reader(controller: StorageController, scan: Scan) -> CollectionReader:
    return controller.reader(scan.collection_id, purpose="spark scan")


def _task(scan: Scan, where: str, part: CollectionPart | ChangesPart) -> ScanTask:
    return ScanTask(scan.place, scan.location_id, where, part, scan.needed, scan.conditions)


def _wanted(piece: CollectionPart, scan: Scan) -> CollectionPart:
    """The piece without the ranges of keys that the conditions exclude."""
    if not scan.conditions:
        return piece
    parts = (narrowed(part, scan.conditions, scan.schema) for part in piece.parts)
    return dataclasses.replace(piece, parts=tuple(part for part in parts if part is not None))


_kept_open = kept_in_process(most=8)(Place.open_to_read)
