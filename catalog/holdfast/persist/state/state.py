"""The durable state of a shard as values, the changes between versions, and `apply`.

`holdfast.persist.state.invariants` lists what is true of each version.

`apply` is the only way to make a new version. The process that commits a version uses it, and so does a
process that replays the log. So they can't disagree.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, assert_never, cast

from holdfast.errors import CLOSED
from holdfast.persist.rows.evolution import mismatch
from holdfast.persist.rows.limits import Limit
from holdfast.persist.rows.schema import Schema, shared


class WriteMode(IntEnum):
    """How a shard is written. It is fixed when the shard is created."""

    APPEND = 0
    WRITE_SEAL = 1


@dataclass(frozen=True, slots=True)
class Part:
    """A sorted piece of a run: updates in the order of key, value and time, in a blob or inline.

    `size_bytes`, `rows` and `crc32c` describe the whole stored object. Only its rows at times in
    `[lower, upper)` count: a seal can split an object, so that a batch and a pending batch share it.

    No value of the first column is below `least` or above `greatest` (`holdfast.persist.rows.limits`).
    `footer_crc32c` is the checksum of the last `footer_bytes`, which have the checksums of the bytes before
    (`holdfast.persist.rows.blocks`). They are 0 if the part was written by an earlier build.
    """

    rows: int
    schema_id: int
    lower: int
    upper: int
    size_bytes: int
    crc32c: int = 0
    blob_key: str | None = None
    inline: bytes | None = None
    least: Limit | None = None
    greatest: Limit | None = None
    footer_bytes: int = 0
    footer_crc32c: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """All updates of `[lower, upper)`, compacted up to `since`; `id` is the version that added the batch.

    A run is a tuple of parts that are sorted as a whole. `level` counts how often the rows were compacted.
    """

    id: int
    lower: int
    upper: int
    since: int = 0
    runs: tuple[tuple[Part, ...], ...] = ()
    level: int = 0
    _size_bytes: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def parts(self) -> Iterator[Part]:
        """Every part of the batch."""
        return (part for run in self.runs for part in run)

    @property
    def rows(self) -> int:
        """The number of stored updates."""
        return sum(part.rows for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """The number of stored bytes. It is summed once, because upkeep asks after each append."""
        if self._size_bytes is None:
            object.__setattr__(self, "_size_bytes", sum(part.size_bytes for part in self.parts))
        return cast("int", self._size_bytes)


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """Durable updates that are not sealed yet (mode WRITE_SEAL). Their times are in `[lower, upper)`.

    `level` counts how often they were merged with other pending updates.
    """

    id: str
    writer_id: str
    lower: int
    upper: int
    runs: tuple[tuple[Part, ...], ...]
    level: int = 0

    @property
    def parts(self) -> Iterator[Part]:
        """Every part of the batch."""
        return (part for run in self.runs for part in run)


@dataclass(frozen=True, slots=True)
class LeasedReader:
    """A leased hold. It keeps times from `since` on readable, and the blobs of version `seqno_hold`."""

    id: str
    since: int
    seqno_hold: int
    heartbeats: int
    lease_ms: int
    purpose: str
    hostname: str


@dataclass(frozen=True, slots=True)
class CriticalReader:
    """A hold on `since` that never expires."""

    id: str
    since: int
    purpose: str
    opaque: bytes = b""


@dataclass(frozen=True, slots=True)
class Writer:
    """A registered writer, and the token and upper of its last append."""

    id: str
    heartbeats: int
    lease_ms: int
    purpose: str
    hostname: str
    last_token: bytes = b""
    last_upper: int = 0


@dataclass(frozen=True, slots=True)
class Rollup:
    """The whole state of version `seqno`, in a blob."""

    seqno: int
    blob_key: str
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class CompactionClaim:
    """The announcement of a writer that it compacts some batches."""

    id: str
    writer_id: str
    batch_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Garbage:
    """A blob that the state no longer names since version `seqno`, which was committed at `wall_ms`."""

    blob_key: str
    seqno: int
    wall_ms: int


NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})
"""The empty table, shared by all states. A thousand idle shards would otherwise have thousands of them."""


@lru_cache(maxsize=64)
def _one_schema(schema_id: int, schema: Schema) -> Mapping[int, Schema]:
    return MappingProxyType({schema_id: schema})


def schema_table(schemas: Iterable[tuple[int, Schema]]) -> Mapping[int, Schema]:
    """Return the schemas of a shard by their ids. Shards with the same single schema share one table."""
    table = dict(schemas)
    if len(table) != 1:
        return table or NOTHING
    ((schema_id, schema),) = table.items()
    return _one_schema(schema_id, schema)


@dataclass(frozen=True, slots=True)
class ShardState:
    """One version of a shard. Version 0 is the empty state of a shard that does not exist."""

    shard_id: str
    seqno: int = 0
    applier_version: str = ""
    wall_ms: int = 0
    hostname: str = ""
    write_mode: WriteMode = WriteMode.APPEND
    finalized: bool = False
    since: int = 0
    gc_seqno: int = 0
    schemas: Mapping[int, Schema] = field(default_factory=lambda: NOTHING)
    batches: tuple[Batch, ...] = ()
    pending: Mapping[str, PendingBatch] = field(default_factory=lambda: NOTHING)
    leased_readers: Mapping[str, LeasedReader] = field(default_factory=lambda: NOTHING)
    critical_readers: Mapping[str, CriticalReader] = field(default_factory=lambda: NOTHING)
    writers: Mapping[str, Writer] = field(default_factory=lambda: NOTHING)
    rollups: Mapping[int, Rollup] = field(default_factory=lambda: NOTHING)
    claims: Mapping[str, CompactionClaim] = field(default_factory=lambda: NOTHING)
    garbage: Mapping[str, Garbage] = field(default_factory=lambda: NOTHING)

    @property
    def exists(self) -> bool:
        """Whether the shard was created."""
        return bool(self.schemas)

    @property
    def upper(self) -> int:
        """The frontier below which all times are complete."""
        return self.batches[-1].upper if self.batches else 0

    @property
    def schema(self) -> Schema:
        """The newest schema."""
        return self.schemas[max(self.schemas)]

    def schema_id(self, schema: Schema) -> int:
        """Return the id of a schema, 1 if the shard has none yet; raise `CodecMismatch` if it has others."""
        for schema_id, known in self.schemas.items():
            if known == schema:
                return schema_id
        if self.exists:
            raise mismatch(self.schema, schema, shard=f"shard {self.shard_id}")
        return 1

    @property
    def latest_rollup(self) -> Rollup | None:
        """The newest rollup."""
        return self.rollups[max(self.rollups)] if self.rollups else None

    @property
    def holds(self) -> Iterator[int]:
        """The `since` of every reader."""
        yield from (reader.since for reader in self.leased_readers.values())
        yield from (reader.since for reader in self.critical_readers.values())

    @property
    def seqno_hold(self) -> int:
        """The oldest version that a reader may still read."""
        return min((reader.seqno_hold for reader in self.leased_readers.values()), default=self.seqno)


@dataclass(frozen=True, slots=True)
class Create:
    """Creates the shard."""

    write_mode: WriteMode


@dataclass(frozen=True, slots=True)
class PutSchema:
    """Registers a schema."""

    schema_id: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class AppendBatch:
    """Adds a batch at the upper."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class ExtendUpper:
    """Extends the last batch to `upper`, without adding updates."""

    upper: int


