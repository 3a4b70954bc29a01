# ruff: noqa: D102 - the interface documents its methods
"""Opening a catalog, independent of where it is stored.

Invariants
- A refused open changes nothing. Versions and generation are checked, and all rows are decoded, before a
  token is written. A writable open upgrades a catalog of an older version (see `upgrade.runner`).
- Every use has its own handles on the stores, which are closed at its end.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Self, TypeVar, assert_never

from holdfast.catalog import takeover
from holdfast.catalog.cache import Cache
from holdfast.catalog.contents import Contents, StoredContents, cached, sizes_of
from holdfast.catalog.dump import dump_lines
from holdfast.catalog.fence import FenceToken, check_who
from holdfast.catalog.handle import ReadOnlyHandle, SavepointHandle
from holdfast.catalog.initialize import Bootstrap, initial_updates
from holdfast.catalog.interfaces import Catalog, Loaded, OpenableCatalog, OpenMode, ReadOnlyCatalog
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.stores.preamble import Preamble, at_latest, preamble_of
from holdfast.catalog.stores.standing import Standing
from holdfast.catalog.stores.store import CatalogStore, Kept, let_go_of_old
from holdfast.catalog.upgrade.plan import Plan, released
from holdfast.catalog.upgrade_report import Size
from holdfast.errors import AsOfTooEarly, BadInput, NotWritable, StorageError

_log = logging.getLogger(__name__)


def wall_clock_ms() -> int:
    """The time of this host in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


T = TypeVar("T")

Read = Callable[[CatalogStore, Preamble], T]
"""Computes something from a store and the preamble of its latest state."""

PutContents = Callable[[CatalogStore, takeover.Claim, bool], Loaded]
"""Loads contents into a store under a claim. With True it writes nothing. See `takeover.load`."""


@dataclass(frozen=True)
class Backing(ABC):
    """Where a catalog is stored: in one store (`OneStore`), or in two linked ones (`LinkedStore`).

    `another` returns a copy with its own handles. Call the other methods on that copy, and close it. `now_ms`
    is the clock, in milliseconds since 1970. `mine` is the token of a process that writes, without an epoch
    yet. Methods with the name of a method of `OpenableCatalog` do what that one says.
    """

    now_ms: Callable[[], int]

    @property
    @abstractmethod
    def place(self) -> str: ...

    @property
    @abstractmethod
    def writable(self) -> bool:
        """Whether all of it was opened for writing."""

    @abstractmethod
    def another(self, purpose: str) -> Self: ...

    @abstractmethod
    def close(self, *, but: CatalogStore | None = None) -> None:
        """Release what it holds, except the store that an open catalog continues to use."""

    @abstractmethod
    def holder(self) -> CatalogStore:
        """The store that has the catalog."""

    @abstractmethod
    def preamble(self) -> Preamble:
        """Fence token and config of the catalog, in its latest state."""

    def token(self) -> FenceToken | None:
        """The durable token. None before the first open."""
        return self.preamble().token

    @abstractmethod
    def latest(self, read: Read[T]) -> tuple[CatalogStore, Preamble, T]:
        """Call `read` on the latest state of the catalog. Returns its store, its preamble and the result.

        Raises the errors of `read`, and `AsOfTooEarly` or `OtherHistory` if each state was released before it
        was read.
        """

    def begins(self, seen: Preamble) -> int:  # noqa: ARG002 - with one store, all of its past is readable
        """The time before which the contents of the store are not part of the catalog's history."""
        return 0

    def kept_dumps(self) -> list[Kept]:
        return self.holder().kept()

    @abstractmethod
    def standing(self, store: CatalogStore) -> Standing:
        """The standing of a reader of the store that has the catalog."""

    @abstractmethod
    def rehearsed(self, mine: FenceToken) -> takeover.Claim:
        """The claim of an open that writes nothing."""

    @abstractmethod
    def check_takeover(self) -> None: ...

    @abstractmethod
    def initialize(self, mine: FenceToken, bootstrap: Bootstrap) -> bool: ...

    @abstractmethod
    def raise_fence(self, at_least: int, mine: FenceToken, deploy_generation: int | None) -> FenceToken: ...

    @abstractmethod
    def load(
        self, put: PutContents, mine: FenceToken, deploy_generation: int | None, *, rehearse: bool
    ) -> Loaded:
        """Take over, and load contents into the store that has the catalog."""

    @abstractmethod
    def open_writable(self, mine: FenceToken, bootstrap: Bootstrap) -> tuple[Catalog, CatalogStore]:
        """Take over and open for writing. Also returns the store that the open catalog uses."""


