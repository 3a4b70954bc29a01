"""Group commit: plain appends of several threads to one table are committed together, as one write.

Each thread checks and converts its own rows first, so it gets its own errors about them. Then it joins the
others that wait for the table. One of the waiting threads leads: it commits the rows of all, in the order in
which they came, and each thread returns the time of that one write. Appends that come meanwhile wait for the
next leader. So a group has as many members as come during one commit, and a single thread waits for nobody.

Invariants:

- Members of a group have the same client, collection and columns. Each append is visible as a whole or not at
  all, because the group is one commit.
- A thread returns only after the commit with its rows. A member is taken by one leader only, and only while
  its thread waits, or is told that the outcome is unknown.
- If the store fails, each member gets that error: `Indeterminate` if it is unknown whether the group was
  committed. After any other error nothing has happened, and each append is tried alone, so that no member
  gets an error that is about another one's rows.
- The main thread commits only its own append. Ctrl-C and other signals raise errors only there, so they leave
  no other thread in doubt.
- Who leads is one entry of a dict, which names the leader's member. It is set in one step, and the leader
  removes it whatever happens. A waiting thread that is not woken looks again by itself.
"""

import copy
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from holdfast.collections.record.column_names import ColumnNames
from holdfast.errors import HoldfastError, Indeterminate, StorageError
from holdfast.forks import ForkLock
from holdfast.persist import PersistClient, Schema
from holdfast.tables.changes import Change, Committed

_MOST_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of a group of several members, in memory."""
_LOOK_AGAIN_S: Final = 0.5
_LEADS: Final = "leads"


@dataclass(eq=False, slots=True)
class Member:
    """An append that waits. `rows` were prepared with `schema` and `names`.

    `together` commits the rows of several changes that have these columns, and `alone` only its own change.
    Both hold the lock `writing`.
    """

    writing: AbstractContextManager[object]
    change: Change
    rows: pa.RecordBatch
    schema: Schema
    names: ColumnNames
    together: Callable[[pa.RecordBatch, Sequence[Change]], Committed]
    alone: Callable[[], Committed]
    woken: threading.Event = field(default_factory=threading.Event)
    result: tuple[Committed, int] | BaseException | None = None

    def fits(self, other: "Member") -> bool:
        """Whether another member has the same columns."""
        return (self.schema is other.schema or self.schema == other.schema) and self.names == other.names

    def settle(self, result: tuple[Committed, int] | BaseException) -> None:
        """Give the thread that waits its result."""
        self.result = result
        self.woken.set()


class AppendQueue:
    """The appends to one table that wait in this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Member] = []
        self._leader: dict[str, Member] = {}

    def commit(self, member: Member) -> tuple[Committed, int]:
        """Commit an append, alone or in a group. Return the group's commit, and the place of its rows there.

        Raises the errors of `together` and `alone`.
        """
        try:
            with self._lock:
                self._waiting.append(member)
            while member.result is None:
                if self._leader.setdefault(_LEADS, member) is member:
                    # A leader before may have taken this one since the last look.
                    if member.result is None:
                        self._lead(member)
                else:
                    member.woken.wait(_LOOK_AGAIN_S)
                    member.woken.clear()
        finally:
            self._leave(member)
        if isinstance(member.result, BaseException):
            raise member.result
        return member.result

    def _leave(self, member: Member) -> None:
        """Stop waiting and leading, and wake the next leader."""
        with self._lock:
            if member in self._waiting:
                self._waiting.remove(member)
            following = self._waiting[:1]
        if self._leader.get(_LEADS) is member:
            del self._leader[_LEADS]
            for each in following:
                each.woken.set()

    def _lead(self, member: Member) -> None:
        """Commit the rows of this member, and of others that wait."""
        group = [member]
        try:
            # Others may come until the lock is free.
            with member.writing:
                self._take(group)
                _commit(group)
        except BaseException as error:
            for each in group:
                if each is not member and each.result is None:
                    each.settle(_unknown(error))
            raise

    def _take(self, group: list[Member]) -> None:
        """Take the members of the next group, after its first one."""
        (first,) = group
        size = first.rows.nbytes
        with self._lock:
            self._waiting.remove(first)
            if threading.current_thread() is threading.main_thread():
                return
            for each in list(self._waiting):
                size += each.rows.nbytes
                if size > _MOST_BYTES:
                    return
                if first.fits(each):
                    group.append(each)
                    self._waiting.remove(each)


def _commit(group: Sequence[Member]) -> None:
    """Commit the rows of a group, and give each member its result."""
    first = group[0]
    if len(group) == 1:
        first.settle((first.together(first.rows, [first.change]), 0))
        return
    try:
        rows = pa.concat_batches([each.rows for each in group])
        done = first.together(rows, [each.change for each in group])
    except StorageError as error:
        for each in group:
            each.settle(copy.copy(error))
    except HoldfastError:
        for each in group:
            try:
                each.settle((each.alone(), 0))
            except HoldfastError as error:
                each.settle(error)
    else:
        start = 0
        for each in group:
            each.settle((done, start))
            start += each.rows.num_rows


def _unknown(error: BaseException) -> Indeterminate:
    return Indeterminate(
        f"the thread that committed this append together with its own ended with {type(error).__name__}",
        hint="read the table, and check whether the rows are there",
    )


_lock: Final = ForkLock()
_all: Final[weakref.WeakValueDictionary[tuple[PersistClient, str], AppendQueue]] = (
    weakref.WeakValueDictionary()
)


def appends_of(client: PersistClient, collection_id: str) -> AppendQueue:
    """The appends to a table that wait in this process. All tables that share a client share them."""
    with _lock:
        return _all.setdefault((client, collection_id), AppendQueue())
