"""The status and the Events of a StorageCollection. Pure.

Invariants
- Phases depend only on the store. So a lost status is rebuilt, but its Events aren't repeated.
- There is an Event for each phase of a rendition since the phase that the status showed, even for phases that
  the status never showed.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, assert_never

from holdfast.collections import Recipe, RenditionState
from holdfast.collections.complete_times import AHEAD_MS, ahead_by
from holdfast.collections.renditions import MAX_LAG_MS
from holdfast.ingest.kept import SourceProgress
from holdfast.text import age, cut
from holdfast_operator.api.base import frontier, milliseconds
from holdfast_operator.api.collection import StorageCollectionSpec, StorageCollectionStatus
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.api.rendition import (
    HandoverPolicy,
    HandoverStatus,
    HoldStatus,
    HydrationJobStatus,
    RenditionPhase,
    RenditionStatus,
)
from holdfast_operator.api.source import CollectionSource, SourcePartition, SourceStatus
from holdfast_operator.api.spark import SparkJobStatus
from holdfast_operator.collections.facts import CollectionFacts, HoldFacts, RenditionFacts
from holdfast_operator.collections.restore import restore_status
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.health import WantedCondition
from holdfast_operator.engine.status_writer import timestamp
from holdfast_operator.jobs.ingestion import SourceView

_GONE_SHOWN: Final = 3
"""The number of newest renditions to show that are gone."""
_RETIRED_SHOWN: Final = 50
"""The number of oldest retired renditions to show. The oldest are dropped first."""
_HOLDS_TOLD: Final = 3
_HOLDS_SHOWN: Final = 50
"""The number of holds to show. Those at the oldest times keep the most history."""
_KEPT_SHOWN: Final = 10
_PARTITIONS_SHOWN: Final = 20
_LAG_S: Final = 300.0
"""A collection that is this far behind its source is Lagging, or later if the source is read less often."""
_MAX_NAME: Final = 255
"""Owners choose the purpose, name and host of a hold. The status shows at most this many characters of
each."""


def lag(facts: CollectionFacts, rendition: RenditionFacts) -> int:
    """Returns how far a rendition is behind the collection, in the collection's time (milliseconds)."""
    return max(facts.upper - rendition.upper, 0)


def phase_of(facts: CollectionFacts, rendition: RenditionFacts) -> RenditionPhase:
    """Returns the phase of a rendition."""
    match rendition.state:
        case RenditionState.DROPPED:
            return RenditionPhase.DROPPED
        case RenditionState.ABORTED:
            return RenditionPhase.ABORTED
        case RenditionState.HOLDING | RenditionState.HYDRATING if rendition.suspect:
            return RenditionPhase.SUSPECT
        case RenditionState.HOLDING:
            return RenditionPhase.ACTIVE
        case RenditionState.RETIRED:
            return RenditionPhase.RETIRING
        case RenditionState.HYDRATING if rendition.recipe is Recipe.RESTORED:
            # A restore replaces newer rows, so the rendition needn't catch up with them.
            return RenditionPhase.CAUGHT_UP if rendition.upper > 0 else RenditionPhase.HYDRATING
        case RenditionState.HYDRATING:
            begun = rendition.upper > 0 or facts.upper == 0
            caught_up = begun and lag(facts, rendition) <= MAX_LAG_MS
            return RenditionPhase.CAUGHT_UP if caught_up else RenditionPhase.HYDRATING
        case _:
            assert_never(rendition.state)


def waits_for(facts: CollectionFacts, rendition: RenditionFacts, spec: StorageCollectionSpec) -> str | None:
    """Returns what a rendition's next phase waits for, in one line, or None."""
    match phase_of(facts, rendition):
        case RenditionPhase.HYDRATING if rendition.recipe is Recipe.RESTORED:
            return "the rows of its snapshot"
        case RenditionPhase.CAUGHT_UP if rendition.recipe is Recipe.RESTORED:
            return "its handover"
        case RenditionPhase.HYDRATING:
            whose = "what its pipeline writes" if rendition.recipe is Recipe.SOURCE else "its contents"
            upper = frontier(rendition.upper)
            return f"{whose}: it is complete before {upper}, the collection before {frontier(facts.upper)}"
        case RenditionPhase.CAUGHT_UP:
            return _handover_waits_for(rendition, spec)
        case RenditionPhase.RETIRING:
            if rendition.upper < rendition.held_to:
                return f"its pipeline to write it up to {frontier(rendition.held_to)}"
            text = f"since to reach {frontier(rendition.held_to)}"
            if keeping := [hold for hold in facts.holds if rendition.id in hold.keeps]:
                return f"{text}; {_told(keeping)}"
            return f"{text}; it trails upper by {spec.retention.period} (spec.retention)"
        case RenditionPhase.SUSPECT:
            return f"somebody to look into it: {rendition.suspect}"
        case RenditionPhase.ACTIVE if rendition.upper < rendition.held_from:
            return f"what was written before {frontier(rendition.held_from)}"
        case _:
            return None


