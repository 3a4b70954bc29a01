"""Records in the status which processes fenced this operator, for the next process that reconciles it.

Invariants
- A fence is recorded once, even if several objects of the catalog notice it: the first one confirms the fence
  with the handle, records it, and closes the handle.
- If a fence can't be recorded, the operator still takes the catalog back. The next fence counts.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.catalog import FenceToken
from holdfast.errors import Fenced, HoldfastError
from holdfast_operator.api.catalog import CatalogFence
from holdfast_operator.catalogs import fencing
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.engine.cache import ObjectCache
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.handler import Services
from holdfast_operator.engine.health import Health, health_conditions
from holdfast_operator.engine.kube import Conflict, KubeError, ObjectKey
from holdfast_operator.engine.logging import about
from holdfast_operator.engine.status_writer import next_status

log = logging.getLogger(__name__)

_ROUNDS: Final = 5
_AT_ONCE: Final = 4
"""How many catalogs to check at once. It is less than the number of threads that a location may use."""


class FencedCatalogs:
    """Records fences of open catalogs, and closes those catalogs."""

    def __init__(self, services: Services, stores: Stores, cache: ObjectCache) -> None:
        self._services = services
        self._stores = stores
        self._cache = cache
        self._under_way: set[ObjectKey] = set()

    async def record_all(self) -> None:
        """Checks all open catalogs, and records which process fenced them.

        A process may end after a fence. If it checked only one catalog, it would have to restart once for
        each catalog that was taken over.
        """
        few = asyncio.Semaphore(_AT_ONCE)

        async def ask(catalog: ObjectKey) -> None:
            async with few:
                with about(catalog):
                    await self._record(catalog)

        await asyncio.gather(*(ask(catalog) for catalog in self._stores))

    async def take_back(self, catalog: ObjectKey) -> None:
        """Records the process that took a catalog over, and closes the catalog.

        The next reconciliation opens it again or leaves it to the other process. Does nothing if the catalog
        is not open or is still ours: then another object has already recorded the fence.
        """
        if catalog in self._under_way:
            return
        self._under_way.add(catalog)
        try:
            with about(catalog):
                if not await self._record(catalog):
                    return
                self._services.metrics.fences.inc()
                try:
                    await self._stores.close(catalog)
                except HoldfastError as failed:
                    log.info("can't release everything that the fenced handle holds: %s", failed)
        finally:
            self._under_way.discard(catalog)
        self._services.enqueue(catalog, 0.0)
        for dependent in self._cache.dependents_of(catalog):
            self._services.look(dependent)

    async def _record(self, catalog: ObjectKey) -> bool:
        try:
            await self._stores.confirm(catalog)
        except Fenced as fenced:
            log.warning("%s", fenced)
            await record(self._services, catalog, fenced, fencing.health)
            return True
        except HoldfastError as error:
            log.info("can't check who has the catalog: %s", error)
        return False


async def record(
    services: Services,
    key: ObjectKey,
    error: Fenced,
    shown: Callable[[Sequence[CatalogFence]], Health],
) -> None:
    """Adds a fence to `status.fencedBy` of an object. `shown` returns the health to show for all fences."""
    durable = error.durable
    holder, epoch = str(durable), 0
    if isinstance(durable, FenceToken):
        holder, epoch = durable.by, durable.epoch
    try:
        for _ in range(_ROUNDS):
            body = await services.kube.read(key)
            now = services.clock.wall()
            fences = fencing.with_fence(body, holder, epoch, now)
            health = shown(fences)
            old = body.get("status", {})
            fields = {k: v for k, v in old.items() if k not in {"observedGeneration", "conditions"}}
            fields["fencedBy"] = [each.model_dump(mode="json", by_alias=True) for each in fences]
            status = next_status(old, fields, health_conditions(health), body["metadata"]["generation"], now)
            try:
                await services.status.write(key, body, status)
            except Conflict:
                continue
            note = Note(health.reason, health.message, warning=True)
            await services.events.post(key, body["metadata"]["uid"], note)
            return
    except KubeError as failed:
        log.warning("can't record a fence: %s", failed)
