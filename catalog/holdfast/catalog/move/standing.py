"""Whether one of two linked stores is the source of truth, determined from both."""

from dataclasses import dataclass, replace

from holdfast.catalog.move.link import Linked, ToLink
from holdfast.catalog.move.other_store import OtherOfReader, OtherStore
from holdfast.catalog.move.records import Running, running_of
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.move.two_stores import TwoStores, read_both
from holdfast.catalog.stores.preamble import Preamble, read_preamble
from holdfast.catalog.stores.standing import Standing
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import (
    AsOfTooEarly,
    Fenced,
    FencedByMove,
    HoldfastError,
    MigrationInProgress,
    NotSourceOfTruth,
)


@dataclass(frozen=True)
class OneOfTwo(Standing):
    """The standing of a process that opened both stores and uses the one of `backend`.

    A writer knows the number of the link that it opened, and since when the catalog was in that store.
    """

    stores: TwoStores
    backend: Backend
    link_id: int | None = None
    since: int = 0
    other: OtherStore | None = None
    """The other store, for a writer."""
    watched: OtherOfReader | None = None
    """The other store, for a reader. For a writer, the store that its subscribers watch."""

    def check_read(self, seen: Preamble, place: str) -> None:
        """Do nothing: opening a linked catalog has already read both stores."""

    def confirm_writer(self, *, always: bool) -> None:
        """See `Standing`. Raises like `OtherStore.confirm`, with `Fenced` passed through `explain`."""
        if self.other is None:
            return
        try:
            self.other.confirm(always=always)
        except Fenced as error:
            raise self.explain(error) from None

    def confirm_reader(self, *, always: bool) -> None:
        """See `Standing`. Raises like `OtherOfReader.confirm`."""
        if self.watched is not None:
            self.watched.confirm(always=always)

    def of_subscriber(self) -> "OneOfTwo":
        """See `Standing`."""
        return replace(self, other=None, watched=None if self.watched is None else self.watched.another())

    def close(self) -> None:
        """See `Standing`."""
        for each in (self.other, self.watched):
            if each is not None:
                each.close()

    def confirm_linked(self, store: CatalogStore, seen: Preamble) -> int:  # noqa: ARG002 - of another time
        """See `Standing`. Also raises `LinkConflict`."""
        with self.stores.opened("catalog truth") as stores:
            both = read_both(stores)
            truth = stores.linkage(both).truth
        if truth is not self.backend:
            raise NotSourceOfTruth(store.location, truth.value)
        return both.of(truth).truth_since

    def explain(self, error: Fenced) -> HoldfastError:
        """Return `MigrationInProgress` if a migration is running, `NotSourceOfTruth` after one,
        `FencedByMove` after one that moved the catalog away and back, and otherwise `error` itself.
        """
        try:
            with self.stores.opened("catalog truth") as stores:
                both = read_both(stores)
                link = stores.linkage(both)
                running = running_of(both.stash.config)
                is_back = self._is_back(stores, both, link)
        except HoldfastError:
            return error
        if running is not None:
            return in_progress(running, both.stash)
        if isinstance(link, Linked) and link.truth is not self.backend:
            return NotSourceOfTruth(self.stores.of(self.backend).location, link.truth.value)
        return FencedByMove(error.mine, error.durable) if is_back else error

    def _is_back(self, stores: TwoStores, both: Seen, link: Linked | ToLink) -> bool:
        """Whether the catalog was moved away and back, and only that migration has taken it over."""
        at = both.of(self.backend)
        if not isinstance(link, Linked) or link.id != self.link_id or at.truth_since <= self.since:
            return False
        try:
            came = read_preamble(stores.of(self.backend), at.truth_since + 1)
        except AsOfTooEarly:
            # That time is no longer readable.
            return False
        return came.fence_row == at.fence_row


def refuse_running(seen: Seen, now_ms: int, *, but: str | None) -> None:
    """Raise `MigrationInProgress` while a migration other than `but` shuts others out."""
    running = running_of(seen.stash.config)
    if running is not None and running.migration_id != but and running.shuts_out(now_ms):
        raise in_progress(running, seen.stash)


def in_progress(running: Running, stash: Preamble) -> MigrationInProgress:
    """The error for processes that a migration shuts out."""
    return MigrationInProgress(running.migration_id, holder_of(stash), running.deadline_ms)


def holder_of(seen: Preamble) -> str:
    """The holder of a store's fence token, for people."""
    token = seen.token
    return "nobody" if token is None else token.holder
