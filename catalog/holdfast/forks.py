"""Ownership by process: clients, handles and catalogs don't work in a forked child.

- State in memory belongs to the process that opened it: caches, leases and their heartbeats, the tokens of
  writers, locks that other threads hold. A child made by `os.fork()` has a copy of all this, but not the
  threads. If the copy continued, it would wait for threads that don't exist, or act as the parent.
- So each public call of an inherited object raises `UsedAfterFork`, before it takes a lock. `close`, the end
  of a `with` block and garbage collection do nothing in the child. Leases, locks and uploads stay with the
  parent.
- A stash is such an object too. Blob and Consensus have no such state. They open new connections in a child.
- A child never closes a connection of the parent in a way that the server notices.

The check compares two numbers. It costs less than `os.getpid()`, and a reused process id can't deceive it.
Every `os.fork()` counts, including the one of `multiprocessing`. So does a fork in C that calls
`PyOS_AfterFork_Child`, as CPython requires.
"""

import functools
import os
import threading
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Final, ParamSpec, TypeVar

from holdfast.errors import UsedAfterFork

P = ParamSpec("P")
T = TypeVar("T")

_forks = 0
"""The number of forks between the first process and this one."""


class OwnerProcess:
    """The process that made this object."""

    __slots__ = ("_forks", "_pid")

    def __init__(self) -> None:
        self._forks: Final = _forks
        self._pid: Final = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made the object."""
        return self._forks == _forks

    def check(self, what: str) -> None:
        """Raise `UsedAfterFork` unless this is that process. `what` names the object in the error."""
        if self._forks != _forks:
            raise UsedAfterFork(what, self._pid, os.getpid())


class ForkLock:
    """A lock that is free in a forked child, even if a thread of the parent held it."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def renew(self) -> None:
        """Make the lock free in a forked child."""
        self._lock = threading.Lock()

    # Python gets both methods before it calls the first, and they are C. So Ctrl-C never leaves it locked.
    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))


def fork_count() -> int:
    """Return a number that differs between a process and its forked children, for the key of a cache."""
    return _forks


def kept_in_process(*, most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Cache the last `most` results of a function, separately for each process that calls it."""

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        @functools.lru_cache(maxsize=most)
        def kept(_: int, *args: P.args, **kwargs: P.kwargs) -> T:
            return make(*args, **kwargs)

        @functools.wraps(make)
        def of_this_process(*args: P.args, **kwargs: P.kwargs) -> T:
            return kept(_forks, *args, **kwargs)  # type: ignore[arg-type]  # unhashable arguments raise

        return of_this_process

    return decorate


_locks: Final[weakref.WeakSet[ForkLock]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    global _forks  # the number that all objects compare with
    _forks += 1
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_after_fork_in_child)
