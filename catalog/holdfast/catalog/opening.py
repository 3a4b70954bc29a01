# ruff: noqa: D102 - the interface documents its methods
"""Opening a catalog on a store.

Invariants
- The initial objects and the first fence token are one append: a catalog is initialized whole or not at all.
- A writable open puts its token in the place of the durable one by one append at the upper that it read, so
  that nothing can have changed between the state that it took over and its token.
- What is refused changes nothing: versions and generation are checked, and all rows decoded, before the token
  is written. A catalog of an older version is upgraded by a writable open (see `upgrade.runner`).
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import assert_never

from holdfast.catalog import takeover
from holdfast.catalog.cache import Cache
from holdfast.catalog.contents import Contents, StoredContents, cached, sizes_of
from holdfast.catalog.dump import dump_lines
from holdfast.catalog.fence import FenceToken, check_who
from holdfast.catalog.handle import ReadOnlyHandle, SavepointHandle, WritableHandle
from holdfast.catalog.initialize import Bootstrap, initial_updates
from holdfast.catalog.interfaces import Loaded, OpenableCatalog, OpenMode, ReadOnlyCatalog
from holdfast.catalog.objects.codec import Row, Update
from holdfast.catalog.stores.preamble import Preamble, at_latest, committed, preamble_of, read_preamble
from holdfast.catalog.stores.standing import Alone, Standing
from holdfast.catalog.stores.store import CatalogStore, Kept, let_go_of_old
from holdfast.catalog.upgrade.plan import Plan, released
from holdfast.catalog.upgrade.runner import Upgraded, upgrade
from holdfast.catalog.upgrade_report import Size
from holdfast.errors import BadInput, NotWritable, StorageError

_log = logging.getLogger(__name__)


def wall_clock_ms() -> int:
    """The time of this host in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class StoredCatalog(OpenableCatalog):
    """A catalog on a store, not open. `store` is opened anew for each use, with a purpose of its own."""

    def __init__(
        self, store: CatalogStore, now_ms: Callable[[], int], *, standing: Standing | None = None
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._standing = standing or Alone()

    @property
    def place(self) -> str:
        return self._store.place

    @property
    def store(self) -> CatalogStore:
        """Where it is; to be opened anew for each use."""
        return self._store

    @property
    def now_ms(self) -> Callable[[], int]:
        """The clock that it is opened with, in milliseconds since the epoch."""
        return self._now_ms

    def is_initialized(self) -> bool:
        return self.preamble().is_initialized

    def fence_token(self) -> FenceToken | None:
        return self.preamble().token

    def config(self, key: str) -> int | None:
        return self.preamble().config.get(key)

    def dump(self, as_of: int | None = None) -> str:
        return "".join(self.dump_lines(as_of))

    def dump_lines(self, as_of: int | None = None) -> Iterator[str]:
        with self.opened("catalog dump") as store:
            rows = at_latest(store, lambda seen: self._rows(store, seen) if as_of is None else [])
            if as_of is not None:
                rows = list(store.rows(as_of))
        preamble_of(0, rows).check_readable()
        yield from dump_lines(rows)

    def check_open(self) -> None:
        with self.opened("catalog check") as store:
            at_latest(store, lambda seen: check_contents(store, seen))

    def sizes(self) -> Mapping[str, Size]:
        with self.opened("catalog sizes") as store:
            return at_latest(store, lambda seen: sizes_of(StoredContents(store, seen.upper).batches()))

    def kept_dumps(self) -> list[Kept]:
        with self.opened("catalog kept dumps") as store:
            return store.kept()

    def release_dump(self, version: int) -> None:
        self._check_writable()
        with self.opened("catalog kept dumps") as store:
            if version not in {kept.version for kept in store.kept()}:
                raise BadInput(f"the catalog in {self.place} keeps no dump of version {version}")
            store.let_go(version)

    def check_takeover(self) -> None:
        self._standing.check_write(self.preamble(), self.place)

    def initialize(
        self, *, deploy_generation: int = 0, holder: str, purpose: str, bootstrap: Bootstrap | None = None
    ) -> bool:
        mine = self.claim(deploy_generation, holder, purpose)
        with self.opened(purpose) as store:
            claim = takeover.alone(store, mine, self._standing)
            while True:
                seen = read_preamble(store, store.upper())
                self._standing.check_write(seen, self.place)
                if seen.is_initialized:
                    return False
                if committed(store, seen, opening_of(seen, claim(seen), bootstrap, self._now_ms())):
                    return True

    def raise_fence(
        self, at_least: int, *, deploy_generation: int | None = None, holder: str, purpose: str
    ) -> FenceToken:
        mine = self.claim(deploy_generation or 0, holder, purpose)
        with self.opened(purpose) as store:
            return takeover.raise_fence(
                store, at_least, takeover.of_generation(store, deploy_generation, mine, self._standing)
            )

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
        with self.opened(purpose or "rehearsal of a load") as store:
            return takeover.load(
                store,
                rows,
                takeover.of_generation(store, deploy_generation, mine, self._standing),
                exactly=exact,
                only_new=only_new,
                rehearse=rehearse,
            )

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
        store = self._store.another(purpose=purpose or f"catalog {mode.name.lower()}")
        try:
            match mode:
                case OpenMode.READ_ONLY:
                    return self._open_read_only(store)
                case OpenMode.WRITABLE:
                    mine = self.claim(deploy_generation, holder, purpose)
                    return self._open_writable(store, takeover.alone(store, mine, self._standing), bootstrap)
                case OpenMode.SAVEPOINT:
                    mine = FenceToken(deploy_generation, 0, holder, purpose)
                    return self._open_savepoint(store, mine, bootstrap)
                case _:
                    assert_never(mode)
        except BaseException:
            store.close()
            raise

    def _open_read_only(self, store: CatalogStore) -> ReadOnlyHandle:
        boot_ts = self._now_ms()

        def opened(seen: Preamble) -> ReadOnlyHandle:
            self._standing.check_read(seen, self.place)
            seen.check_initialized(self.place)
            return ReadOnlyHandle(
                store, loaded(store, seen), upper=seen.upper, boot_ts=boot_ts, standing=self._standing
            )

        return at_latest(store, opened)

    def _open_writable(
        self, store: CatalogStore, claim: takeover.Claim, bootstrap: Bootstrap | None
    ) -> WritableHandle:
        boot_ts = self._now_ms()

        def load(seen: Preamble) -> tuple[Preamble, Cache | None]:
            # Of a linked one it may not matter that it can't be read.
            self._standing.check_write(seen, self.place)
            return seen, _loaded_unless_older(store, seen)

        while True:
            seen, cache = at_latest(store, load)
            if cache is None:
                upgraded = upgrade(store, released(), claim)
                if upgraded is None:
                    continue
                return opened_upgraded(store, upgraded, boot_ts, self._now_ms)
            token = claim(seen)
            opening = opening_of(seen, token, bootstrap, self._now_ms())
            if not committed(store, seen, opening):
                continue
            cache.apply(opening)
            return WritableHandle(
                store,
                cache,
                upper=seen.upper + 1,
                boot_ts=boot_ts,
                token=token,
                now_ms=self._now_ms,
                kept=kept_young(store, seen.upper),
            )

    def _open_savepoint(
        self, store: CatalogStore, mine: FenceToken, bootstrap: Bootstrap | None
    ) -> SavepointHandle:
        boot_ts = self._now_ms()

        def opened(seen: Preamble) -> SavepointHandle:
            self._standing.check_read(seen, self.place)
            return savepoint(store, seen, seen.next_token(mine), bootstrap, boot_ts, self._now_ms)

        return at_latest(store, opened)

    def claim(self, deploy_generation: int, holder: str, purpose: str) -> FenceToken:
        """Who opens it for writing, without an epoch yet. Raises `NotWritable` and `BadInput`."""
        self._check_writable()
        check_who(holder, purpose)
        if not 0 <= deploy_generation < 1 << 64:
            raise BadInput(f"deploy generation {deploy_generation} is not in [0, 2^64)")
        return FenceToken(deploy_generation, 0, holder, purpose)

    def _check_writable(self) -> None:
        if not self._store.writable:
            raise NotWritable(
                "the catalog can't be opened for writing: its store was opened for reading only"
            )

    def preamble(self) -> Preamble:
        """Its fence token and its config, of the latest state."""
        with self.opened("catalog preamble") as store:
            return at_latest(store, lambda seen: seen)

    def _rows(self, store: CatalogStore, seen: Preamble) -> list[Row]:
        seen.check_initialized(self.place)
        return list(store.rows(seen.upper - 1))

    def opened(self, purpose: str) -> closing[CatalogStore]:
        """Its store, with handles of its own."""
        return closing(self._store.another(purpose=purpose))


def opening_of(
    seen: Preamble, token: FenceToken, bootstrap: Bootstrap | None, now_ms: int
) -> Sequence[Update]:
    """What a writable open commits: the token, and the initial objects where there are none."""
    fence = seen.fence(token)
    if seen.is_initialized:
        return fence
    return (*fence, *initial_updates(bootstrap or Bootstrap(), now_ms))


def opened_upgraded(
    store: CatalogStore, upgraded: Upgraded, boot_ts: int, now_ms: Callable[[], int]
) -> WritableHandle:
    """The handle of the process that has upgraded the catalog."""
    handle = WritableHandle(
        store,
        loaded(store, upgraded.seen),
        upper=upgraded.seen.upper,
        boot_ts=boot_ts,
        token=upgraded.token,
        now_ms=now_ms,
        kept=kept_young(store, upgraded.seen.upper),
    )
    handle.upgrade_report = upgraded.report
    return handle


def savepoint(
    store: CatalogStore,
    seen: Preamble,
    token: FenceToken,
    bootstrap: Bootstrap | None,
    boot_ts: int,
    now_ms: Callable[[], int],
) -> SavepointHandle:
    """A savepoint of what `seen` is the preamble of, with a token that is in memory only."""
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
    """Whether what `seen` is the preamble of could be opened, or upgraded; raises why not."""
    seen.check_initialized(store.place)
    seen.check_readable()
    if seen.is_older:
        Plan(store, seen, released()).close()
    else:
        loaded(store, seen)


def loaded(store: CatalogStore, seen: Preamble) -> Cache:
    """The contents that `seen` is the preamble of, at the current version."""
    seen.check_current()
    return cached(StoredContents(store, seen.upper), seen, store.place)


def _loaded_unless_older(store: CatalogStore, seen: Preamble) -> Cache | None:
    seen.check_readable()
    return None if seen.is_older else loaded(store, seen)


def kept_young(store: CatalogStore, upper: int) -> tuple[Kept, ...]:
    """What is kept of times before upgrades, without what is too old."""
    try:
        return let_go_of_old(store, store.kept(), upper)
    except StorageError as error:
        # The open stands; the next one lets go of them.
        _log.warning("could not let go of the kept dumps of %s: %s", store.place, error)
        return ()
