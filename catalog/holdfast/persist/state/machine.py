"""The state cache of a shard, and the compare-and-set loop that commits its next version.

A `Machine` caches the newest version of one shard that this client has read. All handles of a client share
it. `commit` runs commands on one or more shards. It commits all of them or none.

An attempt to commit works as follows. The loop runs the command on the cached version `n`, which is a pure
function (`holdfast.persist.state.transition`). Then it asks the store to append row `n + 1`. The store
appends the row only if the head of the log is row `n` with the digest that this client knows. The row of a
writer's command contains a random token, which also becomes part of the new version. The following
interleavings are possible:

1. *Nobody else commits.* The store appends row `n + 1`. The machine publishes the new version.
2. *Another client commits row `n + 1` first.* The store refuses the row, and nothing is written. The loop
   reads the newest version and runs the command on it. This result is right: it is the one that a call
   returns which starts after the other commit.
3. *The cache is behind, and the command succeeds on it.* The row is too low for the log, so the store refuses
   it. This is case 2.
4. *The cache is behind, and the command is rejected on it, or has nothing to do.* The store is not asked, so
   nothing has checked that the cache is current. The loop reads the newest version first and runs the command
   again. A rejection is final only on a version that was the newest at some time after the call began.
5. *Two threads of this client commit.* The lock of the machine lets one in. The second thread runs its
   command on the version that the first one published. A client has at most one attempt in flight per shard,
   so it never races itself. A commit on several shards takes their locks in the order of the shard ids, so
   two commits can't deadlock.
6. *The outcome is unknown, and the attempt landed.* The loop reads the newest version, and row `n + 1` has
   the digest of the attempt. The call succeeds without a second attempt. It does not matter who has committed
   since. The writer's entry would not show this: it has the token of the writer's last append only, and
   another client may have appended as the same writer (`PersistClient.writer_of`, or a prepared append that
   another client commits).
7. *The outcome is unknown, and another client took row `n + 1`.* The row has another digest. A row number is
   taken once, so the attempt can never land. This is case 2.
8. *The outcome is unknown, and row `n + 1` is still free.* The attempt may still land later. The loop tries
   again with the same token, and aims at row `n + 1` too. The store gives that row to one of the two
   attempts. If the late attempt gets it, the loop is refused, reads the newest version, and finds the digest
   of the late attempt (case 6). Otherwise the late attempt is refused. The effect happens once in both cases.
   If the store fails for good meanwhile, the call raises `Indeterminate`, whatever the later error was: the
   late attempt may still land, so its parts must stay.
9. *The outcome is unknown, and nothing shows row `n + 1`.* The row was cut, and its digest was not kept. An
   append that is still accepted did not land, because it would have moved the upper. If the command is a
   write, or is rejected, `commit` raises `Indeterminate`. A single command on a handle is an exception, here
   and in case 6: it recognizes its own effect. Run again, it returns `NoOp` with the same result, and if it
   is rejected, the rejection holds whether the attempt landed or not.
10. *Another client takes the write lock.* Each attempt of a client that holds the lock carries the condition
    that the lock is still its own. The store checks it at the commit point, so no attempt can land after the
    lock has moved. The loop then reads the shards and the lock at one point in time. If an attempt of unknown
    outcome landed before the lock moved, that read shows its row, and the call succeeds. Otherwise it raises
    `Fenced`.
11. *A commit on several shards leaves some of them as they are.* The attempt carries the condition that these
    shards have not moved. Otherwise the commit could rely on a version that is no longer the newest.
12. *The log goes back in time,* for example because a lagging standby was promoted. The store refuses the
    row, because the digest of its head differs. The next read compares the digest of the newest row that this
    client has verified with the store's row of that number. If they differ, the client ends with
    `LogRegressed` (`holdfast.persist.state.divergence`).
13. *The store refuses the row, but nothing has moved.* The index of the store may be damaged: it can hide the
    head from the append and show it to reads. The loop checks the integrity of the store, retries until the
    retry deadline, and then raises `CorruptBlob`.

Two rules apply to reads:

- A version is replayed only from rows that are linked to the row that this client has verified. One statement
  of the store links them, or pages that overlap in one row do.
- To read several shards, `refresh_all` reads all of their heads at one point in time, and brings no shard
  beyond its head. So the versions that it returns belong to the same moment.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from holdfast.errors import (
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
from holdfast.persist.clock import Clock, TimeLeft
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import EPOCH_BITS
from holdfast.persist.looks import earliest, look_again, moment
from holdfast.persist.rows.part import verify
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.codec import decode_diff, decode_state, encode_diff
from holdfast.persist.state.command import (
    AppendRuns,
    AppendStaged,
    Command,
    Commit,
    NoOp,
    Reject,
    Seal,
    Stage,
    Write,
)
from holdfast.persist.state.cuts import known_digest
from holdfast.persist.state.divergence import ForkGuard, KnownRow, recorded_rollups
from holdfast.persist.state.invariants import check_state, check_step
from holdfast.persist.state.lock import LOCK_KEY, Fence, LockRow, no_lock
from holdfast.persist.state.state import Change, Part, Rollup, ShardState, StateDiff, apply, next_version
from holdfast.persist.state.transition import transition
from holdfast.persist.stores import Digest, Entry, Expect, Head, Location, digest_of
from holdfast.persist.stores import Put as LogPut
from holdfast.persist.stores.watch import Watch, Watches

log = logging.getLogger(__name__)

APPLIER_VERSION: Final = version("holdfast")
_T = TypeVar("_T")
NOTHING_LOADED: Final[Mapping[str, ShardState]] = MappingProxyType({})
_SCAN_LIMIT: Final = 1024
_FIRST_KEPT_S: Final = 1.0
_LAST_KEPT_S: Final = 60.0
_FIRST_BACKOFF_S: Final = 0.005
_LAST_BACKOFF_S: Final = 0.5


class Version(NamedTuple):
    """A version of a shard together with the digest of its row; None if the shard has no version yet."""

    state: ShardState
    digest: Digest | None = None

    @property
    def seqno(self) -> int:
        """The number of the version; 0 if the shard has no version yet."""
        return self.state.seqno


_Attempt = list[tuple["Machine", int, Digest]]
"""The rows that an attempt to commit aimed at: the shard, and the number and digest of the row."""

_Next = tuple["Machine", StateDiff, ShardState]
"""The next version of a shard, and the diff that makes it."""


class RollupGone(Exception):
    """A rollup that the head names, or rows after it, were deleted during the read: there is a newer head.

    `missing` is the key of the rollup, or the name of the first row.
    """

    def __init__(self, shard_id: str, seqno: int, missing: str) -> None:
        super().__init__(shard_id, seqno, missing)
        self.shard_id, self.seqno, self.missing = shard_id, seqno, missing


class Machine:
    """The cached newest version of a shard, and the watches that wait for the next one."""

    def __init__(
        self,
        shard_id: str,
        location: Location,
        config: PersistConfig,
        clock: Clock,
        fence: Fence | None = None,
        history: ForkGuard | None = None,
        watches: Watches | None = None,
    ) -> None:
        self.shard_id = shard_id
        self.location = location
        self.config = config
        self.clock = clock
        self.fence = fence or Fence()
        self.history = history or ForkGuard(location, hostname=config.hostname, read_only=True)
        self.owner = OwnerProcess()
        self.lock = threading.RLock()
        self.watches = watches or Watches()
        # `tell` publishes new versions to other clients. `is_told` is whether another client publishes to us.
        self.tell: Callable[[str, int], None] | None = None
        self.is_told: Callable[[], bool] = lambda: False
        self._store_hints = False
        # `version` is the newest version that this client knows, and `state` is its state.
        self.version = Version(ShardState(shard_id))
        self.state = self.version.state
        # The moment (`looks`) just before the newest read that the cached version includes.
        self.looked = 0
        self.is_open = True
        self.kept_because = ""
        self._kept_until_s = self._kept_wait_s = 0.0
        # `settled`: writers of this process without an append in flight or in doubt. `closed`: closed
        # writers.
        self.settled: set[str] = set()
        self.closed: set[str] = set()

    def store_ms(self) -> int:
        """Return the store's time in ms since the epoch, or this host's time if the store has no clock."""
        told = retry(self.location.blob.clock_ms, self.config, self.clock)
        return self.clock.wall_ms() if told is None else told

    def check_open(self) -> None:
        """Raise `BadInput` if the client is closed, or `LogRegressed` if it met another history.

        In a forked child it raises `UsedAfterFork`.
        """
        self.owner.check("this client")
        if not self.is_open:
            raise closed_client(self.location)
        self.history.check()

    def refresh(self) -> ShardState:
        """Read and return the newest version. It includes every commit that ended before the call.

        Raises:
            LogRegressed: the log has another history than the one that this client has read.
            HandleExpired: the log was recovered, or too much of it was deleted to compare its history.
            StorageError: the store failed for the whole retry deadline.
            BadInput: the client is closed.
        """
        look_again()
        return self.look()

    def look(self) -> ShardState:
        """Like `refresh`. In a block `one_look`, it includes the commits that ended before the block.

        What the version lacks may be in versions of other shards that were read before. So a caller that
        would fail for something that is missing must `refresh` first.
        """
        wanted = earliest()

        def attempt() -> ShardState:
            self.check_open()
            if self.looked >= wanted:
                return self.state
            known, began = self.version, moment()
            with self.history.watching(self.clock):
                heads = self.location.consensus.heads([self.shard_id], {self.shard_id: known.seqno})
            with suppress(RollupGone):
                if self.advance_to(heads.get(self.shard_id), known):
                    self.looked = max(self.looked, began)
                    return self.state
            # Another thread moved the cache between the two reads, or the head is old. Read it again under
            # the lock.
            look_again()
            with self.lock:
                _advance([self], [])
                return self.state

        return retry(attempt, self.config, self.clock)

    def advance_to(
        self, head: Head | None, known: "Version", loaded: Mapping[str, ShardState] = NOTHING_LOADED
    ) -> bool:
        """Bring the cache to `head`, the newest row of the log. Return whether it is at `head` or beyond.

        `known` is the version that the cache had when the head was read. If the cache has moved since then
        and is still behind the head, nothing links the two. The method returns False, and the caller reads
        the head again. `loaded` are the states in rollups that were read already, by key.

        Raises:
            LogRegressed, HandleExpired: as in `refresh`.
            RollupGone: the log was cut during the read. The caller reads the newer head.
        """
        self._check_history(head, known)
        with self.lock:
            if head is not None and head.seqno > self.state.seqno:
                if self.version is not known:
                    return False
                state = self._catch_up(head, known, loaded)
                if self.config.debug_validate:
                    check_step(self.state, state)
                self.publish(Version(state, digest_of(head.data)))
            return True

    def _check_history(self, head: Head | None, known: "Version") -> None:
        """Raise an error unless the log continues from the row that this client knows."""
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
                f"shard {self.shard_id} was recovered from its rollups after this client read it",
                hint="open the location again; the recovery may have lost versions that this client read",
            )
        found = digest_of(head.data) if seqno == known.seqno else head.known
        if found is None:
            found = known_digest(self.location, self.shard_id, known.seqno)
        if found is None:
            if self._ended_with(head):
                return
            raise HandleExpired(
                f"the log of {self.shard_id} no longer has version {known.seqno}, the last one this client"
                " read, so the client can't check that the log continues from it",
                hint="open a new client; a client that reads the shard regularly does not meet this error",
            )
        if found != known.digest:
            raise self._regressed(known, found, seqno)

    def _ended_with(self, head: Head) -> bool:
        """Whether the shard is finalized. Its log then has one row, and no other history is possible."""
        return self._open_from(head, self._decode(head).latest_rollup).finalized

    def _regressed(self, known: "Version", found: Digest | None, head: int) -> LogRegressed:
        assert known.digest is not None
        row = KnownRow(self.shard_id, known.seqno, known.digest, recorded_rollups(known.state))
        return self.history.end(row, found, head, self.clock)

    def keep_everything(self, why: str) -> None:
        """Record why nothing of the shard may be deleted ("" if it may), and log a reason that is new."""
        if why and why != self.kept_because:
            log.warning("nothing of %s is deleted: %s; see 'holdfast persist recover'", self.shard_id, why)
        self._kept_wait_s = min(max(2 * self._kept_wait_s, _FIRST_KEPT_S), _LAST_KEPT_S) if why else 0.0
        self._kept_until_s = self.clock.monotonic() + self._kept_wait_s
        self.kept_because = why

    def keeps_everything(self) -> bool:
        """Whether a recent check found that nothing of the shard may be deleted."""
        return bool(self.kept_because) and self.clock.monotonic() < self._kept_until_s

    def look_again(self) -> None:
        """Make the next garbage collection check again whether blobs may be deleted."""
        self._kept_until_s = 0.0

    def row_digest(self, seqno: int) -> Digest | None:
        """Return the digest of a row of the log; None if the row was cut and its digest was not kept."""
        newest = self.version
        if seqno == newest.seqno:
            return newest.digest
        return known_digest(self.location, self.shard_id, seqno)

    def schema_of(self, part: Part) -> Schema:
        """The schema that a part was written under. The cache always includes the version that added it."""
        return self.state.schemas[part.schema_id]

    def publish(self, version: "Version") -> None:
        """Make a durable version the cached one, and wake everyone who waits for it."""
        self.version = version
        self.state = version.state
        self.wake()
        if self.tell is not None:
            self.tell(self.shard_id, version.seqno)

    def watch(self) -> Watch:
        """Return a watch that rings for versions from the store, from other clients and from this process."""
        watch = self.location.consensus.watch(self.shard_id)
        self._store_hints = watch is not None
        return self.watches.add(self.shard_id, watch)

    @property
    def pace_s(self) -> float:
        """The number of seconds after which a waiter without a hint reads the store anyway."""
        hinted = self._store_hints or self.is_told()
        return self.config.hinted_poll_interval_s if hinted else self.config.poll_interval_s

    def wake(self) -> None:
        """Wake everyone who waits for a version of this shard."""
        self.watches.ring((self.shard_id,))

    def close(self) -> None:
        """Refuse further work, and wake everyone who waits."""
        self.is_open = False
        self.wake()

    def _catch_up(self, head: Head, known: "Version", loaded: Mapping[str, ShardState]) -> ShardState:
        """Return the version of `head`. One statement of the store has linked `head` to `known`."""
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
        return self._open_from(head, rollup, loaded)

    def rollup_for(self, head: Head) -> Rollup | None:
        """The rollup that `head` names, if this client has no version of the shard yet."""
        return None if self.version.seqno else self._decode(head).latest_rollup

    def _open_from(
        self, head: Head, rollup: Rollup | None, rollups: Mapping[str, ShardState] = NOTHING_LOADED
    ) -> ShardState:
        """Load the rollup and replay the rows up to `head`. Raises `RollupGone` if they were deleted."""
        state = ShardState(self.shard_id)
        if rollup is not None:
            loaded = rollups.get(rollup.blob_key) or load_rollup(self.location, rollup)
            if loaded is None:
                raise RollupGone(self.shard_id, head.seqno, rollup.blob_key)
            if (loaded.shard_id, loaded.seqno) != (self.shard_id, rollup.seqno):
                raise CorruptBlob(
                    rollup.blob_key,
                    f"version {rollup.seqno} of {self.shard_id}",
                    f"version {loaded.seqno} of {loaded.shard_id}",
                )
            state = loaded
        entries = [entry for entry in self._scan(max(1, state.seqno), head) if entry.seqno > state.seqno]
        if not entries or entries[0].seqno != state.seqno + 1:
            raise RollupGone(self.shard_id, head.seqno, f"{self.shard_id} log {state.seqno + 1}")
        state = self._replay(state, entries)
        try:
            check_state(state)
        except AssertionError as error:
            raise CorruptBlob(f"the log of {self.shard_id}", "a valid version", str(error)) from None
        return state

    def _scan(self, from_seqno: int, head: Head) -> list[Entry]:
        """Return the rows from `from_seqno` to `head`, all of one history; [] if that is impossible.

        Each page begins with the last row of the page before, and the last row is the row of the head.
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
                after = apply(state, diff)
            except (ValueError, LookupError, StopIteration) as error:
                key = f"{self.shard_id} log {entry.seqno}"
                raise CorruptBlob(key, "changes that fit the version before", repr(error)) from None
            if self.config.debug_validate:
                check_step(state, after)
            state = after
        return state

    def _decode(self, entry: Entry | Head) -> StateDiff:
        return decode_diff(entry.data, f"{self.shard_id} log {entry.seqno}")


