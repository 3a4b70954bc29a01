"""What commands on a whole collection do to its record: pure functions, without I/O or a clock.

- A schema must follow the current one by the rules of persist. All shards of all renditions get it in the
  same commit.
- A durable capability has one holder for each purpose and kind, whichever process acts for it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from holdfast.collections.record.column_names import check_column, renamed_comments, renamed_schema
from holdfast.collections.record.comments import changed_comments, check_comments
from holdfast.collections.record.jobs import Json
from holdfast.collections.record.rendition_transitions import create_rendition, refuse_unless_active
from holdfast.collections.record.spec import CollectionInfo, Holder, RenditionInfo, RenditionState, check_fed
from holdfast.collections.record.state import (
    CommandKind,
    ControllerState,
    Outcome,
    RecordCommit,
    RecordNoOp,
    RecordReject,
)
from holdfast.collections.record.transitions import Origin, expired, seen_before
from holdfast.errors import BadInput, CodecMismatch, HandleExpired, UniquenessViolation
from holdfast.persist.rows.evolution import check_evolution
from holdfast.persist.rows.schema import Schema

_DISTINGUISH: Final = ("rows", "checksum", "remap", "errors")
"""What distinguishes two snapshots. The last two are the checksums of what a pipeline kept, if one fed it."""


def evolve_collection(
    state: ControllerState, collection_id: str, schema: Schema, origin: Origin
) -> Outcome[CollectionInfo]:
    """Give a collection a later schema. Its shards get it in the same commit."""
    kind = CommandKind.EVOLVE_COLLECTION
    if (seen := seen_before(state, origin, kind, collection_id, to=str(schema))) is not None:
        return seen
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    if info.schema == schema:
        return RecordNoOp(info)
    try:
        check_evolution(info.schema, schema, shard=f"collection {info.name}")
        if info.holding.is_fed:
            check_fed(info.name, schema)
    except (CodecMismatch, BadInput) as error:
        return RecordReject(error)
    evolved = replace(info, schema=schema, names=info.names.with_new(info.schema, schema))
    told = {"from": str(info.schema), "to": str(schema)}
    return _changed(state, evolved, kind, told, origin)


def comment_columns(
    state: ControllerState, collection_id: str, comments: Mapping[str, str | None], origin: Origin
) -> Outcome[CollectionInfo]:
    """Set or remove comments of columns. Columns that are not named keep theirs."""
    info = state.find(collection_id)
    try:
        asked = check_comments(comments, info.schema, f"collection {info.name}")
    except BadInput as error:
        return RecordReject(error)
    kind, told = CommandKind.COMMENT_COLUMNS, {"comments": asked}
    if (seen := seen_before(state, origin, kind, collection_id, **told)) is not None:
        return seen
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    changed = replace(info, comments=changed_comments(info.comments, asked))
    return RecordNoOp(info) if changed == info else _changed(state, changed, kind, told, origin)


def retain_collection(
    state: ControllerState, collection_id: str, retain_ms: int | None, origin: Origin
) -> Outcome[CollectionInfo]:
    """Set how much history a collection keeps."""
    kind, told = CommandKind.RETAIN_COLLECTION, {"retain_ms": retain_ms}
    if (seen := seen_before(state, origin, kind, collection_id, **told)) is not None:
        return seen
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    changed = replace(info, retain_ms=retain_ms)
    return RecordNoOp(info) if changed == info else _changed(state, changed, kind, told, origin)


def rename_collection(
    state: ControllerState, collection_id: str, name: str, origin: Origin
) -> Outcome[CollectionInfo]:
    """Give a collection another name, which no other live collection has."""
    kind = CommandKind.RENAME_COLLECTION
    if (seen := seen_before(state, origin, kind, collection_id, to=name)) is not None:
        return seen
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    if info.name == name:
        return RecordNoOp(info)
    if (owner := state.names.get(name)) is not None:
        return RecordReject(UniquenessViolation(f"the name '{name}' belongs to collection {owner}"))
    return _changed(state, replace(info, name=name), kind, {"from": info.name, "to": name}, origin)


def rename_column(
    state: ControllerState, collection_id: str, old: str, new: str, since: int, origin: Origin
) -> Outcome[CollectionInfo]:
    """Give a column another name. The shards keep its stored name. `since` is that of the collection."""
    kind, told = CommandKind.RENAME_COLUMN, {"from": old, "to": new}
    if (seen := seen_before(state, origin, kind, collection_id, **told)) is not None:
        return seen
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    where = f"collection {info.name}"
    try:
        refuse_fed(info, f"rename column {old!r}")
        schema = renamed_schema(info.schema, old, new, where)
        if old != new and (gone := info.names.dropped_as(new, since)) is not None:
            raise BadInput(
                f"{where}: column {new!r} was dropped at {gone.hidden_from}, and earlier times still have it",
                hint="choose another name",
            )
    except BadInput as error:
        return RecordReject(error)
    if old == new:
        return RecordNoOp(info)
    changed = replace(
        info,
        schema=schema,
        names=info.names.with_rename(old, new),
        comments=renamed_comments(info.comments, old, new),
    )
    return _changed(state, changed, kind, told, origin)


def drop_column(
    state: ControllerState, collection_id: str, name: str, time: int, origin: Origin
) -> Outcome[CollectionInfo]:
    """Hide a nullable column from a time on. The shards keep it."""
    kind = CommandKind.DROP_COLUMN
    if (seen := seen_before(state, origin, kind, collection_id, column=name)) is not None:
        return seen
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    try:
        refuse_fed(info, f"drop column {name!r}")
        check_drop(info, name)
    except BadInput as error:
        return RecordReject(error)
    value = tuple(each for each in info.schema.value if each.name != name)
    changed = replace(
        info,
        schema=replace(info.schema, value=value),
        names=info.names.with_drop(info.schema, name, time),
        comments={column: text for column, text in info.comments.items() if column != name},
    )
    return _changed(state, changed, kind, {"column": name, "time": time}, origin)


def check_drop(info: CollectionInfo, name: str) -> None:
    """Raise `BadInput` if a column can't be dropped."""
    where = f"collection {info.name}"
    check_column(info.schema, name, where)
    if info.schema.codec is not None:
        raise BadInput(f"{where}: columns of codec {info.schema.codec[0]} can't be dropped")
    if name in info.schema.key_names:
        raise BadInput(f"{where}: key column {name!r} can't be dropped", hint="write a new table without it")
    stored = info.names.stored(name)
    for rendition in info.live:
        if rendition.state in {RenditionState.HOLDING, RenditionState.HYDRATING} and (
            stored in rendition.hash_columns
        ):
            raise BadInput(
                f"{where}: column {name!r} can't be dropped: rendition {rendition.id} chooses the shard of a"
                " row by it",
                hint="first hand over to a rendition with other hash columns: 'holdfast collection handover"
                f" {info.name} --shards {len(rendition.shards)} --hash COLUMN'",
            )


