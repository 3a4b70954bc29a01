"""Following a collection: the updates of its shards merged, under the promise of its metadata.

- `Progress(f)` comes out when all shards and the metadata shard have passed `f`; the updates before it are
  all those at times below `f`, and none at or after it.
- A shard that is ahead is kept back; one that is behind is what a wait waits for.
- A handover is read from the metadata before anything of its time comes out. From the old rendition come all
  updates below that time; then, at that time, what differs between the two, and the new one's own updates. A
  listen that begins after that time tells nothing of it, and of a copy nothing differs: nothing is compared.
- A shard that has ended tells nothing of what it had: then the collection was dropped, or a rendition that
  this listen had no hold on any more.
- Whatever is raised, nothing is lost or told twice: the next call goes on.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections.record.spec import RenditionInfo
from holdfast.errors import CLOSED, AsOfTooEarly, HandleExpired, ShardFinalized
from holdfast.forks import OwnerProcess
from holdfast.persist import Event, Listen, Progress, Schema, Updates
from holdfast.persist.parts.difference import Difference
from holdfast.persist.rows.evolution import newest, upgraded
from holdfast.persist.rows.schema import TIME


class Renditions(Protocol):
    """What a listen asks where a collection is handed over."""

    def described(self, rendition_id: str) -> RenditionInfo:
        """What is on record now for a rendition."""

    def follower(self, rendition: RenditionInfo) -> RenditionInfo:
        """The one that took over from a retired rendition."""

    def listens(self, rendition: RenditionInfo, as_of: int, until: int | None) -> list[Listen]:
        """The changes of a rendition's shards after `as_of`, up to `until`."""

    def handed_over(self, old: RenditionInfo, new: RenditionInfo) -> Difference:
        """The updates, at the time of the handover, that turn the contents before it into the new ones."""

    def is_dropped(self) -> bool:
        """Whether the collection was dropped."""

    def since(self) -> int:
        """The collection's since."""


class _Source:
    """A shard's listen, how far it has come, and its updates that are not out yet."""

    def __init__(self, listen: Listen, frontier: int) -> None:
        self.listen = listen
        self.frontier = frontier
        self.held: list[tuple[Schema, pa.Table]] = []

    def poll(self, timeout: float | None) -> None:
        """Learn what is new, waiting for it. Raises `ShardFinalized` where the shard has ended."""
        events = self.listen.next(timeout)
        if self.listen.ended:
            raise ShardFinalized("a shard that is listened to was finalized")
        for event in events:
            match event:
                case Updates(table):
                    self.held.append((self.listen.schema, table))
                case Progress(frontier):
                    self.frontier = frontier

    def take(self, frontier: int) -> Iterator[tuple[Schema, pa.Table]]:
        """What is held at times below `frontier`."""
        held, self.held = self.held, []
        for schema, table in held:
            if self.frontier <= frontier:
                yield schema, table
                continue
            before = pc.less(table[TIME], pa.scalar(frontier, pa.uint64()))
            yield schema, table.filter(before)
            if (later := table.filter(pc.invert(before))).num_rows:
                self.held.append((schema, later))


class CollectionListen:
    """The changes of a collection after some time, in the order of time. Not thread-safe.

    Iterating waits for what comes; it ends after `until` where that is given, and when the collection is
    dropped or closed.
    """

    def __init__(
        self,
        renditions: Renditions,
        rendition: RenditionInfo,
        shards: Iterable[Listen],
        metadata: Listen,
        frontier: int,
        until: int | None = None,
    ) -> None:
        self._owner = OwnerProcess()
        self._until = until
        self._end = CLOSED if until is None else until + 1
        self._renditions = renditions
        self._rendition = rendition
        self._shards = [_Source(listen, frontier) for listen in shards]
        self._metadata = _Source(metadata, metadata.frontier)
        # Of a handover: who held before, what differs, and what of that is still to come.
        self._before: RenditionInfo | None = None
        self._differing: Difference | None = None
        self._pieces: Iterator[pa.Table] | None = None
        self.frontier = frontier

    def next(self, timeout: float | None = None) -> list[Event]:
        """The next events, at most one `Updates` and one `Progress`; empty when `timeout` (s) ran out.

        What differs at a handover may come in several `Updates`, one a call, before their `Progress`. Columns
        are those of the newest schema of what is given, which may be a later one from one call to another.

        Raises `AsOfTooEarly` where the collection's since has passed this listen: its hold was lost.
        """
        self._owner.check("this listen to a collection")
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.frontier >= self._end:
            return []
        try:
            while True:
                if (events := self._ready()) is not None:
                    return events
                # The metadata first: a shard that was handed over from goes no further than that.
                laggard = min((self._metadata, *self._shards), key=lambda source: source.frontier)
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                before = laggard.frontier
                laggard.poll(left)
                if laggard.frontier == before and deadline is not None and time.monotonic() >= deadline:
                    return []
        except (AsOfTooEarly, HandleExpired, ShardFinalized) as error:
            if self._renditions.is_dropped():
                self.frontier = CLOSED
                return [Progress(CLOSED)]
            if isinstance(error, ShardFinalized):
                # A rendition is dropped when nobody holds its times.
                raise AsOfTooEarly(self.frontier - 1, self._renditions.since()) from None
            raise

    def __iter__(self) -> Iterator[Event]:
        while self.frontier < self._end:
            yield from self.next()

    def _ready(self) -> list[Event] | None:
        """What can be told of what is known; None where that is nothing."""
        if self._metadata.held:
            self._rendition = self._renditions.described(self._rendition.id)
            self._metadata.held.clear()
        while self.frontier >= self._rendition.held_to < CLOSED:
            self._turn()
        reached = min(source.frontier for source in (*self._shards, self._metadata))
        frontier = min(reached, self._rendition.held_to, self._end)
        if frontier <= self.frontier:
            return None
        if self._before is not None:
            # Beyond the handover, so what the new rendition begins with is complete.
            if (piece := self._next_differing(self._before)) is not None:
                return [Updates(piece)]
            self._before = self._differing = None
        return self._advance(frontier)

    def _turn(self) -> None:
        """Go on with the rendition that took over, from what it had just before."""
        old = self._rendition
        new = self._renditions.follower(old)
        start = max(new.held_from, self.frontier)
        shards = [_Source(listen, start) for listen in self._renditions.listens(new, start - 1, self._until)]
        self._rendition, self._shards = new, shards
        self._before = old if start == new.held_from and not new.copies(old) else None

    def _next_differing(self, before: RenditionInfo) -> pa.Table | None:
        """The next piece of what differs between the rendition that held before and this one."""
        if self._differing is None:
            self._differing = self._renditions.handed_over(before, self._rendition)
        pieces, self._pieces = self._pieces or iter(self._differing), None
        # Where this raises, another iteration goes on after the last piece.
        piece = next(pieces, None)
        if piece is not None:
            self._pieces = pieces
        return piece

    def _advance(self, frontier: int) -> list[Event]:
        taken = [held for source in self._shards for held in source.take(frontier) if held[1].num_rows]
        self.frontier = frontier
        if not taken:
            return [Progress(frontier)]
        schema = newest(schema for schema, _ in taken)
        tables = [upgraded(table, own, schema) for own, table in taken]
        merged = tables[0] if len(tables) == 1 else pa.concat_tables(tables).sort_by(TIME)
        return [Updates(merged), Progress(frontier)]