def _handover_waits_for(rendition: RenditionFacts, spec: StorageCollectionSpec) -> str:
    match spec.handover.policy:
        case HandoverPolicy.MANUAL if spec.handover.to != rendition.id:
            return f"spec.handover.to: {rendition.id}"
        case HandoverPolicy.AT if spec.handover.at is not None:
            return f"its handover at {timestamp(spec.handover.at)}"
        case _:
            return "its handover"


def _told(holds: Sequence[HoldFacts]) -> str:
    """Describes the holds in one line, oldest times first."""
    first = sorted(holds, key=lambda hold: hold.since)[:_HOLDS_TOLD]
    told = ", ".join(
        f"'{cut(hold.purpose, _MAX_NAME)}'"
        + (f" of {cut(hold.who, _MAX_NAME)}" if hold.who else "")
        + (f" on {cut(hold.host, _MAX_NAME)}" if hold.host else "")
        + f" holds {hold.since}"
        for hold in first
    )
    more = len(holds) - len(first)
    return f"{told} and {more} more" if more else told


def status_fields(
    facts: CollectionFacts,
    item_id: str | None,
    spec: StorageCollectionSpec,
    jobs: Mapping[str, HydrationJobStatus] = MappingProxyType({}),
) -> Mapping[str, Any]:
    """Returns the status of an existing collection. `jobs` are its Spark jobs, by id of the rendition."""
    shown = _renditions_shown(facts)
    total = sum(not each.gone for each in facts.renditions)
    hydrating = [each.id for each in facts.renditions if each.state is RenditionState.HYDRATING]
    status = StorageCollectionStatus(
        collection_id=facts.collection_id,
        item_id=item_id,
        since=frontier(facts.since),
        upper=frontier(facts.upper),
        active_rendition=facts.active_rendition,
        shards=facts.shards,
        next_rendition=hydrating[-1] if hydrating else None,
        renditions=tuple(_rendition(facts, each, spec, jobs.get(each.id)) for each in shown),
        renditions_total=total if total > sum(not each.gone for each in shown) else None,
        handover=_last_handover(facts),
        restore=restore_status(facts, spec),
        holds=_holds(facts) or None,
        holds_total=len(facts.holds) if len(facts.holds) > _HOLDS_SHOWN else None,
        bytes=facts.bytes,
    )
    return status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"conditions"})


def _renditions_shown(facts: CollectionFacts) -> list[RenditionFacts]:
    gone = [each for each in facts.renditions if each.gone]
    retired = [each for each in facts.renditions if each.state is RenditionState.RETIRED]
    hidden = {each.id for each in (*gone[:-_GONE_SHOWN], *retired[_RETIRED_SHOWN:])}
    return [each for each in facts.renditions if each.id not in hidden]


def _rendition(
    facts: CollectionFacts,
    rendition: RenditionFacts,
    spec: StorageCollectionSpec,
    job: HydrationJobStatus | None,
) -> RenditionStatus:
    phase = phase_of(facts, rendition)
    if rendition.gone:
        return RenditionStatus(id=rendition.id, phase=phase)
    return RenditionStatus(
        id=rendition.id,
        phase=phase,
        shards=rendition.shards,
        since=frontier(rendition.since),
        upper=frontier(rendition.upper),
        rows=rendition.rows,
        bytes=rendition.bytes,
        waits_for=waits_for(facts, rendition, spec),
        job=job,
    )


def _last_handover(facts: CollectionFacts) -> HandoverStatus | None:
    active = facts.active
    if active.held_from == 0:
        return None
    before = [each.id for each in facts.renditions if each.held_to == active.held_from]
    return HandoverStatus.model_validate(
        {"from": before[0] if before else None, "to": active.id, "at": frontier(active.held_from)}
    )


