"""Calls to stores that may take minutes, and that outlive the reconciliation that started them.

Invariants
- Only one call at a time runs for a key and purpose. No second call starts while one is running, even if the
  request has changed or the running call was given up. Two opens of a catalog would fence each other.
- The first caller with the same request takes the result. A result that nobody needs any more is passed to
  `late`, because a handle must be closed. The call counts as running until then.
- When a call ends and nobody waits for it, `ended` gets its key.
- Nobody waits for calls on slow servers, and they don't use the slots of other calls (see `slow_servers`).
- A namespace can't use all slots, neither for slow servers nor for others.
- A call that failed after its caller stopped waiting is not repeated at once. Until a pause is over, its
  error is the result. A result that is no handle is remembered for the same time. The pause grows with the
  duration of the call. A store that doesn't respond is called as often as by other calls (see `breaker`).
- All state belongs to the event loop. Threads don't touch it.
- A process that doesn't lead starts no call.
"""

import asyncio
import contextvars
import functools
import logging
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from holdfast.errors import HoldfastError, StoreUnreachable
from holdfast_operator.engine.clock import Clock, SystemClock
from holdfast_operator.engine.failures import outcome_of
from holdfast_operator.engine.kube import NotLeading, ObjectKey
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.places.breaker import LONGEST_PAUSE
from holdfast_operator.places.slow_servers import SlowServers

T = TypeVar("T")

log = logging.getLogger(__name__)

_MOST: Final = 24
_MOST_OF_SLOW: Final = 16
_MOST_OF_LOCATION: Final = 4
_MOST_OF_NAMESPACE: Final = 16
_MOST_OF_NAMESPACE_SLOW: Final = 8
_THREADS: Final = 128
_BESIDE: Final = 16
"""Threads for calls that a worker of the queue still waits for. Each worker has one."""
_SHORTEST_PAUSE: Final = 30.0
_LONGEST_PAUSE: Final = 600.0


class UnderWay(Exception):
    """The call is not over yet. `since` is None if it is queued."""

    def __init__(self, since: datetime | None) -> None:
        super().__init__("under way" if since else "waits for its turn")
        self.since = since


@dataclass(frozen=True, slots=True)
class LongCall:
    """The request of a call. `what` is its name in metrics. Requests with an equal `how` share a result."""

    key: ObjectKey
    what: str
    location: str
    how: object


@dataclass(eq=False, slots=True)
class _Call:
    asked: LongCall
    since: datetime
    begun: float
    future: "asyncio.Future[Any]"
    late: Callable[[Any], None] | None
    ended: float = 0.0
    left: bool = False
    """Whether nobody waits for the call any more."""
    given_up: "asyncio.Task[None] | None" = None


@dataclass(frozen=True, slots=True)
class _Outcome:
    asked: LongCall
    until: float
    result: Callable[[], Any]


