"""A catalog in one store: that of an organization on persist, or the one in a stash."""

import uuid
from collections.abc import Callable

from holdfast.catalog.interfaces import OpenableCatalog
from holdfast.catalog.opening import StoredCatalog, wall_clock_ms
from holdfast.catalog.stores.persist import CatalogShard, catalog_shard_id
from holdfast.catalog.stores.stash import StashStore
from holdfast.persist import PersistClient


def persist_catalog(
    client: PersistClient,
    organization_id: uuid.UUID | str,
    *,
    now_ms: Callable[[], int] = wall_clock_ms,
    where: str | None = None,
) -> OpenableCatalog:
    """The catalog of an organization in the location of `client`; reads and writes nothing yet.

    `where` is what messages call that location, by default what its blob store is called. Raises `BadInput`
    when `organization_id` is not a UUID.
    """
    shard_id = catalog_shard_id(organization_id)
    return StoredCatalog(CatalogShard(client, shard_id, purpose="catalog", where=where), now_ms)


def stash_catalog(
    url: str, *, read_only: bool = False, now_ms: Callable[[], int] = wall_clock_ms
) -> OpenableCatalog:
    """The catalog in a stash, `postgresql://host/database?schema=name` or `sqlite:///path`.

    One stash holds one catalog. Nothing is asked or made yet: the first open for writing makes the tables.
    With `read_only` nothing is ever written. Raises `BadInput` for a URL without meaning.
    """
    return StoredCatalog(StashStore(url, read_only=read_only), now_ms)
