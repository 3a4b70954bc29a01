"""The plan for the snapshots that a StorageCollection asks for: a pure function of records and applications.

Invariants
- The course of a job is that of all Spark jobs (`sparkjobs`), and when a run of a schedule is due is that of
  all schedules (`schedules`); here is when a snapshot starts, and what is shown.
- What is read is fixed with the first attempt: all attempts of a job write the same.
- One snapshot of a collection is written at a time. What somebody asks for goes before what a schedule does,
  but ends nothing of it.
- A run of a schedule that failed is tried again until the next one is due: none waits behind it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, assert_never

from holdfast.errors import BadInput
from holdfast.storage import JobRecord, JobState
from holdfast_operator.api.base import frontier
from holdfast_operator.api.collection import (
    SnapshotJobStatus,
    SnapshotRequest,
    SnapshotSchedule,
    SnapshotScheduleStatus,
    SnapshotStatus,
    SnapshotTask,
)
from holdfast_operator.api.cron import ScheduleStatus
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.reconcile.collectionfacts import SNAPSHOT
from holdfast_operator.reconcile.schedules import Scheduled, Turn, long_over, missed_notes, slot_of, turn
from holdfast_operator.reconcile.sparkjobs import (
    HINDRANCES,
    Course,
    FailAttempt,
    SparkObserved,
    Stand,
    StartJob,
    application_of,
    failed,
    hindrance,
    plan_job,
    state_shown,
)
from holdfast_operator.reconcile.steps import Step
from holdfast_operator.runtime.events import Note
from holdfast_operator.runtime.status import Mark, timestamp
from holdfast_operator.sparkapps.sizing import tasks

Json = dict[str, Any]

SNAPSHOT_SCHEDULE: Final = "snapshotSchedule"
"""The field of the status about it."""

_SCHEDULED: Final = ConditionType.SCHEDULED_SNAPSHOT_COMPLETED
_QUEUE_SECONDS: Final = 30.0
"""Many schedules come due at once: what nobody waits for looks less often whether it may start."""
_SUPERSEDED: Final = "it is not asked for any more"


@dataclass(frozen=True)
class _Order:
    """One snapshot that is asked for, and how that is shown."""

    slot: str
    task: SnapshotTask
    as_of: int | None
    shown: ConditionType
    again: str
    """What to do, or what comes, where it was given up."""


@dataclass(frozen=True, kw_only=True)
class SnapshotObserved(SparkObserved):
    """Everything that the plans for snapshots depend on."""

    request: SnapshotRequest | None
    collection_id: str
    since: int
    upper: int
    job: JobRecord | None = None
    last: JobRecord | None = None
    """The snapshot that was committed last."""
    running: tuple[JobRecord, ...] = ()
    """All of its jobs that run."""
    scheduled: Scheduled[SnapshotSchedule] | None = None


@dataclass(frozen=True)
class SnapshotReport:
    """Nothing to do now: what to show, and when to look again."""

    mark: Mark | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    requeue_after: float | None = None
    asks_again: bool = False
    """Whether it waits for what nobody tells of."""
    notes: tuple[Note, ...] = ()


def plan(seen: SnapshotObserved) -> Step | SnapshotReport:
    """What to do next about the snapshot that somebody asks for, and about what nobody asks for any more."""
    run = seen.scheduled.latest if seen.scheduled is not None else None
    wanted = {job.job_id for job in (seen.job if seen.request else None, run) if job is not None}
    for app in seen.apps:
        if app.job_id not in wanted and not app.phase.over:
            return FailAttempt(SNAPSHOT, app.job_id, app.attempt, _SUPERSEDED, app, stopped=True)
    for job in seen.running:
        if job.job_id not in wanted:
            # Without an application nothing would end it, nor what it holds.
            return failed(job, _SUPERSEDED, stopped=True)
    if seen.request is None:
        return SnapshotReport(fields=job_fields(seen))
    again = "mend that and set a new spec.snapshot.requestId"
    order = _Order(
        seen.request.request_id,
        seen.request,
        seen.request.as_of,
        ConditionType.SNAPSHOT_COMPLETED,
        again,
    )
    report = _plan_order(_beside(seen, seen.job), order, seen.job)
    return report if isinstance(report, Step) else replace(report, fields=job_fields(seen))


def plan_scheduled(seen: SnapshotObserved) -> Step | SnapshotReport:
    """What to do next about the snapshots of a schedule."""
    asked = seen.scheduled
    if asked is None:
        return SnapshotReport()
    if (forgotten := long_over(asked.runs, seen.last)) is not None:
        return forgotten
    seen = replace(seen, objection=asked.objection)
    try:
        found = turn(asked, seen.now)
    except BadInput as error:
        text = f"spec.snapshotSchedule: {error}; correct it"
        return _report(_SCHEDULED, "False", Reason.INVALID_SCHEDULE, text)
    report = _plan_run(seen, asked, found)
    if isinstance(report, Step):
        return report
    due = [found.look_after]
    if report.requeue_after is not None:
        queued = report.mark is not None and report.mark.reason is Reason.SNAPSHOT_QUEUED
        due.append(_QUEUE_SECONDS if queued else report.requeue_after)
    return replace(
        report,
        fields={SNAPSHOT_SCHEDULE: _schedule_status(seen, found.shown, asked.latest)},
        requeue_after=min(due),
        notes=missed_notes(found),
    )


def _plan_run(
    seen: SnapshotObserved, asked: Scheduled[SnapshotSchedule], found: Turn
) -> Step | SnapshotReport:
    job, again = asked.latest, f"the next one is due at {timestamp(found.upcoming)}"
    if found.due is not None and not _is_at_work(seen, job):
        order = _Order(slot_of(found.due), asked.spec, None, _SCHEDULED, again)
        return _plan_order(_beside(seen, None), order, None)
    over = job is None or job.state is JobState.DONE
    if over and asked.spec.suspend:
        text = "no run begins before spec.snapshotSchedule.suspend is false again"
        return _report(_SCHEDULED, "Unknown", Reason.SUSPENDED, text)
    if job is None:
        return _report(_SCHEDULED, "Unknown", Reason.SNAPSHOT_SCHEDULED, f"the first run: {again}")
    return _plan_order(_beside(seen, job), _Order(job.slot, asked.spec, None, _SCHEDULED, again), job)


def _is_at_work(seen: SnapshotObserved, job: JobRecord | None) -> bool:
    """Whether an attempt of a job runs, or one that failed may still have a driver."""
    if job is None or job.state is JobState.RUNNING:
        return job is not None
    app = application_of(seen, job)
    return app is not None and not app.phase.over


def _beside(seen: SnapshotObserved, job: JobRecord | None) -> SnapshotObserved:
    """The same for a job that waits while another one runs."""
    if not seen.running or (job is not None and job.state is JobState.RUNNING):
        return seen
    return replace(seen, full=f"snapshot {seen.running[0].slot} runs; it starts when that has ended")


def _plan_order(seen: SnapshotObserved, order: _Order, job: JobRecord | None) -> Step | SnapshotReport:
    if job is None:
        return _plan_start(seen, order)
    course = plan_job(seen, job, order.task.spark, seen.collection_id)
    return course if isinstance(course, Step) else _shown(order, job, course)


def _plan_start(seen: SnapshotObserved, order: _Order) -> Step | SnapshotReport:
    if (hindered := hindrance(seen)) is not None:
        return _waiting(order, hindered) if hindered.stand is Stand.QUEUED else _hindered(order, hindered)
    latest = seen.upper - 1
    as_of = latest if order.as_of is None else order.as_of
    if seen.upper == 0 or as_of > latest:
        text = f"as of {as_of} is not complete yet: " + (
            f"the latest complete time is {latest}" if seen.upper else "nothing has been written"
        )
        return _report(order.shown, "Unknown", Reason.SNAPSHOT_NOT_READABLE, f"{text}; it starts when it is")
    if as_of < seen.since:
        return _report(
            order.shown,
            "False",
            Reason.SNAPSHOT_NOT_READABLE,
            f"as of {as_of} is gone: the collection can be read as of {frontier(seen.since)} on; "
            "set spec.snapshot.asOf and a new requestId",
        )
    spec = {"as_of": as_of, **order.task.place}
    count = tasks(seen.stored, order.task.spark.executor)
    return StartJob(seen.collection_id, SNAPSHOT, order.slot, spec, count)


_REASONS: Final[Mapping[Stand, Reason]] = {
    **HINDRANCES,
    Stand.QUEUED: Reason.SNAPSHOT_QUEUED,
    Stand.RUNNING: Reason.SNAPSHOT_RUNNING,
    Stand.RETRYING: Reason.SNAPSHOT_RETRYING,
    Stand.FAILED: Reason.SNAPSHOT_FAILED,
    Stand.DONE: Reason.SNAPSHOT_SUCCEEDED,
}


def _shown(order: _Order, job: JobRecord, course: Course) -> SnapshotReport:
    status, text = "Unknown", course.text
    match course.stand:
        case Stand.NOT_INSTALLED | Stand.NOT_SHARED | Stand.NOT_TAKEN:
            return _hindered(order, course)
        case Stand.RUNNING:
            text = f"{text}, as of {_as_of(job)}"
        case Stand.RETRYING | Stand.QUEUED:
            pass
        case Stand.FAILED:
            status = "False"
            text = f"snapshot {order.slot} {text}; {order.again}"
        case Stand.DONE:
            status = "True"
            rows = job.result.get("rows")
            text = f"snapshot {order.slot} is committed: {rows} rows as of {_as_of(job)}"
        case _:
            assert_never(course.stand)
    return _report(order.shown, status, _REASONS[course.stand], text, requeue_after=course.requeue_after)


def _waiting(order: _Order, course: Course) -> SnapshotReport:
    after = course.requeue_after
    return _report(order.shown, "Unknown", _REASONS[course.stand], course.text, requeue_after=after)


def _hindered(order: _Order, course: Course) -> SnapshotReport:
    report = _report(order.shown, "False", _REASONS[course.stand], course.text)
    return replace(report, asks_again=course.asks_again)


def work_order(job: JobRecord) -> Mapping[str, Any]:
    """What a snapshot's job is told beside where and which."""
    return {name: job.spec[name] for name in ("as_of", "destination", "iceberg") if name in job.spec}


