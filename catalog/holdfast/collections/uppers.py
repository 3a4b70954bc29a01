"""The uppers of a collection's renditions, read so that a state that can't be is told from a race.

- All shards of a rendition move together in one step, and none moves back. So what one read saw of any shard
  all have when the next begins.
- The promise is read before the record: a handover below it is in the record then. What was written beyond a
  promise tells nothing; then the promise has moved, and is read again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.collections.frontiers import Held, collection_upper
from holdfast.collections.record.spec import CollectionInfo, RenditionInfo
from holdfast.errors import TornRendition

Uppers: TypeAlias = Callable[[Sequence[str]], Mapping[str, int]]
"""The uppers of shards, linearized, in one round trip: `PersistClient.recent_uppers`."""


@dataclass(frozen=True, slots=True)
class View:
    """A collection as it was at one moment.

    `promised` is the metadata shard's upper: no handover that isn't in `info` is below it. `uppers` are those
    of the renditions that hold or held, `upper` is the collection's.
    """

    info: CollectionInfo
    promised: int
    uppers: Mapping[str, int]
    upper: int


def look(describe: Callable[[], CollectionInfo], promise: Callable[[], int], read: Uppers) -> View:
    """The collection now, by linearized reads of its record, its promise and its shards' uppers.

    Raises `TornRendition` where the shards of a rendition differ at one moment.
    """
    promised = promise()
    while True:
        info = describe()
        uppers = _held_uppers(info, read)
        held = [Held(each.held_from, each.held_to, uppers[each.id]) for each in info.held]
        upper = collection_upper(held, promised)
        if upper < promised or promised == (promised := promise()):
            return View(info, promised, uppers, upper)


def common_upper(info: CollectionInfo, rendition: RenditionInfo, read: Uppers) -> int:
    """The upper that all shards have, by linearized reads of all; one suffices where nobody writes.

    Raises `TornRendition` where they differ at one moment.
    """
    reached = 0
    while True:
        uppers = read(rendition.shards)
        least, most = min(uppers.values()), max(uppers.values())
        if least == most:
            return least
        # A read may come upon a step half-way: shard by shard it is at its beginning or later.
        if least < reached:
            raise TornRendition(info.name, rendition.id, uppers)
        reached = most


def _held_uppers(info: CollectionInfo, read: Uppers) -> dict[str, int]:
    """The uppers of all that hold or held; those that their follower sealed need no look."""
    held = info.held
    followers = (*held[1:], None)
    return {
        each.id: each.held_to
        if follower is not None and each.sealed_by(follower)
        else common_upper(info, each, read)
        for each, follower in zip(held, followers, strict=True)
    }
