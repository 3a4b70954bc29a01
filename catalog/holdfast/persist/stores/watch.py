"""Watches: how whoever waits for a log learns that it may have grown.

Invariants:

- A hint says "look", nothing else: it may be lost, come twice or for nothing. Who waits also looks without
  one from time to time, so that hints decide how soon something is seen and never what.
- To give a hint never blocks and never fails: commits do it.
- A watch that nobody holds any more gets no hints: nothing has to be closed.
"""

import os
import threading
import weakref
from collections.abc import Iterable
from typing import Final


class Watch:
    """A flag that any number of sources raise and one waiter lowers."""

    __slots__ = ("__weakref__", "_raised")

    def __init__(self) -> None:
        self._raised = threading.Event()

    def hint(self) -> None:
        """Say that there may be something new."""
        self._raised.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a hint given since the last call that returned True; False when none came in time."""
        hinted = self._raised.wait(timeout_s)
        if hinted:
            # Before the waiter looks: a hint from here on is about what the look may have missed.
            self._raised.clear()
        return hinted

    def renew(self) -> None:
        """In the child of a fork: somebody may have held the flag's lock."""
        self._raised = threading.Event()


class Watches:
    """The watches of one source, by key. Thread-safe; usable on both sides of a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: Final[dict[str, weakref.WeakSet[Watch]]] = {}
        self.added = 0
        """How often a watch was added: tells whether `keys` may have got more."""
        _live.add(self)

    def add(self, key: str, watch: Watch | None = None) -> Watch:
        """Give the hints of `key` to `watch` too, or to a new one."""
        watch = watch or Watch()
        with self._lock:
            self._by_key.setdefault(key, weakref.WeakSet()).add(watch)
            self.added += 1
        return watch

    def ring(self, keys: Iterable[str]) -> None:
        """Give a hint to all watches of some keys."""
        if not self._by_key:
            return
        with self._lock:
            found = [watch for key in keys for watch in self._by_key.get(key, ())]
        for watch in found:
            watch.hint()

    def ring_all(self) -> None:
        """Give a hint to all watches: who rings may have missed something."""
        self.ring(self.keys())

    def keys(self) -> list[str]:
        """The keys that somebody watches."""
        with self._lock:
            for key in [key for key, watches in self._by_key.items() if not watches]:
                del self._by_key[key]
            return list(self._by_key)

    def renew(self) -> None:
        """In the child of a fork: a thread that is not there any more may have held a lock."""
        self._lock = threading.Lock()
        for watches in self._by_key.values():
            for watch in watches:
                watch.renew()


_live: Final[weakref.WeakSet[Watches]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for watches in list(_live):
        watches.renew()


os.register_at_fork(after_in_child=_after_fork_in_child)
