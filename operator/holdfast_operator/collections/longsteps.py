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
from typing import Final

from holdfast.errors import (
    Fenced,
    HandleExpired,
    HandoverInProgress,
    HoldfastError,
    NotCaughtUp,
    ShardFinalized,
    UpperMismatch,
)
from holdfast_operator.catalogs.facts import NotAllowed, RestoreFailed
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.collections import store
from holdfast_operator.collections.facts import Superseded
from holdfast_operator.collections.steps import Hydrate, LongChange, MakeDifference, Restore
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.handler import Halt
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.steps import Settle
from holdfast_operator.places.bounds import Bounds
from holdfast_operator.places.longcalls import UnderWay

log = logging.getLogger(__name__)

_BY_OTHERS: Final = (
    Superseded,
    NotCaughtUp,
    HandoverInProgress,
    UpperMismatch,
    HandleExpired,
    ShardFinalized,
)
"""Somebody else wrote, aborted or dropped meanwhile: the next look tells."""


def _name(step: type[LongChange]) -> str:
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

    async def take(self, key: ObjectKey, step: LongChange, catalog: ObjectKey) -> None:
        """Take a step; the collection rests meanwhile, and where it has to wait."""
        asked = key, _name(type(step)), (step.collection_id, step.rendition_id)
        bounds = Bounds(key.namespace, self._data_dir, self._allowed_locations)
        stop = self._stops.setdefault(key, threading.Event())
        if isinstance(step, Restore):
            # That of another value, which was asked for before, ends.
            self._restoring[key] = step.rendition_id

        def stopped() -> bool:
            superseded = isinstance(step, Restore) and self._restoring.get(key) != step.rendition_id
            return stop.is_set() or superseded

        assert step.resting is not None
        try:
            await self._stores.use_long(
                catalog, asked, lambda handle: store.take_long(handle, step, stopped, bounds)
            )
        except UnderWay:
            raise Halt(step.resting) from None
        except Fenced:
            raise
        except HoldfastError as error:
            raise Halt(_after(step, step.resting, error)) from None


def _after(step: LongChange, resting: Settle, error: HoldfastError) -> Settle:
    """How a collection rests after a step that failed; raises the error where that is another's to say."""
    if isinstance(step, MakeDifference):
        # Everything is as right without.
        log.info("what differs with the last handover was not put down: %s", error)
    elif isinstance(error, RestoreFailed | NotAllowed):
        resting = replace(resting, health=settled(error).health, requeue_after=None)
    elif isinstance(error, _BY_OTHERS):
        log.info("rendition %s: %s", step.rendition_id, error)
    else:
        raise error
    return replace(resting, retry=True)
