"""Whether one of two linked stores has the catalog, asked of both."""

from dataclasses import dataclass

from holdfast.durable.backend_migration.link import Linked, Seen
from holdfast.durable.backend_migration.records import running_of
from holdfast.durable.backend_migration.truth import Backend
from holdfast.durable.backend_migration.two_stores import TwoStores, read_both
from holdfast.durable.preamble import Preamble
from holdfast.durable.standing import Standing
from holdfast.durable.store import CatalogStore
from holdfast.errors import Fenced, HoldfastError, MigrationInProgress, NotSourceOfTruth


@dataclass(frozen=True)
class OneOfTwo(Standing):
    """Of who has opened both stores, and uses the one of `backend`."""

    stores: TwoStores
    backend: Backend

    def confirm_linked(self, store: CatalogStore, seen: Preamble) -> int:  # noqa: ARG002 - of another time
        """See `Standing`; raises `LinkConflict` too."""
        with self.stores.opened("catalog truth") as stores:
            both = read_both(stores)
            truth = stores.linkage(both).truth
        if truth is not self.backend:
            raise NotSourceOfTruth(store.place, truth.value)
        return both.of(truth).truth_since

    def explain(self, error: Fenced) -> HoldfastError:
        """`MigrationInProgress` by one that runs, `NotSourceOfTruth` after one; else what it was."""
        try:
            with self.stores.opened("catalog truth") as stores:
                both = read_both(stores)
                link = stores.linkage(both)
            running = running_of(both.stash.config)
        except HoldfastError:
            return error
        if running is not None:
            return MigrationInProgress(running.migration_id, holder_of(both.stash))
        if isinstance(link, Linked) and link.truth is not self.backend:
            return NotSourceOfTruth(self.stores.of(self.backend).place, link.truth.value)
        return error


def refuse_running(seen: Seen, now_ms: int, *, but: str | None) -> None:
    """Raise `MigrationInProgress` while a migration other than `but` shuts others out."""
    running = running_of(seen.stash.config)
    if running is not None and running.migration_id != but and running.shuts_out(now_ms):
        raise MigrationInProgress(running.migration_id, holder_of(seen.stash))


def holder_of(seen: Preamble) -> str:
    """Who has taken a store over, for people."""
    token = seen.token
    return "nobody" if token is None else token.holder
