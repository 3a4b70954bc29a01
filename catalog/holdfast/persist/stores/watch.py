"""Watches: how a thread that waits for a log learns that it may have grown.

Invariants:

- A hint means only that it is worth reading the log. It may be lost, come twice, or come for nothing. A
  waiter also reads without a hint from time to time. So hints decide how soon something is seen, and never
  what is seen.
- Giving a hint never blocks and never fails, because commits give hints.
- A watch without references gets no hints. Nothing has to be closed.
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
        """Raise the flag: there may be something new."""
        self._raised.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a hint since the last call that returned True. Return False if none came in time."""
        hinted = self._raised.wait(timeout_s)
        if hinted:
            # Clear the flag before the waiter reads. A later hint is about what that read may have missed.
            self._raised.clear()
        return hinted

    def renew(self) -> None:
        """Replace the flag in a forked child, because a thread of the parent may have held its lock."""
        self._raised = threading.Event()


class Watches:
    """The watches of one source, by key. Thread-safe. Usable on both sides of a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: Final[dict[str, weakref.WeakSet[Watch]]] = {}
        self.added = 0
        """How often a watch was added. A change shows that `keys` may have grown."""
        _live.add(self)

    def add(self, key: str, watch: Watch | None = None) -> Watch:
        """Give the hints of `key` to `watch` too, or to a new watch. Return the watch."""
        watch = watch or Watch()
        with self._lock:
            self._by_key.setdefault(key, weakref.WeakSet()).add(watch)
            self.added += 1
        return watch

    def ring(self, keys: Iterable[str]) -> None:
        """Give a hint to all watches of these keys."""
        if not self._by_key:
            return
        with self._lock:
            found = [watch for key in keys for watch in self._by_key.get(key, ())]
        for watch in found:
            watch.hint()

    def ring_all(self) -> None:
        """Give a hint to all watches, because the source may have missed something."""
        self.ring(self.keys())

    def keys(self) -> list[str]:
        """Return the keys that are watched."""
        with self._lock:
            for key in [key for key, watches in self._by_key.items() if not watches]:
                del self._by_key[key]
            return list(self._by_key)

    def renew(self) -> None:
        """Replace the locks in a forked child, because a thread of the parent may have held them."""
        self._lock = threading.Lock()
        for watches in self._by_key.values():
            for watch in watches:
                watch.renew()


_live: Final[weakref.WeakSet[Watches]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for watches in list(_live):
        watches.renew()


os.register_at_fork(after_in_child=_after_fork_in_child)
