"""The plan for the renditions of a StorageCollection: a pure function of the spec and the store's contents.

Invariants
- The spec describes the layout of the collection. If the active rendition has another layout, a new rendition
  is created. A rendition that is being filled is aborted if the spec no longer needs it.
- The operator aborts only renditions that it created (their ids show this), and hands over only to these by
  itself. It leaves renditions of others alone, unless `spec.handover.to` names one.
- A phase is shown before the next step is applied, so that `kubectl get -w` shows every phase.
- A suspect rendition never takes over.
- A restore comes before a change of the layout. The new layout is then filled with the restored rows.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from holdfast.collections import Recipe, RenditionState
from holdfast.collections.renditions import MAX_LAG_MS
from holdfast.ingest.made_from import made_from, other_recipe
from holdfast.ingest.spec import parse
from holdfast_operator.api.base import frontier
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.api.rendition import FillRecipe, HandoverPolicy, RenditionPhase
from holdfast_operator.collections.facts import CollectionFacts, RenditionFacts, SnapshotPlace
from holdfast_operator.collections.restore import SPEC_PREFIX, RestoreAsked, restore_asked
from holdfast_operator.collections.status import lag, phase_of, suspect_message, waits_for
from holdfast_operator.collections.steps import (
    AbortRendition,
    Advance,
    CreateRendition,
    HandOver,
    Hydrate,
    MakeDifference,
    Restore,
)
from holdfast_operator.engine.health import Health, Phase
from holdfast_operator.engine.steps import Decision, reconciling, stalled
from holdfast_operator.jobs import hydration
from holdfast_operator.jobs.hydration import HydrationsView

_AGAIN_S: Final = 5.0
"""How often to look whether the CollectionSnapshot to restore is Ready."""


@dataclass(frozen=True, kw_only=True)
class RenditionsView:
    """Everything that the plan for renditions depends on."""

    facts: CollectionFacts
    spec: StorageCollectionSpec
    restore_place: SnapshotPlace | None = None
    """Where the snapshot to restore is. None if there is nothing to restore."""
    hydrations: HydrationsView | None = None
    shown: dict[str, str] = field(default_factory=dict)
    """The phases in the current status, by id."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True)
class RenditionReport:
    """Nothing to do now. Has what to show, and when to reconcile again. No health means that all is done."""

    health: Health | None = None
    soon: bool = False
    """Whether a change is expected soon."""
    after: float | None = None
    """Seconds until the next step is due."""
    at_once: bool = False
    """Whether to continue as soon as this is shown."""


def plan(seen: RenditionsView) -> Decision | RenditionReport:
    """Returns the next step for the renditions, or what to show."""
    facts, active = seen.facts, seen.facts.active
    if seen.hydrations is not None:
        ended = hydration.unwanted(seen.hydrations, facts.renditions)
        if ended is not None:
            return ended
    if facts.due:
        rest = _at_work(facts) if active.upper < active.held_from else _plan_rest(seen).health
        return Advance(facts.collection_id, active.id, rest or _at_work(facts))
    if active.upper < active.held_from:
        # Only the pipeline can write the missing rows.
        return RenditionReport(_at_work(facts), soon=True)
    made, restore = _made_for(seen), restore_asked(facts, seen.spec)
    wanted = {each.id for each in (made, restore and restore.there) if each}
    for each in facts.renditions:
        if _is_ours(each) and each.state is RenditionState.HYDRATING and each.id not in wanted:
            return AbortRendition(facts.collection_id, each.id)
    if restore is not None and not restore.done:
        return _plan_restore(seen, restore)
    if (candidate := _named_by_hand(seen) or made) is not None:
        return _plan_candidate(seen, candidate)
    if not _has_layout(active, seen.spec):
        return _plan_creation(seen, active)
    report = _plan_rest(seen)
    if facts.lacks_difference and report.health is not None:
        return MakeDifference(facts.collection_id, active.id, report.health)
    return report


def is_long_over(facts: CollectionFacts, spec: StorageCollectionSpec) -> bool:
    """Returns whether a collection needs no more long steps."""
    if facts.dropped or not facts.renditions:
        return True
    restore = restore_asked(facts, spec)
    return not (facts.unfinished or facts.lacks_difference or (restore is not None and not restore.done))


def made_of(spec: StorageCollectionSpec) -> str:
    """Returns what the source makes rows from, for the record of the collection. Empty without a source.

    Raises `BadInput` if the source is invalid.
    """
    return "" if spec.source is None else made_from(parse(spec.source.block, "spec.source"))


