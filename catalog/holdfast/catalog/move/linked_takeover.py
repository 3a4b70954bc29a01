"""What a process does before it writes to a linked catalog: it takes over, notes the truth, and reads it.

Invariants
- The note of the truth (`config.TRUTH`) is written under a token that is in both stores: with the fence of
  persist, which is the second one, or after it.
- Before an open returns, each store notes the token of the other one, and the last move. See `notes`.
- The initial objects are written to the truth of a complete link, in one append with its note.
- Contents are decoded once. Commits after the read are applied change by change.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from holdfast.catalog import config, takeover
from holdfast.catalog.cache import Cache
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.move.link import Linked, notes
from holdfast.catalog.move.notes import (
    arrived,
    arriving,
    completing,
    has_looked,
    looked,
    next_move,
)
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.move.two_stores import (
    Check,
    StoreCommit,
    Taken,
    TwoStores,
    pauses,
    take_over_both,
    unchecked,
)
from holdfast.catalog.objects.codec import RowUpdate
from holdfast.catalog.opening import loaded
from holdfast.catalog.stores.preamble import Preamble, committed, read_preamble
from holdfast.catalog.stores.store import FenceRow, past_of
from holdfast.catalog.upgrade.plan import Plan, released
from holdfast.catalog.upgrade.runner import Upgraded, same_objects, upgrade_under
from holdfast.errors import AsOfTooEarly, CatalogOutOfSync, Fenced, HandleExpired
from holdfast.stash import Past

_First = Callable[[], Iterable[RowUpdate]]


def hold(
    stores: TwoStores,
    claim: FenceToken,
    *,
    check: Check = unchecked,
    first: _First | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Taken:
    """Take over both stores, and note where the truth is. `first` returns the initial objects of a new
    catalog.

    Raises like `take_over_both`.
    """

    def also(seen: Seen, backend: Backend) -> Iterable[RowUpdate]:
        # The stash comes first: while only it is fenced, nobody holds persist yet.
        if backend is Backend.STASH:
            return ()
        link = stores.linkage(seen)
        return _noting(seen, link, backend, first) if isinstance(link, Linked) else ()

    for pause in pauses():
        taken = take_over_both(stores, claim, also=also, check=check, sleep=sleep)
        try:
            return _noted(stores, taken, first)
        except Fenced as error:
            last = error
            sleep(pause)
    raise last


def _noting(seen: Seen, link: Linked, backend: Backend, first: _First | None) -> tuple[RowUpdate, ...]:
    """The updates that the process that has taken both over writes to a store."""
    updates = seen.of(backend).configured(notes(link.truth)[backend])
    if backend is link.truth and first is not None and not seen.of(backend).is_initialized:
        return (*updates, *first())
    return updates


def _settling(seen: Seen, link: Linked, backend: Backend, first: _First | None) -> tuple[RowUpdate, ...]:
    """Like `_noting`, with the store's notes about the other one and about the last move."""
    wanted = dict(notes(link.truth)[backend])
    if not has_looked(seen, backend):
        wanted |= looked(seen, backend)
    truth = seen.of(link.truth)
    here, begins = arrived(seen, link.truth), first is not None and not truth.is_initialized
    if backend is link.truth and here is None and (begins or truth.is_initialized):
        here = next_move(seen, truth.truth_since)
        wanted |= arriving(backend, here)
    wanted |= completing(backend, here)
    updates = seen.of(backend).configured(wanted)
    if backend is link.truth and begins and first is not None:
        return (*updates, *first())
    return updates


def _noted(stores: TwoStores, taken: Taken, first: _First | None) -> Taken:
    truth = taken.link.truth
    # Remove a wrong note before writing the right one.
    for backend, noting in ((truth.other, _noting), (truth, _settling), (truth.other, _settling)):
        updates = noting(taken.seen, taken.link, backend, first)
        while updates:
            at = taken.seen.of(backend)
            if committed(stores.of(backend), at, updates):
                commits = (*taken.commits[backend], StoreCommit(at.upper, updates))
                taken = replace(
                    taken,
                    seen=taken.seen.where(backend, at.after(updates)),
                    commits={**taken.commits, backend: commits},
                )
                break
            found = read_preamble(stores.of(backend), stores.of(backend).upper())
            takeover.under(taken.token)(found)
            taken = replace(taken, seen=taken.seen.where(backend, found))
            if config.SETTLING in found.config:
                # Somebody has begun a decision about the link, which has no token yet. This raises its
                # conflict.
                stores.linkage(taken.seen)
            updates = noting(taken.seen, taken.link, backend, first)
    return taken


class TruthContents:
    """The contents of the source of truth in memory, or the plan of its upgrade. Close it after use."""

    def __init__(self, stores: TwoStores) -> None:
        self._stores = stores
        self._truth: Backend | None = None
        self._upper = 0
        self._past: Past | None = None
        self._cache: Cache | None = None
        self._plan: Plan | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop_plan()

    def read(self, truth: Backend, seen: Preamble) -> None:
        """Read the contents at `seen`. Raises the errors of an open, `AsOfTooEarly` and `OtherHistory`."""
        seen.check_readable()
        if truth is not self._truth:
            self._truth, self._cache = truth, None
            self._drop_plan()
        if seen.is_older:
            self._cache = None
            self._work_out(seen)
        else:
            self._drop_plan()
            if self._cache is None or not self._goes_on(self._cache, seen):
                self._cache = loaded(self._stores.of(truth), seen)
        self._upper, self._past = seen.upper, past_of(seen.fence_row)

    def follow(self, commits: Sequence[StoreCommit]) -> None:
        """Apply what this process committed itself."""
        for commit in commits:
            if self._cache is not None and commit.at == self._upper:
                self._cache.apply(commit.updates)
                self._upper, self._past = self._upper + 1, None

    def upgraded(self, seen: Preamble, token: FenceToken) -> Upgraded | None:
        """Upgrade the truth, which is at `seen`, under a token that is durable. None if it is current."""
        if not seen.is_older:
            return None
        assert self._truth is not None
        done = None
        while done is None:
            plan = self._work_out(seen)
            done = upgrade_under(self._stores.of(self._truth), seen, token, plan)
        self._drop_plan()
        return done

    def cache(self, seen: Preamble) -> Cache:
        """The contents at `seen`."""
        assert self._truth is not None
        self.read(self._truth, seen)
        assert self._cache is not None
        return self._cache

    def _work_out(self, seen: Preamble) -> Plan:
        assert self._truth is not None
        store = self._stores.of(self._truth)
        if self._plan is None or not same_objects(store, self._plan.seen, seen):
            self._drop_plan()
            self._plan = Plan(store, seen, released())
        return self._plan

    def _goes_on(self, cache: Cache, seen: Preamble) -> bool:
        """Bring the contents up to `seen`. Returns False if they must be read again."""
        assert self._truth is not None
        if seen.upper < self._upper:
            return False
        store = self._stores.of(self._truth)
        try:
            if self._upper < seen.upper:
                fence = FenceRow.of(cache.fence_row, self._past)
                for _, updates in store.changes(self._upper, seen.upper, fence=fence):
                    cache.apply(updates)
        except (AsOfTooEarly, HandleExpired, CatalogOutOfSync):
            return False
        return cache.fence_row == seen.fence_row

    def _drop_plan(self) -> None:
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.close()
