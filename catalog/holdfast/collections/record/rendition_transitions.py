"""What the controller's commands do to the renditions of a collection: pure, without I/O and without a clock.

- At any time exactly one rendition holds: the times that renditions hold at follow each other without a gap.
- A handover is one step, recorded here and in the metadata shard: there is no half-done one. What it leaves
  to do, the copy of what the old one had last, follows from the shards.
- What is asked of a rendition that is not on record is `BadInput`, raised.
- An id of a rendition is used once for ever. One that has held is dropped only after it has retired.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from holdfast.collections.record.jobs import Json
from holdfast.collections.record.spec import CollectionInfo, CollectionState, RenditionInfo, RenditionState
from holdfast.collections.record.state import CommandKind, Commit, ControllerState, NoOp, Outcome, Reject
from holdfast.collections.record.transitions import Origin, expired, seen_before
from holdfast.errors import CLOSED, BadInput, UpperMismatch


def next_rendition_id(info: CollectionInfo) -> str:
    """The id of a rendition that is made without one: "r2", "r3", ..."""
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
    """Record a rendition that is to be filled. Its shards and their holds come into being in the same step.

    The history tells `more` beside it.

    One of this id that was made alike, and is not dropped, is the answer as it is; so is what the same
    command made before.
    """
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    asked: dict[str, object] = {"shards": len(rendition.shards), "recipe": rendition.recipe.name}
    if rendition.id:
        asked["rendition"] = rendition.id
    seen = seen_before(state, origin, kind, collection_id, **asked)
    if isinstance(seen, Reject):
        return seen
    if seen is not None:
        return NoOp(info.rendition(str(state.commands[origin.command_id].result["rendition"])))
    rendition = replace(rendition, id=rendition.id or next_rendition_id(info))
    known = info.find(rendition.id)
    if known is not None:
        alike = (len(known.shards), known.hash_columns, known.recipe)
        if not known.dropped and alike == (len(rendition.shards), rendition.hash_columns, rendition.recipe):
            return NoOp(known)
        return Reject(
            BadInput(
                f"collection {info.name} has or had another rendition {rendition.id}",
                hint="choose another id: ids are never used again",
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
    return Commit(made, (changed, command), expired(state, origin.at_ms))


def abort_rendition(
    state: ControllerState, collection_id: str, rendition_id: str, origin: Origin
) -> Outcome[CollectionInfo]:
    """Give up a rendition that is being filled. Its shards are finalized in the same step."""
    kind = CommandKind.ABORT_RENDITION
    if (seen := seen_before(state, origin, kind, collection_id, rendition=rendition_id)) is not None:
        return seen
    info = state.find(collection_id)
    known = info.known(rendition_id)
    if known.dropped:
        return NoOp(info)
    if known.state is not RenditionState.HYDRATING:
        return Reject(
            BadInput(
                f"rendition {rendition_id} of collection {info.name} is {known.state.name}, not HYDRATING",
                hint="hand the collection over to another rendition; then it retires",
            )
        )
    gone = _gone(known, RenditionState.ABORTED)
    return _changed(state, info, [gone], kind, origin)


def begin_rendition(
    state: ControllerState, collection_id: str, rendition_id: str, start: int
) -> Outcome[bool]:
    """A rendition that its source fills has contents from `start` on. Its first append is the same step.

    Answers whether it begins now: not where it began before, there or elsewhere, or is not being filled.
    """
    info = state.find(collection_id)
    known = info.known(rendition_id)
    if known.start or known.state is not RenditionState.HYDRATING:
        # Somebody else began, or gave it up: whoever asks has not seen it yet.
        return NoOp(False)
    changed = info.with_renditions(replace(known, start=start))
    return Commit(True, (changed,))


def hand_over(
    state: ControllerState, collection_id: str, rendition_id: str, at: int, origin: Origin
) -> Outcome[CollectionInfo]:
    """From the time `at` on this rendition is the collection. The metadata shard says so in the same step.

    One that has taken over already is the answer as it is, whatever `at` says. Rejects with `UpperMismatch`
    where another one took over at `at` or later.
    """
    kind = CommandKind.HAND_OVER
    if (seen := seen_before(state, origin, kind, collection_id, rendition=rendition_id)) is not None:
        return seen
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    known = info.known(rendition_id)
    if known.state is RenditionState.HOLDING:
        return NoOp(info)
    if known.state is not RenditionState.HYDRATING:
        return Reject(
            BadInput(
                f"rendition {rendition_id} of collection {info.name} is {known.state.name}: it held once"
            )
        )
    if known.suspect:
        return Reject(
            BadInput(
                f"rendition {rendition_id} of collection {info.name} is suspect: {known.suspect}",
                hint="abort it and make another one",
            )
        )
    old = info.holding
    if at <= known.start:
        return Reject(
            BadInput(
                f"rendition {rendition_id} of collection {info.name} has contents from {known.start} on: it"
                f" can't take over at {at}",
                hint=f"hand over at {known.start + 1} or later",
            )
        )
    if at <= old.held_from:
        # Somebody else was faster: `at` was chosen by what was before.
        return Reject(UpperMismatch(at, old.held_from + 1, shard_id=f"collection {info.name}"))
    retired = replace(old, state=RenditionState.RETIRED, held_to=at)
    holding = replace(known, state=RenditionState.HOLDING, held_from=at)
    changed = info.with_renditions(retired, holding)
    told = _told(holding, at=at, old=old.id, shards=len(holding.shards))
    command = origin.record(kind, info.collection_id, told)
    return Commit(changed, (changed, command), expired(state, origin.at_ms))


def drop_rendition(
    state: ControllerState, collection_id: str, rendition_id: str, origin: Origin
) -> Outcome[CollectionInfo]:
    """A retired rendition is gone. Its shards are finalized in the same step."""
    kind = CommandKind.DROP_RENDITION
    if (seen := seen_before(state, origin, kind, collection_id, rendition=rendition_id)) is not None:
        return seen
    info = state.find(collection_id)
    known = info.known(rendition_id)
    if known.dropped:
        return NoOp(info)
    if known.state is not RenditionState.RETIRED:
        return Reject(
            BadInput(f"rendition {rendition_id} of collection {info.name} is {known.state.name}, not RETIRED")
        )
    gone = [_gone(known, RenditionState.DROPPED)]
    if (follower := info.held_after(known)) is not None:
        # What differs from what is gone is of no use to anybody.
        gone.append(replace(follower, difference_shard=""))
    return _changed(state, info, gone, kind, origin)


def record_difference(
    state: ControllerState, collection_id: str, rendition_id: str, shard: str, origin: Origin
) -> Outcome[CollectionInfo]:
    """What differs between a rendition and the one before it is in this shard, made in the same step.

    Where one is on record already, that is the answer.
    """
    kind = CommandKind.MAKE_DIFFERENCE
    if (seen := seen_before(state, origin, kind, collection_id, rendition=rendition_id)) is not None:
        return seen
    info = state.find(collection_id)
    if (refused := refuse_unless_active(info)) is not None:
        return refused
    known = info.known(rendition_id)
    if known.difference_shard or known.dropped or info.held_before(known) is None:
        return NoOp(info)
    made = replace(known, difference_shard=shard)
    return _changed(state, info, [made], kind, origin)


def suspect_rendition(
    state: ControllerState, collection_id: str, rendition_id: str, why: str, origin: Origin
) -> Outcome[CollectionInfo]:
    """Mark a rendition as one whose contents are not to be trusted; the first reason stays."""
    kind = CommandKind.SUSPECT_RENDITION
    if (seen := seen_before(state, origin, kind, collection_id, rendition=rendition_id)) is not None:
        return seen
    info = state.find(collection_id)
    known = info.known(rendition_id)
    if known.suspect or known.dropped:
        return NoOp(info)
    return _changed(state, info, [replace(known, suspect=why)], kind, origin)


def refuse_unless_active(info: CollectionInfo) -> Reject | None:
    """The refusal of what is asked of a collection that is not there for use."""
    if info.state is CollectionState.ACTIVE:
        return None
    return Reject(BadInput(f"collection {info.name} ({info.collection_id}) is {info.state.name}"))


def _changed(
    state: ControllerState,
    info: CollectionInfo,
    renditions: Sequence[RenditionInfo],
    kind: CommandKind,
    origin: Origin,
) -> Commit[CollectionInfo]:
    changed = info.with_renditions(*renditions)
    command = origin.record(kind, info.collection_id, _told(renditions[0]))
    return Commit(changed, (changed, command), expired(state, origin.at_ms))


def _told(rendition: RenditionInfo, **more: object) -> dict[str, object]:
    """What the history says of a rendition beside who, when and which command."""
    return {"rendition": rendition.id, **({"why": rendition.suspect} if rendition.suspect else {}), **more}


def _gone(rendition: RenditionInfo, state: RenditionState) -> RenditionInfo:
    return replace(rendition, state=state, shards=(), difference_shard="")