def is_made_alike(rendition: RenditionFacts, spec: StorageCollectionSpec) -> bool:
    """Returns whether a rendition has the rows that the format and the envelope of `spec.source` make."""
    return not rendition.is_fed or not other_recipe(rendition.made_from, made_of(spec))


def filled_from_source(facts: CollectionFacts, spec: StorageCollectionSpec) -> str:
    """Returns the rendition to fill from the source because `spec.source` makes other rows, or empty."""
    if is_made_alike(facts.active, spec):
        return ""
    found = [each.id for each in facts.renditions if _is_for_source(each, spec)]
    return found[-1] if found else ""


def has_layout(facts: CollectionFacts, spec: StorageCollectionSpec) -> bool:
    """Returns whether the collection has the layout that the spec describes."""
    return _has_layout(facts.active, spec)


def _has_layout(rendition: RenditionFacts, spec: StorageCollectionSpec) -> bool:
    wanted = spec.rendition
    if wanted.hash_columns is not None and rendition.hash_columns != wanted.hash_columns:
        return False
    is_fed = rendition.recipe is Recipe.SOURCE or rendition.is_fed
    if rendition.shards != wanted.shards or not (is_fed or wanted.recipe != FillRecipe.SOURCE):
        return False
    return is_made_alike(rendition, spec)


def _is_for_source(rendition: RenditionFacts, spec: StorageCollectionSpec) -> bool:
    """Returns whether the operator created a rendition to fill it from `spec.source`."""
    filling = _is_ours(rendition) and rendition.state is RenditionState.HYDRATING
    return filling and bool(rendition.made_from) and is_made_alike(rendition, spec)


def _is_ours(rendition: RenditionFacts) -> bool:
    return rendition.id.startswith(SPEC_PREFIX)


def _made_for(seen: RenditionsView) -> RenditionFacts | None:
    """Returns the rendition that the operator created for the spec's layout and that is being filled."""
    facts, spec = seen.facts, seen.spec
    if _has_layout(facts.active, spec):
        return None
    columns = spec.rendition.hash_columns or facts.schema.key_names or facts.schema.names
    made = [
        each
        for each in facts.renditions
        if _is_ours(each)
        and each.state is RenditionState.HYDRATING
        and each.recipe is _recipe(facts.active, spec)
        and (_is_for_source(each, spec) or is_made_alike(facts.active, spec))
        and (each.shards, each.hash_columns) == (spec.rendition.shards, tuple(columns))
    ]
    return made[-1] if made else None


def _named_by_hand(seen: RenditionsView) -> RenditionFacts | None:
    """Returns the rendition of somebody else that is being filled and that the spec names."""
    handover = seen.spec.handover
    if handover.policy != HandoverPolicy.MANUAL:
        return None
    hydrating = (each for each in seen.facts.renditions if each.state is RenditionState.HYDRATING)
    return next((each for each in hydrating if each.id == handover.to and not _is_ours(each)), None)


def _recipe(active: RenditionFacts, spec: StorageCollectionSpec) -> Recipe:
    # Rows of another format can't be made from those that are there.
    is_copied = spec.rendition.recipe != FillRecipe.SOURCE and is_made_alike(active, spec)
    return Recipe.COPY if is_copied else Recipe.SOURCE


def _at_work(facts: CollectionFacts) -> Health:
    """Returns the health of a collection whose active rendition still lacks rows from before its handover."""
    text = f"rendition {facts.active.id} took over; readers use it after: "
    what = "; ".join(facts.due) or f"its pipeline writes the rows before {frontier(facts.active.held_from)}"
    return reconciling(Reason.HYDRATING_RENDITION, text + what)


def _plan_restore(seen: RenditionsView, restore: RestoreAsked) -> Decision | RenditionReport:
    facts, most = seen.facts, seen.spec.most_bytes
    text = f"restoring {restore.snapshot} into rendition {restore.rendition_id}"
    health = reconciling(Reason.RESTORING, text)
    place = seen.restore_place or SnapshotPlace(restore.snapshot)
    if place.problem:
        return RenditionReport(stalled(Reason.SNAPSHOT_NOT_READY, place.problem), after=_AGAIN_S)
    if not seen.shown:
        return RenditionReport(health, at_once=True)
    # The limit is checked only before the restore starts.
    room = None if most is None or restore.there is not None else most - facts.bytes
    return Restore(facts.collection_id, restore.rendition_id, health, snapshot=place.url, room=room)