def refuse_fed(info: CollectionInfo, what: str) -> None:
    """Raise `BadInput` if a source feeds a collection, or will: its pipeline fills columns by their names."""
    for rendition in info.live:
        if rendition.is_fed:
            raise BadInput(
                f"collection {info.name}: can't {what}: a source feeds rendition {rendition.id}, and fills"
                " columns by their names",
                hint="make a table of it first: create a copy without a pipeline, and hand over to it",
            )


def begin_restore(
    state: ControllerState,
    collection_id: str,
    rendition: RenditionInfo,
    snapshot: Json,
    origin: Origin,
    *,
    named: bool,
) -> Outcome[RenditionInfo]:
    """Record a rendition that is to be filled from a snapshot, or find the one that this command created.

    A new command continues with a rendition that is being filled from the same snapshot, unless `named` is
    True and the id differs.
    """
    asked = {"rendition": rendition.id} if named else {}
    seen = seen_before(state, origin, CommandKind.RESTORE_COLLECTION, collection_id, **asked)
    if isinstance(seen, RecordReject):
        return seen
    info = state.find(collection_id)
    known = _restored(state, info, origin.command_id if seen is not None else None, snapshot)
    if known is None and seen is not None:
        return RecordReject(
            BadInput(
                f"command {origin.command_id} was used before:"
                f" it restored collection {info.name} from another snapshot",
                hint="give every command an id of its own",
            )
        )
    if known is not None and known.state is RenditionState.ABORTED:
        return RecordReject(
            BadInput(
                f"rendition {known.id} of collection {info.name}, which this snapshot fills, was aborted",
                hint="restore into a new rendition",
            )
        )
    if known is not None and (seen is not None or not named or known.id == rendition.id):
        return RecordNoOp(known)
    outcome = create_rendition(
        state, collection_id, rendition, origin, CommandKind.RESTORE_COLLECTION, snapshot
    )
    if isinstance(outcome, RecordNoOp):
        # It was created by another command, and it is unknown from what it is filled.
        return RecordReject(
            BadInput(
                f"another command has created rendition {rendition.id} of collection {info.name}",
                hint="choose another id for the rendition",
            )
        )
    return outcome


