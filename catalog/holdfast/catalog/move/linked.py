# ruff: noqa: D102 - the backing documents its methods
"""A catalog in two linked stores, opened in the one that is the source of truth.

Invariants
- A writer has one token in both stores, whichever is the source of truth. See `two_stores`.
- What must be refused is refused before the first append. The contents are read, or their upgrade is planned,
  before the stores are taken over. Commits until the takeover are then applied.
- Of the other store, only the fence token and the config are read.

`LinkedStore` is not a `CatalogStore`. An append to a single store writes a token together with what it
allows. Here the token must first be in both stores, by two appends that each expect the state of their own
store. Only then is it certain which store is the source of truth, and what may be written there.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from holdfast.catalog import takeover
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.handle import WritableHandle
from holdfast.catalog.initialize import Bootstrap, initial_updates
from holdfast.catalog.interfaces import Catalog, Loaded, OpenableCatalog
from holdfast.catalog.move.dual import Dual
from holdfast.catalog.move.link import Linked, Terms
from holdfast.catalog.move.linked_takeover import TruthContents, hold
from holdfast.catalog.move.other_store import Clock, OtherOfReader, OtherStore
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.standing import OneOfTwo, refuse_running
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.catalog.move.two_stores import (
    Check,
    Taken,
    TwoStores,
    next_token,
    of_generation,
    read_both,
)
from holdfast.catalog.one_store import OneStoreCatalog
from holdfast.catalog.opening import Backing, PutContents, Read, StoredCatalog, kept_young
from holdfast.catalog.shadow.side import OnDiverged
from holdfast.catalog.stores.preamble import READS, Preamble
from holdfast.catalog.stores.standing import Standing
from holdfast.catalog.stores.store import CatalogStore, Kept
from holdfast.catalog.takeover import Claim
from holdfast.errors import AsOfTooEarly, BadInput, NotSourceOfTruth, OtherHistory, StorageError

T = TypeVar("T")


def linked_catalog(
    stash: OpenableCatalog,
    persist: OpenableCatalog,
    *,
    backend: Backend = Backend.PERSIST,
    strategy: Strategy | None = None,
    truth: Backend | None = None,
    through: Backend | None = None,
    shadow: bool = False,
    on_diverged: OnDiverged | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Clock = time.monotonic,
) -> "LinkedCatalog":
    """The catalog in two stores, in the one that is its source of truth. The stores need not be linked yet.

    `stash` is a `stash_catalog` and `persist` is a `persist_catalog`. Nothing is read yet. The first open for
    writing links the two. Then the store that has a catalog is the truth, or `backend` if neither has one. If
    both have one, you must name the `truth`; otherwise opens raise `LinkConflict`. `strategy` None means the
    strategy of the link, or ONE_TOMBSTONE for a new one. Another strategy than the link's raises
    `StrategyMismatch`.

    With `through`, it opens only while that store is the truth, and raises `NotSourceOfTruth` otherwise.
    While a migration is running, an open for writing raises `MigrationInProgress`.

    With `shadow`, a writer also makes and compares every change in the other store, as `shadow_catalog` does.
    `on_diverged` is called with a difference.

    A writer also asks the other store whether it may still write: with each `confirm_leadership`, and with a
    commit if it last asked more than 2 seconds ago. While that store can't be reached, commits continue for
    10 minutes, and then raise `StoreUnreachable`. `clock` returns seconds.
    """
    parts = _in_one_store(stash), _in_one_store(persist)
    stores = TwoStores(parts[0].store, parts[1].store, Terms(backend, strategy, truth))
    dual = Dual(on_diverged) if shadow else None
    return LinkedCatalog(*parts, LinkedStore(parts[1].now_ms, stores, through, dual, sleep, clock))


class LinkedCatalog(StoredCatalog):
    """Two stores that are one catalog, not open. Thread-safe."""

    def __init__(self, stash: OneStoreCatalog, persist: OneStoreCatalog, linked: "LinkedStore") -> None:
        super().__init__(linked)
        self._stash, self._persist, self._linked = stash, persist, linked

    @property
    def stores(self) -> TwoStores:
        """The two stores. Each use opens its own handles."""
        return self._linked.stores

    def of(self, backend: Backend) -> OneStoreCatalog:
        """One of the stores, as a catalog of its own."""
        return self._stash if backend is Backend.STASH else self._persist

    def source_of_truth(self) -> Backend:
        """The store that is the truth, or will be once they are linked. Raises `LinkConflict`."""
        with self.stores.opened("catalog preamble") as stores:
            return stores.linkage(read_both(stores)).truth

    def link(self) -> Linked | None:
        """The link of the two. None before the first open for writing. Raises `LinkConflict`."""
        with self.stores.opened("catalog link") as stores:
            link = stores.linkage(read_both(stores))
        return link if isinstance(link, Linked) else None

    def in_migration(self, migration_id: str) -> "LinkedCatalog":
        """The same catalog for the migration `migration_id`, which does not shut itself out."""
        linked = replace(self._linked, migration_id=migration_id)
        return LinkedCatalog(self._stash, self._persist, linked)


@dataclass(frozen=True)
class LinkedStore(Backing):
    """Two stores, one of them the source of truth. If `through` is given, it must be that one."""

    stores: TwoStores
    through: Backend | None
    dual: Dual | None
    sleep: Callable[[float], None]
    clock: Clock
    migration_id: str | None = None
    """The migration on whose behalf the catalog is opened, if any."""

    @property
    def place(self) -> str:
        return " and ".join(self.stores.places.values())

    @property
    def writable(self) -> bool:
        return self.stores.stash.writable and self.stores.persist.writable

    def another(self, purpose: str) -> "LinkedStore":
        return replace(self, stores=self.stores.another(purpose))

    def close(self, *, but: CatalogStore | None = None) -> None:
        self.stores.close(but=but)

    def holder(self) -> CatalogStore:
        return self.stores.of(self._truth()[0])

    def preamble(self) -> Preamble:
        return self._truth()[1]

    def token(self) -> FenceToken | None:
        return read_both(self.stores).token

    def kept_dumps(self) -> list[Kept]:
        truth, seen = self._truth()
        return [kept for kept in self.stores.of(truth).kept() if kept.time >= seen.truth_since]

    def latest(self, read: Read[T]) -> tuple[CatalogStore, Preamble, T]:
        for left in reversed(range(READS)):
            seen = read_both(self.stores)
            truth = self.stores.linkage(seen).truth
            self._refuse_other(truth)
            store, at = self.stores.of(truth), seen.of(truth)
            try:
                found = read(store, at)
            except (AsOfTooEarly, OtherHistory):
                if not left:
                    raise
                continue
            # If the state alone doesn't show it, check that the catalog was not moved during the read.
            if at.is_certain or OneOfTwo(self.stores, truth).confirm_linked(store, at) < max(at.upper, 1):
                return store, at, found
        raise StorageError(
            f"the catalog in {self.place} was moved during every attempt to read it",
            hint="'holdfast migrate status' shows its migrations; find out who repeats them, then try again",
        )

    def begins(self, seen: Preamble) -> int:
        return seen.truth_since

    def standing(self, store: CatalogStore) -> Standing:
        truth = Backend.STASH if store is self.stores.stash else Backend.PERSIST
        return OneOfTwo(self.stores, truth, watched=OtherOfReader(self.stores, truth, self.clock))

    def rehearsed(self, mine: FenceToken) -> Claim:
        token = next_token(read_both(self.stores), mine)
        return lambda _: token

    def check_takeover(self) -> None:
        seen = read_both(self.stores)
        self._refuse_other(self.stores.linkage(seen).truth)
        self._refuse_running(seen)

    def initialize(self, mine: FenceToken, bootstrap: Bootstrap) -> bool:
        def check(seen: Seen) -> None:
            if seen.of(self.stores.linkage(seen).truth).is_initialized:
                raise _InitializedError
            self._refuse_running(seen)

        try:
            # If it is initialized, nothing can refuse this call.
            check(read_both(self.stores))
            self._hold(mine, check, bootstrap)
        except _InitializedError:
            return False
        return True

    def raise_fence(self, at_least: int, mine: FenceToken, deploy_generation: int | None) -> FenceToken:
        def check(seen: Seen) -> None:
            self._refuse_running(seen)
            truth = self.stores.linkage(seen).truth
            seen.of(truth).check_initialized(self.stores.of(truth).place)

        seen = read_both(self.stores)
        check(seen)
        mine = of_generation(seen, deploy_generation, mine)
        token = next_token(seen, mine)
        if all(_is_high_enough(seen.of(backend).token, at_least, token) for backend in Backend):
            assert seen.token is not None
            return seen.token
        return self._hold(replace(mine, epoch=at_least), check, None).token

    def load(
        self, put: PutContents, mine: FenceToken, deploy_generation: int | None, *, rehearse: bool
    ) -> Loaded:
        seen = read_both(self.stores)
        claim = of_generation(seen, deploy_generation, mine)

        def rehearsal(seen: Seen) -> Loaded:
            token = next_token(seen, claim)
            return put(self.stores.of(self.stores.linkage(seen).truth), lambda _: token, True)

        def check(seen: Seen) -> None:
            self._refuse_running(seen)
            rehearsal(seen)

        if rehearse:
            return rehearsal(seen)
        taken = self._hold(claim, check, None)
        return put(self.stores.of(taken.link.truth), takeover.under(taken.token), False)

    def open_writable(self, mine: FenceToken, bootstrap: Bootstrap) -> tuple[Catalog, CatalogStore]:
        boot_ts = self.now_ms()
        stores = self.stores
        with TruthContents(stores) as contents:

            def check(seen: Seen) -> None:
                truth = stores.linkage(seen).truth
                self._refuse_running(seen)
                self._refuse_other(truth)
                contents.read(truth, seen.of(truth))

            taken = self._hold(mine, check, bootstrap)
            truth = taken.link.truth
            store = stores.of(truth)
            contents.follow(taken.commits[truth])
            seen = taken.seen.of(truth)
            upgraded = contents.upgraded(seen, taken.token)
            seen = seen if upgraded is None else upgraded.seen
            other = OtherStore(stores.of(truth.other), taken.seen.of(truth.other), taken.token, self.clock)
            handle = WritableHandle(
                store,
                contents.cache(seen),
                upper=seen.upper,
                boot_ts=boot_ts,
                token=taken.token,
                now_ms=self.now_ms,
                kept=kept_young(store, seen.upper),
                standing=OneOfTwo(
                    stores,
                    truth,
                    taken.link.id,
                    seen.truth_since,
                    other,
                    OtherOfReader(stores, truth, self.clock),
                ),
            )
            handle.upgrade_report = None if upgraded is None else upgraded.report
        if self.dual is None:
            return handle, store
        return self.dual.written(handle, stores, truth, now_ms=self.now_ms), store

    def _hold(self, claim: FenceToken, check: Check, bootstrap: Bootstrap | None) -> Taken:
        """Take over both. If contents were released while they were read, read them again, a few times."""
        first = None if bootstrap is None else lambda: initial_updates(bootstrap, self.now_ms())
        for left in reversed(range(READS)):
            try:
                return hold(self.stores, claim, check=check, first=first, sleep=self.sleep)
            except (AsOfTooEarly, OtherHistory):
                if not left:
                    raise
        raise AssertionError

    def _truth(self) -> tuple[Backend, Preamble]:
        seen = read_both(self.stores)
        truth = self.stores.linkage(seen).truth
        return truth, seen.of(truth)

    def _refuse_running(self, seen: Seen) -> None:
        refuse_running(seen, self.now_ms(), but=self.migration_id)

    def _refuse_other(self, truth: Backend) -> None:
        if self.through not in (None, truth):
            raise NotSourceOfTruth(self.stores.of(truth.other).location, truth.value)


class _InitializedError(Exception):
    """It is already initialized, so nobody must be fenced."""


def _is_high_enough(durable: FenceToken | None, at_least: int, token: FenceToken) -> bool:
    return (
        durable is not None
        and durable.epoch >= at_least
        and durable.deploy_generation == token.deploy_generation
    )


def _in_one_store(catalog: OpenableCatalog) -> OneStoreCatalog:
    if not isinstance(catalog, OneStoreCatalog):
        raise BadInput(
            f"the catalog in {catalog.place} can't be linked",
            hint="pass a stash_catalog and a persist_catalog",
        )
    return catalog
