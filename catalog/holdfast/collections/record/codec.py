"""Rows of the controller shard: `(kind tag, id) -> protobuf`, as docs/reference/FORMAT.md describes them.

Encoding is byte-stable: equal records have equal bytes, so a retraction cancels the row that it retracts. If
a row would not encode to the bytes that were read, it contains something that this version doesn't know.
"""

import json
import uuid
from sys import intern
from typing import Final

from google.protobuf.message import DecodeError

from holdfast._pb import controller_pb2 as pb
from holdfast.collections.record.column_names import PLAIN_NAMES, ColumnNames, HiddenColumn
from holdfast.collections.record.comments import Comments
from holdfast.collections.record.jobs import JobRecord, JobState, Json
from holdfast.collections.record.spec import (
    CollectionInfo,
    CollectionState,
    Holder,
    PipelineShards,
    Recipe,
    RenditionInfo,
    RenditionState,
)
from holdfast.collections.record.state import CommandKind, CommandRecord, Record, record_id
from holdfast.errors import CLOSED, BadInput, CorruptBlob, VersionTooNew
from holdfast.persist.ids import shard_id
from holdfast.persist.rows.column_types import is_basic
from holdfast.persist.rows.schema import Column, Schema, shared

CODEC: Final = ("holdfast.controller", 1)
CONTROLLER_SCHEMA: Final = Schema(
    key=(Column("key", "binary", nullable=False),),
    value=(Column("value", "binary", nullable=False),),
    codec=CODEC,
)


def controller_shard_id(location_id: uuid.UUID) -> str:
    """The shard that holds the controller records of a location."""
    return shard_id(uuid.uuid5(location_id, "controller"))


# Kind tags are never reused.
_COLLECTION: Final = 1
_COMMAND: Final = 2
_JOB: Final = 3
_TAG_BYTES: Final = 2

_COLLECTION_STATES: Final = {
    CollectionState.CREATING: pb.CREATING,
    CollectionState.ACTIVE: pb.ACTIVE,
    CollectionState.DROPPING: pb.DROPPING,
    CollectionState.DROPPED: pb.DROPPED,
}
_COMMAND_KINDS: Final = {
    CommandKind.CREATE_COLLECTION: pb.CREATE_COLLECTION,
    CommandKind.DROP_COLLECTION: pb.DROP_COLLECTION,
    CommandKind.CREATE_RENDITION: pb.CREATE_RENDITION,
    CommandKind.ABORT_RENDITION: pb.ABORT_RENDITION,
    CommandKind.HAND_OVER: pb.HAND_OVER,
    CommandKind.DROP_RENDITION: pb.DROP_RENDITION,
    CommandKind.EVOLVE_COLLECTION: pb.EVOLVE_COLLECTION,
    CommandKind.RESTORE_COLLECTION: pb.RESTORE_COLLECTION,
    CommandKind.SUSPECT_RENDITION: pb.SUSPECT_RENDITION,
    CommandKind.ACQUIRE: pb.ACQUIRE,
    CommandKind.RELEASE: pb.RELEASE,
    CommandKind.MAKE_DIFFERENCE: pb.MAKE_DIFFERENCE,
    CommandKind.COMMENT_COLUMNS: pb.COMMENT_COLUMNS,
    CommandKind.RETAIN_COLLECTION: pb.RETAIN_COLLECTION,
    CommandKind.RENAME_COLLECTION: pb.RENAME_COLLECTION,
    CommandKind.RENAME_COLUMN: pb.RENAME_COLUMN,
    CommandKind.DROP_COLUMN: pb.DROP_COLUMN,
}
_RENDITION_STATES: Final = {
    RenditionState.HOLDING: pb.HOLDING,
    RenditionState.HYDRATING: pb.HYDRATING,
    RenditionState.RETIRED: pb.RETIRED,
    RenditionState.DROPPED: pb.RENDITION_DROPPED,
    RenditionState.ABORTED: pb.ABORTED,
}
_RECIPES: Final = {Recipe.COPY: pb.COPY, Recipe.SOURCE: pb.SOURCE, Recipe.RESTORED: pb.RESTORED}
_JOB_STATES: Final = {JobState.RUNNING: pb.RUNNING, JobState.DONE: pb.DONE, JobState.FAILED: pb.FAILED}


def encode_key(record: Record) -> bytes:
    """The key of a record: the tag of its kind (2 bytes, big-endian), then its id in UTF-8."""
    match record:
        case CollectionInfo():
            tag = _COLLECTION
        case CommandRecord():
            tag = _COMMAND
        case JobRecord():
            tag = _JOB
    return tag.to_bytes(_TAG_BYTES, "big") + record_id(record).encode()


