"""The plan for a CatalogMigration: a pure function of what was observed.

The first of these cases that applies decides: the migration is being deleted; it has no finalizer yet; its
Catalog has none (see `catalogs.keeping`); its spec can't be parsed; its id belongs to another migration; the
catalog records that it has ended; there is no catalog to move; it is a dry run; it is suspended; another
migration is in progress; the stores were restored from an older state; other operators fenced it too often,
or the Catalog that it must open in both stores; its timeout is over; the catalog is open; it has a next step.

Invariants
- The stores record whether a migration has ended. The status is used only for what it shows and for the
  deadline. If the stores can't be read, the status also decides whether the migration has ended, because a
  migration that has ended needs nothing more.
- A migration does not start if the stores' epoch is lower than the Catalog's last epoch. The stores were then
  restored from an older state, and a migration would hide that.
- Only one numbered step runs at a time. Everything is observed again after each step, so that a change of the
  spec takes effect.
"""

from holdfast.catalog import CATALOG_VERSION, catalog_shard_id
from holdfast.catalog.move.records import Record
from holdfast.catalog.move.truth import Action
from holdfast_operator.api.migration import AT_REST, CatalogMigrationSpec, Verify
from holdfast_operator.api.names import ANNOTATION_APPROVE_UPGRADE, Reason
from holdfast_operator.catalogs import fencing
from holdfast_operator.catalogs.facts import Durable
from holdfast_operator.catalogs.takeovers import regressed
from holdfast_operator.engine.deletion import left
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.health import Health, Phase
from holdfast_operator.engine.status_writer import timestamp
from holdfast_operator.engine.steps import (
    SUSPENDED,
    Decision,
    Free,
    Keep,
    KeepCatalog,
    Release,
    Rhythm,
    Wait,
    reconciling,
    stalled,
)
from holdfast_operator.migrations.facts import Course, DryRunResult, MigrationView, RequestedMove
from holdfast_operator.migrations.status import resting, shown_end
from holdfast_operator.migrations.steps import (
    Abandon,
    BeginMove,
    CloseShadow,
    DryRun,
    OpenShadow,
    Stop,
    TakeStep,
)


def plan(seen: MigrationView, rhythm: Rhythm) -> Decision:
    """Returns the next step."""
    if seen.deleting:
        return _plan_deletion(seen, rhythm)
    if seen.needs_finalizer and not seen.has_finalizer:
        return Keep()
    if seen.needs_finalizer and seen.catalog_loose:
        return KeepCatalog()
    if seen.spec is None:
        return _still(seen, stalled(Reason.INVALID_SPEC, f"{seen.problem}; delete it and create it again"))
    if (over := _another_move(seen) or _over(seen, seen.spec)) is not None:
        free = seen.has_finalizer and not seen.needs_finalizer and seen.course is None
        return Free() if free else _still(seen, over)
    if (why := seen.no_catalog or seen.trouble) is not None:
        if seen.course is None and seen.shown.phase in AT_REST and not seen.changed:
            return Wait()
        return _still(seen, why, requeue_after=rhythm.steady)
    assert seen.move is not None
    if seen.course is not None and seen.course.move != seen.move:
        return _end(seen) or Wait(0.0)
    if seen.spec.dry_run:
        return resting(seen, _told(seen.planned)) if seen.planned else DryRun(seen.move, seen)
    if seen.spec.suspend:
        return _still(seen, _suspended(seen))
    if seen.state is not None and seen.state.version is None and seen.state.record is None:
        text = "waiting for the catalog to be initialized, which the first open for writing does"
        pending = reconciling(Reason.MIGRATION_PENDING, text)
        return _still(seen, pending, requeue_after=rhythm.unsteady)
    if (conflict := _conflict(seen, seen.spec, seen.move)) is not None:
        return _still(seen, conflict, requeue_after=rhythm.steady)
    if (fenced := _fenced(seen, seen.spec, seen.move)) is not None:
        return _still(seen, fenced, requeue_after=rhythm.steady)
    if seen.shown.deadline is not None and not seen.changed and seen.now >= seen.shown.deadline:
        return _still(seen, _timed_out(seen, seen.spec))
    return _plan_steps(seen, seen.spec, seen.move, rhythm)


def needs_finalizer(seen: MigrationView) -> bool:
    """Returns whether a deletion must end a migration that the stores record as running, or soon may."""
    if seen.spec is None or seen.spec.dry_run or _over(seen, seen.spec) is not None:
        return False
    unknown = seen.state is None
    return not (unknown and seen.shown.phase in AT_REST and not seen.changed)


