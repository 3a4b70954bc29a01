"""A write by Spark: planned in one process, uploaded by tasks, committed in another. Needs no pyspark.

- Nothing lives as long as the write: Spark plans and commits in different processes. So the writers are made
  when it is planned, and handed on: tasks upload for them and say that they live, and who commits appends as
  them. A driver that dies leaves entries that end with their lease, and uploads that are swept.
- All rows get one time, which is fixed when it is planned. Where the collection is complete past it at the
  commit, or has been handed over, what was uploaded is read back and appended anew, by the one that commits.
- Only what Spark names in the commit is appended: what a task uploaded that failed, or ran twice, is not.
- A write that has a name, and a batch of a stream, is recorded in the step that appends it; what is on record
  is not appended again, and what was uploaded for it goes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final
from uuid import UUID

import pyarrow as pa

from holdfast.collections import CollectionWriter, Position, RenditionInfo, StorageController, job_id
from holdfast.collections.evolved import fitted
from holdfast.collections.uploaded import UploadedAppend
from holdfast.collections.uploading import upload_rows
from holdfast.errors import (
    AsOfTooEarly,
    CollectionNotFound,
    Determinate,
    HoldfastError,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.forks import kept_in_process
from holdfast.persist import PersistClient, Prepared, Schema, Upload, UploadTicket
from holdfast.persist.config import Maintenance
from holdfast.persist.prepared import LONGEST_UPLOAD_S
from holdfast.persist.rows.canonical import prepare_updates
from holdfast.persist.rows.consolidate import negated
from holdfast.spark.place import Place
from holdfast.spark.write_options import WriteOptions
from holdfast.tables.loading import check_open, load

WRITE: Final = "spark-write"
"""The kind of the jobs that are writes with a name; the slot is that name."""
STREAM: Final = "spark-stream"
"""The kind of the jobs that are streams into a collection; the slot is the id of Spark's query."""

_PURPOSE: Final = "spark write"
# As long as anything may be uploaded and not committed: whatever Spark does before its tasks start.
_LEASE_S: Final = LONGEST_UPLOAD_S / 2
_BEAT_S: Final = 300.0
_TRIES: Final = 10

Uploads = tuple[Upload, ...]
"""What a task has uploaded: one upload for each ticket, or nothing where it had no rows."""


@dataclass(frozen=True, kw_only=True)
class WritePlan:
    """What tasks and the commit need to know. Picklable.

    `tickets` are those of the shards of `rendition`, with `schema`. `replaces` where the rows take the place
    of the contents; `done` where the write was done before.
    """

    options: WriteOptions
    location_id: UUID
    collection_id: str
    name: str
    schema: Schema
    rendition: RenditionInfo
    tickets: tuple[UploadTicket, ...]
    time: int
    replaces: bool = False
    done: bool = False


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of a stream: the id of Spark's query, which its checkpoint keeps, and its number."""

    query: str
    number: int


def plan(options: WriteOptions, check: Callable[[Schema], None], *, replaces: bool) -> WritePlan:
    """Look the collection up, fix time and route, and make the writers.

    `check` refuses a schema that the rows don't fit, before anything is made. Raises what it raises,
    `CollectionNotFound`, and `BadInput` where a source feeds the collection, or it is complete past the time.
    """
    with options.place.open_to_read() as client:
        location_id = client.location_id
        info = StorageController(client).describe(options.collection)
    if info.dropped:
        raise CollectionNotFound(info.end)
    check(info.schema)
    controller = _controller(options.place, location_id, "off")
    done = (
        options.write_id is not None
        and controller.job(job_id(info.collection_id, WRITE, options.write_id)) is not None
    )
    writer = controller.writer(info.collection_id, purpose=_PURPOSE)
    position = writer.position()
    time = 0 if done else _time(controller.client, options, info.name, position)
    return WritePlan(
        options=options,
        location_id=location_id,
        collection_id=info.collection_id,
        name=info.name,
        schema=position.route.schema,
        rendition=position.route.rendition,
        tickets=() if done else writer.hand_out(position, lease_s=_LEASE_S),
        time=time,
        replaces=replaces,
        done=done,
    )


def upload(planned: WritePlan, batches: Iterable[pa.RecordBatch]) -> Uploads:
    """Upload the rows of one task. Raises `BadInput` naming the column whose values don't fit."""
    if planned.done:
        return ()
    alive = _alive(planned.options.place, planned.location_id, planned.tickets)
    rows = _updates(planned, batches, alive.beat)
    first = next(rows, None)
    if first is None:
        return ()
    return upload_rows(
        alive.client, chain([first], rows), planned.rendition, planned.tickets, meanwhile=alive.beat
    )


def commit(planned: WritePlan, uploads: Sequence[Uploads], batch: StreamBatch | None = None) -> None:
    """Append what the tasks have uploaded, in one step, or find that it was done before.

    Raises `HandleExpired` where what was uploaded may be gone, `BadInput` where the collection is complete
    past the time that was asked for: nothing happened. `Indeterminate` where that could not be found out.
    """
    if planned.done:
        return
    controller = _controller(planned.options.place, planned.location_id, "background")
    writer = controller.writer(planned.collection_id, purpose=_PURPOSE)
    append = writer.uploaded(planned.rendition.id, planned.tickets, [each for each in uploads if each])
    step = _Step(controller, planned, batch, append.rows)
    if planned.replaces:
        _replace(controller, writer, append, planned, step)
    elif append.rows and _appended(writer, append, planned.time, step):
        if step.is_ours:
            append.close()
            return
    elif append.rows:
        _append_anew(controller.client, writer, append, planned, step)
    # It is in elsewhere, or there is nothing; that some of it stays must not make the write look failed.
    with suppress(HoldfastError):
        append.give_up()


