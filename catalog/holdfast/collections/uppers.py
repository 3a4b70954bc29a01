"""Reads the uppers of a collection's renditions, and distinguishes damage from a race.

- All shards of a rendition move together in one commit, and none moves back. So an upper that one read saw
  for any shard is reached by all shards when the next read begins.
- The promise is read before the record, so the record has every handover below the promise. If the uppers
  reach the promise, it may have moved since it was read, so it is read again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.collections.frontiers import Held, collection_upper
from holdfast.collections.record.spec import CollectionInfo, RenditionInfo
from holdfast.errors import TornRendition

Uppers: TypeAlias = Callable[[Sequence[str]], Mapping[str, int]]
"""Returns the uppers of shards (linearized), in one round trip: `PersistClient.recent_uppers`."""


@dataclass(frozen=True, slots=True)
class CollectionView:
    """A collection at one moment.

    `promised` is the upper of the metadata shard. `info` has every handover below it. `uppers` are those of
    the renditions that are or were current, and `upper` is the collection's.
    """

    info: CollectionInfo
    promised: int
    uppers: Mapping[str, int]
    upper: int


def look(describe: Callable[[], CollectionInfo], promise: Callable[[], int], read: Uppers) -> CollectionView:
    """Read the state of a collection now: its record, its promise and the uppers of its shards, linearized.

    Raises `TornRendition` if the shards of a rendition have different uppers at one moment.
    """
    promised = promise()
    while True:
        info = describe()
        uppers = _held_uppers(info, read)
        held = [Held(each.held_from, each.held_to, uppers[each.id]) for each in info.held]
        upper = collection_upper(held, promised)
        if upper < promised or promised == (promised := promise()):
            return CollectionView(info, promised, uppers, upper)


def common_upper(info: CollectionInfo, rendition: RenditionInfo, read: Uppers) -> int:
    """The common upper of all shards of a rendition (linearized). Needs one read unless somebody writes.

    Raises `TornRendition` if the uppers differ at one moment.
    """
    reached = 0
    while True:
        uppers = read(rendition.shards)
        least, most = min(uppers.values()), max(uppers.values())
        if least == most:
            return least
        # A read during a commit may see some shards before it and some after. All have reached `most` then.
        if least < reached:
            raise TornRendition(info.name, rendition.id, uppers)
        reached = most


def _held_uppers(info: CollectionInfo, read: Uppers) -> dict[str, int]:
    """The uppers of all renditions that are or were current.

    Those that were sealed by a handover are known.
    """
    held = info.held
    followers = (*held[1:], None)
    return {
        each.id: each.held_to
        if follower is not None and each.sealed_by(follower)
        else common_upper(info, each, read)
        for each, follower in zip(held, followers, strict=True)
    }
