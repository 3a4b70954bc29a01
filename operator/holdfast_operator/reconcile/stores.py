"""All catalogs that this process has open: at most one handle per Catalog.

Invariants
- A Catalog is opened by one call at a time: two would fence each other.
- Whoever finds that a catalog was taken over by another process hears `Fenced`; what then happens is decided
  above, and nothing is written here after that.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from holdfast.errors import HoldfastError, NotWritable, StoreUnreachable
from holdfast_operator.reconcile.facts import CatalogFacts, Durable, ItemName, Look, Opening, Start
from holdfast_operator.reconcile.observedcatalog import ObservedCatalog
from holdfast_operator.reconcile.opencatalog import OpenCatalog
from holdfast_operator.reconcile.opening import durable_state, preflight, try_upgrade
from holdfast_operator.reconcile.pool import StorePool
from holdfast_operator.reconcile.storage import Storage
from holdfast_operator.runtime.kube import ObjectKey

T = TypeVar("T")

log = logging.getLogger(__name__)


class Stores:
    """Opens, keeps and closes catalogs."""

    def __init__(self, pool: StorePool) -> None:
        self._pool = pool
        self._open: dict[ObjectKey, OpenCatalog | ObservedCatalog] = {}
        self._opening: set[ObjectKey] = set()
        self._void: set[ObjectKey] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(tuple(self._open))

    def opened(self, catalog: ObjectKey) -> Opening | None:
        """How the catalog was opened; None where it isn't."""
        handle = self._open.get(catalog)
        return handle.opening if handle else None

    def started(self, catalog: ObjectKey) -> Start | None:
        """What happened when the catalog was opened; None where it isn't."""
        handle = self._open.get(catalog)
        return handle.start if isinstance(handle, OpenCatalog) else None

    def is_void(self, catalog: ObjectKey) -> bool:
        """Whether its store was found to hold nothing, or nothing any more, or to be no store at all."""
        return catalog in self._void

    def note_void(self, catalog: ObjectKey, *, void: bool) -> None:
        """Remember what was found about that."""
        (self._void.add if void else self._void.discard)(catalog)

    async def open(
        self, catalog: ObjectKey, opening: Opening, credentials: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Take a catalog over, so that the epoch grows; or, if it is to be observed, only look.

        `credentials` are those of its stash: they aren't kept.
        """
        if catalog in self._opening:
            raise StoreUnreachable(f"opening {opening.storage} is still under way")
        if catalog in self._open:
            return
        self._opening.add(catalog)

        def work() -> OpenCatalog | ObservedCatalog:
            try:
                if opening.observed:
                    return ObservedCatalog.open(opening)
                return OpenCatalog.open(opening, credentials)
            finally:
                loop.call_soon_threadsafe(self._opening.discard, catalog)

        loop = asyncio.get_running_loop()
        handle = await self._pool.call("open", str(opening.storage), work, late=self._close_late)
        self._open[catalog] = handle
        self._void.discard(catalog)

    async def preflight(self, opening: Opening) -> None:
        """Try whether a catalog could be opened like this; it changes nothing. Raises what opening would."""
        await self._pool.call("preflight", str(opening.storage), lambda: preflight(opening))

    async def durable_state(self, opening: Opening) -> Durable:
        """What is known of a catalog that can't be opened."""
        return await self._pool.call("describe", str(opening.storage), lambda: durable_state(opening))

    async def try_upgrade(self, opening: Opening) -> str:
        """What an upgrade-check of a catalog that isn't open says, for people."""
        return await self._pool.call("try_upgrade", str(opening.storage), lambda: try_upgrade(opening))

    async def confirm(self, catalog: ObjectKey) -> CatalogFacts | None:
        """What an open catalog holds, after asking whether it is still ours; None where it isn't open."""
        handle = self._open.get(catalog)
        if handle is None:
            return None
        return await self._pool.call("confirm", str(handle.opening.storage), handle.confirm)

    async def look(self, catalog: ObjectKey, name: ItemName, request_id: str | None) -> Look:
        """What there is of a collection of an open or observed catalog. `KeyError` where it is neither."""
        handle = self._open[catalog]
        return await self._pool.call(
            "look", str(handle.opening.storage), lambda: handle.look(name, request_id)
        )

    async def use(self, catalog: ObjectKey, what: str, work: Callable[[OpenCatalog], T]) -> T:
        """Run `work` on an open catalog, in a thread.

        Raises `KeyError` where it isn't open, `NotWritable` where it is only observed.
        """
        handle = self._open[catalog]
        if isinstance(handle, ObservedCatalog):
            raise NotWritable(f"the catalog in {handle.opening.storage} is only observed")
        return await self._pool.call(what, str(handle.opening.storage), lambda: work(handle))

    async def close(self, catalog: ObjectKey) -> None:
        """Close a catalog; nothing happens where it isn't open."""
        handle = self._open.pop(catalog, None)
        if handle is not None:
            await self._pool.call("close", str(handle.opening.storage), handle.close)

    async def destroy(self, catalog: ObjectKey) -> None:
        """End an open catalog for ever, and close it."""
        await self.use(catalog, "destroy", OpenCatalog.destroy)
        await self.close(catalog)

    async def close_all(self) -> None:
        """Close everything, as far as the stores let us."""
        for catalog in list(self._open):
            with contextlib.suppress(HoldfastError):
                await self.close(catalog)

    def storage(self, catalog: ObjectKey) -> Storage | None:
        """Where an open catalog is."""
        opening = self.opened(catalog)
        return opening.storage if opening else None

    def _close_late(self, handle: OpenCatalog | ObservedCatalog) -> None:
        log.warning("opening %s took too long and is undone", handle.opening.storage)
        asyncio.get_running_loop().run_in_executor(None, handle.close)