def encode_value(record: Record) -> bytes:
    """The value of a record."""
    match record:
        case CollectionInfo():
            row = pb.Row(collection=_collection_to_proto(record))
        case CommandRecord():
            row = pb.Row(
                command=pb.Command(
                    kind=_COMMAND_KINDS[record.kind],
                    object_id=record.object_id,
                    who=record.who,
                    host=record.host,
                    token=record.token,
                    at_ms=record.at_ms,
                    result_json=_to_json(record.result),
                )
            )
        case JobRecord():
            row = pb.Row(
                job=pb.Job(
                    object_id=record.object_id,
                    kind=record.kind,
                    slot=record.slot,
                    attempt=record.attempt,
                    state=_JOB_STATES[record.state],
                    spec_json=_to_json(record.spec),
                    result_json=_to_json(record.result),
                    error=record.error,
                    started_ms=record.started_ms,
                    finished_ms=record.finished_ms,
                    by=record.by,
                    failures=record.failures,
                )
            )
    return row.SerializeToString(deterministic=True)


def decode(key: bytes, value: bytes) -> Record:
    """Decode a row.

    Raises `VersionTooNew` if the row contains something that this version doesn't know, and `CorruptBlob` if
    the bytes are not a row.
    """
    tag = int.from_bytes(key[:_TAG_BYTES], "big")
    try:
        id_ = key[_TAG_BYTES:].decode()
    except UnicodeDecodeError as error:
        raise CorruptBlob(f"controller row {key!r}", "an id in UTF-8", str(error)) from None
    try:
        row = pb.Row.FromString(value)
    except DecodeError as error:
        raise CorruptBlob(f"controller row {key!r}", "a protobuf message", str(error)) from None
    try:
        match (tag, row.WhichOneof("row")):
            case (1, "collection"):
                record: Record = _collection_from_proto(id_, row.collection)
            case (2, "command"):
                record = _command_from_proto(id_, row.command)
            case (3, "job"):
                record = _job_from_proto(id_, row.job)
            case _:
                raise VersionTooNew(f"controller row {key!r} is of an unknown kind")
    except (json.JSONDecodeError, RecursionError) as error:
        raise CorruptBlob(f"controller row {key!r}", "a JSON object", str(error)) from None
    except (BadInput, ValueError) as error:
        raise VersionTooNew(f"controller row {key!r}: {error}") from None
    if encode_value(record) != value:
        raise VersionTooNew(f"controller row {key!r} has fields that this version doesn't know")
    return record


