"""The survey: clients find shards that nobody uses any more, and free what dropped shards leave behind.

Upkeep follows commits, but a finalized shard gets no more commits. The process that finalized it may be gone
when its garbage can be deleted. So every client with a thread for upkeep walks over the location's shards,
some at a time, and does the upkeep that is due. A shard without garbage is read once, and again after it
changes.
"""

from bisect import bisect
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.persist.config import PersistConfig
from holdfast.persist.state.machine import Machine
from holdfast.persist.stores import Location
from holdfast.persist.upkeep.garbage import garbage_due, now_for

HEADS: Final = 128
"""How many heads are read at a time, in one round trip."""

OPENED: Final = 16
"""How many of these shards are opened at most, with about two storage calls each."""


class Survey:
    """An endless walk over the shards of a location, a few with each call. Not thread-safe."""

    def __init__(
        self,
        location: Location,
        config: PersistConfig,
        new_machine: Callable[[str], Machine],
        known: Callable[[], Sequence[Machine]],
        *,
        start: str,
    ) -> None:
        self._location = location
        self._config = config
        self._new_machine = new_machine
        self._known = known
        # Each client starts at a different shard, so that they don't all visit the same ones.
        self._start = start
        self._left: list[str] = []
        self._clean: dict[str, int] = {}

    def next(self) -> list[Machine]:
        """Return the shards to check now: of the next few, those that changed since they were found clean.

        Raises:
            StorageError: the store failed. The walk continues with the next call.
        """
        if not self._left:
            shards = sorted(key for key in self._location.consensus.list_keys() if key.startswith("s"))
            first = bisect(shards, self._start)
            self._left = [*shards[first:], *shards[:first]]
            self._clean = {shard: self._clean[shard] for shard in shards if shard in self._clean}
        heads = self._location.consensus.heads(self._left[:HEADS])
        known = {machine.shard_id: machine for machine in self._known()}
        found: list[Machine] = []
        while self._left and len(found) < OPENED:
            shard = self._left[0]
            if shard not in heads:
                break
            del self._left[0]
            if self._clean.get(shard) != heads[shard].seqno:
                found.append(known.get(shard) or self._new_machine(shard))
        return found

    def wants_upkeep(self, machine: Machine) -> bool:
        """Whether a shard has garbage that can be deleted. Raises the same errors as `Machine.refresh`."""
        state = machine.refresh()
        if not state.garbage and not garbage_due(state, self._config, 0):
            self._clean[machine.shard_id] = state.seqno
        return garbage_due(state, self._config, now_for(machine))
