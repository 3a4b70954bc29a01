"""One shard in one process: the cached newest version, and the one loop that commits the next.

- A `Machine` is the state cache of its shard: all handles of a client share it, under one lock (the
  turnstile), so a process has at most one compare-and-set in flight per shard and never races itself.
- `commit` runs commands on any number of shards, all or nothing. Locks are taken in shard-id order.
- The cache may be behind. That a command is rejected, or has nothing to do, is final only on a version that
  was the newest at or after the call.
- An attempt of unknown outcome is settled by reading the newest version and running the transition again:
  a slow attempt aimed at version n can land only while n is free, and the next attempt aims at n too, so
  exactly one of both takes it.
- The log may go back in time. Each machine knows the number and the digest of the newest row that it has
  verified; every read of the head and every append compares them with the store's row of that number. A
  difference ends the client (`holdfast.persist.state.divergence`). A version is replayed only from rows that
  are linked to that row: by one statement of the store, or by pages that overlap in one row.
- Several shards are brought to the heads of one read and never beyond, so their versions are those of one
  moment.
- Where the client took the write lock of the location, each attempt carries the condition that it still has
  it. A lock that has moved is final: no attempt that carries the condition can land after that.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Final, NamedTuple, TypeVar

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
from holdfast.forks import OwnerProcess
from holdfast.persist.clock import Clock
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import EPOCH_BITS
from holdfast.persist.rows.part import verify
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.codec import decode_diff, decode_state, encode_diff
from holdfast.persist.state.command import Append, Command, Commit, NoOp, Reject, Seal, Write
from holdfast.persist.state.cuts import known_digest
from holdfast.persist.state.divergence import ForkGuard
from holdfast.persist.state.invariants import check_state, check_step
from holdfast.persist.state.lock import LOCK_KEY, Fence, LockRow, expectation, no_lock
from holdfast.persist.state.state import Change, Part, Put, Rollup, ShardState, StateDiff, apply
from holdfast.persist.state.transition import transition
from holdfast.persist.stores import Digest, Entry, Expect, Head, Location, digest_of
from holdfast.persist.stores import Put as LogPut
from holdfast.persist.stores.retry import TimeLeft
from holdfast.persist.stores.watch import Watch, Watches

log = logging.getLogger(__name__)

APPLIER_VERSION: Final = version("holdfast")
_T = TypeVar("_T")
_SCAN_LIMIT: Final = 1024
_FIRST_KEPT_S: Final = 1.0
_LAST_KEPT_S: Final = 60.0
_FIRST_BACKOFF_S: Final = 0.005
_LAST_BACKOFF_S: Final = 0.5


NO_DIGEST: Final = Digest(0, b"")


class Version(NamedTuple):
    """A version of a shard and the digest of its row, which are always known together."""

    state: ShardState
    digest: Digest = NO_DIGEST

    @property
    def seqno(self) -> int:
        """The number of the version, 0 before the first."""
        return self.state.seqno


class RollupGone(Exception):
    """The rollup that a head names, or the rows after it, went while we read: there is a newer head."""

    def __init__(self, shard_id: str, seqno: int) -> None:
        super().__init__(shard_id, seqno)
        self.shard_id, self.seqno = shard_id, seqno


class Machine:
    """The newest known version of a shard, and what waits for the next."""

    def __init__(
        self,
        shard_id: str,
        location: Location,
        config: PersistConfig,
        clock: Clock,
        fence: Fence | None = None,
        history: ForkGuard | None = None,
    ) -> None:
        self.shard_id = shard_id
        self.location = location
        self.config = config
        self.clock = clock
        self.fence = fence or Fence()
        self.history = history or ForkGuard(location, hostname=config.hostname, read_only=True)
        self.owner = OwnerProcess()
        self.lock = threading.RLock()
        self.watches = Watches()
        # Whom to tell of new versions, and whether somebody tells us, where a client asked for it.
        self.tell: Callable[[str, int], None] | None = None
        self.is_told: Callable[[], bool] = lambda: False
        self._store_hints = False
        self._version = Version(ShardState(shard_id))
        # The newest version that this client knows: that of `version`, which has its digest too.
        self.state = self._version.state
        self.is_open = True
        self.kept_because = ""
        self._kept_until_s = self._kept_wait_s = 0.0
        # Writers of this process that have no append in flight or in doubt, and those that were closed.
        self.settled: set[str] = set()
        self.closed: set[str] = set()

    def store_ms(self) -> int:
        """The time in ms since the epoch: the store's own, or this host's where the store has none."""
        told = retry(self.location.blob.clock_ms, self.config, self.clock)
        return self.clock.wall_ms() if told is None else told

    @property
    def version(self) -> "Version":
        """The newest version that this client knows, with the digest of its row."""
        return self._version

    def check_open(self) -> None:
        """Raise `BadInput` once its client is closed, `LogRegressed` once it ended.

        In a forked child it raises `UsedAfterFork`.
        """
        self.owner.check("this client")
        if not self.is_open:
            raise BadInput("this client is closed")
        self.history.check()

    def refresh(self) -> ShardState:
        """The newest version, linearized: at least as new as every commit that ended before the call.

        Raises:
            LogRegressed: the log has another history than the one that this client has read.
            HandleExpired: the log was recovered, or cut so far that its history can't be compared.
            StorageError: the store did not answer within the retry deadline.
            BadInput: the client is closed.
        """

        def attempt() -> ShardState:
            self.check_open()
            known = self._version
            with self.history.watching(self.clock):
                heads = self.location.consensus.heads([self.shard_id], {self.shard_id: known.seqno})
            with suppress(RollupGone):
                if self.advance_to(heads.get(self.shard_id), known):
                    return self.state
            # Another thread moved the cache between the two reads: look again while nobody can.
            with self.lock:
                _advance([self], [])
                return self.state

        return retry(attempt, self.config, self.clock)

    def advance_to(self, head: Head | None, known: "Version") -> bool:
        """Bring the cache to `head`, the newest row of the log; whether it is there, or beyond.

        `known` is the version that the cache had when the head was read. If the cache has moved since and is
        still behind the head, nothing links the two: the caller reads the head again.

        Raises:
            LogRegressed, HandleExpired: as `refresh`.
            RollupGone: the log was cut meanwhile, and a newer head tells what to read instead.
        """
        self._check_history(head, known)
        with self.lock:
            if head is not None and head.seqno > self.state.seqno:
                if self._version is not known:
                    return False
                state = self._catch_up(head, known)
                if self.config.debug_validate:
                    check_step(self.state, state)
                self.publish(Version(state, digest_of(head.data)))
            return True

    def _check_history(self, head: Head | None, known: "Version") -> None:
        """Raise unless the log goes on from the row that this client knows."""
        if head is not None and head.seqno < 1:
            raise CorruptBlob(
                f"the log of {self.shard_id}", "rows from 1 on", f"row {head.seqno} as its head"
            )
        if not known.seqno:
            return
        seqno = head.seqno if head is not None else 0
        if head is None or seqno < known.seqno:
            raise self._regressed(known, None, seqno)
        if seqno >> EPOCH_BITS != known.seqno >> EPOCH_BITS:
            raise HandleExpired(
                f"shard {self.shard_id} was recovered from its rollups meanwhile",
                hint="open the location anew: what this process knows of the shard may be lost",
            )
        found = digest_of(head.data) if seqno == known.seqno else head.known
        if found is None:
            found = known_digest(self.location, self.shard_id, known.seqno)
        if found is None:
            if self._ended_with(head):
                return
            raise HandleExpired(
                f"the log of {self.shard_id} was cut after version {known.seqno}, which this client knows:"
                " whether it goes on from there can't be told",
                hint="open a new client; one that looks at the shard now and then stays able to tell",
            )
        if found != known.digest:
            raise self._regressed(known, found, seqno)

    def _ended_with(self, head: Head) -> bool:
        """Whether the shard is finalized: its log is one row then, and there is nothing left to mix up."""
        return self._open_from(head, self._decode(head).latest_rollup).finalized

    def _regressed(self, known: "Version", found: Digest | None, head: int) -> LogRegressed:
        return self.history.end(self.shard_id, known.seqno, known.digest, found, head, self.clock.wall_ms())

    def keep_everything(self, why: str) -> None:
        """Note why nothing of the shard may be deleted, "" for no reason; logged when the reason changes."""
        if why and why != self.kept_because:
            log.warning("nothing of %s is deleted: %s; see 'holdfast persist recover'", self.shard_id, why)
        self._kept_wait_s = min(max(2 * self._kept_wait_s, _FIRST_KEPT_S), _LAST_KEPT_S) if why else 0.0
        self._kept_until_s = self.clock.monotonic() + self._kept_wait_s
        self.kept_because = why

    def keeps_everything(self) -> bool:
        """Whether a look found a short time ago that nothing of the shard may be deleted."""
        return bool(self.kept_because) and self.clock.monotonic() < self._kept_until_s

    def look_again(self) -> None:
        """Let the next garbage collection look whether something may be deleted."""
        self._kept_until_s = 0.0

    def schema_of(self, part: Part) -> Schema:
        """The schema that a part was written under: the cache is never behind a version that names it."""
        return self.state.schemas[part.schema_id]

    def publish(self, version: "Version") -> None:
        """Take over a version that is durable, and wake who waits for it."""
        self._version = version
        self.state = version.state
        self.watches.ring((self.shard_id,))
        if self.tell is not None:
            self.tell(self.shard_id, version.seqno)

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

    def _catch_up(self, head: Head, known: "Version") -> ShardState:
        """The version of `head`, which one statement of the store has linked to `known`."""
        if head.seqno == known.seqno + 1:
            return self._replay(known.state, [head])
        rollup = self._decode(head).latest_rollup
        if rollup is None or rollup.seqno <= known.seqno:
            entries = self._scan(max(1, known.seqno), head)
            if entries and entries[0].seqno == known.seqno:
                anchor = entries.pop(0)
                if digest_of(anchor.data) != known.digest:
                    raise self._regressed(known, digest_of(anchor.data), head.seqno)
                return self._replay(known.state, entries)
            if not known.seqno and entries and entries[0].seqno == 1:
                return self._replay(known.state, entries)
        return self._open_from(head, rollup)

    def _open_from(self, head: Head, rollup: Rollup | None) -> ShardState:
        """The version of `head` by rollup and replay; `RollupGone` where they went while we read."""
        state = ShardState(self.shard_id)
        if rollup is not None:
            loaded = load_rollup(self.location, rollup)
            if loaded is None:
                raise RollupGone(self.shard_id, head.seqno)
            if (loaded.shard_id, loaded.seqno) != (self.shard_id, rollup.seqno):
                raise CorruptBlob(
                    rollup.blob_key,
                    f"version {rollup.seqno} of {self.shard_id}",
                    f"version {loaded.seqno} of {loaded.shard_id}",
                )
            state = loaded
        entries = [entry for entry in self._scan(max(1, state.seqno), head) if entry.seqno > state.seqno]
        if not entries or entries[0].seqno != state.seqno + 1:
            raise RollupGone(self.shard_id, head.seqno)
        state = self._replay(state, entries)
        try:
            check_state(state)
        except AssertionError as error:
            raise CorruptBlob(f"the log of {self.shard_id}", "a version that can be", str(error)) from None
        return state

    def _scan(self, from_seqno: int, head: Head) -> list[Entry]:
        """The rows from `from_seqno` to `head`, all of one history; none where that can't be had.

        Each page begins with the last row of the one before, and the last row is that of the head.
        """
        entries: list[Entry] = []
        while not entries or entries[-1].seqno < head.seqno:
            start = entries[-1].seqno if entries else from_seqno
            limit = min(_SCAN_LIMIT, head.seqno - start + 1)
            found = self.location.consensus.scan(self.shard_id, start, limit)
            if entries and (not found or found[0] != entries[-1]):
                return []
            new = found[1:] if entries else found
            if not new:
                return []
            entries += new
        while entries and entries[-1].seqno > head.seqno:
            entries.pop()
        return entries if entries and entries[-1] == head[:2] else []

    def _replay(self, state: ShardState, entries: Sequence[Entry | Head]) -> ShardState:
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

    def _decode(self, entry: Entry | Head) -> StateDiff:
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
        except (Determinate, Indeterminate) as error:
            if error.lasting or not patience.wait():
                raise


class Patience:
    """How often and how long a store that fails is asked again: ever more rarely, for the retry deadline."""

    def __init__(self, config: PersistConfig, clock: Clock) -> None:
        self._left = TimeLeft(clock, config.retry_deadline_s)
        self._backoff = _FIRST_BACKOFF_S

    def wait(self) -> bool:
        """Wait before the next attempt; False where there is to be none."""
        if self._backoff > self._left.after_attempt():
            return False
        self._left.wait(self._backoff)
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
    for machine, _ in steps:
        machine.check_open()
    if len(steps) == 1:
        with steps[0][0].lock:
            return _commit_locked(steps)
    with _locked(machine for machine, _ in steps):
        return _commit_locked(steps)


def _commit_locked(steps: Sequence[tuple[Machine, Command]]) -> list[object]:
    first = steps[0][0]
    consensus = first.location.consensus
    patience = Patience(first.config, first.clock)
    held = _lock_for(steps)
    unsettled: StorageError | None = None
    doubtful: dict[str, int] = {}
    fenced: HoldfastError | None = None
    refusals = _Refusals(first)
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
        puts = [_put(machine, diff) for machine, diff in diffs]
        changed = {put.key for put in puts}
        # What is left as it is must still be so when the others change.
        expect = [_unmoved(m.version) for m, _ in steps if m.shard_id not in changed]
        expect += expectation(held)
        try:
            with first.history.watching(first.clock):
                won = consensus.compare_and_set(puts, expect)
        except (Determinate, Indeterminate) as error:
            if isinstance(error, Indeterminate) or unsettled is None:
                unsettled = error
            doubtful = {put.key: put.seqno for put in puts} | doubtful
            if error.lasting or not patience.wait():
                raise unsettled from None
            fenced = _refresh_after(steps, held, unsettled)
            fresh = True
            continue
        if won:
            for (machine, state), put in zip(after, puts, strict=True):
                machine.publish(Version(state, digest_of(put.data)))
            _record_line(first)
            return results
        fenced = _refresh_after(steps, held, unsettled)
        refusals.check([machine.version for machine, _ in steps], fenced, unsettled)
        fresh = True


def _record_line(machine: Machine) -> None:
    """Record the line of the store; where that fails, the next commit tries again.

    The commit has landed. If it raised, its caller would delete the parts that the new version names.
    """
    try:
        machine.history.record_line(machine.location.consensus.line())
    except (HoldfastError, ValueError) as error:
        log.warning("the line of the consensus store could not be recorded: %s", error)


class _Refusals:
    """How long a store may refuse appends while nothing moves; any move begins a new time."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._versions: list[Version] = []
        self._patience: Patience | None = None

    def check(
        self, versions: list[Version], fenced: HoldfastError | None, unsettled: StorageError | None
    ) -> None:
        """Wait before the next attempt if nothing has moved; after the retry deadline raise `CorruptBlob`."""
        moved = [version.seqno for version in versions] != [version.seqno for version in self._versions]
        self._versions = versions
        if moved or fenced is not None:
            self._patience = None
            return
        machine = self._machine
        if self._patience is None:
            # A damaged index hides the head from the append, and shows it to reads.
            machine.location.consensus.check_integrity()
            self._patience = Patience(machine.config, machine.clock)
        if not self._patience.wait():
            raise unsettled or CorruptBlob(
                f"the log of {machine.shard_id}",
                f"an append after its head, version {machine.state.seqno}",
                "that the store refuses it although nothing has moved",
            )


