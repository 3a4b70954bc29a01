"""Read handles: snapshots, listens, and holds on `since`.

- All rows of one read have one schema. For a snapshot it is the newest schema of the version that it was
  planned on. For the updates of a listen it is the newest known schema, so it may change between two calls of
  `next`.
- A listen emits each update once, and each `Progress` after all updates below it. It needs `since <
  frontier`, because compaction has moved older updates to `since`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Self, TypeVar

import pyarrow as pa

from holdfast.errors import (
    CLOSED,
    AsOfTooEarly,
    BadInput,
    HandleExpired,
    LeaseLost,
    ShardFinalized,
    StorageError,
)
from holdfast.persist.checks import check_columns, check_frontier, check_range, check_time
from holdfast.persist.handles.time_order import LISTEN_BYTES, in_time
from holdfast.persist.ids import new_id
from holdfast.persist.parts.part_store import PartGone
from holdfast.persist.parts.snapshot import (
    Pins,
    Snapshot,
    SnapshotPart,
    check_readable,
    plan_parts,
    replan,
    replan_at,
)
from holdfast.persist.parts.times import TimeCounts, TimeSums, count_part, sum_part
from holdfast.persist.rows.order import EVERYTHING, KeyRange
from holdfast.persist.rows.schema import TIME, Schema
from holdfast.persist.rows.sizes import gathered
from holdfast.persist.session import Session
from holdfast.persist.state.command import (
    DowngradeReader,
    DropReader,
    Handle,
    RegisterReader,
)
from holdfast.persist.state.machine import Machine, commit, look_at
from holdfast.persist.state.state import Part, ShardState
from holdfast.persist.stores import Watch

T = TypeVar("T")
_BEAT_AGAIN_S: Final = 1.0
"""The longest time between a heartbeat that failed and the next."""


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates of a listen: the schema's columns, `_time` (uint64) and `_diff` (int64), ordered by `_time`."""

    table: pa.Table


@dataclass(frozen=True, slots=True)
class Progress:
    """All updates at times below `frontier` were emitted."""

    frontier: int


Event = Updates | Progress


