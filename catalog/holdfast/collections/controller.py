"""The storage controller of a location: its commands, each one durable, idempotent step.

- A command and its effects on shards are one commit: there is no half-made and no half-dropped collection.
- A collection is dropped in two steps: from the first on nobody may open it, with the second, when its
  readers are gone or at once by force, its shards end.
- With a guard, no command takes effect once the guard's condition is lost: a fenced process changes nothing.
- Any process may give commands; nothing is kept here that another controller would need.
"""

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NoReturn, Self, assert_never

from holdfast.collections.advance import Due, Situation, Step, StepKind, advance
from holdfast.collections.bringing import Progress
from holdfast.collections.capabilities import Capabilities, CollectionHold, DurableHold, WriteCapability
from holdfast.collections.controller_log import ControllerLog, Guard
from holdfast.collections.differences import difference_shards
from holdfast.collections.hydration import Hydration
from holdfast.collections.job_commands import JobCommands
from holdfast.collections.metadata import METADATA_SCHEMA, first_rendition
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record import transitions
from holdfast.collections.record.collection_transitions import comment_columns, evolve_collection
from holdfast.collections.record.spec import (
    FIRST_RENDITION,
    CollectionInfo,
    CollectionSpec,
    CollectionState,
    Frontiers,
    RenditionInfo,
)
from holdfast.collections.record.state import CommandRecord, ControllerState
from holdfast.collections.record.transitions import Origin, ShardIds
from holdfast.collections.rendition_writer import RenditionWriter
from holdfast.collections.renditions import Renditions
from holdfast.collections.replicated import ReplicatedRenditionWriter, ReplicatedWriter
from holdfast.collections.restoring import Restores, RestoreSource
from holdfast.collections.retention import RETENTION_PURPOSE, move_retention
from holdfast.collections.uppers import common_upper
from holdfast.collections.writer import CollectionWriter
from holdfast.errors import (
    CollectionInUse,
    CollectionNotFound,
    ShardFinalized,
    VersionTooNew,
)
from holdfast.persist import PersistClient, Prepared, Schema, StoredSize
from holdfast.persist.checks import check_schema

_CREATION_PURPOSE: Final = "collection creation"


