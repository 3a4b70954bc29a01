"""Remembers what admission denied a moment ago: a quota, a policy or a webhook.

Invariants
- A request that was denied is not sent again before a pause is over, however often its object is reconciled.
- A denial in the words of the one before, except for numbers, has its text for a while. So the use of a
  quota, or the port of a connection, does not change a status at each request.
- Nobody but this process needs to know. After a restart, the request is sent again at once.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.kube import ObjectKey

PAUSE_SECONDS: Final = 30.0
"""The time between two requests of an object that are denied."""
_SAME_SECONDS: Final = 600.0
"""How long a text stays though the numbers in it change."""
_NUMBER: Final = re.compile(r"[0-9][0-9A-Za-z.]*")
"""Also a quantity such as 500m, or an address."""


@dataclass(frozen=True, slots=True)
class _Denial:
    text: str
    since: float
    """When it got this text."""
    until: float
    """When the request may be sent again."""


class Denials:
    """The denied requests, at most one of an object."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._denied: dict[ObjectKey, _Denial] = {}

    def add(self, key: ObjectKey, text: str) -> None:
        """Remembers for a while that a request was denied, and why."""
        now = self._clock.monotonic()
        self._denied = {each: told for each, told in self._denied.items() if now < told.until + _SAME_SECONDS}
        before, until = self._denied.get(key), now + PAUSE_SECONDS
        is_same = before is not None and _words(before.text) == _words(text)
        if before is not None and is_same and now < before.since + _SAME_SECONDS:
            self._denied[key] = replace(before, until=until)
        else:
            self._denied[key] = _Denial(text, now, until)

    def why(self, key: ObjectKey) -> str | None:
        """Returns why a request was denied that must not be sent again yet. None if it may be."""
        denied = self._denied.get(key)
        return denied.text if denied is not None and self._clock.monotonic() < denied.until else None


def _words(text: str) -> str:
    return _NUMBER.sub("", text)
