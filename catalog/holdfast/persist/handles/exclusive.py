"""Takes and releases the write lock of a location, which is re-entrant.

A process that crashed leaves the lock taken. The same reentrance id can take it again, which fences anything
that is left of the crashed process. Another id is refused until the holder releases the lock, unless it takes
over.
"""

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Self, TypeVar

from holdfast.errors import (
    BadInput,
    CorruptBlob,
    Determinate,
    Fenced,
    FenceRegressed,
    Indeterminate,
    LockHeld,
    StorageError,
)
from holdfast.forks import OwnerProcess
from holdfast.persist.checks import check_purpose, is_text
from holdfast.persist.clock import Clock
from holdfast.persist.config import PersistConfig
from holdfast.persist.session import Session
from holdfast.persist.state.lock import LOCK_KEY, LockRow, decode_lock, encode_lock
from holdfast.persist.state.machine import retry
from holdfast.persist.stores import Consensus, Entry, Location, Put, digest_of

MOST_ID_BYTES = 200
_T = TypeVar("_T")


class Exclusive:
    """The write lock of a location, taken by a client. Made by `PersistClient.exclusive`. Thread-safe.

    While the client has the lock, all of its commits, including upkeep, land only if nobody else has taken
    the lock. If somebody has, the client raises `Fenced` until it takes the lock again. Taking it again with
    the same id fences the current holder. So a job that gets `Fenced` should end and leave the lock to its
    successor. Take it again only if you know that the other process is not the successor. Release the lock
    when all writes have ended: writes that are in progress are fenced too.
    """

    def __init__(self, session: Session, row: LockRow) -> None:
        self._session = session
        self._fence = session.fence
        self._row = row
        self._owner = OwnerProcess()
        self._released = False

    @property
    def reentrance_id(self) -> str:
        """The id of the lock's owner. A process that takes the lock with the same id fences this holder."""
        return self._row.reentrance_id

    def close(self) -> None:
        """Release the lock durably, so that anybody can take it. A lock that was lost stays lost.

        In a forked child it does nothing, because the lock is the parent's.

        Raises:
            Indeterminate: the lock may have been released. Call again to find out.
            CorruptBlob: the store refuses the release although the client still has the lock.
        """
        if self._released or not self._owner.is_here:
            return
        session = self._session
        try:
            held = self._fence.held
        except (Fenced, FenceRegressed):
            held = None
        if held is self._row:
            given_up = release(session.location, session.config, session.clock, self._row)
            self._fence.release(self._row, given_up=given_up)
        self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_reentrance_id(value: str) -> str:
    """Return `value`, or raise `BadInput` if it is not a valid reentrance id."""
    if not is_text(value) or not value.strip() or len(value.encode()) > MOST_ID_BYTES:
        raise BadInput(
            f"a reentrance id must be a string of 1 to {MOST_ID_BYTES} bytes, not {value!r:.60}",
            hint="use a unique name that stays the same across restarts, such as the job's name",
        )
    return value


def acquire(
    location: Location,
    config: PersistConfig,
    clock: Clock,
    *,
    reentrance_id: str,
    purpose: str,
    take_over: bool,
) -> LockRow:
    """Take the lock. Return its row. Raises the errors of `PersistClient.exclusive`."""
    token = uuid.uuid4().bytes
    consensus = location.consensus

    def attempt() -> LockRow:
        head = consensus.heads([LOCK_KEY]).get(LOCK_KEY)
        last = decode_lock(head) if head is not None else None
        if last is not None and last.token == token:
            # An attempt of unknown outcome landed. At most one attempt of a call can land: all aim at free
            # rows.
            return last
        if last is not None and not (last.released or take_over or last.reentrance_id == reentrance_id):
            raise LockHeld(
                f"{location.blob.description} is locked: {last}",
                hint="stop the holder; if it is dead for good, use its id or take_over=True to fence it",
            )
        row = LockRow(
            last.seqno + 1 if last is not None else 1,
            reentrance_id,
            purpose,
            config.hostname,
            max(clock.wall_ms(), last.wall_ms + 1 if last is not None else 0),
            token,
        )
        after = digest_of(head.data) if head is not None else None
        if not consensus.compare_and_set([Put(LOCK_KEY, row.seqno, encode_lock(row), after)]):
            if _lock_row(consensus) == (head and head[:2]):
                raise _refused(location, row.seqno)
            raise Determinate(f"the lock of {location.blob.description} moved at the same moment")
        return row

    row = _settled(attempt, config, clock)
    if row.seqno > 1:
        # Nobody needs the rows behind the head.
        with suppress(StorageError):
            consensus.truncate(LOCK_KEY, row.seqno)
    return row


