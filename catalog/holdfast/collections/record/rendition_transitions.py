"""What commands do to the renditions of a collection: pure functions, without I/O or a clock.

- At each time exactly one rendition is current. The intervals of the renditions follow each other without a
  gap.
- A handover is one commit, recorded here and in the metadata shard, so there is no half-done one. The
  remaining work, copying the last updates of the old rendition, follows from the shards.
- A command on a rendition that isn't recorded raises `BadInput`.
- The id of a rendition is never used again. A rendition that was current is dropped only after it retired.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from holdfast.collections.record.jobs import Json
from holdfast.collections.record.spec import CollectionInfo, CollectionState, RenditionInfo, RenditionState
from holdfast.collections.record.state import (
    CommandKind,
    ControllerState,
    Outcome,
    RecordCommit,
    RecordNoOp,
    RecordReject,
)
from holdfast.collections.record.transitions import Origin, expired, seen_before
from holdfast.errors import CLOSED, BadInput, UpperMismatch

_ENDED_KEPT: Final = 8
"""The number of ended renditions whose shards are still recorded: those that ended last."""


def next_rendition_id(info: CollectionInfo) -> str:
    """The id of a rendition that is created without one: "r2", "r3", ..."""
    taken = {each.id for each in info.renditions}
    return next(id_ for number in count(len(taken) + 1) if (id_ := f"r{number}") not in taken)


def create_rendition(
    state: ControllerState,
    collection_id: str,
    rendition: RenditionInfo,
    origin: Origin,
    kind: CommandKind = CommandKind.CREATE_RENDITION,
    more: Json | None = None,
) -> Outcome[RenditionInfo]:
    """Record a rendition that is to be filled. Its shards and their holds are created in the same commit.

    `more` is added to the result in the history.

    If there is a rendition with this id that is alike and not dropped, it is returned unchanged. So is one
    that the same command created before.
    """
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    asked: dict[str, object] = {"shards": len(rendition.shards), "recipe": rendition.recipe.name}
    if rendition.id:
        asked["rendition"] = rendition.id
    seen = seen_before(state, origin, kind, collection_id, **asked)
    if isinstance(seen, RecordReject):
        return seen
    if seen is not None:
        return RecordNoOp(info.rendition(str(state.commands[origin.command_id].result["rendition"])))
    if rendition.is_fed and not info.names.is_plain:
        return RecordReject(
            BadInput(
                f"collection {info.name} has renamed or dropped columns, so a source can't feed it: it fills"
                " columns by their first names",
                hint="let the source feed a new collection",
            )
        )
    rendition = replace(rendition, id=rendition.id or next_rendition_id(info))
    known = info.find(rendition.id)
    if known is not None:
        if not known.dropped and _form(known) == _form(rendition):
            return RecordNoOp(known)
        return RecordReject(
            BadInput(
                f"collection {info.name} has or had another rendition {rendition.id}",
                hint="choose another id: ids are never reused",
            )
        )
    made = replace(
        rendition,
        state=RenditionState.HYDRATING,
        held_from=CLOSED,
        held_to=CLOSED,
        created_ms=origin.at_ms,
    )
    told = _told(made, shards=len(made.shards), recipe=made.recipe.name, **(more or {}))
    command = origin.record(kind, info.collection_id, told)
    changed = info.with_renditions(made)
    return RecordCommit(made, (changed, command), expired(state, origin.at_ms))


def abort_rendition(
    state: ControllerState, collection_id: str, rendition_id: str, origin: Origin
) -> Outcome[CollectionInfo]:
    """Give up a rendition that is being filled. Its shards are finalized in the same commit."""
    kind = CommandKind.ABORT_RENDITION
    if (seen := seen_before(state, origin, kind, collection_id, rendition=rendition_id)) is not None:
        return seen
    info = state.find(collection_id)
    known = info.known(rendition_id)
    if known.dropped:
        return RecordNoOp(info)
    if known.state is not RenditionState.HYDRATING:
        return RecordReject(
            BadInput(
                f"rendition {rendition_id} of collection {info.name} is {known.state.name}, not HYDRATING",
                hint="hand the collection over to another rendition; then it retires",
            )
        )
    return _changed(state, info, _gone(info, known, RenditionState.ABORTED), kind, origin)


def begin_rendition(
    state: ControllerState, collection_id: str, rendition_id: str, start: int
) -> Outcome[bool]:
    """Record that a rendition of recipe SOURCE has contents from `start` on, with its first append.

    The result is whether it begins now. False if it began before, at this time or another, or if it is not
    being filled.
    """
    info = state.find(collection_id)
    known = info.known(rendition_id)
    if known.start or known.state is not RenditionState.HYDRATING:
        # Another process began or aborted it, and the caller has not seen that yet.
        return RecordNoOp(False)
    changed = info.with_renditions(replace(known, start=start))
    return RecordCommit(True, (changed,))


def hand_over(
    state: ControllerState, collection_id: str, rendition_id: str, at: int, origin: Origin
) -> Outcome[CollectionInfo]:
    """Make this rendition current from the time `at` on. The metadata shard records it in the same commit.

    If it is already current, it stays unchanged, whatever `at` is. Rejects with `UpperMismatch` if another
    rendition took over at `at` or later.
    """
    kind = CommandKind.HAND_OVER
    if (seen := seen_before(state, origin, kind, collection_id, rendition=rendition_id)) is not None:
        return seen
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    known = info.known(rendition_id)
    if known.state is RenditionState.HOLDING:
        return RecordNoOp(info)
    if known.state is not RenditionState.HYDRATING:
        return RecordReject(
            BadInput(
                f"rendition {rendition_id} of collection {info.name} is {known.state.name}, not HYDRATING"
            )
        )
    if known.suspect:
        return RecordReject(
            BadInput(
                f"rendition {rendition_id} of collection {info.name} is suspect: {known.suspect}",
                hint="abort it and create another one",
            )
        )
    old = info.holding
    if at <= known.start:
        return RecordReject(
            BadInput(
                f"rendition {rendition_id} of collection {info.name} has contents from {known.start} on: it"
                f" can't take over at {at}",
                hint=f"hand over at {known.start + 1} or later",
            )
        )
    if at <= old.held_from:
        # Another process was faster: `at` was chosen from an older state.
        return RecordReject(UpperMismatch(at, old.held_from + 1, shard_id=f"collection {info.name}"))
    retired = replace(old, state=RenditionState.RETIRED, held_to=at)
    holding = replace(known, state=RenditionState.HOLDING, held_from=at)
    changed = info.with_renditions(retired, holding)
    told = _told(holding, at=at, old=old.id, shards=len(holding.shards))
    command = origin.record(kind, info.collection_id, told)
    return RecordCommit(changed, (changed, command), expired(state, origin.at_ms))


def drop_rendition(
    state: ControllerState, collection_id: str, rendition_id: str, origin: Origin
) -> Outcome[CollectionInfo]:
    """Record that a retired rendition is dropped. Its shards are finalized in the same commit."""
    kind = CommandKind.DROP_RENDITION
    if (seen := seen_before(state, origin, kind, collection_id, rendition=rendition_id)) is not None:
        return seen
    info = state.find(collection_id)
    known = info.known(rendition_id)
    if known.dropped:
        return RecordNoOp(info)
    if known.state is not RenditionState.RETIRED:
        return RecordReject(
            BadInput(f"rendition {rendition_id} of collection {info.name} is {known.state.name}, not RETIRED")
        )
    gone = _gone(info, known, RenditionState.DROPPED)
    if (follower := info.held_after(known)) is not None:
        # Nobody needs the difference from a dropped rendition.
        gone.append(replace(follower, difference_shard=""))
    return _changed(state, info, gone, kind, origin)


def record_difference(
    state: ControllerState, collection_id: str, rendition_id: str, shard: str, origin: Origin
) -> Outcome[CollectionInfo]:
    """Record the shard with the difference between a rendition and the one before it, in the same commit.

    If one is recorded already, that one stays.
    """
    kind = CommandKind.MAKE_DIFFERENCE
    if (seen := seen_before(state, origin, kind, collection_id, rendition=rendition_id)) is not None:
        return seen
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    known = info.known(rendition_id)
    if known.difference_shard or known.dropped or info.held_before(known) is None:
        return RecordNoOp(info)
    made = replace(known, difference_shard=shard)
    return _changed(state, info, [made], kind, origin)


def suspect_rendition(
    state: ControllerState, collection_id: str, rendition_id: str, why: str, origin: Origin
) -> Outcome[CollectionInfo]:
    """Mark a rendition as suspect: don't trust its contents. The first reason stays."""
    kind = CommandKind.SUSPECT_RENDITION
    if (seen := seen_before(state, origin, kind, collection_id, rendition=rendition_id)) is not None:
        return seen
    info = state.find(collection_id)
    known = info.known(rendition_id)
    if known.suspect or known.dropped:
        return RecordNoOp(info)
    return _changed(state, info, [replace(known, suspect=why)], kind, origin)


