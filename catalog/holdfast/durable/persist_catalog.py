# ruff: noqa: D102 - the interface documents its methods
"""Opening a catalog on persist.

Invariants
- The initial objects and the first fence token are one append: a catalog is initialized whole or not at all.
- A writable open puts its token in the place of the durable one by one append at the upper that it read, so
  that nothing can have changed between the state that it took over and its token.
- What is refused changes nothing: versions and generation are checked, and all rows decoded, before the token
  is written.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import assert_never

from holdfast.durable.cache import Cache
from holdfast.durable.codec import Update, dump_json
from holdfast.durable.fence import FenceToken
from holdfast.durable.initialize import Bootstrap, initial_updates
from holdfast.durable.interfaces import OpenableCatalog, OpenMode, ReadOnlyCatalog
from holdfast.durable.persist_handle import PersistCatalog, PersistReadOnlyCatalog, PersistSavepoint
from holdfast.durable.preamble import Preamble, preamble_of, read_preamble
from holdfast.durable.shard import CatalogShard, catalog_shard_id
from holdfast.errors import BadInput, Fenced, NotWritable, UpperMismatch
from holdfast.persist import PersistClient


def wall_clock_ms() -> int:
    """The time of this host in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def persist_catalog(
    client: PersistClient,
    organization_id: uuid.UUID | str,
    *,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> OpenableCatalog:
    """The catalog of an organization in the location of `client`; reads and writes nothing yet.

    Raises `BadInput` when `organization_id` is not a UUID.
    """
    return PersistOpenableCatalog(client, catalog_shard_id(organization_id), now_ms)


class PersistOpenableCatalog(OpenableCatalog):
    """A catalog in one shard, not open."""

    def __init__(self, client: PersistClient, shard_id: str, now_ms: Callable[[], int]) -> None:
        self._shard_id = shard_id
        self._client = client
        self._now_ms = now_ms

    @property
    def shard_id(self) -> str:
        return self._shard_id

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
        with self._shard("catalog dump") as shard:
            upper = shard.upper()
            read_preamble(shard, upper).check_initialized(self.shard_id)
            rows = list(shard.rows(upper - 1 if as_of is None else as_of))
        preamble_of(upper, rows).check_readable()
        return dump_json(rows)

    def check_open(self) -> None:
        with self._shard("catalog check") as shard:
            seen = read_preamble(shard, shard.upper())
            seen.check_initialized(self.shard_id)
            _load(shard, seen)

    def initialize(
        self, *, deploy_generation: int = 0, holder: str, purpose: str, bootstrap: Bootstrap | None = None
    ) -> bool:
        mine = self._claim(deploy_generation, holder, purpose)
        with self._shard(purpose) as shard:
            while True:
                seen = read_preamble(shard, shard.upper())
                if seen.is_initialized:
                    return False
                try:
                    shard.append(self._opening(seen, mine, bootstrap), seen.upper, take_hold=True)
                except UpperMismatch:
                    continue
                return True

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
        shard = CatalogShard(self._client, self.shard_id, purpose=purpose or f"catalog {mode.name.lower()}")
        try:
            match mode:
                case OpenMode.READ_ONLY:
                    return self._open_read_only(shard)
                case OpenMode.WRITABLE:
                    return self._open_writable(
                        shard, self._claim(deploy_generation, holder, purpose), bootstrap
                    )
                case OpenMode.SAVEPOINT:
                    return self._open_savepoint(
                        shard, FenceToken(deploy_generation, 0, holder, purpose), bootstrap
                    )
                case _:
                    assert_never(mode)
        except BaseException:
            shard.close()
            raise

    def _open_read_only(self, shard: CatalogShard) -> PersistReadOnlyCatalog:
        boot_ts = self._now_ms()
        seen = read_preamble(shard, shard.upper())
        seen.check_initialized(self.shard_id)
        return PersistReadOnlyCatalog(shard, _load(shard, seen), upper=seen.upper, boot_ts=boot_ts)

    def _open_writable(
        self, shard: CatalogShard, mine: FenceToken, bootstrap: Bootstrap | None
    ) -> PersistCatalog:
        boot_ts = self._now_ms()
        while True:
            seen = read_preamble(shard, shard.upper())
            cache = _load(shard, seen)
            opening = self._opening(seen, mine, bootstrap)
            try:
                shard.append(opening, seen.upper, take_hold=True)
            except UpperMismatch:
                continue
            cache.apply(opening)
            return PersistCatalog(
                shard,
                cache,
                upper=seen.upper + 1,
                boot_ts=boot_ts,
                token=mine.after(seen.token),
                now_ms=self._now_ms,
            )

    def _open_savepoint(
        self, shard: CatalogShard, mine: FenceToken, bootstrap: Bootstrap | None
    ) -> PersistSavepoint:
        boot_ts = self._now_ms()
        seen = read_preamble(shard, shard.upper())
        cache = _load(shard, seen)
        opening = self._opening(seen, mine, bootstrap)
        cache.apply(opening)
        return PersistSavepoint(
            shard,
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
        if self._client.mode == "read":
            raise NotWritable(
                "the catalog can't be opened for writing: its client was opened with mode 'read'"
            )
        if not holder or not purpose:
            raise BadInput("a catalog that is opened for writing needs a holder and a purpose")
        if not 0 <= deploy_generation < 1 << 64:
            raise BadInput(f"deploy generation {deploy_generation} is not in [0, 2^64)")
        return FenceToken(deploy_generation, 0, holder, purpose)

    def _preamble(self) -> Preamble:
        with self._shard("catalog preamble") as shard:
            return read_preamble(shard, shard.upper())

    def _shard(self, purpose: str) -> closing[CatalogShard]:
        return closing(CatalogShard(self._client, self.shard_id, purpose=purpose))


def _load(shard: CatalogShard, seen: Preamble) -> Cache:
    """The contents that `seen` is the preamble of."""
    seen.check_readable()
    return Cache(shard.rows(seen.upper - 1) if seen.upper else ())
