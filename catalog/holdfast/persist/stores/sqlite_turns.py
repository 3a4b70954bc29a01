"""Turns of processes that append to one SQLite file: they wait in the kernel's queue for a lock of a folder.

SQLite has no queue for its write lock. And of the processes that read the same head, only one can append the
next row. With turns, each process reads the head when it is next, and its append succeeds.

Invariants:

- Nothing depends on a turn but speed. The lock is on the folder and not on a file of SQLite, and an append is
  as safe without a turn. So a process that can't have the lock, or waits for too long, goes on without it.
- The kernel releases the lock of a process that ends. A process that is stopped while it has the lock delays
  each turn of the others by `_LONGEST_S`.
- A wait in the kernel has no timeout. So a thread waits. If the lock comes too late, the thread releases it,
  and until then this process takes no turns.
- Threads of one process share the lock. They don't wait for each other here.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_LONGEST_S: Final = 1.0


class FolderTurns:
    """The turns of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._descriptor: int | None = None
        self._wait: _Wait | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and keep it until the end of the block. After too long, go on without it."""
        try:
            self._take()
            yield
        finally:
            self._release()

    def _take(self) -> None:
        if self._wait is not None and self._wait.is_alive():
            return
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            assert self._descriptor is not None
            self._wait = wait = _Wait(self._descriptor)
            wait.start()
            try:
                wait.has_it.wait(_LONGEST_S)
            finally:
                wait.leave()
        except OSError:
            return  # a file system without such locks

    def _release(self) -> None:
        if self._descriptor is not None:
            # Does nothing if the lock is not held.
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the folder, which also releases the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class _Wait(threading.Thread):
    """Waits for the lock. `has_it` is set once it is there."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="holdfast-turn", daemon=True)
        self._descriptor: Final = descriptor
        self._lock: Final = threading.Lock()
        self.has_it: Final = threading.Event()
        self._is_left = False

    def run(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            with self._lock:
                self.has_it.set()
                if self._is_left:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def leave(self) -> None:
        """Stop waiting. If the lock is not there yet, it is released as soon as it is."""
        with self._lock:
            self._is_left = True