def abort(planned: WritePlan, uploads: Sequence[Uploads | None]) -> None:
    """Take away what was uploaded, as far as it was not appended after all and as that goes."""
    if planned.done:
        return
    with suppress(HoldfastError):
        controller = _controller(planned.options.place, planned.location_id, "background")
        for index, ticket in enumerate(planned.tickets):
            controller.client.give_up(ticket, [each[index] for each in uploads if each])


def _time(client: PersistClient, options: WriteOptions, name: str, position: Position) -> int:
    """The time of the rows. Raises `BadInput` where that is asked for and the collection is past it."""
    if options.at is None:
        return max(client.now_ms(), position.upper)
    check_open(name, position.upper, options.at)
    return options.at


def _updates(
    planned: WritePlan, batches: Iterable[pa.RecordBatch], meanwhile: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    wanted = planned.schema.arrow
    for batch in batches:
        meanwhile()
        for name in wanted.names:
            if name not in batch.schema.names:
                batch = batch.append_column(name, pa.nulls(batch.num_rows, wanted.field(name).type))
        updates = prepare_updates(planned.schema, batch, default_time=planned.time)
        if updates.num_rows:
            yield updates


def _appended(writer: CollectionWriter, append: UploadedAppend, at: int, step: "_Step") -> bool:
    """Whether what was uploaded is in as it is, or on record before; False where it can't be named."""
    while append.fits(position := writer.position(), at):
        try:
            step(lambda: append.prepare(position, at + 1).steps)
        except (UpperMismatch, ShardFinalized):
            continue
        return True
    return False


def _append_anew(
    client: PersistClient,
    writer: CollectionWriter,
    append: UploadedAppend,
    planned: WritePlan,
    step: "_Step",
) -> None:
    """Append what was uploaded where the collection is now, at a time that it has not passed."""
    with writer.bulk() as bulk:
        for table in append.updates():
            bulk.add(fitted(table, writer.schema.arrow_diff))
        load(client, writer, bulk, step, at=planned.options.at)


def _replace(
    controller: StorageController,
    writer: CollectionWriter,
    append: UploadedAppend,
    planned: WritePlan,
    step: "_Step",
) -> None:
    """Append what differs between what was uploaded and what is there just before."""
    for _ in range(_TRIES):
        try:
            position = _readable(controller.client, writer)
            with (
                writer.bulk() as bulk,
                controller.reader(planned.collection_id, purpose=_PURPOSE) as reader,
            ):
                for table in append.updates():
                    bulk.add(fitted(table, writer.schema.arrow_diff))
                if position.upper:
                    for rows in reader.snapshot(position.upper - 1):
                        bulk.add(negated(fitted(rows, writer.schema.arrow_diff)))
                at = _time(controller.client, planned.options, planned.name, position)
                # The upload, before a commit in which no other command of this process goes on.
                bulk.prepare(position, at + 1, time=at)
                step(lambda: bulk.prepare(position, at + 1, time=at).steps)  # noqa: B023 - called at once
        except (UpperMismatch, ShardFinalized, AsOfTooEarly):
            continue
        return
    raise Determinate(
        f"collection {planned.name} was written by others in each of {_TRIES} tries to replace its contents",
        hint="nothing was written; write while nobody else does",
    )


def _readable(client: PersistClient, writer: CollectionWriter) -> Position:
    """A position just before which the rendition that gets the append is the collection."""
    while True:
        position = writer.position()
        if position.upper > position.held_from or position.upper == 0:
            return position
        client.multi_write(writer.prepare(None, position, position.upper + 1).steps)


class _Step:
    """Commits the steps of an append with the record of it; `is_ours` tells whether that took place."""

    def __init__(
        self, controller: StorageController, planned: WritePlan, batch: StreamBatch | None, rows: int
    ) -> None:
        self.is_ours = True
        self._controller = controller
        self._planned = planned
        self._batch = batch
        self._result = {"updates": rows, "host": controller.client.config.hostname}

    def __call__(self, effects: Callable[[], Sequence[Prepared]]) -> None:
        """Raises `UpperMismatch` where an effect lost on its shard."""
        id_, write_id = self._planned.collection_id, self._planned.options.write_id
        if self._batch is not None:
            self.is_ours = self._controller.record_batch(
                id_,
                STREAM,
                self._batch.query,
                self._batch.number,
                spec={},
                result=self._result,
                effects=effects,
            )
        elif write_id is not None:
            _, self.is_ours = self._controller.record_job(
                id_, WRITE, write_id, spec={}, result=self._result, effects=effects
            )
        else:
            self._controller.client.multi_write(effects())


class _Alive:
    """Says for this process that the writers of a write live, when that is due."""

    def __init__(self, client: PersistClient, tickets: Sequence[UploadTicket]) -> None:
        self.client = client
        self._tickets = tickets
        self._beaten_s = client.clock.monotonic()

    def beat(self) -> None:
        """Raises `HandleExpired` where the writers are not known any more."""
        now = self.client.clock.monotonic()
        if now - self._beaten_s < _BEAT_S:
            return
        for ticket in self._tickets:
            self.client.keep_alive(ticket, purpose=_PURPOSE)
        self._beaten_s = now


@kept_in_process(most=8)
def _alive(place: Place, location_id: UUID, tickets: tuple[UploadTicket, ...]) -> _Alive:
    """That of this process: one for all tasks that it does."""
    return _Alive(_controller(place, location_id, "off").client, tickets)


@kept_in_process(most=16)
def _controller(place: Place, location_id: UUID, maintenance: Maintenance) -> StorageController:
    """A controller of a location that stays open: worker processes live on and do many writes."""
    return StorageController(place.open_to_write(location_id, maintenance=maintenance), who="spark")