def _plan_creation(seen: RenditionsView, active: RenditionFacts) -> Decision | RenditionReport:
    facts, wanted = seen.facts, seen.spec.rendition
    most = seen.spec.most_bytes
    # The size of a copy is known only afterwards, so the size of its source is used.
    if most is not None and facts.bytes + active.bytes > most:
        text = (
            f"can't create a rendition with {wanted.shards} shards: the collection has {facts.bytes} bytes, "
            f"and a copy of {active.bytes} more would exceed spec.maxBytes, {seen.spec.max_bytes}; raise the "
            "limit, or undo the change of spec.rendition"
        )
        return RenditionReport(stalled(Reason.OVER_MAX_BYTES, text))
    return CreateRendition(
        facts.collection_id,
        f"{SPEC_PREFIX}{len(facts.renditions) + 1}",
        wanted.shards,
        wanted.hash_columns or (),
        _recipe(active, seen.spec),
        "" if is_made_alike(active, seen.spec) else made_of(seen.spec),
    )


def _plan_candidate(seen: RenditionsView, candidate: RenditionFacts) -> Decision | RenditionReport:
    facts = seen.facts
    phase = phase_of(facts, candidate)
    named = f"rendition {candidate.id} ({candidate.shards} shards)"
    waits = waits_for(facts, candidate, seen.spec)
    if phase is RenditionPhase.SUSPECT:
        return RenditionReport(stalled(Reason.RENDITION_SUSPECT, suspect_message(candidate)))
    if phase is RenditionPhase.HYDRATING:
        text = f"{named} is being filled; it waits for {waits}"
        if candidate.recipe is Recipe.COPY and _is_large(facts, seen.spec):
            text += (
                f"; the operator's own process copies all {facts.active.rows} rows, which takes long; "
                "set spec.hydration.spark to fill the next one with a Spark job"
            )
        health = reconciling(Reason.HYDRATING_RENDITION, text)
    else:
        text = f"{named} holds everything that the collection holds, and waits for {waits}"
        health = reconciling(Reason.WAITING_FOR_HANDOVER, text)
    if seen.shown.get(candidate.id) != phase:
        return RenditionReport(health, at_once=True)
    fill = candidate.recipe is Recipe.COPY
    if phase is RenditionPhase.HYDRATING:
        step = hydration.plan(seen.hydrations, candidate, large=_is_large(facts, seen.spec))
        if step is not None:
            return step if isinstance(step, Decision) else RenditionReport(step.health, after=step.after)
        if fill:
            return Hydrate(facts.collection_id, candidate.id, health)
        return RenditionReport(health, soon=True)
    due, at = _handover_due(seen, candidate)
    if due:
        return HandOver(facts.collection_id, candidate.id, health, at=at)
    # Keep it close to the collection, so that it can still take over.
    if fill and lag(facts, candidate) > MAX_LAG_MS // 2:
        return Hydrate(facts.collection_id, candidate.id, health)
    return RenditionReport(health, after=_seconds_left(seen))


def _handover_due(seen: RenditionsView, candidate: RenditionFacts) -> tuple[bool, int | None]:
    """Returns whether the candidate may take over now, and the earliest time of the handover."""
    handover = seen.spec.handover
    match handover.policy:
        case HandoverPolicy.MANUAL:
            return handover.to == candidate.id, None
        case HandoverPolicy.AT if handover.at is not None:
            # Wait for the clock. An earlier handover would seal the collection up to that time.
            return seen.now >= handover.at, int(handover.at.timestamp() * 1000)
        case _:
            return True, None


def _seconds_left(seen: RenditionsView) -> float | None:
    """Returns the seconds until the time of a handover, or None if it doesn't wait for a time."""
    handover = seen.spec.handover
    if handover.policy != HandoverPolicy.AT or handover.at is None:
        return None
    return max((handover.at - seen.now).total_seconds(), 0.0)


def _plan_rest(seen: RenditionsView) -> RenditionReport:
    facts = seen.facts
    retired = [each for each in facts.renditions if each.state is RenditionState.RETIRED]
    if facts.active.suspect:
        return RenditionReport(Health(Phase.READY, Reason.RENDITION_SUSPECT, suspect_message(facts.active)))
    if not retired:
        return RenditionReport()
    told = "; ".join(
        f"rendition {each.id}, active before {frontier(each.held_to)}, waits for "
        f"{waits_for(facts, each, seen.spec)}"
        for each in retired
    )
    shards = facts.shards
    text = f"collection {facts.name} with {shards} shards; {told}"
    return RenditionReport(Health(Phase.READY, Reason.RETIRING_RENDITION, text))


def _is_large(facts: CollectionFacts, spec: StorageCollectionSpec) -> bool:
    return hydration.is_large(facts.active.size, spec.hydration)
