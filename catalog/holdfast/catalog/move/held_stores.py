"""Commits to two stores that one process has taken over.

Invariants
- Every commit expects the state that was read, under the token that is in both stores. If another process
  takes over, it puts another token into both. So the commit fails and changes nothing.
- A failed commit is not tried again. The caller starts again from the new state.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from holdfast.catalog.fence import FenceToken
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.move.two_stores import TwoStores, read_both
from holdfast.catalog.objects.codec import RowUpdate
from holdfast.catalog.stores.preamble import Preamble, read_preamble
from holdfast.errors import CatalogOutOfSync, Fenced, FenceRegressed, OtherHistory, UpperMismatch


class HeldStores:
    """The two stores under `token`."""

    def __init__(self, stores: TwoStores, token: FenceToken) -> None:
        self.stores = stores
        self.token = token

    def look(self) -> Seen:
        """Read the preambles of both. Raises `Fenced` or `FenceRegressed` unless the token is in both."""
        seen = read_both(self.stores)
        for backend in Backend:
            self._check(seen.of(backend))
        return seen

    def commit(self, seen: Seen, backend: Backend, updates: Iterable[RowUpdate]) -> None:
        """Commit changes to a store in the state of `seen`, which was read with the token in it.

        Raises `Fenced`, `FenceRegressed` and `CatalogOutOfSync`, with nothing changed, and `StorageError`.
        """
        at = seen.of(backend)
        with self._refusals_told(backend):
            self.stores.of(backend).append(updates, at.upper, fence=at.fence_row)

    def configure(self, seen: Seen, backend: Backend, wanted: Mapping[str, int | None]) -> None:
        """Set keys of a store's config. None removes a key. Does nothing if they have these values."""
        updates = seen.of(backend).configured(wanted)
        if updates:
            self._check(seen.of(backend))
            self.commit(seen, backend, updates)

    def advance(self, seen: Seen, backend: Backend, to: int) -> None:
        """Move a store's upper to `to` unless it is there already. Raises like `commit`."""
        at = seen.of(backend)
        if at.upper < to:
            with self._refusals_told(backend):
                self.stores.of(backend).advance(at.upper, to, fence=at.fence_row)

    @contextmanager
    def _refusals_told(self, backend: Backend) -> Iterator[None]:
        try:
            yield
        except (OtherHistory, UpperMismatch):
            store = self.stores.of(backend)
            self._check(read_preamble(store, store.upper()))
            raise CatalogOutOfSync(
                f"another process changed {store.place} without opening it for writing",
                hint="find that process; then begin the migration again",
            ) from None

    def _check(self, seen: Preamble) -> None:
        durable = seen.token
        if durable == self.token:
            return
        if durable is None or durable < self.token:
            raise FenceRegressed(self.token, durable, at_least=self.token.epoch)
        raise Fenced(self.token, durable)
