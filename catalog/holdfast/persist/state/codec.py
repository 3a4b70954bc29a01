"""The stored form of state values: framed protobuf messages (docs/reference/FORMAT.md).

Decoding raises `VersionTooNew` for data of a newer Holdfast, and `CorruptBlob` for any other unexpected
bytes. Both name the key.
"""

from collections.abc import Callable
from functools import lru_cache
from sys import intern
from typing import Any, Final, assert_never

from holdfast._pb import persist_pb2 as pb
from holdfast.errors import CLOSED, BadInput, CorruptBlob, VersionTooNew
from holdfast.persist.rows.limits import Limit
from holdfast.persist.rows.schema import Column, Schema, shared
from holdfast.persist.state.state import (
    NOTHING,
    TABLES,
    AppendBatch,
    Batch,
    Change,
    CompactionClaim,
    Create,
    CriticalReader,
    Drop,
    ExtendUpper,
    Finalize,
    Garbage,
    LeasedReader,
    Part,
    PendingBatch,
    PutEntry,
    PutSchema,
    ReplaceBatches,
    Rollup,
    SealPending,
    SetGcSeqno,
    SetSince,
    ShardState,
    StateDiff,
    WriteMode,
    Writer,
    schema_table,
)
from holdfast.persist.stores.frame import parse, seal, unseal

FORMAT_VERSION: Final = 1
DIFF_MAGIC: Final = b"HFd\n"
ROLLUP_MAGIC: Final = b"HFr\n"
LAST_WALL_MS: Final = 253_402_300_799_999


def seal_frame(magic: bytes, body: bytes) -> bytes:
    """Return the frame around `body`."""
    return seal(magic, FORMAT_VERSION, body)


def check_moment(wall_ms: int, key: str) -> int:
    """Return a stored time in ms since the epoch. Raises `CorruptBlob` if its year is not 1970 to 9999."""
    if not 0 <= wall_ms <= LAST_WALL_MS:
        raise CorruptBlob(key, "a time from 1970 to the year 9999", f"{wall_ms} ms")
    return wall_ms


def open_frame(magic: bytes, data: bytes, key: str) -> bytes:
    """Return the body of a frame; raises the errors of `unseal`."""
    return unseal(magic, FORMAT_VERSION, data, key)


def encode_diff(diff: StateDiff) -> bytes:
    """Encode one row of the log."""
    message = pb.StateDiff(
        seqno=diff.seqno,
        shard_id=diff.shard_id,
        applier_version=diff.applier_version,
        wall_ms=diff.wall_ms,
        hostname=diff.hostname,
    )
    for change in diff.changes:
        _change_to(message.changes.add(), change)
    if diff.latest_rollup is not None:
        _fill(message.latest_rollup, diff.latest_rollup)
    return seal_frame(DIFF_MAGIC, message.SerializeToString())


def decode_diff(data: bytes, key: str) -> StateDiff:
    """Decode one row of the log. Errors name it by `key`."""
    message = parse(pb.StateDiff(), open_frame(DIFF_MAGIC, data, key), key)
    return StateDiff(
        message.seqno,
        message.shard_id,
        intern(message.applier_version),
        check_moment(message.wall_ms, key),
        intern(message.hostname),
        _rollup_from(message.latest_rollup) if message.HasField("latest_rollup") else None,
        tuple(_change_from(change, key) for change in message.changes),
    )


def encode_state(state: ShardState) -> bytes:
    """Encode a state as a rollup."""
    message = pb.ShardState(
        shard_id=state.shard_id,
        applier_version=state.applier_version,
        seqno=state.seqno,
        wall_ms=state.wall_ms,
        hostname=state.hostname,
        write_mode=pb.WriteMode.Name(state.write_mode),
        finalized=state.finalized,
        gc_seqno=state.gc_seqno,
    )
    _frontier_to(message.since, state.since)
    for id_, schema in sorted(state.schemas.items()):
        _schema_to(message.schemas.add(), id_, schema)
    for batch in state.batches:
        _fill(message.batches.add(), batch)
    for name, _ in TABLES.values():
        for value in getattr(state, name).values():
            _fill(getattr(message, name).add(), value)
    return seal_frame(ROLLUP_MAGIC, message.SerializeToString())


def decode_state(data: bytes, key: str) -> ShardState:
    """Decode the state in a rollup. Errors name it by `key`."""
    message = parse(pb.ShardState(), open_frame(ROLLUP_MAGIC, data, key), key)
    tables: dict[str, Any] = {}
    for kind, (name, id_name) in TABLES.items():
        values = [_DECODERS[kind](value) for value in getattr(message, name)]
        tables[name] = {getattr(value, id_name): value for value in values} or NOTHING
    return ShardState(
        shard_id=message.shard_id,
        seqno=message.seqno,
        applier_version=intern(message.applier_version),
        wall_ms=check_moment(message.wall_ms, key),
        hostname=intern(message.hostname),
        write_mode=_write_mode(message.write_mode, key),
        finalized=message.finalized,
        since=_frontier_from(message.since),
        gc_seqno=message.gc_seqno,
        schemas=schema_table((schema.schema_id, _schema_from(schema, key)) for schema in message.schemas),
        batches=tuple(_batch_from(batch) for batch in message.batches),
        **tables,
    )


