# ruff: noqa: D102 - the backing documents its methods
"""A catalog in one store: the catalog of an organization on persist, or the one in a stash.

Invariants
- The initial objects and the first fence token are one append, so a catalog is initialized completely or not
  at all.
- A writable open replaces the durable token by its own in one append at the upper that it read. So nothing
  can change between the state that it takes over and its token.
"""

import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from holdfast.catalog import takeover
from holdfast.catalog.cache import Cache
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.handle import WritableHandle
from holdfast.catalog.initialize import Bootstrap
from holdfast.catalog.interfaces import Loaded, OpenableCatalog
from holdfast.catalog.opening import (
    Backing,
    PutContents,
    Read,
    StoredCatalog,
    kept_young,
    loaded,
    opening_of,
    wall_clock_ms,
)
from holdfast.catalog.stores.persist import CatalogShard, catalog_shard_id
from holdfast.catalog.stores.preamble import Preamble, at_latest, committed, read_preamble
from holdfast.catalog.stores.standing import Alone, Standing
from holdfast.catalog.stores.stash import StashStore
from holdfast.catalog.stores.store import CatalogStore, Kept
from holdfast.catalog.takeover import Claim
from holdfast.catalog.upgrade.plan import released
from holdfast.catalog.upgrade.runner import upgrade
from holdfast.persist import PersistClient

T = TypeVar("T")


def persist_catalog(
    client: PersistClient,
    organization_id: uuid.UUID | str,
    *,
    now_ms: Callable[[], int] = wall_clock_ms,
    where: str | None = None,
) -> OpenableCatalog:
    """The catalog of an organization in the location of `client`. Reads and writes nothing yet.

    `where` is the name of that location in messages. Default: the name of its blob store. Raises `BadInput`
    if `organization_id` is not a UUID.
    """
    shard_id = catalog_shard_id(organization_id)
    client.session.history.name_shards({shard_id: f"the catalog of organization {organization_id}"})
    store = CatalogShard(
        client, shard_id, purpose="catalog", where=where, organization_id=str(organization_id)
    )
    return OneStoreCatalog(store, now_ms)


def stash_catalog(
    url: str, *, read_only: bool = False, now_ms: Callable[[], int] = wall_clock_ms
) -> OpenableCatalog:
    """The catalog in a stash: `postgresql://host/database?schema=name` or `sqlite:///path`.

    A stash holds one catalog. Nothing is read or created yet: the first open for writing creates the tables.
    With `read_only` nothing is ever written. Raises `BadInput` for an invalid URL.
    """
    return OneStoreCatalog(StashStore(url, read_only=read_only), now_ms)


class OneStoreCatalog(StoredCatalog):
    """A catalog in one store, not open. Each use opens its own handle of `store`, with its own purpose."""

    def __init__(
        self, store: CatalogStore, now_ms: Callable[[], int], *, standing: Standing | None = None
    ) -> None:
        super().__init__(OneStore(now_ms, store, standing or Alone()))
        self.store = store

    def opened(self, purpose: str) -> closing[CatalogStore]:
        """Its store, with its own handles."""
        return closing(self.store.another(purpose=purpose))


@dataclass(frozen=True)
class OneStore(Backing):
    """A store that has the catalog, or may have it. `alone` decides what the store itself doesn't show."""

    store: CatalogStore
    alone: Standing = field(default_factory=Alone)

    @property
    def place(self) -> str:
        return self.store.place

    @property
    def writable(self) -> bool:
        return self.store.writable

    def another(self, purpose: str) -> "OneStore":
        return replace(self, store=self.store.another(purpose=purpose))

    def close(self, *, but: CatalogStore | None = None) -> None:
        if but is None:
            self.store.close()

    def holder(self) -> CatalogStore:
        return self.store

    def preamble(self) -> Preamble:
        return at_latest(self.store, lambda seen: seen)

    def latest(self, read: Read[T]) -> tuple[CatalogStore, Preamble, T]:
        return at_latest(self.store, lambda seen: (self.store, seen, read(self.store, seen)))

    def standing(self, store: CatalogStore) -> Standing:  # noqa: ARG002 - there is one
        return self.alone

    def rehearsed(self, mine: FenceToken) -> Claim:
        return lambda seen: seen.next_token(mine)

    def check_takeover(self) -> None:
        self.alone.check_write(self.preamble(), self.place)

    def initialize(self, mine: FenceToken, bootstrap: Bootstrap) -> bool:
        claim = self._claim(mine, mine.deploy_generation)
        while True:
            seen = read_preamble(self.store, self.store.upper())
            self.alone.check_write(seen, self.place)
            if seen.is_initialized:
                return False
            if committed(self.store, seen, opening_of(seen, claim(seen), bootstrap, self.now_ms())):
                return True

    def raise_fence(self, at_least: int, mine: FenceToken, deploy_generation: int | None) -> FenceToken:
        return takeover.raise_fence(self.store, at_least, self._claim(mine, deploy_generation))

    def load(
        self, put: PutContents, mine: FenceToken, deploy_generation: int | None, *, rehearse: bool
    ) -> Loaded:
        return put(self.store, self._claim(mine, deploy_generation), rehearse)

    def open_writable(self, mine: FenceToken, bootstrap: Bootstrap) -> tuple[WritableHandle, CatalogStore]:
        boot_ts = self.now_ms()
        claim = self._claim(mine, mine.deploy_generation)
        while True:
            seen, cache = at_latest(self.store, self._loaded_unless_older)
            if cache is None:
                upgraded = upgrade(self.store, released(), claim)
                if upgraded is None:
                    continue
                cache = loaded(self.store, upgraded.seen)
                upper = upgraded.seen.upper
                handle = self._writable(cache, upgraded.token, upper, kept_young(self.store, upper), boot_ts)
                handle.upgrade_report = upgraded.report
                return handle, self.store
            token = claim(seen)
            opening = opening_of(seen, token, bootstrap, self.now_ms())
            if committed(self.store, seen, opening):
                cache.apply(opening)
                kept = kept_young(self.store, seen.upper)
                return self._writable(cache, token, seen.upper + 1, kept, boot_ts), self.store

    def _claim(self, mine: FenceToken, deploy_generation: int | None) -> Claim:
        """The claim of a process that has only this store. Default: the durable generation."""

        def claim(seen: Preamble) -> FenceToken:
            self.alone.check_write(seen, self.place)
            durable = seen.token.deploy_generation if seen.token is not None else 0
            generation = durable if deploy_generation is None else deploy_generation
            return seen.next_token(replace(mine, deploy_generation=generation))

        return claim

    def _loaded_unless_older(self, seen: Preamble) -> tuple[Preamble, Cache | None]:
        # Check the standing first: for a linked catalog it may not matter whether this store is readable.
        self.alone.check_write(seen, self.place)
        seen.check_readable()
        return seen, None if seen.is_older else loaded(self.store, seen)

    def _writable(
        self, cache: Cache, token: FenceToken, upper: int, kept: tuple[Kept, ...], boot_ts: int
    ) -> WritableHandle:
        return WritableHandle(
            self.store,
            cache,
            upper=upper,
            boot_ts=boot_ts,
            token=token,
            now_ms=self.now_ms,
            kept=kept,
        )