def closed_client(location: Location) -> BadInput:
    """Return the error for the use of a client after its `close`."""
    return BadInput(
        f"this client of {location.blob.description} is closed", hint="open another client of the location"
    )


def load_rollup(location: Location, rollup: Rollup) -> ShardState | None:
    """Return the state in a rollup, after checking its checksum; None if the blob is gone."""

    def read() -> bytes | None:
        data = location.blob.get_start(rollup.blob_key, rollup.size_bytes + 1)
        if data is not None:
            verify(data, size=rollup.size_bytes, crc32c=rollup.crc32c, key=rollup.blob_key)
        return data

    data = read_twice(location, rollup.blob_key, read)
    return None if data is None else decode_state(data, rollup.blob_key)


def read_twice(location: Location, key: str, read: Callable[[], _T]) -> _T:
    """Run `read`, which checks the blob `key`. On `CorruptBlob`, drop cached copies and run it once more.

    The second error names the blob store.
    """
    try:
        return read()
    except CorruptBlob:
        location.blob.forget(key)
    try:
        return read()
    except CorruptBlob as error:
        raise error.in_store(location.blob.description, location.arguments) from None


def retry(attempt: Callable[[], _T], config: PersistConfig, clock: Clock) -> _T:
    """Run `attempt` until it raises no `Determinate` or `Indeterminate` error, or the deadline is over."""
    patience = Patience(config, clock)
    while True:
        try:
            return attempt()
        except (Determinate, Indeterminate) as error:
            if error.lasting or not patience.wait():
                raise