def _holds(facts: CollectionFacts) -> tuple[HoldStatus, ...]:
    oldest = sorted(facts.holds, key=lambda hold: (hold.since, hold.purpose, hold.host))
    return tuple(
        HoldStatus(
            purpose=cut(hold.purpose, _MAX_NAME),
            who=cut(hold.who, _MAX_NAME) or None,
            host=cut(hold.host, _MAX_NAME) or None,
            durable=hold.durable,
            since=frontier(hold.since),
            held_since=datetime.fromtimestamp(hold.taken_ms // 1000, UTC) if hold.taken_ms else None,
            renditions=hold.keeps[:_KEPT_SHOWN],
        )
        for hold in oldest[:_HOLDS_SHOWN]
    )


def shown_phases(status: Mapping[str, Any]) -> dict[str, str]:
    """Returns the phases of the renditions in a status, by id."""
    return {each["id"]: each["phase"] for each in status.get("renditions") or []}


_WAY: Final = (
    RenditionPhase.HYDRATING,
    RenditionPhase.CAUGHT_UP,
    RenditionPhase.ACTIVE,
    RenditionPhase.RETIRING,
    RenditionPhase.DROPPED,
)


def rendition_notes(shown: Mapping[str, str], facts: CollectionFacts) -> tuple[Note, ...]:
    """Returns Events for the changes of renditions since the `shown` status, or nothing without a status."""
    if not shown:
        return ()
    notes = []
    # A status omits some old renditions. One that is older than the last shown rendition is not new.
    last = max((at for at, each in enumerate(facts.renditions) if each.id in shown), default=-1)
    for at, each in enumerate(facts.renditions):
        phase = phase_of(facts, each)
        before = shown.get(each.id)
        is_new = at > last and not each.gone
        if before != phase and (before is not None or is_new):
            notes += _way(each, before, phase)
    return tuple(notes)


def _way(rendition: RenditionFacts, before: str | None, phase: RenditionPhase) -> list[Note]:
    created = [] if before else [Note(Reason.RENDITION_CREATED, f"rendition {_named(rendition)}")]
    if phase is RenditionPhase.ABORTED:
        return [*created, Note(Reason.RENDITION_ABORTED, f"rendition {rendition.id} was aborted")]
    if phase is RenditionPhase.SUSPECT:
        return created  # The condition shows it.
    first = _WAY.index(RenditionPhase(before)) + 1 if before in _WAY else _WAY.index(phase)
    passed = _WAY[0 if before is None else first : _WAY.index(phase) + 1]
    notes = []
    for each in passed:
        match each:
            case RenditionPhase.HYDRATING:
                notes += created
            case RenditionPhase.CAUGHT_UP:
                text = f"rendition {rendition.id} holds everything that the collection holds"
                notes.append(Note(Reason.HYDRATED, text))
            case RenditionPhase.ACTIVE:
                text = f"rendition {_named(rendition)} is active since {frontier(rendition.held_from)}"
                notes.append(Note(Reason.HANDED_OVER, text))
            case RenditionPhase.DROPPED:
                text = f"rendition {rendition.id} was dropped: its times can no longer be read"
                notes.append(Note(Reason.RENDITION_DROPPED, text))
            case _:
                pass
    return notes


def _named(rendition: RenditionFacts) -> str:
    shards = rendition.shards
    return f"{rendition.id} ({shards} shard{'' if shards == 1 else 's'})" if shards else rendition.id


def suspect_message(rendition: RenditionFacts) -> str:
    """Returns the problem with a suspect rendition, and what to do."""
    text = f"rendition {rendition.id} is suspect: {rendition.suspect}"
    match rendition.state:
        case RenditionState.HYDRATING:
            return (
                f"{text}; it never takes over; stop its writers and find out which one is right; to abort "
                "the rendition, undo the change of spec.rendition; then repeat the change to create another"
            )
        case RenditionState.HOLDING:
            return (
                f"{text}; stop its writers and find out which one is right; to copy its rows to a new "
                "rendition, change spec.rendition.shards; to replace them, set spec.restoreFrom"
            )
        case _:
            return f"{text}; it was active before {frontier(rendition.held_to)}"


def collection_conditions(
    facts: CollectionFacts, spec: StorageCollectionSpec, now: datetime
) -> tuple[WantedCondition, ...]:
    """Returns the conditions for the size and the time of a collection, and for suspect renditions."""
    conditions = []
    if (most := spec.most_bytes) is not None:
        text = f"all renditions hold {facts.bytes} bytes, spec.maxBytes is {spec.max_bytes}"
        if facts.bytes > most:
            text += ": raise it, or shorten spec.retention"
            conditions.append(
                WantedCondition(ConditionType.OVER_MAX_BYTES, "True", Reason.OVER_MAX_BYTES, text)
            )
        else:
            text = "the renditions hold no more than spec.maxBytes"
            conditions.append(
                WantedCondition(ConditionType.OVER_MAX_BYTES, "False", Reason.WITHIN_MAX_BYTES, text)
            )
    suspects = [each for each in facts.renditions if each.suspect and not each.gone]
    if suspects:
        text = "; ".join(suspect_message(each) for each in suspects)
        conditions.append(
            WantedCondition(ConditionType.RENDITION_SUSPECT, "True", Reason.RENDITION_SUSPECT, text)
        )
    ahead_ms = ahead_by(facts.upper, int(now.timestamp() * 1000))
    if ahead_ms > AHEAD_MS:
        text = (
            f"the collection is complete before {frontier(facts.upper)}, {age(ahead_ms / 1000)} ahead of the "
            "clock: a write gave a wrong time; reads at times up to the clock miss what is written now; to "
            "repair it, copy its rows to a new collection"
        )
        conditions.append(WantedCondition(ConditionType.TIME_AHEAD, "True", Reason.TIME_AHEAD, text))
    return tuple(conditions)


def source_fields(
    seen: SourceView | None, progress: SourceProgress | None, told: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Returns the status fields of a source. `told` are those of its jobs: `job` and `sourceSchedule`."""
    if seen is None:
        return {}
    status = SourceStatus(job=SparkJobStatus(**told["job"]) if "job" in told else None)
    if progress is not None:
        first = progress.positions[:_PARTITIONS_SHOWN]
        total, lags = len(progress.positions), progress.lags
        is_counted = seen.source.kafka is not None
        status = status.model_copy(
            update={
                "complete_before": frontier(progress.complete_before),
                "messages": progress.messages,
                "errors": progress.errors,
                "behind": progress.behind if is_counted else None,
                "partitions": tuple(
                    SourcePartition(partition=name, position=at, behind=lags.get(name)) for name, at in first
                ),
                "partitions_total": total if total > len(first) else None,
            }
        )
    shown = {"source": status.model_dump(mode="json", by_alias=True, exclude_none=True)}
    return {**{name: each for name, each in told.items() if name != "job"}, **shown}


def source_conditions(
    spec: StorageCollectionSpec, progress: SourceProgress | None, now: datetime
) -> tuple[WantedCondition, ...]:
    """Returns the conditions that tell how well a source is read."""
    if spec.source is None or progress is None:
        return ()
    conditions = []
    if progress.errors:
        text = (
            f"{progress.errors} bad record{' stands' if progress.errors == 1 else 's stand'}, "
            f"at most {spec.source.on_error.collect.limit} may: "
            "'holdfast collection errors' shows them; correct them in the source, or correct the columns"
        )
        conditions.append(WantedCondition(ConditionType.ERRORS_COLLECTED, "True", Reason.BAD_RECORDS, text))
    else:
        text = "no bad record stands"
        conditions.append(
            WantedCondition(ConditionType.ERRORS_COLLECTED, "False", Reason.NO_BAD_RECORDS, text)
        )
    if (most := most_lag_s(spec.source)) is not None:
        if lag_s(progress, now) > most:
            text = (
                f"the collection contains what the source had before {_moment(progress.complete_before)}, "
                f"more than {most:.0f} s ago: see the condition SourceStalled and the log of its job; if the "
                "job is too slow, raise spec.source.spark.executor"
            )
            conditions.append(WantedCondition(ConditionType.LAGGING, "True", Reason.SOURCE_BEHIND, text))
        elif progress.behind > spec.source.batch.max_rows:
            text = (
                f"the collection is {progress.behind} messages behind its source, more than one step reads: "
                "if that doesn't shrink, raise spec.source.batch.maxRows or spec.source.spark.executor"
            )
            conditions.append(WantedCondition(ConditionType.LAGGING, "True", Reason.SOURCE_BEHIND, text))
        else:
            text = f"the collection is at most {most:.0f} s behind its source"
            conditions.append(WantedCondition(ConditionType.LAGGING, "False", Reason.SOURCE_CURRENT, text))
    return tuple(conditions)


def lag_s(progress: SourceProgress, now: datetime) -> float:
    """Returns how many seconds ago the source had everything that the collection contains."""
    return max(0.0, now.timestamp() - progress.complete_before / 1000)


def most_lag_s(source: CollectionSource) -> float | None:
    """Returns the seconds behind its source after which a collection is Lagging, or None if nobody knows.

    Without messages, upper moves only once in a `progressInterval`.
    """
    run = source.run
    idle = milliseconds(run.progress_interval) / 1000
    if not run.is_continuous or not idle or run.suspend:
        return None
    return max(_LAG_S, 3 * idle, 3 * milliseconds(run.interval) / 1000)


def _moment(time_ms: int) -> str:
    return timestamp(datetime.fromtimestamp(time_ms / 1000, UTC))