def _write_mode(value: int, key: str) -> WriteMode:
    try:
        return WriteMode(value)
    except ValueError:
        raise VersionTooNew(f"{key} has write mode {value}, which this Holdfast does not know") from None


def _fill(message: Any, value: Any) -> None:
    """Write a value into a message whose fields have the same names.

    It fills the message in place. Copying a separate message into it takes three times as long.
    """
    plain, frontiers = _FIELDS[type(value)]
    for name in plain:
        found = getattr(value, name)
        if found is not None:
            setattr(message, name, found)
    for name in frontiers:
        _frontier_to(getattr(message, name), getattr(value, name))
    match value:
        case Part():
            if value.least is not None:
                _limit_to(message.least, value.least)
            if value.greatest is not None:
                _limit_to(message.greatest, value.greatest)
        case Batch() | PendingBatch():
            for run in value.runs:
                parts = message.runs.add().parts
                for part in run:
                    _fill(parts.add(), part)
        case CompactionClaim():
            message.batch_ids.extend(value.batch_ids)


def _frontier_to(message: pb.Frontier, value: int) -> None:
    if value >= CLOSED:
        message.SetInParent()
    else:
        message.time = value


def _frontier_from(message: pb.Frontier) -> int:
    return message.time if message.HasField("time") else CLOSED


def _schema_to(message: pb.Schema, schema_id: int, schema: Schema) -> None:
    message.schema_id = schema_id
    for columns, given in ((message.key, schema.key), (message.value, schema.value)):
        for column in given:
            columns.add(name=column.name, type=column.type, nullable=column.nullable)
    if schema.codec is not None:
        message.codec.name, message.codec.version = schema.codec


def _schema_from(message: pb.Schema, key: str) -> Schema:
    key_columns, value_columns = (
        tuple((column.name, column.type, column.nullable) for column in columns)
        for columns in (message.key, message.value)
    )
    codec = (message.codec.name, message.codec.version) if message.HasField("codec") else None
    try:
        return _schema_of(key_columns, value_columns, codec)
    except BadInput as error:
        raise VersionTooNew(f"{key} has a schema that this Holdfast does not know: {error}") from None


_PlainColumn = tuple[str, str, bool]


@lru_cache(maxsize=64)
def _schema_of(
    key: tuple[_PlainColumn, ...], value: tuple[_PlainColumn, ...], codec: tuple[str, int] | None
) -> Schema:
    """Return a schema. Thousands of shards have the same one, and to check its columns takes long."""
    keys, values = (tuple(Column(*each) for each in columns) for columns in (key, value))
    return shared(Schema(keys, values, codec))


def _part_from(message: pb.Part) -> Part:
    kind = message.WhichOneof("data")
    return Part(
        message.rows,
        message.schema_id,
        # A field that is not zero is there. This is faster, and there can be many parts.
        message.lower.time or _frontier_from(message.lower),
        message.upper.time or _frontier_from(message.upper),
        message.size_bytes,
        message.crc32c,
        message.blob_key if kind == "blob_key" else None,
        message.inline if kind == "inline" else None,
        _limit_from(message.least) if message.HasField("least") else None,
        _limit_from(message.greatest) if message.HasField("greatest") else None,
        message.footer_bytes,
        message.footer_crc32c,
    )


def _limit_from(message: pb.Limit) -> Limit | None:
    kind = message.WhichOneof("value")
    return None if kind is None else getattr(message, kind)


def _limit_to(message: pb.Limit, value: Limit) -> None:
    match value:
        case int():
            message.number = value
        case str():
            message.text = value
        case bytes():
            message.binary = value


def _runs_from(runs: Any) -> tuple[tuple[Part, ...], ...]:
    return tuple(tuple(_part_from(part) for part in run.parts) for run in runs)


def _batch_from(message: pb.Batch) -> Batch:
    return Batch(
        message.id,
        _frontier_from(message.lower),
        _frontier_from(message.upper),
        _frontier_from(message.since),
        _runs_from(message.runs),
        message.level,
    )


def _rollup_from(message: pb.Rollup) -> Rollup:
    return Rollup(message.seqno, message.blob_key, message.size_bytes, message.crc32c)


