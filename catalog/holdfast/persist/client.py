"""The client of a location: it talks to the stores directly and opens the handles of shards.

All handles of a client share one state cache per shard. Nothing depends on `close`, so a process may die at
any time. With `mode="read"`, the client writes nothing anywhere, not even leases.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Self
from uuid import UUID

import pyarrow as pa

from holdfast.errors import BadInput, StorageError
from holdfast.locations import location_url
from holdfast.persist.checks import check_frontier, check_purpose, check_schema, check_write_mode
from holdfast.persist.clock import Clock
from holdfast.persist.config import PersistConfig
from holdfast.persist.handles.compactions import Compactions
from holdfast.persist.handles.critical import (
    CriticalSince,
    open_critical,
    prepare_critical,
    prepare_downgrade_critical,
    prepare_release_critical,
)
from holdfast.persist.handles.exclusive import Exclusive, take_exclusive
from holdfast.persist.handles.names import create_or_load, forget, read_names
from holdfast.persist.handles.read import ReadHandle, open_readers
from holdfast.persist.handles.upload import (
    Upload,
    UploadTicket,
    discard,
    give_up,
    keep_alive,
    upload,
    uploaded,
)
from holdfast.persist.handles.write import (
    WriteHandle,
    open_writer,
    prepare_create,
    prepare_drop_staged,
    prepare_finalize,
    writer_of,
)
from holdfast.persist.ids import new_id
from holdfast.persist.multi_write import Prepared, multi_write
from holdfast.persist.parts.snapshot import Snapshot, SnapshotPart
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.schema import Schema
from holdfast.persist.rows.values import Rows
from holdfast.persist.session import Mode, Session
from holdfast.persist.state.appends import appends
from holdfast.persist.state.command import EvolveSchema, ExpectUpper
from holdfast.persist.state.inspect import ShardInfo, StoredSize, shard_info, staged_sizes, stored_size
from holdfast.persist.state.machine import refresh_all
from holdfast.persist.state.state import WriteMode, Writer
from holdfast.persist.stores import CacheConfig, Location, StoreMetrics
from holdfast.persist.upkeep.garbage import erase, is_erased
from holdfast.persist.upkeep.survey import HEADS


class PersistClient:
    """Opens shards of one location. Thread-safe. Calls are linearized across its threads.

    A client and its handles belong to the process that opened the client. In a forked child, every call
    raises `UsedAfterFork`, and `close` does nothing. Open another client there.
    """

    def __init__(
        self,
        location: Location,
        *,
        mode: Mode = "write",
        config: PersistConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.session = Session(location, _check_mode(mode), config or PersistConfig(), clock or Clock())
        self._taking = threading.Lock()
        self._exclusive: Exclusive | None = None

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str] | None = None,
        *,
        blob: str | None = None,
        consensus: str | None = None,
        mode: Mode = "write",
        config: PersistConfig | None = None,
        cache: CacheConfig | None = None,
        metrics: StoreMetrics | None = None,
        credentials: Mapping[str, str] | None = None,
    ) -> "PersistClient":
        """Open the location at `url` (`file:///dir`, `s3://...`, `memory://name`), or at a pair of URLs.

        A path is a folder, like `file:///dir`, and `@prod` is a location that the user's configuration file
        names. The form for S3 is
        `s3://bucket/prefix?endpoint=...&region=...`. It names a location, a blob store or a consensus store.
        If it names a location, all shards share the rate of one log of objects.

        Credentials come from the environment, or from `credentials`, which has the names of the environment
        variables of AWS and libpq. `cache` keeps blobs that were read or written, within its bounds.
        `metrics` counts the calls of both stores.

        Raises:
            BadInput: a URL is invalid.
            StoreUnreachable: a store can't be opened.
            LocationMismatch: blob and consensus belong to different locations.
        """
        read_only = _check_mode(mode) == "read"
        config = config or PersistConfig()
        location = Location.open(
            None if url is None else location_url(url),
            blob=blob,
            consensus=consensus,
            read_only=read_only,
            retry_s=config.retry_deadline_s,
            metrics=metrics,
            cache=cache,
            credentials=credentials,
        )
        return cls(location, mode=mode, config=config)

    @property
    def location(self) -> Location:
        """The stores of the location."""
        return self.session.location

    @property
    def location_id(self) -> UUID:
        """The identity of the location. Well-known shard ids derive from it."""
        return self.location.location_id

    @property
    def mode(self) -> Mode:
        """The mode of the client: "write" or "read"."""
        return self.session.mode

    @property
    def config(self) -> PersistConfig:
        """The settings of the client."""
        return self.session.config

    @property
    def clock(self) -> Clock:
        """The clock that the client reads."""
        return self.session.clock

    def now_ms(self) -> int:
        """Return the time for what is written now, in ms since the epoch.

        It is this host's time, limited by the stores' clocks. See `PersistConfig.clock_ahead_s`.
        """
        return self.session.now_ms()

    def store_ms(self) -> int | None:
        """Return the earliest time of the stores' clocks, in ms since the epoch; None if no clock is known.

        A host's own clock doesn't count. A file store shows its clock only to clients that write.
        """
        return self.session.store_ms()

    def store_or_host_ms(self) -> int:
        """Return `store_ms`, or this host's time if no store has a clock."""
        store_ms = self.store_ms()
        return self.clock.wall_ms() if store_ms is None else store_ms

    def new_shard_id(self) -> str:
        """Return a random shard id. The shard is created with its first commit."""
        return new_id("s")

    def writer(
        self, shard_id: str, schema: Schema, *, purpose: str, mode: WriteMode = WriteMode.APPEND
    ) -> WriteHandle:
        """Open a handle that writes. A shard that does not exist is created in this mode by its first commit.

        A handle of mode WRITE_SEAL needs the write lock of the location (`exclusive`) to write and seal.

        Raises:
            CodecMismatch: the shard never had this schema. If the schema may follow the current one, `evolve`
                first.
            BadInput: the shard has another mode.
            NotWritable: the client was opened with mode "read".
        """
        return open_writer(self.session, shard_id, schema, purpose=purpose, mode=mode)

    def reader(self, shard_id: str, *, purpose: str, lease_s: float | None = None) -> ReadHandle:
        """Open a handle that reads. It holds `since` under a lease, unless the client has mode "read".

        `lease_s` is a shorter lease than that of the configuration, in seconds. It counts only if upkeep runs
        in a thread of the client, which then sends heartbeats more often.

        Raises:
            BadInput: the shard does not exist.
            ShardFinalized: the shard was finalized.
        """
        (reader,) = open_readers(self.session, [shard_id], purpose=purpose, lease_s=lease_s)
        return reader

    def readers(
        self, shard_ids: Sequence[str], *, purpose: str, lease_s: float | None = None
    ) -> list[ReadHandle]:
        """Open a handle for each of these shards. One commit takes all leases. Raises like `reader`."""
        return open_readers(self.session, shard_ids, purpose=purpose, lease_s=lease_s)

    def critical_since(self, shard_id: str, *, purpose: str, opaque: bytes = b"") -> CriticalSince:
        """Open the hold of this purpose on a shard's `since`; take it if it does not exist. It never expires.

        A new hold gets the token `opaque`. An existing hold keeps its own token. The handle can move the hold
        only while the two tokens are equal (see `holdfast.persist.handles.critical`).
        """
        return open_critical(self.session, shard_id, purpose=purpose, opaque=opaque)

    def exclusive(self, reentrance_id: str, *, purpose: str = "", take_over: bool = False) -> Exclusive:
        """Take the write lock of the location. From now on, no other client that uses the lock can commit.

        The lock only affects clients that use it. Clients without it can still write to shards of mode
        APPEND. `reentrance_id` identifies the user across restarts. If the same id takes the lock again, the
        lock moves, and the previous process with this id is fenced. This is also true for a fenced client: if
        it takes the lock again, it fences its successor. So let a fenced client end instead. With
        `take_over`, the lock is taken from any holder. Use it if you know that the holder is dead for good.

        Raises:
            LockHeld: another id has the lock; the error names the holder. Nothing happened.
            BadInput: this client already has the lock, `reentrance_id` or `purpose` is invalid, or the client
                is closed. Nothing happened.
            NotWritable: the client was opened with mode "read". Nothing happened.
            CorruptBlob: the newest row of the lock can't be read, or the store refused the next one for
                longer than the retry deadline although nothing moved. Nothing happened.
            VersionTooNew: a newer Holdfast wrote the newest row of the lock. Nothing happened.
            Determinate: the store refused or failed, or others took the lock at the same moment, for longer
                than the retry deadline. Nothing happened.
            Indeterminate: the lock may have been taken. Call again with the same id to find out.
        """
        self.session.check_writable()
        with self._taking:
            self._exclusive = take_exclusive(
                self.session, reentrance_id, purpose=purpose, take_over=take_over
            )
            return self._exclusive

    def prepare_create(
        self, shard_id: str, schema: Schema, *, purpose: str, mode: WriteMode = WriteMode.APPEND
    ) -> Prepared:
        """Prepare the creation of an empty shard, for `multi_write`."""
        return prepare_create(self.session, shard_id, schema, purpose=purpose, mode=mode)

    def prepare_evolve(self, shard_id: str, schema: Schema) -> Prepared:
        """Prepare a change of a shard's schema to one that may follow it, for `multi_write`."""
        return Prepared(self.session.machine(shard_id), EvolveSchema(check_schema(schema)))

    def evolve(self, shard_id: str, schema: Schema) -> None:
        """Give a shard a schema that may follow its current one. Does nothing if it has, or had, that schema.

        Stored data is not rewritten: older rows are read through the newest schema. Writers of an earlier
        schema may continue. Readers see the new schema with the next read that they begin.

        Raises:
            CodecMismatch: the schema can't follow the shard's schema: a key column differs, a value column is
                missing, renamed, narrower or no longer nullable, or a new column is not nullable.
        """
        self.multi_write([self.prepare_evolve(shard_id, schema)])

    def prepare_critical(
        self, shard_id: str, *, purpose: str, opaque: bytes = b"", not_past: int | None = None
    ) -> Prepared:
        """Prepare a critical hold on an existing shard, for `multi_write`. An existing hold stays as it is.

        The multi-write raises `AsOfTooEarly` if there is no hold and since is already past `not_past`.
        """
        return prepare_critical(self.session, shard_id, purpose=purpose, opaque=opaque, not_past=not_past)

    def prepare_downgrade_critical(
        self, shard_id: str, since: int, *, purpose: str, opaque: bytes = b"", expected: bytes | None = None
    ) -> Prepared:
        """Prepare to move the critical hold of this purpose forward to `since`, for `multi_write`.

        The hold never moves back. The multi-write raises `Fenced` unless the stored token is `expected`
        (None: `opaque`). The new token is `opaque`.
        """
        return prepare_downgrade_critical(
            self.session, shard_id, since, purpose=purpose, opaque=opaque, expected=expected
        )

    def prepare_release_critical(self, shard_id: str, *, purpose: str, opaque: bytes = b"") -> Prepared:
        """Prepare the release of the critical hold of this purpose, for `multi_write`; no effect without one.

        The multi-write raises `Fenced` unless the stored token is `opaque`.
        """
        return prepare_release_critical(self.session, shard_id, purpose=purpose, opaque=opaque)

    def prepare_expect_upper(self, shard_id: str, upper: int) -> Prepared:
        """Prepare the condition that a shard's upper is `upper` when the rest of the `multi_write` commits.

        If it is not, the multi-write raises `UpperMismatch`, which names the shard.
        """
        return Prepared(self.session.machine(shard_id), ExpectUpper(check_frontier(upper, "upper")))

    def prepare_finalize(self, shard_id: str) -> Prepared:
        """Prepare the end of a shard, for `multi_write`."""
        return prepare_finalize(self.session, shard_id)

    def prepare_drop_staged(self, shard_id: str) -> Prepared:
        """Prepare to drop what is staged for a shard (`WriteHandle.prepare_stage`), for `multi_write`."""
        return prepare_drop_staged(self.session, shard_id)

    def finalize(self, shard_id: str) -> None:
        """Finalize a shard. Nobody can read it any more.

        Its data is deleted after `gc_grace_s`, by a client that runs then, or at once by `erase`.
        """
        self.multi_write([self.prepare_finalize(shard_id)])

    def erase(self, shard_id: str) -> None:
        """Delete the data of a finalized shard now, except for what `retain_for_s` keeps.

        Does nothing if that was done before. An interrupted call can be repeated.

        Raises:
            BadInput: the shard does not exist, or is not finalized.
            NotErased: the shard has two histories, so nothing of it may be deleted.
        """
        self.session.check_writable()
        machine = self.session.existing(shard_id)
        if not machine.state.finalized:
            raise BadInput(f"shard {shard_id} is not finalized", hint="finalize it first")
        erase(machine)

    def is_erased(self, shard_id: str) -> bool:
        """Whether a shard is finalized and has no data any more. Raises `BadInput` if it does not exist."""
        return is_erased(self.session.existing(shard_id).state)

    def multi_write(self, commands: Sequence[Prepared]) -> None:
        """Commit prepared commands on shards of this location: all of them or none.

        Each shard takes at most one append or seal, and any number of writes.

        Raises:
            BadInput: an append was already committed, or its uploads were deleted when it was rejected.
            NotWritable: a write or seal needs the write lock, which this client has not taken.
            UpperMismatch: an append expected another upper; the error names the shard. Nothing happened.
            LocationMismatch: a command was prepared by a client of another location.
            Fenced: the client has lost the write lock that it took. Nothing happened.
            Indeterminate: the commit may have happened.
        """
        multi_write(self.session, commands)

    def create_or_load(self, name: str, schema: Schema, *, mode: WriteMode = WriteMode.APPEND) -> str:
        """Return the id of the shard with this name. If there is none, create it with `schema` in `mode`.

        If several processes ask for a name at once, all of them get the same shard.

        Raises:
            CodecMismatch: the shard never had this schema.
            ShardFinalized: the shard was finalized, and its name was not forgotten.
            BadInput: the shard has another mode, or the name is empty, longer than 255 characters, or
                contains invisible characters.
            NotWritable: there is no such shard, and the client was opened with mode "read".
            Indeterminate: the shard may have been created. Call again to find out.
        """
        return create_or_load(self.session, name, check_schema(schema), check_write_mode(mode))

    def names(self) -> dict[str, str]:
        """Return all names of the location and the ids of their shards, sorted by name. Linearized."""
        self.session.check_open()
        return dict(sorted(read_names(self.session)[1].items()))

    def forget(self, name: str, *, finalize: bool = False) -> str:
        """Remove a name, and with `finalize` also end its shard, in one step. Return the id of the shard.

        Without `finalize` the shard stays as it is, and you can open it only by its id. The name can be used
        again.

        Raises:
            BadInput: there is no such name.
            NotWritable: the client was opened with mode "read".
        """
        self.session.check_writable()
        return forget(self.session, name, finalize=finalize)

    def recent_upper(self, shard_id: str) -> int:
        """Return a shard's upper, or 0 if the shard does not exist. Linearized: one read of Consensus."""
        return self.session.machine(shard_id).look().upper

    def recent_uppers(self, shard_ids: Sequence[str]) -> dict[str, int]:
        """Return the uppers of several shards like `recent_upper`, with one read of Consensus for all."""
        self.session.check_open()
        machines = [self.session.machine(shard_id) for shard_id in shard_ids]
        return {state.shard_id: state.upper for state in refresh_all(machines)}

    def versions(self, shard_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the shards' newest versions, or 0. Linearized: few reads of Consensus."""
        self.session.check_open()
        machines = [self.session.machine(shard_id) for shard_id in shard_ids]
        chunks = (machines[start : start + HEADS] for start in range(0, len(machines), HEADS))
        return {state.shard_id: state.seqno for chunk in chunks for state in refresh_all(chunk)}

    def known(self, shard_id: str) -> ShardInfo | None:
        """Summarize the version of a shard that this client has cached. Return None if there is none.

        No store is read, so the store may have a newer version.
        """
        state = self.session.machine(shard_id).state
        return shard_info(state) if state.exists else None

    def known_since(self, shard_id: str) -> int | None:
        """Return the since in the version of a shard that this client has cached. No store is read."""
        state = self.session.machine(shard_id).state
        return state.since if state.exists else None

    def known_writers(self, shard_id: str) -> tuple[Writer, ...]:
        """Return the writers in the version of a shard that this client has cached. No store is read."""
        return tuple(self.session.machine(shard_id).state.writers.values())

    def appends(self, shard_id: str, after: int = 0) -> pa.Table:
        """Return who appended rows to a shard, as far as that is recorded: `holdfast.persist.state.appends`.

        The columns are those of `APPENDS`. Only appends whose upper is after `after`, by their version.
        """
        machine = self.session.machine(shard_id)
        return appends(machine.location, shard_id, after)

    def exists(self, shard_id: str) -> bool:
        """Whether a shard was created."""
        return self.session.machine(shard_id).refresh().exists

    def shards(self) -> list[str]:
        """Return the ids of all shards of the location."""
        self.session.check_open()
        return sorted(key for key in self.location.consensus.list_keys() if key.startswith("s"))

    def inspect(self, shard_id: str) -> ShardInfo:
        """Summarize the newest version of a shard. Raises `BadInput` if the shard does not exist."""
        return shard_info(self.session.existing(shard_id).state)

    def stored(self, shard_id: str) -> StoredSize:
        """Return how much is stored before any consolidation, without pending updates."""
        return stored_size(self.session.existing(shard_id).state)

    def staged(self, shard_id: str) -> dict[str, StoredSize]:
        """Return the names and the sizes of the staged batches of a shard in mode APPEND. Linearized."""
        return staged_sizes(self.session.existing(shard_id).refresh())

    def read_snapshot_part(self, part: SnapshotPart, columns: Sequence[str] | None = None) -> Snapshot:
        """Read a piece of a snapshot that `ReadHandle.snapshot_parts` described, maybe in another process.

        With `columns`, return only these columns and `_diff`. Raises the same errors as
        `ReadHandle.snapshot`.
        """
        # The process that described the parts holds them. A lease per reading process would add contention.
        reader = ReadHandle(self.session, self.session.machine(part.shard_id), None)
        return reader.snapshot_of(part, columns)

    def upload(self, ticket: UploadTicket, pieces: Iterable[Rows]) -> Upload:
        """Upload updates for the writer that issued the ticket, maybe in another process, which appends them.

        `pieces` are consolidated updates with all columns, sorted as a whole, as `BatchBuilder.updates`
        yields them. Nothing is committed here. Raises the errors that `pieces` raises.
        """
        self.session.check_writable()
        return upload(self.session.machine(ticket.shard_id), ticket, pieces)

    def writer_of(self, ticket: UploadTicket, *, purpose: str) -> WriteHandle:
        """Return the writer that issued this ticket, to append what was uploaded for it.

        Raises `ShardFinalized`. Its appends raise `HandleExpired` if it sent no heartbeat for too long, or
        was given up.
        """
        return writer_of(self.session, ticket, purpose=purpose)

    def uploaded(self, upload: Upload) -> Iterator[pa.Table]:
        """Yield the updates of an upload, one part at a time.

        Raises `HandleExpired` if the upload is gone, and `CorruptBlob`.
        """
        machine = self.session.machine(upload.shard_id)
        machine.refresh()
        return uploaded(machine, upload)

    def keep_alive(self, ticket: UploadTicket, *, purpose: str) -> None:
        """Renew the lease of the writer that issued this ticket.

        Raises `HandleExpired` if it sent no heartbeat for too long. What was uploaded for it may then be
        gone.
        """
        self.session.check_writable()
        keep_alive(self.session.machine(ticket.shard_id), ticket, check_purpose(purpose))

    def give_up(self, ticket: UploadTicket, uploads: Iterable[Upload] = ()) -> None:
        """End the writer that issued this ticket, so that it can't append any more.

        Deletes the `uploads` that were made for it and that it has not appended.
        """
        self.session.check_writable()
        give_up(self.session.machine(ticket.shard_id), ticket, uploads)

    def discard(self, uploads: Iterable[Upload]) -> None:
        """Delete uploads that nobody else knows of, as far as possible."""
        self.session.check_writable()
        discard(self.session, uploads)

    def maintain(self, shard_id: str) -> None:
        """Do a shard's upkeep now, in this thread."""
        self.session.check_writable()
        machine = self.session.machine(shard_id)
        machine.look_again()
        self.session.maintainer.run(machine)

    def end_silent_leases(self, shard_id: str) -> None:
        """End the leases of readers and writers whose heartbeats this client didn't see for a whole lease.

        Call it again from time to time: the first call only begins to watch.
        """
        self.session.check_writable()
        self.session.maintainer.end_silent_leases(self.session.machine(shard_id))

    @property
    def compactions(self) -> Compactions:
        """Compactions that you claim here and run anywhere. Upkeep runs those that nobody claims."""
        self.session.check_open()
        return Compactions(self.session)

    def publish_changes(self, url: str) -> str:
        """Publish new versions of all shards to other clients over a socket. Return the address to follow.

        `url` is `unix:/path` or `tcp://host:port`. Port 0 means any free port. Everyone who can connect
        learns the ids of shards and that they change. So choose a path or host that only authorized users can
        reach.

        Raises:
            BadInput: the address is invalid, or this client publishes at an address already.
            StoreUnreachable: another process uses the address.
        """
        return self.session.publish_changes(url)

    def follow_changes(self, url: str) -> None:
        """Wake listeners when the client at `url` publishes a version. Its `publish_changes` returns the URL.

        Use it for stores that have no prompt hints. While it is connected, listeners see writes of other
        clients at the slow pace. If the connection fails, it is retried for ever.

        Raises:
            BadInput: the address is invalid, or this client follows an address already.
        """
        self.session.follow_changes(url)

    def close(self) -> None:
        """Refuse new work, finish waiting upkeep, release all handles and the lock, and close the stores.

        In a forked child it does nothing, because all of that belongs to the parent.
        """
        if not self.session.begin_close():
            return
        if self._exclusive is not None:
            # If the release fails, the lock stays taken. The same id can take it again.
            with suppress(StorageError):
                self._exclusive.close()
        self.session.close_stores()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_mode(mode: Mode) -> Mode:
    if mode not in ("write", "read"):
        raise BadInput(f"the mode of a client is 'write' or 'read', not {shown(mode)}")
    return mode
