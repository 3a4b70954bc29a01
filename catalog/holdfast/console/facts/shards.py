"""The shards of a location, and one of them with its batches, holds, leases, garbage and latest versions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.collections import RenditionInfo
from holdfast.collections.record.codec import controller_shard_id
from holdfast.console.context import NotHere
from holdfast.console.facts.catalog import is_catalog_shard
from holdfast.console.places import PlaceLook, ShownPlace
from holdfast.persist.ids import fingerprint
from holdfast.persist.state.codec import decode_diff
from holdfast.persist.state.inspect import stored_size
from holdfast.persist.state.state import (
    AppendBatch,
    Batch,
    Change,
    Create,
    CriticalReader,
    Drop,
    ExtendUpper,
    Finalize,
    Garbage,
    LeasedReader,
    PutEntry,
    PutSchema,
    ReplaceBatches,
    SealPending,
    SetGcSeqno,
    SetSince,
    ShardState,
    StateDiff,
)

_RECORDS: Final = "the records of all collections"
MOST_SHARDS: Final = 500
MOST_BATCHES: Final = 200
MOST_VERSIONS: Final = 40
MOST_ENTRIES: Final = 100


@dataclass(frozen=True, slots=True)
class ShardLine:
    """A shard of a location. `belongs_to` says what it is, and `collection` which collection has it."""

    id: str
    belongs_to: str
    collection: str
    is_catalog: bool
    state: ShardState
    rows: int
    bytes: int

    @property
    def counts_commits(self) -> bool:
        """Whether its times count commits, as those of catalogs and of the records do."""
        return self.is_catalog or self.belongs_to == _RECORDS


@dataclass(frozen=True, slots=True)
class ShardList:
    """The largest shards of a location, and how many it has."""

    shards: tuple[ShardLine, ...]
    all: int
    read: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class HoldLine:
    """A hold on a shard. `lease_ms` is None if it never ends. `token` is a fingerprint, never the token."""

    id: str
    purpose: str
    host: str
    since: int
    lease_ms: int | None = None
    version: int | None = None
    token: str = ""


@dataclass(frozen=True, slots=True)
class VersionLine:
    """A version of a shard: who made it, when, and what it changed."""

    seqno: int
    at_ms: int
    host: str
    what: str


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """One shard at one moment."""

    id: str
    belongs_to: str
    collection: str
    is_catalog: bool
    state: ShardState
    now_ms: int
    rows: int
    bytes: int
    batches: tuple[Batch, ...]
    holds: tuple[HoldLine, ...]
    versions: tuple[VersionLine, ...]
    oldest_garbage_ms: int | None
    schemas: tuple[tuple[int, str], ...]


def shard_list(place: ShownPlace, max_age_s: float = 0.0) -> ShardList:
    """The shards of a location: those of collections, and at most as many others as a page shows."""
    seen = place.look(max_age_s)
    ids = place.client.shards()
    others = [each for each in ids if each not in seen.states][:MOST_SHARDS]
    states = {**seen.states, **place.states(others)}
    owners = _owners(place, seen)
    lines = [_line(state, owners) for state in states.values() if state.exists]
    lines.sort(key=lambda line: (-line.bytes, -line.rows, line.id))
    return ShardList(tuple(lines[:MOST_SHARDS]), len(ids), len(lines), seen.now_ms)


def shard_facts(place: ShownPlace, shard: str, max_age_s: float = 0.0) -> ShardFacts:
    """Read one shard. Raises `NotHere` if the location has none with this id."""
    seen = place.look(max_age_s)
    state = seen.states.get(shard)
    if state is None:
        if shard not in place.client.shards():
            raise NotHere(
                f"location {place.name} has no shard {shard[:60]!r}", hint="the list of shards has its ids"
            )
        state = place.states([shard])[shard]
    line = _line(state, _owners(place, seen))
    return ShardFacts(
        id=shard,
        belongs_to=line.belongs_to,
        collection=line.collection,
        is_catalog=line.is_catalog,
        state=state,
        now_ms=seen.now_ms,
        rows=line.rows,
        bytes=line.bytes,
        batches=tuple(reversed(state.batches[-MOST_BATCHES:])),
        holds=tuple(_holds(state))[:MOST_ENTRIES],
        versions=tuple(_versions(place, state)),
        oldest_garbage_ms=min((each.wall_ms for each in state.garbage.values()), default=None),
        schemas=tuple((id_, str(schema)) for id_, schema in state.schemas.items()),
    )


def shard_roles(rendition: RenditionInfo) -> Iterator[tuple[str, str]]:
    """The shards of a rendition, each with what it holds. Those with rows are first."""
    for shard in rendition.shards:
        yield shard, "rows"
    if rendition.difference_shard:
        yield rendition.difference_shard, "difference"
    if rendition.pipeline is not None:
        yield rendition.pipeline.remap, "positions"
        yield rendition.pipeline.errors, "bad records"


def _owners(place: ShownPlace, seen: PlaceLook) -> dict[str, tuple[str, str]]:
    """What each shard is, and the collection that has it."""
    found = {controller_shard_id(place.client.location_id): (_RECORDS, "")}
    for name, shard in place.client.names().items():
        found[shard] = (f"named {name}", "")
    for info in seen.collections:
        found[info.metadata_shard] = (f"{info.name}: metadata", info.name)
        for each in info.live:
            for shard, role in shard_roles(each):
                found[shard] = (f"{info.name}: {role} of {each.id}", info.name)
    return found


def _line(state: ShardState, owners: Mapping[str, tuple[str, str]]) -> ShardLine:
    size = stored_size(state)
    is_catalog = is_catalog_shard(state)
    known = "dropped" if state.finalized else "a catalog" if is_catalog else "not of a collection"
    belongs_to, collection = owners.get(state.shard_id, (known, ""))
    return ShardLine(state.shard_id, belongs_to, collection, is_catalog, state, size.rows, size.size_bytes)


def _holds(state: ShardState) -> list[HoldLine]:
    leased = [
        HoldLine(r.id, r.purpose, r.hostname, r.since, r.lease_ms, r.seqno_hold)
        for r in state.leased_readers.values()
    ]
    critical = [
        HoldLine(c.id, c.purpose, "", c.since, token=fingerprint(c.id, c.opaque))
        for c in state.critical_readers.values()
    ]
    return sorted([*leased, *critical], key=lambda hold: hold.since)


def _versions(place: ShownPlace, state: ShardState) -> list[VersionLine]:
    """The latest versions in the log, newest first."""
    first = max(1, state.seqno - MOST_VERSIONS + 1)
    entries = place.client.location.consensus.scan(state.shard_id, first, MOST_VERSIONS)
    diffs = [decode_diff(each.data, f"{state.shard_id} row {each.seqno}") for each in entries]
    return [_version(each) for each in reversed(diffs)]


def _version(diff: StateDiff) -> VersionLine:
    what = dict.fromkeys(text for change in diff.changes if (text := _what(change)))
    return VersionLine(diff.seqno, diff.wall_ms, diff.hostname, ", ".join(what))


def _what(change: Change) -> str:
    """A change in words. Empty for one that only goes with others."""
    match change:
        case Create():
            return "created"
        case AppendBatch(batch):
            return f"appended {batch.rows:,} rows" if batch.rows else "moved the upper"
        case ExtendUpper():
            return "moved the upper"
        case SealPending():
            return "sealed"
        case ReplaceBatches(ids, None):
            return f"removed {len(ids)} batches"
        case ReplaceBatches(ids, _):
            return f"compacted {len(ids)} batches"
        case SetSince():
            return "moved the since"
        case PutSchema():
            return "changed the schema"
        case SetGcSeqno():
            return "cut the log"
        case Finalize():
            return "dropped"
        case PutEntry(LeasedReader() | CriticalReader() as reader):
            return f"hold '{reader.purpose}'"
        case PutEntry(Garbage()):
            return "garbage"
        case Drop(kind, _) if kind is Garbage:
            return "deleted garbage"
        case Drop(kind, _) if kind in (LeasedReader, CriticalReader):
            return "released a hold"
        case _:
            return ""
