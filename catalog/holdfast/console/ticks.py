"""Looks at the locations while pages are open, and says which objects changed.

- A location gets one look per tick, however many pages follow it, and none while no page does.
- A page that reads again because of a change uses that look, so it costs the store nothing more.
- Changes wait as a set of names, so a page that reads slowly costs no more memory than the names.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from holdfast.console.places import PlaceLook, ShownPlace
from holdfast.console.work import PlaceWork, TooBusy
from holdfast.errors import HoldfastError
from holdfast.text import without_passwords

_log = logging.getLogger(__name__)

WHOLE: Final = ""
"""Stands for a location itself among the names of what changed in it."""


@dataclass(frozen=True, slots=True)
class TickChange:
    """What changed in a location: names of collections, and `WHOLE` for the location itself.

    `reachable` is false while the location can't be read.
    """

    location: str
    names: tuple[str, ...]
    reachable: bool = True


class Follower:
    """A page that follows changes."""

    def __init__(self, places: Sequence[ShownPlace]) -> None:
        self.places = {place.name: place for place in places}
        self._changed: dict[str, set[str]] = {}
        self._reachable: dict[str, bool] = {}
        self._wake = asyncio.Event()

    def tell(self, change: TickChange) -> None:
        """Add a change to those that the page has not got yet."""
        self._changed.setdefault(change.location, set()).update(change.names)
        self._reachable[change.location] = change.reachable
        self._wake.set()

    def end(self) -> None:
        """Wake the page without a change."""
        self._wake.set()

    async def next(self, timeout_s: float) -> list[TickChange]:
        """Wait for changes. Returns none after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return []
        self._wake.clear()
        changed, self._changed = self._changed, {}
        return [
            TickChange(location, tuple(sorted(names)), self._reachable[location])
            for location, names in changed.items()
        ]


@dataclass
class _Watched:
    followers: set[Follower] = field(default_factory=set)
    task: "asyncio.Task[None] | None" = None


class Ticks:
    """Looks at locations that pages follow. Used by one event loop."""

    def __init__(self, work: PlaceWork) -> None:
        self._work = work
        self._watched: dict[str, _Watched] = {}
        self._streams: dict[str, int] = {}
        self.closed = False

    @contextmanager
    def follow(self, viewer: str, places: Sequence[ShownPlace]) -> Iterator[Follower]:
        """Follow the changes of locations. Raises `TooBusy` if the viewer has too many pages that do."""
        if self._streams.get(viewer, 0) >= self._work.limits.streams:
            raise TooBusy("too many pages follow changes", hint="close some of the pages")
        self._streams[viewer] = self._streams.get(viewer, 0) + 1
        follower = Follower(places)
        for place in places:
            watched = self._watched.setdefault(place.name, _Watched())
            watched.followers.add(follower)
            if watched.task is None:
                watched.task = asyncio.create_task(self._watch(place, watched, place.latest))
        try:
            yield follower
        finally:
            for place in places:
                watched = self._watched[place.name]
                watched.followers.discard(follower)
                if not watched.followers and watched.task is not None:
                    watched.task.cancel()
                    del self._watched[place.name]
            self._streams[viewer] -= 1
            if not self._streams[viewer]:
                del self._streams[viewer]

    def close(self) -> None:
        """End all followers."""
        self.closed = True
        for watched in self._watched.values():
            for each in watched.followers:
                each.end()

    async def _watch(self, place: ShownPlace, watched: _Watched, last: PlaceLook | None) -> None:
        """Tell what changed since `last`, the look of before the first follower. None: everything."""
        reachable = True
        while True:
            try:
                look = await self._work.of(place).background(place.look, self._work.limits.tick_s / 2)
            except HoldfastError as error:
                if reachable:
                    _log.warning("can't read location %s: %s", place.name, without_passwords(str(error)))
                    self._tell(watched, TickChange(place.name, (), reachable=False))
                reachable = False
            else:
                names = {each.name for each in look.collections} if last is None else changed(last, look)
                if names or last is None or not reachable:
                    self._tell(watched, TickChange(place.name, (WHOLE, *sorted(names))))
                last, reachable = look, True
            await asyncio.sleep(self._work.limits.tick_s)

    @staticmethod
    def _tell(watched: _Watched, change: TickChange) -> None:
        for each in watched.followers:
            each.tell(change)


def changed(before: PlaceLook, after: PlaceLook) -> set[str]:
    """The names of the collections that differ between two looks, and `WHOLE` if the list of them does."""
    if before is after:
        return set()
    moved = {
        shard
        for shard in before.states.keys() | after.states.keys()
        if shard not in before.states
        or shard not in after.states
        or before.states[shard].seqno != after.states[shard].seqno
    }
    if not moved:
        return set()
    known = {each.collection_id: each for each in before.collections}
    found = {
        each.name
        for each in after.collections
        if known.get(each.collection_id) != each
        or before.jobs.get(each.collection_id) != after.jobs.get(each.collection_id)
        or not moved.isdisjoint((each.metadata_shard, *each.data_shards))
    }
    gone = known.keys() - {each.collection_id for each in after.collections}
    return {*found, *(known[id_].name for id_ in gone), WHOLE}
