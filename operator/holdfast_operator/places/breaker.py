"""Which locations are left alone for a while because they let callers wait in vain.

Invariants
- What counts is silence: a call that brought no answer and took long. A store that refuses at once costs
  nobody anything, and is asked by whoever wants to know.
- After some silent calls in a row a location isn't asked until a pause is over; who wants to is told at once
  what was told last, in the same words, so that no status changes with every try.
- Then one call is let through, and the others wait for what it brings: an answer, whichever, ends it all;
  silence makes the pause longer, up to a limit that is short beside what people wait for.
"""

from dataclasses import dataclass
from typing import Final

from holdfast.errors import StoreUnreachable
from holdfast_operator.engine.clock import Clock

MOST: Final = 3
"""So many silent calls in a row are no accident."""
_FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 15.0
"""Seconds; a store that is back is asked again within them."""


@dataclass(slots=True)
class _Trouble:
    silent: int = 0
    said: str = ""
    pause: float = 0.0
    until: float = 0.0
    trying: bool = False


class Breaker:
    """What is known of the locations that don't answer; every call of a store goes through it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._troubles: dict[str, _Trouble] = {}

    @property
    def open(self) -> int:
        """How many locations are left alone now."""
        return sum(trouble.silent >= MOST for trouble in self._troubles.values())

    def admit(self, location: str) -> None:
        """Begin a call; `answered`, `silent` or `cut_off` must follow. Raises `StoreUnreachable`."""
        trouble = self._troubles.get(location)
        if trouble is None or trouble.silent < MOST:
            return
        if trouble.trying or self._clock.monotonic() < trouble.until:
            raise StoreUnreachable(trouble.said)
        trouble.trying = True

    def answered(self, location: str) -> None:
        """A call brought an answer."""
        self._troubles.pop(location, None)

    def silent(self, location: str, said: str) -> None:
        """A call brought none; `said` is what its caller was told."""
        trouble = self._troubles.setdefault(location, _Trouble())
        trouble.silent += 1
        trouble.said = said
        trouble.trying = False
        if trouble.silent >= MOST:
            trouble.pause = min(LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * trouble.pause))
            trouble.until = self._clock.monotonic() + trouble.pause

    def cut_off(self, location: str) -> None:
        """Nobody waited for what a call brought: another may try."""
        if trouble := self._troubles.get(location):
            trouble.trying = False
