"""The plan for one Spark job of any kind: a pure function of its JobRecord and its applications.

Invariants
- The JobRecord decides. A job has succeeded if its record is Done, and only then, no matter what the
  application reports.
- The record of an attempt is set to failed before its application is deleted. So a driver that starts late
  can't commit any more.
- If an application is gone, its driver may still be running. So its attempt has failed, and the next one
  follows. If it never existed, because the operator stopped first, the same attempt is launched.
- The work of a job is fixed at its first attempt. The number of tasks is chosen at each attempt.
- An attempt has one application. If two appear, of different kinds, the attempt is stopped and both are
  deleted. This happens if a request of another process took effect late.
- A driver that has recorded its failure gets some time to end by itself, because its log may explain the
  failure.
- Only attempts that fail by themselves count, not attempts that were stopped on request.
- Each attempt holds the time that it reads, from the step that records the attempt. Between two attempts,
  nothing holds it. If the time is no longer readable by then, the job has failed, because no attempt could
  read it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Final, assert_never

from holdfast.collections import JobRecord, JobState
from holdfast.persist import StoredSize
from holdfast_operator.api.base import frontier
from holdfast_operator.api.names import Reason
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.steps import Decision
from holdfast_operator.jobs.steps import FailAttempt, LaunchAttempt, RetryJob
from holdfast_operator.sparkapps.adapter import AppPhase, AppState, overran
from holdfast_operator.sparkapps.sizing import tasks

SPARK: Final = "spark"
"""In a JobRecord: Spark runs the attempt, which has an application."""

COLLECTION_SUSPENDED: Final = "spec.suspend is true"
"""The error of attempts that were stopped because their collection is suspended."""

_NOTHING: Final = StoredSize(0, 0)
_LATE_SECONDS: Final = 1.0
"""How long after a deadline to check it. The API server rounds times to seconds."""
_FIRST_BACKOFF: Final = 5.0
_LONGEST_BACKOFF: Final = 300.0
_QUEUE_SECONDS: Final = 5.0
_CHECK_SECONDS: Final = 30.0
"""How often to check a running attempt. Watches report changes of its application, and polls those of its
record. A passed deadline has its own check."""
_LAST_WORDS_S: Final = 30.0
"""Spark takes seconds to stop. Deleting its application earlier would also delete its log."""


@dataclass(frozen=True, kw_only=True)
class SparkView:
    """Everything that the plan for a Spark job of any kind depends on."""

    collection_id: str
    reachable: bool
    """Whether a pod can open the catalog's storage."""
    missing: str | None = None
    """Why the cluster can't run Spark jobs, and what to do. None if it can."""
    objection: str | None = None
    """Why the Spark adapter can't run the template, and what to do. None if it can."""
    no_secret: str | None = None
    """Which Secret the job needs and can't have, and what to do. None if it has what it needs."""
    not_launched: str | None = None
    """How the last request for an application failed, if several in a row did and the next one is not due."""
    full: str | None = None
    """Why no attempt can be launched before another one ends. None if it can."""
    apps: tuple[AppState, ...] = ()
    """The applications of all jobs of this kind for the collection, read *before* the records."""
    launched: frozenset[tuple[str, int]] = frozenset()
    """Ids and attempts of the jobs whose application the status shows. So it existed."""
    stored: StoredSize = _NOTHING
    """How much data there is to read."""
    since: int = 0
    """The earliest time at which the collection can be read."""
    upper: int = 0
    """The collection is complete before this time."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    ahead: timedelta = timedelta()
    """How far `now` is ahead of the API server's clock, which the times of applications are from."""
    failed_for: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """How long this process has known that an attempt failed, in seconds, by id and attempt of its job."""

    @property
    def reached(self) -> datetime:
        """The time that both clocks have reached. So one wrong clock starts or deletes nothing too early."""
        return self.now - max(self.ahead, timedelta())

    def age_of(self, app: AppState) -> float:
        """Returns the seconds since an application was created."""
        return (self.now - self.ahead - app.created).total_seconds()


