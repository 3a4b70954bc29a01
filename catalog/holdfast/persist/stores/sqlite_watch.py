"""Hints of commits by other processes to a SQLite log.

A thread reads `PRAGMA data_version`, which changes with each commit of another connection. If it has changed,
the thread finds out which watched logs have grown. On systems that report writes to a folder (inotify), the
thread reads it only after a write, and uses no CPU time otherwise. On other systems it polls at a fixed
interval. A write is reported before its commit is visible, so the thread repeats the query for a short time.

Invariants:

- The thread exists only while somebody watches, and not after the store is closed.
- It uses the store's own reading connection, under its lock. So forks and `close` need no special care.
"""

import ctypes
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.persist.stores.watch import Watches

_PACE_S: Final = 0.01
_LONGEST_WAIT_S: Final = 0.5
_FIRST_LOOK_S: Final = 0.0002
_LOOKS: Final = 8  # each delay is twice as long as the one before: 50 ms in all, for a slow flush
_IN_MODIFY: Final = 0x2
_IN_CREATE: Final = 0x100
_IN_CLOEXEC: Final = 0o2000000
_IN_NONBLOCK: Final = 0o4000
_EVENT: Final = struct.Struct("iIII")


class CommitPoller:
    """Rings the watches of the log in `path` for commits of other processes.

    `version` returns a number that changes with them. `seqnos` returns the heads of some keys. Both raise an
    error once the store is closed, which ends the thread at its next check.
    """

    def __init__(
        self,
        path: Path,
        watches: Watches,
        version: Callable[[], int],
        seqnos: Callable[[Sequence[str]], dict[str, int]],
    ) -> None:
        self._path: Final = path
        self._watches: Final = watches
        self._version: Final = version
        self._seqnos: Final = seqnos
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._lock:
            if not self._closed and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-watch", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Make the thread end at its next check."""
        self._closed = True
        self._watches.ring_all()

    def renew(self) -> None:
        """Forget the thread in a forked child, because it belongs to the parent."""
        self._lock = threading.Lock()
        self._thread = None

    def _run(self) -> None:
        writes = FolderWrites.of(self._path.parent, self._path.name + "-wal")
        try:
            look = _Look(self._watches, self._version, self._seqnos)
            while not self._is_over():
                look.now()
                if writes is None:
                    time.sleep(_PACE_S)
                elif writes.wait(_LONGEST_WAIT_S):
                    look.until_changed()
        finally:
            if writes is not None:
                writes.close()

    def _is_over(self) -> bool:
        with self._lock:
            if not self._closed and self._watches.keys():
                return False
            self._thread = None
            return True


class _Look:
    """Repeated checks of the same file; it remembers the results of the last one."""

    def __init__(
        self,
        watches: Watches,
        version: Callable[[], int],
        seqnos: Callable[[Sequence[str]], dict[str, int]],
    ) -> None:
        self._watches, self._version, self._seqnos = watches, version, seqnos
        self._seen: tuple[int, int] | None = None
        self._known: dict[str, int] = {}

    def now(self) -> bool:
        """Ring the watches whose log has grown. Return whether anything in the file has changed."""
        try:
            seen = (self._version(), self._watches.added)
            if seen == self._seen:
                return False
            seqnos = self._seqnos(self._watches.keys())
        except HoldfastError:
            # The waiters read the store themselves, and get the error.
            self._watches.ring_all()
            return False
        self._seen = seen
        self._watches.ring(key for key in seqnos if seqnos[key] != self._known.get(key))
        self._known = seqnos
        return True

    def until_changed(self) -> None:
        """Check until something has changed, or as long as a commit may take."""
        for attempt in range(_LOOKS):
            if self.now():
                return
            time.sleep(_FIRST_LOOK_S * 2**attempt)


class FolderWrites:
    """Reports that a file in a folder was written or made (inotify)."""

    def __init__(self, descriptor: int, name: str) -> None:
        """Use `of` to make one."""
        self._descriptor: Final = descriptor
        self._name: Final = os.fsencode(name)
        self._poll: Final = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    @classmethod
    def of(cls, folder: Path, name: str) -> "FolderWrites | None":
        """Watch the file `name` in `folder`. Return None if the system has no inotify, or no free one."""
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            descriptor = libc.inotify_init1(_IN_CLOEXEC | _IN_NONBLOCK)
        except (AttributeError, OSError, TypeError):
            return None
        if descriptor < 0:
            return None
        if libc.inotify_add_watch(descriptor, os.fsencode(folder), _IN_MODIFY | _IN_CREATE) < 0:
            os.close(descriptor)
            return None
        return cls(descriptor, name)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a write since the last call. Return False if there was none in time."""
        if not self._poll.poll(timeout_s * 1000):
            return False
        try:
            events = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return False
        return self._name in _names(events)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


def _names(events: bytes) -> set[bytes]:
    names = set()
    offset = 0
    while offset < len(events):
        _, _, _, length = _EVENT.unpack_from(events, offset)
        start = offset + _EVENT.size
        names.add(events[start : start + length].rstrip(b"\0"))
        offset = start + length
    return names
