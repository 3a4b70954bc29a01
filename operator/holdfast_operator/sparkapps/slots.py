"""Limits the number of concurrent Spark jobs, in total and in each namespace.

Invariants
- The cluster is queried for running jobs. So no process must remember them.
- A job counts only if this process has launched it, or if the status of its owner shows it. Anybody who may
  create Jobs can give them any labels and owners, but only the operator writes a status.
- Between two queries, each launch of this process counts as soon as it is decided. So if two jobs want the
  last slot, only one gets it.
- Only one operator acts, so no other process launches jobs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.sparkapps.adapter import SparkAdapter, Unfinished

Shown = Callable[[ObjectKey], Awaitable[frozenset[Unfinished]]]
"""Returns the applications that the status of an object shows. Empty if there is no such object."""

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
        self,
        caps: Caps,
        adapter: SparkAdapter,
        clock: Clock,
        shown: Shown,
        namespaces: Sequence[str] = (),
    ) -> None:
        """`namespaces` are the namespaces in which jobs run. Empty means all."""
        self._caps = caps
        self._adapter = adapter
        self._clock = clock
        self._shown = shown
        self._namespaces = tuple(namespaces)
        self._lock = asyncio.Lock()
        self._asked = float("-inf")
        self._running: set[Unfinished] = set()
        self._launching: list[ObjectKey] = []
        self._launched: set[Unfinished] = set()
        """What this process has launched, until a query of the cluster shows that it is over or was not
        created."""

    async def full(self, key: ObjectKey) -> str | None:
        """Returns why an object's attempt can't be launched now, or None if it can. Raises `NotInstalled`."""
        if self._caps == Caps():
            return None
        async with self._lock:
            if self._clock.monotonic() - self._asked > _FRESH_SECONDS:
                # A launch that ends during the query may not be in its result, so it still counts here.
                known = set(self._launched)
                found = set(await self._adapter.unfinished(self._namespaces))
                self._running = found & await self._shown_by({each.owner for each in found - known})
                self._asked = self._clock.monotonic()
                self._launched -= known - found
        return self._full(key)

    async def _shown_by(self, owners: set[ObjectKey]) -> set[Unfinished]:
        return {app for owner in owners for app in await self._shown(owner)}

    def launched(self, app: Unfinished) -> None:
        """Records that this process has launched an application, or has tried to."""
        self._launched.add(app)

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

    def _full(self, key: ObjectKey) -> str | None:
        keys = [*self._launching, *(each.owner for each in self._launched | self._running)]
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
