"""The plan for a CollectionSnapshot: a pure function of what was observed.

Invariants
- One object is one job: the slot of its JobRecord is its uid. So it is written once, no matter how often the
  object is applied, and an object that is deleted and created again is another snapshot.
- The time to read at is fixed at the first attempt.
- A committed snapshot needs neither its collection nor its catalog: it stays Ready without them.
- No job starts before the object and its collection have the finalizer. So the deletion of the collection
  ends the attempt. A deletion of the object ends the job, then deletes the files if the policy is Delete,
  and then removes the record.
- The Catalog doesn't wait for its snapshots. If it is gone, a deletion says what could not be cleaned up.
"""

from typing import Final

from holdfast.collections import JobState
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.api.snapshot import CollectionSnapshotSpec
from holdfast_operator.engine.deletion import left
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.health import Health
from holdfast_operator.engine.steps import (
    Decision,
    Keep,
    Release,
    Rhythm,
    Settle,
    Wait,
    ready,
    reconciling,
    stalled,
)
from holdfast_operator.jobs.course import stopped
from holdfast_operator.jobs.requested import Order, RequestedReport, plan_order
from holdfast_operator.jobs.steps import FailAttempt, ForgetRuns, LaunchAttempt, RetryJob, StartJob
from holdfast_operator.snapshots.facts import CollectionState, SnapshotFacts
from holdfast_operator.snapshots.status import status_fields
from holdfast_operator.snapshots.steps import CancelApplication, RemoveFiles

_DELETED: Final = "the CollectionSnapshot is being deleted"
_GONE: Final = "its collection is gone"
_SUSPENDED: Final = "its collection is suspended"
_AGAIN: Final = "fix the cause, then delete this resource and create it again"


def plan(seen: SnapshotFacts, rhythm: Rhythm) -> Decision:
    """Returns the next step."""
    if seen.deleting:
        return _plan_deletion(seen, rhythm)
    if seen.spec is None:
        return Settle(stalled(Reason.INVALID_SPEC, f"{seen.problem}; correct the spec"))
    step = _plan(seen, seen.spec, rhythm)
    starts = isinstance(step, StartJob | RetryJob | LaunchAttempt)
    if (starts or seen.is_done) and not seen.has_finalizer:
        return Keep()
    if starts and not seen.collection_kept:
        return Wait(requeue_after=rhythm.unsteady)
    return step


def _plan(seen: SnapshotFacts, spec: CollectionSnapshotSpec, rhythm: Rhythm) -> Decision:
    if seen.is_done:
        return Settle(_committed(seen.shown.rows, seen.shown.as_of))
    record = seen.record
    if record is not None and record.state is JobState.DONE:
        # Whatever has become of the collection since.
        return Settle(_committed(record.result.get("rows"), record.as_of), fields=_fields(seen))
    name = f"StorageCollection '{spec.collection_ref.name}'"
    match seen.collection:
        case CollectionState.MISSING:
            if (ended := _without_driver(seen, _GONE)) is not None:
                return ended
            # The deletion of the collection ended the attempt in its record.
            left_over = [app for app in seen.apps if not app.phase.over]
            if left_over:
                return CancelApplication(left_over[0])
            text = f"there is no {name} in this namespace; create it, or delete this resource"
            return Settle(stalled(Reason.COLLECTION_NOT_FOUND, text), requeue_after=rhythm.steady)
        case CollectionState.OBSERVED:
            text = "the operator runs no jobs in an Observed catalog; let its database process do it"
            return Settle(stalled(Reason.CATALOG_OBSERVED, text), requeue_after=rhythm.steady)
        case CollectionState.SUSPENDED:
            if (ended := _without_driver(seen, _SUSPENDED)) is not None:
                return ended
            text = f"{name} is suspended; the snapshot continues when its spec.suspend is false"
            return Settle(_not_ready(text), fields=_fields(seen), requeue_after=rhythm.steady)
        case CollectionState.OPENING:
            # The status stays as it is until the catalog is open.
            return Wait(requeue_after=rhythm.unsteady)
        case CollectionState.UNREADABLE:
            return Settle(_not_ready(f"waiting for {name}: {seen.why}"), requeue_after=rhythm.steady)
        case CollectionState.READABLE:
            return _plan_job(seen, rhythm)


