"""Reading: holds on `since`, snapshots and listens.

- A snapshot at `as_of` is right on every version with `since <= as_of < upper`; a reader whose parts went
  plans again on the newest one, and gives up with `AsOfTooEarly` only where that can't answer.
- A listen emits each update once and each `Progress` after all below it. It needs `since < frontier`: at
  `since` stand updates that were moved there.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

import pyarrow as pa

from holdfast.errors import (
    CLOSED,
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    CorruptBlob,
    HandleExpired,
    ShardFinalized,
)
from holdfast.persist.consolidate import consolidate_at, consolidate_updates
from holdfast.persist.ids import new_id
from holdfast.persist.machine import Machine, commit
from holdfast.persist.partstore import PartGone, read_part, read_updates
from holdfast.persist.schema import TIME, Schema
from holdfast.persist.state import CriticalReader, ShardState
from holdfast.persist.transition import (
    DowngradeCritical,
    DowngradeReader,
    DropCritical,
    DropReader,
    Handle,
    RegisterReader,
)
from holdfast.persist.write import Prepared

if TYPE_CHECKING:
    from holdfast.persist.client import PersistClient


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates of a listen: the schema's columns, `_time` (uint64) and `_diff` (int64), ordered by `_time`."""

    table: pa.Table


@dataclass(frozen=True, slots=True)
class Progress:
    """All updates at times below `frontier` are out."""

    frontier: int


Event = Updates | Progress


class Pins(Protocol):
    """Keeps the parts of a version while they are read."""

    @contextmanager
    def pin(self, state: ShardState) -> Iterator[None]:
        """Hold the parts of `state` for the block."""


class Snapshot:
    """The contents of a shard at `as_of`: each (key, value) once, `_diff` copies of it, never 0.

    Iterate it for record batches, or take all at once with `to_table`; columns are those of the schema and
    `_diff` (int64). No order is promised.
    """

    def __init__(self, machine: Machine, pins: Pins, as_of: int) -> None:
        self._machine = machine
        self._pins = pins
        self.as_of = as_of

    def to_table(self) -> pa.Table:
        """All of it in memory.

        Raises:
            AsOfTooEarly: `since` has passed `as_of` and the parts are gone.
            CorruptBlob: a part is not what was written.
        """
        state = check_readable(self._machine, self.as_of)
        while True:
            try:
                with self._pins.pin(state):
                    return self._consolidate(state)
            except PartGone as gone:
                state = replan(self._machine, state, gone)
                if state.since > self.as_of:
                    raise AsOfTooEarly(self.as_of, state.since) from None

    def _consolidate(self, state: ShardState) -> pa.Table:
        sources = [
            read_part(self._machine, state.schema, part)
            for batch in state.batches
            for part in batch.parts
            if part.lower <= self.as_of
        ]
        return consolidate_at(state.schema, sources, self.as_of)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.to_table().to_batches(max_chunksize=64 * 1024))


def check_readable(machine: Machine, as_of: int) -> ShardState:
    """A version that has contents at `as_of`, reading the newest one where the cached has not.

    Raises:
        BadInput: `as_of` is no time, or the client is closed.
        AsOfTooEarly: `as_of` is before `since`.
        AsOfNotYetAvailable: `as_of` is not before the upper.
        ShardFinalized: the shard has ended.
    """
    if not 0 <= as_of < CLOSED:
        raise BadInput(f"as_of {as_of} is not a time: expected 0 to 2^64 - 1")
    machine.check_open()
    state = machine.state
    if not (state.exists and as_of < state.upper) or state.finalized:
        state = machine.refresh()
    if not state.exists:
        raise BadInput(f"shard {machine.shard_id} does not exist")
    if state.finalized:
        raise ShardFinalized(f"shard {machine.shard_id} was finalized")
    if as_of < state.since:
        raise AsOfTooEarly(as_of, state.since)
    if as_of >= state.upper:
        raise AsOfNotYetAvailable(as_of, state.upper)
    return state


def check_frontier(since: int) -> int:
    """Return `since`, or raise `BadInput` where it is not a frontier."""
    if not 0 <= since <= CLOSED:
        raise BadInput(f"since {since} is not a frontier: expected 0 to 2^64")
    return since