class JobPhase(Enum):
    """The phase of a job."""

    NOT_INSTALLED = auto()
    NOT_SHARED = auto()
    NOT_TAKEN = auto()
    """The Spark adapter can't run the template."""
    NO_SECRET = auto()
    """A Secret that the job needs is missing, or a key of it."""
    NOT_LAUNCHED = auto()
    """The API server fails to create its application."""
    QUEUED = auto()
    """It waits for another job to end."""
    RUNNING = auto()
    RETRYING = auto()
    FAILED = auto()
    """It was given up: you have to do something."""
    DONE = auto()


HINDRANCES: Final[Mapping[JobPhase, Reason]] = {
    JobPhase.NOT_INSTALLED: Reason.SPARK_NOT_INSTALLED,
    JobPhase.NOT_SHARED: Reason.STORAGE_NOT_SHARED,
    JobPhase.NOT_TAKEN: Reason.SPARK_TEMPLATE_REFUSED,
    JobPhase.NO_SECRET: Reason.SECRET_NOT_FOUND,
    JobPhase.NOT_LAUNCHED: Reason.LAUNCH_FAILED,
}
"""The phases in which a job can't run at present, and their reasons."""


@dataclass(frozen=True)
class JobReport:
    """Nothing to do now for a job. Has its phase, one line of text, and when to reconcile again."""

    phase: JobPhase
    text: str
    requeue_after: float | None = None
    asks_again: bool = False
    """Whether it waits for something that triggers no event, so that it must be checked regularly."""


def hindrance(seen: SparkView) -> JobReport | None:
    """Returns why no job can be started, or None if one can."""
    if (refused := _refused(seen)) is not None:
        return refused
    if not seen.reachable:
        return JobReport(
            JobPhase.NOT_SHARED,
            "Spark pods can't open the catalog's storage: use storage that they can reach, "
            "or start the operator with --storage-shared if they see its files",
            asks_again=True,
        )
    return _held_up(seen)


def plan_job(seen: SparkView, job: JobRecord, template: SparkTemplate) -> Decision | JobReport:
    """Returns the next step for a job that has a record, or what to show."""
    match job.state:
        case JobState.DONE:
            return JobReport(JobPhase.DONE, f"attempt {job.attempt} has committed")
        case JobState.FAILED:
            return _plan_retry(seen, job, template)
        case JobState.RUNNING:
            return _plan_running(seen, job, template)
        case _:
            assert_never(job.state)


def application_of(seen: SparkView, job: JobRecord) -> AppState | None:
    """Returns the application of a job's current attempt, or None. If there are two, one that isn't over."""
    return min(_applications_of(seen, job), key=lambda app: app.phase.over, default=None)


def _applications_of(seen: SparkView, job: JobRecord) -> list[AppState]:
    return [app for app in seen.apps if (app.job_id, app.attempt) == (job.job_id, job.attempt)]


