"""Who took what from this operator is put on record in a status, for whoever reconciles it next."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.durable import FenceToken
from holdfast.errors import Fenced
from holdfast_operator.api.catalog import CatalogFence
from holdfast_operator.reconcile import fencing
from holdfast_operator.reconcile.handler import Services
from holdfast_operator.runtime.events import Note
from holdfast_operator.runtime.kube import Conflict, KubeError, ObjectKey
from holdfast_operator.runtime.status import Health, marks, next_status

log = logging.getLogger(__name__)

_ROUNDS: Final = 5


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
        holder, epoch = f"{durable.holder}, {durable.purpose}", durable.epoch
    try:
        for _ in range(_ROUNDS):
            body = await services.kube.get(key)
            now = services.clock.wall()
            fences = fencing.with_fence(body, holder, epoch, now)
            health = shown(fences)
            old = body.get("status", {})
            fields = {k: v for k, v in old.items() if k not in {"observedGeneration", "conditions"}}
            fields["fencedBy"] = [each.model_dump(mode="json", by_alias=True) for each in fences]
            status = next_status(old, fields, marks(health), body["metadata"]["generation"], now)
            try:
                await services.status.write(key, body, status)
            except Conflict:
                continue
            note = Note(health.reason, health.message, warning=True)
            await services.events.post(key, body["metadata"]["uid"], note)
            return
    except KubeError as failed:
        log.warning("a fence could not be recorded: %s", failed)
