# ruff: noqa: D102 - the interface documents its methods
"""Committed changes as they come, decoded.

Invariants
- What a call took from the store and could not give out, the next call gives out: nothing is lost by an
  error, nothing comes twice.
- At each time fence token and config are looked at first.
"""

import logging
import time

from holdfast.durable.codec import Row, Update, decode
from holdfast.durable.interfaces import Change, Subscription
from holdfast.durable.preamble import preamble_of
from holdfast.durable.registry import COLLECTIONS
from holdfast.durable.store import CatalogStore
from holdfast.errors import (
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    HandleExpired,
    HoldfastError,
    StorageError,
)

_log = logging.getLogger(__name__)


class StoreSubscription(Subscription):
    """Changes at times from `lower` on; `fence` is the fence row before it, where the caller knows it."""

    def __init__(self, store: CatalogStore, lower: int, fence: Row | None = None) -> None:
        if lower < 0:
            raise BadInput(f"a subscription begins at time 0 or later, not at {lower}")
        upper = store.upper()
        if lower > upper:
            raise AsOfNotYetAvailable(lower - 1, upper)
        since = store.since
        if since > max(lower - 1, 0):
            raise AsOfTooEarly(lower - 1, since)
        self._store = store
        self._feed = store.feed(lower, fence=fence)
        self._frontier = lower
        self._due: list[tuple[int, list[Update]]] = []

    @property
    def frontier(self) -> int:
        return self._frontier

    def next(self, timeout: float | None = None) -> list[Change]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if not self._due:
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                self._due = self._feed.next(left)
            found = self._take()
            self._let_go()
            if found or (deadline is not None and time.monotonic() >= deadline):
                return found

    def close(self) -> None:
        self._store.close()

    def _take(self) -> list[Change]:
        """The changes that are due, up to the first time that can't be given out; raises why it can't."""
        found: list[Change] = []
        while self._due:
            at, updates = self._due[0]
            try:
                found += _decoded(at, updates)
            except HoldfastError:
                if not found:
                    raise
                self._frontier = at
                return found
            del self._due[0]
        self._frontier = self._feed.frontier
        return found

    def _let_go(self) -> None:
        try:
            self._store.release_before(self._frontier)
        except (StorageError, HandleExpired) as error:
            # The changes are out of the feed: they must not be lost by this.
            _log.warning("could not let go of the past of %s: %s", self._store.place, error)


def _decoded(at: int, updates: list[Update]) -> list[Change]:
    preamble_of(at, (update.row for update in updates if update.diff == 1)).check_readable()
    found = []
    for row, diff in sorted(updates, key=lambda update: (update.row.key[:2], update.diff)):
        collection = COLLECTIONS[row.kind]
        found.append(Change(at, collection, decode(collection, row), diff))
    return found
