"""The controller shard of a location: a mirror of its records in memory, and the one loop that changes them.

- The mirror is built only from the updates of the shard. A commit of this process comes back through it like
  any other.
- `commit` is the loop. It reads up to the upper, runs the pure transition of the command, and appends the
  result at that upper together with the command's effects on other shards. See `ControllerLog.commit` for
  what can happen between these steps.
- With a guard, every command depends on a condition on another shard. Each try gets a new condition. A
  process that lost the right to give commands is refused, even if it decided on the command before.
- A retraction carries the bytes that were read, never a new encoding of them.
- A critical hold moves the shard's since after its upper, at a distance and in steps. So most commits don't
  pay for it, and most mirrors can go on from where they are.
- The mirror has no lease, so an open and a close commit nothing. If it is far behind, and others move the
  since past it, it starts again from a snapshot. See `open_unleased`.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar, assert_never

import pyarrow as pa

from holdfast.collections.record.codec import (
    CONTROLLER_SCHEMA,
    controller_shard_id,
    decode,
    encode_key,
    encode_value,
)
from holdfast.collections.record.spec import CollectionInfo
from holdfast.collections.record.state import (
    ControllerState,
    Outcome,
    Record,
    RecordCommit,
    RecordNoOp,
    RecordReject,
)
from holdfast.errors import AsOfTooEarly, HandleExpired, Indeterminate, StorageError, UpperMismatch
from holdfast.forks import OwnerProcess
from holdfast.persist import (
    CriticalSince,
    Listen,
    PersistClient,
    Prepared,
    Progress,
    ReadHandle,
    Updates,
    WriteHandle,
)
from holdfast.persist.handles.read import open_unleased
from holdfast.persist.looks import look_again, one_look
from holdfast.persist.rows.schema import DIFF

T = TypeVar("T")
Effects = Callable[[ControllerState], Sequence[Prepared]]
Guard = Callable[[], Prepared]
"""Returns the condition under which this process may give commands, or raises (`Fenced`) if it may not."""

_PURPOSE: Final = "storage controller"
_RETENTION_PURPOSE: Final = "controller retention"
_TRAIL_EVERY: Final = 64
_TRAIL_BY: Final = 64
"""How many commits a mirror may be behind before it must start again from a snapshot."""
_STEP_TIMEOUT_S: Final = 30.0
_MOST_TRIES: Final = 10
"""How often others may move the since past the snapshot of a mirror, each time before it is read."""

_Row = tuple[bytes, bytes]


def no_effects(_: ControllerState) -> Sequence[Prepared]:
    """The effects of a command that changes only the records."""
    return ()


class ControllerLog:
    """The controller shard of one location, read and written by one process. Thread-safe."""

    def __init__(self, client: PersistClient, guard: Guard | None = None) -> None:
        self._client = client
        self._guard = guard
        self.shard_id = controller_shard_id(client.location_id)
        client.session.history.name_shards({self.shard_id: "the records of all collections"})
        self._owner = OwnerProcess()
        self._lock = threading.RLock()
        self._state = ControllerState()
        self._rows: dict[bytes, bytes] = {}
        self._upper = 0
        self._reader: ReadHandle | None = None
        self._listen: Listen | None = None
        self._writer: WriteHandle | None = None
        self._retention: CriticalSince | None = None

    @one_look()
    def sync(self) -> ControllerState:
        """The records as of now (linearized). The returned state never changes afterwards."""
        self._owner.check("this storage controller")
        with self._lock:
            for left in reversed(range(_MOST_TRIES)):
                upper = self._client.recent_upper(self.shard_id)
                if upper <= self._upper:
                    break
                try:
                    self._follow(upper)
                    break
                except (AsOfTooEarly, HandleExpired):
                    # Others have moved the since past the mirror, or past the time of its snapshot.
                    self._reader = self._listen = None
                    if not left:
                        raise
                    look_again()
            return self._state

    def sync_with(
        self, shards: Callable[[ControllerState], Sequence[str]]
    ) -> tuple[ControllerState, dict[str, int]]:
        """The records and the uppers of these shards, as of one moment. One read unless the records change.

        `shards` is called with the records that are known so far.
        """
        self._owner.check("this storage controller")
        with self._lock:
            while True:
                uppers = self._client.recent_uppers([self.shard_id, *shards(self._state)])
                if uppers.pop(self.shard_id) <= self._upper:
                    return self._state, uppers
                self.sync()

    def commit(
        self,
        transition: Callable[[ControllerState], Outcome[T]],
        effects: Effects = no_effects,
    ) -> T:
        """Run `transition` on the newest records, and commit its outcome with `effects` in one multi-write.

        `effects` is called for each try, with the records that the transition saw, so that a try that failed
        does not reuse its uploads. No other command of this process runs during that. So upload large data
        before the call, and keep it (`Prepared.keep`).

        The append expects the upper that was read, so these interleavings are possible:

        1. Nobody else commits between the read and the append. The command is decided on the newest records.
        2. Another command commits in between. The append fails with `UpperMismatch` on this shard and changes
           nothing, because a multi-write changes all of its shards or none. The loop reads on, and runs the
           transition again on the new records. If the other process did the same command, the transition
           returns its recorded result as a `RecordNoOp`.
        3. The guard's condition is lost in between. The mismatch is on the guard's shard. The loop calls the
           guard again, which returns a new condition or raises.
        4. An effect fails on its own shard. The reason may be another command whose records this process has
           not read yet. So the loop reads on and runs the transition once more. If the transition rejects or
           has nothing to do, that explains the mismatch. If it would still commit, the loop raises the
           mismatch.
        5. The outcome of the multi-write is unknown. It raises `Indeterminate`, and the writer is discarded.
           Giving the command again with the same command id is safe.

        Raises the errors of the guard and of `multi_write`, the error of a transition that rejects (nothing
        changed), and `UpperMismatch` as in 4.
        """
        self._owner.check("this storage controller")
        with self._lock:
            lost: UpperMismatch | None = None
            while True:
                condition = self._condition()
                state = self.sync()
                outcome = transition(state)
                match outcome:
                    case RecordReject(error):
                        raise error
                    case RecordNoOp(result):
                        return result
                    case RecordCommit(result, puts, removals):
                        if lost is not None:
                            raise lost
                        # Rows and upper of the version that was decided on: effects may read a newer one.
                        upper, rows = self._upper, self._changed_rows(puts, removals)
                        try:
                            self._append(rows, upper, [*condition, *effects(state)])
                        except UpperMismatch as mismatch:
                            again = _is_of(mismatch, condition) or mismatch.shard_id == self.shard_id
                            lost = None if again else mismatch
                            continue
                        # The command is durable. A since that can't move must not make it look failed.
                        with suppress(StorageError, HandleExpired):
                            self._trail()
                        return result
                    case _:
                        assert_never(outcome)

    def write(self, effects: Sequence[Prepared]) -> None:
        """Commit `effects` that change no records, under the guard. Raises like `commit`."""
        while True:
            condition = self._condition()
            try:
                self._client.multi_write([*condition, *effects])
            except UpperMismatch as mismatch:
                if not _is_of(mismatch, condition):
                    raise
            else:
                return

    def close(self) -> None:
        """Let go of the shard. Does nothing in a forked child: what is open is the parent's."""
        if self._owner.is_here:
            with self._lock:
                self._reader = self._listen = None

    def _condition(self) -> Sequence[Prepared]:
        return () if self._guard is None else (self._guard(),)

    def _changed_rows(self, puts: Iterable[Record], removals: Iterable[Record]) -> list[tuple[_Row, int]]:
        """The rows to retract, as they were read, and the rows to add."""
        retracted = {
            key: self._rows[key]
            for key in (encode_key(record) for record in (*puts, *removals))
            if key in self._rows
        }
        added = {encode_key(record): encode_value(record) for record in puts}
        return [(row, -1) for row in retracted.items()] + [(row, 1) for row in added.items()]

    def _append(self, rows: Sequence[tuple[_Row, int]], upper: int, effects: Sequence[Prepared]) -> None:
        updates = pa.RecordBatch.from_arrays(
            [
                pa.array([key for (key, _), _ in rows], pa.binary()),
                pa.array([value for (_, value), _ in rows], pa.binary()),
                pa.array([upper] * len(rows), pa.uint64()),
                pa.array([diff for _, diff in rows], pa.int64()),
            ],
            schema=CONTROLLER_SCHEMA.arrow_updates,
        )
        if self._writer is None:
            self._writer = self._client.writer(self.shard_id, CONTROLLER_SCHEMA, purpose=_PURPOSE)
        try:
            append = self._writer.prepare_append(updates, upper, upper + 1)
            self._client.multi_write([append, *effects])
        except (HandleExpired, Indeterminate):
            # A writer can't be used any more if it doesn't know whether its last append happened.
            self._writer = None
            raise

    def _follow(self, upper: int) -> None:
        # If anything fails below, the listen has lost its place. The next call starts from a snapshot.
        listen, self._listen = self._listen, None
        if listen is None:
            if self._reader is None:
                self._reader = open_unleased(self._client.session, self.shard_id)
            as_of = max(upper, self._reader.upper()) - 1
            snapshot = self._reader.snapshot(as_of).to_table()
            listen = self._reader.listen(as_of)
            self._state, self._rows, self._upper = ControllerState(), {}, 0
            self._apply(_net([snapshot]))
            self._upper, self._listen = as_of + 1, listen
            return
        tables = []
        frontier = self._upper
        while frontier < upper:
            for event in listen.next(_STEP_TIMEOUT_S):
                match event:
                    case Updates(table):
                        tables.append(table)
                    case Progress():
                        frontier = event.frontier
        self._apply(_net(tables))
        self._upper, self._listen = frontier, listen

    def _apply(self, net: Counter[_Row]) -> None:
        removed = [row for row, diff in net.items() if diff < 0]
        added = [row for row, diff in net.items() if diff > 0]
        # Decode before anything changes: an error for a row of a newer version must not leave half a mirror.
        gone, come = [decode(*row) for row in removed], [decode(*row) for row in added]
        for key, _ in removed:
            del self._rows[key]
        self._rows.update(added)
        # Other threads read the states that were returned before.
        state = self._state.copy()
        state.apply(gone, come)
        self._state = state
        for record in come:
            if isinstance(record, CollectionInfo):
                shards = (record.metadata_shard, *record.data_shards)
                purpose = f"collection {record.name}"
                self._client.session.history.name_shards(dict.fromkeys(shards, purpose))

    def _trail(self) -> None:
        """Move the since once in a while, after a commit at the upper of the mirror."""
        as_of = self._upper - 1 - _TRAIL_BY
        if as_of < (self._client.known_since(self.shard_id) or 0) + _TRAIL_EVERY:
            return
        if self._retention is None:
            self._retention = self._client.critical_since(self.shard_id, purpose=_RETENTION_PURPOSE)
        if as_of > self._retention.since:
            self._retention.downgrade(as_of)


def _is_of(mismatch: UpperMismatch, condition: Sequence[Prepared]) -> bool:
    return any(each.machine.shard_id == mismatch.shard_id for each in condition)


def _net(tables: Iterable[pa.Table]) -> Counter[_Row]:
    net: Counter[_Row] = Counter()
    for table in tables:
        columns = (table.column(name).to_pylist() for name in ("key", "value", DIFF))
        for key, value, diff in zip(*columns, strict=True):
            net[key, value] += diff
    return net
