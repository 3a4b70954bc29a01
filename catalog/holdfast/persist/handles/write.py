"""Write handles: they append to a shard, or write and seal it.

Each call prepares a command, uploads large updates, and commits the command with `multi_write`.
"""

import uuid
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Self

import pyarrow as pa

from holdfast.errors import CLOSED, BadInput, HandleExpired, ShardFinalized, UpperMismatch
from holdfast.persist.checks import check_forward, check_frontier, check_schema, check_write_mode
from holdfast.persist.handles.builder import MEMORY_BYTES, BatchBuilder
from holdfast.persist.handles.upload import Upload, UploadTicket
from holdfast.persist.ids import new_id
from holdfast.persist.multi_write import InFlight, Prepared, closed_writer, multi_write
from holdfast.persist.parts.chains import joined
from holdfast.persist.parts.part_store import PartWriter
from holdfast.persist.parts.run_writer import write_run
from holdfast.persist.rows.canonical import check_times, prepare_between, prepare_updates, time_bounds
from holdfast.persist.rows.part import Encoding
from holdfast.persist.rows.schema import Schema
from holdfast.persist.rows.values import Rows
from holdfast.persist.session import Session
from holdfast.persist.state.command import (
    AppendRuns,
    AppendStaged,
    DropStaged,
    FinalizeShard,
    Handle,
    RegisterWriter,
    Seal,
    Stage,
    Write,
)
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import Part, WriteMode, blob_keys
from holdfast.persist.state.transition import check_mode


def open_writer(
    session: Session, shard_id: str, schema: Schema, *, purpose: str, mode: WriteMode = WriteMode.APPEND
) -> "WriteHandle":
    """Open a handle that writes a shard. Raises the errors of `PersistClient.writer`."""
    session.check_writable()
    check_schema(schema)
    check_write_mode(mode)
    handle = session.new_handle("w", purpose)
    machine = session.machine(shard_id)
    state = machine.look()
    if schema not in state.schemas.values():
        # The caller may know it from another shard, which was read later.
        state = machine.refresh()
    if state.finalized:
        raise ShardFinalized(f"shard {shard_id} was finalized")
    check_mode(state, mode)
    schema_id = state.schema_id(schema)
    return WriteHandle(session, machine, schema, schema_id, handle, mode)


def writer_of(session: Session, ticket: UploadTicket, *, purpose: str) -> "WriteHandle":
    """Return the writer that was handed on with a ticket. Raises the errors of `PersistClient.writer_of`."""
    session.check_writable()
    machine = session.machine(ticket.shard_id)
    if machine.refresh().finalized:
        raise ShardFinalized(f"shard {ticket.shard_id} was finalized")
    handle = replace(session.new_handle("w", purpose), id=ticket.writer_id, registered=True)
    return WriteHandle(session, machine, ticket.schema, ticket.schema_id, handle)


def prepare_create(
    session: Session, shard_id: str, schema: Schema, *, purpose: str, mode: WriteMode = WriteMode.APPEND
) -> Prepared:
    """Prepare the creation of an empty shard, for `multi_write`."""
    command = RegisterWriter(session.new_handle("w", purpose), check_schema(schema), check_write_mode(mode))
    return Prepared(session.machine(shard_id), command)


def prepare_finalize(session: Session, shard_id: str) -> Prepared:
    """Prepare the end of a shard, for `multi_write`."""
    machine = session.machine(shard_id)
    return Prepared(machine, FinalizeShard(machine.store_ms()))


def prepare_drop_staged(session: Session, shard_id: str) -> Prepared:
    """Prepare to drop the staged batches of a shard, for `multi_write`."""
    machine = session.machine(shard_id)
    return Prepared(machine, DropStaged(machine.store_ms()))


