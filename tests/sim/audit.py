"""A witness that sees every effect on the stores, and checks that nothing forbidden happens.

It replays each committed version itself, so it is never behind and never fails.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from holdfast.persist.stores import Blob, Entry, Put
from sim.reference import (
    LOCK_KEY,
    LockRow,
    ShardState,
    StateDiff,
    WriteMode,
    apply,
    check_step,
    decode_diff,
    decode_lock,
    part_keys,
)


class Violation(AssertionError):
    """A promise of persist was broken."""


class Auditor:
    """Follows all shards of one location."""

    def __init__(self, blob: Blob, grace_ms: int, tell: Callable[[StateDiff], None]) -> None:
        self._blob = blob
        self._tell = tell
        self._grace_ms = grace_ms
        self._states: dict[str, ShardState] = {}
        self._live: dict[str, frozenset[str]] = {}
        # What the state named at each version, as long as a rollup may come of it; and in the newest rollup.
        self._named: dict[str, dict[int, frozenset[str]]] = {}
        self._restored: dict[str, frozenset[str]] = {}
        self._bytes: dict[str, bytes] = {}
        # Each version that changed the token of a critical hold, with the token.
        self._tokens: dict[tuple[str, str], list[tuple[int, bytes]]] = {}
        self._takeovers: set[tuple[str, str, bytes, bytes]] = set()
        self._known_floors: dict[str, dict[str, int]] = {}
        self._lock: LockRow | None = None
        self.met: Counter[str] = Counter()

    def state(self, shard: str) -> ShardState:
        """The newest version of a shard."""
        return self._states.get(shard) or ShardState(shard)

    def may_move(self, shard: str, hold: str, since: int) -> None:
        """Note that somebody asks to move a critical hold: since may go as far as that, not farther."""
        floors = self._known_floors.setdefault(shard, {})
        floors[hold] = max(floors.get(hold, 0), since)

    def floor(self, shard: str) -> int | None:
        """The greatest since that the critical holds allow; None where there are none."""
        return min(self._known_floors.get(shard, {}).values(), default=None)

    def may_take_over(self, shard: str, hold: str, expected: bytes, token: bytes) -> None:
        """Note that somebody asks to put a token in the place of another one."""
        self._takeovers.add((shard, hold, expected, token))

    def check_token(self, shard: str, hold: str, token: bytes, seqno: int) -> None:
        """Refuse that somebody moved a hold since version `seqno` whose token was not stored at any time."""
        if token not in self._stored(shard, hold, seqno):
            raise Violation(f"the hold {hold} of {shard} was moved with the token {token!r}, which is fenced")

    def check_fenced(self, shard: str, hold: str, token: bytes, seqno: int) -> None:
        """Refuse that somebody was fenced since version `seqno` whose token was stored all the time."""
        if self._stored(shard, hold, seqno) == {token}:
            raise Violation(f"the hold {hold} of {shard} has the token {token!r}, and it was fenced")

    def _stored(self, shard: str, hold: str, seqno: int) -> set[bytes]:
        tokens = self._tokens.get((shard, hold), [])
        return {token for at, token in tokens if at > seqno} | {
            token for _, token in [each for each in tokens if each[0] <= seqno][-1:]
        }

    def committed(self, puts: Sequence[Put], who: str) -> None:
        """Check the versions that a compare-and-set of somebody has just made."""
        for put in puts:
            if put.key == LOCK_KEY:
                self._locked(put)
            else:
                self._committed(put, who)

    def _locked(self, put: Put) -> None:
        last = self._lock.seqno if self._lock else 0
        self._lock = decode_lock(Entry(put.seqno, put.data))
        if put.seqno != last + 1:
            raise Violation(f"row {put.seqno} of the lock was written after row {last}")

    def _check_exclusive(self, old: ShardState, new: ShardState, who: str) -> None:
        """Only who has the lock may write or seal a shard of mode WRITE_SEAL."""
        if new.write_mode is not WriteMode.WRITE_SEAL:
            return
        added = [batch for id_, batch in new.pending.items() if id_ not in old.pending]
        self.met["pending merges"] += sum(batch.level > 0 for batch in added)
        self.met["seals that cut"] += any(
            batch.lower != old.pending[id_].lower for id_, batch in new.pending.items() if id_ in old.pending
        )
        if new.upper == old.upper and not any(batch.level == 0 for batch in added):
            return
        if self._lock is None or self._lock.released or self._lock.purpose != who:
            raise Violation(f"{new.shard_id} version {new.seqno} is by {who}, the lock is {self._lock}")

    def _committed(self, put: Put, who: str) -> None:
        old = self.state(put.key)
        if put.seqno != old.seqno + 1:
            raise Violation(f"{put.key}: version {put.seqno} was written after version {old.seqno}")
        diff = decode_diff(put.data, put.key)
        self._tell(diff)
        new = apply(old, diff)
        check_step(old, new)
        self._check_exclusive(old, new, who)
        live = frozenset(part_keys(new)) | {rollup.blob_key for rollup in new.rollups.values()}
        found = {key: self._blob.get(key) for key in live}
        lost = [key for key, data in found.items() if data is None]
        if lost:
            raise Violation(f"{put.key} version {new.seqno} names blobs that are gone: {lost}")
        unlisted = self._live.get(put.key, frozenset()) - live - set(new.garbage)
        if unlisted:
            raise Violation(f"{put.key} version {new.seqno} forgets blobs: {sorted(unlisted)}")
        floor = self.floor(put.key)
        if floor is not None and new.since > max(floor, old.since):
            raise Violation(f"{put.key} version {new.seqno}: since {new.since} passed a hold at {floor}")
        for hold in new.critical_readers.values():
            tokens = self._tokens.setdefault((put.key, hold.id), [])
            if tokens and tokens[-1][1] != hold.opaque:
                change = (put.key, hold.id, tokens[-1][1], hold.opaque)
                if change not in self._takeovers:
                    raise Violation(f"{put.key} version {new.seqno}: nobody asked for the token of {hold}")
            if not tokens or tokens[-1][1] != hold.opaque:
                tokens.append((new.seqno, hold.opaque))
        self._states[put.key], self._live[put.key] = new, live
        named = self._named.setdefault(put.key, {})
        named[new.seqno] = frozenset(part_keys(new))
        if new.latest_rollup is not None and new.latest_rollup.seqno in named:
            newest = new.latest_rollup.seqno
            self._restored[put.key] = named[newest]
            self._named[put.key] = {seqno: keys for seqno, keys in named.items() if seqno >= newest}
        self._bytes |= {key: data for key, data in found.items() if data is not None}

    def power_lost(self) -> None:
        """Check that all that is named by a version that is committed has outlived it."""
        for shard, live in self._live.items():
            for key in sorted(live):
                data = self._blob.get(key)
                if data != self._bytes[key]:
                    left = "gone" if data is None else f"{len(data)} of {len(self._bytes[key])} bytes"
                    raise Violation(f"{key}, which {shard} names, is {left} after power was lost")

    def deleted(self, key: str) -> None:
        """Check that nobody can need the blob that goes now."""
        shard = key.split("/")[0]
        state = self.state(shard)
        if key in self._live.get(shard, ()):
            raise Violation(f"{key} is deleted and in the live state")
        if key in self._restored.get(shard, ()) and not state.finalized:
            raise Violation(f"{key} is deleted and named by the newest rollup")
        garbage = state.garbage.get(key)
        if garbage is None or "/w" not in key:
            return
        if garbage.seqno > state.seqno_hold:
            raise Violation(f"{key} is deleted and held by a reader of version {state.seqno_hold}")
        waited_ms = self._blob.clock_ms() - garbage.wall_ms
        if waited_ms < self._grace_ms:
            raise Violation(f"{key} is deleted after {waited_ms} ms, its grace is {self._grace_ms}")

    def truncated(self, shard: str, seqno: int) -> None:
        """Check that the log that is left begins not after the newest rollup."""
        if shard == LOCK_KEY:
            return
        rollup = self.state(shard).latest_rollup
        if seqno > (rollup.seqno if rollup else 0) + 1:
            raise Violation(f"the log of {shard} is cut below {seqno}, the newest rollup is {rollup}")
