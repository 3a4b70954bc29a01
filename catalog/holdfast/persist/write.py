"""Writing: handles that append, and prepared commands that commit together.

A prepared command has done all its work but the commit: large updates are uploaded.
`PersistClient.multi_write` commits any number of them in one step.
"""

import uuid
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from holdfast.errors import CLOSED, BadInput, HandleExpired, StorageError, UpperMismatch
from holdfast.persist.builder import MEMORY_BYTES, BatchBuilder
from holdfast.persist.canonical import Rows, check_times, prepare_updates
from holdfast.persist.command import Append, Command, Handle, RegisterWriter
from holdfast.persist.machine import Machine, commit
from holdfast.persist.partstore import write_parts
from holdfast.persist.runwriter import write_run
from holdfast.persist.schema import Schema
from holdfast.persist.state import Part

if TYPE_CHECKING:
    from holdfast.persist.client import PersistClient


LONGEST_UPLOAD_S: Final = 24 * 3600
"""Seconds after which an upload that is not committed may be swept away; an append refuses at half of it."""


@dataclass(slots=True)
class Prepared:
    """A command ready to commit; `uploaded` are blobs that are garbage if it is rejected.

    What an append uploaded belongs to the shard once it is committed, and is gone once it is rejected, so
    it can't be given to a multi-write again then; one that uploaded nothing can, after a rejection.
    """

    machine: Machine
    command: Command
    uploaded: Sequence[str] = ()
    writer: "WriteHandle | None" = field(default=None, repr=False)
    _spent: bool = field(default=False, init=False, repr=False)
    _made_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._made_s = self.machine.clock.monotonic()

    def spend(self) -> None:
        """Mark as used; `BadInput` where it is, or what was uploaded may have been swept away."""
        if self.uploaded and self.machine.clock.monotonic() - self._made_s > LONGEST_UPLOAD_S / 2:
            raise BadInput(
                f"this append to {self.machine.shard_id} was prepared too long ago", hint="prepare it again"
            )
        if self._spent:
            raise BadInput(
                f"this append to {self.machine.shard_id} is committed already, or what it uploaded is gone",
                hint="prepare it again",
            )
        if self.writer is not None:
            self.writer.begin()
        self._spent = True

    def settle(self) -> None:
        """Note that it is known whether it happened."""
        if self.writer is not None:
            self.writer.settle()

    def rejected(self) -> None:
        """Note that it certainly did not happen."""
        self._spent = bool(self.uploaded)

    def abandon(self) -> None:
        """Delete what was uploaded, where it was not committed: it can't be any more."""
        if not self._spent:
            self._spent = True
            with suppress(StorageError):
                for key in self.uploaded:
                    self.machine.location.blob.delete(key)


