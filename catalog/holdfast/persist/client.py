"""The fat client of a location: it talks to storage directly and hands out the handles of its shards.

All handles of a client share one state cache per shard. Nothing depends on `close`: a process may die at any
instant. `mode="read"` writes nothing anywhere, leases included.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self
from uuid import UUID

import pyarrow as pa

from holdfast.errors import BadInput, StorageError
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
from holdfast.persist.handles.read import ReadHandle, open_reader
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
    prepare_finalize,
    writer_of,
)
from holdfast.persist.ids import new_id
from holdfast.persist.parts.snapshot import Snapshot, SnapshotPart
from holdfast.persist.prepared import Prepared
from holdfast.persist.rows.canonical import Rows
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.schema import Schema
from holdfast.persist.session import Mode, Session
from holdfast.persist.state.command import EvolveSchema, ExpectUpper
from holdfast.persist.state.inspect import ShardInfo, StoredSize, shard_info, stored_size
from holdfast.persist.state.machine import refresh_all
from holdfast.persist.state.state import WriteMode
from holdfast.persist.stores import CacheConfig, Location, StoreMetrics
from holdfast.persist.upkeep.survey import HEADS


class PersistClient:
    """Opens shards of one location. Thread-safe; calls are linearized across its threads.

    A client, and all that it hands out, belongs to the process that opened it. In a forked child every call
    raises `UsedAfterFork`, and `close` does nothing: open another client there.
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
    ) -> "PersistClient":
        """Open the location at `url` (`file:///dir`, `s3://...`, `memory://name`), or at a pair of URLs.

        A `pathlib.Path` is a folder, as `file:///dir` is.
        S3 is `s3://bucket/prefix?endpoint=...&region=...`: a location (all its shards share the rate of one
        log of objects), a blob or a consensus store; credentials: the environment.

        Blobs that were read or written are kept in `cache`, within its bounds; `metrics` counts the calls of
        both stores.

        Raises:
            BadInput: a URL that can't be meant.
            StoreUnreachable: a store that can't be opened.
            LocationMismatch: blob and consensus belong to different locations.
        """
        read_only = _check_mode(mode) == "read"
        config = config or PersistConfig()
        location = Location.open(
            Path(url).absolute().as_uri() if isinstance(url, os.PathLike) else url,
            blob=blob,
            consensus=consensus,
            read_only=read_only,
            retry_s=config.retry_deadline_s,
            metrics=metrics,
            cache=cache,
        )
        return cls(location, mode=mode, config=config)

    @property
    def location(self) -> Location:
        """The stores."""
        return self.session.location

    @property
    def location_id(self) -> UUID:
        """The identity of the location, from which well-known shard ids derive."""
        return self.location.location_id

    @property
    def mode(self) -> Mode:
        """What it was opened for: "write" or "read"."""
        return self.session.mode

    @property
    def config(self) -> PersistConfig:
        """Its settings."""
        return self.session.config

    @property
    def clock(self) -> Clock:
        """The clock that it reads."""
        return self.session.clock

    def now_ms(self) -> int:
        """The time for what is written now, in ms since the epoch: this host's, bounded by the store's clock.

        See `PersistConfig.clock_ahead_s`.
        """
        return self.session.now_ms()

    def new_shard_id(self) -> str:
        """A random shard id; the shard comes into being with its first commit."""
        return new_id("s")

    def writer(
        self, shard_id: str, schema: Schema, *, purpose: str, mode: WriteMode = WriteMode.APPEND
    ) -> WriteHandle:
        """A handle that writes; a shard that doesn't exist is created with its first commit, in this mode.

        A handle of mode WRITE_SEAL needs the write lock of the location (`exclusive`) to write and seal.

        Raises:
            CodecMismatch: the shard has, and had, no such schema; `evolve` it first where it may follow.
            BadInput: the shard was made in another mode.
            NotWritable: the client was opened with mode "read".
        """
        return open_writer(self.session, shard_id, schema, purpose=purpose, mode=mode)

    def reader(self, shard_id: str, *, purpose: str) -> ReadHandle:
        """A handle that reads, holding `since` under a lease (none with mode "read").

        Raises:
            BadInput: the shard doesn't exist.
            ShardFinalized: the shard has ended.
        """
        return open_reader(self.session, shard_id, purpose=purpose)

    def critical_since(self, shard_id: str, *, purpose: str, opaque: bytes = b"") -> CriticalSince:
        """The hold of this purpose on a shard's `since`, taken where it isn't there yet. It never expires.

        A hold that is taken gets the token `opaque`; one that is there keeps its own, whatever is given. The
        handle can move it only while the two are equal (see `holdfast.persist.handles.critical`).
        """
        return open_critical(self.session, shard_id, purpose=purpose, opaque=opaque)

    def exclusive(self, reentrance_id: str, *, purpose: str = "", take_over: bool = False) -> Exclusive:
        """Take the write lock of the location: from now on nobody else who uses it commits.

        It is for those who ask for it: clients that don't are not kept out of shards in mode APPEND.
        `reentrance_id` names the user over its restarts: asked for with the same id, the lock moves on, and
        what is left of the process that had it is fenced. That holds for a client that was fenced too: if it
        asks again, it fences its successor; let it end instead. With `take_over` it does so whoever has it:
        for a holder that is dead for good, as the operator knows.

        Raises:
            LockHeld: another id has it; names the holder. Nothing happened.
            BadInput: this client has it already, `reentrance_id` or `purpose` can't be used, or the client is
                closed. Nothing happened.
            NotWritable: the client was opened with mode "read". Nothing happened.
            CorruptBlob: the newest row of the lock can't be read, or the store refused the next one for
                longer than the retry deadline although nothing moved. Nothing happened.
            VersionTooNew: a newer Holdfast wrote the newest row of the lock. Nothing happened.
            Determinate: the store refused or failed, or others took the lock at the same moment, for longer
                than the retry deadline. Nothing happened.
            Indeterminate: whether it was taken could not be found out; ask again with the same id.
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
        """The creation of an empty shard, for `multi_write`."""
        return prepare_create(self.session, shard_id, schema, purpose=purpose, mode=mode)

    def prepare_evolve(self, shard_id: str, schema: Schema) -> Prepared:
        """The move of a shard to a schema that follows its own, for `multi_write`."""
        return Prepared(self.session.machine(shard_id), EvolveSchema(check_schema(schema)))

    def evolve(self, shard_id: str, schema: Schema) -> None:
        """Give a shard a schema that follows its own; nothing to do where it has, or had, that one.

        Nothing is rewritten: what was written before is read through the newest schema. Writers of an earlier
        schema may go on; readers see the newest one with the next read that they begin.

        Raises:
            CodecMismatch: the schema can't follow the shard's: a key column differs, a value column is gone,
                renamed, narrower or no longer nullable, or a new one is not nullable.
        """
        self.multi_write([self.prepare_evolve(shard_id, schema)])

    def prepare_critical(
        self, shard_id: str, *, purpose: str, opaque: bytes = b"", not_past: int | None = None
    ) -> Prepared:
        """A critical hold on an existing shard, for `multi_write`. One that is there stays as it is.

        The multi-write raises `AsOfTooEarly` where there is none and since is past `not_past`.
        """
        return prepare_critical(self.session, shard_id, purpose=purpose, opaque=opaque, not_past=not_past)

    def prepare_downgrade_critical(
        self, shard_id: str, since: int, *, purpose: str, opaque: bytes = b"", expected: bytes | None = None
    ) -> Prepared:
        """The move of the critical hold of this purpose forward to `since`, for `multi_write`; never back.

        The multi-write is `Fenced` unless the stored token is `expected` (None: `opaque`). It becomes
        `opaque`.
        """
        return prepare_downgrade_critical(
            self.session, shard_id, since, purpose=purpose, opaque=opaque, expected=expected
        )

    def prepare_release_critical(self, shard_id: str, *, purpose: str, opaque: bytes = b"") -> Prepared:
        """The end of the critical hold of this purpose, for `multi_write`; where there is none, nothing.

        The multi-write is `Fenced` unless the stored token is `opaque`.
        """
        return prepare_release_critical(self.session, shard_id, purpose=purpose, opaque=opaque)

    def prepare_expect_upper(self, shard_id: str, upper: int) -> Prepared:
        """The condition, for `multi_write`, that a shard's upper is this when the other commands commit.

        The multi-write raises `UpperMismatch`, naming the shard, where it is another.
        """
        return Prepared(self.session.machine(shard_id), ExpectUpper(check_frontier(upper, "upper")))

    def prepare_finalize(self, shard_id: str) -> Prepared:
        """The end of a shard, for `multi_write`."""
        return prepare_finalize(self.session, shard_id)

    def finalize(self, shard_id: str) -> None:
        """End a shard: its data goes for ever."""
        self.multi_write([self.prepare_finalize(shard_id)])

    def multi_write(self, commands: Sequence[Prepared]) -> None:
        """Commit prepared commands on shards of this location: all of them or none.

        A shard takes one append or seal, and any number of writes.

        Raises:
            BadInput: an append is committed already, or its uploads went when it was rejected.
            NotWritable: a write or seal needs the write lock, which this client has not taken.
            UpperMismatch: an append expected another upper; names the shard. Nothing happened.
            LocationMismatch: a command was prepared by a client of another location.
            Fenced: the client has lost the write lock that it took. Nothing happened.
            Indeterminate: whether it happened could not be found out.
        """
        self.session.multi_write(commands)

    def create_or_load(self, name: str, schema: Schema, *, mode: WriteMode = WriteMode.APPEND) -> str:
        """The id of the shard that `name` stands for here, made with `schema` in `mode` where there is none.

        Of any number of processes that ask for a name at once, all get the same shard.

        Raises:
            CodecMismatch: the shard has, and had, no such schema.
            ShardFinalized: the shard has ended, and its name was not forgotten.
            BadInput: the shard was made in another mode; or a name that is empty, longer than 255 characters,
                or has characters that don't show.
            NotWritable: there is no such shard, and the client was opened with mode "read".
            Indeterminate: whether it was made could not be found out; ask again.
        """
        return create_or_load(self.session, name, check_schema(schema), check_write_mode(mode))

    def names(self) -> dict[str, str]:
        """All names of the location and the ids of the shards that they stand for, in order; linearized."""
        self.session.check_open()
        return dict(sorted(read_names(self.session)[1].items()))

    def forget(self, name: str, *, finalize: bool = False) -> str:
        """End a name, and with `finalize` its shard too, in one step; the id of the shard.

        Without it the shard stays as it is, and is found by its id alone. The name may be used again.

        Raises:
            BadInput: there is no such name.
            NotWritable: the client was opened with mode "read".
        """
        self.session.check_writable()
        return forget(self.session, name, finalize=finalize)

    def recent_upper(self, shard_id: str) -> int:
        """A shard's upper, linearized (one read of Consensus); 0 where it doesn't exist."""
        return self.session.machine(shard_id).refresh().upper

    def recent_uppers(self, shard_ids: Sequence[str]) -> dict[str, int]:
        """The uppers of shards, as `recent_upper` gives each, by one read of Consensus for all of them."""
        self.session.check_open()
        machines = [self.session.machine(shard_id) for shard_id in shard_ids]
        return {state.shard_id: state.upper for state in refresh_all(machines)}

    def versions(self, shard_ids: Sequence[str]) -> dict[str, int]:
        """The numbers of the newest versions of shards, linearized, by few reads of Consensus; 0: none."""
        self.session.check_open()
        machines = [self.session.machine(shard_id) for shard_id in shard_ids]
        chunks = (machines[start : start + HEADS] for start in range(0, len(machines), HEADS))
        return {state.shard_id: state.seqno for chunk in chunks for state in refresh_all(chunk)}

    def known(self, shard_id: str) -> ShardInfo | None:
        """A look at the version that this client has of a shard, without asking; None where it has none.

        The store may have a newer one.
        """
        state = self.session.machine(shard_id).state
        return shard_info(state) if state.exists else None

    def exists(self, shard_id: str) -> bool:
        """Whether a shard was ever created."""
        return self.session.machine(shard_id).refresh().exists

    def shards(self) -> list[str]:
        """The ids of all shards of the location."""
        self.session.check_open()
        return sorted(key for key in self.location.consensus.list_keys() if key.startswith("s"))

    def inspect(self, shard_id: str) -> ShardInfo:
        """A look at a shard; `BadInput` where it doesn't exist."""
        return shard_info(self.session.existing(shard_id).state)

    def stored(self, shard_id: str) -> StoredSize:
        """How much is stored, before any consolidation; what is pending apart."""
        return stored_size(self.session.existing(shard_id).state)

    def read_snapshot_part(self, part: SnapshotPart, columns: Sequence[str] | None = None) -> Snapshot:
        """The piece of a snapshot that `ReadHandle.snapshot_parts` described, perhaps in another process.

        Only `columns` of it and `_diff` where they are given. Raises as `ReadHandle.snapshot` does.
        """
        # Who described the parts holds them: each reading process taking a lease would only contend.
        reader = ReadHandle(self.session, self.session.machine(part.shard_id), None)
        return reader.snapshot_of(part, columns)

    def upload(self, ticket: UploadTicket, pieces: Iterable[Rows]) -> Upload:
        """Upload updates for the writer that gave the ticket, perhaps in another process; it appends them.

        `pieces` are consolidated updates with all columns that follow each other in the total order, as
        `BatchBuilder.updates` gives them. Nothing is committed here. Raises what `pieces` raises.
        """
        self.session.check_writable()
        return upload(self.session.machine(ticket.shard_id), ticket, pieces)

    def writer_of(self, ticket: UploadTicket, *, purpose: str) -> WriteHandle:
        """The writer that was handed on with this ticket, to append what was uploaded for it.

        Raises `ShardFinalized`; its appends `HandleExpired`, where it was silent for too long or given up.
        """
        return writer_of(self.session, ticket, purpose=purpose)

    def uploaded(self, upload: Upload) -> Iterator[pa.Table]:
        """The updates of an upload, a part at a time.

        Raises `HandleExpired` where it is gone, `CorruptBlob`.
        """
        machine = self.session.machine(upload.shard_id)
        machine.refresh()
        return uploaded(machine, upload)

    def keep_alive(self, ticket: UploadTicket, *, purpose: str) -> None:
        """Say that the writer that was handed on with this ticket lives.

        Raises `HandleExpired` where it was silent for too long: what was uploaded for it may be gone.
        """
        self.session.check_writable()
        keep_alive(self.session.machine(ticket.shard_id), ticket, check_purpose(purpose))

    def give_up(self, ticket: UploadTicket, uploads: Iterable[Upload] = ()) -> None:
        """End the writer that was handed on with this ticket: it can't append any more.

        Of `uploads`, those for it, what it has not appended goes.
        """
        self.session.check_writable()
        give_up(self.session.machine(ticket.shard_id), ticket, uploads)

    def discard(self, uploads: Iterable[Upload]) -> None:
        """Delete uploads that nobody has been told of, as far as that goes."""
        self.session.check_writable()
        discard(self.session, uploads)

    def maintain(self, shard_id: str) -> None:
        """Do a shard's upkeep now, in this thread."""
        self.session.check_writable()
        machine = self.session.machine(shard_id)
        machine.look_again()
        self.session.maintainer.run(machine)

    @property
    def compactions(self) -> Compactions:
        """Compactions to claim here and to do anywhere; upkeep does those that nobody claims."""
        self.session.check_open()
        return Compactions(self.session)

    def tell_changes(self, url: str) -> str:
        """Tell who follows it of new versions of all shards, over a socket; the address to follow.

        `url` is `unix:/path` or `tcp://host:port`, a port of 0 being any free one. Who can connect learns the
        ids of shards and that they change: give a path or host that only those can reach who may.

        Raises:
            BadInput: an address that can't be meant, or there is one already.
            StoreUnreachable: another process uses the address.
        """
        return self.session.tell_changes(url)

    def follow_changes(self, url: str) -> None:
        """Let listens look when the client at `url` (what its `tell_changes` gave) has new versions.

        For stores without prompt hints of their own; what other clients write is seen at the slow pace while
        this is connected. It is tried again for ever where it isn't.

        Raises:
            BadInput: an address that can't be meant, or one is followed already.
        """
        self.session.follow_changes(url)

    def close(self) -> None:
        """Refuse new work, finish waiting upkeep, give up all handles and the lock, and close the stores.

        In a forked child it does nothing: all of that is the parent's.
        """
        if not self.session.begin_close():
            return
        if self._exclusive is not None:
            # Still taken where it can't be given up now: the same id takes it again.
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
