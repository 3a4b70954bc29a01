"""Following a collection: merges the updates of its shards, up to the promise of its metadata.

- `Progress(f)` is returned once all shards and the metadata shard have passed `f`. The updates before it are
  all the updates at times below `f`, and none at or after `f`.
- Updates of a shard that is ahead are kept back. A wait is a wait for the shard that is behind.
- A handover is read from the metadata before any update at its time is returned. First come all updates of
  the old rendition below that time. Then, at that time, come the difference between the two renditions and
  the new one's own updates. A listen that begins after that time doesn't see the handover. A copy has no
  difference, so nothing is compared.
- A finalized shard doesn't return what it contained. Either the collection was dropped, or a rendition was
  that this listen held no longer.
- After any error nothing is lost or returned twice: the next call continues.
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


class RenditionSource(Protocol):
    """What a listen needs at a handover of its collection."""

    def described(self, rendition_id: str) -> RenditionInfo:
        """Read the record of a rendition as of now."""

    def follower(self, rendition: RenditionInfo) -> RenditionInfo:
        """The rendition that took over from a retired one."""

    def listens(self, rendition: RenditionInfo, as_of: int, until: int | None) -> list[Listen]:
        """The changes of a rendition's shards after `as_of`, up to `until`."""

    def handed_over(self, old: RenditionInfo, new: RenditionInfo) -> Difference:
        """The updates, at the time of the handover, that turn the old contents into the new ones."""

    def shown(self, updates: pa.Table) -> pa.Table:
        """Rows of shards with the current names of their columns."""

    def is_dropped(self) -> bool:
        """Whether the collection was dropped."""

    def since(self) -> int:
        """The collection's since."""


class _Source:
    """The listen of a shard, its frontier, and its updates that were not returned yet."""

    def __init__(self, listen: Listen, frontier: int) -> None:
        self.listen = listen
        self.frontier = frontier
        self.held: list[tuple[Schema, pa.Table]] = []

    def poll(self, timeout: float | None) -> None:
        """Wait for events and keep them. Raises `ShardFinalized` if the shard was finalized."""
        events = self.listen.next(timeout)
        if self.listen.ended:
            raise ShardFinalized(f"can't follow a shard beyond {self.frontier}: it was finalized")
        for event in events:
            match event:
                case Updates(table):
                    self.held.append((self.listen.schema, table))
                case Progress(frontier):
                    self.frontier = frontier

    def take(self, frontier: int) -> Iterator[tuple[Schema, pa.Table]]:
        """The kept updates at times below `frontier`."""
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

    Iteration waits for changes. It ends after `until` if that is given, and when the collection is dropped or
    closed.
    """

    def __init__(
        self,
        renditions: RenditionSource,
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
        # Of a handover: the rendition before it, the difference, and the pieces of it that remain.
        self._before: RenditionInfo | None = None
        self._differing: Difference | None = None
        self._pieces: Iterator[pa.Table] | None = None
        self.frontier = frontier

    def next(self, timeout: float | None = None) -> list[Event]:
        """Return the next events: at most one `Updates` and one `Progress`. Empty if `timeout` (s) runs out.

        The difference at a handover may come in several `Updates`, one for each call, before their
        `Progress`. The columns are those of the newest schema among the returned updates, so a later call may
        have more.

        Raises `AsOfTooEarly` if the collection's since has passed this listen, because its hold was lost.
        """
        self._owner.check("this listen to a collection")
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.frontier >= self._end:
            return []
        try:
            while True:
                if (events := self._ready()) is not None:
                    return events
                # The metadata first on a tie: the upper of a retired rendition's shards moves no further.
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
                # A rendition is dropped only when nobody holds its times.
                raise AsOfTooEarly(self.frontier - 1, self._renditions.since()) from None
            raise

    def __iter__(self) -> Iterator[Event]:
        while self.frontier < self._end:
            yield from self.next()

    def _ready(self) -> list[Event] | None:
        """The events that can be returned from what is known. None if there are none."""
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
            # The frontier is past the handover, so the new rendition's first contents are complete.
            if (piece := self._next_differing(self._before)) is not None:
                return [Updates(self._renditions.shown(piece))]
            self._before = self._differing = None
        return self._advance(frontier)

    def _turn(self) -> None:
        """Continue with the rendition that took over, from the contents that it has just before."""
        old = self._rendition
        new = self._renditions.follower(old)
        start = max(new.held_from, self.frontier)
        shards = [_Source(listen, start) for listen in self._renditions.listens(new, start - 1, self._until)]
        self._rendition, self._shards = new, shards
        self._before = old if start == new.held_from and not new.copies(old) else None

    def _next_differing(self, before: RenditionInfo) -> pa.Table | None:
        """The next piece of the difference between the rendition before the handover and this one."""
        if self._differing is None:
            self._differing = self._renditions.handed_over(before, self._rendition)
        pieces, self._pieces = self._pieces or iter(self._differing), None
        # If this raises, a new iteration continues after the last piece.
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
        return [Updates(self._renditions.shown(merged)), Progress(frontier)]
