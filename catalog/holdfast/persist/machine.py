"""One shard in one process: the cached newest version, and the one loop that commits the next.

- A `Machine` is the state cache of its shard: all handles of a client share it, under one lock (the
  turnstile), so a process has at most one compare-and-set in flight per shard and never races itself.
- `commit` runs commands on any number of shards, all or nothing. Locks are taken in shard-id order.
- The cache may be behind. That a command is rejected, or has nothing to do, is final only on a version that
  was the newest at or after the call.
- An attempt of unknown outcome is settled by reading the newest version and running the transition again:
  a slow attempt aimed at version n can land only while n is free, and the next attempt aims at n too, so
  exactly one of both takes it.
- Where the client took the write lock of the location, each attempt carries the condition that it still has
  it. A lock that has moved is final: no attempt that carries the condition can land after that.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Final, TypeVar

from holdfast.errors import (
    CLOSED,
    BadInput,
    CorruptBlob,
    Determinate,
    HandleExpired,
    HoldfastError,
    Indeterminate,
    LogRegressed,
    StorageError,
)
from holdfast.persist.clock import Clock
from holdfast.persist.command import Append, Command, Commit, NoOp, Reject, Seal, Write
from holdfast.persist.config import PersistConfig
from holdfast.persist.invariants import check_state, check_step
from holdfast.persist.lock import LOCK_KEY, Fence, LockRow, expectation, no_lock
from holdfast.persist.part import verify
from holdfast.persist.schema import Schema
from holdfast.persist.state import Change, Part, Put, Rollup, ShardState, StateDiff, apply
from holdfast.persist.statecodec import decode_diff, decode_state, encode_diff
from holdfast.persist.storage import Entry, Expect, Location
from holdfast.persist.storage import Put as LogPut
from holdfast.persist.storage.watch import Watch, Watches
from holdfast.persist.transition import transition

APPLIER_VERSION: Final = version("holdfast")
EPOCH_BITS: Final = 40
"""A version number is `epoch * 2^40` and a count: a log that is recovered goes on in another epoch."""
_T = TypeVar("_T")
_SCAN_LIMIT: Final = 1024
_FIRST_BACKOFF_S: Final = 0.005
_LAST_BACKOFF_S: Final = 0.5


class Machine:
    """The newest known version of a shard, and what waits for the next."""

    def __init__(
        self,
        shard_id: str,
        location: Location,
        config: PersistConfig,
        clock: Clock,
        fence: Fence | None = None,
    ) -> None:
        self.shard_id = shard_id
        self.location = location
        self.config = config
        self.clock = clock
        self.fence = fence or Fence()
        self.lock = threading.RLock()
        self.watches = Watches()
        # Whom to tell of new versions, and whether somebody tells us, where a client asked for it.
        self.tell: Callable[[str, int], None] | None = None
        self.is_told: Callable[[], bool] = lambda: False
        self._store_hints = False
        self.state = ShardState(shard_id)
        self.is_open = True
        # Writers of this process that have no append in flight or in doubt, and those that were closed.
        self.settled: set[str] = set()
        self.closed: set[str] = set()

    def store_ms(self) -> int:
        """The time in ms since the epoch: the store's own, or this host's where the store has none."""
        told = retry(self.location.blob.clock_ms, self.config, self.clock)
        return self.clock.wall_ms() if told is None else told

    def check_open(self) -> None:
        """Raise `BadInput` once the client that this belongs to is closed."""
        if not self.is_open:
            raise BadInput("this client is closed")

    def refresh(self) -> ShardState:
        """The newest version, linearized: at least as new as every commit that ended before the call.

        Raises:
            StorageError: the store did not answer within the retry deadline.
            BadInput: the client is closed.
        """

        def attempt() -> ShardState:
            self.check_open()
            known = self.state.seqno
            head = self.location.consensus.heads([self.shard_id]).get(self.shard_id)
            return self.advance_to(head, known)

        return retry(attempt, self.config, self.clock)

    def advance_to(self, head: Entry | None, known: int) -> ShardState:
        """Bring the cache to `head`, the newest row of the log, or beyond.

        `known` is the version that the cache had before the head was read: the log never goes back behind it.
        """
        seqno = head.seqno if head is not None else 0
        if seqno < known:
            raise LogRegressed(f"the log of {self.shard_id}", f"version {known} or later", f"version {seqno}")
        if known and seqno >> EPOCH_BITS != known >> EPOCH_BITS:
            raise HandleExpired(
                f"shard {self.shard_id} was recovered from its rollups meanwhile",
                hint="open the location anew: what this process knows of the shard may be lost",
            )
        with self.lock:
            if head is not None and seqno > self.state.seqno:
                state = self._catch_up(head)
                if self.config.debug_validate:
                    check_step(self.state, state)
                self.publish(state)
            return self.state

    def schema_of(self, part: Part) -> Schema:
        """The schema that a part was written under: the cache is never behind a version that names it."""
        return self.state.schemas[part.schema_id]

    def publish(self, state: ShardState) -> None:
        """Take over a version that is durable, and wake who waits for it."""
        self.state = state
        self.watches.ring((self.shard_id,))
        if self.tell is not None:
            self.tell(self.shard_id, state.seqno)

    def watch(self) -> Watch:
        """What tells of new versions: the store, a client that is followed, and what this process learns."""
        watch = self.location.consensus.watch(self.shard_id)
        self._store_hints = watch is not None
        return self.watches.add(self.shard_id, watch)

    @property
    def pace_s(self) -> float:
        """After how many seconds without a hint who waits must look nevertheless."""
        hinted = self._store_hints or self.is_told()
        return self.config.hinted_poll_interval_s if hinted else self.config.poll_interval_s

    def close(self) -> None:
        """Refuse further work and wake who waits for it."""
        self.is_open = False
        self.watches.ring_all()

    def after(self, state: ShardState, diff: StateDiff) -> ShardState:
        """The version after `state`, checked where the configuration says so."""
        after = apply(state, diff)
        if self.config.debug_validate:
            check_step(state, after)
        return after

    def _catch_up(self, head: Entry) -> ShardState:
        if head.seqno == self.state.seqno + 1:
            return self._replay(self.state, [head])
        while True:
            rollup = self._decode(head).latest_rollup
            if rollup is None or rollup.seqno <= self.state.seqno:
                entries = self._scan(self.state.seqno + 1)
                if entries and entries[0].seqno == self.state.seqno + 1:
                    return self._replay(self.state, entries)
            state = self._open_from(head, rollup)
            if state is not None:
                return state
            # The rollup went: somebody has moved on since `head`. What replaced it is in a newer row.
            newer = self.location.consensus.heads([self.shard_id])[self.shard_id]
            if newer.seqno == head.seqno:
                raise CorruptBlob(self.shard_id, f"the rollup of version {head.seqno}", "nothing")
            head = newer

    def _open_from(self, head: Entry, rollup: Rollup | None) -> ShardState | None:
        """The newest version by rollup and replay; None where they went while we read."""
        state = ShardState(self.shard_id)
        if rollup is not None:
            loaded = load_rollup(self.location, rollup)
            if loaded is None:
                return None
            if (loaded.shard_id, loaded.seqno) != (self.shard_id, rollup.seqno):
                raise CorruptBlob(
                    rollup.blob_key,
                    f"version {rollup.seqno} of {self.shard_id}",
                    f"version {loaded.seqno} of {loaded.shard_id}",
                )
            state = loaded
        entries = self._scan(state.seqno + 1)
        if entries:
            if entries[0].seqno != state.seqno + 1:
                return None
            state = self._replay(state, entries)
        elif state.seqno != head.seqno:
            return None
        try:
            check_state(state)
        except AssertionError as error:
            raise CorruptBlob(f"the log of {self.shard_id}", "a version that can be", str(error)) from None
        return state

    def _scan(self, from_seqno: int) -> list[Entry]:
        """The rows from `from_seqno` on; none where the log was truncated between two pages."""
        entries: list[Entry] = []
        while True:
            found = self.location.consensus.scan(self.shard_id, from_seqno, _SCAN_LIMIT)
            if entries and found and found[0].seqno != from_seqno:
                return []
            entries += found
            if len(found) < _SCAN_LIMIT:
                return entries
            from_seqno = found[-1].seqno + 1

    def _replay(self, state: ShardState, entries: Sequence[Entry]) -> ShardState:
        for entry in entries:
            diff = self._decode(entry)
            if diff.seqno != state.seqno + 1 or diff.shard_id != self.shard_id:
                raise CorruptBlob(
                    f"{self.shard_id} log {entry.seqno}",
                    f"version {state.seqno + 1} of {self.shard_id}",
                    f"version {diff.seqno} of {diff.shard_id}",
                )
            try:
                state = self.after(state, diff)
            except (ValueError, LookupError, StopIteration) as error:
                key = f"{self.shard_id} log {entry.seqno}"
                raise CorruptBlob(key, "changes that fit the version before", repr(error)) from None
        return state

    def _decode(self, entry: Entry) -> StateDiff:
        return decode_diff(entry.data, f"{self.shard_id} log {entry.seqno}")


def load_rollup(location: Location, rollup: Rollup) -> ShardState | None:
    """The state in a rollup, checked; None where its blob is gone."""

    def read() -> bytes | None:
        data = location.blob.get(rollup.blob_key)
        if data is not None:
            verify(data, size=rollup.size_bytes, crc32c=rollup.crc32c, key=rollup.blob_key)
        return data

    data = read_twice(location, rollup.blob_key, read)
    return None if data is None else decode_state(data, rollup.blob_key)


def read_twice(location: Location, key: str, read: Callable[[], _T]) -> _T:
    """Run `read`, which checks the blob `key`; where it is `CorruptBlob`, again by the store itself."""
    try:
        return read()
    except CorruptBlob:
        location.blob.forget(key)
        return read()


def retry(attempt: Callable[[], _T], config: PersistConfig, clock: Clock) -> _T:
    """Run `attempt` until it ends without a `Determinate` or `Indeterminate`, at most for the deadline."""
    patience = Patience(config, clock)
    while True:
        try:
            return attempt()
        except (Determinate, Indeterminate):
            if not patience.wait():
                raise


class Patience:
    """How often and how long a store that fails is asked again: ever more rarely, for the retry deadline."""

    def __init__(self, config: PersistConfig, clock: Clock) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + config.retry_deadline_s
        self._backoff = _FIRST_BACKOFF_S

    def wait(self) -> bool:
        """Wait before the next attempt; False where there is to be none."""
        if self._clock.monotonic() + self._backoff > self._deadline:
            return False
        self._clock.sleep(self._backoff)
        self._backoff = min(2 * self._backoff, _LAST_BACKOFF_S)
        return True


def commit(steps: Sequence[tuple[Machine, Command]]) -> list[object]:
    """Run commands on some shards, all or nothing; their results, in the order of `steps`.

    A shard takes at most one `Append` or `Seal`: the batch is named after the version that it makes. The
    results are None where an append was found to have happened in an attempt of unknown outcome.

    Raises:
        Indeterminate: whether it happened could not be found out within the retry deadline.
        Fenced: the client has lost the write lock that it took; nothing happened.
        HoldfastError: a command was rejected; nothing happened.
    """
    machines = sorted({machine.shard_id: machine for machine, _ in steps}.items())
    for _, machine in machines:
        machine.check_open()
    for _, machine in machines:
        machine.lock.acquire()
    try:
        return _commit_locked(steps)
    finally:
        for _, machine in reversed(machines):
            machine.lock.release()


def _commit_locked(steps: Sequence[tuple[Machine, Command]]) -> list[object]:
    first = steps[0][0]
    consensus = first.location.consensus
    patience = Patience(first.config, first.clock)
    held = _lock_for(steps)
    unsettled: StorageError | None = None
    doubtful: dict[str, int] = {}
    fenced: HoldfastError | None = None
    fresh = not all(machine.state.exists for machine, _ in steps)
    if fresh:
        fenced = _refresh_all(steps, held)
    while True:
        results, diffs, rejection = _run(steps)
        if (rejection is not None or not diffs) and not fresh:
            fenced = _refresh_all(steps, held)
            fresh = True
            continue
        if fenced is not None:
            rejection = Reject(fenced)
        if isinstance(unsettled, Indeterminate):
            landed = _landed(steps)
            if landed:
                return [None] * len(steps)
            if landed is None and _in_doubt(steps, rejection, doubtful):
                raise unsettled
        if rejection is not None:
            raise rejection.error from unsettled
        if not diffs:
            return results
        after = [(machine, machine.after(machine.state, diff)) for machine, diff in diffs]
        puts = [LogPut(diff.shard_id, diff.seqno, encode_diff(diff)) for _, diff in diffs]
        changed = {put.key for put in puts}
        # What is left as it is must still be so when the others change.
        expect = [Expect(m.shard_id, m.state.seqno) for m, _ in steps if m.shard_id not in changed]
        expect += expectation(held)
        try:
            won = consensus.compare_and_set(puts, expect)
        except (Determinate, Indeterminate) as error:
            if isinstance(error, Indeterminate) or unsettled is None:
                unsettled = error
            doubtful = {put.key: put.seqno for put in puts} | doubtful
            if not patience.wait():
                raise unsettled from None
            fenced = _refresh_after(steps, held, unsettled)
            fresh = True
            continue
        if won:
            for machine, state in after:
                machine.publish(state)
            return results
        fenced = _refresh_after(steps, held, unsettled)
        fresh = True


def _lock_for(steps: Sequence[tuple[Machine, Command]]) -> LockRow | None:
    """The row of the lock that a commit must find; None where its client does not use the lock.

    Raises `Fenced` where the client has lost it, `NotWritable` where a command needs it.
    """
    held = steps[0][0].fence.held
    for machine, command in steps:
        if held is None and isinstance(command, Write | Seal):
            raise no_lock(machine.shard_id)
    return held


def _landed(steps: Sequence[tuple[Machine, Command]]) -> bool | None:
    """Whether an unsettled attempt happened; None where no record is left that tells.

    All steps land or none, so the record of one writer tells it for all.
    """
    # A writer keeps the token of its last command.
    for machine, command in reversed(steps):
        if isinstance(command, Append | Write | Seal):
            writer = machine.state.writers.get(command.writer.id)
            if writer is not None:
                return writer.last_token == command.token
    return None


def _in_doubt(
    steps: Sequence[tuple[Machine, Command]], rejection: Reject | None, doubtful: dict[str, int]
) -> bool:
    """Whether it matters that no record tells if an attempt landed: it is rejected, or may write twice.

    Nothing rejects a write that has landed, and whose record and batch are gone since. `doubtful` are the
    first versions that attempts without an answer aimed at: none has landed before these.
    """
    if rejection is not None:
        return not _harmless(steps)
    return any(
        isinstance(command, Write) and machine.state.seqno >= doubtful.get(machine.shard_id, CLOSED)
        for machine, command in steps
    )


def _harmless(steps: Sequence[tuple[Machine, Command]]) -> bool:
    """Whether it makes no difference if a rejected attempt had landed before: one command on a handle."""
    return len(steps) == 1 and not isinstance(steps[0][1], Append | Write | Seal)


def _run(
    steps: Sequence[tuple[Machine, Command]],
) -> tuple[list[object], list[tuple[Machine, StateDiff]], Reject | None]:
    """What the commands do, each shard's own in the order of `steps`, as one diff per shard."""
    results: list[object] = []
    diffs: dict[str, tuple[Machine, StateDiff]] = {}
    for machine, command in steps:
        state = machine.state
        earlier = diffs.get(machine.shard_id)
        if earlier is not None:
            state = replace(apply(state, earlier[1]), seqno=state.seqno)
        match transition(state, command):
            case Commit(changes, result):
                results.append(result)
                before = earlier[1].changes if earlier is not None else ()
                diffs[machine.shard_id] = (machine, _diff(machine, (*before, *changes)))
            case NoOp(result):
                results.append(result)
            case Reject() as rejection:
                return [], [], rejection
    return results, list(diffs.values()), None


