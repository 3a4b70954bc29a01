"""The overview: one row per collection, and the location's sums, from one look."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.collections import CollectionInfo
from holdfast.collections.frontiers import CollectionView, look_together
from holdfast.console.facts.catalog import catalogs_in
from holdfast.console.facts.trouble import HeldBy, Level, Trouble, held_back_by, lag_ms, troubles
from holdfast.console.places import PlaceLook, ShownPlace
from holdfast.errors import HoldfastError, TornRendition
from holdfast.persist.state.inspect import stored_size

_CATALOGS_S: Final = 30.0
"""Seconds between two lists of all shards, which find the catalogs. A look needs no such list."""
SORTS: Final = ("trouble", "name", "lag", "since", "upper", "updates", "bytes", "errors")


@dataclass(frozen=True, slots=True)
class CollectionRow:
    """What the overview shows of a collection. Times are those of the collection, sizes are as stored.

    `updates` is the number of stored updates of the current rendition, which is more than its rows if some
    are not compacted yet. `bytes` are those of all renditions. `retain_ms` is how much history to keep.
    `errors` is the number of stored updates of its bad records: 0 is exact. None: no source feeds it.
    `lag_ms` is None unless a source feeds it. `upper` is None if the collection is torn.
    """

    place: str
    name: str
    id: str
    level: Level
    troubles: tuple[Trouble, ...]
    since: int
    upper: int | None
    held_by: HeldBy | None
    retain_ms: int | None
    lag_ms: int | None
    updates: int
    bytes: int
    errors: int | None
    shards: int
    is_fed: bool


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """What the overview shows of a location. `error` says why it can't be read, and `hint` what to do.

    `catalogs` are the shards of its catalogs, and `unlisted` says why they are not listed.
    """

    name: str
    url: str
    now_ms: int
    collections: tuple[CollectionRow, ...]
    catalogs: tuple[str, ...] = ()
    unlisted: str = ""
    error: str = ""
    hint: str = ""

    @property
    def updates(self) -> int:
        """The stored updates of all collections."""
        return sum(each.updates for each in self.collections)

    @property
    def bytes(self) -> int:
        """The stored bytes of all collections."""
        return sum(each.bytes for each in self.collections)


def overview(place: ShownPlace, max_age_s: float = 0.0) -> PlaceRow:
    """The overview of a location. One that can't be read has its error instead of rows."""
    try:
        seen = place.look(max_age_s)
    except HoldfastError as error:
        return PlaceRow(place.name, place.url, 0, (), error=str(error), hint=error.hint)
    rows = tuple(row_of(place, seen, info) for info in seen.collections)
    catalogs, unlisted = place.remembered(_catalogs, _CATALOGS_S)
    return PlaceRow(place.name, place.url, seen.now_ms, rows, catalogs, unlisted)


def _catalogs(place: ShownPlace) -> tuple[tuple[str, ...], str]:
    """The catalogs of a location, or why they are not listed."""
    try:
        return catalogs_in(place.client, place.look(_CATALOGS_S).states), ""
    except HoldfastError as error:
        return (), str(error)


def view_of(seen: PlaceLook, info: CollectionInfo) -> tuple[CollectionView | None, str]:
    """The frontiers of a collection at the moment of a look, or why it has none."""
    states = seen.states
    try:
        found = look_together(info, {shard: state.upper for shard, state in states.items()})
    except TornRendition as error:
        return None, str(error)
    return found, ""


def row_of(place: ShownPlace, seen: PlaceLook, info: CollectionInfo) -> CollectionRow:
    """The row of a collection."""
    view, torn = view_of(seen, info)
    states = seen.states
    sizes = {shard: stored_size(states[shard]) for each in info.live for shard in each.content_shards}
    errors = bad_updates(seen, info)
    found = troubles(
        info,
        view,
        torn,
        states,
        seen.jobs.get(info.collection_id, ()),
        errors=errors,
        now_ms=seen.now_ms,
        where=place.arguments,
    )
    return CollectionRow(
        place=place.name,
        name=info.name,
        id=info.collection_id,
        level=found[0].level if found else Level.FINE,
        troubles=tuple(found),
        since=states[info.metadata_shard].since,
        upper=None if view is None else view.upper,
        held_by=held_back_by(info, states),
        retain_ms=info.retain_ms,
        lag_ms=None if view is None else lag_ms(info, view, seen.now_ms),
        updates=sum(sizes[shard].rows for shard in info.holding.shards),
        bytes=sum(each.size_bytes for each in sizes.values()),
        errors=errors,
        shards=len(info.holding.shards),
        is_fed=info.holding.is_fed,
    )


def bad_updates(seen: PlaceLook, info: CollectionInfo) -> int | None:
    """The stored updates of the bad records of a collection. None if no source feeds it."""
    pipeline = info.holding.pipeline
    return None if pipeline is None else stored_size(seen.states[pipeline.errors]).rows


def ordered(rows: Sequence[CollectionRow], sort: str) -> list[CollectionRow]:
    """The rows in one of the orders of `SORTS`: the worst and the greatest first, times from the earliest."""
    keys: dict[str, Callable[[CollectionRow], tuple[float, ...]]] = {
        "trouble": lambda row: (-row.level, -(row.lag_ms or 0), -(row.errors or 0)),
        "name": lambda _: (),
        "lag": lambda row: (-(row.lag_ms if row.lag_ms is not None else -1),),
        "since": lambda row: (row.since,),
        "upper": lambda row: (row.upper if row.upper is not None else -1,),
        "updates": lambda row: (-row.updates,),
        "bytes": lambda row: (-row.bytes,),
        "errors": lambda row: (-(row.errors or 0),),
    }
    key = keys[sort]
    return sorted(rows, key=lambda row: (key(row), row.name, row.place))
