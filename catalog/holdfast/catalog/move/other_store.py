"""The store that is not the source of truth, as asked by a process that writes or reads the other store.

If the store of a writer is restored to an older state, the writer finds its own token there. Only the other
store shows that somebody has taken over, or that the catalog has moved. The same is true for a reader: its
store may be restored to exactly the state that it has read.

Invariants
- A commit is made only if the other store was asked at most `RECENT_S` ago, or has been unreachable for at
  most `GRACE_S`.
- `confirm_leadership` always asks, and never uses an earlier result.
- A reader or subscriber that asks for new changes asks the other store if it last did more than `RECENT_S`
  ago. It continues while that store can't be reached.
"""

import logging
import time
from collections.abc import Callable

from holdfast.catalog.fence import FenceToken
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.move.two_stores import TwoStores, read_both
from holdfast.catalog.stores.preamble import Preamble, caught_up
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import (
    CorruptBlob,
    Fenced,
    LinkConflict,
    LogRegressed,
    NotSourceOfTruth,
    OtherHistory,
    StorageError,
    StoreUnreachable,
)

_log = logging.getLogger(__name__)

RECENT_S = 2.0
"""How long a result from the other store is valid, in seconds."""
GRACE_S = 600.0
"""How long commits continue while the other store can't be reached, in seconds."""
RETRY_S = 10.0
"""How long commits don't ask again after the other store could not be reached, in seconds."""

Clock = Callable[[], float]


class OtherStore:
    """The other store of a writer with `token`. `seen` is its state when it was opened."""

    def __init__(
        self, store: CatalogStore, seen: Preamble, token: FenceToken, clock: Clock = time.monotonic
    ) -> None:
        self._store = store
        self._seen = seen
        self._token = token
        self._clock = clock
        self._reached = self._asked = clock()
        self._reachable = True

    def confirm(self, *, always: bool) -> None:
        """Check that the token is still there. With `always`, ask even if the last result is recent.

        Raises `Fenced` if somebody has taken over, `LinkConflict` if the store is older than this process
        knows, and `StoreUnreachable` after the grace period.
        """
        now = self._clock()
        if not always and now - self._asked <= (RECENT_S if self._reachable else RETRY_S):
            self._check_grace(now, None)
            return
        try:
            found = caught_up(self._store, self._seen)
        except (LogRegressed, OtherHistory):
            raise self._older() from None
        except CorruptBlob:
            raise
        except StorageError as error:
            if self._reachable:
                _log.warning("can't ask %s whether this process may still write: %s", self.place, error)
            self._asked, self._reachable = self._clock(), False
            self._check_grace(self._asked, error)
            return
        self._check(found)
        self._seen = found
        self._reached = self._asked = self._clock()
        self._reachable = True

    @property
    def place(self) -> str:
        """The place of the store."""
        return self._store.place

    def close(self) -> None:
        """Release what it holds."""
        self._store.close()

    def _check(self, found: Preamble) -> None:
        durable = found.token
        if durable is not None and not durable <= self._token:
            raise Fenced(self._token, durable)
        if durable != self._token or found.upper < self._seen.upper:
            raise self._older()

    def _check_grace(self, now: float, error: StorageError | None) -> None:
        if now - self._reached > GRACE_S and not self._reachable:
            raise StoreUnreachable(
                f"{self._store.location} has been unreachable for {now - self._reached:.0f} s: nothing shows"
                " that this process may still write",
                hint="make this store reachable again, then try again",
            ) from error

    def _older(self) -> LinkConflict:
        return LinkConflict(
            f"{self._store.location} is older than this process knows: it was restored from a copy",
            hint="stop all processes that write to the catalog, and bring back the newest state of the store;"
            " if that is impossible, 'holdfast migrate link --truth stash|persist' decides which one counts",
        )


class OtherOfReader:
    """The other store of one reader or subscriber of the store of `backend`. Not thread-safe."""

    def __init__(self, stores: TwoStores, backend: Backend, clock: Clock = time.monotonic) -> None:
        self._stores = stores
        self._backend = backend
        self._clock = clock
        self._asked = clock()
        self._reachable = True
        self._other: CatalogStore | None = None
        self._seen: Preamble | None = None

    def another(self) -> "OtherOfReader":
        """A copy for another reader."""
        return OtherOfReader(self._stores, self._backend, self._clock)

    def confirm(self, *, always: bool) -> None:
        """Check that the stores still show that the reader's is the source of truth. With `always`, ask at
        once.

        Raises `NotSourceOfTruth` and `LinkConflict`. With `always`, also raises the errors of reading the
        stores.
        """
        now = self._clock()
        if not always and now - self._asked <= (RECENT_S if self._reachable else RETRY_S):
            return
        try:
            if always or self._has_changed():
                self._compare()
        except CorruptBlob:
            raise
        except StorageError as error:
            if always:
                raise
            if self._reachable:
                _log.warning("can't ask the other store of %s: %s", self._place, error)
            self._asked, self._reachable = self._clock(), False
            return
        self._asked, self._reachable = self._clock(), True

    def close(self) -> None:
        """Release what it holds."""
        other, self._other = self._other, None
        if other is not None:
            other.close()

    @property
    def _place(self) -> str:
        return self._stores.places[self._backend]

    def _has_changed(self) -> bool:
        """Whether the other store has changed its token or config since the last comparison, or went back."""
        if self._seen is None:
            return True
        if self._other is None:
            self._other = self._stores.of(self._backend.other).another(purpose="catalog truth")
        found = caught_up(self._other, self._seen)
        if found.upper < self._seen.upper or not found.tells_as(self._seen):
            return True
        self._seen = found
        self._other.release_before(found.upper)
        return False

    def _compare(self) -> None:
        with self._stores.opened("catalog truth") as stores:
            both = read_both(stores)
            truth = stores.linkage(both).truth
        if truth is not self._backend:
            raise NotSourceOfTruth(self._stores.of(self._backend).location, truth.value)
        self._seen = both.of(truth.other)
