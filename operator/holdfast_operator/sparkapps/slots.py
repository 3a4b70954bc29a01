"""Limits the number of concurrent Spark jobs, in total and in each namespace.

Invariants
- The cluster is queried for running jobs. So no process must remember them.
- Between two queries, each launch of this process counts as soon as it is decided. So if two jobs want the
  last slot, only one gets it.
- Only one operator acts, so no other process launches jobs.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.sparkapps.adapter import SparkAdapter

_FRESH_SECONDS: Final = 2.0
"""Seconds for which the result of a query is used."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The maximum numbers of concurrent attempts. None means no limit."""

    in_all: int | None = None
    in_a_namespace: int | None = None


class Slots:
    """Counts concurrent attempts against the caps."""

    def __init__(
        self, caps: Caps, adapter: SparkAdapter, clock: Clock, namespaces: Sequence[str] = ()
    ) -> None:
        """`namespaces` are the namespaces in which jobs run. Empty means all."""
        self._caps = caps
        self._adapter = adapter
        self._clock = clock
        self._namespaces = tuple(namespaces)
        self._lock = asyncio.Lock()
        self._asked = float("-inf")
        self._running: dict[ObjectKey, int] = {}
        self._launching: list[ObjectKey] = []
        self._launched: list[ObjectKey] = []
        """Launches that succeeded or failed. The next query of the cluster includes them."""

    async def full(self, key: ObjectKey) -> str | None:
        """Returns why an object's attempt can't be launched now, or None if it can. Raises `NotInstalled`."""
        if self._caps == Caps():
            return None
        async with self._lock:
            if self._clock.monotonic() - self._asked > _FRESH_SECONDS:
                # A launch that ends during the query may not be in its result, so it still counts here.
                known = len(self._launched)
                self._running = dict(await self._adapter.running(self._namespaces))
                self._asked = self._clock.monotonic()
                del self._launched[:known]
        return self._full(key)

    @contextmanager
    def taken(self, key: ObjectKey) -> Iterator[bool]:
        """Takes a slot for an attempt of an object that is launched within. Yields whether there was one."""
        there = self._full(key) is None
        if there:
            self._launching.append(key)
        try:
            yield there
        finally:
            if there:
                self._launching.remove(key)
                self._launched.append(key)

    def _full(self, key: ObjectKey) -> str | None:
        running = (each for each, number in self._running.items() for _ in range(number))
        keys = [*self._launching, *self._launched, *running]
        beside = sum(each.namespace == key.namespace for each in keys)
        caps = self._caps
        if caps.in_all is not None and len(keys) >= caps.in_all:
            return _told(len(keys), "", "--spark-max-jobs")
        if caps.in_a_namespace is not None and beside >= caps.in_a_namespace:
            return _told(beside, f" in namespace {key.namespace}", "--spark-max-jobs-per-namespace")
        return None


def _told(number: int, where: str, flag: str) -> str:
    verb = "job runs" if number == 1 else "jobs run"
    return f"{number} Spark {verb}{where}, as many as {flag} allows; waiting for one to end"
