"""Remembers what admission denied a moment ago: a quota, a policy or a webhook.

Invariants
- A request that was denied is not sent again before a pause is over, however often its object is reconciled.
- Nobody but this process needs to know. After a restart, the request is sent again at once.
"""

from typing import Final

from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.kube import ObjectKey

PAUSE_SECONDS: Final = 30.0
"""The time between two requests of an object that are denied."""


class Denials:
    """The denied requests, at most one of an object."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._denied: dict[ObjectKey, tuple[str, float]] = {}

    def add(self, key: ObjectKey, text: str) -> None:
        """Remembers for a while that a request was denied, and why."""
        now = self._clock.monotonic()
        self._denied = {each: told for each, told in self._denied.items() if now < told[1]}
        self._denied[key] = text, now + PAUSE_SECONDS

    def why(self, key: ObjectKey) -> str | None:
        """Returns why a request was denied that must not be sent again yet. None if it may be."""
        text, until = self._denied.get(key, ("", 0.0))
        return text if text and self._clock.monotonic() < until else None