class WriteHandle:
    """Writes one shard, in the mode of the shard. Thread-safe. Made by `PersistClient.writer`.

    If the outcome of an append, write or seal stays unknown, the handle raises `HandleExpired` from then on.
    Open a new handle, read the upper, and check what is there.
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
        self._in_flight = InFlight(machine, handle.id)
        self.schema = schema
        self.mode = mode
        self._parts = self._part_writer()
        self._retire = self._retiring()

    @property
    def shard_id(self) -> str:
        """The shard that this handle writes."""
        return self._machine.shard_id

    @property
    def cached_upper(self) -> int:
        """Return the upper as this process knows it. It is never ahead of the durable upper."""
        return self._machine.state.upper

    def upper(self) -> int:
        """Return the upper. Linearized: one read of Consensus."""
        return self._machine.look().upper

    def compare_and_append(self, updates: object, expected_upper: int, new_upper: int) -> None:
        """Append `updates` and move the upper from `expected_upper` to `new_upper`, durably, or do nothing.

        `updates` is anything that `prepare_updates` takes (a table, a data frame, dicts, None). It has the
        columns of the schema, `_time` (default `expected_upper`) in `[expected_upper, new_upper)`, and
        `_diff` (default +1).

        Raises:
            UpperMismatch: the shard has another upper; nothing happened.
            BadInput: the updates don't fit the schema or the times, the shard is in mode WRITE_SEAL, or the
                handle or its client is closed; nothing happened.
            NotWritable: the client was opened with mode "read"; nothing happened.
            CodecMismatch: the shard never had this schema; nothing happened.
            ShardFinalized: the shard was finalized; nothing happened.
            Fenced: the client took the write lock and has lost it; nothing happened.
            FenceRegressed: the write lock is at an older row than this client's, because the consensus store
                was restored from an older copy; nothing happened.
            HandleExpired: an earlier append of this handle has an unknown outcome, the handle sent no
                heartbeat for too long while it uploaded, or the shard was recovered. Open a new handle.
            CorruptBlob: the store is damaged. `LogRegressed` is one kind of it: the log is older than this
                process knows.
            Determinate: a store refused or failed for longer than the retry deadline; nothing happened.
            Indeterminate: the append may have happened. The handle can't be used any more. Open a new one,
                read the upper, and check what is there.
        """
        multi_write(self._session, [self.prepare_append(updates, expected_upper, new_upper)])

    def write(self, updates: object) -> None:
        """Write `updates` durably (mode WRITE_SEAL). A seal beyond their times makes them visible.

        `updates` is the same as for `compare_and_append`. `_time` (default: the upper) must be at or after
        the upper. Updates beyond a seal stay pending until the next one.

        Raises:
            UpperMismatch: the upper is past the earliest time; nothing happened.
            BadInput: the updates don't fit the schema, or the shard is in mode APPEND; nothing happened.
            NotWritable: the client has not taken the write lock of the location; nothing happened.
            Fenced: the client has lost the write lock; nothing happened.
            Indeterminate: the write may have happened. The handle can't be used any more.
        """
        multi_write(self._session, [self.prepare_write(updates)])

    def prepare_write(self, updates: object) -> Prepared:
        """Prepare a write for `multi_write`: upload large updates, and commit nothing."""
        self._check_usable(WriteMode.WRITE_SEAL)
        upper = self.cached_upper
        batch = prepare_updates(self.schema, updates, default_time=min(upper, CLOSED - 1))
        parts = self._parts.write(batch, time_bounds(batch), self._register)
        runs = (parts,) if parts else ()
        command = Write(self._handle, uuid.uuid4().bytes, self.schema, new_id("b"), runs)
        return Prepared(self._machine, command, self._in_flight)

    def seal(self, new_upper: int) -> None:
        """Advance the upper to `new_upper`. Does nothing if the upper is there already.

        In mode WRITE_SEAL, it seals all pending updates below `new_upper`, of every writer. In mode APPEND
        nothing is pending, so it is an empty append. Raises the same errors as `write`.
        """
        new_upper = check_frontier(new_upper, "new_upper")
        if self.mode is WriteMode.WRITE_SEAL:
            self._session.check_locked(self.shard_id)
        # Read the state once, because other threads of this process move it too.
        while (upper := self.cached_upper) < new_upper:
            try:
                multi_write(self._session, [self.prepare_seal(upper, new_upper)])
            except UpperMismatch as mismatch:
                if mismatch.actual >= new_upper:
                    return

    def prepare_seal(self, expected_upper: int, new_upper: int) -> Prepared:
        """Prepare a seal for `multi_write`."""
        if self.mode is WriteMode.APPEND:
            return self.prepare_append(None, expected_upper, new_upper)
        self._check_usable(self.mode)
        expected_upper, new_upper = check_forward(expected_upper, new_upper)
        token = uuid.uuid4().bytes
        command = Seal(self._handle, token, self.schema, expected_upper, new_upper)
        return Prepared(self._machine, command, self._in_flight)

    def prepare_append(self, updates: object, expected_upper: int, new_upper: int) -> Prepared:
        """Prepare an append for `multi_write`: upload large updates, and commit nothing."""
        expected_upper, new_upper = self._check_append(expected_upper, new_upper)
        parts: tuple[Part, ...] = ()
        if updates is not None:
            batch, bounds = prepare_between(self.schema, updates, expected_upper, new_upper)
            parts = self._parts.write(batch, bounds, self._register)
        return self._prepared([parts] if parts else [], expected_upper, new_upper)

    def prepare_batch(
        self,
        batch: pa.RecordBatch | None,
        expected_upper: int,
        new_upper: int,
        *,
        ordered: Encoding | None = None,
        purpose: str = "",
    ) -> Prepared:
        """Like `prepare_append`, for updates that `prepare_updates` made with this schema, or rows of them.

        `ordered` says that they are sorted, and how parts of them must be encoded. `purpose` is recorded with
        this append instead of the writer's own.
        """
        expected_upper, new_upper = self._check_append(expected_upper, new_upper)
        parts: tuple[Part, ...] = ()
        if batch is not None:
            bounds = check_times(batch, expected_upper, new_upper)
            parts = self._parts.write(
                batch, bounds, self._register, is_sorted=ordered is not None, encoding=ordered
            )
        return self._prepared([parts] if parts else [], expected_upper, new_upper, purpose)

    def prepare_run(self, pieces: Iterable[Rows], expected_upper: int, new_upper: int) -> Prepared:
        """Like `prepare_append`, for prepared updates that are sorted as a whole and have valid times.

        It needs memory for about one part's encoded bytes. Raises the errors that `pieces` raises.
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
        # All parts were cut from one sorted sequence.
        return self._prepared([parts] if parts else [], expected_upper, new_upper)

    def upload_ticket(self) -> UploadTicket:
        """Register the writer and let other processes upload for its append (`PersistClient.upload`).

        Keep the handle, and call `keep_alive` from time to time, until the append is committed.
        """
        self._check_usable(WriteMode.APPEND)
        self._register()
        return UploadTicket(self.shard_id, self._handle.id, self.schema, self._schema_id)

    def hand_on(self, *, lease_s: float) -> UploadTicket:
        """Like `upload_ticket`, but another process appends (`PersistClient.writer_of`). Ends this handle.

        The holders of the ticket must call `PersistClient.keep_alive` within each lease. Use it only for a
        handle that has not uploaded anything.
        """
        self._handle = replace(self._handle, lease_ms=int(lease_s * 1000))
        ticket = self.upload_ticket()
        self._in_flight.closed = True
        self._retire.detach()
        self._machine.settled.discard(self._handle.id)
        return ticket

    def keep_alive(self) -> None:
        """Renew this handle's lease if that is due, while others upload for it.

        Raises `HandleExpired` if it sent no heartbeat for too long. What was uploaded for it may then be
        gone.
        """
        self._machine.check_open()
        self._register()

    def prepare_uploads(self, uploads: Sequence[Upload], expected_upper: int, new_upper: int) -> Prepared:
        """Like `prepare_append`, for uploads that others made with this handle's ticket.

        Each is a run, except that uploads that don't overlap are one run.

        Raises `BadInput` if an upload is for another shard, or has times outside of `[expected_upper,
        new_upper)`. Raises `HandleExpired` if the handle sent no heartbeat for too long during the uploads.
        """
        expected_upper, new_upper = self._check_uploads(uploads, expected_upper, new_upper)
        runs = joined([each.run for each in uploads if each.run], self._machine.schema_of, self.schema)
        return self._prepared(runs, expected_upper, new_upper)

    def prepare_stage(self, uploads: Mapping[str, Upload], lower: int, upper: int) -> Prepared:
        """Prepare to record uploads as staged batches with these names, while the shard's upper is `lower`.

        They are kept until `prepare_staged` appends them, even if this process ends, and nobody reads them
        before. One name stands for the same updates: an upload whose name is taken is not recorded, and
        `refused` returns it. Raises like `prepare_uploads`; the commit raises `UpperMismatch`.
        """
        lower, upper = self._check_uploads([*uploads.values()], lower, upper)
        batches = tuple((name, (each.run,) if each.run else ()) for name, each in uploads.items())
        return Prepared(self._machine, Stage(self._handle, self.schema, lower, upper, batches))

    def refused(self, uploads: Mapping[str, Upload]) -> list[Upload]:
        """Return the uploads that were not staged because others had staged theirs under the same names.

        Call it after the commit of `prepare_stage`. Nobody needs them, so you can discard them.
        """
        pending = self._machine.state.pending
        return [
            each
            for name, each in uploads.items()
            if name in pending
            and {*blob_keys([pending[name]])}.isdisjoint(part.blob_key for part in each.run)
        ]

    def prepare_staged(self, names: Sequence[str], expected_upper: int, new_upper: int) -> Prepared:
        """Like `prepare_append`, for the updates of the staged batches with these names.

        Each is a run, except that batches that don't overlap are one run. Others stay staged until the upper
        is past them. Raises `HandleExpired` if a batch is gone.
        """
        expected_upper, new_upper = self._check_append(expected_upper, new_upper)
        pending = self._machine.refresh().pending
        if gone := [name for name in names if name not in pending]:
            raise HandleExpired(
                f"{len(gone)} of {len(names)} staged batches are gone from {self.shard_id}",
                hint="stage them again",
            )
        runs = joined(
            [run for name in names for run in pending[name].runs], self._machine.schema_of, self.schema
        )
        command = AppendStaged(
            self._handle,
            uuid.uuid4().bytes,
            self.schema,
            expected_upper,
            new_upper,
            tuple(names),
            tuple(runs),
        )
        return Prepared(self._machine, command, self._in_flight)

    def _check_uploads(
        self, uploads: Sequence[Upload], expected_upper: int, new_upper: int
    ) -> tuple[int, int]:
        expected_upper, new_upper = self._check_append(expected_upper, new_upper)
        for each in uploads:
            if each.shard_id != self.shard_id:
                raise BadInput(
                    f"an upload for {each.shard_id} can't be appended to {self.shard_id}",
                    hint="append it with the writer that made its ticket",
                )
            if each.writer_id != self._handle.id:
                raise HandleExpired(
                    f"writer {each.writer_id} of {self.shard_id} sent no heartbeat for too long: its uploads"
                    " may be deleted",
                    hint="get a new ticket from this writer, and upload the rows again",
                )
            for part in each.run:
                if not expected_upper <= part.lower < part.upper <= new_upper:
                    raise BadInput(
                        f"an upload has times from {part.lower} to {part.upper - 1}, expected times in"
                        f" [{expected_upper}, {new_upper})"
                    )
        return expected_upper, new_upper

    def batch_builder(self, *, memory_bytes: int = MEMORY_BYTES) -> BatchBuilder:
        """Return a builder of one append of any size, in any order, that uses about this much memory.

        It sorts what does not fit in temporary files, in the folder that TMPDIR names.
        """
        self._check_usable(WriteMode.APPEND)
        return BatchBuilder(self, memory_bytes=memory_bytes, threads=self._machine.config.builder_threads)

    def check_upper(self, expected_upper: int) -> None:
        """Raise `UpperMismatch` unless the upper is `expected_upper`. Linearized."""
        expected_upper = check_frontier(expected_upper, "expected_upper")
        if (actual := self.upper()) != expected_upper:
            raise UpperMismatch(expected_upper, actual, shard_id=self.shard_id)

    def commit(self, prepared: Prepared) -> None:
        """Commit an append of this handle. Raises the errors of `compare_and_append`."""
        multi_write(self._session, [prepared])

    def _prepared(
        self, runs: Sequence[tuple[Part, ...]], expected_upper: int, new_upper: int, purpose: str = ""
    ) -> Prepared:
        token = uuid.uuid4().bytes
        handle = replace(self._handle, purpose=purpose) if purpose else self._handle
        command = AppendRuns(handle, token, self.schema, expected_upper, new_upper, tuple(runs))
        return Prepared(self._machine, command, self._in_flight)

    def _part_writer(self) -> PartWriter:
        return PartWriter(self._machine, self._handle.id, self.schema, self._schema_id)

    def _check_append(self, expected_upper: int, new_upper: int) -> tuple[int, int]:
        self._check_usable(WriteMode.APPEND)
        return check_forward(expected_upper, new_upper)

    def _check_usable(self, mode: WriteMode) -> None:
        """Refuse operations that this handle does not allow."""
        self._session.check_writable()
        if self.mode is not mode:
            how = "compare_and_append and seal" if self.mode is WriteMode.APPEND else "write and seal"
            raise BadInput(
                f"this writer of {self.shard_id} has mode {self.mode.name}: use {how}",
                hint="the mode belongs to the shard, and is fixed when the shard is created",
            )
        if self._in_flight.closed:
            raise closed_writer(self.shard_id)
        if self._in_flight.undecided:
            raise HandleExpired(
                f"writer {self._handle.id} of {self.shard_id} can't be used any more:"
                " the outcome of an earlier append is unknown",
                hint="open a new writer, read the upper, and check what is there",
            )
        if mode is WriteMode.WRITE_SEAL:
            self._session.check_locked(self.shard_id)
        if self._handle.registered:
            self._revive()

    def _register(self) -> None:
        """Register before the first upload and during uploads. By this a sweeper knows parts from orphans."""
        now = self._machine.clock.monotonic()
        if not self._handle.registered:
            commit([(self._machine, RegisterWriter(self._handle, self.schema, self.mode))])
            self._handle = replace(self._handle, registered=True)
            self._seen_s = now
        elif now - self._beaten_s > self._machine.config.lease_s / 4:
            known = self._machine.state.writers.get(self._handle.id)
            beat = known.heartbeats + 1 if known else 1
            commit([(self._machine, RegisterWriter(self._handle, self.schema, self.mode, beat))])
        else:
            return
        self._beaten_s = now

    def _revive(self) -> None:
        """If the writer's entry was dropped since its last use, continue with a new id.

        Appends that were prepared under the old id can't be committed any more.
        """
        now = self._machine.clock.monotonic()
        if now - self._seen_s > self._machine.config.lease_s / 4:
            self._machine.refresh()
        if self._handle.id not in self._machine.state.writers:
            self._retire()
            self._handle = replace(self._handle, id=new_id("w"), registered=False)
            self._in_flight.writer_id = self._handle.id
            self._parts = self._part_writer()
            self._retire = self._retiring()
            self._in_flight.settle()
        elif now - self._beaten_s > self._machine.config.lease_s / 4:
            # Use renews the lease, even if all appends are rejected because others are faster.
            self._register()
        self._seen_s = now

    def _retiring(self) -> "weakref.finalize[[str], InFlight]":
        # A handle without references, including from prepared appends, is as good as closed.
        retire = weakref.finalize(self._in_flight, self._machine.closed.add, self._handle.id)
        retire.atexit = False
        return retire

    def close(self) -> None:
        """Refuse all further work. There is no commit: the next upkeep drops the writer's entry.

        The entry of an append in doubt stays until its lease ends. It shows whether the append happened.
        """
        self._in_flight.closed = True
        self._retire()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
