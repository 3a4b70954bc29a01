"""A write by Spark: planned in one process, uploaded by tasks, committed in another. Needs no pyspark.

- No process lives as long as the write, because Spark plans and commits in different processes. So planning
  registers the writers, and the plan passes their tickets on. Tasks upload for these writers and keep their
  leases alive, and the commit appends as these writers. If a driver dies, the leases of its writers expire
  and their uploads are swept.
- All rows get one time, which is fixed when the write is planned. If the collection is complete past that
  time at the commit, or has been handed over, the commit reads the uploads back and appends the rows again.
- Only the uploads that Spark names in the commit are appended. Those of a task that failed, or of one of two
  runs of a task, are not.
- A write with a name and a batch of a stream are recorded in the step that appends them. A recorded write is
  not appended again, and its new uploads are deleted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final
from uuid import UUID

import pyarrow as pa

from holdfast.collections import CollectionWriter, Position, RenditionInfo, StorageController, job_id
from holdfast.collections.read_seals import last_seal
from holdfast.collections.record.column_names import ColumnNames
from holdfast.collections.uploads import UploadedAppend, upload_rows
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    CollectionNotFound,
    Determinate,
    HoldfastError,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.forks import kept_in_process
from holdfast.persist import PersistClient, Prepared, Schema, Upload, UploadTicket
from holdfast.persist.config import Maintenance
from holdfast.persist.multi_write import LONGEST_UPLOAD_S
from holdfast.persist.rows.canonical import prepare_updates
from holdfast.persist.rows.consolidate import negated
from holdfast.persist.rows.evolution import fitted
from holdfast.spark.place import Place
from holdfast.spark.write_options import WriteOptions
from holdfast.tables.loading import check_times, load

WRITE: Final = "spark-write"
"""The kind of the jobs that are writes with a name; the slot is that name."""
STREAM: Final = "spark-stream"
"""The kind of the jobs that are streams into a collection; the slot is the id of Spark's query."""

_PURPOSE: Final = "spark: load"
# As long as anything may be uploaded and not committed: whatever Spark does before its tasks start.
_LEASE_S: Final = LONGEST_UPLOAD_S / 2
_BEAT_S: Final = 300.0
_TRIES: Final = 10

Uploads = tuple[Upload, ...]
"""What a task has uploaded: one upload for each ticket, or nothing if it had no rows."""


@dataclass(frozen=True, kw_only=True)
class WritePlan:
    """What tasks and the commit need to know. Picklable.

    `schema` and `names` are those of the collection. `tickets` belong to the shards of `rendition`.
    `replaces` is true if the rows replace the contents. `done` is true if the write was done before.
    """

    options: WriteOptions
    location_id: UUID
    collection_id: str
    name: str
    schema: Schema
    names: ColumnNames
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


def plan(options: WriteOptions, check: Callable[[str, Schema], None], *, replaces: bool) -> WritePlan:
    """Look the collection up, fix time and route, and make the writers.

    Before anything is registered, `check` raises an error for a schema that the rows don't fit. Also raises
    `CollectionNotFound`, and `BadInput` if a source feeds the collection or it is complete past the time.
    """
    with options.place.open_to_read() as client:
        location_id = client.location_id
        info = StorageController(client).describe(options.collection)
    if info.dropped:
        raise CollectionNotFound(info.end)
    check(info.name, info.schema)
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
        schema=writer.schema,
        names=writer.info.names,
        rendition=position.route.rendition,
        tickets=() if done else writer.hand_out(position, lease_s=_LEASE_S),
        time=time,
        replaces=replaces,
        done=done,
    )


def upload(planned: WritePlan, batches: Iterable[pa.RecordBatch]) -> Uploads:
    """Upload the rows of one task. Raises `BadInput`, which names the column whose values don't fit."""
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
    """Append what the tasks have uploaded, in one step, unless that was done before.

    Raises `HandleExpired` if the uploads may be gone, and `BadInput` if the collection is complete past the
    requested time. In both cases nothing was appended. Raises `Indeterminate` if that is unknown.
    """
    if planned.done:
        return
    controller = _controller(planned.options.place, planned.location_id, "background")
    writer = controller.writer(planned.collection_id, purpose=_PURPOSE)
    if writer.info.names.hidden != planned.names.hidden:
        _check_names(planned, writer)
    # `_time` has checked the time of the rows.
    given = [each for each in uploads if each]
    append = writer.uploaded(planned.rendition.id, planned.tickets, given, far_ahead=True)
    step = _Step(controller, planned, batch, append.rows)
    if planned.replaces:
        _replace(controller, writer, append, planned, step)
    elif append.rows and _appended(writer, append, planned.time, step):
        if step.is_ours:
            append.close()
            return
    elif append.rows:
        _append_anew(controller.client, writer, append, planned, step)
    # The uploads aren't needed. If deleting some of them fails, the write must not look failed.
    with suppress(HoldfastError):
        append.give_up()


