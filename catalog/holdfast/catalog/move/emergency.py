"""A linked catalog while persist can't be reached: the stash alone, where its own state says that it counts.

Whoever would move the truth away needs his token in the stash, which an open of this kind overwrites: what he
does next is refused. So the stash alone is enough where no tombstone of persist has a say.

Shut out is every other writer of this catalog. Persist knows nothing of it: what a process that had the
catalog open writes to other shards there, guarded by its token on persist (the operator does), is shut out
only once that process has asked the stash again, which it does for each such write; one in flight may pass.
"""

from collections.abc import Callable

from holdfast.catalog.interfaces import OpenableCatalog
from holdfast.catalog.move.link import strategy_of
from holdfast.catalog.move.records import running_of
from holdfast.catalog.move.standing import in_progress
from holdfast.catalog.move.truth import Strategy, tombstone
from holdfast.catalog.one_store import OneStoreCatalog
from holdfast.catalog.stores.preamble import Preamble
from holdfast.catalog.stores.standing import Standing
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import BadInput, NeedsPersist


def emergency_catalog(stash: OpenableCatalog) -> OpenableCatalog:
    """The catalog in a stash, opened without its persist: for emergencies.

    `stash` is what `stash_catalog` gave. Opening, loading and fencing raise `NeedsPersist` where the stash
    alone doesn't tell that it is the source of truth: with ONE_TOMBSTONE while its tombstone is set, with
    TWO_TOMBSTONES as soon as it has one. `MigrationInProgress` while a migration has it. Other writers of the
    catalog are fenced; guarded writes on persist that are in flight are not.
    """
    stored = _stored(stash)
    return OneStoreCatalog(stored.store, stored.now_ms, standing=_Emergency(stored.now_ms))


def check_emergency(stash: OpenableCatalog) -> None:
    """Raise `NeedsPersist` where the stash alone doesn't tell that the catalog is in it."""
    stored = _stored(stash)
    _Emergency(stored.now_ms).check_read(stored.preamble(), stored.place)


def _stored(stash: OpenableCatalog) -> OneStoreCatalog:
    if not isinstance(stash, OneStoreCatalog):
        raise BadInput(
            f"the catalog in {stash.place} is not in a stash", hint="give what stash_catalog gives"
        )
    return stash


class _Emergency(Standing):
    """Of who has the stash, and can't ask persist."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def check_read(self, seen: Preamble, place: str) -> None:
        """Raise `NeedsPersist` unless the stash is certainly the truth."""
        if not seen.is_linked:
            if not seen.is_initialized:
                raise NeedsPersist(f"the stash in {place} is empty: nothing tells that the catalog is there")
            return
        retired = tombstone(seen.config)
        if strategy_of(seen.config) is Strategy.TWO_TOMBSTONES:
            if retired is not None:
                raise NeedsPersist(f"the catalog was moved before: {place} alone can't tell where it is")
        elif retired:
            raise NeedsPersist(f"the catalog is not in {place}: it was moved to persist")

    def check_write(self, seen: Preamble, place: str) -> None:
        """As `check_read`; and `MigrationInProgress`."""
        self.check_read(seen, place)
        running = running_of(seen.config)
        if running is not None and running.shuts_out(self._now_ms()):
            raise in_progress(running, seen)

    def confirm_linked(self, store: CatalogStore, seen: Preamble) -> int:
        """See `Standing`; raises `NeedsPersist`."""
        self.check_read(seen, store.place)
        return seen.truth_since
