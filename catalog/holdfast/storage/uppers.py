"""The uppers of a rendition's shards, read so that a state that can't be is told from a race.

All shards move together in one step, and none moves back. So where the first shard has the same upper before
and after the others are read, nothing was written in between, and all must be equal.
"""

from collections.abc import Callable

from holdfast.errors import TornRendition
from holdfast.storage.spec import CollectionInfo, RenditionInfo


def common_upper(info: CollectionInfo, rendition: RenditionInfo, read: Callable[[str], int]) -> int:
    """The upper that all shards have, by linearized reads of each.

    Raises `TornRendition` where they differ at one moment.
    """
    first = read(rendition.shards[0])
    while True:
        uppers = {rendition.shards[0]: first, **{shard: read(shard) for shard in rendition.shards[1:]}}
        if len(set(uppers.values())) == 1:
            return first
        again = read(rendition.shards[0])
        if again == first:
            raise TornRendition(info.name, rendition.id, uppers)
        first = again
