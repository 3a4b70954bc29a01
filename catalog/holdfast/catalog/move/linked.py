# ruff: noqa: D102 - the interface documents its methods
"""A catalog in one of two linked stores, opened where it is.

Invariants
- Who writes has one token in both stores, whichever has the catalog: see `two_stores`.
- What is refused is refused before the first append: the contents are read, or their upgrade is worked out,
  before the stores are taken over, and brought up to what was committed until then.
- The store that is not the source of truth is asked for its fence token and its config only.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import TypeVar, assert_never

from holdfast.catalog import takeover
from holdfast.catalog.cache import Cache
from holdfast.catalog.dump import dump_lines
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.handle import ReadOnlyHandle, SavepointHandle, WritableHandle
from holdfast.catalog.initialize import Bootstrap, initial_updates
from holdfast.catalog.interfaces import Loaded, OpenableCatalog, OpenMode, ReadOnlyCatalog
from holdfast.catalog.move.dual import Dual
from holdfast.catalog.move.holding import TruthContents, hold
from holdfast.catalog.move.link import Linked, Terms
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
from holdfast.catalog.objects.codec import Row
from holdfast.catalog.opening import StoredCatalog, check_contents, kept_young, loaded, savepoint
from holdfast.catalog.shadow.side import OnDiverged
from holdfast.catalog.stores.preamble import READS, Preamble, preamble_of
from holdfast.catalog.stores.store import CatalogStore, Kept
from holdfast.catalog.upgrade_report import Size
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    NotSourceOfTruth,
    OtherHistory,
    StorageError,
)

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
    """The catalog of which one of two stores is the source of truth, wherever it is; they may be linked yet.

    `stash` and `persist` are what `stash_catalog` and `persist_catalog` gave. Nothing is asked yet: the first
    open for writing links the two. Then the one that has a catalog is the truth; `backend` where neither has
    one. `truth` says it where the stores can't: `LinkConflict` else. `strategy` None is the one that the
    catalog is linked with, ONE_TOMBSTONE for a new link; another one is a `StrategyMismatch`.

    With `through` it is opened only while that one is the truth: `NotSourceOfTruth` else. While a migration
    has it, whoever would write gets `MigrationInProgress`.

    With `shadow` whoever writes has every change made and compared in the other store too, as
    `shadow_catalog` does; `on_diverged` is told of a difference.

    A writer asks the other store too whether it may still write: with each `confirm_leadership`, and with a
    commit when the last look is over 2 seconds old. While that store can't be reached, commits go on for 10
    minutes; then they raise `StoreUnreachable`. `clock` gives the seconds.
    """
    terms = Terms(backend, strategy, truth)
    dual = Dual(on_diverged) if shadow else None
    return LinkedCatalog(
        _stored(stash), _stored(persist), terms, through=through, dual=dual, sleep=sleep, clock=clock
    )


class LinkedCatalog(OpenableCatalog):
    """Two stores that are one catalog, not open."""

    def __init__(
        self,
        stash: StoredCatalog,
        persist: StoredCatalog,
        terms: Terms,
        *,
        through: Backend | None,
        dual: Dual | None,
        sleep: Callable[[float], None],
        clock: Clock,
    ) -> None:
        self._stash, self._persist = stash, persist
        self._through = through
        self._dual = dual
        self._sleep = sleep
        self._clock = clock
        self._now_ms = persist.now_ms
        self.stores = TwoStores(stash.store, persist.store, terms)

    @property
    def place(self) -> str:
        return " and ".join(self.stores.places.values())

    def of(self, backend: Backend) -> StoredCatalog:
        """One of the stores as a catalog of its own."""
        return self._stash if backend is Backend.STASH else self._persist

    @property
    def now_ms(self) -> Callable[[], int]:
        """The clock that it is opened with, in milliseconds since the epoch."""
        return self._now_ms

    def source_of_truth(self) -> Backend:
        """Which store has the catalog, or will have it when they are linked. Raises `LinkConflict`."""
        return self._truth()[0]

    def link(self) -> Linked | None:
        """The link of the two; None before the first open for writing. Raises `LinkConflict`."""
        with self._opened("catalog link") as stores:
            link = stores.linkage(read_both(stores))
        return link if isinstance(link, Linked) else None

    def is_initialized(self) -> bool:
        return self._truth()[1].is_initialized

    def config(self, key: str) -> int | None:
        return self._truth()[1].config.get(key)

    def dump(self, as_of: int | None = None) -> str:
        return "".join(self.dump_lines(as_of))

    def dump_lines(self, as_of: int | None = None) -> Iterator[str]:
        def read(store: CatalogStore, seen: Preamble) -> list[Row]:
            seen.check_initialized(store.place)
            return list(store.rows(seen.upper - 1)) if as_of is None else []

        with self._opened("catalog dump") as stores:
            truth, seen, rows = self._at_truth(stores, read)
            if as_of is not None:
                if as_of < seen.truth_since:
                    raise AsOfTooEarly(as_of, seen.truth_since)
                rows = list(stores.of(truth).rows(as_of))
        preamble_of(0, rows).check_readable()
        yield from dump_lines(rows)

    def check_open(self) -> None:
        with self._opened("catalog check") as stores:
            self._at_truth(stores, check_contents)

    def check_takeover(self) -> None:
        with self._opened("catalog check") as stores:
            seen = read_both(stores)
            self._refuse_other(stores.linkage(seen).truth)
            self._refuse_running(seen)

    def sizes(self) -> Mapping[str, Size]:
        return self._of_truth().sizes()

    def kept_dumps(self) -> list[Kept]:
        since = self._truth()[1].truth_since
        return [kept for kept in self._of_truth().kept_dumps() if kept.time >= since]

    def release_dump(self, version: int) -> None:
        self._of_truth().release_dump(version)

    def initialize(
        self, *, deploy_generation: int = 0, holder: str, purpose: str, bootstrap: Bootstrap | None = None
    ) -> bool:
        claim = self.claim(deploy_generation, holder, purpose)

        def check(seen: Seen) -> None:
            if seen.of(self.stores.linkage(seen).truth).is_initialized:
                raise _InitializedError
            self._refuse_running(seen)

        with self._opened(purpose) as stores:
            try:
                # Nobody is refused what he need not do.
                check(read_both(stores))
                self._hold(stores, claim, check, bootstrap or Bootstrap())
            except _InitializedError:
                return False
        return True

    def raise_fence(
        self, at_least: int, *, deploy_generation: int | None = None, holder: str, purpose: str
    ) -> FenceToken:
        claim = self.claim(deploy_generation or 0, holder, purpose)
        takeover.check_epoch(at_least)

        def check(seen: Seen) -> None:
            self._refuse_running(seen)
            truth = self.stores.linkage(seen).truth
            seen.of(truth).check_initialized(self.stores.of(truth).place)

        with self._opened(purpose) as stores:
            seen = read_both(stores)
            check(seen)
            claim = of_generation(seen, deploy_generation, claim)
            token = next_token(seen, claim)
            if all(_is_high_enough(seen.of(backend).token, at_least, token) for backend in Backend):
                assert seen.token is not None
                return seen.token
            return self._hold(stores, replace(claim, epoch=at_least), check, None).token

    def load(
        self,
        rows: Iterable[Row],
        *,
        deploy_generation: int | None = None,
        holder: str = "",
        purpose: str = "",
        exact: bool = False,
        only_new: bool = False,
        rehearse: bool = False,
    ) -> Loaded:
        wanted = list(rows)
        if rehearse:
            claim = FenceToken(deploy_generation or 0, 0, holder, purpose)
        else:
            claim = self.claim(deploy_generation or 0, holder, purpose)

        def load(stores: TwoStores, truth: Backend, by: takeover.Claim, *, rehearse: bool) -> Loaded:
            return takeover.load(
                stores.of(truth), wanted, by, exactly=exact, only_new=only_new, rehearse=rehearse
            )

        with self._opened(purpose or "rehearsal of a load") as stores:
            rehearsed: list[Loaded] = []

            def check(seen: Seen) -> None:
                if not rehearse:
                    self._refuse_running(seen)
                token = next_token(seen, claim)
                rehearsed.append(load(stores, stores.linkage(seen).truth, lambda _: token, rehearse=True))

            seen = read_both(stores)
            claim = of_generation(seen, deploy_generation, claim)
            if rehearse:
                check(seen)
                return rehearsed[-1]
            taken = self._hold(stores, claim, check, None)
            return load(stores, taken.link.truth, takeover.under(taken.token), rehearse=False)

    # The overloads of the interface say which mode gives what.
    def open(  # type: ignore[override]
        self,
        mode: OpenMode,
        *,
        deploy_generation: int = 0,
        holder: str = "",
        purpose: str = "",
        bootstrap: Bootstrap | None = None,
        migration_id: str | None = None,
    ) -> ReadOnlyCatalog:
        """See `OpenableCatalog`; `migration_id` is of the migration on whose behalf it is opened, if any."""
        stores = self.stores.another(purpose or f"catalog {mode.name.lower()}")
        with ExitStack() as unless_open:
            unless_open.callback(stores.close)
            opened: ReadOnlyCatalog
            match mode:
                case OpenMode.READ_ONLY:
                    truth, opened = self._open_read_only(stores)
                case OpenMode.WRITABLE:
                    claim = self.claim(deploy_generation, holder, purpose)
                    truth, handle = self._open_writable(stores, claim, bootstrap, migration_id)
                    opened = handle
                    if self._dual is not None:
                        opened = self._dual.written(handle, stores, truth, now_ms=self._now_ms)
                case OpenMode.SAVEPOINT:
                    mine = FenceToken(deploy_generation, 0, holder, purpose)
                    truth, opened = self._open_savepoint(stores, mine, bootstrap)
                case _:
                    assert_never(mode)
            unless_open.pop_all()
        stores.of(truth.other).close()
        return opened

    def _open_read_only(self, stores: TwoStores) -> tuple[Backend, ReadOnlyHandle]:
        boot_ts = self._now_ms()

        def read(store: CatalogStore, seen: Preamble) -> Cache:
            seen.check_initialized(store.place)
            return loaded(store, seen)

        truth, seen, cache = self._at_truth(stores, read)
        standing = OneOfTwo(self.stores, truth, watched=OtherOfReader(self.stores, truth, self._clock))
        return truth, ReadOnlyHandle(
            stores.of(truth), cache, upper=seen.upper, boot_ts=boot_ts, standing=standing
        )

    def _open_savepoint(
        self, stores: TwoStores, mine: FenceToken, bootstrap: Bootstrap | None
    ) -> tuple[Backend, SavepointHandle]:
        boot_ts = self._now_ms()
        token = next_token(read_both(stores), mine)

        def read(store: CatalogStore, seen: Preamble) -> SavepointHandle:
            return savepoint(store, seen, token, bootstrap, boot_ts, self._now_ms)

        truth, _, opened = self._at_truth(stores, read)
        return truth, opened

    def _open_writable(
        self,
        stores: TwoStores,
        claim: FenceToken,
        bootstrap: Bootstrap | None,
        migration_id: str | None,
    ) -> tuple[Backend, WritableHandle]:
        boot_ts = self._now_ms()
        with TruthContents(stores) as contents:

            def check(seen: Seen) -> None:
                truth = stores.linkage(seen).truth
                self._refuse_running(seen, migration_id)
                self._refuse_other(truth)
                contents.read(truth, seen.of(truth))

            taken = self._hold(stores, claim, check, bootstrap or Bootstrap())
            truth = taken.link.truth
            contents.follow(taken.commits[truth])
            seen = taken.seen.of(truth)
            upgraded = contents.upgraded(seen, taken.token)
            seen = seen if upgraded is None else upgraded.seen
            other = OtherStore(stores.of(truth.other), taken.seen.of(truth.other), taken.token, self._clock)
            handle = WritableHandle(
                stores.of(truth),
                contents.cache(seen),
                upper=seen.upper,
                boot_ts=boot_ts,
                token=taken.token,
                now_ms=self._now_ms,
                kept=kept_young(stores.of(truth), seen.upper),
                standing=OneOfTwo(
                    self.stores,
                    truth,
                    taken.link.id,
                    seen.truth_since,
                    other,
                    OtherOfReader(self.stores, truth, self._clock),
                ),
            )
            handle.upgrade_report = None if upgraded is None else upgraded.report
            return truth, handle

    def _hold(self, stores: TwoStores, claim: FenceToken, check: Check, bootstrap: Bootstrap | None) -> Taken:
        """Take both over; contents that were let go of while they were read are read anew, not for ever."""
        first = None if bootstrap is None else lambda: initial_updates(bootstrap, self._now_ms())
        for left in reversed(range(READS)):
            try:
                return hold(stores, claim, check=check, first=first, sleep=self._sleep)
            except (AsOfTooEarly, OtherHistory):
                if not left:
                    raise
        raise AssertionError

    def _at_truth(
        self, stores: TwoStores, read: Callable[[CatalogStore, Preamble], T]
    ) -> tuple[Backend, Preamble, T]:
        """What `read` makes of the latest state of the catalog, which it gets the preamble of."""
        for left in reversed(range(READS)):
            seen = read_both(stores)
            truth = stores.linkage(seen).truth
            self._refuse_other(truth)
            store, at = stores.of(truth), seen.of(truth)
            try:
                found = read(store, at)
            except (AsOfTooEarly, OtherHistory):
                if not left:
                    raise
                continue
            # Where the state doesn't tell: nobody may have moved the catalog while it was read.
            if at.is_certain or OneOfTwo(self.stores, truth).confirm_linked(store, at) < max(at.upper, 1):
                return truth, at, found
        raise StorageError(
            f"the catalog in {self.place} was moved each time that it was read",
            hint="find out who migrates it again and again",
        )

    def _truth(self) -> tuple[Backend, Preamble]:
        with self._opened("catalog preamble") as stores:
            seen = read_both(stores)
            truth = stores.linkage(seen).truth
            return truth, seen.of(truth)

    def _of_truth(self) -> StoredCatalog:
        return self.of(self.source_of_truth())

    def fence_token(self) -> FenceToken | None:
        with self._opened("catalog preamble") as stores:
            return read_both(stores).token

    def claim(self, deploy_generation: int, holder: str, purpose: str) -> FenceToken:
        """Who opens it for writing, without an epoch yet. Raises `NotWritable` and `BadInput`."""
        self._stash.claim(deploy_generation, holder, purpose)
        return self._persist.claim(deploy_generation, holder, purpose)

    def _refuse_running(self, seen: Seen, migration_id: str | None = None) -> None:
        refuse_running(seen, self._now_ms(), but=migration_id)

    def _refuse_other(self, truth: Backend) -> None:
        if self._through not in (None, truth):
            raise NotSourceOfTruth(self.stores.of(truth.other).location, truth.value)

    def _opened(self, purpose: str) -> AbstractContextManager[TwoStores]:
        return self.stores.opened(purpose)


class _InitializedError(Exception):
    """It is initialized already: nobody is to be fenced."""


def _is_high_enough(durable: FenceToken | None, at_least: int, token: FenceToken) -> bool:
    return (
        durable is not None
        and durable.epoch >= at_least
        and durable.deploy_generation == token.deploy_generation
    )


def _stored(catalog: OpenableCatalog) -> StoredCatalog:
    if not isinstance(catalog, StoredCatalog):
        raise BadInput(
            f"the catalog in {catalog.place} can't be linked",
            hint="link what stash_catalog and persist_catalog give",
        )
    return catalog