class StorageController(JobCommands):
    """Creates, finds and drops the collections of a location, and keeps the records of its jobs. Thread-safe.

    `who` and `token` (a fence token, in words) are kept with each command for people to read. `guard` is
    asked before each try of every command and committed with it: what it raises (`Fenced`) is raised, and
    where its condition is lost before the commit nothing happens and it is asked again.
    """

    def __init__(
        self, client: PersistClient, *, who: str = "", token: str = "", guard: Guard | None = None
    ) -> None:
        super().__init__(client, ControllerLog(client, guard))
        self._who = who
        self._token = token
        self.renditions = Renditions(client, self._log, self._origin, self._open)
        self._restores = Restores(client, self._log, self._origin, self._open, self.renditions)
        self._capabilities = Capabilities(
            client, self._log, self._origin, self.describe, lambda id_: self.frontiers(id_).upper
        )

    @property
    def shard_id(self) -> str:
        """The controller shard of the location."""
        return self._log.shard_id

    def create_collection(self, spec: CollectionSpec, *, command_id: str | None = None) -> CollectionInfo:
        """Create a collection, or find the one that was created from the same spec under the same id.

        One that is there keeps the comments that it has. Raises `BadInput` where that id has another spec or
        was dropped, `UniquenessViolation` where the name is taken.
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

        With `force` it does not wait for them, and its jobs end with it. Raises `CollectionInUse` while
        anybody holds what is in it or a job of it runs: it stays Dropping, no new job of it begins, and the
        same call again goes on. `CollectionNotFound` where there never was such a collection.
        """
        origin = self._origin(command_id)
        info = self._log.commit(lambda state: transitions.begin_drop(state, id_or_name, origin))
        if info.state is CollectionState.DROPPED:
            return info
        if not force:
            self._refuse_while_held(info)
        now_ms = self.client.clock.wall_ms()
        shards = {info.metadata_shard, *info.data_shards}
        return self._log.commit(
            lambda state: transitions.finish_drop(state, info.collection_id, now_ms, force=force),
            lambda _: [
                self.client.prepare_finalize(shard)
                for shard in sorted(shards.union(difference_shards(self.client, info, info.renditions)))
            ],
        )

    def evolve_collection(
        self, id_or_name: str, schema: Schema, *, command_id: str | None = None
    ) -> CollectionInfo:
        """Give a collection a schema that follows its own; nothing to do where it has that one.

        All shards of all renditions get it in the same step. Writers of an earlier schema go on, and readers
        see the newest one with the next read that they begin. Raises `CodecMismatch`, with both schemas,
        where it can't follow (`PersistClient.evolve` says which may), and as `describe`.
        """
        info = self._open(id_or_name)
        id_, origin = info.collection_id, self._origin(command_id)
        return self._log.commit(
            lambda state: evolve_collection(state, id_, check_schema(schema), origin),
            lambda state: [
                self.client.prepare_evolve(shard, schema)
                for rendition in state.collections[id_].live
                for shard in rendition.all_shards
            ],
        )

    def comment_columns(
        self, id_or_name: str, comments: Mapping[str, str | None], *, command_id: str | None = None
    ) -> CollectionInfo:
        """Give columns of a collection comments, or with None take them away; those of others stay.

        Readers that are opened later tell them; no shard is touched. Raises `BadInput` for a column that is
        not there and a comment that is none (`check_comments` says which are), and as `describe`.
        """
        id_, origin = self._open(id_or_name).collection_id, self._origin(command_id)
        return self._log.commit(lambda state: comment_columns(state, id_, comments, origin))

    def restore_collection(
        self,
        id_or_name: str,
        source: RestoreSource,
        *,
        rendition_id: str = "",
        command_id: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> RenditionInfo:
        """Make the contents of a collection those of a snapshot; answers the rendition that has them then.

        They are from its `held_from` on; what was written before that time, during the restore too, is given
        up, and readers of earlier times see it as it was. Writers and readers go on. The same command again,
        or any other from the same snapshot while it is being filled, goes on where one broke off. `progress`
        is told how many rows are read.

        Raises `BadInput` where the schema does not fit or the command was another, `CorruptBlob` where a file
        is not what the manifest says: nothing changed; `HandoverInProgress` where an earlier handover waits
        for its source; and as `describe`.
        """
        return self._restores.restore(
            id_or_name, source, rendition_id=rendition_id, command_id=command_id, progress=progress
        )

    def hold(
        self, id_or_name: str, purpose: str, *, since: int | None = None, command_id: str | None = None
    ) -> DurableHold:
        """A capability to read from `since` on (None: all that can be read now), durable until its release.

        That of the same purpose is found again as it is. Raises `AsOfTooEarly` where `since` can't be read,
        or the one that was found is past it, `HandleExpired` where this command took it before and it was
        released, and as `describe`.
        """
        return self._capabilities.acquire(self._open(id_or_name), purpose, since=since, command_id=command_id)

    def acquire_write(
        self, id_or_name: str, purpose: str, *, command_id: str | None = None
    ) -> WriteCapability:
        """A capability to write, durable until its release: so long nobody drops the collection but by force.

        That of the same purpose is found again. Raises as `describe`, and `HandleExpired` as `hold`.
        """
        writer = self.writer(id_or_name, purpose=purpose)
        return self._capabilities.acquire_write(writer.info, purpose, writer, command_id=command_id)

    def release_hold(self, id_or_name: str, purpose: str, *, command_id: str | None = None) -> None:
        """End a capability to read, whoever has it; nothing to do where there is none."""
        self._capabilities.release(id_or_name, purpose, writes=False, command_id=command_id)

    def release_write(self, id_or_name: str, purpose: str, *, command_id: str | None = None) -> None:
        """End a capability to write, whoever has it; nothing to do where there is none."""
        self._capabilities.release(id_or_name, purpose, writes=True, command_id=command_id)

    def holds(self, id_or_name: str) -> tuple[CollectionHold, ...]:
        """All that is held of a collection: by whom, since when, and which renditions it keeps with it.

        Nothing of one that was dropped. Raises as `describe`.
        """
        info = self.describe(id_or_name)
        return self._capabilities.holds(info, self.jobs(info.collection_id))

    def history(self, id_or_name: str) -> tuple[CommandRecord, ...]:
        """The commands on a collection of the last 30 days, oldest first, with their results.

        Raises as `describe`.
        """
        state = self._log.sync()
        id_ = state.find(id_or_name).collection_id
        known = [each for each in state.commands.values() if each.object_id == id_]
        return tuple(sorted(known, key=lambda command: command.at_ms))

    def advance(self, id_or_name: str) -> Due:
        """Do what is due for a collection, and tell what was done and what the rest waits for.

        Any process may, at any time: it goes on with what another one left, and does nothing that somebody
        has to ask for. Raises as `describe`.
        """
        id_ = self.describe(id_or_name).collection_id
        return advance(lambda: self._situation(id_), lambda step: self._do(id_, step))

    def stored(self, id_or_name: str) -> StoredSize:
        """How much is stored in the rendition that holds, unconsolidated. Raises as `describe`."""
        sizes = [self.client.stored(shard) for shard in self._open(id_or_name).holding.shards]
        return StoredSize(sum(size.rows for size in sizes), sum(size.size_bytes for size in sizes))

    def frontiers(self, id_or_name: str) -> Frontiers:
        """The since and the upper of a collection, linearized."""
        info = self._open(id_or_name)
        metadata = self.client.inspect(info.metadata_shard)
        if metadata.finalized:
            _refuse_dropped(info)
        return Frontiers(metadata.since, self.renditions.view(info).upper)

    def hydrate(self, id_or_name: str, rendition_id: str, *, progress: Progress | None = None) -> int:
        """Fill a rendition of recipe COPY from the collection, in this process; answers its upper then.

        Its contents come in one step with the record of a job, kind "hydrate", slot the rendition's id; then
        what was written meanwhile, until little is lacking. Where an earlier attempt did not end, this one
        takes its place. `progress` is told (rows done, rows in all). See `holdfast.collections.hydration` for
        what is better left to a Spark job.

        Raises `BadInput` where the rendition is not being filled from the collection (any more), `Fenced`
        where another attempt took this one's place; whatever else went wrong is on record with the job.
        """
        return Hydration(self, self._open(id_or_name), rendition_id, progress).run()

    def rendition_writer(
        self, id_or_name: str, rendition_id: str, *, purpose: str, replicated: bool = False
    ) -> RenditionWriter:
        """A handle that appends to one rendition of recipe SOURCE, for its pipeline.

        One of several identical ones where it is `replicated`. Raises as `describe`, and `BadInput` where it
        is no such rendition.
        """
        info = self._open(id_or_name)
        client, describe, begin = self.client, self._describer(info), self.renditions.begin
        try:
            if not replicated:
                return RenditionWriter(
                    client, info, describe, begin, rendition_id=rendition_id, purpose=purpose
                )
            suspect = partial(self.renditions.suspect, info.collection_id)
            return ReplicatedRenditionWriter(
                client, info, describe, begin, suspect, rendition_id=rendition_id, purpose=purpose
            )
        except ShardFinalized:
            _refuse_dropped(info)

    def writer(self, id_or_name: str, *, purpose: str, replicated: bool = False) -> CollectionWriter:
        """A handle that appends to a collection; `purpose` is for people to read. Raises as `describe`.

        Where it is `replicated` it is one of several that give the same rows at the same times: what it lost
        is compared with what is there (`ReplicatedWriter.append`).
        """
        info = self._open(id_or_name)
        client, describe = self.client, self._describer(info)
        try:
            if not replicated:
                return CollectionWriter(client, info, describe, purpose=purpose)
            suspect = partial(self.renditions.suspect, info.collection_id)
            return ReplicatedWriter(client, info, describe, suspect, purpose=purpose)
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
        return move_retention(self.client, self._log, info, since, lambda: self._open(info.collection_id))

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

    def _situation(self, collection_id: str) -> Situation:
        info = self.describe(collection_id)
        if info.state is not CollectionState.ACTIVE:
            jobs = self._log.sync().running(collection_id)
            return Situation(info, {}, 0, 0, self.holds(collection_id), jobs)
        view = self.renditions.look(collection_id)
        filled = {
            each.id: common_upper(view.info, each, self.client.recent_uppers)
            for each in view.info.live
            if each.id not in view.uppers
        }
        since = self.client.inspect(view.info.metadata_shard).since
        uppers = {**view.uppers, **filled}
        return Situation(view.info, uppers, since, view.upper, self.holds(collection_id))

    def _do(self, collection_id: str, step: Step) -> None:
        match step.kind:
            case StepKind.TAIL:
                self.renditions.bring_tail(collection_id)
            case StepKind.RELEASE:
                self.renditions.release_hold(self.describe(collection_id), step.rendition)
            case StepKind.DROP_RENDITION:
                self.renditions.drop_retired(collection_id)
            case StepKind.DROP_COLLECTION:
                self.drop_collection(collection_id)
            case StepKind.DIFFERENCE:
                self.renditions.make_difference(collection_id)
            case _:
                assert_never(step.kind)

    def _refuse_while_held(self, info: CollectionInfo) -> None:
        keepers = {str(hold) for hold in self.holds(info.collection_id) if not hold.own}
        if keepers:
            raise CollectionInUse(
                f"collection {info.name} is being dropped, and still held by {', '.join(sorted(keepers))}",
                hint="its data goes with the next drop after these have ended, or by force",
            )


def _refuse_dropped(info: CollectionInfo) -> NoReturn:
    raise CollectionNotFound(info.end)