def replan(machine: Machine, planned: ShardState, gone: PartGone) -> ShardState:
    """The newest version, after a part of `planned` was not found.

    Raises:
        CorruptBlob: nothing has changed since: the part is lost.
    """
    state = machine.refresh()
    if state.seqno == planned.seqno:
        raise CorruptBlob(str(gone), "a part", "nothing") from None
    return state


class Listen:
    """The changes of a shard after `as_of`, in the order of time, without end. Not thread-safe.

    Iterating waits for what comes; it ends when the shard is finalized.
    """

    def __init__(self, machine: Machine, pins: Pins, as_of: int, first: Sequence[Event] = ()) -> None:
        self._machine = machine
        self._pins = pins
        self._first = list(first)
        self.frontier = as_of + 1

    def next(self, timeout: float | None = None) -> list[Event]:
        """The next events, at most one `Updates` and one `Progress`.

        Empty when `timeout` (s) ran out, or after `Progress(CLOSED)`: nothing can come any more.

        Raises:
            AsOfTooEarly: `since` has passed this listen: its hold was lost.
        """
        self._machine.check_open()
        if self._first:
            events, self._first = self._first, []
            return events
        if self.frontier >= CLOSED:
            return []
        state = self._await_progress(timeout)
        if state is None:
            return []
        while True:
            if state.finalized:
                self.frontier = CLOSED
                return [Progress(CLOSED)]
            if state.since >= self.frontier:
                raise AsOfTooEarly(self.frontier - 1, state.since)
            try:
                with self._pins.pin(state):
                    updates = self._updates(state)
                break
            except PartGone as gone:
                state = replan(self._machine, state, gone)
        self.frontier = state.upper
        progress = Progress(state.upper)
        return [Updates(updates), progress] if updates.num_rows else [progress]

    def __iter__(self) -> Iterator[Event]:
        while self._first or self.frontier < CLOSED:
            yield from self.next()

    def _updates(self, state: ShardState) -> pa.Table:
        schema = state.schema
        tables = [
            read_updates(self._machine, schema, part, from_time=self.frontier)
            for batch in state.batches
            for part in batch.parts
            if part.upper > self.frontier
        ]
        return consolidate_updates(schema, tables, 0).sort_by(TIME)

    def _await_progress(self, timeout: float | None) -> ShardState | None:
        machine = self._machine
        deadline = None if timeout is None else time.monotonic() + timeout
        if machine.state.upper > self.frontier:
            return machine.state
        while True:
            seen = machine.state
            if machine.refresh().upper > self.frontier:
                return machine.state
            wait = machine.config.poll_interval_s
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                wait = min(wait, left)
            with machine.changed:
                # A commit of this process between the look and the wait has changed the state already.
                if machine.state is seen or machine.state.upper <= self.frontier:
                    machine.changed.wait(wait)
            if machine.state.upper > self.frontier:
                return machine.state


