"""The catalog of a resource before it is opened: on persist, or in one of two linked stores. Blocking.

Invariants
- If the spec names a stash, the stash is read. If it can't be reached, nothing is opened, because it may be
  the source of truth.
- Credentials are only in what the stores are opened with. They are never shown or logged.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypedDict

from holdfast.catalog import Catalog, OpenableCatalog, persist_catalog
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.catalog.move.two_stores import TwoStores
from holdfast.catalog.one_store import stash_catalog
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.errors import BadInput, Fenced, UnusablePath
from holdfast.persist import PersistClient, Prepared
from holdfast_operator.catalogs.facts import Opening, UnknownLocation
from holdfast_operator.places.credentials import Credentials
from holdfast_operator.places.storage import Storage, keys_to_open, url_with

_STRATEGIES: Final = {"OneTombstone": Strategy.ONE_TOMBSTONE, "TwoTombstones": Strategy.TWO_TOMBSTONES}


class LinkFacts(TypedDict, total=False):
    """The status fields of a catalog in two linked stores."""

    link: str
    truth: str


def connect(
    storage: Storage, credentials: Credentials, *, mode: Literal["write", "read"] = "write"
) -> PersistClient:
    """Returns a client of a location. Raises `StoreUnreachable`, and `UnknownLocation` for an invalid URL."""
    try:
        return PersistClient.open(
            storage.url,
            blob=storage.blob,
            consensus=storage.consensus,
            mode=mode,
            credentials=keys_to_open(credentials.storage),
        )
    except UnusablePath:
        raise
    except BadInput as error:
        raise UnknownLocation(str(error), hint=error.hint) from error


def closed_catalog(
    client: PersistClient, opening: Opening, credentials: Credentials, *, read_only: bool = False
) -> OpenableCatalog:
    """Returns the catalog of `opening`, on a client of its location."""
    if opening.stash is None:
        return persist_catalog(client, opening.organization_id)
    return linked(client, opening, credentials, read_only=read_only)


def linked(
    client: PersistClient, opening: Opening, credentials: Credentials, *, read_only: bool = False
) -> LinkedCatalog:
    """Returns the catalog in the two stores of `opening`, which must have a stash."""
    assert opening.stash is not None
    return linked_catalog(
        stash_catalog(url_with(opening.stash, credentials.stash), read_only=read_only),
        persist_catalog(client, opening.organization_id),
        backend=Backend(opening.backend),
        strategy=_STRATEGIES.get(opening.strategy or ""),
        truth=None if opening.truth is None else Backend(opening.truth),
        shadow=opening.shadow,
    )


@dataclass(frozen=True)
class InTwo:
    """The two stores of an open catalog, and its source of truth. Valid while its token is in both stores."""

    stores: TwoStores
    id: int
    truth: Backend

    @property
    def facts(self) -> LinkFacts:
        """The fields for a status."""
        return {"link": f"{self.id:x}", "truth": self.truth.value}


def in_two(closed: OpenableCatalog) -> InTwo | None:
    """Returns the link of a catalog, or None if it has only one store or its two stores aren't linked yet."""
    link = closed.link() if isinstance(closed, LinkedCatalog) else None
    if link is None or not isinstance(closed, LinkedCatalog):
        return None
    return InTwo(closed.stores, link.id, link.truth)


def linked_by(closed: OpenableCatalog) -> LinkFacts:
    """Returns the link of two stores and their source of truth, or an empty dict if there is no link."""
    found = in_two(closed)
    return {} if found is None else found.facts


class StashGuard:
    """Fences writes on persist that a catalog in the stash makes.

    The stash and persist are two stores, so one commit can't cover both. Therefore the catalog's token is in
    both of them, and each guarded write carries the condition that persist's copy has not changed. There are
    two ways to lose the catalog:

    1. Another process takes it over with both stores. It writes its token to persist, which moves the upper
    of the catalog's shard. A guarded write that comes later fails its condition. This holds even if the write
    was prepared before the takeover. 2. Another process opens it in an emergency with the stash alone.
    Persist doesn't change, so each call also confirms the leadership in the stash. A write that was prepared
    before that open can still succeed.
    """

    def __init__(self, stores: TwoStores, catalog: Catalog) -> None:
        self._catalog = catalog
        self._persist = stores.persist.another(purpose="fence of a catalog in a stash")
        self._mine_at = -1

    def __call__(self) -> Prepared:
        """Returns the condition that nobody has taken the catalog over. Raises like `confirm_leadership`."""
        self._catalog.confirm_leadership()
        upper = self._persist.upper()
        if upper != self._mine_at:
            durable = read_preamble(self._persist, upper).token
            if durable != self._catalog.fence_token():
                self._catalog.confirm_leadership()
                raise Fenced(self._catalog.fence_token(), durable)
            self._mine_at = upper
        return self._persist.expect(upper)

    def close(self) -> None:
        """Closes the handle."""
        self._persist.close()
