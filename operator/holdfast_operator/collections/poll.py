"""Polls the stores for changes by other processes, with one query for each open catalog.

Invariants
- A collection at rest is reconciled only if its store has changed, and by the resync. So all resting
  collections of a catalog together cost one query, and no request to the API server.
- If the query fails, all collections of the catalog are reconciled, and each shows the error.
- There is at most one query at a time for each catalog. A store that doesn't respond delays no other catalog.
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
    """The basis of each collection: the state of the store when the collection was last reconciled."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._looks: dict[ObjectKey, tuple[ObjectKey, Basis]] = {}
        """By collection, with its catalog."""

    async def look(self, catalog: ObjectKey, collection: ObjectKey, name: ItemName) -> CollectionLook:
        """Returns what catalog and storage hold of a collection, and adds the collection to the list.

        Raises `KeyError` if the catalog is neither open nor observed.
        """
        found = await self._stores.read(catalog, "look", lambda handle: store.look(handle, name))
        if found.basis is not None:
            self._looks[collection] = catalog, found.basis
        return found

    async def changed(self, catalog: ObjectKey) -> tuple[ObjectKey, ...]:
        """Returns the collections that have changed in the store since they were last reconciled.

        Returns nothing if the catalog isn't open for writing.
        """
        opening = self._stores.opened(catalog)
        looks = {collection: basis for collection, (its, basis) in self._looks.items() if its == catalog}
        if opening is None or opening.observed or not looks:
            return ()
        return await self._stores.use(
            catalog, "changed", lambda handle: changed(handle.client, handle.controller, looks)
        )

    def watched(self, catalog: ObjectKey) -> tuple[ObjectKey, ...]:
        """Returns the collections of a catalog that are on the list."""
        return tuple(collection for collection, (its, _) in self._looks.items() if its == catalog)

    def forget(self, collection: ObjectKey) -> None:
        """Removes a collection from the list, until it is reconciled again."""
        self._looks.pop(collection, None)


class Poll:
    """Polls the stores, and enqueues each collection that has changed in its store."""

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
        """Polls until `stop` is set."""
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
            log.info("can't poll %s for changes: %s", catalog, error)
            new = self._watchlist.watched(catalog)
        for key in new:
            self._enqueue(key)
