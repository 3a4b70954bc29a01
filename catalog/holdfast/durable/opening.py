# ruff: noqa: D102 - the interface documents its methods
"""Opening a catalog on a store.

Invariants
- The initial objects and the first fence token are one append: a catalog is initialized whole or not at all.
- A writable open puts its token in the place of the durable one by one append at the upper that it read, so
  that nothing can have changed between the state that it took over and its token.
- What is refused changes nothing: versions and generation are checked, and all rows decoded, before the token
  is written.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import assert_never

from holdfast.durable import takeover
from holdfast.durable.cache import APPEND_ONLY, Cache
from holdfast.durable.codec import Row, Update
from holdfast.durable.dump import dump_lines
from holdfast.durable.fence import FenceToken
from holdfast.durable.handle import ReadOnlyHandle, SavepointHandle, WritableHandle
from holdfast.durable.initialize import Bootstrap, initial_updates
from holdfast.durable.interfaces import Loaded, OpenableCatalog, OpenMode, ReadOnlyCatalog
from holdfast.durable.preamble import Preamble, preamble_of, read_preamble
from holdfast.durable.store import CatalogStore
from holdfast.errors import BadInput, Fenced, NotWritable, UpperMismatch


def wall_clock_ms() -> int:
    """The time of this host in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class StoredCatalog(OpenableCatalog):
    """A catalog on a store, not open. `store` is opened anew for each use, with a purpose of its own."""

    def __init__(self, store: CatalogStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms

    @property
    def place(self) -> str:
        return self._store.place

    def is_initialized(self) -> bool:
        return self._preamble().is_initialized

    def epoch(self) -> int | None:
        token = self._preamble().token
        return None if token is None else token.epoch

    def deploy_generation(self) -> int | None:
        token = self._preamble().token
        return None if token is None else token.deploy_generation

    def config(self, key: str) -> int | None:
        return self._preamble().config.get(key)

    def dump(self, as_of: int | None = None) -> str:
        return "".join(self.dump_lines(as_of))

    def dump_lines(self, as_of: int | None = None) -> Iterator[str]:
        with self._opened("catalog dump") as store:
            upper = store.upper()
            read_preamble(store, upper).check_initialized(self.place)
            rows = list(store.rows(upper - 1 if as_of is None else as_of))
        preamble_of(upper, rows).check_readable()
        yield from dump_lines(rows)

    def check_open(self) -> None:
        with self._opened("catalog check") as store:
            seen = read_preamble(store, store.upper())
            seen.check_initialized(self.place)
            _load(store, seen)

    def initialize(
        self, *, deploy_generation: int = 0, holder: str, purpose: str, bootstrap: Bootstrap | None = None
    ) -> bool:
        mine = self._claim(deploy_generation, holder, purpose)
        with self._opened(purpose) as store:
            while True:
                seen = read_preamble(store, store.upper())
                if seen.is_initialized:
                    return False
                try:
                    store.append(self._opening(seen, mine, bootstrap), seen.upper, take_hold=True)
                except UpperMismatch:
                    continue
                return True

    def raise_fence(
        self, at_least: int, *, deploy_generation: int | None = None, holder: str, purpose: str
    ) -> FenceToken:
        claim = self._claim(deploy_generation or 0, holder, purpose)
        with self._opened(purpose) as store:
            return takeover.raise_fence(store, at_least, deploy_generation, claim)

    def load(
        self,
        rows: Iterable[Row],
        *,
        deploy_generation: int | None = None,
        holder: str,
        purpose: str,
        exact: bool = False,
        only_new: bool = False,
    ) -> Loaded:
        claim = self._claim(deploy_generation or 0, holder, purpose)
        with self._opened(purpose) as store:
            return takeover.load(store, rows, deploy_generation, claim, exactly=exact, only_new=only_new)

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
                    return self._open_writable(
                        store, self._claim(deploy_generation, holder, purpose), bootstrap
                    )
                case OpenMode.SAVEPOINT:
                    return self._open_savepoint(
                        store, FenceToken(deploy_generation, 0, holder, purpose), bootstrap
                    )
                case _:
                    assert_never(mode)
        except BaseException:
            store.close()
            raise

    def _open_read_only(self, store: CatalogStore) -> ReadOnlyHandle:
        boot_ts = self._now_ms()
        seen = read_preamble(store, store.upper())
        seen.check_initialized(self.place)
        return ReadOnlyHandle(store, _load(store, seen), upper=seen.upper, boot_ts=boot_ts)

    def _open_writable(
        self, store: CatalogStore, mine: FenceToken, bootstrap: Bootstrap | None
    ) -> WritableHandle:
        boot_ts = self._now_ms()
        while True:
            seen = read_preamble(store, store.upper())
            cache = _load(store, seen)
            opening = self._opening(seen, mine, bootstrap)
            try:
                store.append(opening, seen.upper, take_hold=True)
            except UpperMismatch:
                continue
            cache.apply(opening)
            return WritableHandle(
                store,
                cache,
                upper=seen.upper + 1,
                boot_ts=boot_ts,
                token=mine.after(seen.token),
                now_ms=self._now_ms,
            )

    def _open_savepoint(
        self, store: CatalogStore, mine: FenceToken, bootstrap: Bootstrap | None
    ) -> SavepointHandle:
        boot_ts = self._now_ms()
        seen = read_preamble(store, store.upper())
        cache = _load(store, seen)
        opening = self._opening(seen, mine, bootstrap)
        cache.apply(opening)
        return SavepointHandle(
            store,
            cache,
            durable_upper=seen.upper,
            boot_ts=boot_ts,
            token=mine.after(seen.token),
            opening=opening,
            now_ms=self._now_ms,
        )

    def _opening(self, seen: Preamble, mine: FenceToken, bootstrap: Bootstrap | None) -> Sequence[Update]:
        """What a writable open commits: the token, and the initial objects where there are none.

        Raises `Fenced` when the durable generation is greater than `mine`.
        """
        token = mine.after(seen.token)
        if seen.token is not None and token.deploy_generation < seen.token.deploy_generation:
            raise Fenced(token, seen.token)
        fence = seen.fence(token)
        if seen.is_initialized:
            return fence
        return (*fence, *initial_updates(bootstrap or Bootstrap(), self._now_ms()))

    def _claim(self, deploy_generation: int, holder: str, purpose: str) -> FenceToken:
        if not self._store.writable:
            raise NotWritable(
                "the catalog can't be opened for writing: its store was opened for reading only"
            )
        if not holder or not purpose:
            raise BadInput("a catalog that is opened for writing needs a holder and a purpose")
        if not 0 <= deploy_generation < 1 << 64:
            raise BadInput(f"deploy generation {deploy_generation} is not in [0, 2^64)")
        return FenceToken(deploy_generation, 0, holder, purpose)

    def _preamble(self) -> Preamble:
        with self._opened("catalog preamble") as store:
            return read_preamble(store, store.upper())

    def _opened(self, purpose: str) -> closing[CatalogStore]:
        return closing(self._store.another(purpose=purpose))


def _load(store: CatalogStore, seen: Preamble) -> Cache:
    """The contents that `seen` is the preamble of."""
    seen.check_readable()
    return Cache.load(store.batches(seen.upper - 1, but=APPEND_ONLY)) if seen.upper else Cache()