class Patience:
    """Backoff for retries of a failing store: waits grow until the retry deadline is over."""

    def __init__(self, config: PersistConfig, clock: Clock) -> None:
        self._left = TimeLeft(clock, config.retry_deadline_s)
        self._backoff = _FIRST_BACKOFF_S

    def wait(self) -> bool:
        """Wait before the next attempt. Return False at once if no time is left for another one."""
        if self._backoff > self._left.after_attempt():
            return False
        self._left.wait(self._backoff)
        self._backoff = min(2 * self._backoff, _LAST_BACKOFF_S)
        return True


def commit(steps: Sequence[tuple[Machine, Command]], *, retries: bool = True) -> list[object]:
    """Run commands on shards, all or nothing. Return their results in the order of `steps`.

    Without `retries`, the first failed append of the store is final.

    Each shard takes at most one append or `Seal`, because a batch is named after the version that adds
    it. If an attempt of unknown outcome turns out to have landed, all results are None.

    Raises:
        Indeterminate: the commit may have happened. The retry deadline passed before this became known.
        Fenced: the client has lost the write lock that it took; nothing happened.
        HoldfastError: a command was rejected; nothing happened.
    """
    for machine, _ in steps:
        machine.check_open()
    look_again()
    if len(steps) == 1:
        with steps[0][0].lock:
            return _commit_locked(steps, retries=retries)
    with _locked(machine for machine, _ in steps):
        return _commit_locked(steps, retries=retries)


