"""Two stores that one process has taken over: what it commits to either of them.

Invariants
- Every commit is conditional on the state that was looked at, under the token that is in both stores. Who
  took over meanwhile has put another one into both: what is committed then is refused, and nothing happened.
- It is not tried again: whoever was refused begins anew, with what there is then.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from holdfast.catalog.fence import FenceToken
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.move.two_stores import TwoStores, read_both
from holdfast.catalog.objects.codec import Update
from holdfast.catalog.stores.preamble import Preamble, read_preamble
from holdfast.errors import CatalogOutOfSync, Fenced, FenceRegressed, OtherHistory, UpperMismatch


class HeldStores:
    """The stores under `token`."""

    def __init__(self, stores: TwoStores, token: FenceToken) -> None:
        self.stores = stores
        self.token = token

    def look(self) -> Seen:
        """What both say of themselves; `Fenced` or `FenceRegressed` unless the token is in both."""
        seen = read_both(self.stores)
        for backend in Backend:
            self._check(seen.of(backend))
        return seen

    def commit(self, seen: Seen, backend: Backend, updates: Iterable[Update]) -> None:
        """Commit changes to a store in the state of `seen`, which was looked at with the token in it.

        Raises `Fenced`, `FenceRegressed` and `CatalogOutOfSync`: nothing happened; and `StorageError`.
        """
        at = seen.of(backend)
        with self._refusals_told(backend):
            self.stores.of(backend).append(updates, at.upper, fence=at.fence_row)

    def configure(self, seen: Seen, backend: Backend, wanted: Mapping[str, int | None]) -> None:
        """Give keys of a store's config these values, None for none; where they have them nothing is done."""
        updates = seen.of(backend).configured(wanted)
        if updates:
            self._check(seen.of(backend))
            self.commit(seen, backend, updates)

    def advance(self, seen: Seen, backend: Backend, to: int) -> None:
        """Move a store's upper to `to` unless it is there already. Raises as `commit`."""
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
                f"somebody changed {store.place} without taking over", hint="begin anew"
            ) from None

    def _check(self, seen: Preamble) -> None:
        durable = seen.token
        if durable == self.token:
            return
        if durable is None or durable < self.token:
            raise FenceRegressed(self.token, durable, at_least=self.token.epoch)
        raise Fenced(self.token, durable)
