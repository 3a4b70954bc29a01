from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RenditionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HOLDING: _ClassVar[RenditionState]
    HYDRATING: _ClassVar[RenditionState]
    RETIRED: _ClassVar[RenditionState]
    RENDITION_DROPPED: _ClassVar[RenditionState]
    ABORTED: _ClassVar[RenditionState]

class Recipe(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COPY: _ClassVar[Recipe]
    SOURCE: _ClassVar[Recipe]
    RESTORED: _ClassVar[Recipe]

class CollectionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLLECTION_STATE_UNSPECIFIED: _ClassVar[CollectionState]
    CREATING: _ClassVar[CollectionState]
    ACTIVE: _ClassVar[CollectionState]
    DROPPING: _ClassVar[CollectionState]
    DROPPED: _ClassVar[CollectionState]

class CommandKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMMAND_KIND_UNSPECIFIED: _ClassVar[CommandKind]
    CREATE_COLLECTION: _ClassVar[CommandKind]
    DROP_COLLECTION: _ClassVar[CommandKind]
    CREATE_RENDITION: _ClassVar[CommandKind]
    ABORT_RENDITION: _ClassVar[CommandKind]
    HAND_OVER: _ClassVar[CommandKind]
    DROP_RENDITION: _ClassVar[CommandKind]
    EVOLVE_COLLECTION: _ClassVar[CommandKind]
    RESTORE_COLLECTION: _ClassVar[CommandKind]
    SUSPECT_RENDITION: _ClassVar[CommandKind]
    ACQUIRE: _ClassVar[CommandKind]
    RELEASE: _ClassVar[CommandKind]
    MAKE_DIFFERENCE: _ClassVar[CommandKind]
    COMMENT_COLUMNS: _ClassVar[CommandKind]
    RETAIN_COLLECTION: _ClassVar[CommandKind]
    RENAME_COLLECTION: _ClassVar[CommandKind]
    RENAME_COLUMN: _ClassVar[CommandKind]
    DROP_COLUMN: _ClassVar[CommandKind]

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    RUNNING: _ClassVar[JobState]
    DONE: _ClassVar[JobState]
    FAILED: _ClassVar[JobState]
HOLDING: RenditionState
HYDRATING: RenditionState
RETIRED: RenditionState
RENDITION_DROPPED: RenditionState
ABORTED: RenditionState
COPY: Recipe
SOURCE: Recipe
RESTORED: Recipe
COLLECTION_STATE_UNSPECIFIED: CollectionState
CREATING: CollectionState
ACTIVE: CollectionState
DROPPING: CollectionState
DROPPED: CollectionState
COMMAND_KIND_UNSPECIFIED: CommandKind
CREATE_COLLECTION: CommandKind
DROP_COLLECTION: CommandKind
CREATE_RENDITION: CommandKind
ABORT_RENDITION: CommandKind
HAND_OVER: CommandKind
DROP_RENDITION: CommandKind
EVOLVE_COLLECTION: CommandKind
RESTORE_COLLECTION: CommandKind
SUSPECT_RENDITION: CommandKind
ACQUIRE: CommandKind
RELEASE: CommandKind
MAKE_DIFFERENCE: CommandKind
COMMENT_COLUMNS: CommandKind
RETAIN_COLLECTION: CommandKind
RENAME_COLLECTION: CommandKind
RENAME_COLUMN: CommandKind
DROP_COLUMN: CommandKind
JOB_STATE_UNSPECIFIED: JobState
RUNNING: JobState
DONE: JobState
FAILED: JobState

class Column(_message.Message):
    __slots__ = ("name", "type", "nullable", "comment", "shown_as", "later_type", "hidden_from")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    SHOWN_AS_FIELD_NUMBER: _ClassVar[int]
    LATER_TYPE_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FROM_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    nullable: bool
    comment: str
    shown_as: str
    later_type: str
    hidden_from: int
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., nullable: _Optional[bool] = ..., comment: _Optional[str] = ..., shown_as: _Optional[str] = ..., later_type: _Optional[str] = ..., hidden_from: _Optional[int] = ...) -> None: ...

