# ruff: noqa: D102 - the interface documents its methods
"""Committed changes as they come, decoded."""

from holdfast.durable.codec import decode
from holdfast.durable.interfaces import Change, Subscription
from holdfast.durable.preamble import preamble_of
from holdfast.durable.registry import COLLECTIONS
from holdfast.durable.store import CatalogStore


class StoreSubscription(Subscription):
    """Changes at times from `lower` on. At each time fence token and config are looked at first."""

    def __init__(self, store: CatalogStore, lower: int) -> None:
        self._store = store
        self._feed = store.feed(lower)

    def next(self, timeout: float | None = None) -> list[Change]:
        found = []
        for time, updates in self._feed.next(timeout):
            preamble_of(time, (update.row for update in updates if update.diff == 1)).check_readable()
            for row, diff in sorted(updates, key=lambda update: (update.row.key[:2], update.diff)):
                collection = COLLECTIONS[row.kind]
                found.append(Change(time, collection, decode(collection, row), diff))
        self._store.release_before(self._feed.frontier)
        return found

    def close(self) -> None:
        self._store.close()
