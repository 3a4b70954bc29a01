"""Which servers let callers wait now: the locations on them wait apart from those of all others.

Invariants
- What counts is a call that is not over after a while, whatever comes of it; a server is slow from then on
  until a call brings an answer of it.
- It takes nothing from a slow server but its place among the others: it is asked as before, by fewer at once.
"""

from collections.abc import Hashable
from typing import Final

from holdfast_operator.places.storage import servers_of

SLOW: Final = "slow"
"""The lane of all that waits for a slow server."""


class SlowServers:
    """What is known of the servers. Locations are named as `Storage` writes itself."""

    def __init__(self) -> None:
        self._slow: set[Hashable] = set()

    def waits(self, location: str) -> None:
        """A call has been under way for a while."""
        self._slow.add(servers_of(location))

    def answered(self, location: str) -> None:
        """A call brought an answer."""
        self._slow.discard(servers_of(location))

    def is_slow(self, location: str) -> bool:
        """Whether a server of the location lets callers wait."""
        return bool(self._slow) and servers_of(location) in self._slow