class Codec(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("key", "value", "codec")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    key: _containers.RepeatedCompositeFieldContainer[Column]
    value: _containers.RepeatedCompositeFieldContainer[Column]
    codec: Codec
    def __init__(self, key: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., value: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., codec: _Optional[_Union[Codec, _Mapping]] = ...) -> None: ...

class Rendition(_message.Message):
    __slots__ = ("id", "shards", "start", "hash_columns", "state", "recipe", "held_from", "held_to", "difference_shard", "suspect", "created_ms", "pipeline", "made_from")
    ID_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    HASH_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    HELD_FROM_FIELD_NUMBER: _ClassVar[int]
    HELD_TO_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_SHARD_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    MADE_FROM_FIELD_NUMBER: _ClassVar[int]
    id: str
    shards: _containers.RepeatedScalarFieldContainer[str]
    start: int
    hash_columns: _containers.RepeatedScalarFieldContainer[str]
    state: RenditionState
    recipe: Recipe
    held_from: int
    held_to: int
    difference_shard: str
    suspect: str
    created_ms: int
    pipeline: PipelineShards
    made_from: str
    def __init__(self, id: _Optional[str] = ..., shards: _Optional[_Iterable[str]] = ..., start: _Optional[int] = ..., hash_columns: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[RenditionState, str]] = ..., recipe: _Optional[_Union[Recipe, str]] = ..., held_from: _Optional[int] = ..., held_to: _Optional[int] = ..., difference_shard: _Optional[str] = ..., suspect: _Optional[str] = ..., created_ms: _Optional[int] = ..., pipeline: _Optional[_Union[PipelineShards, _Mapping]] = ..., made_from: _Optional[str] = ...) -> None: ...

class PipelineShards(_message.Message):
    __slots__ = ("remap", "errors")
    REMAP_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    remap: str
    errors: str
    def __init__(self, remap: _Optional[str] = ..., errors: _Optional[str] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("purpose", "writes", "who", "host", "acquired_ms")
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_MS_FIELD_NUMBER: _ClassVar[int]
    purpose: str
    writes: bool
    who: str
    host: str
    acquired_ms: int
    def __init__(self, purpose: _Optional[str] = ..., writes: _Optional[bool] = ..., who: _Optional[str] = ..., host: _Optional[str] = ..., acquired_ms: _Optional[int] = ...) -> None: ...

class Collection(_message.Message):
    __slots__ = ("name", "schema", "shards", "hash_columns", "metadata_shard", "renditions", "state", "created_ms", "dropped_ms", "holders", "retain_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    HASH_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    METADATA_SHARD_FIELD_NUMBER: _ClassVar[int]
    RENDITIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_MS_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    RETAIN_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema: Schema
    shards: int
    hash_columns: _containers.RepeatedScalarFieldContainer[str]
    metadata_shard: str
    renditions: _containers.RepeatedCompositeFieldContainer[Rendition]
    state: CollectionState
    created_ms: int
    dropped_ms: int
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    retain_ms: int
    def __init__(self, name: _Optional[str] = ..., schema: _Optional[_Union[Schema, _Mapping]] = ..., shards: _Optional[int] = ..., hash_columns: _Optional[_Iterable[str]] = ..., metadata_shard: _Optional[str] = ..., renditions: _Optional[_Iterable[_Union[Rendition, _Mapping]]] = ..., state: _Optional[_Union[CollectionState, str]] = ..., created_ms: _Optional[int] = ..., dropped_ms: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ..., retain_ms: _Optional[int] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("kind", "object_id", "who", "host", "token", "at_ms", "result_json")
    KIND_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    kind: CommandKind
    object_id: str
    who: str
    host: str
    token: str
    at_ms: int
    result_json: str
    def __init__(self, kind: _Optional[_Union[CommandKind, str]] = ..., object_id: _Optional[str] = ..., who: _Optional[str] = ..., host: _Optional[str] = ..., token: _Optional[str] = ..., at_ms: _Optional[int] = ..., result_json: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("object_id", "kind", "slot", "attempt", "state", "spec_json", "result_json", "error", "started_ms", "finished_ms", "by", "failures")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_MS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    kind: str
    slot: str
    attempt: int
    state: JobState
    spec_json: str
    result_json: str
    error: str
    started_ms: int
    finished_ms: int
    by: str
    failures: int
    def __init__(self, object_id: _Optional[str] = ..., kind: _Optional[str] = ..., slot: _Optional[str] = ..., attempt: _Optional[int] = ..., state: _Optional[_Union[JobState, str]] = ..., spec_json: _Optional[str] = ..., result_json: _Optional[str] = ..., error: _Optional[str] = ..., started_ms: _Optional[int] = ..., finished_ms: _Optional[int] = ..., by: _Optional[str] = ..., failures: _Optional[int] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("collection", "command", "job")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    collection: Collection
    command: Command
    job: Job
    def __init__(self, collection: _Optional[_Union[Collection, _Mapping]] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...
