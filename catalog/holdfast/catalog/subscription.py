# ruff: noqa: D102 - the interface documents its methods
"""Committed changes as they arrive, decoded.

Invariants
- What a call read from the store but could not return, the next call returns. No error loses a change, and
  none is returned twice.
- At each time the fence token and config are checked first.
- Changes of a linked store are returned only while they are certainly the catalog's. From a state without the
  note of the truth on, the other store is asked, even while there are no changes. So if a store stops being
  the truth, its subscriptions end with an error, and never with silence.
- The note alone is not enough for long, because a store may be restored to a state that has the note. So the
  other store is asked now and then, even while there are no changes.
- A store to which the catalog moved has a past that isn't the catalog's. No subscription crosses that time.
"""

import logging
import time
from collections.abc import Mapping

from holdfast.catalog import config
from holdfast.catalog.interfaces import ObjectChange, Subscription
from holdfast.catalog.objects.codec import TAG_BYTES, Row, RowUpdate, decode
from holdfast.catalog.objects.registry import CONFIGS, OBJECT_TYPES, Kind
from holdfast.catalog.stores.preamble import preamble_of, read_preamble
from holdfast.catalog.stores.standing import Alone, Standing
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import (
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    HandleExpired,
    HoldfastError,
    NotSourceOfTruth,
    StorageError,
)
from holdfast.forks import OwnerProcess

CONFIRM_S = 0.5
"""How often a subscriber asks whether a linked store is still the truth, while that is uncertain (s)."""
LOOK_S = 2.0
"""How often it asks the other store while it is certain, in seconds."""

_log = logging.getLogger(__name__)


class StoreSubscription(Subscription):
    """Changes at times from `lower` on. `fence` is the fence row before it, if the caller knows it.

    Times before `floor` are not part of the catalog's history. `standing` decides whether the store has it.
    """

    def __init__(
        self,
        store: CatalogStore,
        lower: int,
        fence: Row | None = None,
        *,
        standing: Standing | None = None,
        floor: int = 0,
    ) -> None:
        if lower < 0:
            raise BadInput(f"a subscription must begin at time 0 or later, not at {lower}")
        upper = store.upper()
        if lower > upper:
            raise AsOfNotYetAvailable(lower - 1, upper)
        since = max(store.since, floor)
        if since > max(lower - 1, 0):
            raise AsOfTooEarly(lower - 1, since)
        self._owner = OwnerProcess()
        self._store = store
        self._feed = store.feed(lower, fence=fence)
        self._frontier = lower
        self._due: list[tuple[int, list[RowUpdate]]] = []
        self._standing = standing or Alone()
        before = read_preamble(store, lower).config
        # For the state before `frontier`: whether it is linked, and whether it has the note.
        self._marks = {key: key in before for key in (config.LINK, config.TRUTH)}

    @property
    def frontier(self) -> int:
        return self._frontier

    def next(self, timeout: float | None = None) -> list[ObjectChange]:
        self._owner.check("this subscription")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if not self._due:
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                if self._marks[config.LINK]:
                    self._confirm_other()
                    pause = LOOK_S if self._is_certain else CONFIRM_S
                    left = pause if left is None else min(left, pause)
                self._due = self._feed.next(left)
            if not self._due and not self._is_certain:
                self._standing.confirm(self._store)
            found = self._take()
            self._let_go()
            if found or (deadline is not None and time.monotonic() >= deadline):
                return found

    def close(self) -> None:
        if self._owner.is_here:
            try:
                self._store.close()
            finally:
                self._standing.close()

    def _confirm_other(self) -> None:
        try:
            self._standing.confirm_reader(always=False)
        except NotSourceOfTruth:
            # The catalog was moved. The coming changes show it, after the changes before.
            return

    def _take(self) -> list[ObjectChange]:
        """The changes that are due, up to the first time that can't be returned. Raises why it can't."""
        found: list[ObjectChange] = []
        confirmed: int | None = None
        while self._due:
            at, updates = self._due[0]
            marks = _marks_after(self._marks, updates)
            try:
                if not _certain(marks):
                    if confirmed is None:
                        confirmed = self._standing.confirm(self._store)
                    if confirmed > at:
                        raise AsOfTooEarly(at, confirmed)
                _check_no_move(at, updates)
                found += _decoded(at, updates)
            except HoldfastError:
                if not found:
                    raise
                self._frontier = at
                return found
            self._marks = marks
            del self._due[0]
        self._frontier = self._feed.frontier
        return found

    @property
    def _is_certain(self) -> bool:
        return _certain(self._marks)

    def _let_go(self) -> None:
        try:
            self._store.release_before(self._frontier)
        except (StorageError, HandleExpired) as error:
            # The changes were taken from the feed. This error must not lose them.
            _log.warning("can't release the past of %s: %s", self._store.place, error)


def _certain(marks: Mapping[str, bool]) -> bool:
    """Whether a state alone shows that the catalog is here."""
    return marks[config.TRUTH] or not marks[config.LINK]


def _marks_after(marks: Mapping[str, bool], updates: list[RowUpdate]) -> dict[str, bool]:
    found = dict(marks)
    for row, diff in sorted(updates, key=lambda update: update.diff):
        if row.key[:TAG_BYTES] == Kind.CONFIG.tag:
            key = decode(CONFIGS, row).key.key
            if key in found:
                found[key] = diff == 1
    return found


def _check_no_move(at: int, updates: list[RowUpdate]) -> None:
    """Raise `AsOfTooEarly` if the contents at this time came from the other store."""
    for row, diff in updates:
        if diff == 1 and row.key[:TAG_BYTES] == Kind.CONFIG.tag:
            found = decode(CONFIGS, row)
            if found.key.key == config.TRUTH_SINCE and found.value.value >= at > 0:
                raise AsOfTooEarly(at - 1, found.value.value)


def _decoded(at: int, updates: list[RowUpdate]) -> list[ObjectChange]:
    preamble_of(at, (update.row for update in updates if update.diff == 1)).check_readable()
    found = []
    for row, diff in sorted(updates, key=lambda update: (update.row.key[:2], update.diff)):
        collection = OBJECT_TYPES[row.kind]
        found.append(ObjectChange(at, collection, decode(collection, row), diff))
    return found