# For each kind of value: the plain fields, and the fields that are frontiers.
_FIELDS: Final[dict[type, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    Part: (
        (
            "blob_key",
            "inline",
            "size_bytes",
            "crc32c",
            "rows",
            "schema_id",
            "footer_bytes",
            "footer_crc32c",
        ),
        ("lower", "upper"),
    ),
    Batch: (("id", "level"), ("lower", "upper", "since")),
    PendingBatch: (("id", "writer_id", "level"), ("lower", "upper")),
    LeasedReader: (("id", "seqno_hold", "heartbeats", "lease_ms", "purpose", "hostname"), ("since",)),
    CriticalReader: (("id", "opaque", "purpose"), ("since",)),
    Writer: (("id", "heartbeats", "lease_ms", "last_token", "purpose", "hostname"), ("last_upper",)),
    Rollup: (("seqno", "blob_key", "size_bytes", "crc32c"), ()),
    CompactionClaim: (("id", "writer_id"), ()),
    Garbage: (("blob_key", "seqno", "wall_ms"), ()),
}

_DECODERS: Final[dict[type, Callable[[Any], Any]]] = {
    LeasedReader: lambda m: LeasedReader(
        m.id, _frontier_from(m.since), m.seqno_hold, m.heartbeats, m.lease_ms, m.purpose, m.hostname
    ),
    CriticalReader: lambda m: CriticalReader(m.id, _frontier_from(m.since), m.purpose, m.opaque),
    Writer: lambda m: Writer(
        m.id,
        m.heartbeats,
        m.lease_ms,
        m.purpose,
        m.hostname,
        m.last_token,
        _frontier_from(m.last_upper),
    ),
    Rollup: _rollup_from,
    CompactionClaim: lambda m: CompactionClaim(m.id, m.writer_id, tuple(m.batch_ids)),
    Garbage: lambda m: Garbage(m.blob_key, m.seqno, m.wall_ms),
    PendingBatch: lambda m: PendingBatch(
        m.id, m.writer_id, _frontier_from(m.lower), _frontier_from(m.upper), _runs_from(m.runs), m.level
    ),
}

_PUT_FIELDS: Final[dict[type, str]] = {
    LeasedReader: "put_leased_reader",
    CriticalReader: "put_critical_reader",
    Writer: "put_writer",
    Rollup: "put_rollup",
    CompactionClaim: "put_claim",
    Garbage: "put_garbage",
    PendingBatch: "put_pending",
}
_DROP_FIELDS: Final[dict[type, str]] = {
    kind: name.replace("put_", "drop_") for kind, name in _PUT_FIELDS.items()
}
_KIND_OF: Final[dict[str, type]] = {
    name: kind for fields in (_PUT_FIELDS, _DROP_FIELDS) for kind, name in fields.items()
}


def _change_to(message: pb.Change, change: Change) -> None:
    match change:
        case PutEntry(value):
            _fill(getattr(message, _PUT_FIELDS[type(value)]), value)
        case AppendBatch(batch):
            _fill(message.append, batch)
        case ExtendUpper(upper):
            _frontier_to(message.extend_upper, upper)
        case SealPending(upper):
            _frontier_to(message.seal_pending, upper)
        case Drop(kind, id_):
            setattr(message, _DROP_FIELDS[kind], id_)
        case SetSince(since):
            _frontier_to(message.since, since)
        case ReplaceBatches(batch_ids, batch):
            replaced = message.replace_batches
            replaced.SetInParent()
            replaced.batch_ids.extend(batch_ids)
            if batch is not None:
                _fill(replaced.batch, batch)
        case SetGcSeqno(seqno):
            message.gc_seqno = seqno
        case Create(write_mode):
            message.MergeFrom(pb.Change(create=pb.WriteMode.Name(write_mode)))
        case PutSchema(schema_id, schema):
            _schema_to(message.put_schema, schema_id, schema)
        case Finalize():
            message.finalize = True
        case _:
            assert_never(change)


def _change_from(message: pb.Change, key: str) -> Change:
    name = message.WhichOneof("change")
    match name:
        case "append":
            return AppendBatch(_batch_from(message.append))
        case "extend_upper":
            return ExtendUpper(_frontier_from(message.extend_upper))
        case "seal_pending":
            return SealPending(_frontier_from(message.seal_pending))
        case "since":
            return SetSince(_frontier_from(message.since))
        case "replace_batches":
            replaced = message.replace_batches
            batch = _batch_from(replaced.batch) if replaced.HasField("batch") else None
            return ReplaceBatches(tuple(replaced.batch_ids), batch)
        case "gc_seqno":
            return SetGcSeqno(message.gc_seqno)
        case "create":
            return Create(_write_mode(message.create, key))
        case "put_schema":
            return PutSchema(message.put_schema.schema_id, _schema_from(message.put_schema, key))
        case "finalize":
            return Finalize()
        case None:
            raise VersionTooNew(f"{key} has a kind of change that this Holdfast does not know")
    kind = _KIND_OF[name]
    value = getattr(message, name)
    return PutEntry(_DECODERS[kind](value)) if name.startswith("put_") else Drop(kind, value)
