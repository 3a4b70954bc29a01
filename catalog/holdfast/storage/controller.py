"""The storage controller of a location: its commands, each one durable, idempotent step.

- A command and its effects on shards are one commit: there is no half-made and no half-dropped collection.
- A collection is dropped in two steps: from the first on nobody may open it, with the second, when its
  readers are gone or at once by force, its shards end.
- With a guard, no command takes effect once the guard's condition is lost: a fenced process changes nothing.
- Any process may give commands; nothing is kept here that another controller would need.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Self

from holdfast.errors import (
    CollectionInUse,
    CollectionNotFound,
    HoldfastError,
    ShardFinalized,
    VersionTooNew,
)
from holdfast.persist import PersistClient, Prepared
from holdfast.storage import transitions
from holdfast.storage.bringing import rendition_hold
from holdfast.storage.controller_log import ControllerLog, Guard
from holdfast.storage.frontiers import retained_since
from holdfast.storage.jobs import JobRecord, JobState, Json, hold_purpose, job_id
from holdfast.storage.metadata import METADATA_SCHEMA, first_rendition
from holdfast.storage.reader import CollectionReader
from holdfast.storage.renditions import Renditions
from holdfast.storage.retention import RETENTION_PURPOSE
from holdfast.storage.spec import (
    FIRST_RENDITION,
    CollectionInfo,
    CollectionSpec,
    CollectionState,
    Frontiers,
)
from holdfast.storage.state import ControllerState
from holdfast.storage.transitions import Origin, ShardIds
from holdfast.storage.uppers import look
from holdfast.storage.writer import CollectionWriter

_CREATION_PURPOSE: Final = "collection creation"


class StorageController:
    """Creates, finds and drops the collections of a location, and keeps the records of its jobs. Thread-safe.

    `who` and `token` (a fence token, in words) are kept with each command for people to read. `guard` is
    asked before each try of every command and committed with it: what it raises (`Fenced`) is raised, and
    where its condition is lost before the commit nothing happens and it is asked again.
    """

    def __init__(
        self, client: PersistClient, *, who: str = "", token: str = "", guard: Guard | None = None
    ) -> None:
        self.client = client
        self._who = who
        self._token = token
        self._log = ControllerLog(client, guard)
        self.renditions = Renditions(client, self._log, self._origin, self._open)

    @property
    def shard_id(self) -> str:
        """The controller shard of the location."""
        return self._log.shard_id

    def create_collection(self, spec: CollectionSpec, *, command_id: str | None = None) -> CollectionInfo:
        """Create a collection, or find the one that was created from the same spec under the same id.

        Raises `BadInput` where that id has another spec or was dropped, `UniquenessViolation` where the
        name is taken.
        """
        new_id = self.client.new_shard_id
        shards = ShardIds(new_id(), tuple(new_id() for _ in range(spec.shards)))
        origin = self._origin(command_id)

        def effects(_: ControllerState) -> list[Prepared]:
            client, purpose = self.client, _CREATION_PURPOSE
            metadata = client.writer(shards.metadata, METADATA_SCHEMA, purpose=purpose)
            return [
                metadata.prepare_append(first_rendition(FIRST_RENDITION), 0, 1),
                *(client.prepare_create(shard, spec.schema, purpose=purpose) for shard in shards.data),
                *(client.prepare_critical(shard, purpose=RETENTION_PURPOSE) for shard in shards.all),
            ]

        return self._log.commit(
            lambda state: transitions.create_collection(state, spec, shards, origin), effects
        )

    def describe(self, id_or_name: str) -> CollectionInfo:
        """What is on record for a collection: the one of this id, dropped or not, or the live one so named.

        Raises `CollectionNotFound` where there is neither.
        """
        return self._log.sync().find(id_or_name)

    def list_collections(self) -> tuple[CollectionInfo, ...]:
        """All collections that are not dropped, by name."""
        known = list(self._log.sync().collections.values())
        live = [info for info in known if info.state is not CollectionState.DROPPED]
        return tuple(sorted(live, key=lambda info: info.name))

    def drop_collection(
        self, id_or_name: str, *, command_id: str | None = None, force: bool = False
    ) -> CollectionInfo:
        """Drop a collection: nobody can open it from now on, and its data goes when its readers are gone.

        With `force` it does not wait for them. Raises `CollectionInUse` while anybody holds what is in it, a
        running job too (the same call again goes on), `CollectionNotFound` where there never was such a
        collection.
        """
        origin = self._origin(command_id)
        info = self._log.commit(lambda state: transitions.begin_drop(state, id_or_name, origin))
        if info.state is CollectionState.DROPPED:
            return info
        shards = (info.metadata_shard, *info.data_shards)
        if not force:
            self._refuse_while_read(info, shards)
        now_ms = self.client.clock.wall_ms()
        return self._log.commit(
            lambda state: transitions.finish_drop(state, info.collection_id, now_ms),
            lambda _: [self.client.prepare_finalize(shard) for shard in shards],
        )

    def frontiers(self, id_or_name: str) -> Frontiers:
        """The since and the upper of a collection, linearized."""
        info = self._open(id_or_name)
        metadata = self.client.inspect(info.metadata_shard)
        if metadata.finalized:
            _refuse_dropped(info)
        view = look(
            lambda: self._open(info.collection_id),
            lambda: self.client.recent_upper(info.metadata_shard),
            self.client.recent_upper,
        )
        return Frontiers(metadata.since, view.upper)

    def writer(self, id_or_name: str, *, purpose: str) -> CollectionWriter:
        """A handle that appends to a collection; `purpose` is for people to read. Raises as `describe`."""
        info = self._open(id_or_name)
        try:
            return CollectionWriter(self.client, info, self._describer(info), purpose=purpose)
        except ShardFinalized:
            _refuse_dropped(info)

    def reader(self, id_or_name: str, *, purpose: str) -> CollectionReader:
        """A handle that reads a collection and holds its since. Raises as `describe`."""
        info = self._open(id_or_name)
        try:
            return CollectionReader(self.client, info, self._describer(info), purpose=purpose)
        except ShardFinalized:
            _refuse_dropped(info)

    def set_retention_hold(self, id_or_name: str, since: int) -> int:
        """Let the collection's own hold follow to `since` (never back, at most the latest complete time).

        Answers the collection's since then: readers may hold it further back, and the data with it.
        """
        info = self._open(id_or_name)
        since = min(since, max(self.frontiers(info.collection_id).upper - 1, 0))
        # The metadata first: how far the data may follow is known when it has moved.
        self._log.write(self._move_retention(info.metadata_shard, since))
        kept = self.client.inspect(info.metadata_shard).since
        moves = [
            self._move_retention(shard, retained_since(since, kept, rendition.start))
            for rendition in info.held
            for shard in rendition.shards
        ]
        self._log.write([step for move in moves for step in move])
        return kept

    def start_job(self, object_id: str, kind: str, slot: str, *, spec: Json) -> JobRecord:
        """Record the job of this object, kind and slot as Running, attempt 1, or find it as it is.

        A job's first spec stays: what is on record is what is done.
        """
        job = JobRecord(
            job_id=job_id(object_id, kind, slot),
            object_id=object_id,
            kind=kind,
            slot=slot,
            attempt=1,
            state=JobState.RUNNING,
            spec=spec,
            started_ms=self.client.clock.wall_ms(),
        )
        return self._log.commit(lambda state: transitions.start_job(state, job))

    def retry_job(self, job: str, *, abandoned: int | None = None) -> JobRecord:
        """Start the next attempt of a failed job, or of a running one whose attempt is given as `abandoned`.

        An abandoned attempt can't commit any more, and what it held is released. Raises `BadInput` where the
        job is done, or runs and is not abandoned.
        """
        now_ms = self.client.clock.wall_ms()
        return self._log.commit(
            lambda state: transitions.retry_job(state, job, now_ms, abandoned=abandoned),
            lambda state: self._release_holds(state, job),
        )

    def job(self, job: str) -> JobRecord | None:
        """The record of the job with this id, None where there is none."""
        return self._log.sync().jobs.get(job)

    def jobs(self, object_id: str | None = None) -> tuple[JobRecord, ...]:
        """The records of all jobs, or of those of one object, oldest first."""
        known = list(self._log.sync().jobs.values())
        chosen = [job for job in known if object_id in {None, job.object_id}]
        return tuple(sorted(chosen, key=lambda job: (job.started_ms, job.job_id)))

    def finish_job(
        self,
        job: str,
        attempt: int,
        result: Json,
        effects: Sequence[Prepared] | Callable[[], Sequence[Prepared]] = (),
    ) -> JobRecord:
        """Commit the outcome of an attempt: `effects` and the step to Done are one, or nothing happens.

        What the attempts held is released with it. Effects given as a function are prepared again for a try
        after one that lost a race. Raises `Fenced` where the attempt isn't the running one, `UpperMismatch`
        where an effect lost on its shard.
        """
        prepare = effects if callable(effects) else _Once(effects)
        now_ms = self.client.clock.wall_ms()
        return self._log.commit(
            lambda state: transitions.finish_job(state, job, attempt, result, now_ms),
            lambda state: [*prepare(), *self._release_holds(state, job)],
        )

    def fail_job(self, job: str, attempt: int, error: str) -> JobRecord:
        """Record that an attempt failed, and why; what it held is released.

        Raises `Fenced` where it isn't the running one.
        """
        now_ms = self.client.clock.wall_ms()
        return self._log.commit(
            lambda state: transitions.fail_job(state, job, attempt, error, now_ms),
            lambda state: self._release_holds(state, job),
        )

    def close(self) -> None:
        """Give up what the controller holds; not needed for correctness."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _origin(self, command_id: str | None) -> Origin:
        return Origin(
            command_id=command_id or str(uuid.uuid4()),
            who=self._who,
            host=self.client.config.hostname,
            token=self._token,
            at_ms=self.client.clock.wall_ms(),
        )

    def _describer(self, info: CollectionInfo) -> Callable[[], CollectionInfo]:
        return lambda: self.describe(info.collection_id)

    def _open(self, id_or_name: str) -> CollectionInfo:
        info = self.describe(id_or_name)
        if info.dropped:
            _refuse_dropped(info)
        if info.state is not CollectionState.ACTIVE:
            raise VersionTooNew(f"collection {info.name} ({info.collection_id}) is not complete yet")
        return info

    def _refuse_while_read(self, info: CollectionInfo, shards: Sequence[str]) -> None:
        own = {RETENTION_PURPOSE, *(rendition_hold(each.id) for each in info.renditions)}
        holds = {
            f"'{hold.purpose}' on {hold.hostname}" if hold.hostname else f"'{hold.purpose}'"
            for shard in shards
            for hold in self.client.inspect(shard).holds
            if hold.kind != "critical" or hold.purpose not in own
        }
        if holds:
            raise CollectionInUse(
                f"collection {info.name} is being read by {', '.join(sorted(holds))}",
                hint="close the readers, end the jobs and drop again, or drop by force",
            )

    def _move_retention(self, shard: str, since: int) -> list[Prepared]:
        client, purpose = self.client, RETENTION_PURPOSE
        return [
            client.prepare_critical(shard, purpose=purpose),
            client.prepare_downgrade_critical(shard, since, purpose=purpose),
        ]

    def _release_holds(self, state: ControllerState, job: str) -> list[Prepared]:
        """The release of what the attempts of a job up to its latest hold: a killed driver can't do it."""
        record = state.jobs[job]
        info = state.collections.get(record.object_id)
        if info is None:
            return []
        purposes = {hold_purpose(job, attempt) for attempt in range(1, record.attempt + 1)}
        return [
            self.client.prepare_release_critical(shard, purpose=hold.purpose)
            for shard in (info.metadata_shard, *info.data_shards)
            for hold in self.client.inspect(shard).holds
            if hold.purpose in purposes
        ]


def _refuse_dropped(info: CollectionInfo) -> NoReturn:
    raise CollectionNotFound(f"collection {info.name} ({info.collection_id}) was dropped")


class _Once:
    """Prepared commands for one try. What was uploaded for them is gone when the try has lost."""

    def __init__(self, prepared: Sequence[Prepared]) -> None:
        self._prepared = prepared
        self._tried = False

    def __call__(self) -> Sequence[Prepared]:
        if self._tried and any(command.uploaded for command in self._prepared):
            raise HoldfastError(
                "another command was committed first, and what was prepared for this one is gone",
                hint="prepare it again, or give the effects as a function",
            )
        self._tried = True
        return self._prepared