def refuse_unless_active(info: CollectionInfo) -> RecordReject | None:
    """The refusal for a collection that is not active."""
    if info.state is CollectionState.ACTIVE:
        return None
    return RecordReject(
        BadInput(
            f"collection {info.name} ({info.collection_id}) can't be changed:"
            f" it is {info.state.name}, not ACTIVE"
        )
    )


def _changed(
    state: ControllerState,
    info: CollectionInfo,
    renditions: Sequence[RenditionInfo],
    kind: CommandKind,
    origin: Origin,
) -> RecordCommit[CollectionInfo]:
    changed = info.with_renditions(*renditions)
    command = origin.record(kind, info.collection_id, _told(renditions[0]))
    return RecordCommit(changed, (changed, command), expired(state, origin.at_ms))


def _told(rendition: RenditionInfo, **more: object) -> dict[str, object]:
    """What the history shows of a rendition, in addition to who, when and which command."""
    return {"rendition": rendition.id, **({"why": rendition.suspect} if rendition.suspect else {}), **more}


def _form(rendition: RenditionInfo) -> tuple[object, ...]:
    """What two commands that create the same rendition agree on."""
    has_pipeline = rendition.pipeline is not None
    shards = len(rendition.shards)
    return (shards, rendition.hash_columns, rendition.recipe, has_pipeline, rendition.made_from)


def _gone(info: CollectionInfo, rendition: RenditionInfo, state: RenditionState) -> list[RenditionInfo]:
    """The rendition after its end. It keeps the ids of its shards, and one that ended long before loses them.

    The data of its shards is deleted later. If the collection is dropped before that, `erase_collection`
    needs the ids.
    """
    ended = [each for each in info.renditions if each.dropped and each.shards]
    forgotten = ended[: max(0, len(ended) + 1 - _ENDED_KEPT)]
    return [
        replace(rendition, state=state, difference_shard=""),
        *(replace(each, shards=(), pipeline=None) for each in forgotten),
    ]