def _plan_job(seen: SnapshotFacts, rhythm: Rhythm) -> Decision:
    assert seen.job is not None
    if seen.task is None:
        text = (
            "there is no place to write to: create this resource again with spec.destination, or set a "
            "destination in spec.snapshotSchedule of the collection"
        )
        return Settle(stalled(Reason.NO_DESTINATION, text), requeue_after=rhythm.steady)
    if seen.asks_to_delete and seen.not_deletable and seen.record is None:
        text = (
            f"deletionPolicy Delete can't be carried out, so nothing is written: the destination "
            f"{seen.not_deletable}; or set spec.deletionPolicy to Retain"
        )
        return Settle(stalled(Reason.LOCATION_NOT_ALLOWED, text), requeue_after=rhythm.steady)
    template = seen.job.template
    order = Order(seen.slot, seen.task, template, ConditionType.READY, _AGAIN, name="the snapshot")
    report = plan_order(seen.job, order)
    if isinstance(report, Decision):
        return report
    due = [report.requeue_after, rhythm.steady if report.asks_again else None]
    health = _health(report)
    # Ready has no Event while something is in progress, but each failed attempt has one.
    retried = health.reason is Reason.SNAPSHOT_RETRYING
    return Settle(
        health,
        fields=_fields(seen),
        requeue_after=min((each for each in due if each is not None), default=None),
        notes=(Note(health.reason, health.message),) if retried else (),
    )


def _health(report: RequestedReport) -> Health:
    shown = report.condition
    assert shown is not None
    match shown.status:
        case "True":
            return ready(shown.message)
        case "False":
            return stalled(shown.reason, shown.message)
        case "Unknown":
            return reconciling(shown.reason, shown.message)


def _committed(rows: object, as_of: object) -> Health:
    return ready(f"the snapshot is committed: {rows} rows as of {as_of}")


def _not_ready(text: str) -> Health:
    return reconciling(Reason.COLLECTION_NOT_READY, text)


def _fields(seen: SnapshotFacts) -> dict[str, object] | None:
    if seen.job is None:
        return None
    return {} if seen.record is None else status_fields(seen.job, seen.record)


def _without_driver(seen: SnapshotFacts, why: str) -> FailAttempt | None:
    """Returns a step that ends the running attempt, or None if there is none."""
    return None if seen.job is None else stopped(seen.job, seen.job.running, why)


def _plan_deletion(seen: SnapshotFacts, rhythm: Rhythm) -> Decision:
    if not seen.has_finalizer:
        return Release()
    files = f"the files in {seen.folder}" if seen.folder else "the files that its attempts may have written"
    deletion = seen.deletion
    cut_off = seen.job is None
    if deletion.abandoned or (deletion.asked and cut_off):
        return Release((left(f"{files} stay", deletion),) if seen.asks_to_delete else ())
    if (ended := _without_driver(seen, _DELETED)) is not None:
        return ended
    if cut_off and _waits(seen):
        text = f"the deletion waits for the collection: {seen.why}"
        return Settle(reconciling(Reason.WAITING_FOR_CATALOG, text), requeue_after=rhythm.unsteady)
    if seen.asks_to_delete and seen.folder is not None and not seen.removed:
        if seen.not_deletable:
            text = f"{files} can't be deleted: this location {seen.not_deletable}"
            return Settle(stalled(Reason.LOCATION_NOT_ALLOWED, text), requeue_after=rhythm.steady)
        return RemoveFiles(seen.folder)
    record = seen.record
    if record is not None and record.state is not JobState.RUNNING:
        return ForgetRuns((record.job_id,))
    return Release(_left(seen, files))


def _waits(seen: SnapshotFacts) -> bool:
    """Returns whether a deletion waits until the store of the collection can be read.

    If nothing runs and all files are known, only the record would be left behind, so it waits no longer than
    a restart takes.
    """
    if seen.collection is CollectionState.OPENING:
        return True
    if seen.collection is not CollectionState.UNREADABLE:
        return False
    if seen.asks_to_delete and seen.folder is None and seen.shown.job is not None:
        return True
    return bool(seen.shown_running) and (seen.asks_to_delete or not seen.deletion.overdue)


def _left(seen: SnapshotFacts, files: str) -> tuple[Note, ...]:
    """Returns Events about what a deletion could not clean up."""
    notes = []
    if seen.job is None and seen.shown_running:
        text = (
            f"the collection can't be written, so {', '.join(seen.shown_running)} could not be stopped; its "
            "hold keeps old history, and its files stay"
        )
        notes.append(text)
    elif seen.asks_to_delete and seen.shown.table is not None:
        notes.append(f"the rows in Iceberg table {seen.shown.table} stay")
    elif seen.asks_to_delete and seen.folder is None and seen.shown.job is not None:
        notes.append(f"{files} stay: the record of where they are can't be read")
    return tuple(Note(Reason.DELETION_INCOMPLETE, text, warning=True) for text in notes)