class LongCalls:
    """Runs long calls in their own threads. `ended` gets the key of a call that nobody waited for."""

    def __init__(
        self,
        metrics: Metrics,
        ended: Callable[[ObjectKey], None],
        *,
        patience: float = 3.0,
        clock: Clock | None = None,
        may_act: Callable[[], bool] = lambda: True,
        slow_servers: SlowServers | None = None,
    ) -> None:
        self._metrics = metrics
        self._slow_servers = slow_servers or SlowServers()
        self._may_act = may_act
        self._ended = ended
        self._patience = patience
        self._clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="long")
        self._calls: dict[tuple[ObjectKey, str], _Call] = {}
        self._outcomes: dict[tuple[ObjectKey, str], _Outcome] = {}
        self._running: set[asyncio.Future[Any]] = set()

    @property
    def busy(self) -> int:
        """The number of busy threads, including those of calls that were given up."""
        return len(self._running)

    def under_way(self, key: ObjectKey) -> bool:
        """Returns whether a call for `key` runs or has an untaken result. Ignores given up calls."""
        return any(each == key and call.given_up is None for (each, _), call in self._calls.items())

    def asked(self, key: ObjectKey, what: str) -> object:
        """Returns the `how` of the call with this name, or None if there is none."""
        call = self._calls.get((key, what))
        return None if call is None or call.given_up is not None else call.asked.how

    async def run(
        self, asked: LongCall, work: Callable[[], T], *, late: Callable[[T], None] | None = None
    ) -> T:
        """Returns the result of `work`, if it ends within the patience or has ended since an earlier call.

        `late` gets, in a thread, a result that nobody takes. Raises the errors of `work`, `UnderWay` while it
        is running or queued, and `NotLeading`.
        """
        name = asked.key, asked.what
        call = self._calls.get(name)
        if call is None:
            if (known := self._remembered(asked)) is not None:
                return known.result()  # type: ignore[no-any-return]
            call = self._begin(asked, work, late)
            await self._wait(call)
        elif call.asked != asked:
            self._give_up(call)
        if call.given_up is not None or not call.future.done():
            call.left = True
            raise UnderWay(call.since)
        del self._calls[name]
        if call.left:
            self._remember(call)
        return call.future.result()  # type: ignore[no-any-return]

    def give_up(self, key: ObjectKey) -> None:
        """Gives up the running calls of `key` and their results."""
        for name in [each for each in self._outcomes if each[0] == key]:
            del self._outcomes[name]
        for call in [call for (each, _), call in self._calls.items() if each == key]:
            self._give_up(call)

    async def give_up_all(self) -> None:
        """Gives up all calls, and waits until they have ended."""
        for call in tuple(self._calls.values()):
            self._give_up(call)
        await asyncio.gather(*(call.given_up for call in self._calls.values() if call.given_up))

    def close(self) -> None:
        """Stops accepting calls. Doesn't wait for running ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, asked: LongCall, work: Callable[[], T], late: Callable[[T], None] | None) -> _Call:
        if not self._may_act():
            raise NotLeading(
                f"{asked.what} in {asked.location} was not started: this operator is no longer the leader,"
                " and the new leader starts it"
            )
        if self._is_full(asked):
            raise UnderWay(None)
        future = self._in_thread(work)
        call = _Call(asked, self._clock.wall(), self._clock.monotonic(), future, late)
        future.add_done_callback(functools.partial(self._over, call))
        self._calls[asked.key, asked.what] = call
        return call

    def _is_full(self, asked: LongCall) -> bool:
        """Returns whether a call must be queued, so that other locations and namespaces get threads."""
        slow = self._slow_servers.is_slow(asked.location)
        left = [call.asked for call in self._calls.values() if call.left]
        alike = [each for each in left if self._slow_servers.is_slow(each.location) is slow]
        ours = [each for each in left if each.key.namespace == asked.key.namespace]
        ours_alike = [each for each in alike if each.key.namespace == asked.key.namespace]
        return (
            sum(each.location == asked.location for each in left) >= _MOST_OF_LOCATION
            or len(alike) >= (_MOST_OF_SLOW if slow else _MOST)
            or len(ours_alike) >= (_MOST_OF_NAMESPACE_SLOW if slow else _MOST_OF_NAMESPACE)
            # A server that was never called doesn't count as slow, so these limits are also needed.
            or len(ours) >= (_THREADS - _BESIDE) // 2
            or len(left) >= _THREADS - _BESIDE
        )

    async def _wait(self, call: _Call) -> None:
        if self._slow_servers.is_slow(call.asked.location):
            return
        await asyncio.wait([call.future], timeout=self._patience)
        if not call.future.done():
            self._slow_servers.waits(call.asked.location)

    def _in_thread(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(self._threads, context.run, work)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def _over(self, call: _Call, future: "asyncio.Future[Any]") -> None:
        call.ended = self._clock.monotonic()
        if future.cancelled():
            return
        error = future.exception()
        outcome = outcome_of(error) if error else "ok"
        if not isinstance(error, StoreUnreachable) or call.ended - call.begun <= self._patience:
            self._slow_servers.answered(call.asked.location)
        self._metrics.store_calls.labels(call.asked.what, outcome).inc()
        if call.left and call.given_up is None:
            self._ended(call.asked.key)

    def _give_up(self, call: _Call) -> None:
        if call.given_up is None:
            call.given_up = asyncio.create_task(self._let_go(call))

    async def _let_go(self, call: _Call) -> None:
        try:
            result = await asyncio.shield(call.future)
            if call.late is not None:
                log.info("%s of %s ended, and its result is closed: it is no longer needed", *_told(call))
                await asyncio.shield(self._in_thread(functools.partial(call.late, result)))
        except HoldfastError as error:
            log.info("%s of %s failed; it is no longer needed: %s", *_told(call), error)
        except Exception:
            log.exception("%s of %s failed; it is no longer needed", *_told(call))
        finally:
            del self._calls[call.asked.key, call.asked.what]
            self._ended(call.asked.key)

    def _remember(self, call: _Call) -> None:
        if call.late is None or call.future.exception() is not None:
            error = call.future.exception()
            took = call.ended - call.begun
            longest = LONGEST_PAUSE if isinstance(error, StoreUnreachable) else _LONGEST_PAUSE
            until = call.ended + min(longest, max(_SHORTEST_PAUSE, took))
            _without_locals(error)
            self._outcomes[call.asked.key, call.asked.what] = _Outcome(call.asked, until, call.future.result)

    def _remembered(self, asked: LongCall) -> _Outcome | None:
        known = self._outcomes.get((asked.key, asked.what))
        if known is not None and (known.asked != asked or self._clock.monotonic() >= known.until):
            del self._outcomes[asked.key, asked.what]
            return None
        return known


def _told(call: _Call) -> tuple[str, str]:
    return call.asked.what, call.asked.location


def _without_locals(error: BaseException | None) -> None:
    """Releases objects that the frames of an error hold, such as a whole catalog."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
