"""A circuit breaker: locations that don't respond are not called for a while.

Invariants
- Only silent calls count: calls that took long and got no response. A store that fails at once costs nothing,
  so it is still called.
- After some silent calls in a row, a location is not called until a pause is over. Callers get the last error
  at once, in the same words, so that a status doesn't change with every attempt.
- After the pause, one call is let through. Any response closes the breaker. Silence makes the pause longer,
  up to a short limit.
"""

from dataclasses import dataclass
from typing import Final

from holdfast.errors import StoreUnreachable
from holdfast_operator.engine.clock import Clock

MOST: Final = 3
"""The number of silent calls in a row that open the breaker."""
_FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 15.0
"""Seconds within which a store that is back is called again."""


@dataclass(slots=True)
class _Trouble:
    silent: int = 0
    said: str = ""
    pause: float = 0.0
    until: float = 0.0
    trying: bool = False


class Breaker:
    """The breakers of all locations. Every call to a store uses it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._troubles: dict[str, _Trouble] = {}

    @property
    def open(self) -> int:
        """The number of locations that are not called now."""
        return sum(trouble.silent >= MOST for trouble in self._troubles.values())

    def admit(self, location: str) -> None:
        """Admits a call, or raises `StoreUnreachable`. `answered`, `silent` or `cut_off` must follow."""
        trouble = self._troubles.get(location)
        if trouble is None or trouble.silent < MOST:
            return
        if trouble.trying or self._clock.monotonic() < trouble.until:
            raise StoreUnreachable(trouble.said)
        trouble.trying = True

    def answered(self, location: str) -> None:
        """Records a response to a call."""
        self._troubles.pop(location, None)

    def silent(self, location: str, said: str) -> None:
        """Records a call without a response. `said` is the error that its caller got."""
        trouble = self._troubles.setdefault(location, _Trouble())
        trouble.silent += 1
        trouble.said = said
        trouble.trying = False
        if trouble.silent >= MOST:
            trouble.pause = min(LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * trouble.pause))
            trouble.until = self._clock.monotonic() + trouble.pause

    def cut_off(self, location: str) -> None:
        """Records that nobody waited for the result of a call, so another call may try."""
        if trouble := self._troubles.get(location):
            trouble.trying = False