class WriteHandle:
    """Appends to one shard. Thread-safe; made by `PersistClient.writer`.

    A handle whose append could not be settled raises `HandleExpired` from then on: open a new one, read the
    upper, and see what is there.
    """

    def __init__(
        self, client: "PersistClient", machine: Machine, schema: Schema, schema_id: int, handle: Handle
    ) -> None:
        self._client = client
        self._machine = machine
        self._schema_id = schema_id
        self._handle = handle
        self._registered = False
        self._undecided = False
        self._closed = False
        self.schema = schema
        self.settle()
        # A handle that nobody has any more is as good as closed.
        self._retire = weakref.finalize(self, machine.closed.add, handle.id)
        self._retire.atexit = False

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
            BadInput: the updates don't fit the schema or the times; nothing happened.
            Indeterminate: whether it happened could not be found out; the handle is spent.
        """
        self._client.multi_write([self.prepare_append(updates, expected_upper, new_upper)])

    def seal(self, new_upper: int) -> None:
        """Advance the upper to `new_upper` with no updates; nothing to do where it is there already."""
        while self.cached_upper < new_upper:
            try:
                self._client.multi_write([self.prepare_seal(self.cached_upper, new_upper)])
            except UpperMismatch as mismatch:
                if mismatch.actual >= new_upper:
                    return

    def prepare_seal(self, expected_upper: int, new_upper: int) -> Prepared:
        """A seal for `multi_write`."""
        return self.prepare_append(None, expected_upper, new_upper)

    def prepare_append(self, updates: object, expected_upper: int, new_upper: int) -> Prepared:
        """An append for `multi_write`: large updates are uploaded, nothing is committed."""
        self._check(expected_upper, new_upper)
        batch = None
        if updates is not None:
            batch = prepare_updates(self.schema, updates, default_time=expected_upper)
        return self.prepare_batch(batch, expected_upper, new_upper)

    def prepare_batch(self, batch: pa.RecordBatch | None, expected_upper: int, new_upper: int) -> Prepared:
        """As `prepare_append`, of what `prepare_updates` made with this schema, or rows of that."""
        self._check(expected_upper, new_upper)
        parts: tuple[Part, ...] = ()
        if batch is not None:
            bounds = check_times(batch, expected_upper, new_upper)
            parts = write_parts(
                self._machine,
                writer_id=self._handle.id,
                schema=self.schema,
                schema_id=self._schema_id,
                updates=batch,
                bounds=bounds,
                before_upload=self._register,
            )
        return self._prepared(parts, expected_upper, new_upper)

    def prepare_run(self, pieces: Iterable[Rows], expected_upper: int, new_upper: int) -> Prepared:
        """As `prepare_append`, of prepared updates of right times that follow each other in the total order.

        In memory is about a part's encoded bytes. Raises what `pieces` raises.
        """
        self._check(expected_upper, new_upper)
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

    def batch_builder(self, *, memory_bytes: int = MEMORY_BYTES) -> BatchBuilder:
        """A builder of one append of any amount of updates, in any order, that takes about so much memory.

        What doesn't fit is sorted into temporary files meanwhile, in the folder that TMPDIR names.
        """
        self._check_open()
        return BatchBuilder(self, memory_bytes=memory_bytes, threads=self._machine.config.builder_threads)

    def check_upper(self, expected_upper: int) -> None:
        """Raise `UpperMismatch` unless the upper, linearized, is this."""
        if (actual := self.upper()) != expected_upper:
            raise UpperMismatch(expected_upper, actual, shard_id=self.shard_id)

    def commit(self, prepared: Prepared) -> None:
        """Commit an append of this handle. Raises as `compare_and_append` does."""
        self._client.multi_write([prepared])

    def _prepared(self, parts: tuple[Part, ...], expected_upper: int, new_upper: int) -> Prepared:
        # They were cut from one sorted sequence.
        runs = (parts,) if parts else ()
        command = Append(self._handle, uuid.uuid4().bytes, self.schema, expected_upper, new_upper, runs)
        uploaded = [part.blob_key for part in parts if part.blob_key is not None]
        return Prepared(self._machine, command, uploaded, self)

    def _check(self, expected_upper: int, new_upper: int) -> None:
        """Refuse an append that can't be meant, or that this handle may not do."""
        self._check_open()
        if not 0 <= expected_upper < new_upper <= CLOSED:
            raise BadInput(f"an append must move the upper forward, not from {expected_upper} to {new_upper}")

    def _check_open(self) -> None:
        """Refuse all work where this handle can't do any."""
        self._client.check_writable()
        if self._closed:
            raise BadInput(f"this writer of {self.shard_id} is closed")
        if self._undecided:
            raise HandleExpired(
                f"writer {self._handle.id} of {self.shard_id} had an append of unknown outcome"
            )

    def _register(self) -> None:
        """Be known before the first upload, so that a sweeper can tell its parts from orphans."""
        if not self._registered:
            commit([(self._machine, RegisterWriter(self._handle, self.schema))])
            self._registered = True

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