def _commit_locked(steps: Sequence[tuple[Machine, Command]], *, retries: bool) -> list[object]:
    first = steps[0][0]
    consensus = first.location.consensus
    held = _lock_for(steps)
    under_lock = () if held is None else (held.expectation,)
    patience = Patience(first.config, first.clock)
    unsettled: StorageError | None = None
    tried: list[_Attempt] = []
    fenced: HoldfastError | None = None
    refusals = _Refusals(first)
    fresh = not all(machine.state.exists for machine, _ in steps)
    if fresh:
        fenced = _refresh_all(steps, held)
    while True:
        results, new, rejection = _run(steps)
        if (rejection is not None or not new) and not fresh:
            fenced = _refresh_all(steps, held)
            fresh = True
            continue
        if fenced is not None:
            rejection = Reject(fenced)
        if isinstance(unsettled, Indeterminate) and _landed(steps, tried, rejection, unsettled):
            return [None] * len(steps)
        if rejection is not None:
            raise rejection.error from unsettled
        if not new:
            return results
        # The store appends a row only after exactly the row that the machine knows.
        puts = [
            LogPut(diff.shard_id, diff.seqno, encode_diff(diff), machine.version.digest)
            for machine, diff, _ in new
        ]
        changed = {put.key for put in puts}
        # The commit relies on the shards that it does not change, so they must not have moved.
        expect = [_unmoved(m.version) for m, _ in steps if m.shard_id not in changed]
        expect += under_lock
        began = moment()
        try:
            with first.history.watching(first.clock):
                won = consensus.compare_and_set(puts, expect)
        except (Determinate, Indeterminate) as error:
            if isinstance(error, Indeterminate) or unsettled is None:
                unsettled = error
            tried.append(
                [(m, put.seqno, digest_of(put.data)) for (m, _, _), put in zip(new, puts, strict=True)]
            )
            if error.lasting or not retries or not patience.wait():
                raise unsettled from None
            fenced = _refresh_after(steps, held, unsettled)
            fresh = True
            continue
        except HoldfastError:
            with _unless_unknown(unsettled):
                raise
        if won:
            for (machine, _, state), put in zip(new, puts, strict=True):
                machine.publish(Version(state, digest_of(put.data)))
            for machine, _ in steps:
                # The store has compared the versions of all shards with the known ones.
                machine.looked = max(machine.looked, began)
            _record_line(first)
            return results
        fenced = _refresh_after(steps, held, unsettled)
        with _unless_unknown(unsettled):
            refusals.check([machine.version for machine, _ in steps], fenced, unsettled)
        fresh = True


