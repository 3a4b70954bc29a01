"""Ends a link: the catalog is only on persist again.

The stash keeps its contents, including its side of the link. So nobody takes its old contents for the
catalog.
"""

from contextlib import suppress
from dataclasses import replace

from holdfast.catalog import config, takeover
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.interfaces import OpenableCatalog
from holdfast.catalog.move.decision import FAR
from holdfast.catalog.move.link import UNLINKED, Linked
from holdfast.catalog.move.linked import LinkedCatalog
from holdfast.catalog.move.records import running_of
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.standing import in_progress
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.move.two_stores import of_generation, read_both, take_over_both
from holdfast.catalog.one_store import OneStoreCatalog
from holdfast.catalog.stores.preamble import Preamble, committed, read_preamble
from holdfast.errors import (
    BadInput,
    LinkConflict,
    OtherHistory,
    UpperMismatch,
)


def detach(
    catalog: OpenableCatalog,
    *,
    stash_lost: bool = False,
    accept_loss: bool = False,
    deploy_generation: int | None = None,
    holder: str,
    purpose: str,
) -> FenceToken:
    """End the link of a catalog whose source of truth is persist. Then `persist_catalog` alone opens it.

    `catalog` is a `linked_catalog`. With `stash_lost`, for a stash that is gone permanently, it is a
    `persist_catalog`. That is allowed only while persist records itself as the source of truth, or with
    `accept_loss`, if a user has decided that persist holds the catalog and gives up what only the lost stash
    had. Every process that has the catalog open is fenced by the returned token, except one that still has
    that stash. `deploy_generation` is the durable one by default.

    Raises `BadInput` if there is no link, or if the source of truth is the stash; `LinkConflict` if persist
    does not record itself as the source of truth; `MigrationInProgress` and `Fenced`. Nothing is changed
    then.
    """
    if stash_lost:
        persist = _on_persist(catalog)
        claim = persist.claim(deploy_generation or 0, holder, purpose)
        return _detach_alone(persist, deploy_generation, claim, accept_loss=accept_loss)
    if not isinstance(catalog, LinkedCatalog):
        raise BadInput(
            f"ending the link of the catalog in {catalog.place} needs both of its stores",
            hint="also give the stash; if it is lost for good, pass stash_lost or --stash-lost",
        )
    return _detach_both(catalog, deploy_generation, catalog.claim(deploy_generation or 0, holder, purpose))


def check_detach(catalog: OpenableCatalog, *, stash_lost: bool = False, accept_loss: bool = False) -> None:
    """Raise what `detach` would. Needs only clients that read."""
    if isinstance(catalog, LinkedCatalog) and not stash_lost:
        with catalog.stores.opened("rehearsal of a detach") as stores:
            _check_both(catalog, read_both(stores))
        return
    persist = _on_persist(catalog)
    with persist.opened("rehearsal of a detach") as store:
        _check_alone(read_preamble(store, store.upper()), persist.place, accept_loss=accept_loss)


def _on_persist(catalog: OpenableCatalog) -> OneStoreCatalog:
    persist = catalog.of(Backend.PERSIST) if isinstance(catalog, LinkedCatalog) else catalog
    if not isinstance(persist, OneStoreCatalog):
        raise BadInput(f"the catalog in {catalog.place} is not on persist")
    return persist


def _detach_both(catalog: LinkedCatalog, deploy_generation: int | None, claim: FenceToken) -> FenceToken:
    with catalog.stores.opened(claim.purpose) as stores:
        claim = of_generation(read_both(stores), deploy_generation, claim)
        taken = take_over_both(stores, claim, check=lambda seen: _check_both(catalog, seen))
        seen = taken.seen
        while not committed(stores.persist, seen.persist, seen.persist.configured(UNLINKED)):
            seen = seen.where(Backend.PERSIST, read_preamble(stores.persist, stores.persist.upper()))
            takeover.under(taken.token)(seen.persist)
            # Somebody may have begun a decision about the link, which has no token yet.
            _check_both(catalog, seen)
        return taken.token


def _check_both(catalog: LinkedCatalog, seen: Seen) -> None:
    link = catalog.stores.linkage(seen)
    if not isinstance(link, Linked):
        raise BadInput(f"the catalog in {catalog.place} is not linked: there is no link to end")
    if link.truth is not Backend.PERSIST:
        raise BadInput(
            f"the source of truth is the stash in {catalog.stores.stash.place}: its link can't be ended",
            hint="move the catalog to persist first: holdfast migrate run",
        )
    running = running_of(seen.stash.config)
    if running is not None:
        raise in_progress(running, seen.stash)


def _detach_alone(
    catalog: OneStoreCatalog, deploy_generation: int | None, claim: FenceToken, *, accept_loss: bool
) -> FenceToken:
    with catalog.opened(claim.purpose) as store:
        # A process may remember times of the stash, and persist must not use these times again.
        least = store.upper() + FAR
        while True:
            seen = read_preamble(store, store.upper())
            _check_alone(seen, catalog.place, accept_loss=accept_loss)
            if deploy_generation is None and seen.token is not None:
                claim = replace(claim, deploy_generation=seen.token.deploy_generation)
            token = seen.next_token(claim)
            wanted = dict(UNLINKED)
            if not seen.is_certain:
                if seen.upper < least:
                    with suppress(OtherHistory, UpperMismatch):
                        store.advance(seen.upper, least, fence=seen.fence_row)
                    continue
                wanted[config.TRUTH_SINCE] = seen.upper
            if committed(store, seen, (*seen.fence(token), *seen.configured(wanted))):
                return token


def _check_alone(seen: Preamble, place: str, *, accept_loss: bool) -> None:
    if not seen.is_linked:
        raise BadInput(f"the catalog in {place} is not linked: there is no link to end")
    if config.STASH_LINKED not in seen.config:
        raise BadInput(
            f"{place} is the stash of a link, and a link is ended on persist",
            hint="give the catalog on persist",
        )
    if not seen.is_certain and not accept_loss:
        raise LinkConflict(
            f"the catalog in {place} does not record that it is the source of truth: the stash may hold newer"
            " contents",
            hint="bring the stash back, and let a running migration end; if the stash is lost for good,"
            " --accept-loss gives up what it had",
        )
