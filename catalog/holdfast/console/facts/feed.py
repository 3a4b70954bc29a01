"""How a source feeds a collection: positions, lag in messages and in time, its trend, and bad records."""

from dataclasses import dataclass
from typing import Final

from holdfast.collections import CollectionInfo
from holdfast.collections.frontiers import CollectionView
from holdfast.console.facts.trouble import lag_ms
from holdfast.console.places import PlaceLook, ShownPlace
from holdfast.errors import AsOfTooEarly
from holdfast.ingest.kept import behind_at, progress
from holdfast.persist import SnapshotPart

MOST_PARTITIONS: Final = 200
MOST_ERRORS: Final = 50
_BEFORE_MS: Final = (15 * 60_000, 5 * 60_000, 60_000)
_MOST_REASON: Final = 500


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the source. `behind` is how many messages it had more at the last step, if it counts."""

    name: str
    position: int
    behind: int


@dataclass(frozen=True, slots=True)
class RecentBadRecord:
    """A record of the source that could not be decoded. The reason may quote the record."""

    partition: str
    position: int
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class SourceFeed:
    """The state of a source as of the last complete time.

    `trend` has how many messages it was behind at some earlier times of the collection and now.
    `caught_up_ms` is how long it takes to catch up at the pace of the trend: 0 if it is not behind, and None
    if it does not catch up or the pace is unknown.
    """

    source: str
    slot: str
    messages: int
    behind: int
    lag_ms: int | None
    errors: int
    partitions: tuple[Partition, ...]
    all_partitions: int
    trend: tuple[tuple[int, int], ...]
    caught_up_ms: int | None
    bad: tuple[RecentBadRecord, ...] | None


def feed(
    place: ShownPlace,
    seen: PlaceLook,
    info: CollectionInfo,
    view: CollectionView | None,
    *,
    with_records: bool,
) -> SourceFeed | None:
    """Read how a source feeds a collection, or None if none does. Without `with_records`, no bad records."""
    if info.holding.pipeline is None or view is None:
        return None
    found = progress(place.client, info.holding)
    if found is None:
        return None
    lags = found.lags
    trend = _trend(place, info, seen, found.complete_before, found.behind)
    parts = sorted(
        (Partition(name, position, lags.get(name, 0)) for name, position in found.positions),
        key=lambda each: (-each.behind, each.name),
    )
    return SourceFeed(
        source=found.source,
        slot=found.slot,
        messages=found.messages,
        behind=found.behind,
        lag_ms=lag_ms(info, view, seen.now_ms),
        errors=found.errors,
        partitions=tuple(parts[:MOST_PARTITIONS]),
        all_partitions=len(parts),
        trend=trend,
        caught_up_ms=_caught_up(trend),
        bad=_bad(place, info, found.complete_before) if with_records and found.errors else None,
    )


def _trend(
    place: ShownPlace, info: CollectionInfo, seen: PlaceLook, upper: int, behind: int
) -> tuple[tuple[int, int], ...]:
    pipeline = info.holding.pipeline
    assert pipeline is not None
    since = seen.states[pipeline.remap].since
    points: list[tuple[int, int]] = []
    for before_ms in _BEFORE_MS:
        time = upper - 1 - before_ms
        if time >= max(since, info.holding.held_from, 1):
            try:
                points.append((time, behind_at(place.client, info.holding, time)))
            except AsOfTooEarly:
                # The since has moved after the look.
                continue
    return (*points, (upper - 1, behind))


def _caught_up(trend: tuple[tuple[int, int], ...]) -> int | None:
    """How long it takes at the pace between the first and the last point."""
    (first_ms, first), (last_ms, last) = trend[0], trend[-1]
    if last == 0:
        return 0
    if last >= first or last_ms <= first_ms:
        return None
    return round(last * (last_ms - first_ms) / (first - last))


def _bad(place: ShownPlace, info: CollectionInfo, upper: int) -> tuple[RecentBadRecord, ...]:
    pipeline = info.holding.pipeline
    assert pipeline is not None
    rows = place.client.read_snapshot_part(
        SnapshotPart(pipeline.errors, upper - 1), ["partition", "position", "kind", "reason"]
    ).to_table()
    return tuple(
        RecentBadRecord(row["partition"], row["position"], row["kind"], row["reason"][:_MOST_REASON])
        for row in rows.slice(0, MOST_ERRORS).to_pylist()
    )
