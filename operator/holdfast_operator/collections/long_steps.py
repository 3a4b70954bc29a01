"""Steps on renditions that may take minutes, while their collection is reconciled as usual.

Invariants
- Each reconciliation requests a running step again, and shows the step's `resting` state until it ends.
- A step that is no longer needed is signalled to stop. It ends as soon as it notices.
- It is no error if another process writes, aborts or drops the rendition during a step. The next
  reconciliation finds that.
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
from holdfast_operator.collections.steps import Erase, Hydrate, LongChange, MakeDifference, Restore
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.handler import Halt
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.steps import Settle
from holdfast_operator.places.bounds import Bounds
from holdfast_operator.places.long_calls import UnderWay

log = logging.getLogger(__name__)

_BY_OTHERS: Final = (
    Superseded,
    NotCaughtUp,
    HandoverInProgress,
    UpperMismatch,
    HandleExpired,
    ShardFinalized,
)
"""Errors that occur if another process wrote, aborted or dropped the rendition meanwhile."""


def _name(step: type[LongChange]) -> str:
    """Returns the name of a kind of step among the long calls."""
    return step.__name__.lower()


class LongSteps:
    """Runs long steps: one at a time for each collection and kind of step."""

    def __init__(
        self, stores: Stores, data_dir: Path | None, allowed_locations: tuple[str, ...] = ()
    ) -> None:
        self._stores = stores
        self._data_dir = data_dir
        self._allowed_locations = allowed_locations
        self._stops: dict[ObjectKey, threading.Event] = {}
        """By collection: set if its running step is no longer needed."""
        self._restoring: dict[ObjectKey, str] = {}
        """By collection: the rendition to restore into."""

    def make_way(self, key: ObjectKey) -> None:
        """Stops the running step of a collection that no longer needs it, unless it deletes the data."""
        if self._stores.asked(key, _name(Erase)) is None:
            self.stop(key)

    def stop(self, key: ObjectKey) -> None:
        """Stops the running step of a collection. It ends as soon as it notices."""
        self._restoring.pop(key, None)
        if (stop := self._stops.pop(key, None)) is not None:
            stop.set()
            self._stores.give_up(key)

    def filling(self, key: ObjectKey, collection_id: str) -> str | None:
        """Returns the rendition of a collection that this process is filling, if any."""
        asked = self._stores.asked(key, _name(Hydrate))
        match asked:
            case (str() as of, str() as rendition_id) if of == collection_id:
                return rendition_id
        return None

    async def take(self, key: ObjectKey, step: LongChange, catalog: ObjectKey) -> None:
        """Runs a step. Raises `Halt` with the step's `resting` state while it runs or waits."""
        asked = key, _name(type(step)), (step.collection_id, step.rendition_id)
        bounds = Bounds(key.namespace, self._data_dir, self._allowed_locations)
        stop = self._stops.setdefault(key, threading.Event())
        if isinstance(step, Restore):
            # A restore from an earlier value ends.
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
    """Returns what to show after a failed step. Raises the error if it must be handled elsewhere."""
    if isinstance(step, MakeDifference):
        # The difference is only an optimization.
        log.info("can't store the difference of the last handover: %s", error)
    elif isinstance(error, RestoreFailed | NotAllowed):
        resting = replace(resting, health=settled(error).health, requeue_after=None)
    elif isinstance(error, _BY_OTHERS):
        log.info("rendition %s: %s", step.rendition_id, error)
    else:
        raise error
    return replace(resting, retry=True)
