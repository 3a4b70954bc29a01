"""A Catalog with `shadow: true`: every change is also made in its other store, and compared."""

import time
from collections.abc import Callable
from typing import Final

from holdfast.catalog.shadow.handle import ShadowCatalog
from holdfast_operator.catalogs.facts import ShadowFacts

RESYNC_SECONDS: Final = 60.0
"""How long to wait after a failure of the shadow's store, because the catalog waits during a retry."""


class Shadow:
    """The shadow of an open catalog. If its store fails, it is rebuilt from time to time."""

    def __init__(self, catalog: ShadowCatalog, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._catalog = catalog
        self._monotonic = monotonic
        self._next = monotonic() + RESYNC_SECONDS

    def look(self) -> ShadowFacts:
        """Returns the state of the shadow. If its store failed a while ago, retries it first."""
        if self._catalog.out_of_date is not None and self._monotonic() >= self._next:
            self._catalog.resync()
            self._next = self._monotonic() + RESYNC_SECONDS
        diverged = self._catalog.diverged
        return ShadowFacts(str(diverged) if diverged else "", self._catalog.out_of_date or "")
