from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WriteMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPEND: _ClassVar[WriteMode]
    WRITE_SEAL: _ClassVar[WriteMode]
APPEND: WriteMode
WRITE_SEAL: WriteMode

class Frontier(_message.Message):
    __slots__ = ("time",)
    TIME_FIELD_NUMBER: _ClassVar[int]
    time: int
    def __init__(self, time: _Optional[int] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "type", "nullable")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    nullable: bool
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., nullable: _Optional[bool] = ...) -> None: ...

class Codec(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("schema_id", "key", "value", "codec")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    schema_id: int
    key: _containers.RepeatedCompositeFieldContainer[Column]
    value: _containers.RepeatedCompositeFieldContainer[Column]
    codec: Codec
    def __init__(self, schema_id: _Optional[int] = ..., key: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., value: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., codec: _Optional[_Union[Codec, _Mapping]] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ("number", "text", "binary")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    number: int
    text: str
    binary: bytes
    def __init__(self, number: _Optional[int] = ..., text: _Optional[str] = ..., binary: _Optional[bytes] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("blob_key", "inline", "size_bytes", "crc32c", "rows", "schema_id", "lower", "upper", "least", "greatest", "footer_bytes", "footer_crc32c")
    BLOB_KEY_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    GREATEST_FIELD_NUMBER: _ClassVar[int]
    FOOTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOOTER_CRC32C_FIELD_NUMBER: _ClassVar[int]
    blob_key: str
    inline: bytes
    size_bytes: int
    crc32c: int
    rows: int
    schema_id: int
    lower: Frontier
    upper: Frontier
    least: Limit
    greatest: Limit
    footer_bytes: int
    footer_crc32c: int
    def __init__(self, blob_key: _Optional[str] = ..., inline: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., crc32c: _Optional[int] = ..., rows: _Optional[int] = ..., schema_id: _Optional[int] = ..., lower: _Optional[_Union[Frontier, _Mapping]] = ..., upper: _Optional[_Union[Frontier, _Mapping]] = ..., least: _Optional[_Union[Limit, _Mapping]] = ..., greatest: _Optional[_Union[Limit, _Mapping]] = ..., footer_bytes: _Optional[int] = ..., footer_crc32c: _Optional[int] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("id", "lower", "upper", "since", "runs", "level")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    id: int
    lower: Frontier
    upper: Frontier
    since: Frontier
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    level: int
    def __init__(self, id: _Optional[int] = ..., lower: _Optional[_Union[Frontier, _Mapping]] = ..., upper: _Optional[_Union[Frontier, _Mapping]] = ..., since: _Optional[_Union[Frontier, _Mapping]] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., level: _Optional[int] = ...) -> None: ...

class PendingBatch(_message.Message):
    __slots__ = ("id", "writer_id", "lower", "upper", "runs", "level")
    ID_FIELD_NUMBER: _ClassVar[int]
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    id: str
    writer_id: str
    lower: Frontier
    upper: Frontier
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    level: int
    def __init__(self, id: _Optional[str] = ..., writer_id: _Optional[str] = ..., lower: _Optional[_Union[Frontier, _Mapping]] = ..., upper: _Optional[_Union[Frontier, _Mapping]] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., level: _Optional[int] = ...) -> None: ...

class LeasedReader(_message.Message):
    __slots__ = ("id", "since", "seqno_hold", "heartbeats", "lease_ms", "purpose", "hostname")
    ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SEQNO_HOLD_FIELD_NUMBER: _ClassVar[int]
    HEARTBEATS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    id: str
    since: Frontier
    seqno_hold: int
    heartbeats: int
    lease_ms: int
    purpose: str
    hostname: str
    def __init__(self, id: _Optional[str] = ..., since: _Optional[_Union[Frontier, _Mapping]] = ..., seqno_hold: _Optional[int] = ..., heartbeats: _Optional[int] = ..., lease_ms: _Optional[int] = ..., purpose: _Optional[str] = ..., hostname: _Optional[str] = ...) -> None: ...

class CriticalReader(_message.Message):
    __slots__ = ("id", "since", "opaque", "purpose")
    ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    OPAQUE_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    id: str
    since: Frontier
    opaque: bytes
    purpose: str
    def __init__(self, id: _Optional[str] = ..., since: _Optional[_Union[Frontier, _Mapping]] = ..., opaque: _Optional[bytes] = ..., purpose: _Optional[str] = ...) -> None: ...

class Writer(_message.Message):
    __slots__ = ("id", "heartbeats", "lease_ms", "last_token", "last_upper", "purpose", "hostname")
    ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEATS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LAST_UPPER_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    id: str
    heartbeats: int
    lease_ms: int
    last_token: bytes
    last_upper: Frontier
    purpose: str
    hostname: str
    def __init__(self, id: _Optional[str] = ..., heartbeats: _Optional[int] = ..., lease_ms: _Optional[int] = ..., last_token: _Optional[bytes] = ..., last_upper: _Optional[_Union[Frontier, _Mapping]] = ..., purpose: _Optional[str] = ..., hostname: _Optional[str] = ...) -> None: ...

class Rollup(_message.Message):
    __slots__ = ("seqno", "blob_key", "size_bytes", "crc32c")
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    BLOB_KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    seqno: int
    blob_key: str
    size_bytes: int
    crc32c: int
    def __init__(self, seqno: _Optional[int] = ..., blob_key: _Optional[str] = ..., size_bytes: _Optional[int] = ..., crc32c: _Optional[int] = ...) -> None: ...

class CompactionClaim(_message.Message):
    __slots__ = ("id", "writer_id", "batch_ids")
    ID_FIELD_NUMBER: _ClassVar[int]
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_IDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    writer_id: str
    batch_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., writer_id: _Optional[str] = ..., batch_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Garbage(_message.Message):
    __slots__ = ("blob_key", "seqno", "wall_ms")
    BLOB_KEY_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    blob_key: str
    seqno: int
    wall_ms: int
    def __init__(self, blob_key: _Optional[str] = ..., seqno: _Optional[int] = ..., wall_ms: _Optional[int] = ...) -> None: ...

class ShardState(_message.Message):
    __slots__ = ("shard_id", "applier_version", "seqno", "wall_ms", "hostname", "write_mode", "finalized", "since", "schemas", "batches", "pending", "leased_readers", "critical_readers", "writers", "rollups", "claims", "garbage", "gc_seqno")
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    APPLIER_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    WRITE_MODE_FIELD_NUMBER: _ClassVar[int]
    FINALIZED_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    LEASED_READERS_FIELD_NUMBER: _ClassVar[int]
    CRITICAL_READERS_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    ROLLUPS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    GARBAGE_FIELD_NUMBER: _ClassVar[int]
    GC_SEQNO_FIELD_NUMBER: _ClassVar[int]
    shard_id: str
    applier_version: str
    seqno: int
    wall_ms: int
    hostname: str
    write_mode: WriteMode
    finalized: bool
    since: Frontier
    schemas: _containers.RepeatedCompositeFieldContainer[Schema]
    batches: _containers.RepeatedCompositeFieldContainer[Batch]
    pending: _containers.RepeatedCompositeFieldContainer[PendingBatch]
    leased_readers: _containers.RepeatedCompositeFieldContainer[LeasedReader]
    critical_readers: _containers.RepeatedCompositeFieldContainer[CriticalReader]
    writers: _containers.RepeatedCompositeFieldContainer[Writer]
    rollups: _containers.RepeatedCompositeFieldContainer[Rollup]
    claims: _containers.RepeatedCompositeFieldContainer[CompactionClaim]
    garbage: _containers.RepeatedCompositeFieldContainer[Garbage]
    gc_seqno: int
    def __init__(self, shard_id: _Optional[str] = ..., applier_version: _Optional[str] = ..., seqno: _Optional[int] = ..., wall_ms: _Optional[int] = ..., hostname: _Optional[str] = ..., write_mode: _Optional[_Union[WriteMode, str]] = ..., finalized: _Optional[bool] = ..., since: _Optional[_Union[Frontier, _Mapping]] = ..., schemas: _Optional[_Iterable[_Union[Schema, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ..., pending: _Optional[_Iterable[_Union[PendingBatch, _Mapping]]] = ..., leased_readers: _Optional[_Iterable[_Union[LeasedReader, _Mapping]]] = ..., critical_readers: _Optional[_Iterable[_Union[CriticalReader, _Mapping]]] = ..., writers: _Optional[_Iterable[_Union[Writer, _Mapping]]] = ..., rollups: _Optional[_Iterable[_Union[Rollup, _Mapping]]] = ..., claims: _Optional[_Iterable[_Union[CompactionClaim, _Mapping]]] = ..., garbage: _Optional[_Iterable[_Union[Garbage, _Mapping]]] = ..., gc_seqno: _Optional[int] = ...) -> None: ...

class ReplaceBatches(_message.Message):
    __slots__ = ("batch_ids", "batch")
    BATCH_IDS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch_ids: _containers.RepeatedScalarFieldContainer[int]
    batch: Batch
    def __init__(self, batch_ids: _Optional[_Iterable[int]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("create", "put_schema", "append", "extend_upper", "replace_batches", "since", "put_leased_reader", "drop_leased_reader", "put_critical_reader", "drop_critical_reader", "put_writer", "drop_writer", "put_rollup", "drop_rollup", "put_claim", "drop_claim", "put_garbage", "drop_garbage", "gc_seqno", "put_pending", "drop_pending", "finalize", "seal_pending")
    CREATE_FIELD_NUMBER: _ClassVar[int]
    PUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    EXTEND_UPPER_FIELD_NUMBER: _ClassVar[int]
    REPLACE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PUT_LEASED_READER_FIELD_NUMBER: _ClassVar[int]
    DROP_LEASED_READER_FIELD_NUMBER: _ClassVar[int]
    PUT_CRITICAL_READER_FIELD_NUMBER: _ClassVar[int]
    DROP_CRITICAL_READER_FIELD_NUMBER: _ClassVar[int]
    PUT_WRITER_FIELD_NUMBER: _ClassVar[int]
    DROP_WRITER_FIELD_NUMBER: _ClassVar[int]
    PUT_ROLLUP_FIELD_NUMBER: _ClassVar[int]
    DROP_ROLLUP_FIELD_NUMBER: _ClassVar[int]
    PUT_CLAIM_FIELD_NUMBER: _ClassVar[int]
    DROP_CLAIM_FIELD_NUMBER: _ClassVar[int]
    PUT_GARBAGE_FIELD_NUMBER: _ClassVar[int]
    DROP_GARBAGE_FIELD_NUMBER: _ClassVar[int]
    GC_SEQNO_FIELD_NUMBER: _ClassVar[int]
    PUT_PENDING_FIELD_NUMBER: _ClassVar[int]
    DROP_PENDING_FIELD_NUMBER: _ClassVar[int]
    FINALIZE_FIELD_NUMBER: _ClassVar[int]
    SEAL_PENDING_FIELD_NUMBER: _ClassVar[int]
    create: WriteMode
    put_schema: Schema
    append: Batch
    extend_upper: Frontier
    replace_batches: ReplaceBatches
    since: Frontier
    put_leased_reader: LeasedReader
    drop_leased_reader: str
    put_critical_reader: CriticalReader
    drop_critical_reader: str
    put_writer: Writer
    drop_writer: str
    put_rollup: Rollup
    drop_rollup: int
    put_claim: CompactionClaim
    drop_claim: str
    put_garbage: Garbage
    drop_garbage: str
    gc_seqno: int
    put_pending: PendingBatch
    drop_pending: str
    finalize: bool
    seal_pending: Frontier
    def __init__(self, create: _Optional[_Union[WriteMode, str]] = ..., put_schema: _Optional[_Union[Schema, _Mapping]] = ..., append: _Optional[_Union[Batch, _Mapping]] = ..., extend_upper: _Optional[_Union[Frontier, _Mapping]] = ..., replace_batches: _Optional[_Union[ReplaceBatches, _Mapping]] = ..., since: _Optional[_Union[Frontier, _Mapping]] = ..., put_leased_reader: _Optional[_Union[LeasedReader, _Mapping]] = ..., drop_leased_reader: _Optional[str] = ..., put_critical_reader: _Optional[_Union[CriticalReader, _Mapping]] = ..., drop_critical_reader: _Optional[str] = ..., put_writer: _Optional[_Union[Writer, _Mapping]] = ..., drop_writer: _Optional[str] = ..., put_rollup: _Optional[_Union[Rollup, _Mapping]] = ..., drop_rollup: _Optional[int] = ..., put_claim: _Optional[_Union[CompactionClaim, _Mapping]] = ..., drop_claim: _Optional[str] = ..., put_garbage: _Optional[_Union[Garbage, _Mapping]] = ..., drop_garbage: _Optional[str] = ..., gc_seqno: _Optional[int] = ..., put_pending: _Optional[_Union[PendingBatch, _Mapping]] = ..., drop_pending: _Optional[str] = ..., finalize: _Optional[bool] = ..., seal_pending: _Optional[_Union[Frontier, _Mapping]] = ...) -> None: ...

class StateDiff(_message.Message):
    __slots__ = ("seqno", "shard_id", "applier_version", "wall_ms", "hostname", "latest_rollup", "changes")
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    APPLIER_VERSION_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    LATEST_ROLLUP_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    seqno: int
    shard_id: str
    applier_version: str
    wall_ms: int
    hostname: str
    latest_rollup: Rollup
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    def __init__(self, seqno: _Optional[int] = ..., shard_id: _Optional[str] = ..., applier_version: _Optional[str] = ..., wall_ms: _Optional[int] = ..., hostname: _Optional[str] = ..., latest_rollup: _Optional[_Union[Rollup, _Mapping]] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ...) -> None: ...

class ExclusiveLock(_message.Message):
    __slots__ = ("reentrance_id", "purpose", "hostname", "wall_ms", "token", "released", "seqno")
    REENTRANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    reentrance_id: str
    purpose: str
    hostname: str
    wall_ms: int
    token: bytes
    released: bool
    seqno: int
    def __init__(self, reentrance_id: _Optional[str] = ..., purpose: _Optional[str] = ..., hostname: _Optional[str] = ..., wall_ms: _Optional[int] = ..., token: _Optional[bytes] = ..., released: _Optional[bool] = ..., seqno: _Optional[int] = ...) -> None: ...

class KeptAppends(_message.Message):
    __slots__ = ("seqnos", "lowers", "uppers", "wall_ms", "purposes", "hostnames", "texts")
    SEQNOS_FIELD_NUMBER: _ClassVar[int]
    LOWERS_FIELD_NUMBER: _ClassVar[int]
    UPPERS_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    PURPOSES_FIELD_NUMBER: _ClassVar[int]
    HOSTNAMES_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    seqnos: _containers.RepeatedScalarFieldContainer[int]
    lowers: _containers.RepeatedScalarFieldContainer[int]
    uppers: _containers.RepeatedScalarFieldContainer[int]
    wall_ms: _containers.RepeatedScalarFieldContainer[int]
    purposes: _containers.RepeatedScalarFieldContainer[int]
    hostnames: _containers.RepeatedScalarFieldContainer[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, seqnos: _Optional[_Iterable[int]] = ..., lowers: _Optional[_Iterable[int]] = ..., uppers: _Optional[_Iterable[int]] = ..., wall_ms: _Optional[_Iterable[int]] = ..., purposes: _Optional[_Iterable[int]] = ..., hostnames: _Optional[_Iterable[int]] = ..., texts: _Optional[_Iterable[str]] = ...) -> None: ...
