"""Blocking calls to stores, off the event loop.

Invariants
- Each location has a limited share of the threads, so one that hangs can't take the threads of others. All
  locations on slow servers together have a limited share too (see `slow_servers`). A location that hangs
  repeatedly is not called for a while (see `breaker`).
- A call has a deadline. The caller gives a late call up, but doesn't stop it: its thread is free when the
  call really ends. Calls that may take longer, or whose result must be closed, belong into `long_calls`.
- A log line in a thread names the object of the calling task.
- A process that doesn't lead starts no call.
"""

import asyncio
import contextvars
import functools
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from holdfast.errors import HoldfastError, StoreUnreachable
from holdfast_operator.engine.clock import Clock, SystemClock
from holdfast_operator.engine.failures import outcome_of
from holdfast_operator.engine.kube import NotLeading
from holdfast_operator.engine.logging import redact
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.places.breaker import Breaker
from holdfast_operator.places.slow_servers import SlowServers

T = TypeVar("T")

_THREADS: Final = 64
_SHARE: Final = 8
_SHARE_OF_SLOW: Final = 16
_SILENCE: Final = 2.0
"""Seconds after which an unreachable store counts as silent, because the caller waited for nothing."""


class StorePool:
    """Threads for store calls."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        deadline: float = 30.0,
        may_act: Callable[[], bool] = lambda: True,
        clock: Clock | None = None,
        slow_servers: SlowServers | None = None,
    ) -> None:
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._breaker = Breaker(self._clock)
        self._slow_servers = slow_servers or SlowServers()
        self._may_act = may_act
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="store")
        self._deadline = deadline
        self._busy: Counter[str] = Counter()

    @property
    def busy(self) -> int:
        """The number of running calls, including those that were given up."""
        return self._busy.total()

    @property
    def left_alone(self) -> int:
        """The number of locations that are not called now."""
        return self._breaker.open

    def is_slow(self, location: str) -> bool:
        """Returns whether a location currently makes callers wait."""
        return self._slow_servers.is_slow(location)

    async def call(
        self, what: str, location: str, work: Callable[[], T], *, patience: float | None = None
    ) -> T:
        """Runs `work` in a thread, and returns its result. `what` is the name of the call in metrics.

        `patience` is a deadline in seconds, for calls that should not use the whole default. Raises the
        errors of `work`, `StoreUnreachable` if the deadline passes or the location's share is used up, and
        `NotLeading`.
        """
        if not self._may_act():
            raise NotLeading(
                f"{what} in {location} was not started: this operator is no longer the leader, and the new"
                " leader starts it"
            )
        if self._busy[location] >= _SHARE:
            self._count(what, "refused")
            raise StoreUnreachable(
                f"{location} was not called: {self._busy[location]} calls to it have no response yet"
            )
        if self._slow_servers.is_slow(location) and self._busy_with_slow >= _SHARE_OF_SLOW:
            self._count(what, "refused")
            raise StoreUnreachable(
                f"{location} was not called: it responds slowly, and too many calls to slow stores"
                " have no response yet"
            )
        try:
            self._breaker.admit(location)
        except StoreUnreachable:
            self._count(what, "refused")
            raise
        self._busy[location] += 1
        context, begun = contextvars.copy_context(), self._clock.monotonic()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, context.run, work)
        waits = loop.call_later(_SILENCE, self._slow_servers.waits, location)
        future.add_done_callback(functools.partial(self._ended, location, begun, waits))
        deadline = self._deadline if patience is None else min(patience, self._deadline)
        return await self._outcome(what, location, future, begun, deadline)

    async def _outcome(
        self, what: str, location: str, future: "asyncio.Future[T]", begun: float, deadline: float
    ) -> T:
        try:
            result = await asyncio.wait_for(asyncio.shield(future), deadline)
        except TimeoutError:
            self._count(what, "timeout")
            said = f"{location} did not respond within {deadline:.0f} s"
            self._breaker.silent(location, said)
            raise StoreUnreachable(said) from None
        except asyncio.CancelledError:
            self._breaker.cut_off(location)
            raise
        except HoldfastError as error:
            self._count(what, outcome_of(error))
            if self._is_silence(error, begun):
                # Callers of other namespaces get the same message.
                self._breaker.silent(location, redact(str(error)))
            else:
                self._breaker.answered(location)
            raise
        except BaseException:
            self._breaker.answered(location)
            raise
        self._breaker.answered(location)
        self._count(what, "ok")
        return result

    def close(self) -> None:
        """Accepts no more calls. Doesn't wait for running ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def _busy_with_slow(self) -> int:
        return sum(busy for location, busy in self._busy.items() if self._slow_servers.is_slow(location))

    def _is_silence(self, error: BaseException | None, begun: float) -> bool:
        return isinstance(error, StoreUnreachable) and self._clock.monotonic() - begun > _SILENCE

    def _ended(
        self, location: str, begun: float, waits: asyncio.TimerHandle, future: "asyncio.Future[object]"
    ) -> None:
        waits.cancel()
        self._busy[location] -= 1
        if not self._busy[location]:
            del self._busy[location]
        # Read the exception even if nobody waits, so that asyncio doesn't report it as never retrieved.
        if not future.cancelled() and not self._is_silence(future.exception(), begun):
            self._slow_servers.answered(location)

    def _count(self, what: str, outcome: str) -> None:
        self._metrics.store_calls.labels(what, outcome).inc()
