"""Write handles: they append to a shard, or write and seal.

Each call prepares a command, with large updates uploaded, and commits it through `Session.multi_write`.
"""

import uuid
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Self

import pyarrow as pa

from holdfast.errors import CLOSED, BadInput, HandleExpired, ShardFinalized, UpperMismatch
from holdfast.persist.checks import check_forward, check_frontier, check_schema, check_write_mode
from holdfast.persist.handles.builder import MEMORY_BYTES, BatchBuilder
from holdfast.persist.handles.upload import Upload, UploadTicket
from holdfast.persist.ids import new_id
from holdfast.persist.parts.partstore import write_parts
from holdfast.persist.parts.runwriter import write_run
from holdfast.persist.prepared import Prepared
from holdfast.persist.rows.canonical import Rows, check_times, prepare_updates, time_bounds
from holdfast.persist.rows.part import Encoding
from holdfast.persist.rows.schema import Schema
from holdfast.persist.session import Session
from holdfast.persist.state.command import Append, FinalizeShard, Handle, RegisterWriter, Seal, Write
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import Part, WriteMode
from holdfast.persist.state.transition import check_mode


def open_writer(
    session: Session, shard_id: str, schema: Schema, *, purpose: str, mode: WriteMode = WriteMode.APPEND
) -> "WriteHandle":
    """A handle that writes a shard. Raises as `PersistClient.writer`."""
    session.check_writable()
    check_schema(schema)
    check_write_mode(mode)
    handle = session.new_handle("w", purpose)
    machine = session.machine(shard_id)
    state = machine.refresh()
    if state.finalized:
        raise ShardFinalized(f"shard {shard_id} was finalized")
    check_mode(state, mode)
    schema_id = state.schema_id(schema)
    return WriteHandle(session, machine, schema, schema_id, handle, mode)


def writer_of(session: Session, ticket: UploadTicket, *, purpose: str) -> "WriteHandle":
    """The writer that was handed on with a ticket. Raises as `PersistClient.writer_of`."""
    session.check_writable()
    machine = session.machine(ticket.shard_id)
    if machine.refresh().finalized:
        raise ShardFinalized(f"shard {ticket.shard_id} was finalized")
    handle = replace(session.new_handle("w", purpose), id=ticket.writer_id, registered=True)
    return WriteHandle(session, machine, ticket.schema, ticket.schema_id, handle)


def prepare_create(
    session: Session, shard_id: str, schema: Schema, *, purpose: str, mode: WriteMode = WriteMode.APPEND
) -> Prepared:
    """The creation of an empty shard, for `multi_write`."""
    command = RegisterWriter(session.new_handle("w", purpose), check_schema(schema), check_write_mode(mode))
    return Prepared(session.machine(shard_id), command)


def prepare_finalize(session: Session, shard_id: str) -> Prepared:
    """The end of a shard, for `multi_write`."""
    machine = session.machine(shard_id)
    return Prepared(machine, FinalizeShard(machine.store_ms()))