class StoredCatalog(OpenableCatalog):
    """A catalog in a `backing`, not open."""

    def __init__(self, backing: Backing) -> None:
        self.backing = backing

    @property
    def place(self) -> str:
        return self.backing.place

    @property
    def now_ms(self) -> Callable[[], int]:
        """The clock of the catalog, in milliseconds since 1970."""
        return self.backing.now_ms

    def preamble(self) -> Preamble:
        """Fence token and config, in the latest state."""
        with self._opened("catalog preamble") as backing:
            return backing.preamble()

    def is_initialized(self) -> bool:
        return self.preamble().is_initialized

    def fence_token(self) -> FenceToken | None:
        with self._opened("catalog preamble") as backing:
            return backing.token()

    def config(self, key: str) -> int | None:
        return self.preamble().config.get(key)

    def dump(self, as_of: int | None = None) -> str:
        return "".join(self.dump_lines(as_of))

    def dump_lines(self, as_of: int | None = None) -> Iterator[str]:
        def read(store: CatalogStore, seen: Preamble) -> list[Row]:
            seen.check_initialized(store.place)
            return list(store.rows(seen.upper - 1)) if as_of is None else []

        with self._opened("catalog dump") as backing:
            store, seen, rows = backing.latest(read)
            if as_of is not None:
                if as_of < (since := backing.begins(seen)):
                    raise AsOfTooEarly(as_of, since)
                rows = list(store.rows(as_of))
        preamble_of(0, rows).check_readable()
        yield from dump_lines(rows)

    def check_open(self) -> None:
        with self._opened("catalog check") as backing:
            backing.latest(check_contents)

    def check_takeover(self) -> None:
        with self._opened("catalog check") as backing:
            backing.check_takeover()

    def sizes(self) -> Mapping[str, Size]:
        with self._opened("catalog sizes") as backing:
            store = backing.holder()
            return at_latest(store, lambda seen: sizes_of(StoredContents(store, seen.upper).batches()))

    def kept_dumps(self) -> list[Kept]:
        with self._opened("catalog kept dumps") as backing:
            return backing.kept_dumps()

    def release_dump(self, version: int) -> None:
        with self._opened("catalog kept dumps") as backing:
            store = backing.holder()
            _check_writable(store)
            if version not in {kept.version for kept in store.kept()}:
                raise BadInput(f"the catalog in {store.place} keeps no time of version {version}")
            store.let_go(version)

    def initialize(
        self, *, deploy_generation: int = 0, holder: str, purpose: str, bootstrap: Bootstrap | None = None
    ) -> bool:
        mine = self.claim(deploy_generation, holder, purpose)
        with self._opened(purpose) as backing:
            return backing.initialize(mine, bootstrap or Bootstrap())

    def raise_fence(
        self, at_least: int, *, deploy_generation: int | None = None, holder: str, purpose: str
    ) -> FenceToken:
        mine = self.claim(deploy_generation or 0, holder, purpose)
        takeover.check_epoch(at_least)
        with self._opened(purpose) as backing:
            return backing.raise_fence(at_least, mine, deploy_generation)

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
        if rehearse:
            mine = FenceToken(deploy_generation or 0, 0, holder, purpose)
        else:
            mine = self.claim(deploy_generation or 0, holder, purpose)
        wanted = list(rows)

        def put(store: CatalogStore, claim: takeover.Claim, only_rehearse: bool) -> Loaded:
            return takeover.load(
                store, wanted, claim, exactly=exact, only_new=only_new, rehearse=only_rehearse
            )

        with self._opened(purpose or "rehearsal of a load") as backing:
            return backing.load(put, mine, deploy_generation, rehearse=rehearse)

    # The overloads of the interface say which mode gives what.
    def open(  # type: ignore[override]
        self,
        mode: OpenMode,
        *,
        deploy_generation: int = 0,
        holder: str = "",
        purpose: str = "",
        bootstrap: Bootstrap | None = None,
    ) -> ReadOnlyCatalog:
        backing = self.backing.another(purpose or f"catalog {mode.name.lower()}")
        opened: ReadOnlyCatalog
        try:
            match mode:
                case OpenMode.READ_ONLY:
                    opened, store = _read_only(backing)
                case OpenMode.WRITABLE:
                    mine = self.claim(deploy_generation, holder, purpose)
                    opened, store = backing.open_writable(mine, bootstrap or Bootstrap())
                case OpenMode.SAVEPOINT:
                    mine = FenceToken(deploy_generation, 0, holder, purpose)
                    opened, store = _savepoint(backing, mine, bootstrap or Bootstrap())
                case _:
                    assert_never(mode)
        except BaseException:
            backing.close()
            raise
        backing.close(but=store)
        return opened

    def claim(self, deploy_generation: int, holder: str, purpose: str) -> FenceToken:
        """The token of an open for writing, without an epoch yet. Raises `NotWritable` and `BadInput`."""
        _check_writable(self.backing)
        check_who(holder, purpose)
        if not 0 <= deploy_generation < 1 << 64:
            raise BadInput(f"deploy generation {deploy_generation} is not in [0, 2^64)")
        return FenceToken(deploy_generation, 0, holder, purpose)

    def _opened(self, purpose: str) -> closing[Backing]:
        return closing(self.backing.another(purpose))


