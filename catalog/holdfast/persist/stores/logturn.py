"""How the threads of one process share a log of objects: one makes the next step for all that wait."""

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, NamedTuple

from holdfast.errors import Indeterminate
from holdfast.persist.stores.logstate import Append, Command, Floor, LogObject, LogState
from holdfast.persist.stores.objects import NO_TAG

MOST_BYTES: Final = 8 * 1024 * 1024
"""Of the entries of one object, unless a single command has more."""
_CONTENDED_FOR: Final = 16


class Request:
    """A command that waits for its answer; equal to nothing but itself."""

    def __init__(self, command: Command) -> None:
        self.command: Final = command
        self.answer: Final[Future[bool | int]] = Future()
        self.size: Final = sum(len(put.data) for put in command.puts) if isinstance(command, Append) else 0
        self.is_taken = False


class Step(NamedTuple):
    """An object that the state is made of; the tag of its version, where it is known."""

    position: int
    token: bytes | None
    tag: str


class Turns:
    """The state of the log in one process, and whose turn it is. `lock` is held for no I/O.

    `opened_by` is the floor whose checkpoint the state was read from.
    """

    def __init__(self, state: LogState, opened_by: Floor) -> None:
        self.pid: Final = os.getpid()
        self.lock: Final = threading.Lock()
        self.state = state
        self.opened_by = opened_by
        # Up to which position the state is known to be that of the log.
        self.confirmed = state.position
        # When the end of the log was last found, by the monotonic clock.
        self.looked_s = float("-inf")
        self._tags: dict[int, str] = {}
        # Held by one who reads the log, and by one who reads it for all that ask meanwhile.
        self.catching: Final = threading.Lock()
        self.reading: Final = threading.Lock()
        self.read_at = 0
        self.put_s = 0.0
        self._ticks: Final = itertools.count(1)
        self._turn: Final = threading.Condition()
        self._waiting: list[Request] = []
        self._is_led = False
        self._own: int = -_CONTENDED_FOR
        self._others: int = -_CONTENDED_FOR

    def tick(self) -> int:
        """A number greater than all before."""
        return next(self._ticks)

    def enter(self, request: Request) -> Sequence[Request]:
        """Wait until the request is taken by another thread (nothing), or lead those that wait now."""
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
        """The turn of the thread that leads: the next one may lead after it."""
        try:
            yield
        finally:
            with self._turn:
                self._is_led = False
                self._turn.notify_all()

    def steps(self, first: int, last: int) -> list[Step]:
        """The objects from `first` to `last` that must be there; with the lock.

        Those below the floor that the state was opened by need not be: the checkpoint stands for them.
        """
        first = max(first, self.opened_by.floor)
        state = self.state
        return [Step(p, state.token_at(p), self._tags.get(p, NO_TAG)) for p in range(first, last + 1)]

    def add(self, added: LogObject, tag: str) -> bool:
        """Take over an object that was read, unless the state has it; False where it doesn't follow."""
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
        """Take over an object of this process, unless the state has it; with the lock."""
        self._own = added.position
        if self.state.follows(added):
            self.state.add(added)
            self._tags[added.position] = tag

    def confirm(self, position: int) -> None:
        """The state is known to be that of the log up to `position`."""
        with self.lock:
            self.confirmed = max(self.confirmed, position)
            self._tags = {position: tag for position, tag in self._tags.items() if position >= self.confirmed}

    def replace(self, state: LogState, opened_by: Floor) -> None:
        """Drop the state for one that was opened anew."""
        with self.lock:
            self.state, self.opened_by = state, opened_by
            self.confirmed = state.position
            self._tags = {}

    @property
    def is_contended(self) -> bool:
        """Whether this process put the newest object, and others some before."""
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
        # Those of them that wait for their turn wait for their answers now.
        self._turn.notify_all()
        return taken


@contextmanager
def settle(group: Sequence[Request]) -> Iterator[None]:
    """Give an error that ends the block to all requests that have no answer yet."""
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
