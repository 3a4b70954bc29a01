"""Who took what from this operator is put on record in a status, for whoever reconciles it next.

Invariants
- One fence is recorded once, however many objects of the catalog hear of it: the handle that was shut out is
  asked again, and closed.
- A catalog whose fence can't be recorded is taken back all the same: the next fence counts.
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
from holdfast_operator.engine.kube import Conflict, KubeError, ObjectKey
from holdfast_operator.engine.logging import about
from holdfast_operator.engine.status import Health, health_conditions, next_status

log = logging.getLogger(__name__)

_ROUNDS: Final = 5
_AT_ONCE: Final = 4
"""So many catalogs are asked at once who has them: fewer than a location has shares of the pool."""


class FencedCatalogs:
    """What becomes of open catalogs that another process took over."""

    def __init__(self, services: Services, stores: Stores, cache: ObjectCache) -> None:
        self._services = services
        self._stores = stores
        self._cache = cache
        self._under_way: set[ObjectKey] = set()

    async def record_all(self) -> None:
        """Put on record who took which of the open catalogs over, for whoever reconciles them next.

        All of them are asked: a process that ends after each fence must not have to come back once for each
        catalog that was taken from it.
        """
        few = asyncio.Semaphore(_AT_ONCE)

        async def ask(catalog: ObjectKey) -> None:
            async with few:
                with about(catalog):
                    await self._record(catalog)

        await asyncio.gather(*(ask(catalog) for catalog in self._stores))

    async def take_back(self, catalog: ObjectKey) -> None:
        """Put on record who took a catalog over, and close it: it is opened anew, or left to them.

        Nothing happens where it isn't open, or still ours: another object of it was told before.
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
                    log.info("what is left of the fenced handle can't be given back: %s", failed)
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
            log.info("who has the catalog can't be told now: %s", error)
        return False


async def record(
    services: Services,
    key: ObjectKey,
    error: Fenced,
    shown: Callable[[Sequence[CatalogFence]], Health],
) -> None:
    """Add a fence to `status.fencedBy` of an object, which shows the health that `shown` makes of all."""
    durable = error.durable
    holder, epoch = str(durable), 0
    if isinstance(durable, FenceToken):
        holder, epoch = durable.by, durable.epoch
    try:
        for _ in range(_ROUNDS):
            body = await services.kube.get(key)
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
        log.warning("a fence could not be recorded: %s", failed)