def _put(machine: Machine, diff: StateDiff) -> LogPut:
    """The row of a diff, to be appended after exactly the row that the machine knows."""
    after = machine.version.digest if machine.state.seqno else None
    return LogPut(diff.shard_id, diff.seqno, encode_diff(diff), after)


def _unmoved(version: Version) -> Expect:
    """The condition that the newest row of a shard is still the one that is known."""
    digest = version.digest if version.seqno else None
    return Expect(version.state.shard_id, version.seqno, digest)


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


def _advance(machines: Sequence[Machine], more: Sequence[str]) -> dict[str, Head]:
    """Bring all caches to the heads of one read of Consensus, whose heads, also those of `more`, it returns.

    The caller has the locks of all machines, so that none moves meanwhile, neither before the read nor to
    versions after it.
    """
    shards = {machine.shard_id: machine for machine in machines}
    gone: tuple[object, ...] | None = None
    while True:
        for machine in machines:
            machine.check_open()
        known = {shard_id: machine.version for shard_id, machine in shards.items()}
        seqnos = {shard_id: version.seqno for shard_id, version in known.items()}
        first = machines[0]
        with first.history.watching(first.clock):
            heads = first.location.consensus.heads([*shards, *more], seqnos)
        try:
            for shard_id, machine in shards.items():
                machine.advance_to(heads.get(shard_id), known[shard_id])
        except RollupGone as error:
            if gone == error.args:
                # Nobody has moved on: what the head names is missing.
                raise CorruptBlob(error.shard_id, f"the rollup of version {error.seqno}", "nothing") from None
            gone = error.args
            continue
        return heads


def refresh_all(machines: Sequence[Machine]) -> list[ShardState]:
    """The newest versions of shards of one location, as `Machine.refresh` gives each, as of one moment."""
    if not machines:
        return []
    first = machines[0]

    def attempt() -> list[ShardState]:
        with _locked(machines):
            _advance(machines, [])
            return [machine.state for machine in machines]

    return retry(attempt, first.config, first.clock)


@contextmanager
def _locked(machines: Iterable[Machine]) -> Iterator[None]:
    """Hold the locks of machines, taken in the order of shard ids."""
    ordered = [machine for _, machine in sorted({m.shard_id: m for m in machines}.items())]
    with ExitStack() as locks:
        for machine in ordered:
            locks.enter_context(machine.lock)
        yield


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
