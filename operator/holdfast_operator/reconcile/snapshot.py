"""The plan for the snapshot that a StorageCollection asks for: a pure function of record and applications.

Invariants
- The JobRecord decides: Done is success whatever the application says, and without Done nothing is.
- An attempt is failed on record before its application is taken away, so that a driver that comes to life
  later can't commit any more.
- An application that isn't there any more may still have a driver: its attempt is over, the next one follows.
- What is read is fixed with the first attempt: all attempts of a job write the same.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, assert_never

from holdfast.storage import JobRecord, JobState
from holdfast_operator.api.base import frontier
from holdfast_operator.api.collection import SnapshotJobStatus, SnapshotRequest, SnapshotStatus
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.reconcile.steps import Step
from holdfast_operator.runtime.status import Mark
from holdfast_operator.sparkapps.adapter import AppPhase, AppState

_FIRST_BACKOFF: Final = 5.0
_LONGEST_BACKOFF: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class SnapshotObserved:
    """Everything that the plan for a snapshot depends on."""

    request: SnapshotRequest | None
    url: str | None
    """Where a job finds the collection; None where it can't be told in one URL."""
    reachable: bool
    """Whether a pod can open that."""
    collection_id: str
    since: int
    upper: int
    installed: bool = True
    job: JobRecord | None = None
    last: JobRecord | None = None
    """The snapshot that was committed last."""
    running: tuple[JobRecord, ...] = ()
    """All of its jobs that run."""
    apps: tuple[AppState, ...] = ()
    """Of all jobs of the collection; seen *before* the records were read."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True)
class StartJob(Step):
    """Put the job on record, Running its first attempt; then its application is launched."""

    irreversible: ClassVar[bool] = True
    collection_id: str
    request_id: str
    spec: Mapping[str, Any]


@dataclass(frozen=True)
class RetryJob(Step):
    """Put the next attempt on record; then its application is launched."""

    irreversible: ClassVar[bool] = True
    collection_id: str
    job_id: str


@dataclass(frozen=True)
class FailAttempt(Step):
    """Put on record that an attempt failed, then take its application away where there is one."""

    irreversible: ClassVar[bool] = True
    job_id: str
    attempt: int
    error: str
    app: AppState | None = None


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
            return FailAttempt(app.job_id, app.attempt, "superseded by another request", app)
    for job in seen.running:
        if job.job_id != wanted:
            # Without an application nothing would end it, nor what it holds.
            return FailAttempt(job.job_id, job.attempt, "superseded by another request")
    if seen.request is None:
        return SnapshotReport(fields=_fields(seen))
    if seen.job is None:
        return _plan_start(seen, seen.request)
    match seen.job.state:
        case JobState.DONE:
            rows = seen.job.result.get("rows")
            text = f"snapshot {seen.request.request_id} is committed: {rows} rows as of {_as_of(seen.job)}"
            return _report(seen, "True", Reason.SNAPSHOT_SUCCEEDED, text)
        case JobState.FAILED:
            return _plan_retry(seen, seen.request, seen.job)
        case JobState.RUNNING:
            return _plan_running(seen, seen.request, seen.job)
        case _:
            assert_never(seen.job.state)


def _plan_start(seen: SnapshotObserved, request: SnapshotRequest) -> Step | SnapshotReport:
    if not seen.installed:
        return _not_installed(seen)
    if seen.url is None or not seen.reachable:
        return _report(
            seen,
            "False",
            Reason.STORAGE_NOT_SHARED,
            "Spark pods can't open the catalog's storage: use storage that they can reach, "
            "or start the operator with --storage-shared where they see its files",
        )
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
    return StartJob(seen.collection_id, request.request_id, spec)


def _plan_running(seen: SnapshotObserved, request: SnapshotRequest, job: JobRecord) -> Step | SnapshotReport:
    if not seen.installed:
        return _not_installed(seen)
    app = _current(seen, job)
    if app is None:
        return FailAttempt(job.job_id, job.attempt, "its SparkApplication is gone")
    match app.phase:
        case AppPhase.FAILED:
            return FailAttempt(job.job_id, job.attempt, app.message or "its SparkApplication failed")
        case AppPhase.SUCCEEDED:
            # Seen before the record: had it committed, the record would say so.
            return FailAttempt(
                job.job_id, job.attempt, "its SparkApplication completed without committing a result"
            )
        case AppPhase.PENDING:
            deadline = timedelta(seconds=request.spark.start_deadline_seconds)
            if seen.now - app.created > deadline:
                error = f"its driver did not start within {request.spark.start_deadline_seconds} s"
                return FailAttempt(job.job_id, job.attempt, error, app)
            return _running(seen, job, "waits for its driver")
        case AppPhase.RUNNING:
            return _running(seen, job, "runs")
        case _:
            assert_never(app.phase)


def _plan_retry(seen: SnapshotObserved, request: SnapshotRequest, job: JobRecord) -> Step | SnapshotReport:
    if job.attempt >= request.spark.max_attempts:
        return _report(
            seen,
            "False",
            Reason.SNAPSHOT_FAILED,
            f"snapshot {request.request_id} failed {job.attempt} times, last: {job.error}; "
            "mend that and set a new spec.snapshot.requestId",
        )
    leftover = _current(seen, job)
    if leftover is not None and not leftover.phase.over:
        return FailAttempt(job.job_id, job.attempt, job.error, leftover)
    if not seen.installed:
        return _not_installed(seen)
    wait = backoff(job.attempt) - (seen.now.timestamp() - job.finished_ms / 1000)
    if wait > 0:
        text = f"attempt {job.attempt} failed: {job.error}; the next one follows by itself"
        return _report(seen, "Unknown", Reason.SNAPSHOT_RETRYING, text, requeue_after=wait)
    return RetryJob(seen.collection_id, job.job_id)


def backoff(failed_attempts: int) -> float:
    """Seconds between the end of an attempt and the next one."""
    return min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2.0 ** (failed_attempts - 1))


def arguments(seen_url: str, collection_id: str, job: JobRecord) -> tuple[str, ...]:
    """The command line of an attempt: one JSON spec, without secrets."""
    spec = {
        "kind": "snapshot",
        "url": seen_url,
        "collection": collection_id,
        "as_of": job.spec["as_of"],
        "destination": job.spec["destination"],
        "job_id": job.job_id,
        "attempt": job.attempt,
    }
    return (json.dumps(spec, separators=(",", ":")),)


def _current(seen: SnapshotObserved, job: JobRecord) -> AppState | None:
    return next((app for app in seen.apps if (app.job_id, app.attempt) == (job.job_id, job.attempt)), None)


def _running(seen: SnapshotObserved, job: JobRecord, what: str) -> SnapshotReport:
    return _report(
        seen,
        "Unknown",
        Reason.SNAPSHOT_RUNNING,
        f"attempt {job.attempt} {what}, as of {_as_of(job)}",
        requeue_after=2.0,
    )


def _not_installed(seen: SnapshotObserved) -> SnapshotReport:
    report = _report(
        seen,
        "False",
        Reason.SPARK_NOT_INSTALLED,
        "SparkApplications (sparkoperator.k8s.io/v1beta2) are not served, or not to this operator: install "
        "the Kubeflow Spark operator, and let the operator's role have them",
    )
    return replace(report, asks_again=True)


def _report(
    seen: SnapshotObserved,
    status: Any,
    reason: Reason,
    message: str,
    *,
    requeue_after: float | None = None,
) -> SnapshotReport:
    mark = Mark(ConditionType.SNAPSHOT_COMPLETED, status, reason, message)
    return SnapshotReport(mark, _fields(seen), requeue_after)


def _fields(seen: SnapshotObserved) -> Mapping[str, Any]:
    fields: dict[str, Any] = {}
    if seen.job is not None and seen.request is not None:
        app = _current(seen, seen.job)
        fields["snapshotJob"] = _dump(
            SnapshotJobStatus(
                request_id=seen.job.slot,
                job_id=seen.job.job_id,
                attempt=seen.job.attempt,
                as_of=frontier(_as_of(seen.job)),
                state=_STATES[seen.job.state],
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


_STATES: Final[Mapping[JobState, Any]] = {
    JobState.RUNNING: "Running",
    JobState.DONE: "Done",
    JobState.FAILED: "Failed",
}


def _as_of(job: JobRecord) -> int:
    return int(job.spec.get("as_of", 0))


def _dump(model: SnapshotJobStatus | SnapshotStatus) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
