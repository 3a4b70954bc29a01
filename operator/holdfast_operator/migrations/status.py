"""The status and the conditions of a CatalogMigration. Pure."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from holdfast.catalog.move.records import Record
from holdfast.catalog.move.truth import Strategy
from holdfast.catalog.upgrade_report import Size
from holdfast_operator.api.catalog import MigrationStrategy
from holdfast_operator.api.migration import (
    AT_REST,
    CatalogMigrationStatus,
    MigrationPhase,
    ObjectSize,
    Verify,
)
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.engine.health import Health, Phase, WantedCondition
from holdfast_operator.engine.steps import Settle
from holdfast_operator.migrations.facts import MigrationView, total

_PHASES: Final[Mapping[Reason, MigrationPhase]] = {
    Reason.MIGRATION_PENDING: MigrationPhase.PENDING,
    Reason.MIGRATION_RUNNING: MigrationPhase.MIGRATING,
    Reason.SHADOWING: MigrationPhase.SHADOWING,
    Reason.ROLLING_BACK: MigrationPhase.ROLLING_BACK,
    Reason.ABANDONING: MigrationPhase.ABANDONING,
    Reason.MIGRATION_PLANNED: MigrationPhase.PLANNED,
    Reason.MIGRATION_COMPLETED: MigrationPhase.COMPLETED,
    Reason.ROLLED_BACK: MigrationPhase.ROLLED_BACK,
}
_STRATEGIES: Final = {
    Strategy.ONE_TOMBSTONE: MigrationStrategy.ONE_TOMBSTONE,
    Strategy.TWO_TOMBSTONES: MigrationStrategy.TWO_TOMBSTONES,
}


def resting(
    seen: MigrationView, health: Health, *, requeue_after: float | None = None, retry: bool = False
) -> Settle:
    """Returns a step that shows the progress of the migration, and rests."""
    return Settle(
        health,
        fields=status_fields(seen, health),
        conditions=conditions(seen, health),
        requeue_after=requeue_after,
        retry=retry,
    )


def phase_of(health: Health) -> MigrationPhase:
    """Returns the phase to show for a health."""
    match health.phase:
        case Phase.STALLED:
            return MigrationPhase.STALLED
        case Phase.SUSPENDED:
            return MigrationPhase.SUSPENDED
        case _:
            return _PHASES.get(health.reason, MigrationPhase.PENDING)


def status_fields(seen: MigrationView, health: Health) -> Mapping[str, Any]:
    """Returns the status: the current one, updated with what is known now."""
    phase = phase_of(health)
    news: dict[str, Any] = {"phase": phase}
    if seen.move is not None:
        news["migration_id"] = seen.move.migration_id
    if seen.planned:
        news |= _sized(seen.planned.sizes)
        news["plan"] = seen.planned.lines
    news |= _by_stores(seen) | _by_course(seen) | {"fenced_by": seen.fences or None}
    begun = seen.course is not None or (seen.state is not None and seen.state.record is not None)
    if begun and seen.shown.start_time is None:
        news["start_time"] = seen.now.replace(microsecond=0)
    if phase in AT_REST:
        news["deadline"] = None
        if phase is not MigrationPhase.PLANNED and seen.shown.phase != phase:
            news["completion_time"] = seen.now.replace(microsecond=0)
    elif seen.course is not None:
        news["deadline"] = seen.deadline
        news["completion_time"] = None
    shown = seen.shown.model_copy(update=news)
    return shown.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"conditions", "observed_generation"}
    )


def _by_stores(seen: MigrationView) -> dict[str, Any]:
    state = seen.state
    if state is None:
        return {}
    return {
        "strategy": _STRATEGIES[state.strategy] if state.strategy else None,
        "source_of_truth": state.truth.value if state.truth else None,
        "stash_epoch": state.stash_epoch,
        "persist_epoch": state.persist_epoch,
    }


def _by_course(seen: MigrationView) -> dict[str, Any]:
    course = seen.course
    if course is None or course.done is None:
        return {}
    news: dict[str, Any] = {"step": str(course.done)}
    if course.strategy is not None:
        news["strategy"] = _STRATEGIES[course.strategy]
    if course.truth is not None:
        news["source_of_truth"] = course.truth.value
    if course.epoch is not None:
        news |= {"stash_epoch": course.epoch, "persist_epoch": course.epoch}
    return news | _sized(course.sizes)


def _sized(sizes: Mapping[str, Size]) -> dict[str, Any]:
    """Returns the sizes by object type, or nothing if they are unknown."""
    there = {name: size for name, size in sorted(sizes.items()) if size.rows}
    if not there:
        return {}
    size = total(there)
    objects = {name: ObjectSize(rows=each.rows, bytes=each.bytes) for name, each in there.items()}
    return {"objects": objects, "rows": size.rows, "bytes": size.bytes}


def conditions(seen: MigrationView, health: Health) -> tuple[WantedCondition, ...]:
    """Returns the conditions Progressing, Verified, Completed and, if requested, RolledBack."""
    working = health.phase is Phase.RECONCILING and health.reason is not Reason.MIGRATION_PENDING
    progressing = WantedCondition(
        ConditionType.PROGRESSING, "True" if working else "False", health.reason, health.message
    )
    if seen.spec is None or seen.spec.dry_run:
        return (progressing,)
    record = seen.state.record if seen.state else shown_end(seen.shown)
    done: Literal["True", "False"] = "False"
    if record is Record.DONE and health.reason is not Reason.ROLLING_BACK:
        done = "True"
    completed = WantedCondition(ConditionType.COMPLETED, done, health.reason, health.message)
    back: Literal["True", "False"] = "True" if record is Record.ROLLED_BACK else "False"
    rolled_back = WantedCondition(ConditionType.ROLLED_BACK, back, health.reason, health.message)
    return (
        progressing,
        _verified(seen, health),
        completed,
        *((rolled_back,) if seen.spec.rollback or record is Record.ROLLED_BACK else ()),
    )


def shown_end(shown: CatalogMigrationStatus) -> Record | None:
    """Returns how the migration ended according to its conditions, or None if they don't show an end."""
    true = {each.type for each in shown.conditions if each.status == "True"}
    if ConditionType.ROLLED_BACK in true:
        return Record.ROLLED_BACK
    return Record.DONE if ConditionType.COMPLETED in true else None


def _verified(seen: MigrationView, health: Health) -> WantedCondition:
    assert seen.spec is not None
    if health.reason is Reason.CONTENTS_DIFFER:
        return WantedCondition(ConditionType.VERIFIED, "False", Reason.CONTENTS_DIFFER, health.message)
    if seen.course is not None and seen.course.compared:
        return WantedCondition(ConditionType.VERIFIED, "True", Reason.CONTENTS_EQUAL, seen.course.compared)
    before = next((each for each in seen.shown.conditions if each.type == ConditionType.VERIFIED), None)
    # If an earlier process compared the stores, only the status shows it. No decision depends on this.
    if before is not None and before.reason in {Reason.CONTENTS_EQUAL, Reason.CONTENTS_DIFFER}:
        return WantedCondition(ConditionType.VERIFIED, before.status, Reason(before.reason), before.message)
    text = "spec.verify is None" if seen.spec.verify == Verify.NONE else "nothing has been compared yet"
    return WantedCondition(ConditionType.VERIFIED, "Unknown", Reason.NOT_COMPARED, text)
