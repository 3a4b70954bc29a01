"""Which watches work: seen from their requests, because kopf retries for ever and reports no failure.

Invariants
- A watch works while a response to it is open. It doesn't work if it, or the list before it, has had no
  response for `_RESPONSE_SECONDS`. The response to a list counts when it is complete.
- The server sends a line each minute. A watch without any line for `SILENCE_SECONDS` doesn't work until the
  next line, even if a new response to it begins.
- A watch on probation doesn't work until a response has been open for `_STEADY_SECONDS`. It is on probation
  after a refusal, a failure, an incomplete list, or a response that was cut at once.
- The informer's thread writes, and any thread reads. Each value is written by one assignment.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

SILENCE_SECONDS: Final = 90.0
"""A watch without any line for so long is dead."""
_RESPONSE_SECONDS: Final = 10.0
_STEADY_SECONDS: Final = 5.0

Size = Callable[[], int]
"""Returns how many bytes of a response have arrived."""


@dataclass(slots=True)
class _Watch:
    asked: float | None
    """When the request was sent that has no response yet."""
    opened: float | None = None
    """When the response to a watch began."""
    size: Size = int
    """Of that response."""
    heard_size: int = 0
    heard: float = 0.0
    """When that response began, or grew last."""
    is_silent: bool = False
    """Whether no line has come since a response was silent for too long."""
    is_listing: bool = False
    """Whether the response to a list has begun."""
    on_probation: bool = False


class Watches:
    """The watches of one informer, by path."""

    def __init__(self, paths: Iterable[str], now: Callable[[], float] = time.monotonic) -> None:
        """Expects a watch of each path to begin soon."""
        self._now = now
        self._watches = {path: _Watch(asked=now()) for path in paths}

    def ask(self, path: str) -> None:
        """Records that a request for a path, a list or a watch, is sent."""
        if (watch := self._watches.get(path)) is None:
            return
        now = self._now()
        if watch.opened is not None:
            self._listen(watch)
            watch.is_silent = watch.is_silent or now - watch.heard >= SILENCE_SECONDS
            watch.on_probation = now - watch.opened < _STEADY_SECONDS
        elif watch.is_listing:
            watch.on_probation = True
        watch.opened, watch.asked, watch.is_listing = None, now, False

    def answer(self, path: str, status: int, size: Size | None = None) -> None:
        """Records that a response begins. `size` is that of a watch, and None for a list."""
        if (watch := self._watches.get(path)) is None:
            return
        if status == 200 and size is None:
            watch.is_listing = True
            return
        if status == 404:
            # The CRD was deleted, so there is nothing to watch. If it is still there, kopf ends by itself.
            watch.on_probation = watch.is_silent = False
        elif status != 200:
            watch.on_probation = True
        elif size is not None:
            watch.size, watch.heard_size, watch.heard = size, 0, self._now()
            watch.opened = watch.heard
        watch.asked = None

    def complete(self, path: str) -> bool:
        """Records that a response is complete. Returns whether it is a list of a path."""
        watch = self._watches.get(path)
        if watch is None or not watch.is_listing:
            return False
        watch.is_listing, watch.asked = False, None
        return True

    def fail(self, path: str) -> None:
        """Records that a request has no response."""
        if (watch := self._watches.get(path)) is not None:
            watch.on_probation = True

    def listen(self) -> None:
        """Records which responses have grown. Call it each second or so."""
        for watch in self._watches.values():
            self._listen(watch)

    def _listen(self, watch: _Watch) -> None:
        if watch.opened is not None and (size := watch.size()) != watch.heard_size:
            watch.heard_size, watch.heard, watch.is_silent = size, self._now(), False

    def down(self) -> list[str]:
        """Returns the paths of the watches that don't work."""
        return [path for path, watch in self._watches.items() if self._is_down(watch)]

    def _is_down(self, watch: _Watch) -> bool:
        asked, opened, now = watch.asked, watch.opened, self._now()
        if watch.is_silent or (asked is not None and now - asked > _RESPONSE_SECONDS):
            return True
        if opened is not None and now - watch.heard >= SILENCE_SECONDS:
            return True
        return watch.on_probation and (opened is None or now - opened < _STEADY_SECONDS)
