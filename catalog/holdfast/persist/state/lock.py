"""The write lock of a location: its rows in Consensus, and the condition that commits carry.

`persist.handles.exclusive` takes and releases it, and decides who may take it again (re-entrance).

- The head of the key `lock` shows who holds the lock. Rows are never changed. A client that takes or releases
  the lock appends a row. So the row number is the fence: a client whose row is older has lost the lock. After
  a recovery, row numbers continue at `recoveries * 2^40`, which nobody has held before.
- Each commit of a client that holds the lock carries the condition that the head is still its own row. The
  store checks the condition at the commit point. So no attempt of a fenced client can land, even a late one.
"""

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from holdfast._pb import persist_pb2 as pb
from holdfast.errors import CorruptBlob, Fenced, FenceRegressed, HoldfastError, NotWritable
from holdfast.persist.state.codec import check_moment, open_frame, seal_frame
from holdfast.persist.stores import Digest, Entry, Expect, Head, digest_of
from holdfast.persist.stores.frame import parse

LOCK_KEY: Final = "lock"
LOCK_MAGIC: Final = b"HFl\n"


@dataclass(frozen=True)
class LockRow:
    """Row `seqno` of the lock: who took or released it. `token` (16 random bytes) identifies the attempt."""

    seqno: int
    reentrance_id: str
    purpose: str
    hostname: str
    wall_ms: int
    token: bytes = field(repr=False)
    released: bool = False

    @cached_property
    def digest(self) -> Digest:
        """The digest of the stored row."""
        return digest_of(encode_lock(self))

    @cached_property
    def expectation(self) -> Expect:
        """The condition that a commit under this row carries: the row is still the newest one."""
        return Expect(LOCK_KEY, self.seqno, self.digest)

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        purpose = f" for {self.purpose!r}" if self.purpose else ""
        what = "released by" if self.released else "of"
        return (
            f"row {self.seqno} {what} {self.reentrance_id!r}{purpose} on host {self.hostname} since {since}"
        )


def encode_lock(row: LockRow) -> bytes:
    """Encode a row of the lock."""
    message = pb.ExclusiveLock(
        reentrance_id=row.reentrance_id,
        purpose=row.purpose,
        hostname=row.hostname,
        wall_ms=row.wall_ms,
        token=row.token,
        released=row.released,
        seqno=row.seqno,
    )
    return seal_frame(LOCK_MAGIC, message.SerializeToString())


def decode_lock(entry: Entry | Head) -> LockRow:
    """Decode a row of the lock. Raises `CorruptBlob` and `VersionTooNew`."""
    key = f"{LOCK_KEY} log {entry.seqno}"
    message = parse(pb.ExclusiveLock(), open_frame(LOCK_MAGIC, entry.data, key), key)
    # Early versions of Holdfast did not store the number in the row.
    if message.seqno not in (0, entry.seqno):
        raise CorruptBlob(key, f"row {entry.seqno}", f"row {message.seqno}")
    return LockRow(
        entry.seqno,
        message.reentrance_id,
        message.purpose,
        message.hostname,
        check_moment(message.wall_ms, key),
        message.token,
        message.released,
    )


class Fence:
    """The lock row that the commits of one client must find. The client's machines share it. Thread-safe.

    A client that has lost the lock is fenced: it can't commit anything until it takes the lock again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: LockRow | None = None
        self._lost: tuple[LockRow, LockRow | None] | None = None

    @property
    def held(self) -> LockRow | None:
        """The row by which this client holds the lock; None if it does not use the lock.

        Raises:
            Fenced: the client has lost the lock.
        """
        with self._lock:
            lost, held = self._lost, self._held
        if lost is not None:
            raise _fenced(*lost)
        return held

    def take(self, row: LockRow) -> None:
        """Record that the client holds the lock by `row`."""
        with self._lock:
            self._held, self._lost = row, None

    def release(self, row: LockRow, *, given_up: bool) -> None:
        """Record that the client no longer holds the lock by `row`; `given_up` is whether it released it."""
        with self._lock:
            if self._held is row:
                self._held = None
                if self._lost is not None and (given_up or _is_release(self._lost[1], row)):
                    # A commit saw the release before this call. Nobody took the lock away.
                    self._lost = None

    def judge(self, held: LockRow, head: Head | None) -> HoldfastError | None:
        """Return None if the head allows a commit under `held`, else the error that fences it."""
        if head is not None and head.seqno == held.seqno and digest_of(head.data) == held.digest:
            return None
        found = decode_lock(head) if head is not None else None
        with self._lock:
            if self._held is held:
                self._lost = (held, found)
        return _fenced(held, found)


def _is_release(found: LockRow | None, row: LockRow) -> bool:
    return found is not None and found.released and found.seqno == row.seqno + 1


def _fenced(held: LockRow, found: LockRow | None) -> HoldfastError:
    if found is None or found.seqno <= held.seqno:
        return FenceRegressed(held, found or "none")
    return Fenced(held, found, what="location")


def no_lock(shard_id: str) -> NotWritable:
    """Return the error for a write or seal by a client that has not taken the lock."""
    return NotWritable(
        f"shard {shard_id} has the write mode WRITE_SEAL, and this client has not taken the write lock",
        hint="take it first: with client.exclusive('<the name of this job>'): ...",
    )