def _to_json(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if value else ""


def _from_json(text: str) -> Json:
    """Parse an object. Raises `JSONDecodeError` and `RecursionError`."""
    value = json.loads(text) if text else {}
    if not isinstance(value, dict):
        raise json.JSONDecodeError("not an object", text, 0)
    return value


def _column_to_proto(
    stored: Column, shown_as: str, comment: str = "", hidden_from: int | None = None
) -> pb.Column:
    return pb.Column(
        name=stored.name,
        shown_as="" if shown_as == stored.name else shown_as,
        type=stored.type if is_basic(stored.type) else "binary",
        later_type="" if is_basic(stored.type) else stored.type,
        nullable=stored.nullable,
        comment=comment,
        hidden_from=hidden_from,
    )


def _schema_to_proto(info: CollectionInfo) -> pb.Schema:
    hidden = {each.column.name: each for each in info.names.hidden}
    columns = []
    stored = info.stored_schema
    for column in stored.columns:
        if (gone := hidden.get(column.name)) is not None:
            columns.append(_column_to_proto(column, gone.shown_as, hidden_from=gone.hidden_from))
        else:
            shown = info.names.shown(column.name)
            columns.append(_column_to_proto(column, shown, info.comments.get(shown, "")))
    message = pb.Schema(key=columns[: len(stored.key)], value=columns[len(stored.key) :])
    if stored.codec is not None:
        message.codec.name, message.codec.version = stored.codec
    return message


def _column_from_proto(message: pb.Column, name: str) -> Column:
    return Column(name, message.later_type or message.type, nullable=message.nullable)


def _schema_from_proto(message: pb.Schema) -> Schema:
    key, value = (
        tuple(
            _column_from_proto(column, column.shown_as or column.name)
            for column in columns
            if not column.HasField("hidden_from")
        )
        for columns in (message.key, message.value)
    )
    codec = (message.codec.name, message.codec.version) if message.HasField("codec") else None
    return shared(Schema(key=key, value=value, codec=codec))


def _comments_from_proto(message: pb.Schema) -> Comments:
    columns = (*message.key, *message.value)
    return {column.shown_as or column.name: column.comment for column in columns if column.comment}


def _names_from_proto(message: pb.Schema) -> ColumnNames:
    renamed, hidden = [], []
    for index, column in enumerate((*message.key, *message.value)):
        shown = column.shown_as or column.name
        if column.HasField("hidden_from"):
            stored = _column_from_proto(column, column.name)
            hidden.append(HiddenColumn(index, stored, shown, column.hidden_from))
        elif column.shown_as:
            renamed.append((column.name, shown))
    return ColumnNames(tuple(renamed), tuple(hidden)) if renamed or hidden else PLAIN_NAMES


def _collection_to_proto(info: CollectionInfo) -> pb.Collection:
    return pb.Collection(
        name=info.name,
        schema=_schema_to_proto(info),
        shards=info.shards,
        hash_columns=info.hash_columns,
        metadata_shard=info.metadata_shard,
        renditions=[_rendition_to_proto(rendition) for rendition in info.renditions],
        state=_COLLECTION_STATES[info.state],
        created_ms=info.created_ms,
        dropped_ms=info.dropped_ms,
        holders=[_holder_to_proto(holder) for holder in info.holders],
        retain_ms=info.retain_ms,
    )


def _holder_to_proto(holder: Holder) -> pb.Holder:
    return pb.Holder(
        purpose=holder.purpose,
        writes=holder.writes,
        who=holder.who,
        host=holder.host,
        acquired_ms=holder.acquired_ms,
    )


def _holder_from_proto(message: pb.Holder) -> Holder:
    return Holder(
        purpose=message.purpose,
        writes=message.writes,
        who=message.who,
        host=message.host,
        acquired_ms=message.acquired_ms,
    )


def _rendition_to_proto(rendition: RenditionInfo) -> pb.Rendition:
    return pb.Rendition(
        id=rendition.id,
        shards=rendition.shards,
        start=rendition.start,
        hash_columns=rendition.hash_columns,
        state=_RENDITION_STATES[rendition.state],
        recipe=_RECIPES[rendition.recipe],
        held_from=0 if rendition.held_from == CLOSED else rendition.held_from,
        held_to=0 if rendition.held_to == CLOSED else rendition.held_to,
        difference_shard=rendition.difference_shard,
        suspect=rendition.suspect,
        created_ms=rendition.created_ms,
        pipeline=_pipeline_to_proto(rendition.pipeline),
        made_from=rendition.made_from,
    )


def _pipeline_to_proto(pipeline: PipelineShards | None) -> pb.PipelineShards | None:
    return None if pipeline is None else pb.PipelineShards(remap=pipeline.remap, errors=pipeline.errors)


def _rendition_from_proto(message: pb.Rendition) -> RenditionInfo:
    state = RenditionState(message.state)
    return RenditionInfo(
        id=intern(message.id),
        shards=tuple(message.shards),
        start=message.start,
        hash_columns=tuple(map(intern, message.hash_columns)),
        state=state,
        recipe=Recipe(message.recipe),
        held_from=CLOSED if state.never_held else message.held_from,
        held_to=message.held_to or CLOSED,
        difference_shard=message.difference_shard,
        suspect=message.suspect,
        created_ms=message.created_ms,
        pipeline=PipelineShards(message.pipeline.remap, message.pipeline.errors)
        if message.HasField("pipeline")
        else None,
        made_from=message.made_from,
    )


def _collection_from_proto(id_: str, message: pb.Collection) -> CollectionInfo:
    return CollectionInfo(
        collection_id=id_,
        name=message.name,
        schema=_schema_from_proto(message.schema),
        shards=message.shards,
        hash_columns=tuple(map(intern, message.hash_columns)),
        metadata_shard=message.metadata_shard,
        renditions=tuple(_rendition_from_proto(rendition) for rendition in message.renditions),
        state=CollectionState(message.state),
        created_ms=message.created_ms,
        dropped_ms=message.dropped_ms,
        holders=tuple(_holder_from_proto(holder) for holder in message.holders),
        comments=_comments_from_proto(message.schema),
        names=_names_from_proto(message.schema),
        retain_ms=message.retain_ms if message.HasField("retain_ms") else None,
    )


# Thousands of commands have the same texts here, and thousands of collections have the same columns.
def _command_from_proto(id_: str, message: pb.Command) -> CommandRecord:
    return CommandRecord(
        command_id=id_,
        kind=CommandKind(message.kind),
        object_id=message.object_id,
        who=intern(message.who),
        host=intern(message.host),
        token=intern(message.token),
        at_ms=message.at_ms,
        result=_from_json(message.result_json),
    )


def _job_from_proto(id_: str, message: pb.Job) -> JobRecord:
    return JobRecord(
        job_id=id_,
        object_id=message.object_id,
        kind=message.kind,
        slot=message.slot,
        attempt=message.attempt,
        state=JobState(message.state),
        spec=_from_json(message.spec_json),
        result=_from_json(message.result_json),
        error=message.error,
        started_ms=message.started_ms,
        finished_ms=message.finished_ms,
        by=message.by,
        failures=message.failures,
    )