def _diff(machine: Machine, changes: tuple[Change, ...]) -> StateDiff:
    state = machine.state
    added = [
        change.value for change in changes if isinstance(change, Put) and isinstance(change.value, Rollup)
    ]
    return StateDiff(
        state.seqno + 1,
        machine.shard_id,
        APPLIER_VERSION,
        max(machine.clock.wall_ms(), state.wall_ms + 1),
        machine.config.hostname,
        added[0] if added else state.latest_rollup,
        changes,
    )


def _refresh_all(steps: Sequence[tuple[Machine, Command]], held: LockRow | None) -> HoldfastError | None:
    """Bring all caches to the newest versions; why a commit under `held` is fenced, if it is by then."""
    first = steps[0][0]

    def attempt() -> HoldfastError | None:
        # All as of one point: what has landed under the lock before it moved is seen with the move.
        heads = _advance([machine for machine, _ in steps], [] if held is None else [LOCK_KEY])
        return None if held is None else first.fence.judge(held, heads.get(LOCK_KEY))

    return retry(attempt, first.config, first.clock)


def _advance(machines: Sequence[Machine], more: Sequence[str]) -> dict[str, Entry]:
    """Bring all caches to the newest versions by one read of Consensus; its heads, also those of `more`."""
    shards = {machine.shard_id: machine for machine in machines}
    for machine in machines:
        machine.check_open()
    known = {shard_id: machine.state.seqno for shard_id, machine in shards.items()}
    heads = machines[0].location.consensus.heads([*shards, *more])
    for shard_id, machine in shards.items():
        machine.advance_to(heads.get(shard_id), known[shard_id])
    return heads


def refresh_all(machines: Sequence[Machine]) -> list[ShardState]:
    """The newest versions of shards of one location, as `Machine.refresh` gives each, by one read."""
    if machines:
        first = machines[0]
        retry(lambda: _advance(machines, []), first.config, first.clock)
    return [machine.state for machine in machines]


def _refresh_after(
    steps: Sequence[tuple[Machine, Command]], held: LockRow | None, unsettled: StorageError | None
) -> HoldfastError | None:
    """Refresh; where that fails while an attempt is unsettled, the whole is unsettled."""
    try:
        return _refresh_all(steps, held)
    except HoldfastError as error:
        # Also where the newest version can't be read: that tells nothing about the attempt.
        if isinstance(unsettled, Indeterminate):
            raise unsettled from error
        raise
