"""The reader of a table: opened when it is first needed, and opened again after its lease was lost.

While no read runs, its hold follows the latest contents, so that an open table doesn't keep data from
compaction. A table that is not used for a minute releases its hold.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

from holdfast.collections import CollectionReader
from holdfast.errors import CLOSED, BadInput, HandleExpired, HoldfastError
from holdfast.forks import OwnerProcess
from holdfast.persist import PersistClient

FOLLOW_S: Final = 10.0
"""Seconds after which the hold follows the latest contents. Each time costs a commit."""

IDLE_S: Final = 60.0
"""Seconds without use after which the hold is released. The next read opens a new reader."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class Reading:
    """Keeps one reader and runs reads on it. Thread-safe."""

    def __init__(
        self, client: PersistClient, open_: Callable[[], CollectionReader], name: Callable[[], str]
    ) -> None:
        self._client = client
        self._name = name
        self._open = open_
        self._owner = OwnerProcess()
        # Reentrant: the garbage collector may end a scan in a thread that has the lock.
        self._lock = threading.RLock()
        self._reader: CollectionReader | None = None
        self._busy = 0
        self._held = 0
        self._follow_s = 0.0
        self._closed = False
        self._used_s = 0.0
        self._idle: threading.Timer | None = None

    def run(self, ask: Callable[[CollectionReader], T]) -> T:
        """Return the result of `ask`. If the lease was lost, call it again with a new reader."""
        reader = self._enter()
        try:
            return ask(reader)
        except HandleExpired:
            self._forget(reader)
        finally:
            self._leave()
        reader = self._enter()
        try:
            return ask(reader)
        finally:
            self._leave()

    def begin(self, ask: Callable[[CollectionReader], T]) -> T:
        """Like `run`, but the hold stays where it is until `end` is called."""
        self._enter()
        with self._lock:
            self._held += 1
        try:
            return self.run(ask)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End what `begin` began. Does nothing in a forked child."""
        if self._owner.is_here:
            with self._lock:
                self._held -= 1
            self._leave()

    def release(self) -> bool:
        """Release the hold if nothing reads. Returns False if a read that `begin` began keeps it."""
        if not self._owner.is_here:
            return True
        with self._lock:
            reader = None
            if not self._busy:
                reader, self._reader = self._reader, None
            held = self._held > 0 and not self._closed
        if reader is not None:
            reader.close()
        return not held

    def close(self) -> None:
        """Close the reader. Does nothing in a forked child: the reader belongs to the parent."""
        if not self._owner.is_here:
            return
        with self._lock:
            self._closed = True
            reader, self._reader = self._reader, None
            if self._idle is not None:
                self._idle.cancel()
        if reader is not None:
            reader.close()

    def _enter(self) -> CollectionReader:
        self._owner.check("this table")
        with self._lock:
            if self._closed:
                raise BadInput(f"table {self._name()} is closed", hint="open it again with holdfast.table")
            now = self._client.clock.monotonic()
            if self._reader is None:
                self._reader = self._open()
                self._follow_s = now + FOLLOW_S
            elif not self._busy and now >= self._follow_s and self._client.mode == "write":
                self._reader.allow_compaction(CLOSED)
                self._follow_s = now + FOLLOW_S
            self._busy += 1
            return self._reader

    def _leave(self) -> None:
        if not self._owner.is_here:
            return
        with self._lock:
            self._busy -= 1
            self._used_s = time.monotonic()
            if self._idle is None and not self._closed and self._client.mode == "write":
                self._wait(IDLE_S)

    def _wait(self, seconds: float) -> None:
        # A weak reference, so that the timer doesn't keep an unused table alive. Its lease ends by itself.
        self._idle = threading.Timer(seconds, _end_if_idle, (weakref.ref(self),))
        self._idle.daemon = True
        self._idle.start()

    def end_if_idle(self) -> None:
        """Close the reader if it is idle: an idle table must not hold the since back."""
        with self._lock:
            self._idle = None
            left = self._used_s + IDLE_S - time.monotonic()
            if self._closed or self._reader is None:
                return
            if self._busy or left > 0:
                self._wait(max(left, IDLE_S / 10))
                return
            reader, self._reader = self._reader, None
        try:
            reader.close()
        except HoldfastError as error:
            log.warning("can't release the hold of an idle table on %s: %s", reader.info.name, error)

    def _forget(self, reader: CollectionReader) -> None:
        with self._lock:
            if self._reader is reader:
                self._reader = None


def _end_if_idle(reading: "weakref.ref[Reading]") -> None:
    alive = reading()
    if alive is not None:
        alive.end_if_idle()