def _record_line(machine: Machine) -> None:
    """Record the line of the store. On failure, log a warning; the next commit tries again.

    The commit has landed already. An error would make the caller delete parts that the new version names.
    """
    try:
        machine.history.record_line(machine.location.consensus.line())
    except (HoldfastError, ValueError) as error:
        log.warning("the history line of the consensus store could not be recorded: %s", error)


class _Refusals:
    """The time for which a store refuses appends although nothing moves. Any move starts it again.

    A failover is a move: the row that refused the append may be one that the promoted server never had.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._seen: tuple[str | None, list[int]] | None = None
        self._patience: Patience | None = None

    def check(
        self, versions: list[Version], fenced: HoldfastError | None, unsettled: StorageError | None
    ) -> None:
        """If nothing has moved, wait before the next attempt. `CorruptBlob` after the retry deadline."""
        machine = self._machine
        seen = (machine.location.consensus.line(), [version.seqno for version in versions])
        moved = seen != self._seen
        self._seen = seen
        if moved or fenced is not None:
            self._patience = None
            return
        if self._patience is None:
            # A damaged index can hide the head from the append and show it to reads.
            machine.location.consensus.check_integrity()
            self._patience = Patience(machine.config, machine.clock)
        if not self._patience.wait():
            raise unsettled or CorruptBlob(
                f"the log of {machine.shard_id}",
                f"an append after its head, version {machine.state.seqno}, to succeed",
                "a refused append, although no other process wrote",
            )


def _unmoved(version: Version) -> Expect:
    """Return the condition that the newest row of a shard is still the known one."""
    return Expect(version.state.shard_id, version.seqno, version.digest)


def _lock_for(steps: Sequence[tuple[Machine, Command]]) -> LockRow | None:
    """Return the lock row that a commit must find; None if its client does not use the lock.

    Raises `Fenced` if the client has lost the lock, and `NotWritable` if a command needs a lock.
    """
    held = steps[0][0].fence.held
    for machine, command in steps:
        if held is None and isinstance(command, Write | Seal):
            raise no_lock(machine.shard_id)
    return held


def _landed(
    steps: Sequence[tuple[Machine, Command]],
    tried: list[_Attempt],
    rejection: Reject | None,
    unsettled: Indeterminate,
) -> bool:
    """Whether an attempt landed, and nothing is left to do. The attempts that lost for good are removed.

    The caches of all shards are at one moment after the attempts. Raises `unsettled` if nothing shows whether
    an attempt landed, and the steps were rejected, or may write the same rows twice.
    """
    if len(steps) == 1 and not isinstance(steps[0][1], AppendRuns | AppendStaged | Stage | Write | Seal):
        # A single command on a handle recognizes its own effect, and its rejection is right in any case.
        return False
    is_unknown = False
    for attempt in list(tried):
        machine = attempt[0][0]
        try:
            landed = retry(partial(_is_in_log, attempt), machine.config, machine.clock)
        except HoldfastError as error:
            raise unsettled from error
        if landed:
            return True
        if landed is None:
            is_unknown = True
        elif not _is_free(attempt):
            tried.remove(attempt)
    # An append that has landed is not accepted again. A write may be, because it moves no upper.
    matters = rejection is not None or any(isinstance(command, Stage | Write) for _, command in steps)
    if is_unknown and matters:
        raise unsettled
    return False


def _is_in_log(attempt: _Attempt) -> bool | None:
    """Whether the rows of an attempt are in the log; None if nothing shows it.

    All of its rows land or none does, so one row is enough.
    """
    if _is_free(attempt):
        return False
    found = ((machine.row_digest(seqno), digest) for machine, seqno, digest in attempt)
    return next((row == digest for row, digest in found if row is not None), None)


def _is_free(attempt: _Attempt) -> bool:
    """Whether the log has not reached one of the rows of an attempt. Then the attempt has not landed yet."""
    return any(machine.state.seqno < seqno for machine, seqno, _ in attempt)


def _run(
    steps: Sequence[tuple[Machine, Command]],
) -> tuple[list[object], list[_Next], Reject | None]:
    """Run the commands in the order of `steps`.

    Return their results, the next version of each shard that changes, and a rejection.
    """
    results: list[object] = []
    new: dict[str, _Next] = {}
    for machine, command in steps:
        state = machine.state
        before: tuple[Change, ...] = ()
        if machine.shard_id in new:
            _, diff, after = new[machine.shard_id]
            state, before = replace(after, seqno=state.seqno), diff.changes
        match transition(state, command):
            case Commit(changes, result):
                results.append(result)
                diff, after = next_version(
                    machine.state,
                    (*before, *changes),
                    applier_version=APPLIER_VERSION,
                    wall_ms=machine.clock.wall_ms(),
                    hostname=machine.config.hostname,
                )
                new[machine.shard_id] = (machine, diff, after)
            case NoOp(result):
                results.append(result)
            case Reject() as rejection:
                return [], [], rejection
    if steps[0][0].config.debug_validate:
        for machine, _, after in new.values():
            check_step(machine.state, after)
    return results, list(new.values()), None


def _refresh_all(steps: Sequence[tuple[Machine, Command]], held: LockRow | None) -> HoldfastError | None:
    """Read the newest versions into all caches. Return why a commit under `held` is fenced, or None."""
    first = steps[0][0]

    def attempt() -> HoldfastError | None:
        # One read for shards and lock: it shows what landed under the lock before the lock moved.
        look_again()
        heads = _advance([machine for machine, _ in steps], [] if held is None else [LOCK_KEY])
        return None if held is None else first.fence.judge(held, heads.get(LOCK_KEY))

    return retry(attempt, first.config, first.clock)


def _advance(machines: Sequence[Machine], more: Sequence[str]) -> dict[str, Head]:
    """Bring all caches to the heads of one read of Consensus. Return the heads, including those of `more`.

    The caller holds the locks of all machines, so no other thread moves their caches during the read.
    """
    shards = {machine.shard_id: machine for machine in machines}
    gone: tuple[object, ...] | None = None
    while True:
        for machine in machines:
            machine.check_open()
        known = {shard_id: machine.version for shard_id, machine in shards.items()}
        seqnos = {shard_id: version.seqno for shard_id, version in known.items()}
        first = machines[0]
        began = moment()
        with first.history.watching(first.clock):
            heads = first.location.consensus.heads([*shards, *more], seqnos)
        try:
            loaded = _first_rollups(machines, heads)
            for shard_id, machine in shards.items():
                machine.advance_to(heads.get(shard_id), known[shard_id], loaded)
        except RollupGone as error:
            if gone == error.args:
                # The head is unchanged after a second read, so nobody deleted what it needs on purpose.
                why = f"version {error.seqno} of {error.shard_id}, the newest one, needs it"
                raise CorruptBlob.missing(error.missing, why) from None
            gone = error.args
            look_again()
            continue
        for machine in machines:
            machine.looked = max(machine.looked, began)
        return heads


def _first_rollups(machines: Sequence[Machine], heads: Mapping[str, Head]) -> Mapping[str, ShardState]:
    """Read at once the rollups of shards that are new to this client. Those that are gone are left out."""
    found = [
        rollup
        for machine in machines
        if machine.shard_id in heads and (rollup := machine.rollup_for(heads[machine.shard_id])) is not None
    ]
    if len(found) < 2:
        return NOTHING_LOADED
    location = machines[0].location
    loads = [partial(load_rollup, location, rollup) for rollup in found]
    states: Sequence[ShardState | None] = location.blob.together(loads)
    return {rollup.blob_key: state for rollup, state in zip(found, states, strict=True) if state is not None}


def look_at(machines: Sequence[Machine]) -> None:
    """Like `Machine.look` of each, with one read for all of those that need one."""
    wanted = earliest()
    refresh_all([machine for machine in machines if machine.looked < wanted])


def refresh_all(machines: Sequence[Machine]) -> list[ShardState]:
    """Return the newest versions of shards of one location, as of one moment; raises as `Machine.look`.

    A version of one shard alone is like that of `Machine.look`.
    """
    if not machines:
        return []
    if len(machines) == 1:
        return [machines[0].look()]
    first = machines[0]

    def attempt() -> list[ShardState]:
        with _locked(machines):
            _advance(machines, [])
            return [machine.state for machine in machines]

    return retry(attempt, first.config, first.clock)


@contextmanager
def _locked(machines: Iterable[Machine]) -> Iterator[None]:
    """Hold the locks of the machines, taken in the order of shard ids."""
    ordered = [machine for _, machine in sorted({m.shard_id: m for m in machines}.items())]
    with ExitStack() as locks:
        for machine in ordered:
            locks.enter_context(machine.lock)
        yield


def _refresh_after(
    steps: Sequence[tuple[Machine, Command]], held: LockRow | None, unsettled: StorageError | None
) -> HoldfastError | None:
    with _unless_unknown(unsettled):
        return _refresh_all(steps, held)


@contextmanager
def _unless_unknown(unsettled: StorageError | None) -> Iterator[None]:
    """If the block fails while the outcome of an attempt is unknown, raise the attempt's error.

    Nothing shows then whether the attempt landed. With another error, the caller would delete the parts of an
    attempt that may still land.
    """
    try:
        yield
    except HoldfastError as error:
        if isinstance(unsettled, Indeterminate):
            raise unsettled from error
        raise
