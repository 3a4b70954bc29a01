"""Ending a link: the catalog is on persist alone again.

The stash keeps what it had, its side of the link among it, so that nobody takes its old contents for the
catalog.
"""

from dataclasses import replace

from holdfast.durable import config
from holdfast.durable.backend_migration.link import UNLINKED, Linked, Seen
from holdfast.durable.backend_migration.linked import LinkedCatalog
from holdfast.durable.backend_migration.records import running_of
from holdfast.durable.backend_migration.standing import holder_of
from holdfast.durable.backend_migration.truth import Backend
from holdfast.durable.backend_migration.two_stores import next_token, read_both, take_over_both
from holdfast.durable.fence import FenceToken
from holdfast.durable.interfaces import OpenableCatalog
from holdfast.durable.opening import StoredCatalog
from holdfast.durable.preamble import Preamble, committed, read_preamble
from holdfast.errors import BadInput, Fenced, LinkConflict, MigrationInProgress


def detach(
    catalog: OpenableCatalog,
    *,
    stash_lost: bool = False,
    deploy_generation: int | None = None,
    holder: str,
    purpose: str,
) -> FenceToken:
    """End the link of a catalog that is on persist: from then on `persist_catalog` opens it alone.

    `catalog` is what `linked_catalog` gave; with `stash_lost`, for a stash that is gone for good, what
    `persist_catalog` gave: allowed only while persist says itself that it is the source of truth. Whoever has
    it open is fenced by the token that is given back; `deploy_generation` is by default the durable one.

    Raises `BadInput` where there is no link, or the catalog is in the stash; `LinkConflict` where persist
    does not tell that it is the truth; `MigrationInProgress`, `Fenced`. Nothing is changed then.
    """
    if stash_lost:
        persist = _on_persist(catalog)
        claim = persist.claim(deploy_generation or 0, holder, purpose)
        return _detach_alone(persist, deploy_generation, claim)
    if not isinstance(catalog, LinkedCatalog):
        raise BadInput(
            f"the link of the catalog in {catalog.place} is ended with both of its stores",
            hint="give the stash too; if that is lost for good, say so (stash_lost, --stash-lost)",
        )
    return _detach_both(catalog, deploy_generation, catalog.claim(deploy_generation or 0, holder, purpose))


def check_detach(catalog: OpenableCatalog, *, stash_lost: bool = False) -> None:
    """Raise what `detach` would; needs clients that only read."""
    if isinstance(catalog, LinkedCatalog) and not stash_lost:
        with catalog.stores.opened("rehearsal of a detach") as stores:
            _check_both(catalog, read_both(stores))
        return
    persist = _on_persist(catalog)
    with persist.opened("rehearsal of a detach") as store:
        _check_alone(read_preamble(store, store.upper()), persist.place)


def _on_persist(catalog: OpenableCatalog) -> StoredCatalog:
    persist = catalog.on_persist if isinstance(catalog, LinkedCatalog) else catalog
    if not isinstance(persist, StoredCatalog):
        raise BadInput(f"the catalog in {catalog.place} is not on persist")
    return persist


def _detach_both(catalog: LinkedCatalog, deploy_generation: int | None, claim: FenceToken) -> FenceToken:
    if deploy_generation is None:
        claim = replace(claim, deploy_generation=catalog.deploy_generation() or 0)
    with catalog.stores.opened(claim.purpose) as stores:
        taken = take_over_both(stores, claim, check=lambda seen: _check_both(catalog, seen))
        seen = taken.seen.persist
        while not committed(stores.persist, seen, seen.configured(UNLINKED)):
            seen = read_preamble(stores.persist, stores.persist.upper())
            if seen.token != taken.token:
                raise Fenced(taken.token, seen.token)
        return taken.token


def _check_both(catalog: LinkedCatalog, seen: Seen) -> None:
    link = catalog.stores.linkage(seen)
    if not isinstance(link, Linked):
        raise BadInput(f"the catalog in {catalog.place} is not linked: there is nothing to end")
    if link.truth is not Backend.PERSIST:
        raise BadInput(
            f"the catalog is in the stash, in {catalog.stores.stash.place}: its link can't be ended",
            hint="move it to persist first: holdfast migrate run",
        )
    running = running_of(seen.stash.config)
    if running is not None:
        raise MigrationInProgress(running.migration_id, holder_of(seen.stash))


def _detach_alone(catalog: StoredCatalog, deploy_generation: int | None, claim: FenceToken) -> FenceToken:
    with catalog.opened(claim.purpose) as store:
        while True:
            seen = read_preamble(store, store.upper())
            _check_alone(seen, catalog.place)
            if deploy_generation is None and seen.token is not None:
                claim = replace(claim, deploy_generation=seen.token.deploy_generation)
            token = next_token(Seen(Preamble(0, {}), seen), claim)
            if committed(store, seen, (*seen.fence(token), *seen.configured(UNLINKED))):
                return token


def _check_alone(seen: Preamble, place: str) -> None:
    if not seen.is_linked:
        raise BadInput(f"the catalog in {place} is not linked: there is nothing to end")
    if config.STASH_LINKED not in seen.config:
        raise BadInput(
            f"{place} is the stash of a link, which is ended on persist",
            hint="give the catalog on persist",
        )
    if seen.config.get(config.TRUTH) != 1:
        raise LinkConflict(
            f"the catalog in {place} does not say that it is the source of truth: the stash may hold newer"
            " contents",
            hint="bring the stash back; a migration that was running must end first",
        )
