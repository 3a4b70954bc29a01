"""Writes a linked catalog to both of its stores. Results come from the source of truth and are compared.

It is a shadow catalog whose two handles have the same token, from the open, so nobody else can write to
either store. One exact load makes the contents of the other store equal to the truth's. What a store records
about itself, its link and its tombstone, is neither copied nor compared.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from holdfast.catalog import takeover
from holdfast.catalog.handle import WritableHandle
from holdfast.catalog.interfaces import Catalog
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.move.two_stores import TwoStores
from holdfast.catalog.opening import loaded
from holdfast.catalog.shadow.handle import ShadowCatalog
from holdfast.catalog.shadow.side import OnDiverged, ShadowSide, compared_rows
from holdfast.catalog.stores.preamble import at_latest


@dataclass(frozen=True)
class Dual:
    """The options of writing to both. A difference is handled as in `shadow_catalog`."""

    on_diverged: OnDiverged | None = None
    strict: bool = False

    def written(
        self, primary: WritableHandle, stores: TwoStores, truth: Backend, *, now_ms: Callable[[], int]
    ) -> ShadowCatalog:
        """The catalog `primary`, whose token is in both stores, with every change made in the other too."""
        other = stores.of(truth.other)
        token = primary.fence_token()

        def attach(primary: Catalog) -> Catalog:
            with closing(other.another(purpose="catalog shadow")) as store:
                takeover.load(store, compared_rows(primary), takeover.under(token), exactly=True)
                seen, cache = at_latest(store, lambda seen: (seen, loaded(store, seen)))
            takeover.under(token)(seen)
            return WritableHandle(
                other.another(purpose="catalog shadow"),
                cache,
                upper=seen.upper,
                boot_ts=primary.boot_ts(),
                token=token,
                now_ms=now_ms,
            )

        side: ShadowSide[Catalog] = ShadowSide(other.place, strict=self.strict, on_diverged=self.on_diverged)
        opened = ShadowCatalog(primary, side, attach)
        try:
            opened.resync()
        except BaseException:
            opened.close()
            raise
        return opened
