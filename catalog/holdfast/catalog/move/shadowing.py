"""The part of a migration in which every write goes to both stores: verification `SHADOW`.

Invariants
- Both stores are written under the token of the migration, which is in both. A takeover ends both.
- Meanwhile the source is the truth, and results come from it. The target is compared at the end.
- After its end, nothing can be written through it to either store.
"""

from collections.abc import Callable

from holdfast.catalog.handle import WritableHandle
from holdfast.catalog.interfaces import Catalog
from holdfast.catalog.move.held_stores import HeldStores
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.opening import kept_young, loaded
from holdfast.catalog.shadow.handle import ShadowCatalog
from holdfast.catalog.shadow.side import ShadowSide
from holdfast.errors import CatalogOutOfSync, HoldfastError


class ShadowOfMigration(ShadowCatalog):
    """The catalog in the source, open for writing, with every change made in the target too."""

    def __init__(self, source: WritableHandle, target: WritableHandle) -> None:
        side: ShadowSide[Catalog] = ShadowSide(target.place, strict=False, on_diverged=None)
        side.attach(target)
        super().__init__(source, side, None)
        self._handles = source, target

    def end(self, error: HoldfastError) -> None:
        """Stop all writes: they raise `error` from now on."""
        with self._lock:
            for handle in self._handles:
                handle.retire(error)

    def check(self) -> None:
        """Raise `ShadowDiverged` or `CatalogOutOfSync` if the target did not follow."""
        if self.diverged is not None:
            raise self.diverged
        if self.out_of_date is not None:
            raise CatalogOutOfSync(
                f"the target of the migration did not follow: {self.out_of_date}",
                hint="begin the migration again",
            )


def open_shadow(
    held: HeldStores, seen: Seen, source: Backend, now_ms: Callable[[], int]
) -> ShadowOfMigration:
    """Open both stores, which have the same contents, for writing under the token that is in both."""
    boot_ts = now_ms()

    def handle(backend: Backend) -> WritableHandle:
        store = held.stores.of(backend).another(purpose="migration shadow")
        try:
            at = seen.of(backend)
            return WritableHandle(
                store,
                loaded(store, at),
                upper=at.upper,
                boot_ts=boot_ts,
                token=held.token,
                now_ms=now_ms,
                kept=kept_young(store, at.upper),
            )
        except BaseException:
            store.close()
            raise

    primary = handle(source)
    try:
        return ShadowOfMigration(primary, handle(source.other))
    except BaseException:
        primary.close()
        raise
