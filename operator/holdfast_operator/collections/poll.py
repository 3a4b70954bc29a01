"""What changed in the stores behind our back: one question for each open catalog and tick.

Invariants
- A collection that rests is looked at when its store has something new of it, and else by the resync: what
  rests costs one question for all of its catalog, and nothing to the API server.
- Where that can't be answered, all of them are looked at: each shows why.
- A catalog is asked about once at a time, and one whose store doesn't answer delays no other.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from holdfast.errors import HoldfastError
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.kube import NotLeading, ObjectKey

log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
_SLOW_AT_ONCE: Final = 2


class Ticks:
    """Has those looked at of which a store has something new."""

    def __init__(
        self, stores: Stores, enqueue: Callable[[ObjectKey], None], clock: Clock, seconds: float
    ) -> None:
        self._stores = stores
        self._enqueue = enqueue
        self._clock = clock
        self._seconds = seconds
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self._asking_slow = asyncio.Semaphore(_SLOW_AT_ONCE)
        self._asked: set[ObjectKey] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Tick until `stop`."""
        async with asyncio.TaskGroup() as ticks:
            while not stop.is_set():
                await self._clock.wait(stop, self._seconds)
                for catalog in self._stores:
                    if catalog not in self._asked:
                        self._asked.add(catalog)
                        ticks.create_task(self._tick(catalog, stop))

    async def _tick(self, catalog: ObjectKey, stop: asyncio.Event) -> None:
        try:
            async with self._asking_slow if self._stores.is_slow(catalog) else self._asking:
                if not stop.is_set():
                    await self._ask(catalog)
        finally:
            self._asked.discard(catalog)

    async def _ask(self, catalog: ObjectKey) -> None:
        try:
            changed = await self._stores.changed(catalog)
        except NotLeading:
            return
        except HoldfastError as error:
            log.info("what is new in %s can't be told: %s", catalog, error)
            changed = self._stores.looked_at(catalog)
        for key in changed:
            self._enqueue(key)
