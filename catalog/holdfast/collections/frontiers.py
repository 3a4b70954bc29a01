"""How the frontiers of a collection follow from those of its shards, and how they are read.

- The upper of the metadata shard is a promise: no handover happens below it. Readers read no further.
- The upper of a collection is the first time, up to that promise, that the rendition current at that time has
  not written yet.
- The since of a collection is the since of its metadata shard. No data shard is compacted past it.
- All shards of a rendition move together from one upper to the next, in one commit, and none moves back. So
  an upper that one read saw for any shard is reached by all shards when the next read begins. This
  distinguishes damage from a race.
- The promise and all uppers are read at one moment, and the record at that moment or later. So the record has
  every handover below the promise, and the names with which rows were written below the uppers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from holdfast.collections.record.codec import controller_shard_id
from holdfast.collections.record.spec import CollectionInfo, RenditionInfo
from holdfast.errors import CLOSED, AsOfNotYetAvailable, AsOfTooEarly, BadInput, TornRendition
from holdfast.persist import PersistClient
from holdfast.persist.looks import look_again

PROMISE_MS: Final = 10_000
"""How far beyond a write the metadata shard is sealed with it, in milliseconds of collection time."""


class Held(NamedTuple):
    """A rendition is current in `[held_from, held_to)`, and is written up to `upper`."""

    held_from: int
    held_to: int
    upper: int


def collection_upper(held: Iterable[Held], metadata_upper: int) -> int:
    """The first time, up to `metadata_upper`, that the rendition current at that time has not written.

    `held` are the renditions that are not dropped, ordered by their times. A dropped rendition is complete,
    so it doesn't matter here.
    """
    for each in held:
        if each.upper < min(each.held_to, metadata_upper):
            return max(each.upper, each.held_from)
    return metadata_upper


def promise_for(new_upper: int, metadata_upper: int) -> int | None:
    """The metadata upper that a write up to `new_upper` must commit with it. None if it needs none."""
    if new_upper <= metadata_upper:
        return None
    return min(new_upper + PROMISE_MS, CLOSED)


def retained_since(wanted: int, metadata_since: int, rendition_start: int) -> int:
    """How far the since of a data shard may move if its retention asks for `wanted`."""
    return min(wanted, max(metadata_since, rendition_start))


def latest(upper: int) -> int:
    """The latest complete time below `upper`.

    Raises `AsOfNotYetAvailable` if no time is complete yet.
    """
    if upper == 0:
        raise AsOfNotYetAvailable(0, 0)
    return upper - 1


def check_forward(after: int, until: int) -> None:
    """Raise `BadInput` if `until` is before `after`. Equal times are allowed, and have no difference."""
    if until < after:
        raise BadInput(f"a difference must go forward in time, not from {after} to {until}")


def check_as_of(as_of: int, since: int, upper: int) -> None:
    """Raise `AsOfTooEarly` or `AsOfNotYetAvailable` unless `since <= as_of < upper`."""
    if as_of < since:
        raise AsOfTooEarly(as_of, since)
    if as_of >= upper:
        raise AsOfNotYetAvailable(as_of, upper)


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


def with_records(client: PersistClient) -> Uppers:
    """Read uppers as of one moment, together with that of the records.

    So the records that are read next are of that moment or later, in a block `one_look` too, where they need
    no other read.
    """
    records = controller_shard_id(client.location_id)
    return lambda shards: client.recent_uppers([records, *shards])


def look(
    client: PersistClient, known: CollectionInfo, describe: Callable[[], CollectionInfo]
) -> CollectionView:
    """Read the state of a collection now: its record, its promise and the uppers of its shards, linearized.

    `known` is a record from before. Raises `TornRendition` if the shards of a rendition have different uppers
    at one moment.
    """
    (view,) = _views([known], lambda: [describe()], with_records(client))
    return view


def look_together(info: CollectionInfo, uppers: Mapping[str, int]) -> CollectionView:
    """The state of a collection at one moment: from its record and the uppers of its shards at that moment.

    Raises `TornRendition` if the shards of a rendition have different uppers.
    """
    held = _held_uppers(info, lambda shards: {shard: uppers[shard] for shard in shards})
    promised = uppers[info.metadata_shard]
    return CollectionView(info, promised, held, _upper(info, held, promised))


def common_upper(info: CollectionInfo, rendition: RenditionInfo, read: Uppers) -> int:
    """The common upper of all shards of a rendition (linearized). Needs one read unless somebody writes.

    Raises `TornRendition` if the uppers differ at one moment.
    """
    reached = 0
    while True:
        uppers = read(rendition.written_shards)
        least, most = min(uppers.values()), max(uppers.values())
        if least == most:
            return least
        # A read during a commit may see some shards before it and some after. All have reached `most` then.
        if least < reached:
            raise TornRendition(info.name, rendition.id, uppers)
        reached = most
        look_again()


def uppers_together(listed: Callable[[], Sequence[CollectionInfo]], read: Uppers) -> dict[str, int]:
    """The uppers of collections as of one moment, by their ids. `listed` returns their records.

    A write of several collections is below all of these uppers, or below none of them.

    The records are read before that moment and again after it. If the renditions are the same, no handover
    came between, so the records have every handover below the promises of that moment. Otherwise everything
    is read again. In a block `one_look`, `read` must be that of `with_records`.

    Raises `TornRendition` if the shards of a rendition have different uppers at that moment.
    """
    return {view.info.collection_id: view.upper for view in _views(listed(), listed, read)}


def _views(
    infos: Sequence[CollectionInfo], listed: Callable[[], Sequence[CollectionInfo]], read: Uppers
) -> list[CollectionView]:
    """Collections as of one moment. `infos` are records from before it. See `uppers_together`."""
    while True:
        wanted = [info.metadata_shard for info in infos]
        wanted += [shard for info in infos for each in _unsealed(info) for shard in each.written_shards]
        uppers = read(wanted)
        before, infos = infos, listed()
        if [(each.collection_id, each.held) for each in infos] == [
            (each.collection_id, each.held) for each in before
        ]:
            return [look_together(info, uppers) for info in infos]


def _upper(info: CollectionInfo, uppers: Mapping[str, int], promised: int) -> int:
    held = [Held(each.held_from, each.held_to, uppers[each.id]) for each in info.held]
    return collection_upper(held, promised)


def _held_uppers(info: CollectionInfo, read: Uppers) -> dict[str, int]:
    """The uppers of all renditions that are or were current.

    Those that were sealed by a handover are known.
    """
    unsealed = _unsealed(info)
    return {
        each.id: common_upper(info, each, read) if each in unsealed else each.held_to for each in info.held
    }


def _unsealed(info: CollectionInfo) -> list[RenditionInfo]:
    """The renditions that are or were current and that no handover sealed."""
    held = info.held
    followers = (*held[1:], None)
    return [
        each
        for each, follower in zip(held, followers, strict=True)
        if follower is None or not each.sealed_by(follower)
    ]