def _plan_steps(
    seen: MigrationView, spec: CatalogMigrationSpec, move: RequestedMove, rhythm: Rhythm
) -> Decision:
    course = seen.course
    if course is None:
        return BeginMove(move)
    if seen.stepping:
        return TakeStep(move, seen)
    if course.shadow_until is not None and not course.shadowed:
        if not seen.catalog_open:
            # The Catalog closed it, because its credentials have changed or others have taken it.
            return Stop()
        if seen.now < course.shadow_until:
            left = (course.shadow_until - seen.now).total_seconds()
            return resting(seen, _shadowing(course), requeue_after=min(left, rhythm.steady))
        return CloseShadow()
    if seen.catalog_open:
        text = "waiting for the operator to close its own handle of the catalog"
        return resting(seen, reconciling(Reason.MIGRATION_PENDING, text), requeue_after=rhythm.unsteady)
    if _needs_shadow(seen, spec, move) and _is_copied(course):
        return OpenShadow(move, seen)
    return TakeStep(move, seen)


def _needs_shadow(seen: MigrationView, spec: CatalogMigrationSpec, move: RequestedMove) -> bool:
    """Returns whether the catalog must be open in both stores before the migration ends."""
    shadowed = seen.course is not None and seen.course.shadowed
    return spec.verify == Verify.SHADOW and not move.rollback and not shadowed


def _is_copied(course: Course) -> bool:
    """Returns whether the last step copied the contents of the source of truth to the target."""
    return course.done is not None and course.done.action is Action.REPLACE


def _still(seen: MigrationView, health: Health, *, requeue_after: float | None = None) -> Decision:
    """Starts no further step: waits for a running one, and then releases the catalog."""
    if (end := _end(seen)) is not None:
        return end
    retry = health == seen.trouble
    return resting(seen, health, requeue_after=None if retry else requeue_after, retry=retry)


def _end(seen: MigrationView) -> Decision | None:
    """Returns the next step to release the catalog, or None if this process doesn't hold it."""
    if seen.course is None:
        return None
    return TakeStep(seen.course.move, seen) if seen.stepping else Stop()


def _another_move(seen: MigrationView) -> Health | None:
    """Returns the health if the id belongs to a migration to the other store, or None."""
    if seen.state is None or seen.move is None or seen.state.target in (None, seen.move.target):
        return None
    text = f"migration {seen.move.migration_id} already has the target {seen.move.target.other.value}"
    return stalled(Reason.CONFLICT, f"{text}: create this one again with another spec.migrationId")


def _over(seen: MigrationView, spec: CatalogMigrationSpec) -> Health | None:
    """Returns the health of a migration that has ended by the catalog's records, or None."""
    record = seen.state.record if seen.state else None
    if not _has_ended(record, spec):
        return None
    if record is Record.ROLLED_BACK:
        return Health(Phase.READY, Reason.ROLLED_BACK, f"the catalog is back in {_truth(seen)}")
    text = f"the source of truth was moved to {spec.target}; set spec.rollback to true to move it back"
    return Health(Phase.READY, Reason.MIGRATION_COMPLETED, text)


def _has_ended(record: Record | None, spec: CatalogMigrationSpec) -> bool:
    """Returns whether nothing is left to do."""
    return record is Record.ROLLED_BACK or (record is Record.DONE and not spec.rollback)


def _truth(seen: MigrationView) -> str:
    truth = seen.state.truth if seen.state else None
    return truth.value if truth else "its first store"


def _told(planned: DryRunResult) -> Health:
    if planned.refused:
        return stalled(Reason.MIGRATION_REFUSED, f"nothing was written; {planned.refused}")
    text = "nothing was written; see status.plan; to run the migration, create it again without spec.dryRun"
    return Health(Phase.READY, Reason.MIGRATION_PLANNED, text)


def _suspended(seen: MigrationView) -> Health:
    if seen.state is None or seen.state.record is None:
        return SUSPENDED
    text = (
        f"suspended after the start: the source of truth is {_truth(seen)}; to continue, set spec.suspend to "
        "false; to go back, set spec.rollback to true; to end it, delete this resource"
    )
    return Health(Phase.SUSPENDED, Reason.SUSPENDED, text)


def _conflict(seen: MigrationView, spec: CatalogMigrationSpec, move: RequestedMove) -> Health | None:
    if seen.catalog_observed and spec.verify == Verify.SHADOW:
        text = "a database process writes the catalog, so the operator can't make its changes in both stores"
        return stalled(Reason.NOT_SUPPORTED, f"{text}: create it again with verify Compare")
    if seen.rival:
        text = f"{seen.rival} holds the catalog"
        return stalled(Reason.CONFLICT, f"{text}; this one starts when that one has ended or is suspended")
    if seen.state is not None and seen.state.other:
        text = f"migration {seen.state.other} of this catalog has not ended"
        return stalled(
            Reason.CONFLICT, f"{text}; this one starts afterwards: finish that one or roll it back"
        )
    begun = seen.state is not None and seen.state.record is not None
    if seen.catalog_deleting and not begun:
        return stalled(Reason.CATALOG_DELETING, "the Catalog is being deleted; delete this resource too")
    if (waits := _went_back(seen, move) or _upgrade_pending(seen, move)) is not None:
        return waits
    if move.rollback and seen.state is not None and not begun:
        text = f"there is no migration {move.migration_id} of this catalog to roll back"
        return stalled(Reason.INVALID_SPEC, f"{text}: delete this resource")
    return None


