"""Blocking calls to stores, off the event loop.

Invariants
- A location has a share of the threads: one that hangs can't take those of the others. One that hangs again
  and again is left alone for a while (see `breaker`).
- A call has a deadline. What is late is given up by the caller, not stopped: its share is free when it really
  ends. What may take longer, or brings what must be closed, is no call for this (see `longcalls`).
- A line that is logged in a thread names the object of the task that called.
- A process that may not act (any more) begins no call.
"""

import asyncio
import contextvars
import functools
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from holdfast.errors import HoldfastError, StoreUnreachable
from holdfast_operator.reconcile.breaker import Breaker
from holdfast_operator.reconcile.failures import outcome_of
from holdfast_operator.runtime.clock import Clock, SystemClock
from holdfast_operator.runtime.kube import NotLeading
from holdfast_operator.runtime.metrics import Metrics

T = TypeVar("T")

_SHARE: Final = 8
_SILENCE: Final = 2.0
"""A refusal that took longer made its caller wait in vain."""


class StorePool:
    """Threads for store calls."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        threads: int = 32,
        deadline: float = 30.0,
        may_act: Callable[[], bool] = lambda: True,
        clock: Clock | None = None,
    ) -> None:
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._breaker = Breaker(self._clock)
        self._may_act = may_act
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="store")
        self._deadline = deadline
        self._busy: Counter[str] = Counter()

    @property
    def busy(self) -> int:
        """How many calls are under way, given up ones included."""
        return self._busy.total()

    @property
    def left_alone(self) -> int:
        """How many locations aren't asked now."""
        return self._breaker.open

    async def call(self, what: str, location: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread; `what` is the name of the call in metrics.

        Raises what it raises; `StoreUnreachable` where the deadline passes or the location's share is taken;
        `NotLeading`.
        """
        if not self._may_act():
            raise NotLeading(f"{what} in {location} is left to whoever leads now")
        if self._busy[location] >= _SHARE:
            self._count(what, "refused")
            raise StoreUnreachable(f"{self._busy[location]} calls to {location} hang already")
        try:
            self._breaker.admit(location)
        except StoreUnreachable:
            self._count(what, "refused")
            raise
        self._busy[location] += 1
        context, begun = contextvars.copy_context(), self._clock.monotonic()
        future = asyncio.get_running_loop().run_in_executor(self._threads, context.run, work)
        future.add_done_callback(functools.partial(self._ended, location))
        return await self._outcome(what, location, future, begun)

    async def _outcome(self, what: str, location: str, future: "asyncio.Future[T]", begun: float) -> T:
        try:
            result = await asyncio.wait_for(asyncio.shield(future), self._deadline)
        except TimeoutError:
            self._count(what, "timeout")
            said = f"{location} did not answer within {self._deadline:.0f} s"
            self._breaker.silent(location, said)
            raise StoreUnreachable(said) from None
        except asyncio.CancelledError:
            self._breaker.cut_off(location)
            raise
        except HoldfastError as error:
            self._count(what, outcome_of(error))
            took = self._clock.monotonic() - begun
            if isinstance(error, StoreUnreachable) and took > _SILENCE:
                self._breaker.silent(location, str(error))
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
        """Take no more calls; those under way are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, location: str, future: "asyncio.Future[object]") -> None:
        self._busy[location] -= 1
        if not self._busy[location]:
            del self._busy[location]
        if not future.cancelled():
            future.exception()  # looked at here, so that a late failure isn't reported as never retrieved

    def _count(self, what: str, outcome: str) -> None:
        self._metrics.store_calls.labels(what, outcome).inc()
