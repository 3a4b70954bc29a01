"""All that the page of a collection shows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.collections import CollectionHold, CollectionInfo, JobRecord, RenditionInfo
from holdfast.collections.capabilities import collection_holds
from holdfast.collections.frontiers import CollectionView
from holdfast.collections.record.state import CommandRecord
from holdfast.console.facts.feed import SourceFeed, feed
from holdfast.console.facts.frontiers import FrontierHistory, frontier_history
from holdfast.console.facts.overview import CollectionRow, row_of, view_of
from holdfast.console.facts.shards import shard_roles
from holdfast.console.places import PlaceLook, ShownPlace
from holdfast.errors import CollectionNotFound
from holdfast.persist.state.inspect import shard_info, stored_size

MOST_JOBS: Final = 100
MOST_COMMANDS: Final = 50
MOST_SHARDS: Final = 256


@dataclass(frozen=True, slots=True)
class ShardRow:
    """What a shard of a collection stores. `share` is its part of the largest one's rows, from 0 to 1."""

    id: str
    role: str
    rendition: str
    since: int
    upper: int
    batches: int
    runs: int
    parts: int
    rows: int
    bytes: int
    pending: int
    garbage: int
    share: float


@dataclass(frozen=True, slots=True)
class RenditionRow:
    """A rendition. `skew` is the rows of its largest shard, divided by the mean (1: even. None: no rows)."""

    info: RenditionInfo
    upper: int | None
    rows: int
    bytes: int
    hash_columns: tuple[str, ...]
    skew: float | None


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """A column of a collection."""

    name: str
    type: str
    nullable: bool
    is_key: bool
    comment: str


@dataclass(frozen=True, slots=True)
class CollectionFacts:
    """A collection at one moment."""

    info: CollectionInfo
    now_ms: int
    row: CollectionRow
    promised: int
    columns: tuple[ColumnRow, ...]
    renditions: tuple[RenditionRow, ...]
    shards: tuple[ShardRow, ...]
    all_shards: int
    holds: tuple[CollectionHold, ...]
    jobs: tuple[JobRecord, ...]
    all_jobs: int
    commands: tuple[CommandRecord, ...]
    history: FrontierHistory
    feed: SourceFeed | None


def collection_facts(
    place: ShownPlace, name: str, max_age_s: float = 0.0, *, with_records: bool = False
) -> CollectionFacts:
    """Read a collection by its name or id. Raises `CollectionNotFound` and `StorageError`."""
    seen = place.look(max_age_s)
    info = found_in(seen, place, name)
    view, _ = view_of(seen, info)
    jobs = seen.jobs.get(info.collection_id, ())
    shards = list(_shards(seen, info))
    commands = [each for each in seen.commands if each.object_id == info.collection_id]
    history = frontier_history(place, seen, info)
    states = {shard: shard_info(seen.states[shard]) for shard in (info.metadata_shard, *info.data_shards)}
    return CollectionFacts(
        info=info,
        now_ms=seen.now_ms,
        row=row_of(place, seen, info),
        promised=seen.states[info.metadata_shard].upper,
        columns=tuple(_columns(info)),
        renditions=tuple(_renditions(seen, info, view)),
        shards=tuple(shards[:MOST_SHARDS]),
        all_shards=len(shards),
        holds=collection_holds(info, states, jobs, seen.now_ms),
        jobs=tuple(reversed(jobs[-MOST_JOBS:])),
        all_jobs=len(jobs),
        commands=tuple(reversed(commands[-MOST_COMMANDS:])),
        history=history,
        feed=feed(place, seen, info, view, history, with_records=with_records),
    )


def found_in(seen: PlaceLook, place: ShownPlace, name: str) -> CollectionInfo:
    """The collection of a location with this id or name. Raises `CollectionNotFound`."""
    info = seen.find(name)
    if info is None:
        raise CollectionNotFound(
            f"location {place.name} has no collection '{name}'",
            hint=f"it may be dropped or renamed: 'holdfast ls {place.arguments}' shows all collections",
        )
    return info


def _columns(info: CollectionInfo) -> Iterator[ColumnRow]:
    keys = set(info.schema.key_names)
    for each in info.schema.columns:
        comment = info.comments.get(each.name, "")
        yield ColumnRow(each.name, str(each.type), each.nullable, each.name in keys, comment)


def _renditions(seen: PlaceLook, info: CollectionInfo, view: CollectionView | None) -> Iterator[RenditionRow]:
    known = view.uppers if view is not None else {}
    for each in reversed(info.renditions):
        shown = info.names.shown_columns(each.hash_columns)
        if each.dropped:
            yield RenditionRow(each, None, 0, 0, tuple(shown), None)
            continue
        sizes = [stored_size(seen.states[shard]) for shard in each.shards]
        rows = [size.rows for size in sizes]
        yield RenditionRow(
            info=each,
            upper=known.get(each.id, min(seen.states[shard].upper for shard in each.written_shards)),
            rows=sum(rows),
            bytes=sum(size.size_bytes for size in sizes),
            hash_columns=tuple(shown),
            skew=max(rows) * len(rows) / sum(rows) if sum(rows) else None,
        )


def _shards(seen: PlaceLook, info: CollectionInfo) -> Iterator[ShardRow]:
    """The shards of the current rendition first, and the metadata shard last."""
    for each in sorted(info.live, key=lambda each: each.id != info.holding.id):
        found = [_shard(seen, shard, role, each.id) for shard, role in shard_roles(each)]
        yield from _shared(found[: len(each.shards)])
        yield from found[len(each.shards) :]
    yield _shard(seen, info.metadata_shard, "metadata", "")


def _shared(rows: Sequence[ShardRow]) -> Iterator[ShardRow]:
    most = max((each.rows for each in rows), default=0)
    for each in rows:
        yield replace(each, share=each.rows / most if most else 0.0)


def _shard(seen: PlaceLook, shard: str, role: str, rendition: str) -> ShardRow:
    state = seen.states[shard]
    size = stored_size(state)
    return ShardRow(
        id=shard,
        role=role,
        rendition=rendition,
        since=state.since,
        upper=state.upper,
        batches=len(state.batches),
        runs=sum(len(batch.runs) for batch in state.batches),
        parts=sum(1 for batch in state.batches for _ in batch.parts),
        rows=size.rows,
        bytes=size.size_bytes,
        pending=len(state.pending),
        garbage=len(state.garbage),
        share=0.0,
    )