def _report(
    shown: ConditionType,
    status: Any,
    reason: Reason,
    message: str,
    *,
    requeue_after: float | None = None,
) -> SnapshotReport:
    return SnapshotReport(Mark(shown, status, reason, message), requeue_after=requeue_after)


def job_fields(seen: SnapshotObserved) -> Mapping[str, Any]:
    """What the status tells of the snapshots that are asked for, and of the last one."""
    told: dict[str, Any] = {}
    if seen.job is not None and seen.request is not None:
        told["snapshotJob"] = _dump(_job_status(seen, seen.job))
    if seen.scheduled is not None:
        told[SNAPSHOT_SCHEDULE] = _schedule_status(seen, seen.scheduled.shown, seen.scheduled.latest)
    if seen.last is not None:
        told["lastSnapshot"] = _dump(_snapshot_status(seen.last))
    return told


def _snapshot_status(job: JobRecord) -> SnapshotStatus:
    result = job.result
    return SnapshotStatus(
        request_id=job.slot,
        as_of=frontier(int(result.get("as_of", _as_of(job)))),
        destination=str(result.get("path", job.spec.get("destination", ""))),
        table=result.get("table"),
        snapshot_id=result.get("snapshot_id"),
        rows=result.get("rows"),
        checksum=result.get("checksum"),
        job_id=job.job_id,
        attempt=job.attempt,
    )


def _job_status(seen: SnapshotObserved, job: JobRecord) -> SnapshotJobStatus:
    app = application_of(seen, job)
    return SnapshotJobStatus(
        request_id=job.slot,
        job_id=job.job_id,
        attempt=job.attempt,
        as_of=frontier(_as_of(job)),
        state=state_shown(job),
        application=app.name if app else None,
        started=app.created if app else None,
    )


def _schedule_status(seen: SnapshotObserved, shown: ScheduleStatus, job: JobRecord | None) -> Json:
    told = None if job is None else _job_status(seen, job)
    return _dump(SnapshotScheduleStatus(**shown.model_dump(), job=told))


def _as_of(job: JobRecord) -> int:
    return int(job.spec.get("as_of", 0))


def _dump(model: SnapshotJobStatus | SnapshotScheduleStatus | SnapshotStatus) -> Json:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