class WriteHandle:
    """Writes one shard, in the mode that it was made in. Thread-safe; made by `PersistClient.writer`.

    A handle whose append, write or seal could not be settled raises `HandleExpired` from then on: open a
    new one, read the upper, and see what is there.
    """

    def __init__(
        self,
        session: Session,
        machine: Machine,
        schema: Schema,
        schema_id: int,
        handle: Handle,
        mode: WriteMode = WriteMode.APPEND,
    ) -> None:
        self._session = session
        self._machine = machine
        self._schema_id = schema_id
        self._handle = handle
        self._seen_s = self._beaten_s = machine.clock.monotonic()
        self._undecided = False
        self._closed = False
        self.schema = schema
        self.mode = mode
        self.settle()
        self._retire = self._retiring()

    @property
    def shard_id(self) -> str:
        """The shard that this handle writes."""
        return self._machine.shard_id

    @property
    def cached_upper(self) -> int:
        """The upper as this process knows it; never ahead of the durable one."""
        return self._machine.state.upper

    def upper(self) -> int:
        """The upper, linearized (one read of Consensus)."""
        return self._machine.refresh().upper

    def compare_and_append(self, updates: object, expected_upper: int, new_upper: int) -> None:
        """Append `updates` and move the upper from `expected_upper` to `new_upper`, durably, or do nothing.

        `updates` is anything that `prepare_updates` takes (a table, a data frame, dicts, None), with the
        columns of the schema, `_time` (default `expected_upper`) in `[expected_upper, new_upper)` and
        `_diff` (default +1).

        Raises:
            UpperMismatch: the shard's upper is another; nothing happened.
            BadInput: the updates don't fit the schema or the times, the shard is in mode WRITE_SEAL, or the
                handle or its client is closed; nothing happened.
            NotWritable: the client was opened with mode "read"; nothing happened.
            CodecMismatch: the shard has, and had, no such schema; nothing happened.
            ShardFinalized: the shard has ended; nothing happened.
            Fenced: the client took the write lock and has lost it; nothing happened.
            FenceRegressed: the write lock is at an older row than this client's: the consensus store was
                restored from an older copy; nothing happened.
            HandleExpired: an earlier append of this handle had an unknown outcome, the handle was silent for
                too long while it uploaded, or the shard was recovered. Open a new handle.
            CorruptBlob: what the store holds can't be right; `LogRegressed`, one kind of it, if the log is
                older than this process knows.
            Determinate: a store refused or failed for longer than the retry deadline; nothing happened.
            Indeterminate: whether it happened could not be found out; the handle is spent. Open a new one,
                read the upper, and see what is there.
        """
        self._session.multi_write([self.prepare_append(updates, expected_upper, new_upper)])

    def write(self, updates: object) -> None:
        """Write `updates`, durably, to be seen once a seal reaches beyond their times (mode WRITE_SEAL).

        `updates` as for `compare_and_append`; `_time` (default: the upper) is the upper or later. What
        reaches past a seal stays pending until the next one.

        Raises:
            UpperMismatch: the upper is past the earliest of the times; nothing happened.
            BadInput: the updates don't fit the schema, or the shard is in mode APPEND; nothing happened.
            NotWritable: the client has not taken the write lock of the location; nothing happened.
            Fenced: it has lost it; nothing happened.
            Indeterminate: whether it happened could not be found out; the handle is spent.
        """
        self._session.multi_write([self.prepare_write(updates)])

    def prepare_write(self, updates: object) -> Prepared:
        """A write for `multi_write`: large updates are uploaded, nothing is committed."""
        self._check_usable(WriteMode.WRITE_SEAL)
        upper = self.cached_upper
        batch = prepare_updates(self.schema, updates, default_time=min(upper, CLOSED - 1))
        parts = self._upload(batch, time_bounds(batch))
        runs = (parts,) if parts else ()
        command = Write(self._handle, uuid.uuid4().bytes, self.schema, new_id("b"), runs)
        return Prepared(self._machine, command, _blobs(parts), self)

    def seal(self, new_upper: int) -> None:
        """Advance the upper to `new_upper`; nothing to do where it is there already.

        In mode WRITE_SEAL all that is pending below it is sealed with it, whoever wrote it; in mode APPEND
        nothing is: an empty append. Raises as `write` does.
        """
        new_upper = check_frontier(new_upper, "new_upper")
        if self.mode is WriteMode.WRITE_SEAL:
            self._session.check_locked(self.shard_id)
        # Looked at once: other threads of this process move it too.
        while (upper := self.cached_upper) < new_upper:
            try:
                self._session.multi_write([self.prepare_seal(upper, new_upper)])
            except UpperMismatch as mismatch:
                if mismatch.actual >= new_upper:
                    return

    def prepare_seal(self, expected_upper: int, new_upper: int) -> Prepared:
        """A seal for `multi_write`."""
        if self.mode is WriteMode.APPEND:
            return self.prepare_append(None, expected_upper, new_upper)
        self._check_usable(self.mode)
        expected_upper, new_upper = check_forward(expected_upper, new_upper)
        token = uuid.uuid4().bytes
        command = Seal(self._handle, token, self.schema, expected_upper, new_upper)
        return Prepared(self._machine, command, (), self)

    def prepare_append(self, updates: object, expected_upper: int, new_upper: int) -> Prepared:
        """An append for `multi_write`: large updates are uploaded, nothing is committed."""
        expected_upper, new_upper = self._check_append(expected_upper, new_upper)
        batch = None
        if updates is not None:
            batch = prepare_updates(self.schema, updates, default_time=expected_upper)
        return self._prepared_batch(batch, expected_upper, new_upper, None)

    def prepare_batch(
        self,
        batch: pa.RecordBatch | None,
        expected_upper: int,
        new_upper: int,
        *,
        ordered: Encoding | None = None,
    ) -> Prepared:
        """As `prepare_append`, of what `prepare_updates` made with this schema, or rows of that.

        `ordered` says that they are in the total order, and how parts of them are to be encoded.
        """
        expected_upper, new_upper = self._check_append(expected_upper, new_upper)
        return self._prepared_batch(batch, expected_upper, new_upper, ordered)

    def _prepared_batch(
        self, batch: pa.RecordBatch | None, expected_upper: int, new_upper: int, ordered: Encoding | None
    ) -> Prepared:
        parts: tuple[Part, ...] = ()
        if batch is not None:
            parts = self._upload(batch, check_times(batch, expected_upper, new_upper), ordered)
        return self._prepared(parts, expected_upper, new_upper)

    def prepare_run(self, pieces: Iterable[Rows], expected_upper: int, new_upper: int) -> Prepared:
        """As `prepare_append`, of prepared updates of right times that follow each other in the total order.

        In memory is about a part's encoded bytes. Raises what `pieces` raises.
        """
        expected_upper, new_upper = self._check_append(expected_upper, new_upper)
        parts = write_run(
            self._machine,
            writer_id=self._handle.id,
            schema=self.schema,
            schema_id=self._schema_id,
            pieces=pieces,
            before_upload=self._register,
            ahead=self._machine.config.builder_threads,
        )
        return self._prepared(parts, expected_upper, new_upper)

    def upload_ticket(self) -> UploadTicket:
        """Let other processes upload for an append of this handle (`PersistClient.upload`); it is known then.

        It must be kept, and `keep_alive` called now and then, until the append is committed.
        """
        self._check_usable(WriteMode.APPEND)
        self._register()
        return UploadTicket(self.shard_id, self._handle.id, self.schema, self._schema_id)

    def hand_on(self, *, lease_s: float) -> UploadTicket:
        """As `upload_ticket`, for another process to append with (`PersistClient.writer_of`); this one ends.

        The ticket's holders call `PersistClient.keep_alive` within each lease. It is for a handle that has
        not uploaded anything.
        """
        self._handle = replace(self._handle, lease_ms=int(lease_s * 1000))
        ticket = self.upload_ticket()
        self._closed = True
        self._retire.detach()
        self._machine.settled.discard(self._handle.id)
        return ticket

    def keep_alive(self) -> None:
        """Say that this handle lives, where that is due, while others upload for it.

        Raises `HandleExpired` where it was silent for too long: what was uploaded for it may be gone.
        """
        self._machine.check_open()
        self._register()

    def prepare_uploads(self, uploads: Sequence[Upload], expected_upper: int, new_upper: int) -> Prepared:
        """As `prepare_append`, of what others uploaded with this handle's ticket, each a run of its own.

        Raises `BadInput` for what was uploaded for another shard, or has times outside of
        `[expected_upper, new_upper)`, `HandleExpired` where the handle was silent for too long meanwhile.
        """
        expected_upper, new_upper = self._check_append(expected_upper, new_upper)
        for each in uploads:
            if each.shard_id != self.shard_id:
                raise BadInput(f"an upload for {each.shard_id} can't be appended to {self.shard_id}")
            if each.writer_id != self._handle.id:
                raise HandleExpired(
                    f"writer {each.writer_id} of {self.shard_id} was silent for too long: what was uploaded"
                    " for it may be gone"
                )
            for part in each.run:
                if not expected_upper <= part.lower < part.upper <= new_upper:
                    raise BadInput(
                        f"an upload has times from {part.lower} to {part.upper - 1}: expected times in"
                        f" [{expected_upper}, {new_upper})"
                    )
        return self._prepared_runs([each.run for each in uploads if each.run], expected_upper, new_upper)

    def batch_builder(self, *, memory_bytes: int = MEMORY_BYTES) -> BatchBuilder:
        """A builder of one append of any amount of updates, in any order, that takes about so much memory.

        What doesn't fit is sorted into temporary files meanwhile, in the folder that TMPDIR names.
        """
        self._check_usable(WriteMode.APPEND)
        return BatchBuilder(self, memory_bytes=memory_bytes, threads=self._machine.config.builder_threads)

    def check_upper(self, expected_upper: int) -> None:
        """Raise `UpperMismatch` unless the upper, linearized, is this."""
        expected_upper = check_frontier(expected_upper, "expected_upper")
        if (actual := self.upper()) != expected_upper:
            raise UpperMismatch(expected_upper, actual, shard_id=self.shard_id)

    def commit(self, prepared: Prepared) -> None:
        """Commit an append of this handle. Raises as `compare_and_append` does."""
        self._session.multi_write([prepared])

    def _prepared(self, parts: tuple[Part, ...], expected_upper: int, new_upper: int) -> Prepared:
        # They were cut from one sorted sequence.
        return self._prepared_runs([parts] if parts else [], expected_upper, new_upper)

    def _prepared_runs(
        self, runs: Sequence[tuple[Part, ...]], expected_upper: int, new_upper: int
    ) -> Prepared:
        token = uuid.uuid4().bytes
        command = Append(self._handle, token, self.schema, expected_upper, new_upper, tuple(runs))
        return Prepared(self._machine, command, [key for run in runs for key in _blobs(run)], self)

    def _upload(
        self, batch: Rows, bounds: tuple[int, int] | None, ordered: Encoding | None = None
    ) -> tuple[Part, ...]:
        return write_parts(
            self._machine,
            writer_id=self._handle.id,
            schema=self.schema,
            schema_id=self._schema_id,
            updates=batch,
            bounds=bounds,
            is_sorted=ordered is not None,
            encoding=ordered,
            before_upload=self._register,
        )

    def _check_append(self, expected_upper: int, new_upper: int) -> tuple[int, int]:
        self._check_usable(WriteMode.APPEND)
        return check_forward(expected_upper, new_upper)

    def _check_usable(self, mode: WriteMode) -> None:
        """Refuse what this handle may not do."""
        self._session.check_writable()
        if self.mode is not mode:
            how = "compare_and_append and seal" if self.mode is WriteMode.APPEND else "write and seal"
            raise BadInput(
                f"this writer of {self.shard_id} has the mode {self.mode.name}: use {how}",
                hint="the mode is that of the shard, which is fixed when it is made",
            )
        if self._closed:
            raise BadInput(f"this writer of {self.shard_id} is closed")
        if self._undecided:
            raise HandleExpired(
                f"writer {self._handle.id} of {self.shard_id} had an append of unknown outcome"
            )
        if mode is WriteMode.WRITE_SEAL:
            self._session.check_locked(self.shard_id)
        self._revive()

    def _register(self) -> None:
        """Be known before and during all uploads: that is how a sweeper tells parts from orphans."""
        now = self._machine.clock.monotonic()
        if not self._handle.registered:
            commit([(self._machine, RegisterWriter(self._handle, self.schema, self.mode))])
            self._handle = replace(self._handle, registered=True)
        elif now - self._beaten_s > self._machine.config.lease_s / 4:
            known = self._machine.state.writers.get(self._handle.id)
            beat = known.heartbeats + 1 if known else 1
            commit([(self._machine, RegisterWriter(self._handle, self.schema, self.mode, beat))])
        else:
            return
        self._beaten_s = now

    def _revive(self) -> None:
        """Begin anew where the writer's entry was dropped since it was used: under another id.

        What was prepared under the old id can't be committed any more, whatever became of its uploads.
        """
        now = self._machine.clock.monotonic()
        if self._handle.registered:
            if now - self._seen_s > self._machine.config.lease_s / 4:
                self._machine.refresh()
            if self._handle.id not in self._machine.state.writers:
                self._retire()
                self._handle = replace(self._handle, id=new_id("w"), registered=False)
                self._retire = self._retiring()
                self.settle()
            elif now - self._beaten_s > self._machine.config.lease_s / 4:
                # Use keeps a handle alive, also if all its appends are rejected because others are faster.
                self._register()
        self._seen_s = now

    def _retiring(self) -> "weakref.finalize[[str], WriteHandle]":
        # A handle that nobody has any more is as good as closed.
        retire = weakref.finalize(self, self._machine.closed.add, self._handle.id)
        retire.atexit = False
        return retire

    def begin(self) -> None:
        """Note that an append is in flight; `BadInput` after `close`."""
        if self._closed:
            raise BadInput(f"this writer of {self.shard_id} is closed")
        self._machine.settled.discard(self._handle.id)

    def settle(self) -> None:
        """Note that what happened to the append is known."""
        if not self._undecided:
            self._machine.settled.add(self._handle.id)

    def mark_undecided(self) -> None:
        """Refuse all further work: an append's outcome is unknown."""
        self._undecided = True
        self._machine.settled.discard(self._handle.id)

    def close(self) -> None:
        """Refuse all further work. Needs no commit: what is recorded of the writer goes with the next upkeep.

        An append in doubt keeps its record, which alone tells whether it happened.
        """
        self._closed = True
        self._retire()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _blobs(parts: Sequence[Part]) -> list[str]:
    return [part.blob_key for part in parts if part.blob_key is not None]
