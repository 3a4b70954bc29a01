"""Steps on renditions that may take minutes, while their collection is looked at as ever.

Invariants
- A step that is under way is asked for again at each look, and what is shown meanwhile is what it rests as.
- What nobody wants any more is told so, and ends as soon as it notices.
- A rendition that somebody else wrote, gave up or dropped meanwhile is no error: the next look tells.
"""

import logging
import threading
from dataclasses import replace
from pathlib import Path

from holdfast.errors import (
    Fenced,
    HandleExpired,
    HandoverInProgress,
    HoldfastError,
    NotCaughtUp,
    ShardFinalized,
    UpperMismatch,
)
from holdfast_operator.catalogs.facts import NotAllowed, RestoreFailed, Superseded
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.collections.renditions import (
    Advance,
    HandOver,
    Hydrate,
    LongStep,
    MakeDifference,
    Restore,
)
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.handler import Halt
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.places.bounds import Bounds
from holdfast_operator.places.longcalls import UnderWay

log = logging.getLogger(__name__)


def _name(step: type[LongStep]) -> str:
    """What a kind of step is called among the long calls."""
    return step.__name__.lower()


class LongSteps:
    """Takes them; one at a time for a collection and kind of step."""

    def __init__(
        self, stores: Stores, data_dir: Path | None, allowed_locations: tuple[str, ...] = ()
    ) -> None:
        self._stores = stores
        self._data_dir = data_dir
        self._allowed_locations = allowed_locations
        self._stops: dict[ObjectKey, threading.Event] = {}
        """Set where nobody wants any more what is under way for a collection."""
        self._restoring: dict[ObjectKey, str] = {}
        """The rendition that is to be restored into."""

    def stop(self, key: ObjectKey) -> None:
        """Nobody wants what is under way for a collection; it ends as soon as it notices."""
        self._restoring.pop(key, None)
        if (stop := self._stops.pop(key, None)) is not None:
            stop.set()
            self._stores.give_up(key)

    def filling(self, key: ObjectKey, collection_id: str) -> str | None:
        """The rendition of a collection that is being filled from it in this process."""
        asked = self._stores.asked(key, _name(Hydrate))
        match asked:
            case (str() as of, str() as rendition_id) if of == collection_id:
                return rendition_id
        return None

    async def take(self, key: ObjectKey, step: LongStep, catalog: ObjectKey) -> None:
        """Fill a rendition, or hand over to it; the collection rests meanwhile, and where it has to wait."""
        asked = key, _name(type(step)), (step.collection_id, step.rendition_id)
        assert step.resting is not None
        stop = self._stops.setdefault(key, threading.Event())
        try:
            match step:
                case Hydrate():
                    await self._stores.use_long(
                        catalog,
                        asked,
                        lambda h: h.hydrate(step.collection_id, step.rendition_id, stop.is_set),
                    )
                case HandOver():
                    await self._stores.use_long(
                        catalog,
                        asked,
                        lambda h: h.hand_over(step.collection_id, step.rendition_id, step.at, stop.is_set),
                    )
                case Restore():
                    await self._restore(key, step, catalog, stop)
                case Advance():
                    await self._stores.use_long(catalog, asked, lambda h: h.advance(step.collection_id))
                case MakeDifference():
                    await self._make_difference(asked, step, catalog)
                case _:
                    raise AssertionError(step)
        except UnderWay:
            raise Halt(step.resting) from None
        except (RestoreFailed, NotAllowed) as error:
            health = settled(error).health
            raise Halt(replace(step.resting, health=health, requeue_after=None, retry=True)) from None
        except (
            Superseded,
            NotCaughtUp,
            HandoverInProgress,
            UpperMismatch,
            HandleExpired,
            ShardFinalized,
        ) as error:
            # Somebody else wrote, aborted or dropped meanwhile: the next look tells.
            log.info("rendition %s: %s", step.rendition_id, error)
            raise Halt(replace(step.resting, retry=True)) from None

    async def _make_difference(
        self, asked: tuple[ObjectKey, str, object], step: MakeDifference, catalog: ObjectKey
    ) -> None:
        try:
            await self._stores.use_long(catalog, asked, lambda h: h.make_difference(step.collection_id))
        except Fenced:
            raise
        except HoldfastError as error:
            # Everything is as right without.
            log.info("what differs with the last handover was not put down: %s", error)
            assert step.resting is not None
            raise Halt(replace(step.resting, retry=True)) from None

    async def _restore(
        self, key: ObjectKey, step: Restore, catalog: ObjectKey, stop: threading.Event
    ) -> None:
        id_ = step.rendition_id
        bounds = Bounds(key.namespace, self._data_dir, self._allowed_locations)
        # That of another value, which was asked for before, ends.
        self._restoring[key] = id_

        def stopped() -> bool:
            return stop.is_set() or self._restoring.get(key) != id_

        await self._stores.use_long(
            catalog,
            (key, "restore", (step.collection_id, id_)),
            lambda h: h.restore(
                step.collection_id,
                id_,
                step.snapshot,
                bounds=bounds,
                room=step.room,
                stopped=stopped,
            ),
        )
