"""Polls the stores for changes by other processes, with one query for each open catalog.

Invariants
- A collection at rest is reconciled only if its store has changed. So all resting collections of a catalog
  together cost one query, and no request to the API server. The resync of all resting collections also
  compares the catalog's items, and reconciles only collections that have changed.
- If the query fails, all collections of the catalog are reconciled, and each shows the error.
- There is at most one query at a time for each catalog. A store that doesn't respond delays no other catalog.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from holdfast.errors import HoldfastError
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.collections import store
from holdfast_operator.collections.facts import Basis, CollectionLook, FoundItem, ItemName
from holdfast_operator.collections.reading import changed, changed_items
from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.kube import NotLeading, ObjectKey

log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
_SLOW_AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class _Listed:
    basis: Basis
    name: ItemName
    item: FoundItem


class _Compared(NamedTuple):
    """A comparison that found no change. While all of this is the same, another one would find none."""

    handle: "weakref.ref[OpenCatalog]"
    edits: int
    mark: Hashable
    """The mark of the consensus store before the comparison. None if the store has no marks."""
    items_upper: int | None
    """The upper of the catalog at the last comparison of its items, if there was one."""


@dataclass(slots=True)
class _Watched:
    """The collections of one catalog."""

    looks: dict[ObjectKey, _Listed] = field(default_factory=dict)
    edits: int = 0
    """How often a reconciliation changed the looks."""
    compared: _Compared | None = None


class Watchlist:
    """The basis of each collection: the state of the store when the collection was last reconciled."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._watched: dict[ObjectKey, _Watched] = {}
        """By catalog."""
        self._catalogs: dict[ObjectKey, ObjectKey] = {}
        """The catalog of each collection."""

    async def look(self, catalog: ObjectKey, collection: ObjectKey, name: ItemName) -> CollectionLook:
        """Returns what catalog and storage hold of a collection, and adds the collection to the list.

        Raises `KeyError` if the catalog is neither open nor observed.
        """
        found = await self._stores.read(catalog, "look", lambda handle: store.look(handle, name))
        self.forget(collection)
        if found.basis is not None and found.item_id is not None:
            item = FoundItem(found.item_id, found.definition)
            there = self._watched.setdefault(catalog, _Watched())
            there.looks[collection] = _Listed(found.basis, name, item)
            there.edits += 1
            self._catalogs[collection] = catalog
        return found

    async def changed(self, catalog: ObjectKey, *, items: bool = False) -> tuple[ObjectKey, ...]:
        """Returns the collections that have changed in the store since they were last reconciled.

        Compares the items of the catalog only if asked to. Returns nothing if the catalog isn't open for
        writing. Compares nothing again while the store has the same mark, and no items while the catalog has
        the same upper.
        """
        there = self._watched.get(catalog)
        if there is None or not self._is_polled(catalog):
            return ()
        looks, edits, before = dict(there.looks), there.edits, there.compared

        def work(handle: OpenCatalog) -> tuple[tuple[ObjectKey, ...], Mapping[ObjectKey, Basis], _Compared]:
            is_known = before is not None and before.edits == edits and before.handle() is handle
            known_mark, upper = (before.mark, before.items_upper) if before and is_known else (None, None)
            # Read first: what is written during the comparison changes the next mark.
            mark = handle.client.location.consensus.mark()
            found: tuple[ObjectKey, ...] = ()
            same: Mapping[ObjectKey, Basis] = {}
            if mark is None or mark != known_mark:
                bases = {collection: each.basis for collection, each in looks.items()}
                found, same = changed(handle.client, handle.controller, bases)
            if items:
                named = {collection: (each.name, each.item) for collection, each in looks.items()}
                upper, others = handle.read(
                    lambda there: (there.upper, () if there.upper == upper else changed_items(there, named))
                )
                found += others
            return tuple(dict.fromkeys(found)), same, _Compared(weakref.ref(handle), edits, mark, upper)

        found, same, compared = await self._stores.use(catalog, "changed", work)
        if not found:
            there.compared = compared
        for collection, basis in same.items():
            # A reconciliation may have read a newer basis meanwhile.
            if there.looks.get(collection) is looks[collection]:
                there.looks[collection] = replace(looks[collection], basis=basis)
        return found

    def covers(self, collection: ObjectKey) -> bool:
        """Returns whether the polls find each change in the store of a collection."""
        catalog = self._catalogs.get(collection)
        return catalog is not None and self._is_polled(catalog)

    def _is_polled(self, catalog: ObjectKey) -> bool:
        opening = self._stores.opened(catalog)
        return opening is not None and not opening.observed

    def watched(self, catalog: ObjectKey) -> tuple[ObjectKey, ...]:
        """Returns the collections of a catalog that are on the list."""
        there = self._watched.get(catalog)
        return () if there is None else tuple(there.looks)

    def forget(self, collection: ObjectKey) -> None:
        """Removes a collection from the list, until it is reconciled again."""
        catalog = self._catalogs.pop(collection, None)
        if catalog is not None:
            there = self._watched[catalog]
            del there.looks[collection]
            there.edits += 1
            if not there.looks:
                del self._watched[catalog]


class Poll:
    """Polls the stores, and enqueues each collection that has changed in its store."""

    def __init__(
        self,
        stores: Stores,
        watchlist: Watchlist,
        enqueue: Callable[[ObjectKey], None],
        clock: Clock,
        seconds: float,
        resync: float,
    ) -> None:
        """Polls every `seconds`. The first poll of a catalog after each `resync` seconds is a resync."""
        self._stores = stores
        self._watchlist = watchlist
        self._enqueue = enqueue
        self._clock = clock
        self._seconds = seconds
        self._resync = resync
        self._synced: dict[ObjectKey, float] = {}
        """By catalog: when its last resync began."""
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
        now = self._clock.monotonic()
        due = now - self._synced.setdefault(catalog, now) >= self._resync
        try:
            new = await self._watchlist.changed(catalog, items=due)
            if due:
                self._synced[catalog] = now
        except NotLeading:
            return
        except HoldfastError as error:
            log.info("can't poll %s for changes: %s", catalog, error)
            new = self._watchlist.watched(catalog)
        for key in new:
            self._enqueue(key)
