"""Between state values and their stored bytes: a framed protobuf message (docs/reference/FORMAT.md).

What is newer than this Holdfast is `VersionTooNew`; anything else that is not as written is `CorruptBlob`,
naming the key.
"""

from collections.abc import Callable
from typing import Any, Final, assert_never

from holdfast._pb import persist_pb2 as pb
from holdfast.errors import CLOSED, BadInput, VersionTooNew
from holdfast.persist.frame import parse, seal, unseal
from holdfast.persist.schema import Column, Schema
from holdfast.persist.state import (
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
    Put,
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
)

FORMAT_VERSION: Final = 1
DIFF_MAGIC: Final = b"HFd\n"
ROLLUP_MAGIC: Final = b"HFr\n"


def seal_frame(magic: bytes, body: bytes) -> bytes:
    """The frame around `body`."""
    return seal(magic, FORMAT_VERSION, body)


def open_frame(magic: bytes, data: bytes, key: str) -> bytes:
    """The body of a frame; raises as `unseal` does."""
    return unseal(magic, FORMAT_VERSION, data, key)


def encode_diff(diff: StateDiff) -> bytes:
    """The bytes of one row of the log."""
    message = pb.StateDiff(
        seqno=diff.seqno,
        shard_id=diff.shard_id,
        applier_version=diff.applier_version,
        wall_ms=diff.wall_ms,
        hostname=diff.hostname,
        changes=[_change_to(change) for change in diff.changes],
    )
    if diff.latest_rollup is not None:
        message.latest_rollup.CopyFrom(_ENCODERS[Rollup](diff.latest_rollup))
    return seal_frame(DIFF_MAGIC, message.SerializeToString())


def decode_diff(data: bytes, key: str) -> StateDiff:
    """The diff of one row of the log; `key` names it in errors."""
    message = parse(pb.StateDiff(), open_frame(DIFF_MAGIC, data, key), key)
    return StateDiff(
        message.seqno,
        message.shard_id,
        message.applier_version,
        message.wall_ms,
        message.hostname,
        _rollup_from(message.latest_rollup) if message.HasField("latest_rollup") else None,
        tuple(_change_from(change, key) for change in message.changes),
    )


def encode_state(state: ShardState) -> bytes:
    """The bytes of a rollup."""
    message = pb.ShardState(
        shard_id=state.shard_id,
        applier_version=state.applier_version,
        seqno=state.seqno,
        wall_ms=state.wall_ms,
        hostname=state.hostname,
        write_mode=pb.WriteMode.Name(state.write_mode),
        finalized=state.finalized,
        since=_frontier_to(state.since),
        schemas=[_schema_to(id_, schema) for id_, schema in sorted(state.schemas.items())],
        batches=[_batch_to(batch) for batch in state.batches],
        gc_seqno=state.gc_seqno,
    )
    for kind, (name, _) in TABLES.items():
        getattr(message, name).extend(_ENCODERS[kind](value) for value in getattr(state, name).values())
    return seal_frame(ROLLUP_MAGIC, message.SerializeToString())


def decode_state(data: bytes, key: str) -> ShardState:
    """The state in a rollup; `key` names it in errors."""
    message = parse(pb.ShardState(), open_frame(ROLLUP_MAGIC, data, key), key)
    tables: dict[str, Any] = {}
    for kind, (name, id_name) in TABLES.items():
        values = [_DECODERS[kind](value) for value in getattr(message, name)]
        tables[name] = {getattr(value, id_name): value for value in values}
    return ShardState(
        shard_id=message.shard_id,
        seqno=message.seqno,
        applier_version=message.applier_version,
        wall_ms=message.wall_ms,
        hostname=message.hostname,
        write_mode=_write_mode(message.write_mode, key),
        finalized=message.finalized,
        since=_frontier_from(message.since),
        gc_seqno=message.gc_seqno,
        schemas={schema.schema_id: _schema_from(schema, key) for schema in message.schemas},
        batches=tuple(_batch_from(batch) for batch in message.batches),
        **tables,
    )


def _write_mode(value: int, key: str) -> WriteMode:
    try:
        return WriteMode(value)
    except ValueError:
        raise VersionTooNew(f"{key} has a write mode that this Holdfast does not know: {value}") from None


def _frontier_to(value: int) -> pb.Frontier:
    return pb.Frontier() if value >= CLOSED else pb.Frontier(time=value)


def _frontier_from(message: pb.Frontier) -> int:
    return message.time if message.HasField("time") else CLOSED


def _schema_to(schema_id: int, schema: Schema) -> pb.Schema:
    def columns(of: tuple[Column, ...]) -> list[pb.Column]:
        return [pb.Column(name=c.name, type=c.type, nullable=c.nullable) for c in of]

    message = pb.Schema(schema_id=schema_id, key=columns(schema.key), value=columns(schema.value))
    if schema.codec is not None:
        message.codec.name, message.codec.version = schema.codec
    return message