def _check_writable(stored: Backing | CatalogStore) -> None:
    if not stored.writable:
        raise NotWritable(
            f"the catalog in {stored.place} can't be opened for writing: its store was opened only for"
            " reading",
            hint="open the store for writing, or open the catalog with OpenMode.READ_ONLY",
        )


def _read_only(backing: Backing) -> tuple[ReadOnlyHandle, CatalogStore]:
    boot_ts = backing.now_ms()

    def read(store: CatalogStore, seen: Preamble) -> ReadOnlyHandle:
        standing = backing.standing(store)
        standing.check_read(seen, store.place)
        seen.check_initialized(store.place)
        cache = loaded(store, seen)
        return ReadOnlyHandle(store, cache, upper=seen.upper, boot_ts=boot_ts, standing=standing)

    store, _, opened = backing.latest(read)
    return opened, store


def _savepoint(
    backing: Backing, mine: FenceToken, bootstrap: Bootstrap
) -> tuple[SavepointHandle, CatalogStore]:
    boot_ts = backing.now_ms()
    claim = backing.rehearsed(mine)

    def read(store: CatalogStore, seen: Preamble) -> SavepointHandle:
        backing.standing(store).check_read(seen, store.place)
        return savepoint(store, seen, claim(seen), bootstrap, boot_ts, backing.now_ms)

    store, _, opened = backing.latest(read)
    return opened, store


def opening_of(seen: Preamble, token: FenceToken, bootstrap: Bootstrap, now_ms: int) -> Sequence[RowUpdate]:
    """What a writable open commits: the token, and the initial objects if the catalog is not initialized."""
    fence = seen.fence(token)
    if seen.is_initialized:
        return fence
    return (*fence, *initial_updates(bootstrap, now_ms))


def savepoint(
    store: CatalogStore,
    seen: Preamble,
    token: FenceToken,
    bootstrap: Bootstrap,
    boot_ts: int,
    now_ms: Callable[[], int],
) -> SavepointHandle:
    """A savepoint of the contents with the preamble `seen`. Its token is only in memory."""
    seen.check_readable()
    opening = opening_of(seen, token, bootstrap, now_ms())
    with ExitStack() as unless_open:
        contents: Contents = StoredContents(store, seen.upper)
        if seen.is_older:
            contents = unless_open.enter_context(Plan(store, seen, released()))
        cache = cached(contents, seen, store.place)
        cache.apply(opening)
        return SavepointHandle(
            store,
            cache,
            durable_upper=seen.upper,
            boot_ts=boot_ts,
            token=token,
            opening=opening,
            now_ms=now_ms,
            contents=contents,
            on_close=unless_open.pop_all().close,
        )


def check_contents(store: CatalogStore, seen: Preamble) -> None:
    """Raise unless the contents with the preamble `seen` can be opened or upgraded."""
    seen.check_initialized(store.place)
    seen.check_readable()
    if seen.is_older:
        Plan(store, seen, released()).close()
    else:
        loaded(store, seen)


def loaded(store: CatalogStore, seen: Preamble) -> Cache:
    """The contents with the preamble `seen`, which must be at the current version."""
    seen.check_current()
    return cached(StoredContents(store, seen.upper), seen, store.place)


def kept_young(store: CatalogStore, upper: int) -> tuple[Kept, ...]:
    """The kept times before upgrades. Those that are too old are released."""
    try:
        return let_go_of_old(store, store.kept(), upper)
    except StorageError as error:
        # The open is done. The next one releases them.
        _log.warning("can't release the kept dumps of %s: %s", store.place, error)
        return ()
