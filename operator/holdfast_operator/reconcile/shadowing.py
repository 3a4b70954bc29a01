"""The stash of a Catalog with `shadow: true`: the second store that every change is made and compared on.

Invariants
- A stash is filled anew at each open, so one that somebody else's catalog is in is left alone: ours is the
  one whose fence token was written for the same resource.
- Credentials are in the URL that the store is opened with, and in nothing that is shown or logged.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from holdfast.durable.codec import Row
from holdfast.durable.interfaces import Loaded
from holdfast.durable.opening import StoredCatalog, wall_clock_ms
from holdfast.durable.shadow_handle import ShadowCatalog
from holdfast.durable.stash_store import StashStore
from holdfast.errors import Determinate
from holdfast_operator.reconcile.facts import ShadowFacts
from holdfast_operator.reconcile.storage import StashPlace, url_with

RESYNC_SECONDS: Final = 60.0
"""How long a stash that failed is left alone: while it is asked, the catalog waits."""


class NotOurStash(Determinate):
    """The stash holds a catalog that isn't the shadow of this one."""


class ShadowStash(StoredCatalog):
    """The catalog in a stash, which may be filled from another one only where it is its shadow, or new."""

    def __init__(self, place: StashPlace, credentials: Mapping[str, str]) -> None:
        super().__init__(StashStore(url_with(place, credentials)), wall_clock_ms)

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
        """As `OpenableCatalog.load`; `NotOurStash`, and nothing changes, where the stash is another's."""
        token = self._preamble().token
        if token is not None and token.purpose != purpose:
            raise NotOurStash(
                f"{self.place} holds another catalog, of {token.holder}, {token.purpose}: it is left alone; "
                "name an empty schema or file"
            )
        return super().load(
            rows,
            deploy_generation=deploy_generation,
            holder=holder,
            purpose=purpose,
            exact=exact,
            only_new=only_new,
            rehearse=rehearse,
        )


class Shadow:
    """The shadow of an open catalog, made anew now and then while its store fails."""

    def __init__(self, catalog: ShadowCatalog, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._catalog = catalog
        self._monotonic = monotonic
        self._next = monotonic() + RESYNC_SECONDS

    def look(self) -> ShadowFacts:
        """What became of it; where its store failed a while ago it is tried again first."""
        if self._catalog.out_of_date is not None and self._monotonic() >= self._next:
            self._catalog.resync()
            self._next = self._monotonic() + RESYNC_SECONDS
        diverged = self._catalog.diverged
        return ShadowFacts(str(diverged) if diverged else "", self._catalog.out_of_date or "")
