"""The time that this host gives to what it writes, limited by the clocks of the stores.

The times of a collection only move forward. If the clock of one host is an hour fast, it would move the time
of a collection for everyone, and the rows of all other hosts would get times in the next hour. So this host's
time is limited by the stores' time. Writing costs no extra request: the blob store is asked for its time at
most once a minute, and the consensus store's time comes with other replies. If both stores have a clock, the
earlier time counts, because the clock of a file store may be this host's own.
"""

import logging
import threading
from typing import Final

from holdfast.errors import StorageError
from holdfast.persist.clock import Clock
from holdfast.persist.stores import Location

log = logging.getLogger(__name__)

ASK_EVERY_S: Final = 60.0


class HostClock:
    """This host's time, at most `ahead_s` seconds ahead of the stores' clocks. Thread-safe."""

    def __init__(self, location: Location, clock: Clock, ahead_s: float) -> None:
        self._blob = location.blob
        self._consensus = location.consensus
        self._clock = clock
        self._ahead_ms = int(ahead_s * 1000)
        self._lock = threading.Lock()
        # The difference between the blob store's time and the monotonic time, and when it was measured.
        self._offset_ms: float | None = None
        self._asked_s: float | None = None
        self._has_warned = False

    def now_ms(self) -> int:
        """Return ms since the epoch: this host's time, or a store's time if this host's is too far ahead.

        A store without a clock, or whose clock can't be read, sets no limit.
        """
        with self._lock:
            store, where = self._store()
            host = self._clock.wall_ms()
            if store is None or host <= store + self._ahead_ms:
                self._has_warned = False
                return host
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "the clock of this host is %.1f s ahead of the clock of %s; writes get the store's time;"
                    " set the host's clock, or raise PersistConfig.clock_ahead_s (now %g s)",
                    (host - store) / 1000,
                    where,
                    self._ahead_ms / 1000,
                )
            return store

    def store_ms(self) -> int | None:
        """Return the earliest time of the stores' clocks, or None if none is known."""
        with self._lock:
            return self._store()[0]

    def _store(self) -> tuple[int | None, str]:
        """Return the earliest time of the stores' clocks now, and the name of its store."""
        now_s = self._clock.monotonic()
        if self._asked_s is None or now_s - self._asked_s >= ASK_EVERY_S:
            self._ask(now_s)
        return self._earliest(now_s)

    def _earliest(self, now_s: float) -> tuple[int | None, str]:
        """Return the earliest time of the stores' clocks, and the name of its store."""
        known = [] if self._offset_ms is None else [(now_s * 1000 + self._offset_ms, self._blob.description)]
        told = self._consensus.clock_ms()
        if told is not None:
            known.append((told, self._consensus.description))
        if not known:
            return None, ""
        store, where = min(known)
        return int(store), where

    def _ask(self, now_s: float) -> None:
        self._asked_s = now_s
        try:
            told = self._blob.clock_ms()
        except StorageError as error:
            # The last reply is still good enough: it only misses the drift of this host since then.
            log.info("can't read the clock of %s: %s", self._blob.description, error)
            return
        self._offset_ms = None if told is None else told - self._clock.monotonic() * 1000
