"""Remembers which servers make callers wait now. Calls to locations on them are queued separately.

Invariants
- A server becomes slow if a call hasn't ended after a while. It stays slow until it responds to a call.
- A slow server is still called, but by fewer callers at once.
"""

from collections.abc import Hashable
from typing import Final

from holdfast_operator.places.storage import servers_of

SLOW: Final = "slow"
"""The lane of all objects that wait for a slow server."""


class SlowServers:
    """The set of slow servers. Locations have the form of `str(Storage)`."""

    def __init__(self) -> None:
        self._slow: set[Hashable] = set()

    def waits(self, location: str) -> None:
        """Records that a call has been running for a while."""
        self._slow.add(servers_of(location))

    def answered(self, location: str) -> None:
        """Records a response to a call."""
        self._slow.discard(servers_of(location))

    def is_slow(self, location: str) -> bool:
        """Returns whether a server of the location makes callers wait."""
        return bool(self._slow) and servers_of(location) in self._slow
