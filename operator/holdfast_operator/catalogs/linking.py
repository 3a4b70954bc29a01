"""The catalog of a resource, not open: on persist, or in one of two linked stores. Blocking.

Invariants
- A stash that is named is asked: where it doesn't answer nothing is opened, for it may be the truth.
- Credentials are in the URL that the stash is opened with, and in nothing that is shown or logged.
"""

from collections.abc import Mapping
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
from holdfast_operator.places.storage import Storage, url_with

_STRATEGIES: Final = {"OneTombstone": Strategy.ONE_TOMBSTONE, "TwoTombstones": Strategy.TWO_TOMBSTONES}


class LinkFacts(TypedDict, total=False):
    """Of a catalog in two linked stores."""

    link: str
    truth: str


def connect(storage: Storage, *, mode: Literal["write", "read"] = "write") -> PersistClient:
    """A client of a location. Raises `UnknownLocation` for URLs without a meaning, `StoreUnreachable`."""
    try:
        return PersistClient.open(storage.url, blob=storage.blob, consensus=storage.consensus, mode=mode)
    except UnusablePath:
        raise
    except BadInput as error:
        raise UnknownLocation(str(error), hint=error.hint) from error


def closed_catalog(
    client: PersistClient, opening: Opening, credentials: Mapping[str, str], *, read_only: bool = False
) -> OpenableCatalog:
    """The catalog of `opening`; `credentials` are those of its stash, where it has one."""
    if opening.stash is None:
        return persist_catalog(client, opening.organization_id)
    return linked(client, opening, credentials, read_only=read_only)


def linked(
    client: PersistClient, opening: Opening, credentials: Mapping[str, str], *, read_only: bool = False
) -> LinkedCatalog:
    """The catalog in the two stores of `opening`, which has a stash."""
    assert opening.stash is not None
    return linked_catalog(
        stash_catalog(url_with(opening.stash, credentials), read_only=read_only),
        persist_catalog(client, opening.organization_id),
        backend=Backend(opening.backend),
        strategy=_STRATEGIES.get(opening.strategy or ""),
        truth=None if opening.truth is None else Backend(opening.truth),
        shadow=opening.shadow,
    )


@dataclass(frozen=True)
class InTwo:
    """The two stores of an open catalog, and the one that it is in, as long as its token is in both."""

    stores: TwoStores
    id: int
    truth: Backend

    @property
    def facts(self) -> LinkFacts:
        """For a status."""
        return {"link": f"{self.id:x}", "truth": self.truth.value}


def in_two(closed: OpenableCatalog) -> InTwo | None:
    """The link of a catalog; None where it has only one store, or two that aren't linked yet."""
    link = closed.link() if isinstance(closed, LinkedCatalog) else None
    if link is None or not isinstance(closed, LinkedCatalog):
        return None
    return InTwo(closed.stores, link.id, link.truth)


def linked_by(closed: OpenableCatalog) -> LinkFacts:
    """What two stores are linked by, and which is the truth; nothing where there is no link."""
    found = in_two(closed)
    return {} if found is None else found.facts


class StashGuard:
    """Guards writes on persist by a catalog that is in the stash: its token is in both stores.

    Whoever takes the catalog over puts another one into both, and then nothing that this guards takes effect.
    An open in an emergency writes to the stash alone: so the stash is asked each time, and what was under way
    when it was opened is not shut out.
    """

    def __init__(self, stores: TwoStores, catalog: Catalog) -> None:
        self._catalog = catalog
        self._persist = stores.persist.another(purpose="fence of a catalog in a stash")
        self._mine_at = -1

    def __call__(self) -> Prepared:
        """The condition that nobody has taken it over. Raises as `confirm_leadership`."""
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
        """Give up the handle."""
        self._persist.close()
