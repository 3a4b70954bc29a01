"""Which watches work: seen from their requests, because kopf retries for ever and reports no failure.

Invariants
- A watch works while a response to it is open. Without one for `_RESPONSE_SECONDS`, it doesn't work.
- The server sends a line each minute. kopf ends a response without any line for `SILENCE_SECONDS`, so a
  connection that is stuck is found within that time.
- A watch on probation doesn't work until a response has been open for some time. It is on probation after a
  refusal, a failure, or a response that was cut at once, and for longer after one that delivered nothing.
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


@dataclass(slots=True)
class _Watch:
    asked: float | None
    """When the request was sent that has no response yet."""
    opened: float | None = None
    """When the response to a watch began."""
    probation: float = 0.0
    """For how many seconds a response must be open before the watch works."""


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
            lasted = now - watch.opened
            if lasted < _STEADY_SECONDS:
                watch.probation = max(watch.probation, _STEADY_SECONDS)
            elif SILENCE_SECONDS <= lasted < SILENCE_SECONDS + _STEADY_SECONDS:
                # kopf ended it, because it delivered nothing.
                watch.probation = SILENCE_SECONDS + _STEADY_SECONDS
            elif lasted >= watch.probation:
                watch.probation = 0.0
        watch.opened, watch.asked = None, now

    def answer(self, path: str, status: int, *, is_watch: bool) -> None:
        """Records that a response begins."""
        if (watch := self._watches.get(path)) is None:
            return
        if status == 404:
            # The CRD was deleted, so there is nothing to watch. kopf ends if the path alone isn't served.
            watch.probation = 0.0
        elif status != 200:
            watch.probation = max(watch.probation, _STEADY_SECONDS)
        elif is_watch:
            watch.opened = self._now()
        watch.asked = None

    def fail(self, path: str) -> None:
        """Records that a request has no response."""
        if (watch := self._watches.get(path)) is not None:
            watch.probation = max(watch.probation, _STEADY_SECONDS)

    def down(self) -> list[str]:
        """Returns the paths of the watches that don't work."""
        return [path for path, watch in self._watches.items() if self._is_down(watch)]

    def _is_down(self, watch: _Watch) -> bool:
        asked, opened, now = watch.asked, watch.opened, self._now()
        if asked is not None and now - asked > _RESPONSE_SECONDS:
            return True
        return watch.probation > 0 and (opened is None or now - opened < watch.probation)
