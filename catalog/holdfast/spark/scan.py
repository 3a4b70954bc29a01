"""A snapshot of a collection, or its changes, planned in one process and read in others. Needs no pyspark.

- A plan contains its times, so a task that runs again, elsewhere or later, reads the same.
- A location is opened read-only: tasks change nothing and need no permission to write.
- Worker processes stay alive and keep a location open. A task contains the location's id, so that a worker
  doesn't read from a location that was removed and created again at the same address.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
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
from holdfast.collections.complete_times import at_or_before
from holdfast.collections.conditions import Condition, kept, narrowed
from holdfast.collections.frontiers import check_forward, latest
from holdfast.collections.read_seals import complete_with
from holdfast.collections.record.column_names import PLAIN_NAMES, ColumnNames
from holdfast.collections.record.comments import Comments
from holdfast.forks import kept_in_process
from holdfast.persist import PersistClient
from holdfast.persist.rows.schema import DIFF, TIME, Schema
from holdfast.spark.conditions import conditions
from holdfast.spark.options import ReadOptions, check_columns, tasks_worth
from holdfast.spark.place import Place

CHANGES_PER_TASK: Final = 100_000
"""The least number of changes for which a separate task is worth it. A task reads its changes in pieces."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A collection and the part of it to read. `columns` None means all columns."""

    place: Place
    location_id: UUID
    collection_id: str
    name: str
    schema: Schema
    comments: Comments
    fixed: int | None
    """The time to read at. None if no time was complete yet. Then a plan has no tasks."""
    columns: tuple[str, ...] | None
    conditions: tuple[Condition, ...]
    partitions: int
    names: ColumnNames = PLAIN_NAMES
    """The names of the columns, at the time of the rows."""

    @property
    def as_of(self) -> int:
        """Return the time that was fixed. Raises `AsOfNotYetAvailable` if there was none."""
        return latest(0) if self.fixed is None else self.fixed

    @property
    def needed(self) -> tuple[str, ...] | None:
        """Return the columns to read: the selected ones and those of the conditions."""
        if self.columns is None:
            return None
        return tuple(dict.fromkeys((*self.columns, *(each.column for each in self.conditions))))

    def with_columns(self, columns: Sequence[str]) -> "Scan":
        """Return the same scan with only these columns selected."""
        return dataclasses.replace(self, columns=tuple(columns))


@dataclass(frozen=True)
class ScanTask:
    """A piece of a snapshot, or of the changes between two times, for one task.

    `where` names the collection and its times in errors.
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
    `[since, upper)`; `BadInput` for a column that doesn't exist, a condition that doesn't fit its column, or
    changes that end before the time that they start after.
    """
    if options.as_of is not None and options.after is not None:
        check_forward(options.after, options.as_of)
    place = Place(options.url, options.blob, options.consensus)
    with place.open_to_read() as client:
        controller = StorageController(client)
        info = controller.describe(options.collection)
        frontiers = controller.frontiers(info.collection_id)
        as_of = options.as_of
        if as_of is None and frontiers.upper:
            as_of = latest(frontiers.upper)
        elif as_of is not None and options.or_earlier and frontiers.upper:
            as_of = at_or_before(as_of, frontiers.since, frontiers.upper, f"collection {info.name}")
        elif as_of is not None:
            with controller.reader(info.collection_id, purpose="spark scan") as reader:
                if not _complete(place, controller, reader, as_of):
                    as_of = None  # Nothing has been written, so it is empty.
        # Changes have the current columns, and a snapshot those of its time.
        is_snapshot = options.after is None and as_of is not None
        schema = info.schema_at(as_of) if is_snapshot and as_of is not None else info.schema
        if options.columns is not None:
            check_columns(options.columns, info.name, schema.names)
        return Scan(
            place=place,
            location_id=client.location_id,
            collection_id=info.collection_id,
            name=info.name,
            schema=schema,
            comments=info.comments,
            names=info.names.at(as_of) if is_snapshot and as_of is not None else info.names,
            fixed=as_of,
            columns=options.columns,
            conditions=conditions(options.where, info.name, schema, options.zone),
            partitions=options.partitions,
        )


def reaching(scan: Scan, after: int) -> Scan:
    """Return the scan for the changes after a time, at that time if the scan's own time is before it.

    That time must be complete, or be completed now. Then no change is after it, now and later.
    """
    if scan.fixed is None or after <= scan.fixed:
        return scan
    with scan.place.open_to_read(scan.location_id) as client:
        controller = StorageController(client)
        with _reader(controller, scan) as reader:
            _complete(scan.place, controller, reader, after)
    return dataclasses.replace(scan, fixed=after)


def plan(scan: Scan, client: PersistClient | None = None) -> list[ScanTask]:
    """Return at most `scan.partitions` tasks that together read the snapshot, each piece of it once.

    A shard with few rows is one piece, because a Python task costs Spark as much as reading a hundred
    thousand rows. Planning uses `client`, which may be read-only, or else opens its own client.
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
    """Return tasks that read all changes after a time, up to the time of the scan, in order of time.

    There are at most about `scan.partitions` tasks. There may be more if a handover separates the changes
    before it from those after it. `client` is used as in `plan`.
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
    """Yield the updates of a task: the selected columns, those of its conditions, and `_diff`.

    The updates of a snapshot are consolidated. Changes also have `_time` and come in its order.
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
    """Return a batch from `read` with `_time`; updates of a snapshot get the snapshot's time."""
    if isinstance(task.part, ChangesPart):
        return batch
    times = pa.repeat(pa.scalar(task.part.as_of, pa.uint64()), batch.num_rows)
    return batch.append_column(TIME, times)


def _complete(place: Place, controller: StorageController, reader: CollectionReader, time: int) -> int:
    """Make sure that the collection can be read at a time, as `read_seals.complete_with`."""
    open_to_write = partial(place.open_to_write, controller.client.location_id)
    instead = "set the option orEarlier to true, to read at the latest complete time before it"
    return complete_with(open_to_write, controller, reader, time, f"collection {reader.info.name}", instead)


def _client(scan: Scan, given: PersistClient | None) -> AbstractContextManager[PersistClient]:
    return scan.place.open_to_read(scan.location_id) if given is None else nullcontext(given)


def _reader(controller: StorageController, scan: Scan) -> CollectionReader:
    return controller.reader(scan.collection_id, purpose="spark scan")


def _task(scan: Scan, where: str, part: CollectionPart | ChangesPart) -> ScanTask:
    return ScanTask(scan.place, scan.location_id, where, part, scan.needed, scan.conditions)


def _wanted(piece: CollectionPart, scan: Scan) -> CollectionPart:
    """Return the piece without the key ranges that the conditions exclude."""
    if not scan.conditions:
        return piece
    parts = (narrowed(part, scan.conditions, scan.schema) for part in piece.parts)
    return dataclasses.replace(piece, parts=tuple(part for part in parts if part is not None))


_kept_open = kept_in_process(most=8)(Place.open_to_read)
