"""What changed in the stores behind our back: one question at a time for each open catalog.

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
from holdfast_operator.collections import store
from holdfast_operator.collections.facts import Basis, CollectionLook, ItemName
from holdfast_operator.collections.reading import changed
from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.kube import NotLeading, ObjectKey

log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
_SLOW_AT_ONCE: Final = 2


class Watchlist:
    """What collections were made of when they were last looked at."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._looks: dict[ObjectKey, tuple[ObjectKey, Basis]] = {}
        """By collection, with its catalog."""

    async def look(self, catalog: ObjectKey, collection: ObjectKey, name: ItemName) -> CollectionLook:
        """What there is of a collection of an open or observed catalog. `KeyError` where it is neither.

        `collection` is on the list from then on.
        """
        found = await self._stores.read(catalog, "look", lambda handle: store.look(handle, name))
        if found.basis is not None:
            self._looks[collection] = catalog, found.basis
        return found

    async def changed(self, catalog: ObjectKey) -> tuple[ObjectKey, ...]:
        """The collections of which the store has something new since they were last looked at.

        Nothing where the catalog isn't open for writing.
        """
        opening = self._stores.opened(catalog)
        looks = {collection: basis for collection, (its, basis) in self._looks.items() if its == catalog}
        if opening is None or opening.observed or not looks:
            return ()
        return await self._stores.use(
            catalog, "changed", lambda handle: changed(handle.client, handle.controller, looks)
        )

    def watched(self, catalog: ObjectKey) -> tuple[ObjectKey, ...]:
        """The collections of a catalog that are on the list."""
        return tuple(collection for collection, (its, _) in self._looks.items() if its == catalog)

    def forget(self, collection: ObjectKey) -> None:
        """Take a collection off the list, until it is looked at again."""
        self._looks.pop(collection, None)


class Poll:
    """Asks the stores regularly, and has each collection reconciled of which its store has something new."""

    def __init__(
        self,
        stores: Stores,
        watchlist: Watchlist,
        enqueue: Callable[[ObjectKey], None],
        clock: Clock,
        seconds: float,
    ) -> None:
        self._stores = stores
        self._watchlist = watchlist
        self._enqueue = enqueue
        self._clock = clock
        self._seconds = seconds
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self._asking_slow = asyncio.Semaphore(_SLOW_AT_ONCE)
        self._asked: set[ObjectKey] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Ask until `stop`."""
        async with asyncio.TaskGroup() as polls:
            while not stop.is_set():
                await self._clock.wait(stop, self._seconds)
                for catalog in self._stores:
                    if catalog not in self._asked:
                        self._asked.add(catalog)
                        polls.create_task(self._poll(catalog, stop))

    async def _poll(self, catalog: ObjectKey, stop: asyncio.Event) -> None:
        try:
            async with self._asking_slow if self._stores.is_slow(catalog) else self._asking:
                if not stop.is_set():
                    await self._ask(catalog)
        finally:
            self._asked.discard(catalog)

    async def _ask(self, catalog: ObjectKey) -> None:
        try:
            new = await self._watchlist.changed(catalog)
        except NotLeading:
            return
        except HoldfastError as error:
            log.info("what is new in %s can't be told: %s", catalog, error)
            new = self._watchlist.watched(catalog)
        for key in new:
            self._enqueue(key)
