"""The storage controller of a location. Each of its commands is one durable, idempotent commit.

- A command and its effects on shards are one commit, so no collection is ever half created or half dropped.
- A collection is dropped in two commits. After the first nobody can open it. The second finalizes its shards,
  once its readers are gone, or at once if forced.
- With a guard, no command takes effect after the guard's condition is lost: a fenced process changes nothing.
- Any process may give commands. A controller keeps no state that another controller would need.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn, Self, assert_never

from holdfast.collections.capabilities import Capabilities, CollectionHold, DurableHold, WriteCapability
from holdfast.collections.complete_times import LEAST_MS
from holdfast.collections.controller_log import ControllerLog, Guard
from holdfast.collections.differences import difference_shards
from holdfast.collections.due_steps import AdvanceStep, Due, Situation, StepKind, advance
from holdfast.collections.feeds import ended_feeds, refuse_feeding
from holdfast.collections.first_rows import FirstRows
from holdfast.collections.frontiers import common_upper, uppers_together, with_records
from holdfast.collections.hydration import Hydration
from holdfast.collections.job_commands import JobCommands, jobs_of
from holdfast.collections.metadata import METADATA_SCHEMA, first_rendition
from holdfast.collections.pipeline import prepare_pipeline
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record import transitions
from holdfast.collections.record.collection_transitions import (
    check_drop,
    comment_columns,
    drop_column,
    evolve_collection,
    rename_collection,
    rename_column,
    retain_collection,
)
from holdfast.collections.record.jobs import JobRecord
from holdfast.collections.record.spec import (
    FIRST_RENDITION,
    CollectionInfo,
    CollectionSpec,
    CollectionState,
    Frontiers,
    PipelineShards,
    RenditionInfo,
    check_name,
    check_retention,
)
from holdfast.collections.record.state import (
    CommandRecord,
    ControllerState,
    Outcome,
    RecordCommit,
    RecordNoOp,
    RecordReject,
)
from holdfast.collections.record.transitions import Origin, ShardIds
from holdfast.collections.rendition_copy import OnProgress
from holdfast.collections.rendition_writer import RenditionWriter
from holdfast.collections.renditions import Renditions
from holdfast.collections.replication import ReplicatedRenditionWriter, ReplicatedWriter
from holdfast.collections.restore import Restores, RestoreSource
from holdfast.collections.retention import RETENTION_PURPOSE, move_retention, retention_since
from holdfast.collections.writer import CollectionWriter
from holdfast.errors import (
    BadInput,
    CollectionInUse,
    CollectionNotFound,
    ShardFinalized,
    UpperMismatch,
    VersionTooNew,
)
from holdfast.persist import PersistClient, Prepared, Schema, StoredSize
from holdfast.persist.checks import check_schema
from holdfast.persist.looks import one_look
from holdfast.persist.state.appends import SAYS_WHAT

_MOST_WHO: Final = 100
_CREATION_PURPOSE: Final = "collection creation"
_COLUMNS_PURPOSE: Final = "change of columns"


class StorageController(JobCommands):
    """Creates, finds and drops the collections of a location, and keeps the records of its jobs. Thread-safe.

    `who` and `token` (a fence token as text) are stored with each command for people to read. `guard` is
    called before each try of every command, and its condition is committed with the command. If it raises
    (`Fenced`), the command raises that. If its condition is lost before the commit, nothing happens and it is
    called again.
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

    def create_collection(
        self, spec: CollectionSpec, *, command_id: str | None = None, rows: FirstRows | None = None
    ) -> CollectionInfo:
        """Create a collection, or find the one that was created from the same spec with the same id.

        With `rows`, which must be uploaded, they are its first append, in the same commit. So is the record
        of the file that they come from. An existing collection keeps its comments. Raises `BadInput` if the
        id has another spec or was dropped, and `UniquenessViolation` if the name is taken.
        """
        new_id = self.client.new_shard_id
        shards = (
            ShardIds(
                new_id(),
                tuple(new_id() for _ in range(spec.shards)),
                PipelineShards(new_id(), new_id()) if spec.source_fed else None,
            )
            if rows is None
            else rows.shards
        )
        origin = self._origin(command_id)
        file = None if rows is None else rows.file
        jobs = () if file is None else (self._done_at_once(spec.collection_id, *file),)

        def created() -> list[Prepared]:
            client, purpose = self.client, _CREATION_PURPOSE
            metadata = client.writer(shards.metadata, METADATA_SCHEMA, purpose=purpose)
            return [
                metadata.prepare_append(first_rendition(FIRST_RENDITION), 0, 1),
                *(client.prepare_create(shard, spec.stored_schema, purpose=purpose) for shard in shards.data),
                *prepare_pipeline(client, shards.pipeline, purpose=purpose),
            ]

        def effects(_: ControllerState) -> list[Prepared]:
            return [
                *(created() if rows is None else rows.steps()),
                *(self.client.prepare_critical(shard, purpose=RETENTION_PURPOSE) for shard in shards.all),
            ]

        return self._log.commit(
            lambda state: transitions.create_collection(state, spec, shards, origin, *jobs), effects
        )

    def describe(self, id_or_name: str) -> CollectionInfo:
        """Read the record of a collection: the one with this id, dropped or not, or the live one with this
        name.

        Raises `CollectionNotFound` if there is neither.
        """
        return self._log.sync().find(id_or_name)

    def list_collections(self) -> tuple[CollectionInfo, ...]:
        """All collections that are not dropped, sorted by name."""
        known = list(self._log.sync().collections.values())
        live = [info for info in known if info.state is not CollectionState.DROPPED]
        return tuple(sorted(live, key=lambda info: info.name))

    def drop_collection(
        self, id_or_name: str, *, command_id: str | None = None, force: bool = False
    ) -> CollectionInfo:
        """Drop a collection. Nobody can open it any more.

        Its data is deleted after the `gc_grace_s` of the client, by any client of the location that runs
        then. `erase_collection` deletes it at once.

        With `force` it doesn't wait for readers, and its jobs end. Otherwise it raises `CollectionInUse`
        while anybody holds the collection or a job of it runs. Then the collection stays in state Dropping
        and no new job of it begins. Call this again to continue. Raises `CollectionNotFound` if there never
        was such a collection.
        """
        origin = self._origin(command_id)
        info = self._log.commit(lambda state: transitions.begin_drop(state, id_or_name, origin))
        if info.state is CollectionState.DROPPED:
            return info
        if not force:
            self._release_ended_feeds(info.collection_id)
            self._refuse_while_held(info)
        now_ms = self.client.clock.wall_ms()
        return self._log.commit(
            lambda state: transitions.finish_drop(state, info.collection_id, now_ms, force=force),
            lambda _: [self.client.prepare_finalize(shard) for shard in self._shards(info)],
        )

    def erase_collection(self, collection_id: str) -> None:
        """Delete the data of a dropped collection now, for all its renditions.

        It doesn't wait for readers without a lease, and not for `gc_grace_s`. So if the consensus store then
        loses the drop in a failover, the collection is back without its data. `retain_for_s` still keeps
        data. Does nothing if that was done before. An interrupted call can be repeated.

        Raises `BadInput` if the collection is not dropped, `NotErased` if a shard has two histories, and
        `CollectionNotFound` if there never was such a collection.
        """
        info = self._dropped(collection_id)
        for shard in self._shards(info):
            self.client.erase(shard)

    def is_erased(self, collection_id: str) -> bool:
        """Whether a dropped collection has no data any more. Raises like `erase_collection`."""
        return all(map(self.client.is_erased, self._shards(self._dropped(collection_id))))

    def unerased(self, name: str) -> tuple[CollectionInfo, ...]:
        """The dropped collections that had this name and still have data, oldest first."""
        known = self._log.sync().collections.values()
        named = (info for info in known if info.name == name and info.state is CollectionState.DROPPED)
        left = (info for info in named if not self.is_erased(info.collection_id))
        return tuple(sorted(left, key=lambda info: info.dropped_ms))

    def _dropped(self, collection_id: str) -> CollectionInfo:
        info = self.describe(collection_id)
        if info.state is not CollectionState.DROPPED:
            raise BadInput(f"collection {info.name} ({collection_id}) is not dropped", hint="drop it first")
        return info

    def _shards(self, info: CollectionInfo) -> list[str]:
        """All shards that a collection has or had, sorted."""
        known = (each for rendition in info.renditions for each in rendition.all_shards)
        shards = {info.metadata_shard, *known}
        return sorted(shards.union(difference_shards(self.client, info, info.renditions)))

    def evolve_collection(
        self, id_or_name: str, schema: Schema, *, command_id: str | None = None
    ) -> CollectionInfo:
        """Give a collection a later schema. Does nothing if it has that schema already.

        All shards of all renditions get it in the same commit. Writers with an earlier schema continue to
        work, and readers use the newest one for the next read that they begin. Raises `CodecMismatch`, with
        both schemas, if this schema can't follow the current one (see `PersistClient.evolve`), and like
        `describe`.
        """
        info = self._open(id_or_name)
        id_, origin = info.collection_id, self._origin(command_id)

        def effects(state: ControllerState) -> list[Prepared]:
            info = state.collections[id_]
            stored = info.names.with_new(info.schema, schema).stored_schema(schema)
            shards = [shard for rendition in info.live for shard in rendition.content_shards]
            return [self.client.prepare_evolve(shard, stored) for shard in shards]

        return self._log.commit(
            lambda state: evolve_collection(state, id_, check_schema(schema), origin), effects
        )

    def comment_columns(
        self, id_or_name: str, comments: Mapping[str, str | None], *, command_id: str | None = None
    ) -> CollectionInfo:
        """Set comments of columns. None removes a comment, and columns that are not named keep theirs.

        Readers that are opened later show them. No shard changes. Raises `BadInput` for a column that doesn't
        exist and for an invalid comment (see `check_comments`), and like `describe`.
        """
        id_, origin = self._open(id_or_name).collection_id, self._origin(command_id)
        return self._log.commit(lambda state: comment_columns(state, id_, comments, origin))

    def retain(
        self, id_or_name: str, retain_ms: int | None, *, command_id: str | None = None
    ) -> CollectionInfo:
        """Set how much history a collection keeps, in ms before its latest complete time. None: all of it.

        The record alone changes: `apply_retention` gives up older history. Raises like `describe`.
        """
        check_retention(retain_ms)
        id_, origin = self._open(id_or_name).collection_id, self._origin(command_id)
        return self._log.commit(lambda state: retain_collection(state, id_, retain_ms, origin))

    def apply_retention(self, id_or_name: str) -> int | None:
        """Give up the history that a collection need not keep. Returns its since, or None without a policy.

        Writes nothing for less than a hundredth of what it keeps. Readers may hold the since further back.
        """
        info = self._open(id_or_name)
        if info.retain_ms is None:
            return None
        now = self.frontiers(info.collection_id)
        since = retention_since(info, now.since, now.upper)
        return now.since if since is None else self.set_retention_hold(info.collection_id, since)

    def rename(self, id_or_name: str, name: str, *, command_id: str | None = None) -> CollectionInfo:
        """Give a collection another name. Its id stays the same, and open handles keep working.

        Raises `UniquenessViolation` if a live collection has the name, and like `describe`.
        """
        check_name("collection name", name)
        id_, origin = self._open(id_or_name).collection_id, self._origin(command_id)
        return self._log.commit(lambda state: rename_collection(state, id_, name, origin))

    def rename_column(
        self, id_or_name: str, old: str, new: str, *, command_id: str | None = None
    ) -> CollectionInfo:
        """Give a column another name, whether it is a key column or not. No file is rewritten.

        Readers, also of earlier times, use the new name from their next read on. Open tables continue with
        the new name, and open writers raise `CodecMismatch`. To stop them, the commit takes the collection to
        its next time, without rows.

        Raises `BadInput` if there is no such column, if there is one with the new name, and if a source feeds
        the collection; and like `describe`.
        """
        id_, origin = self._open(id_or_name).collection_id, self._origin(command_id)
        since = self.frontiers(id_).since
        return self._change_columns(
            id_, lambda state, _: rename_column(state, id_, old, new, since, origin), lambda upper: upper
        )

    def drop_column(self, id_or_name: str, name: str, *, command_id: str | None = None) -> CollectionInfo:
        """Hide a column, at the next time of the collection: now, if its times are wall times.

        Reads at earlier times show the column as before. Its values stay stored, so rows that differ only in
        it stay different rows. A new column with its name is another column. Open tables and writers continue
        as after a rename.

        Raises `BadInput` if there is no such column, if it is a key column or a hash column of a current
        rendition, and if a source feeds the collection; and like `describe`.
        """
        info, origin = self._open(id_or_name), self._origin(command_id)
        id_ = info.collection_id
        nullable = tuple(
            replace(each, nullable=True) if each.name == name else each for each in info.schema.value
        )
        if nullable != info.schema.value:
            # Rows that are written from now on have nulls in it.
            check_drop(info, name)
            self.evolve_collection(id_, replace(info.schema, value=nullable))

        def time(upper: int) -> int:
            return max(upper, self.client.now_ms()) if upper >= LEAST_MS else upper

        return self._change_columns(
            id_, lambda state, time: drop_column(state, id_, name, time, origin), time
        )

    def restore_collection(
        self,
        id_or_name: str,
        source: RestoreSource,
        *,
        rendition_id: str = "",
        command_id: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> RenditionInfo:
        """Replace the contents of a collection by those of a snapshot. Returns the rendition that has them.

        The collection has these contents from the rendition's `held_from` on. What was written before that
        time, also during the restore, is given up. Readers of earlier times see the old contents. Writers and
        readers continue. An interrupted restore continues if you repeat the command, or if you give another
        command for the same snapshot while the rendition is being filled. `progress` is called with the
        number of rows read.

        A collection that a pipeline of `holdfast.ingest` feeds, or that was created `source_fed`, also gets
        the bindings and the errors of the snapshot. Its pipeline continues from there. Any other
        collection gets only the rows.

        Raises `BadInput` if the schema doesn't fit, if the collection is fed and the snapshot has no
        bindings, or if the command id was used for something else, and `CorruptBlob` if a file does not match
        the manifest; nothing is changed then. Raises `HandoverInProgress` if an earlier handover waits for
        its source, and like `describe`.
        """
        return self._restores.restore(
            id_or_name, source, rendition_id=rendition_id, command_id=command_id, progress=progress
        )

    def hold(
        self, id_or_name: str, purpose: str, *, since: int | None = None, command_id: str | None = None
    ) -> DurableHold:
        """Take a capability to read from `since` on (None: from the earliest readable time), until its
        release.

        If there is one with the same purpose, returns that one unchanged. Raises `AsOfTooEarly` if `since`
        can't be read or the existing one has moved past it, `HandleExpired` if this command took it before
        and it was released, and like `describe`.
        """
        return self._capabilities.acquire(self._open(id_or_name), purpose, since=since, command_id=command_id)

    def acquire_write(
        self, id_or_name: str, purpose: str, *, command_id: str | None = None
    ) -> WriteCapability:
        """Take a capability to write, until its release. While it lasts, only `force` drops the collection.

        If there is one with the same purpose, returns that one. Raises like `describe`, and `HandleExpired`
        like `hold`.
        """
        writer = self.writer(id_or_name, purpose=purpose)
        return self._capabilities.acquire_write(writer.info, purpose, writer, command_id=command_id)

    def release_hold(self, id_or_name: str, purpose: str, *, command_id: str | None = None) -> None:
        """Release a capability to read that any process has. Does nothing if there is none."""
        self._capabilities.release(id_or_name, purpose, writes=False, command_id=command_id)

    def release_write(self, id_or_name: str, purpose: str, *, command_id: str | None = None) -> None:
        """Release a capability to write that any process has. Does nothing if there is none."""
        self._capabilities.release(id_or_name, purpose, writes=True, command_id=command_id)

    def holds(self, id_or_name: str) -> tuple[CollectionHold, ...]:
        """All holds of a collection: their holders, their age, and the renditions that they keep.

        Empty for a dropped collection. Raises like `describe`.
        """
        info = self.describe(id_or_name)
        return self._capabilities.holds(info, self.jobs(info.collection_id))

    def history(self, id_or_name: str) -> tuple[CommandRecord, ...]:
        """The commands on a collection in the last 30 days, oldest first, with their results.

        Raises like `describe`.
        """
        state = self._log.sync()
        id_ = state.find(id_or_name).collection_id
        known = [each for each in state.commands.values() if each.object_id == id_]
        return tuple(sorted(known, key=lambda command: command.at_ms))

    def advance(self, id_or_name: str) -> Due:
        """Do what is due for a collection. Returns what was done and what the rest waits for.

        Any process may call this at any time. It continues what another process left, and does nothing that
        users must request. Raises like `describe`.
        """
        id_ = self.describe(id_or_name).collection_id
        self._release_ended_feeds(id_)
        return advance(lambda: self._situation(id_), lambda step: self._do(id_, step))

    def stored(self, id_or_name: str) -> StoredSize:
        """The size of the current rendition as stored, not consolidated. Raises like `describe`."""
        sizes = [self.client.stored(shard) for shard in self._open(id_or_name).holding.shards]
        return StoredSize(sum(size.rows for size in sizes), sum(size.size_bytes for size in sizes))

    def frontiers(self, id_or_name: str) -> Frontiers:
        """The since and the upper of a collection as of now (linearized)."""
        info = self._open(id_or_name)
        metadata = self.client.inspect(info.metadata_shard)
        if metadata.finalized:
            _refuse_dropped(info)
        return Frontiers(metadata.since, self.renditions.view(info).upper)

    def uppers(self, collection_ids: Sequence[str]) -> dict[str, int]:
        """The uppers of several collections at one moment (linearized), by their ids.

        A write of several collections is below all of their uppers, or below none. Raises like `describe`.
        """
        ids = list(dict.fromkeys(collection_ids))

        def listed() -> list[CollectionInfo]:
            state = self._log.sync()
            return [_usable(state.find(each)) for each in ids]

        return uppers_together(listed, with_records(self.client)) if ids else {}

    def read_together(
        self, collection_id: str
    ) -> tuple[CollectionInfo, tuple[JobRecord, ...], dict[str, int]]:
        """The record, the jobs, and the uppers of the shards of a collection at one moment (linearized).

        The shards are the metadata shard and those of the live renditions; none if the collection is dropped.
        `PersistClient.known` then has their versions of that moment, or later ones. Needs one read of the
        consensus store unless the records have changed. Raises `CollectionNotFound`.
        """

        def shards(state: ControllerState) -> Sequence[str]:
            info = state.collections.get(collection_id)
            if info is None or info.state is CollectionState.DROPPED:
                return ()
            return info.metadata_shard, *info.data_shards

        state, uppers = self._log.sync_with(shards)
        return state.find(collection_id), jobs_of(state, collection_id), uppers

    def hydrate(self, id_or_name: str, rendition_id: str, *, progress: OnProgress | None = None) -> int:
        """Fill a rendition of recipe COPY from the collection, in this process. Returns its upper afterwards.

        Its contents are committed together with the record of a job of kind "hydrate", whose slot is the id
        of the rendition. Then it copies rows that were written since, until little is missing. If an earlier
        attempt has not ended, this one replaces it. `progress` is called with (rows done, total rows). See
        `holdfast.collections.hydration` for the cases in which you should use a Spark job instead.

        Raises `BadInput` if the rendition is not, or no longer, being filled from the collection, and
        `Fenced` if another attempt replaced this one. Any other error is recorded with the job.
        """
        return Hydration(self, self._open(id_or_name), rendition_id, progress).run()

    def rendition_writer(
        self, id_or_name: str, rendition_id: str, *, purpose: str, replicated: bool = False
    ) -> RenditionWriter:
        """Open a handle that appends to one rendition, for the pipeline that feeds it.

        With `replicated` it is one of several identical pipelines. Raises like `describe`, and `BadInput` if
        there is no such rendition.
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

    @one_look()
    def writer(self, id_or_name: str, *, purpose: str, replicated: bool = False) -> CollectionWriter:
        """Open a handle that appends to a collection. `purpose` is for people to read. Raises like
        `describe`.

        With `replicated` it is one of several writers of the same rows at the same times. If another one was
        faster, the rows are compared with what that one wrote (`ReplicatedWriter.append`).
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

    @one_look()
    def reader(
        self, id_or_name: str, *, purpose: str, stored: bool = False, lease_s: float | None = None
    ) -> CollectionReader:
        """Open a handle that reads a collection and holds its since. Raises like `describe`.

        `stored` is as for `CollectionReader`, and `lease_s` as for `PersistClient.reader`.
        """
        info = self._open(id_or_name)
        describe = self._describer(info)
        try:
            return CollectionReader(
                self.client, info, describe, purpose=purpose, stored=stored, lease_s=lease_s
            )
        except ShardFinalized:
            _refuse_dropped(info)

    def set_retention_hold(self, id_or_name: str, since: int) -> int:
        """Move the collection's own hold to `since`. Never moves back, and at most to the latest complete
        time.

        Returns the since of the collection afterwards. Readers may hold it, and the data, further back.
        """
        info = self._open(id_or_name)
        self._release_ended_feeds(info.collection_id)
        since = min(since, max(self.frontiers(info.collection_id).upper - 1, 0))
        return move_retention(self.client, self._log, info, since, lambda: self._open(info.collection_id))

    def purpose_of(self, what: str) -> str:
        """The purpose to record with a write of this kind, such as "upsert". `history` of tables shows it."""
        return f"{self._who[:_MOST_WHO]}{SAYS_WHAT}{what}"

    def close(self) -> None:
        """Release the holds of the controller. Not needed for correctness."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _change_columns(
        self,
        collection_id: str,
        change: Callable[[ControllerState, int], Outcome[CollectionInfo]],
        time_of: Callable[[int], int],
    ) -> CollectionInfo:
        """Commit a change of columns together with an empty append, at a time chosen for the upper.

        A writer read the names before the upper at which it appends. So an append at an earlier upper, with
        the names from before, fails.
        """

        def checked(state: ControllerState, time: int) -> Outcome[CollectionInfo]:
            outcome = change(state, time)
            if isinstance(outcome, RecordCommit):
                try:
                    refuse_feeding(state.find(collection_id))
                except BadInput as error:
                    return RecordReject(error)
            return outcome

        match checked(self._log.sync(), 0):
            case RecordReject(error):
                raise error
            case RecordNoOp(result):
                return result
        writer = self.writer(collection_id, purpose=_COLUMNS_PURPOSE)
        while True:
            position = writer.position()
            time = time_of(position.upper)
            append = writer.prepare(None, position, time + 1, far_ahead=True)
            try:
                return self._log.commit(partial(checked, time=time), lambda _: append.steps)  # noqa: B023 - called at once
            except (UpperMismatch, ShardFinalized):
                continue  # Somebody wrote, or handed over, meanwhile.
            finally:
                for step in append.steps:
                    step.abandon()

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
        return _usable(self.describe(id_or_name))

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

    def _do(self, collection_id: str, step: AdvanceStep) -> None:
        match step.kind:
            case StepKind.TAIL:
                self.renditions.copy_tail(collection_id)
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

    def _release_ended_feeds(self, collection_id: str) -> None:
        """Release the holds of pipelines of this location that need the collection no more."""
        state = self._log.sync()
        info = state.find(collection_id)

        def upper(fed: CollectionInfo, rendition_id: str) -> int:
            return common_upper(fed, fed.rendition(rendition_id), self.client.recent_uppers)

        for purpose in ended_feeds(info, state, self.client.location_id, upper):
            self.release_hold(collection_id, purpose)

    def _refuse_while_held(self, info: CollectionInfo) -> None:
        keepers = {str(hold) for hold in self.holds(info.collection_id) if not hold.own}
        if keepers:
            raise CollectionInUse(
                f"collection {info.name} is being dropped, and still held by {', '.join(sorted(keepers))}",
                hint="end these holds and drop it again, or drop it by force",
            )


def _usable(info: CollectionInfo) -> CollectionInfo:
    if info.dropped:
        _refuse_dropped(info)
    if info.state is not CollectionState.ACTIVE:
        raise VersionTooNew(
            f"collection {info.name} ({info.collection_id}) can't be used: its state is"
            f" {info.state.name}, which this Holdfast doesn't write"
        )
    return info


def _refuse_dropped(info: CollectionInfo) -> NoReturn:
    raise CollectionNotFound(info.end)