def _restored(
    state: ControllerState, info: CollectionInfo, command_id: str | None, snapshot: Json
) -> RenditionInfo | None:
    """The rendition created from this snapshot by this command, or (None) one being filled from it."""
    for command in state.commands.values():
        if command.kind is not CommandKind.RESTORE_COLLECTION or command.object_id != info.collection_id:
            continue
        same = all(command.result.get(name) == snapshot.get(name) for name in _DISTINGUISH)
        found = info.find(str(command.result.get("rendition")))
        if found is None or not same:
            continue
        if command.command_id == command_id:
            return found
        if command_id is None and found.state is RenditionState.HYDRATING:
            return found
    return None


def acquire(
    state: ControllerState, collection_id: str, purpose: str, origin: Origin, *, writes: bool
) -> Outcome[CollectionInfo]:
    """Record who has a capability. An existing one stays as it is. The effects take the hold.

    If the same command is repeated after the capability ended, it raises `HandleExpired` and takes none.
    """
    told = _told(purpose, writes=writes)
    seen = seen_before(state, origin, CommandKind.ACQUIRE, collection_id, **told)
    if isinstance(seen, RecordReject):
        return seen
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    if holder_of(info, purpose, writes=writes) is not None:
        return RecordNoOp(info)
    if seen is not None:
        return RecordReject(HandleExpired(f"the hold '{purpose}' on collection {info.name} was released"))
    holder = Holder(purpose, writes, origin.who, origin.host, origin.at_ms)
    changed = replace(info, holders=(*info.holders, holder))
    return _changed(state, changed, CommandKind.ACQUIRE, told, origin)


def release(
    state: ControllerState, collection_id: str, purpose: str, origin: Origin, *, writes: bool
) -> Outcome[CollectionInfo]:
    """End a capability, whichever process has it. Does nothing if there is none, or this command ended it."""
    told = _told(purpose, writes=writes)
    if (seen := seen_before(state, origin, CommandKind.RELEASE, collection_id, **told)) is not None:
        return seen
    info = state.find(collection_id)
    holder = holder_of(info, purpose, writes=writes)
    if holder is None:
        return RecordNoOp(info)
    changed = replace(info, holders=tuple(each for each in info.holders if each != holder))
    return _changed(state, changed, CommandKind.RELEASE, told, origin)


def holder_of(info: CollectionInfo, purpose: str, *, writes: bool) -> Holder | None:
    """The holder of the capability with this purpose and kind."""
    return next((each for each in info.holders if (each.purpose, each.writes) == (purpose, writes)), None)


def _told(purpose: str, *, writes: bool) -> Json:
    return {"purpose": purpose, "to": "write" if writes else "read"}


def _changed(
    state: ControllerState,
    changed: CollectionInfo,
    kind: CommandKind,
    told: Json,
    origin: Origin,
) -> RecordCommit[CollectionInfo]:
    command = origin.record(kind, changed.collection_id, told)
    return RecordCommit(changed, (changed, command), expired(state, origin.at_ms))