class Listen:
    """The changes of a shard after `as_of`, in the order of time. Not thread-safe.

    Iterating waits for new changes. It ends after `until`, if you gave one, or when the shard is finalized.
    """

    def __init__(
        self,
        machine: Machine,
        pins: Pins,
        as_of: int,
        *,
        until: int | None = None,
    ) -> None:
        self._machine = machine
        self._pins = pins
        self._end = CLOSED if until is None else until + 1
        self._first: list[Event] = []
        # Updates that are too many to return at once, and the time up to which they reach.
        self._rest: Iterator[pa.Table] | None = None
        self._rest_end = 0
        self._failed = False
        self._contents_at: int | None = None
        self._watch: Watch | None = None
        self.frontier = as_of + 1
        # The schema of the last updates, and whether the shard was finalized.
        self.schema = machine.state.schema
        self.ended = False

    def begin_at_once(self, events: Sequence[Event]) -> None:
        """Emit these events first."""
        self._first = list(events)

    def begin_with(self, contents: Iterator[pa.Table], as_of: int) -> None:
        """First emit the contents at `as_of`, one batch per call, and then the progress beyond it."""
        self._rest, self._rest_end = contents, as_of + 1
        self.frontier = self._contents_at = as_of

    def next(self, timeout: float | None = None) -> list[Event]:
        """Return the next events: at most one `Updates` and one `Progress`.

        The list is empty if `timeout` (s) is over, or if nothing can come any more: after `Progress(CLOSED)`,
        or after `until`. One call returns about `LISTEN_BYTES` (64 MiB) of updates at most, or one larger
        row. If there are more at one time, they come in several `Updates` before their `Progress`.

        Raises:
            AsOfTooEarly: `since` has passed this listen, because its hold was lost. If the reader had a
                lease, it is a `LeaseLost`, which is also a `HandleExpired`.
        """
        self._machine.check_open()
        if self._first:
            events, self._first = self._first, []
            return events
        if self._failed:
            again = f"discard the updates since the last Progress, and listen after {self.frontier - 1}"
            if self.frontier == self._contents_at:
                again = f"discard all updates, and subscribe again at {self.frontier}"
            raise HandleExpired(
                f"this listen of {self._machine.shard_id} can't continue: an earlier call of next() failed",
                hint=again,
            )
        if self._rest is not None:
            return self._from_rest(self._rest)
        if self.frontier >= self._end:
            return []
        state = self._await_progress(timeout)
        if state is None:
            return []
        while True:
            if state.finalized:
                self.frontier, self.ended = CLOSED, True
                return [Progress(CLOSED)]
            if state.since >= self.frontier:
                raise self._pins.too_early(self.frontier - 1, state.since)
            try:
                with self._pins.pin(state):
                    found = in_time(
                        self._machine,
                        state,
                        self.frontier,
                        min(state.upper, self._end),
                        self._pins.beat,
                    )
                break
            except PartGone as gone:
                state = replan(self._machine, state, gone)
        self.schema = state.schema
        if found.pieces is not None:
            self._rest, self._rest_end = found.pieces, found.frontier
            return self._from_rest(found.pieces)
        return self._given(found.table, found.frontier)

    def _from_rest(self, pieces: Iterator[pa.Table]) -> list[Event]:
        self._pins.beat()
        try:
            rows = next(pieces, None)
        except BaseException:
            self._rest, self._failed = None, True
            raise
        if rows is None:
            self._rest = None
            return self._given(None, self._rest_end)
        # More updates of the last time may follow.
        last = rows.column(TIME)[rows.num_rows - 1].as_py()
        return self._given(rows, last)

    def _given(self, updates: pa.Table | None, frontier: int) -> list[Event]:
        events: list[Event] = [] if updates is None or not updates.num_rows else [Updates(updates)]
        if frontier > self.frontier:
            self.frontier = frontier
            events.append(Progress(frontier))
        return events

    def __iter__(self) -> Iterator[Event]:
        while self._first or self._rest is not None or self.frontier < self._end:
            yield from self.next()

    def _await_progress(self, timeout: float | None) -> ShardState | None:
        machine = self._machine
        deadline = None if timeout is None else time.monotonic() + timeout
        if machine.state.upper > self.frontier:
            return machine.state
        while True:
            self._pins.beat()
            if machine.refresh().upper > self.frontier:
                return machine.state
            if not self._wait(deadline):
                return None
            # If this process has committed or seen something new already, there is no need to wait.
            if machine.state.upper > self.frontier:
                return machine.state

    def _wait(self, deadline: float | None) -> bool:
        """Wait until the next read may find something new. Return False if the time is over."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return False
        if self._watch is None:
            # From here on the watch gives hints. One more read finds what came before.
            self._watch = self._machine.watch()
            return True
        pace = self._machine.pace_s
        self._watch.wait(pace if left is None else min(pace, left))
        return True


def _at(rows: pa.RecordBatch, time: int) -> pa.RecordBatch:
    """Return contents as updates at a time."""
    times = pa.repeat(pa.scalar(time, pa.uint64()), rows.num_rows)
    return rows.add_column(rows.num_columns - 1, pa.field(TIME, pa.uint64(), nullable=False), times)


class ReadHandle:
    """Reads one shard under a lease, or without one in a client of mode "read". Thread-safe."""

    def __init__(self, session: Session, machine: Machine, handle: Handle | None) -> None:
        self._session = session
        self._machine = machine
        self._handle = handle
        self._lock = threading.Lock()
        self._moving = threading.Lock()
        self._pinned: list[int] = []
        self._beats = 0
        self._beat_due_s = 0.0
        self._lapsed = False
        # The earliest time that this reader has held and not given up.
        self._held = 0
        if handle is not None:
            self._held = machine.state.since
            self._beaten()

    def _lease(self, handle: Handle, *, retries: bool = True) -> None:
        commit([(self._machine, RegisterReader(handle))], retries=retries)
        self._beaten()

    def _beaten(self) -> None:
        # A little later than the thread that also sends heartbeats, so that only one of the two does.
        self._beat_due_s = self._machine.clock.monotonic() + self.lease_s / 3

    @property
    def shard_id(self) -> str:
        """The shard that this handle reads."""
        return self._machine.shard_id

    @property
    def lease_s(self) -> float:
        """The length of its lease, in seconds."""
        handle = self._handle
        return self._machine.config.lease_s if handle is None else handle.lease_ms / 1000

    @property
    def schema(self) -> Schema:
        """The newest schema of the shard that this process knows. A new snapshot has this schema."""
        return self._machine.state.schema

    def since(self) -> int:
        """Return the earliest time that can be read. Linearized."""
        return self._machine.look().since

    def upper(self) -> int:
        """Return the upper. The latest time that can be read is `upper - 1`. Linearized."""
        return self._machine.look().upper

    def snapshot(
        self,
        as_of: int,
        *,
        wanted: KeyRange = EVERYTHING,
        columns: Sequence[str] | None = None,
        buffer_bytes: int | None = None,
    ) -> Snapshot:
        """Return the contents at `as_of`, in the range `wanted`, with all columns or `columns` and `_diff`.

        A range is `KeyRange.between(schema, lower, upper)`. Row groups that can't have a row in the range, at
        times up to `as_of`, are not decoded. Iterating decodes about `buffer_bytes` at a time (None: 16 MiB,
        with several threads), and needs several times as much memory.

        Raises:
            AsOfTooEarly: `as_of < since`. If this reader held that time until it lost its lease, it is a
                `LeaseLost`, which is also a `HandleExpired`.
            AsOfNotYetAvailable: `as_of >= upper`.
            BadInput: the schema does not have one of the columns.
        """
        as_of = check_time(as_of)
        check_range(wanted)
        schema = self._readable(as_of).schema
        check_columns(schema, columns)
        return Snapshot(self._machine, self, schema, as_of, wanted, columns, buffer_bytes)

    def changes(self, after: int, until: int, *, buffer_bytes: int | None = None) -> Snapshot:
        """Return the difference between the contents at `until` and at `after`; `_diff` may be negative.

        It reads only what was written between them, with bounded memory.

        Raises:
            AsOfTooEarly: `after < since`.
            AsOfNotYetAvailable: `until >= upper`.
            BadInput: `until < after`.
        """
        schema = self._readable(until, after).schema
        return Snapshot(self._machine, self, schema, until, buffer_bytes=buffer_bytes, after=after)

    def snapshot_of(self, part: SnapshotPart, columns: Sequence[str] | None = None) -> Snapshot:
        """Return a piece of a snapshot, in the schema that it was planned with. Raises like `snapshot`."""
        schemas = self._readable(part.as_of).schemas
        if part.schema_id not in schemas:
            # The process that planned it knows a later version.
            schemas = self._machine.refresh().schemas
        schema = schemas.get(part.schema_id)
        if schema is None:
            raise BadInput(
                f"a piece of a snapshot has schema {part.schema_id}, which {part.shard_id} never had",
                hint="plan the snapshot with a client of this location",
            )
        check_columns(schema, columns)
        return Snapshot(self._machine, self, schema, part.as_of, part.range, columns)

    def snapshot_parts(self, as_of: int, max_parts: int | None = None) -> list[SnapshotPart]:
        """Return picklable pieces of the snapshot, in the order of keys. Each row is in exactly one piece.

        There are at most `max_parts` pieces (None: one per row group of the shard's largest run) of about
        equal size. Some may be empty. Any process can read a piece with `PersistClient.read_snapshot_part`.
        Raises like `snapshot`.
        """
        self._readable(check_time(as_of))
        return plan_parts(self._machine, self, as_of, max_parts)

    def listen(self, as_of: int, until: int | None = None) -> Listen:
        """Listen to all changes at times after `as_of`, up to `until` if it is given.

        Raises the errors of `snapshot` for a time before `since`.
        """
        as_of = check_time(as_of)
        if until is not None:
            check_time(until)
        state = self._machine.look()
        if state.finalized:
            raise ShardFinalized(f"shard {self.shard_id} was finalized")
        if as_of < state.since:
            raise self.too_early(as_of, state.since)
        return Listen(self._machine, self, as_of, until=until)

    def subscribe(self, as_of: int) -> Listen:
        """Return the contents at `as_of` as updates at that time, and then all changes after it.

        Raises the same errors as `snapshot`.
        """
        as_of = check_time(as_of)
        snapshot = self.snapshot(as_of)
        contents = (_at(rows, as_of) for rows in snapshot)
        tables = gathered(contents, LISTEN_BYTES)
        first = next(tables, None)
        listen = Listen(self._machine, self, as_of)
        listen.schema = snapshot.schema
        if first is not None and first.nbytes >= LISTEN_BYTES:
            listen.begin_with(chain((first,), tables), as_of)
        elif (second := next(tables, None)) is not None:
            listen.begin_with(chain((first, second), tables), as_of)
        else:
            events: list[Event] = [Updates(first)] if first is not None else []
            listen.begin_at_once([*events, Progress(as_of + 1)])
        return listen

    def change_counts(self, as_of: int) -> list[tuple[int, int, int]]:
        """Return the numbers of stored updates after `as_of`: (first time, last time, number), in no order.

        Each number counts what is stored together. Some of that may be at `as_of` or before.
        """
        batches = self._machine.refresh().batches
        parts = (part for batch in batches for part in batch.parts)
        return [(part.lower, part.upper - 1, part.rows) for part in parts if part.upper > as_of + 1]

    def count_changes(self, after: int, until: int, most: int) -> TimeCounts:
        """Count updates at the first times after `after` and up to `until`, until there are `most` of them.

        If updates of several times are stored together, it reads their times. Raises the same errors as
        `changes`.
        """
        # The counts of the first parts show how much of the others is needed.
        return self._over_parts(
            lambda: TimeCounts(after + 1, until, most), count_part, lambda part: part.lower, until, after
        )

    def sum_changes(self, after: int, until: int, most: int) -> TimeSums:
        """Add up the rows added and removed at each of the last `most` times after `after` and up to `until`.

        Reads only times and counts, with bounded memory. Raises the same errors as `changes`.
        """
        # The times of the last parts show how much of the others is needed.
        return self._over_parts(
            lambda: TimeSums(after + 1, until, most), sum_part, lambda part: -part.upper, until, after
        )

    def _over_parts(
        self,
        begin: Callable[[], T],
        add: Callable[[Machine, Part, T], object],
        order: Callable[[Part], int],
        until: int,
        after: int,
    ) -> T:
        """Add all parts to what `begin` makes, in this order. If one is gone, begin again with others."""
        state = self._readable(until, after)
        while True:
            found = begin()
            parts = (part for batch in state.batches for part in batch.parts)
            try:
                with self.pin(state):
                    for part in sorted(parts, key=order):
                        add(self._machine, part, found)
                        self.beat()
                return found
            except PartGone as gone:
                state = replan_at(self._machine, self, state, gone, after)

    def _readable(self, as_of: int, after: int | None = None) -> ShardState:
        """Like `check_readable`; `LeaseLost` for a time that this reader held until it lost its lease."""
        try:
            return check_readable(self._machine, as_of, after)
        except AsOfTooEarly as error:
            raise self.too_early(error.as_of, error.since) from None

    def allow_compaction(self, since: int) -> None:
        """Let compaction merge times before `since`, as far as this reader is concerned."""
        self._move(check_frontier(since))
        self._held = max(self._held, since)

    def heartbeat(self) -> None:
        """Renew the lease. If it was lost, take a new one at the shard's since."""
        self._move(0)

    def beat(self) -> None:
        """Send the heartbeat if it is due. Using a handle renews its lease, even if a thread does so too."""
        self._machine.owner.check("this client")
        if self._handle is None or self._machine.clock.monotonic() < self._beat_due_s:
            return
        # The read does not depend on this heartbeat, so it does not wait for retries. A later use tries
        # again.
        try:
            self._move(0, retries=False)
        except StorageError:
            again_s = min(_BEAT_AGAIN_S, self.lease_s / 30)
            self._beat_due_s = self._machine.clock.monotonic() + again_s

    def too_early(self, as_of: int, since: int) -> AsOfTooEarly:
        """Return the error for a read at `as_of` that can't continue, because `since` has passed it."""
        handle = self._handle
        is_lost = handle is not None and (self._lapsed or handle.id not in self._machine.state.leased_readers)
        if handle is None or not is_lost or as_of < self._held:
            return AsOfTooEarly(as_of, since)
        return LeaseLost(handle.id, as_of, since)

    def _move(self, since: int, *, retries: bool = True) -> None:
        self._machine.owner.check("this client")
        # One at a time, and none after `close`, because nobody would own a new lease then.
        with self._moving:
            handle = self._handle
            if handle is None:
                return
            try:
                commit([(self._machine, self._downgrade(handle, since))], retries=retries)
                self._beaten()
            except HandleExpired:
                self._lapsed = True
                # Use a new id: another process may remember a heartbeat count of the old one that could
                # recur.
                handle = self._handle = replace(handle, id=new_id("r"))
                self._lease(handle, retries=retries)
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
        """Keep the parts of `state` from deletion while the block runs."""
        with self._lock:
            self._pinned.append(state.seqno)
        try:
            self.beat()
            yield
        finally:
            # In a forked child, a thread of the parent may have held the lock. The pins are the parent's.
            if self._machine.owner.is_here:
                with self._lock:
                    self._pinned.remove(state.seqno)

    def close(self) -> None:
        """Release the lease. In a forked child it does nothing, because the lease is the parent's."""
        close_readers([self])

    def end(self) -> tuple[Machine, DropReader] | None:
        """Send no heartbeats from now on. Return the command that releases the lease, if there is one."""
        if not self._machine.owner.is_here:
            return None
        # A heartbeat that runs may take a new lease, so wait for it. None begins afterwards.
        with self._moving:
            handle, self._handle = self._handle, None
        if handle is None:
            return None
        self._session.maintainer.forget(self)
        return self._machine, DropReader(handle.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_readers(
    session: Session, shard_ids: Sequence[str], *, purpose: str, lease_s: float | None = None
) -> list[ReadHandle]:
    """Open a handle that reads each shard. Raises the errors of `PersistClient.readers`.

    One commit takes all leases, before any handle can read. So a read finds its hold in place.
    """
    session.check_open()
    handles = [session.new_handle("r", purpose, lease_s=lease_s) for _ in shard_ids]
    machines = [session.machine(shard_id) for shard_id in shard_ids]
    look_at(machines)
    for machine in machines:
        # A look may be from before the shard was created.
        if not machine.state.exists:
            session.existing(machine.shard_id)
        if machine.state.finalized:
            raise ShardFinalized(f"shard {machine.shard_id} was finalized")
    if session.mode == "read" or not machines:
        return [ReadHandle(session, machine, None) for machine in machines]
    commit([(machine, RegisterReader(handle)) for machine, handle in zip(machines, handles, strict=True)])
    readers = [
        ReadHandle(session, machine, handle) for machine, handle in zip(machines, handles, strict=True)
    ]
    for reader in readers:
        session.maintainer.watch(reader)
    return readers


def open_unleased(session: Session, shard_id: str) -> ReadHandle:
    """Open a handle that holds nothing, in a client of any mode. Raises like `PersistClient.reader`.

    A read of it raises `AsOfTooEarly` if the since passes its time meanwhile. It never returns other rows.
    """
    session.check_open()
    machine = session.machine(shard_id)
    if not machine.look().exists:
        session.existing(shard_id)
    return ReadHandle(session, machine, None)


def close_readers(readers: Iterable[ReadHandle]) -> None:
    """Release the leases of handles of one client, in one commit."""
    steps = [step for reader in readers if (step := reader.end()) is not None]
    if steps:
        commit(steps)
