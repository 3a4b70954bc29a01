"""A Catalog with `shadow: true`: every change is made and compared in the other one of its two stores too."""

import time
from collections.abc import Callable
from typing import Final

from holdfast.catalog.shadow.handle import ShadowCatalog
from holdfast_operator.catalogs.facts import ShadowFacts

RESYNC_SECONDS: Final = 60.0
"""How long a store that failed is left alone: while it is asked, the catalog waits."""


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