def shown_launched(status: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    """Returns ids and attempts of the jobs whose application a status shows."""
    return frozenset((job["jobId"], job["attempt"]) for job in _shown_jobs(status) if "application" in job)


def shown_applications(status: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names of the applications that a status shows."""
    return frozenset(job["application"] for job in _shown_jobs(status) if "application" in job)


def shown_running(status: Mapping[str, Any]) -> tuple[str, ...]:
    """Describes the attempts that a status shows as running."""
    running = (job for job in _shown_jobs(status) if job.get("state") == JobState.RUNNING.name.capitalize())
    return tuple(f"attempt {job['attempt']} of job {job['jobId']}" for job in running)


def _shown_jobs(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    shown = [status.get("job") or {}, *(each.get("job") or {} for each in status.get("renditions") or [])]
    shown.append((status.get("source") or {}).get("job") or {})
    shown.append((status.get("sourceSchedule") or {}).get("job") or {})
    shown.append(status.get("compactionJob") or {})
    shown.append((status.get("compactionSchedule") or {}).get("job") or {})
    return shown


def job_status(seen: SparkView, job: JobRecord) -> dict[str, Any]:
    """Returns the status fields of a job of any kind, from its record and its application."""
    app = application_of(seen, job)
    return {
        "job_id": job.job_id,
        "attempt": job.attempt,
        "state": job.state.name.capitalize(),
        "application": app.name if app else None,
        "started": app.created if app else None,
    }


def arguments(
    place: Mapping[str, str], collection_id: str, job: JobRecord, order: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns the command line of an attempt: one JSON spec without secrets. `order` depends on the kind."""
    spec = {
        "kind": job.kind,
        **place,
        "collection": collection_id,
        **order,
        "job_id": job.job_id,
        "attempt": job.attempt,
    }
    return (json.dumps(spec, separators=(",", ":")),)


def failed(job: JobRecord, error: str, app: AppState | None = None, *, stopped: bool = False) -> FailAttempt:
    """Returns a step that ends a job's current attempt."""
    return FailAttempt(job.kind, job.job_id, job.attempt, error, app, stopped)


def ended(app: AppState, why: str) -> FailAttempt:
    """Returns a step that stops the attempt of an application."""
    return FailAttempt(app.kind, app.job_id, app.attempt, why, app, stopped=True)


def stopped(seen: SparkView, running: Iterable[JobRecord], why: str) -> FailAttempt | None:
    """Returns a step that stops a Spark attempt or a remaining driver, or None if there are none.

    An attempt without an application must be stopped too: otherwise it would hold its time for ever.
    """
    for job in running:
        if job.by == SPARK:
            app = application_of(seen, job)
            return failed(job, why, None if app is None or app.phase.over else app, stopped=True)
    return next((ended(app, why) for app in seen.apps if not app.phase.over), None)


def retry(
    seen: SparkView,
    job: JobRecord,
    template: SparkTemplate,
    *,
    abandoned: int | None = None,
) -> RetryJob:
    """Returns a step that starts the next Spark attempt of a job."""
    return RetryJob(seen.collection_id, job.job_id, tasks(seen.stored, template.executor), abandoned)


def is_ending(seen: SparkView, job: JobRecord) -> bool:
    """Returns whether the driver of an attempt that is recorded as failed may still end by itself."""
    return job.state is JobState.FAILED and _since_end(seen, job) < _LAST_WORDS_S


def _since_end(seen: SparkView, job: JobRecord) -> float:
    """Returns the seconds since an attempt was recorded as failed, perhaps by a host with another clock."""
    known = seen.failed_for.get((job.job_id, job.attempt), 0.0)
    return max(seen.now.timestamp() - job.finished_ms / 1000, known)


def _plan_running(seen: SparkView, job: JobRecord, template: SparkTemplate) -> Decision | JobReport:
    if seen.missing is not None:
        return _not_installed(seen.missing)
    app = application_of(seen, job)
    if app is not None and len(adapters := {each.via for each in _applications_of(seen, job)}) > 1:
        why = f"it has applications of several kinds ({', '.join(sorted(adapters))})"
        return failed(job, why, app, stopped=True)
    if app is None and (job.job_id, job.attempt) in seen.launched:
        return failed(job, "its application is gone")
    if app is None and seen.objection is not None:
        return failed(job, seen.objection)
    if app is None and (waits := _no_secret(seen) or _held_up(seen)) is not None:
        return waits
    if app is None:
        return LaunchAttempt(seen.collection_id, job, tasks(seen.stored, template.executor))
    match app.phase:
        case AppPhase.FAILED:
            return failed(job, app.message or "its application failed")
        case AppPhase.SUCCEEDED:
            # The application was read before the record. If it had committed, the record would show it.
            return failed(job, "its application completed without committing a result")
        case AppPhase.PENDING | AppPhase.RUNNING | AppPhase.UNCLEAR:
            age = seen.age_of(app)
            if (late := _late(app, template, age)) is not None:
                return failed(job, late, app)
            return _running(job, app, template, age)
        case _:
            assert_never(app.phase)


def _late(app: AppState, template: SparkTemplate, age: float) -> str | None:
    """Returns which deadline an application exceeded first, or None."""
    start, whole = template.start_deadline_seconds, template.attempt_deadline_seconds
    waits = app.phase is AppPhase.PENDING
    if waits and age > start and (whole is None or start <= whole):
        return f"its driver did not start within {start} s (startDeadline){_because(app)}"
    if whole is not None and age > whole:
        return overran(whole) + (f"; its driver did not start{_because(app)}" if waits else "")
    return None


def _plan_retry(seen: SparkView, job: JobRecord, template: SparkTemplate) -> Decision | JobReport:
    leftover = application_of(seen, job)
    if leftover is not None and not leftover.phase.over:
        if is_ending(seen, job):
            text = f"attempt {job.attempt} failed: {job.error}; its driver is ending"
            return JobReport(JobPhase.RETRYING, text, _LAST_WORDS_S - _since_end(seen, job))
        return failed(job, job.error, leftover)
    failures = job.failures if job.by == SPARK else 0
    if failures >= template.max_attempts:
        return JobReport(JobPhase.FAILED, f"failed {failures} times, last: {job.error}")
    if job.as_of is not None and job.as_of < seen.since:
        text = (
            f"failed: {job.error}; it can't be retried: time {job.as_of} is gone, the earliest readable time "
            f"is {frontier(seen.since)}; a longer spec.retention.period keeps more history"
        )
        return JobReport(JobPhase.FAILED, text)
    if (refused := _refused(seen)) is not None:
        return refused
    wait = backoff(max(failures, 1)) - _since_end(seen, job)
    if wait > 0:
        text = f"attempt {job.attempt} failed: {job.error}; the next one follows by itself"
        return JobReport(JobPhase.RETRYING, text, wait)
    return _held_up(seen) or retry(seen, job, template)


def backoff(failed_attempts: int) -> float:
    """Returns the seconds between the end of an attempt and the next one."""
    return min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2.0 ** (failed_attempts - 1))


def _running(job: JobRecord, app: AppState, template: SparkTemplate, age: float) -> JobReport:
    whole = template.attempt_deadline_seconds
    deadlines = [] if whole is None else [whole]
    if app.phase is AppPhase.PENDING:
        deadlines.append(template.start_deadline_seconds)
    due = min([_CHECK_SECONDS, *(max(each - age, 0.0) + _LATE_SECONDS for each in deadlines)])
    return JobReport(JobPhase.RUNNING, f"attempt {job.attempt} {_progress(app)}{_instead(app)}", due)


def _refused(seen: SparkView) -> JobReport | None:
    if seen.missing is not None:
        return _not_installed(seen.missing)
    if seen.objection is not None:
        return JobReport(JobPhase.NOT_TAKEN, seen.objection, asks_again=True)
    return _no_secret(seen)


def _no_secret(seen: SparkView) -> JobReport | None:
    return None if seen.no_secret is None else JobReport(JobPhase.NO_SECRET, seen.no_secret, asks_again=True)


def _held_up(seen: SparkView) -> JobReport | None:
    if seen.not_launched is not None:
        return JobReport(JobPhase.NOT_LAUNCHED, seen.not_launched, _QUEUE_SECONDS)
    return None if seen.full is None else JobReport(JobPhase.QUEUED, seen.full, _QUEUE_SECONDS)


def _because(app: AppState) -> str:
    return f": {app.message}" if app.message else ""


def _progress(app: AppState) -> str:
    match app.phase:
        case AppPhase.PENDING:
            return "waits for its driver" + _because(app)
        case AppPhase.UNCLEAR:
            return f"is in state {app.message}, which this operator doesn't know; waiting for another state"
        case _:
            return "runs"


def _instead(app: AppState) -> str:
    """Returns why other adapters did not launch an application, as the end of a sentence."""
    if not app.passed_over:
        return ""
    names = " and ".join(each.adapter for each in app.passed_over)
    return f"; adapter {app.via} launched it, because nobody noticed the last application of adapter {names}"


def _not_installed(missing: str) -> JobReport:
    return JobReport(JobPhase.NOT_INSTALLED, missing, asks_again=True)


SNAPSHOT: Final = "snapshot"
"""The kind of a snapshot's JobRecord."""


COMPACT: Final = "compact"
"""The kind of a compaction's JobRecord."""