def _fenced(seen: MigrationView, spec: CatalogMigrationSpec, move: RequestedMove) -> Health | None:
    """Returns the health if others fenced the migration or its Catalog too often, or None."""
    if fencing.has_stopped(seen.fences):
        return fencing.health_of_move(seen.fences)
    if fencing.has_stopped(seen.catalog_fences) and _needs_shadow(seen, spec, move):
        # The Catalog would close it at once, and each new start copies all contents.
        return fencing.health_without_shadow(seen.catalog_fences)
    return None


def _went_back(seen: MigrationView, move: RequestedMove) -> Health | None:
    """Returns the health if the stores' epoch is lower than the Catalog's last epoch, or None."""
    state = seen.state
    begun = seen.course is not None or state is None or (state.record is not None and state.record.is_running)
    if state is None or begun or seen.catalog_observed:
        return None
    epochs = [epoch for epoch in (state.stash_epoch, state.persist_epoch) if epoch is not None]
    if not epochs or max(epochs) >= seen.known_epoch:
        return None
    organization = move.opening.organization_id
    found = Durable(organization, catalog_shard_id(organization), state.version, max(epochs), None)
    return regressed(move.opening, found, seen.known_epoch)


def _upgrade_pending(seen: MigrationView, move: RequestedMove) -> Health | None:
    """Returns the health if the migration would upgrade the catalog, but the upgrade is not approved."""
    version = seen.state.version if seen.state else None
    may_upgrade = move.opening.upgrade and not seen.catalog_observed
    if version is None or version >= CATALOG_VERSION or may_upgrade:
        return None
    text = f"the catalog has format version {version}, but a migration needs version {CATALOG_VERSION}"
    if seen.catalog_observed:
        return stalled(Reason.UPGRADE_PENDING, f"{text}: let its database process open and upgrade it")
    how = f'set the annotation {ANNOTATION_APPROVE_UPGRADE} of the Catalog to "{CATALOG_VERSION}"'
    return stalled(Reason.UPGRADE_PENDING, f"{text}: {how}")


def _timed_out(seen: MigrationView, spec: CatalogMigrationSpec) -> Health:
    text = (
        f"no further step runs: spec.timeout of {spec.timeout} is over; the source of truth is "
        f"{_truth(seen)}; to continue, set spec.suspend to true and then to false; to go back, set "
        "spec.rollback to true; to end it, delete this resource"
    )
    return stalled(Reason.MIGRATION_TIMED_OUT, text)


def _shadowing(course: Course) -> Health:
    assert course.shadow_until is not None
    text = f"every change is made in both stores until {timestamp(course.shadow_until)}"
    return reconciling(
        Reason.SHADOWING, f"{text}; then they are compared, and the target becomes the source of truth"
    )


def running(course: Course) -> Health:
    """Returns the health of a migration while its steps are running."""
    done = f"done: {course.done}" if course.done else "started"
    following = course.next or "check that everything is done"
    reason = Reason.ROLLING_BACK if course.move.rollback else Reason.MIGRATION_RUNNING
    return reconciling(reason, f"{done}; next: {following}")


def _plan_deletion(seen: MigrationView, rhythm: Rhythm) -> Decision:
    if not seen.has_finalizer or not _may_be_on_record(seen):
        return _end(seen) or Release()
    unknown = "whether it has ended is unknown: see 'holdfast migrate status'"
    if seen.catalog_missing:
        text = f"there is no Catalog any more that says where the stores are; {unknown}"
        return _end(seen) or Release((Note(Reason.DELETION_INCOMPLETE, text, warning=True),))
    if seen.deletion.abandoned:
        return _end(seen) or Release((left(unknown, seen.deletion),))
    if (why := seen.no_catalog or seen.trouble) is not None:
        return _end(seen) or resting(seen, why, retry=True)
    assert seen.move is not None
    if seen.rival:
        text = f"waits for {seen.rival}, which has the catalog"
        return resting(seen, reconciling(Reason.ABANDONING, text), requeue_after=rhythm.unsteady)
    if seen.course is None:
        return BeginMove(seen.move)
    if seen.stepping:
        return TakeStep(seen.course.move, seen)
    if seen.course.shadow_until is not None and not seen.course.shadowed:
        return CloseShadow()
    if seen.catalog_open:
        text = "waits until the operator has given up its own handle of the catalog"
        return resting(seen, reconciling(Reason.ABANDONING, text), requeue_after=rhythm.unsteady)
    return Abandon(seen.course.move, seen)


def _may_be_on_record(seen: MigrationView) -> bool:
    """Returns whether the stores may record that the migration is running."""
    if seen.spec is None or seen.spec.dry_run or _another_move(seen) is not None:
        return False
    if seen.state is not None:
        begun = seen.course is not None and seen.course.calls > 0
        return begun or (seen.state.record is not None and seen.state.record.is_running)
    if seen.course is None and _has_ended(shown_end(seen.shown), seen.spec):
        return False
    return seen.shown.start_time is not None or seen.trouble is not None
