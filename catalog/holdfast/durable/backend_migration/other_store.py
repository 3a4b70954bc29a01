"""The store that does not hold the catalog, asked by a process that writes to the other one.

A writer whose store returns to an older state finds its own token there. Only the other store shows that
somebody has taken over, or that the catalog has moved.

Invariants
- A commit is made only while the last look at the other store is at most `RECENT_S` old, or while that store
  can't be reached for at most `GRACE_S`.
- Whether a process may still write, which it asks itself (`confirm_leadership`), is never told from a look of
  before.
"""

import logging
import time
from collections.abc import Callable

from holdfast.durable.fence import FenceToken
from holdfast.durable.preamble import Preamble, caught_up
from holdfast.durable.store import CatalogStore
from holdfast.errors import (
    CorruptBlob,
    Fenced,
    LinkConflict,
    LogRegressed,
    OtherHistory,
    StorageError,
    StoreUnreachable,
)

_log = logging.getLogger(__name__)

RECENT_S = 2.0
"""How long a look at the other store lasts, in seconds."""
GRACE_S = 600.0
"""How long commits go on while the other store can't be reached, in seconds."""
RETRY_S = 10.0
"""How long a commit doesn't ask again after the other store could not be reached, in seconds."""

Clock = Callable[[], float]


class OtherStore:
    """The other store, in the hands of a writer with `token`; `seen` is what it held when it was opened."""

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
        """Look whether the token is still there; with `always` however long ago the last look is.

        Raises `Fenced` where somebody has taken over, `LinkConflict` where the store is older than this
        process knows it, and `StoreUnreachable` after the grace.
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
                _log.warning("could not ask %s whether this process may still write: %s", self.place, error)
            self._asked, self._reachable = self._clock(), False
            self._check_grace(self._asked, error)
            return
        self._check(found)
        self._seen = found
        self._reached = self._asked = self._clock()
        self._reachable = True

    @property
    def place(self) -> str:
        """Where it is."""
        return self._store.place

    def close(self) -> None:
        """Give up what it holds."""
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
                f"{self._store.location} can't be reached for {now - self._reached:.0f} s: nothing shows that"
                " this process may still write"
            ) from error

    def _older(self) -> LinkConflict:
        return LinkConflict(
            f"{self._store.location} is older than this process knows it: it was restored from a copy",
            hint="stop all processes that write to the catalog, and bring back the newest state of the store;"
            " if that can't be, 'holdfast migrate link --truth stash|persist' decides which one counts",
        )