def release(location: Location, config: PersistConfig, clock: Clock, row: LockRow) -> bool:
    """Release the lock that is held by `row`. Return False if `row` is no longer the last one.

    Raises `CorruptBlob` if the store refuses the release although it is.
    """
    consensus = location.consensus
    free = LockRow(
        row.seqno + 1,
        row.reentrance_id,
        row.purpose,
        row.hostname,
        max(clock.wall_ms(), row.wall_ms + 1),
        uuid.uuid4().bytes,
        released=True,
    )
    puts = [Put(LOCK_KEY, free.seqno, encode_lock(free), row.digest)]

    def attempt() -> bool:
        if consensus.compare_and_set(puts):
            return True
        last = _lock_row(consensus)
        if last is not None and last.seqno == row.seqno and digest_of(last.data) == row.digest:
            raise _refused(location, free.seqno)
        return False

    return _settled(attempt, config, clock)


class _Refused(Determinate):
    """The store refused a row of the lock although nothing had moved. `corrupt` is the resulting error."""

    corrupt: CorruptBlob


def _lock_row(consensus: Consensus) -> Entry | None:
    head = consensus.heads([LOCK_KEY]).get(LOCK_KEY)
    return None if head is None else Entry(head.seqno, head.data)


def _refused(location: Location, seqno: int) -> _Refused:
    # A damaged index can hide the head from the append and show it to reads.
    location.consensus.check_integrity()
    corrupt = CorruptBlob(
        f"the lock of {location.blob.description}",
        f"row {seqno} to be appended after its last one",
        "a refused append, although no other process wrote",
    )
    refused = _Refused(str(corrupt))
    refused.corrupt = corrupt
    return refused


def _settled(attempt: Callable[[], _T], config: PersistConfig, clock: Clock) -> _T:
    """Like `retry`. If it gives up after an attempt of unknown outcome, it raises that attempt's error.

    Raises `CorruptBlob` if the store refuses until the deadline although nothing moves.
    """
    unsettled: Indeterminate | None = None

    def noted() -> _T:
        nonlocal unsettled
        try:
            return attempt()
        except Indeterminate as error:
            unsettled = error
            raise

    try:
        return retry(noted, config, clock)
    except Determinate as error:
        if unsettled is not None:
            raise unsettled from error
        if isinstance(error, _Refused):
            raise error.corrupt from None
        raise


def take_exclusive(
    session: Session, reentrance_id: str, *, purpose: str = "", take_over: bool = False
) -> Exclusive:
    """Take the write lock for a client, one caller at a time. Raises like `PersistClient.exclusive`."""
    check_reentrance_id(reentrance_id)
    check_purpose(purpose, empty=True)
    _check_not_locked(session)
    row = acquire(
        session.location,
        session.config,
        session.clock,
        reentrance_id=reentrance_id,
        purpose=purpose,
        take_over=take_over,
    )
    session.fence.take(row)
    return Exclusive(session, row)


def _check_not_locked(session: Session) -> None:
    fence, location = session.fence, session.location
    try:
        held = fence.held
    except (Fenced, FenceRegressed):
        return
    if held is None:
        return
    heads = retry(lambda: location.consensus.heads([LOCK_KEY]), session.config, session.clock)
    if fence.judge(held, heads.get(LOCK_KEY)) is None:
        raise BadInput(
            f"this client already has the lock of {location.blob.description}: {held}",
            hint="close it first",
        )
