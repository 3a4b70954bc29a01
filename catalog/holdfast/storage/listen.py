"""Following a collection: the updates of its shards merged, under the promise of its metadata.

- `Progress(f)` comes out when all shards and the metadata shard have passed `f`; the updates before it are
  all those at times below `f`, and none at or after it.
- A shard that is ahead is kept back; one that is behind is what a wait waits for.
- A handover is read from the metadata before anything of its time comes out. From the old rendition come all
  updates below that time; then, at that time, what differs between the two, and the new one's own updates.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import CLOSED
from holdfast.persist import Event, Listen, Progress, Updates
from holdfast.persist.schema import TIME
from holdfast.storage.spec import RenditionInfo


class Renditions(Protocol):
    """What a listen asks where a collection is handed over."""

    def described(self, rendition_id: str) -> RenditionInfo:
        """What is on record now for a rendition."""

    def follower(self, rendition: RenditionInfo) -> RenditionInfo:
        """The one that took over from a retired rendition."""

    def listens(self, rendition: RenditionInfo, as_of: int) -> list[Listen]:
        """The changes of a rendition's shards after `as_of`."""

    def handed_over(self, old: RenditionInfo, new: RenditionInfo) -> pa.Table:
        """The updates, at the time of the handover, that turn the contents before it into the new ones."""


class _Source:
    """A shard's listen, how far it has come, and its updates that are not out yet."""

    def __init__(self, listen: Listen, frontier: int) -> None:
        self.listen = listen
        self.frontier = frontier
        self.held: list[pa.Table] = []

    def poll(self, timeout: float | None) -> None:
        for event in self.listen.next(timeout):
            match event:
                case Updates(table):
                    self.held.append(table)
                case Progress(frontier):
                    self.frontier = frontier

    def take(self, frontier: int) -> Iterator[pa.Table]:
        """What is held at times below `frontier`."""
        held, self.held = self.held, []
        for table in held:
            if self.frontier <= frontier:
                yield table
                continue
            before = pc.less(table[TIME], pa.scalar(frontier, pa.uint64()))
            yield table.filter(before)
            if (later := table.filter(pc.invert(before))).num_rows:
                self.held.append(later)


class CollectionListen:
    """The changes of a collection after some time, in the order of time, without end. Not thread-safe.

    Iterating waits for what comes; it ends when the collection is dropped or closed.
    """

    def __init__(
        self,
        renditions: Renditions,
        rendition: RenditionInfo,
        shards: Iterable[Listen],
        metadata: Listen,
        frontier: int,
    ) -> None:
        self._renditions = renditions
        self._rendition = rendition
        self._before: RenditionInfo | None = None
        self._shards = [_Source(listen, frontier) for listen in shards]
        self._metadata = _Source(metadata, metadata.frontier)
        self.frontier = frontier

    def next(self, timeout: float | None = None) -> list[Event]:
        """The next events, at most one `Updates` and one `Progress`; empty when `timeout` (s) ran out.

        Raises `AsOfTooEarly` where the collection's since has passed this listen: its hold was lost.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self.frontier >= self._rendition.held_to < CLOSED:
                self._turn()
            laggard = min((*self._shards, self._metadata), key=lambda source: source.frontier)
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            before = laggard.frontier
            laggard.poll(left)
            if self._metadata.held:
                self._metadata.held.clear()
                self._rendition = self._renditions.described(self._rendition.id)
            frontier = min(self._reached(), self._rendition.held_to)
            if frontier > self.frontier:
                return self._advance(frontier)
            if laggard.frontier == before and deadline is not None and time.monotonic() >= deadline:
                return []

    def __iter__(self) -> Iterator[Event]:
        while self.frontier < CLOSED:
            yield from self.next()

    def _reached(self) -> int:
        return min(source.frontier for source in (*self._shards, self._metadata))

    def _turn(self) -> None:
        """Go on with the rendition that took over, from what it had just before."""
        self._before = self._rendition
        self._rendition = self._renditions.follower(self._rendition)
        at = self._rendition.held_from
        self._shards = [_Source(listen, at) for listen in self._renditions.listens(self._rendition, at - 1)]

    def _advance(self, frontier: int) -> list[Event]:
        tables = [table for source in self._shards for table in source.take(frontier) if table.num_rows]
        if self._before is not None:
            # Beyond the handover, so what the new rendition begins with is complete.
            differing = self._renditions.handed_over(self._before, self._rendition)
            self._before = None
            if differing.num_rows:
                tables.append(differing)
        self.frontier = frontier
        events: list[Event] = []
        if tables:
            merged = tables[0] if len(tables) == 1 else pa.concat_tables(tables).sort_by(TIME)
            events.append(Updates(merged))
        return [*events, Progress(frontier)]
