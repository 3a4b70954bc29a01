"""How a source feeds a collection: positions, lag in messages and in time, its trend, and bad records."""

from dataclasses import dataclass
from typing import Final

from holdfast.collections import CollectionInfo
from holdfast.collections.frontiers import CollectionView
from holdfast.console.facts.frontiers import FrontierHistory
from holdfast.console.facts.trouble import lag_ms, no_step_since
from holdfast.console.places import PlaceLook, ShownPlace
from holdfast.errors import AsOfTooEarly
from holdfast.ingest.kept import behind_at, own_slot, progress
from holdfast.persist import SnapshotPart

MOST_PARTITIONS: Final = 200
MOST_ERRORS: Final = 50
TREND_MS: Final = 15 * 60_000
_BEFORE_MS: Final = (TREND_MS, 5 * 60_000, 60_000)
_MOST_REASON: Final = 500


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the source.

    `behind` is how many messages it had more at the last step. None: its positions don't count messages.
    """

    name: str
    position: int
    behind: int | None


@dataclass(frozen=True, slots=True)
class RecentBadRecord:
    """A record of the source that could not be decoded. The reason may quote the record."""

    partition: str
    position: int
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class SourceFeed:
    """The state of a source as of `step_ms`, the last complete time.

    The console doesn't ask the source. What came to it since the last step is not known, so `behind` is how
    many messages it had more at that time. It is None if the positions of the source don't count messages.

    `is_stepping` is whether there was a step lately. `trend` has how many messages it was behind at some
    earlier times of the collection and at `step_ms`. `lag_trend` has the lag in time at the first and last
    step of the latest `TREND_MS`. `caught_up_ms` is how long it takes to catch up at the pace of the trend: 0
    if it is not behind, and None if it does not catch up, or if the pace is unknown.
    """

    source: str
    slot: str
    messages: int
    behind: int | None
    step_ms: int
    is_stepping: bool
    lag_ms: int | None
    errors: int
    partitions: tuple[Partition, ...]
    all_partitions: int
    trend: tuple[tuple[int, int], ...]
    lag_trend: tuple[tuple[int, int], ...]
    caught_up_ms: int | None
    bad: tuple[RecentBadRecord, ...] | None


def feed(
    place: ShownPlace,
    seen: PlaceLook,
    info: CollectionInfo,
    view: CollectionView | None,
    history: FrontierHistory,
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
    counts = found.counts_messages
    is_stepping = no_step_since(info, view, seen.states, seen.now_ms) is None
    trend = _trend(place, info, seen, found.complete_before, found.behind) if counts else ()
    parts = sorted(
        (
            Partition(name, position, lags.get(name, 0) if counts else None)
            for name, position in found.positions
        ),
        key=lambda each: (-(each.behind or 0), each.name),
    )
    return SourceFeed(
        source=found.source,
        slot=own_slot(info, found),
        messages=found.messages,
        behind=found.behind if counts else None,
        step_ms=found.complete_before - 1,
        is_stepping=is_stepping,
        lag_ms=lag_ms(info, view, seen.now_ms),
        errors=found.errors,
        partitions=tuple(parts[:MOST_PARTITIONS]),
        all_partitions=len(parts),
        trend=trend,
        lag_trend=_lag_trend(history),
        caught_up_ms=_caught_up(trend) if trend and is_stepping else None,
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


def _lag_trend(history: FrontierHistory) -> tuple[tuple[int, int], ...]:
    """When the first and the last step of the latest time were, and how late the collection was then."""
    latest = [each for each in history.upper if each.at_ms > history.to_ms - TREND_MS and each.value > 0]
    return tuple((each.at_ms, max(0, each.at_ms - (each.value - 1))) for each in (*latest[:1], *latest[-1:]))


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
