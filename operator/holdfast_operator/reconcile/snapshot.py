"""The plan for the snapshot that a StorageCollection asks for: a pure function of record and applications.

Invariants
- The course of its job is that of all Spark jobs (`sparkjobs`); here is when one starts, and what is shown.
- What is read is fixed with the first attempt: all attempts of a job write the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, assert_never

from holdfast.storage import JobRecord
from holdfast_operator.api.base import frontier
from holdfast_operator.api.collection import SnapshotJobStatus, SnapshotRequest, SnapshotStatus
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.reconcile.collectionfacts import SNAPSHOT
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
from holdfast_operator.runtime.status import Mark
from holdfast_operator.sparkapps.sizing import tasks

_SUPERSEDED: Final = "superseded by another request"


@dataclass(frozen=True, kw_only=True)
class SnapshotObserved(SparkObserved):
    """Everything that the plan for a snapshot depends on."""

    request: SnapshotRequest | None
    collection_id: str
    since: int
    upper: int
    job: JobRecord | None = None
    last: JobRecord | None = None
    """The snapshot that was committed last."""
    running: tuple[JobRecord, ...] = ()
    """All of its jobs that run."""


@dataclass(frozen=True)
class SnapshotReport:
    """Nothing to do now: what to show, and when to look again."""

    mark: Mark | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    requeue_after: float | None = None
    asks_again: bool = False
    """Whether it waits for what nobody tells of."""


def plan(seen: SnapshotObserved) -> Step | SnapshotReport:
    """What to do next about the snapshot."""
    wanted = seen.job.job_id if seen.job and seen.request else None
    for app in seen.apps:
        if app.job_id != wanted and not app.phase.over:
            return FailAttempt(SNAPSHOT, app.job_id, app.attempt, _SUPERSEDED, app, stopped=True)
    for job in seen.running:
        if job.job_id != wanted:
            # Without an application nothing would end it, nor what it holds.
            return failed(job, _SUPERSEDED, stopped=True)
    if seen.request is None:
        return SnapshotReport(fields=job_fields(seen))
    if seen.job is None:
        return _plan_start(seen, seen.request)
    course = plan_job(seen, seen.job, seen.request.spark, seen.collection_id)
    return course if isinstance(course, Step) else _shown(seen, seen.request, seen.job, course)


def _plan_start(seen: SnapshotObserved, request: SnapshotRequest) -> Step | SnapshotReport:
    if (hindered := hindrance(seen)) is not None:
        return _waiting(seen, hindered) if hindered.stand is Stand.QUEUED else _hindered(seen, hindered)
    latest = seen.upper - 1
    as_of = latest if request.as_of is None else request.as_of
    if seen.upper == 0 or as_of > latest:
        text = f"as of {as_of} is not complete yet: " + (
            f"the latest complete time is {latest}" if seen.upper else "nothing has been written"
        )
        return _report(seen, "Unknown", Reason.SNAPSHOT_NOT_READABLE, f"{text}; it starts when it is")
    if as_of < seen.since:
        return _report(
            seen,
            "False",
            Reason.SNAPSHOT_NOT_READABLE,
            f"as of {as_of} is gone: the collection can be read as of {frontier(seen.since)} on; "
            "set spec.snapshot.asOf and a new requestId",
        )
    spec = {"as_of": as_of, "destination": request.destination}
    count = tasks(seen.stored, request.spark.executor)
    return StartJob(seen.collection_id, SNAPSHOT, request.request_id, spec, count)


_REASONS: Final[Mapping[Stand, Reason]] = {
    **HINDRANCES,
    Stand.QUEUED: Reason.SNAPSHOT_QUEUED,
    Stand.RUNNING: Reason.SNAPSHOT_RUNNING,
    Stand.RETRYING: Reason.SNAPSHOT_RETRYING,
    Stand.FAILED: Reason.SNAPSHOT_FAILED,
    Stand.DONE: Reason.SNAPSHOT_SUCCEEDED,
}


def _shown(
    seen: SnapshotObserved, request: SnapshotRequest, job: JobRecord, course: Course
) -> SnapshotReport:
    status, text = "Unknown", course.text
    match course.stand:
        case Stand.NOT_INSTALLED | Stand.NOT_SHARED | Stand.NOT_TAKEN:
            return _hindered(seen, course)
        case Stand.RUNNING:
            text = f"{text}, as of {_as_of(job)}"
        case Stand.RETRYING | Stand.QUEUED:
            pass
        case Stand.FAILED:
            status = "False"
            text = f"snapshot {request.request_id} {text}; mend that and set a new spec.snapshot.requestId"
        case Stand.DONE:
            status = "True"
            rows = job.result.get("rows")
            text = f"snapshot {request.request_id} is committed: {rows} rows as of {_as_of(job)}"
        case _:
            assert_never(course.stand)
    return _report(seen, status, _REASONS[course.stand], text, requeue_after=course.requeue_after)


def _waiting(seen: SnapshotObserved, course: Course) -> SnapshotReport:
    after = course.requeue_after
    return _report(seen, "Unknown", _REASONS[course.stand], course.text, requeue_after=after)


def _hindered(seen: SnapshotObserved, course: Course) -> SnapshotReport:
    report = _report(seen, "False", _REASONS[course.stand], course.text)
    return replace(report, asks_again=course.asks_again)


def work_order(job: JobRecord) -> Mapping[str, Any]:
    """What a snapshot's job is told beside where and which."""
    return {"as_of": job.spec["as_of"], "destination": job.spec["destination"]}


def _report(
    seen: SnapshotObserved,
    status: Any,
    reason: Reason,
    message: str,
    *,
    requeue_after: float | None = None,
) -> SnapshotReport:
    mark = Mark(ConditionType.SNAPSHOT_COMPLETED, status, reason, message)
    return SnapshotReport(mark, job_fields(seen), requeue_after)


def job_fields(seen: SnapshotObserved) -> Mapping[str, Any]:
    """What the status tells of the snapshot that is asked for, and of the last one."""
    fields: dict[str, Any] = {}
    if seen.job is not None and seen.request is not None:
        app = application_of(seen, seen.job)
        fields["snapshotJob"] = _dump(
            SnapshotJobStatus(
                request_id=seen.job.slot,
                job_id=seen.job.job_id,
                attempt=seen.job.attempt,
                as_of=frontier(_as_of(seen.job)),
                state=state_shown(seen.job),
                application=app.name if app else None,
                started=app.created if app else None,
            )
        )
    if seen.last is not None:
        result = seen.last.result
        fields["lastSnapshot"] = _dump(
            SnapshotStatus(
                request_id=seen.last.slot,
                as_of=frontier(int(result.get("as_of", _as_of(seen.last)))),
                destination=str(result.get("path", seen.last.spec.get("destination", ""))),
                rows=result.get("rows"),
                checksum=result.get("checksum"),
                job_id=seen.last.job_id,
                attempt=seen.last.attempt,
            )
        )
    return fields


def _as_of(job: JobRecord) -> int:
    return int(job.spec.get("as_of", 0))


def _dump(model: SnapshotJobStatus | SnapshotStatus) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
