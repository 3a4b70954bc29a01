"""The time that this host gives to what it writes, bounded by the clocks of the stores.

The times of a collection only go forward. So one host whose clock is an hour fast would move the time of a
collection for everyone, and the rows of all others would get times of the next hour. The blob store is asked
for its time once a minute at most, and the time of the consensus store comes with other replies, so that
writing costs nothing. Where both have a clock the earlier one counts: that of files may be this host's own.
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
    """The time of this host, at most `ahead_s` seconds ahead of the stores' clocks. Thread-safe."""

    def __init__(self, location: Location, clock: Clock, ahead_s: float) -> None:
        self._blob = location.blob
        self._consensus = location.consensus
        self._clock = clock
        self._ahead_ms = int(ahead_s * 1000)
        self._lock = threading.Lock()
        # The blob store's time less the monotonic one, and when it was asked for.
        self._offset_ms: float | None = None
        self._asked_s: float | None = None
        self._has_warned = False

    def now_ms(self) -> int:
        """Milliseconds since the epoch; a store's time if this host's is too far ahead of it.

        A store that has no clock, or fails to tell the time, bounds nothing.
        """
        with self._lock:
            now_s = self._clock.monotonic()
            if self._asked_s is None or now_s - self._asked_s >= ASK_EVERY_S:
                self._ask(now_s)
            host = self._clock.wall_ms()
            store, where = self._earliest(now_s)
            if store is None or host <= store + self._ahead_ms:
                self._has_warned = False
                return host
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "the clock of this host is %.1f s ahead of the clock of %s: what it writes gets the"
                    " store's time; set the host's clock, or raise PersistConfig.clock_ahead_s (now %g s)",
                    (host - store) / 1000,
                    where,
                    self._ahead_ms / 1000,
                )
            return store

    def _earliest(self, now_s: float) -> tuple[int | None, str]:
        """The earliest time of the stores' clocks, and whose that is."""
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
            # The last answer stays good enough: only the drift of this host since then is missed.
            log.info("%s does not tell the time: %s", self._blob.description, error)
            return
        self._offset_ms = None if told is None else told - self._clock.monotonic() * 1000
