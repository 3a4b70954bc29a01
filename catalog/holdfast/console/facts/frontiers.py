"""The frontiers of a collection over wall time, and who held its since, as far as the logs of its shards go.

A log has some hundred versions, each with its wall time. What was before the first of them is unknown: the
points begin later then, and a page shows a gap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.collections import CollectionInfo
from holdfast.collections.capabilities import shown_purpose
from holdfast.console.places import PlaceLook, ShownPlace
from holdfast.persist.state.codec import decode_diff
from holdfast.persist.state.state import (
    AppendBatch,
    CriticalReader,
    Drop,
    ExtendUpper,
    LeasedReader,
    PutEntry,
    SealPending,
    SetSince,
    ShardState,
    StateDiff,
)

MOST_VERSIONS: Final = 1024
"""How many versions of a log are read at most: the newest ones, in one scan."""
MOST_HOLDS: Final = 40


@dataclass(frozen=True, slots=True)
class Point:
    """A frontier has this value from a wall time on."""

    at_ms: int
    value: int


@dataclass(frozen=True, slots=True)
class HoldBar:
    """A hold on the since. It was taken at `from_ms` (None: before the log), and ended at `to_ms` (None: not
    yet). `since` is its last value.
    """

    purpose: str
    host: str
    since: int
    leased: bool
    from_ms: int | None
    to_ms: int | None


@dataclass(frozen=True, slots=True)
class FrontierHistory:
    """The frontiers from `from_ms` to `to_ms`, in wall time. Each line begins where it is known."""

    from_ms: int
    to_ms: int
    since: tuple[Point, ...]
    upper: tuple[Point, ...]
    promised: tuple[Point, ...]
    holds: tuple[HoldBar, ...]


def frontier_history(place: ShownPlace, seen: PlaceLook, info: CollectionInfo) -> FrontierHistory:
    """Read the history of a collection's frontiers: two scans of logs. Raises `StorageError`."""
    metadata = seen.states[info.metadata_shard]
    data = seen.states[info.holding.shards[0]]
    versions, uppers = _log(place, metadata), _log(place, data)
    start = min((log[0].wall_ms for log in (versions, uppers) if log), default=seen.now_ms)
    end = max(seen.now_ms, start + 1)
    return FrontierHistory(
        from_ms=start,
        to_ms=end,
        since=tuple(_since(versions, metadata)),
        upper=tuple(_upper(uppers, data)),
        promised=tuple(_upper(versions, metadata)),
        holds=tuple(_holds(versions, metadata))[:MOST_HOLDS],
    )


def _log(place: ShownPlace, state: ShardState) -> list[StateDiff]:
    """The versions of a shard that its log still has, up to the one that was seen."""
    first = max(1, state.seqno - MOST_VERSIONS + 1)
    entries = place.client.location.consensus.scan(state.shard_id, first, MOST_VERSIONS)
    found = [decode_diff(each.data, f"{state.shard_id} row {each.seqno}") for each in entries]
    return [each for each in found if each.seqno <= state.seqno]


def _since(versions: Sequence[StateDiff], state: ShardState) -> Iterator[Point]:
    moves = [
        Point(each.wall_ms, change.since)
        for each in versions
        for change in each.changes
        if isinstance(change, SetSince)
    ]
    if versions and (versions[0].seqno == 1 or not moves):
        # The log begins with the shard, or the since never moved in it.
        yield Point(versions[0].wall_ms, 0 if moves else state.since)
    yield from moves


def _upper(versions: Sequence[StateDiff], state: ShardState) -> Iterator[Point]:
    known: int | None = None
    for each in versions:
        for change in each.changes:
            match change:
                case AppendBatch(batch):
                    if known is None and batch.lower:
                        yield Point(each.wall_ms, batch.lower)
                    known = batch.upper
                case ExtendUpper(upper) | SealPending(upper):
                    known = upper
                case _:
                    continue
            yield Point(each.wall_ms, known)
    if known is None and versions:
        yield Point(versions[0].wall_ms, state.upper)


def _holds(versions: Sequence[StateDiff], state: ShardState) -> list[HoldBar]:
    """The holds of all versions: those that are there now first, then the latest that ended."""
    bars: dict[str, HoldBar] = {}
    is_whole = bool(versions) and versions[0].seqno == 1
    for each in versions:
        for change in each.changes:
            match change:
                case PutEntry(LeasedReader() as reader):
                    is_new = is_whole or reader.heartbeats <= 1
                    taken = each.wall_ms if is_new else None
                    bars[reader.id] = _bar(bars.get(reader.id), reader, taken)
                case PutEntry(CriticalReader() as reader):
                    # Moving a hold writes it again, so only a whole log shows when it was taken.
                    bars[reader.id] = _bar(bars.get(reader.id), reader, each.wall_ms if is_whole else None)
                case Drop(kind, id_) if kind in (LeasedReader, CriticalReader) and id_ in bars:
                    bars[str(id_)] = replace(bars[str(id_)], to_ms=each.wall_ms)
                case _:
                    pass
    now: list[LeasedReader | CriticalReader] = [*state.leased_readers.values()]
    now += state.critical_readers.values()
    for held in now:
        bars.setdefault(held.id, _bar(None, held, None))
    there = [each for each in bars.values() if each.to_ms is None]
    ended = [each for each in bars.values() if each.to_ms is not None]
    there.sort(key=lambda bar: bar.since)
    ended.sort(key=lambda bar: -(bar.to_ms or 0))
    return [*there, *ended]


def _bar(known: HoldBar | None, reader: LeasedReader | CriticalReader, taken_ms: int | None) -> HoldBar:
    return HoldBar(
        purpose=shown_purpose(reader.purpose),
        host=reader.hostname if isinstance(reader, LeasedReader) else "",
        since=reader.since,
        leased=isinstance(reader, LeasedReader),
        from_ms=taken_ms if known is None else known.from_ms,
        to_ms=None,
    )