def _schema_from(message: pb.Schema, key: str) -> Schema:
    try:
        return Schema(
            tuple(Column(c.name, c.type, c.nullable) for c in message.key),
            tuple(Column(c.name, c.type, c.nullable) for c in message.value),
            (message.codec.name, message.codec.version) if message.HasField("codec") else None,
        )
    except BadInput as error:
        raise VersionTooNew(f"{key} has a schema that this Holdfast does not know: {error}") from None


def _part_to(part: Part) -> pb.Part:
    return pb.Part(
        blob_key=part.blob_key,
        inline=part.inline,
        size_bytes=part.size_bytes,
        crc32c=part.crc32c,
        rows=part.rows,
        schema_id=part.schema_id,
        lower=_frontier_to(part.lower),
        upper=_frontier_to(part.upper),
    )


def _part_from(message: pb.Part) -> Part:
    return Part(
        rows=message.rows,
        schema_id=message.schema_id,
        lower=_frontier_from(message.lower),
        upper=_frontier_from(message.upper),
        size_bytes=message.size_bytes,
        crc32c=message.crc32c,
        blob_key=message.blob_key if message.HasField("blob_key") else None,
        inline=message.inline if message.HasField("inline") else None,
    )


def _runs_to(runs: tuple[tuple[Part, ...], ...]) -> list[pb.Run]:
    return [pb.Run(parts=[_part_to(part) for part in run]) for run in runs]


def _runs_from(runs: Any) -> tuple[tuple[Part, ...], ...]:
    return tuple(tuple(_part_from(part) for part in run.parts) for run in runs)


def _batch_to(batch: Batch) -> pb.Batch:
    return pb.Batch(
        id=batch.id,
        lower=_frontier_to(batch.lower),
        upper=_frontier_to(batch.upper),
        since=_frontier_to(batch.since),
        runs=_runs_to(batch.runs),
        level=batch.level,
    )


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


_ENCODERS: Final[dict[type, Callable[[Any], Any]]] = {
    LeasedReader: lambda v: pb.LeasedReader(
        id=v.id,
        since=_frontier_to(v.since),
        seqno_hold=v.seqno_hold,
        heartbeats=v.heartbeats,
        lease_ms=v.lease_ms,
        purpose=v.purpose,
        hostname=v.hostname,
    ),
    CriticalReader: lambda v: pb.CriticalReader(
        id=v.id, since=_frontier_to(v.since), opaque=v.opaque, purpose=v.purpose
    ),
    Writer: lambda v: pb.Writer(
        id=v.id,
        heartbeats=v.heartbeats,
        lease_ms=v.lease_ms,
        last_token=v.last_token,
        last_upper=_frontier_to(v.last_upper),
        purpose=v.purpose,
        hostname=v.hostname,
    ),
    Rollup: lambda v: pb.Rollup(seqno=v.seqno, blob_key=v.blob_key, size_bytes=v.size_bytes, crc32c=v.crc32c),
    CompactionClaim: lambda v: pb.CompactionClaim(id=v.id, writer_id=v.writer_id, batch_ids=v.batch_ids),
    Garbage: lambda v: pb.Garbage(blob_key=v.blob_key, seqno=v.seqno, wall_ms=v.wall_ms),
    PendingBatch: lambda v: pb.PendingBatch(
        id=v.id,
        writer_id=v.writer_id,
        lower=_frontier_to(v.lower),
        upper=_frontier_to(v.upper),
        runs=_runs_to(v.runs),
        level=v.level,
    ),
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


def _change_to(change: Change) -> pb.Change:
    match change:
        case Put(value):
            kind = type(value)
            return pb.Change(**{_PUT_FIELDS[kind]: _ENCODERS[kind](value)})
        case AppendBatch(batch):
            return pb.Change(append=_batch_to(batch))
        case ExtendUpper(upper):
            return pb.Change(extend_upper=_frontier_to(upper))
        case SealPending(upper):
            return pb.Change(seal_pending=_frontier_to(upper))
        case Drop(kind, id_):
            message = pb.Change()
            setattr(message, _DROP_FIELDS[kind], id_)
            return message
        case SetSince(since):
            return pb.Change(since=_frontier_to(since))
        case ReplaceBatches(batch_ids, batch):
            replacement = None if batch is None else _batch_to(batch)
            return pb.Change(replace_batches=pb.ReplaceBatches(batch_ids=batch_ids, batch=replacement))
        case SetGcSeqno(seqno):
            return pb.Change(gc_seqno=seqno)
        case Create(write_mode):
            return pb.Change(create=pb.WriteMode.Name(write_mode))
        case PutSchema(schema_id, schema):
            return pb.Change(put_schema=_schema_to(schema_id, schema))
        case Finalize():
            return pb.Change(finalize=True)
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
    return Put(_DECODERS[kind](value)) if name.startswith("put_") else Drop(kind, value)