@dataclass(frozen=True, slots=True)
class SealPending:
    """Turns all pending updates at times below `upper` into a batch that ends at `upper`."""

    upper: int


@dataclass(frozen=True, slots=True)
class ReplaceBatches:
    """Replaces adjacent batches by one with equal contents, or by None if all are removed (finalize)."""

    batch_ids: tuple[int, ...]
    batch: Batch | None


@dataclass(frozen=True, slots=True)
class SetSince:
    """Moves `since` forward."""

    since: int


@dataclass(frozen=True, slots=True)
class PutEntry:
    """Adds a value, or replaces the value with the same id."""

    value: LeasedReader | CriticalReader | Writer | Rollup | CompactionClaim | Garbage | PendingBatch


@dataclass(frozen=True, slots=True)
class Drop:
    """Removes the value with this id. `kind` is its type."""

    kind: type
    id: str | int


@dataclass(frozen=True, slots=True)
class SetGcSeqno:
    """Records that the log below this version was truncated."""

    seqno: int


@dataclass(frozen=True, slots=True)
class Finalize:
    """Finalizes the shard."""


Change = (
    Create
    | PutSchema
    | AppendBatch
    | ExtendUpper
    | SealPending
    | ReplaceBatches
    | SetSince
    | PutEntry
    | Drop
    | SetGcSeqno
    | Finalize
)

# The field of the state that has the values of a kind, and the attribute that is their key.
TABLES: Mapping[type, tuple[str, str]] = {
    LeasedReader: ("leased_readers", "id"),
    CriticalReader: ("critical_readers", "id"),
    Writer: ("writers", "id"),
    Rollup: ("rollups", "seqno"),
    CompactionClaim: ("claims", "id"),
    Garbage: ("garbage", "blob_key"),
    PendingBatch: ("pending", "id"),
}


@dataclass(frozen=True, slots=True)
class StateDiff:
    """The changes between version `seqno - 1` and version `seqno`."""

    seqno: int
    shard_id: str
    applier_version: str
    wall_ms: int
    hostname: str
    latest_rollup: Rollup | None
    changes: tuple[Change, ...]


def next_version(
    state: ShardState, changes: tuple[Change, ...], *, applier_version: str, wall_ms: int, hostname: str
) -> tuple[StateDiff, ShardState]:
    """Return the diff that makes the next version of `state`, and that version. Its time is a later one."""
    added = [
        change.value
        for change in changes
        if isinstance(change, PutEntry) and isinstance(change.value, Rollup)
    ]
    diff = StateDiff(
        state.seqno + 1,
        state.shard_id,
        applier_version,
        max(wall_ms, state.wall_ms + 1),
        hostname,
        added[0] if added else state.latest_rollup,
        changes,
    )
    return diff, apply(state, diff)


