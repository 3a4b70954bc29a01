"""The keyed queue: workers that reconcile the keys of a `Schedule`.

Invariants
- At most `concurrency` keys are worked on at once, at most `most_of_owner` of one owner and `most_of_lane` of
  one lane. Each has one worker (see `schedule`).
- An exception is a failure of that key alone. It is logged, and the key comes back after its backoff.
- `stop` hands out no further keys, and waits for running work. It cancels work that exceeds the grace period.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast_operator.engine.clock import Clock, SystemClock
from holdfast_operator.engine.schedule import Backoff, Schedule

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of the work on a key, which decides when the key comes back.

    `requeue_after` is in seconds. With `retry`, the key comes back after its backoff, which grows with each
    retry in a row.
    """

    requeue_after: float | None = None
    retry: bool = False


class KeyedQueue(Generic[K]):
    """Runs `work(key)` for every added key, as often as needed and never twice at once."""

    def __init__(
        self,
        work: Callable[[K], Awaitable[Result]],
        *,
        concurrency: int = 8,
        backoff: Backoff | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        owner: Callable[[K], Hashable] = lambda _: None,
        most_of_owner: int = 64,
        lane: Callable[[K], Hashable] = lambda _: None,
        most_of_lane: int = 8,
    ) -> None:
        """Creates a queue. `Schedule` explains `owner` and `lane`."""
        self._work = work
        self._concurrency = concurrency
        self._clock = clock or SystemClock()
        self._schedule: Schedule[K] = Schedule(
            backoff=backoff,
            rng=rng,
            owner=owner,
            most_of_owner=most_of_owner,
            lane=lane,
            most_of_lane=most_of_lane,
        )
        self._changed = asyncio.Event()
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_end = self._clock.monotonic()

    def add(self, key: K, *, after: float = 0.0, routine: bool = False) -> None:
        """Schedules `key` in `after` seconds. Call it in the queue's event loop.

        A `routine` key hasn't changed. It lets changed keys go first.
        """
        self._schedule.add(key, self._clock.monotonic(), after=after, routine=routine)
        self._changed.set()

    def forget(self, key: K) -> None:
        """Forgets a key that is gone."""
        self._schedule.forget(key)

    @property
    def depth(self) -> int:
        """The number of keys that wait for a worker."""
        return self._schedule.depth(self._clock.monotonic())

    @property
    def oldest_wait(self) -> float:
        """Seconds for which the longest waiting key has been due."""
        return self._schedule.oldest_wait(self._clock.monotonic())

    @property
    def oldest_work(self) -> float:
        """Seconds for which the longest running work has been running."""
        return self._schedule.oldest_work(self._clock.monotonic())

    @property
    def idle(self) -> float:
        """Seconds since any work last ended."""
        return self._clock.monotonic() - self._last_end

    async def run(self) -> None:
        """Hands out keys until `stop`."""
        while not self._stopping:
            self._changed.clear()
            now = self._clock.monotonic()
            while len(self._tasks) < self._concurrency and (key := self._schedule.pop(now)) is not None:
                self._tasks.add(asyncio.create_task(self._one(key)))
            due = self._schedule.next_due(now)
            full = len(self._tasks) >= self._concurrency
            await self._clock.wait(self._changed, None if due is None or full else max(0.0, due - now))

    async def stop(self, grace: float) -> bool:
        """Stops handing out keys, and waits for running work. Returns False if it cancelled some work."""
        self._stopping = True
        self._changed.set()
        running = set(self._tasks)
        if not running:
            return True
        _, late = await asyncio.wait(running, timeout=grace)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return not late

    async def _one(self, key: K) -> None:
        result = Result(retry=True)
        try:
            result = await self._work(key)
        except Exception:
            log.exception("the work on %s failed", key)
        finally:
            self._last_end = self._clock.monotonic()
            self._schedule.done(
                key, self._clock.monotonic(), requeue_after=result.requeue_after, failed=result.retry
            )
            # Before `run` is woken: it must find a worker free.
            task = asyncio.current_task()
            assert task is not None
            self._tasks.discard(task)
            self._changed.set()