class ReadHandle:
    """Reads one shard under a lease (or none, in a client of mode "read"). Thread-safe."""

    def __init__(self, client: "PersistClient", machine: Machine, handle: Handle | None) -> None:
        self._client = client
        self._machine = machine
        self._handle = handle
        self._lock = threading.Lock()
        self._moving = threading.Lock()
        self._pinned: list[int] = []
        self._beats = 0
        if handle is not None:
            self._lease(handle)

    def _lease(self, handle: Handle) -> None:
        commit([(self._machine, RegisterReader(handle))])

    @property
    def shard_id(self) -> str:
        """The shard that this handle reads."""
        return self._machine.shard_id

    @property
    def schema(self) -> Schema:
        """The shard's schema."""
        return self._machine.state.schema

    def since(self) -> int:
        """The earliest time that can be read, linearized."""
        return self._machine.refresh().since

    def upper(self) -> int:
        """The upper, linearized: the latest time that can be read is the one before."""
        return self._machine.refresh().upper

    def snapshot(self, as_of: int) -> Snapshot:
        """The contents at `as_of`.

        Raises:
            AsOfTooEarly: `as_of < since`.
            AsOfNotYetAvailable: `as_of >= upper`.
        """
        check_readable(self._machine, as_of)
        return Snapshot(self._machine, self, as_of)

    def snapshot_parts(self, as_of: int) -> "list[SnapshotPart]":
        """Picklable pieces of the snapshot; `PersistClient.read_snapshot_part` reads one anywhere."""
        check_readable(self._machine, as_of)
        return [SnapshotPart(self.shard_id, as_of)]

    def listen(self, as_of: int) -> Listen:
        """All changes at times after `as_of`. Raises as `snapshot` does for a time before `since`."""
        if not 0 <= as_of < CLOSED:
            raise BadInput(f"as_of {as_of} is not a time: expected 0 to 2^64 - 1")
        state = self._machine.refresh()
        if state.finalized:
            raise ShardFinalized(f"shard {self.shard_id} was finalized")
        if as_of < state.since:
            raise AsOfTooEarly(as_of, state.since)
        return Listen(self._machine, self, as_of)

    def subscribe(self, as_of: int) -> Listen:
        """The contents at `as_of` as updates at that time, then all changes after it.

        Raises as `snapshot` does.
        """
        table = self.snapshot(as_of).to_table()
        times = pa.repeat(pa.scalar(as_of, pa.uint64()), table.num_rows)
        table = table.add_column(table.num_columns - 1, pa.field(TIME, pa.uint64(), nullable=False), times)
        first: list[Event] = [Updates(table)] if table.num_rows else []
        return Listen(self._machine, self, as_of, [*first, Progress(as_of + 1)])

    def allow_compaction(self, since: int) -> None:
        """Give up the distinction between times before `since`, as far as this reader is concerned."""
        self._move(check_frontier(since))

    def heartbeat(self) -> None:
        """Say that this reader lives; a lost lease is taken anew at the shard's since."""
        self._move(0)

    def _move(self, since: int) -> None:
        # One at a time, and none after `close`: a lease taken anew then would be nobody's.
        with self._moving:
            handle = self._handle
            if handle is None:
                return
            try:
                commit([(self._machine, self._downgrade(handle, since))])
            except HandleExpired:
                # A new id: an expirer may remember a count of the old one that comes again.
                handle = self._handle = replace(handle, id=new_id("r"))
                self._lease(handle)
                if since:
                    commit([(self._machine, self._downgrade(handle, since))])
            except ShardFinalized:
                self._handle = None

    def _downgrade(self, handle: Handle, since: int) -> DowngradeReader:
        with self._lock:
            self._beats += 1
            seqno_hold = min(self._pinned, default=self._machine.state.seqno)
            return DowngradeReader(handle.id, since, seqno_hold, self._beats)

    @contextmanager
    def pin(self, state: ShardState) -> Iterator[None]:
        """Hold the parts of `state` for the block."""
        with self._lock:
            self._pinned.append(state.seqno)
        try:
            yield
        finally:
            with self._lock:
                self._pinned.remove(state.seqno)

    def close(self) -> None:
        """Give up the lease."""
        with self._moving:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._client.forget_reader(self)
                commit([(self._machine, DropReader(handle.id))])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """What is needed, besides the location, to read a piece of a snapshot."""

    shard_id: str
    as_of: int


class CriticalSince:
    """A durable hold on a shard's `since`, found again by its purpose. Thread-safe."""

    def __init__(self, client: "PersistClient", machine: Machine, reader: CriticalReader) -> None:
        self._client = client
        self._machine = machine
        self.id = reader.id
        self._since = reader.since

    @property
    def since(self) -> int:
        """Where the hold stands, as this process knows it."""
        known = self._machine.state.critical_readers.get(self.id)
        return known.since if known else self._since

    def downgrade(self, since: int) -> None:
        """Move the hold forward to `since`; never back."""
        self._client.multi_write([self.prepare_downgrade(since)])

    def prepare_downgrade(self, since: int) -> Prepared:
        """A downgrade for `multi_write`."""
        return Prepared(self._machine, DowngradeCritical(self.id, check_frontier(since)))

    def release(self) -> None:
        """Give up the hold for ever."""
        self._client.multi_write([Prepared(self._machine, DropCritical(self.id))])