def apply(state: ShardState, diff: StateDiff) -> ShardState:
    """Return the version after `state`.

    Raises:
        ValueError: `diff` does not follow `state`.
    """
    if diff.seqno != state.seqno + 1 or diff.shard_id != state.shard_id:
        raise ValueError(f"diff {diff.seqno} of {diff.shard_id} after {state.seqno} of {state.shard_id}")
    new: dict[str, object] = {}
    tables: dict[str, dict[str | int, object]] = {}

    batches, schemas = state.batches, state.schemas
    for change in diff.changes:
        match change:
            case AppendBatch(batch):
                batches = (*batches, batch)
            case PutEntry(value):
                kind = type(value)
                values, id_ = _table(state, tables, kind), getattr(value, TABLES[kind][1])
                # Move it to the end, so that writers are in the order of their last append.
                values.pop(id_, None)
                values[id_] = value
            case Drop(kind, id_):
                _table(state, tables, kind).pop(id_, None)
            case ExtendUpper(upper):
                batches = (*batches[:-1], replace(batches[-1], upper=upper))
            case SealPending(upper):
                pending = cast("dict[str, PendingBatch]", _table(state, tables, PendingBatch))
                batches = (*batches, _seal(batches, pending, upper, diff.seqno))
            case ReplaceBatches(batch_ids, replacement):
                batches = _replace_batches(batches, batch_ids, replacement)
            case SetSince(since):
                new["since"] = since
            case SetGcSeqno(seqno):
                new["gc_seqno"] = seqno
            case Create(write_mode):
                new["write_mode"] = write_mode
            case PutSchema(schema_id, schema):
                schemas = schema_table([*schemas.items(), (schema_id, shared(schema))])
            case Finalize():
                new["finalized"] = True
            case _:
                assert_never(change)
    return replace(
        state,
        seqno=diff.seqno,
        applier_version=diff.applier_version,
        wall_ms=diff.wall_ms,
        hostname=diff.hostname,
        batches=batches,
        schemas=schemas,
        **new,  # type: ignore[arg-type]
        **{name: values or NOTHING for name, values in tables.items()},  # type: ignore[arg-type]
    )


def _table(
    state: ShardState, tables: dict[str, dict[str | int, object]], kind: type
) -> dict[str | int, object]:
    """Return the values of a kind. `tables` gets a copy of them at the first change."""
    name, _ = TABLES[kind]
    if name not in tables:
        tables[name] = dict(getattr(state, name))
    return tables[name]


def _seal(batches: Sequence[Batch], pending: dict[str, PendingBatch], upper: int, seqno: int) -> Batch:
    """Return the batch of all pending updates below `upper`, in their order. Leave the rest in `pending`."""
    taken: list[tuple[Part, ...]] = []
    for id_, batch in list(pending.items()):
        if batch.lower >= upper:
            continue
        taken += _cut(batch.runs, 0, upper)
        if left := _cut(batch.runs, upper, CLOSED):
            lower = min(part.lower for run in left for part in run)
            pending[id_] = replace(batch, lower=lower, runs=left)
        else:
            del pending[id_]
    return Batch(seqno, batches[-1].upper if batches else 0, upper, 0, tuple(taken))


def _cut(runs: Iterable[tuple[Part, ...]], lower: int, upper: int) -> tuple[tuple[Part, ...], ...]:
    """Return the runs, restricted to times in `[lower, upper)`."""
    found = (
        tuple(
            replace(part, lower=max(part.lower, lower), upper=min(part.upper, upper))
            for part in run
            if part.lower < upper and part.upper > lower
        )
        for run in runs
    )
    return tuple(run for run in found if run)


def _replace_batches(
    batches: tuple[Batch, ...], ids: tuple[int, ...], replacement: Batch | None
) -> tuple[Batch, ...]:
    if replacement is None:
        return tuple(batch for batch in batches if batch.id not in ids)
    start = next(index for index, batch in enumerate(batches) if batch.id == ids[0])
    end = start + len(ids)
    if tuple(batch.id for batch in batches[start:end]) != ids:
        raise ValueError(f"batches {ids} are not neighbours")
    return (*batches[:start], replacement, *batches[end:])


def blob_keys(batches: Iterable[Batch | PendingBatch]) -> Iterator[str]:
    """Yield the keys of all blobs that batches name. A key appears once for each part that uses it."""
    return (part.blob_key for batch in batches for part in batch.parts if part.blob_key is not None)


def part_keys(state: ShardState) -> set[str]:
    """Return the keys of all blobs with updates that a version names, sealed or pending."""
    return {*blob_keys(state.batches), *blob_keys(state.pending.values())}


def live_keys(state: ShardState) -> frozenset[str]:
    """Return the keys of all blobs that a version names: of batches, pending batches and rollups."""
    return frozenset([*part_keys(state), *(rollup.blob_key for rollup in state.rollups.values())])