def abort(planned: WritePlan, uploads: Sequence[Uploads | None]) -> None:
    """Delete what was uploaded, unless it was appended after all. Failures are ignored."""
    if planned.done:
        return
    with suppress(HoldfastError):
        controller = _controller(planned.options.place, planned.location_id, "background")
        for index, ticket in enumerate(planned.tickets):
            controller.client.give_up(ticket, [each[index] for each in uploads if each])


def _time(client: PersistClient, options: WriteOptions, name: str, position: Position) -> int:
    """Return the time of the rows. Raises `BadInput` if the collection is complete past a requested time."""
    if options.at is None:
        return max(client.now_ms(), position.upper)
    now_ms = None if options.far_ahead else client.store_or_host_ms()
    seal = last_seal(client, position.route.rendition)
    times = options.at, options.at
    check_times(name, position.upper, times, seal, now_ms, 'set the option "farAhead" to true')
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
            yield planned.names.stored_rows(updates)


def _appended(writer: CollectionWriter, append: UploadedAppend, at: int, step: "_Step") -> bool:
    """Append the uploads as they are, unless a record says it was done. False if they can't be appended."""
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
    """Append what was uploaded to the collection's current renditions, at a time not yet complete."""
    _check_names(planned, writer)
    with writer.bulk(far_ahead=True) as bulk:
        for table in append.updates():
            bulk.add(fitted(planned.names.shown_rows(table), writer.schema.arrow_diff))
        load(client, writer, bulk, step, at=planned.options.at, far_ahead=True)


def _replace(
    controller: StorageController,
    writer: CollectionWriter,
    append: UploadedAppend,
    planned: WritePlan,
    step: "_Step",
) -> None:
    """Append the difference between what was uploaded and the contents just before."""
    _check_names(planned, writer)
    full = writer.full_schema
    for _ in range(_TRIES):
        try:
            position = _readable(controller.client, writer)
            with (
                writer.bulk(far_ahead=True, hidden=True) as bulk,
                controller.reader(planned.collection_id, purpose=_PURPOSE) as reader,
            ):
                for table in append.updates():
                    bulk.add(fitted(planned.names.shown_rows(table), full.arrow_diff))
                if position.upper:
                    for rows in reader.snapshot(position.upper - 1, names=writer.info.names.with_hidden()):
                        bulk.add(negated(fitted(rows, full.arrow_diff)))
                at = _time(controller.client, planned.options, planned.name, position)
                # Upload before the commit, because no other command of this process runs during a commit.
                bulk.prepare(position, at + 1, time=at)
                step(lambda: bulk.prepare(position, at + 1, time=at).steps)  # noqa: B023 - called at once
        except (UpperMismatch, ShardFinalized, AsOfTooEarly):
            continue
        return
    raise Determinate(
        f"others wrote to collection {planned.name} during each of {_TRIES} tries to replace its contents",
        hint="nothing was written; repeat the write while nobody else writes",
    )


def _check_names(planned: WritePlan, writer: CollectionWriter) -> None:
    """Raise `BadInput` if columns were renamed since the write began."""
    if writer.info.names != planned.names:
        raise BadInput(
            f"columns of collection {planned.name} were renamed or dropped during the write",
            hint="nothing was written; repeat the write with its columns",
        )


def _readable(client: PersistClient, writer: CollectionWriter) -> Position:
    """Return a position such that the rendition to append to holds the collection just before it."""
    while True:
        position = writer.position()
        if position.upper > position.held_from or position.upper == 0:
            return position
        client.multi_write(writer.prepare(None, position, position.upper + 1).steps)


class _Step:
    """Commits the steps of an append with its record. `is_ours` is false if another recorded it first."""

    def __init__(
        self, controller: StorageController, planned: WritePlan, batch: StreamBatch | None, rows: int
    ) -> None:
        self.is_ours = True
        self._controller = controller
        self._planned = planned
        self._batch = batch
        self._result = {"updates": rows, "host": controller.client.config.hostname}

    def __call__(self, effects: Callable[[], Sequence[Prepared]]) -> None:
        """Commit. Raises `UpperMismatch` if another write to a shard came first."""
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
    """Renews the leases of the writers of a write for this process, when that is due."""

    def __init__(self, client: PersistClient, tickets: Sequence[UploadTicket]) -> None:
        self.client = client
        self._tickets = tickets
        self._beaten_s = client.clock.monotonic()

    def beat(self) -> None:
        """Renew the leases if that is due. Raises `HandleExpired` if the writers are no longer registered."""
        now = self.client.clock.monotonic()
        if now - self._beaten_s < _BEAT_S:
            return
        for ticket in self._tickets:
            self.client.keep_alive(ticket, purpose=_PURPOSE)
        self._beaten_s = now


@kept_in_process(most=8)
def _alive(place: Place, location_id: UUID, tickets: tuple[UploadTicket, ...]) -> _Alive:
    """Return the `_Alive` of this process, which all its tasks share."""
    return _Alive(_controller(place, location_id, "off").client, tickets)


@kept_in_process(most=16)
def _controller(place: Place, location_id: UUID, maintenance: Maintenance) -> StorageController:
    """Return a controller of a location. It stays open, because a worker process does many writes."""
    return StorageController(place.open_to_write(location_id, maintenance=maintenance), who="spark")
