"""How the threads of a process share a log of objects: one thread makes the next step for all that wait."""

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, NamedTuple

from holdfast.errors import Indeterminate
from holdfast.persist.stores.log_state import Command, Floor, LogAppend, LogObject, LogState
from holdfast.persist.stores.objects import NO_TAG

MOST_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of entries in one object, unless a single command has more."""
_CONTENDED_FOR: Final = 16


class Request:
    """A command that waits for its result. It is equal only to itself."""

    def __init__(self, command: Command) -> None:
        self.command: Final = command
        self.answer: Final[Future[bool | int]] = Future()
        self.size: Final = sum(len(put.data) for put in command.puts) if isinstance(command, LogAppend) else 0
        self.is_taken = False


class ReadObject(NamedTuple):
    """An object that is part of the state, and the tag of its version, if known."""

    position: int
    token: bytes | None
    tag: str


class Turns:
    """The state of the log in one process, and which thread may write. Nobody does I/O while holding `lock`.

    `opened_by` is the floor whose checkpoint the state was read from.
    """

    def __init__(self, state: LogState, opened_by: Floor) -> None:
        self.pid: Final = os.getpid()
        self.lock: Final = threading.Lock()
        self.state = state
        self.opened_by = opened_by
        # The state is known to be that of the log up to this position.
        self.confirmed = state.position
        # When the end of the log was last checked, on the monotonic clock.
        self.looked_s = float("-inf")
        self._tags: dict[int, str] = {}
        # `catching` is held while reading the log; `reading` while one thread reads for all that wait.
        self.catching: Final = threading.Lock()
        self.reading: Final = threading.Lock()
        self.read_at = 0
        self.put_s = 0.0
        self._turn: Final = threading.Condition()
        self._waiting: list[Request] = []
        self._is_led = False
        self._own: int = -_CONTENDED_FOR
        self._others: int = -_CONTENDED_FOR

    def enter(self, request: Request) -> Sequence[Request]:
        """Wait until another thread takes the request and return (), or lead and return the waiting ones."""
        with self._turn:
            self._waiting.append(request)
            while self._is_led and not request.is_taken:
                self._turn.wait()
            if request.is_taken:
                return ()
            self._is_led = True
            return self._take()

    @contextmanager
    def passed_on(self) -> Iterator[None]:
        """End the turn of the leading thread when the block ends, so that another thread can lead."""
        try:
            yield
        finally:
            with self._turn:
                self._is_led = False
                self._turn.notify_all()

    def steps(self, first: int, last: int) -> list[ReadObject]:
        """Return the objects from `first` to `last` that must exist. The caller holds the lock.

        Objects below the floor that the state was opened by need not exist: the checkpoint replaces them.
        """
        first = max(first, self.opened_by.floor)
        state = self.state
        return [ReadObject(p, state.token_at(p), self._tags.get(p, NO_TAG)) for p in range(first, last + 1)]

    def add(self, added: LogObject, tag: str) -> bool:
        """Add an object that was read, unless the state has it. Return False if it does not follow."""
        with self.lock:
            if added.position <= self.state.position:
                return self.state.token_at(added.position) == added.token
            if not self.state.follows(added):
                return False
            self.state.add(added)
            self._tags[added.position] = tag
            self._others = added.position
            return True

    def won(self, added: LogObject, tag: str) -> None:
        """Add an object that this process put, unless the state has it. The caller holds the lock."""
        self._own = added.position
        if self.state.follows(added):
            self.state.add(added)
            self._tags[added.position] = tag

    def confirm(self, position: int) -> None:
        """Record that the state is known to be that of the log up to `position`."""
        with self.lock:
            self.confirmed = max(self.confirmed, position)
            self._tags = {position: tag for position, tag in self._tags.items() if position >= self.confirmed}

    def replace(self, state: LogState, opened_by: Floor, *, confirmed: int | None = None) -> None:
        """Replace the state by one that was opened again.

        With `confirmed`, do so only if that is still the confirmed position. Otherwise another thread has
        read the log meanwhile, maybe beyond `state`.
        """
        with self.lock:
            if confirmed not in (None, self.confirmed):
                return
            self.state, self.opened_by = state, opened_by
            self.confirmed = state.position
            self._tags = {}

    @property
    def is_contended(self) -> bool:
        """Whether this process put the newest object and another process put a recent one."""
        return self._own == self.state.position and self._own - self._others < _CONTENDED_FOR

    def _take(self) -> Sequence[Request]:
        size = count = 0
        for request in self._waiting:
            size += request.size
            if count and size > MOST_BYTES:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        for request in taken:
            request.is_taken = True
        # Threads whose requests were taken stop waiting for a turn, and wait for their results.
        self._turn.notify_all()
        return taken


@contextmanager
def settle(group: Sequence[Request]) -> Iterator[None]:
    """If the block raises, give the error to all requests that have no result yet."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - each caller raises it
        _fail(group, error)
    except BaseException:
        _fail(group, Indeterminate("the thread that wrote for others was interrupted"))
        raise


def _fail(group: Sequence[Request], error: Exception) -> None:
    for request in group:
        if not request.answer.done():
            request.answer.set_exception(error)
