"""The course of one Spark job, whatever it is for: a pure function of its record and its applications.

Invariants
- The JobRecord decides: Done is success whatever the application says, and without Done nothing is.
- An attempt is failed on record before its application is taken away, so that a driver that comes to life
  later can't commit any more.
- An application that isn't there any more may still have a driver: its attempt is over, the next one follows.
  Where it never was there, because the operator ended before, the same attempt is launched.
- What a job is to do is fixed with its first attempt; how many tasks do it, with each.
- A driver that has put its failure on record is left to end by itself for a while: what it still says is why.
- Only attempts that failed of themselves count, not those that were stopped by somebody's word.
- What is read is held by each attempt, from the step that puts it on record on. Between two attempts nothing
  holds it: where it is gone by then the job is over, for no attempt can bring it back.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
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
"""Who runs an attempt that has an application, in its JobRecord."""

_NOTHING: Final = StoredSize(0, 0)
_FIRST_BACKOFF: Final = 5.0
_LONGEST_BACKOFF: Final = 300.0
_QUEUE_SECONDS: Final = 5.0
_LAST_WORDS_S: Final = 30.0
"""A Spark that stops takes seconds, and somebody who took it away meanwhile would take its log."""


@dataclass(frozen=True, kw_only=True)
class SparkView:
    """What the plan for any Spark job depends on."""

    collection_id: str
    reachable: bool
    """Whether a pod can open the catalog's storage."""
    missing: str | None = None
    """Why there is nothing that runs Spark jobs, and what to do; None where there is."""
    objection: str | None = None
    """Why what runs them can't take the template, and what to do."""
    full: str | None = None
    """Why no attempt can be launched before another has ended."""
    apps: tuple[AppState, ...] = ()
    """Those of all jobs of the kind that the collection has; seen *before* the records were read."""
    launched: frozenset[tuple[str, int]] = frozenset()
    """Ids and attempts of jobs whose application the status shows: it was there."""
    stored: StoredSize = _NOTHING
    """How much there is to read."""
    since: int = 0
    """The earliest time that the collection can be read as of."""
    upper: int = 0
    """The time up to which it is complete."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


class JobPhase(Enum):
    """Where a job is."""

    NOT_INSTALLED = auto()
    NOT_SHARED = auto()
    NOT_TAKEN = auto()
    """The template asks for what can't be had."""
    QUEUED = auto()
    """Others run; it starts when one has ended."""
    RUNNING = auto()
    RETRYING = auto()
    FAILED = auto()
    """It was given up: somebody has to do something."""
    DONE = auto()


HINDRANCES: Final[Mapping[JobPhase, Reason]] = {
    JobPhase.NOT_INSTALLED: Reason.SPARK_NOT_INSTALLED,
    JobPhase.NOT_SHARED: Reason.STORAGE_NOT_SHARED,
    JobPhase.NOT_TAKEN: Reason.SPARK_TEMPLATE_REFUSED,
}
"""Where a job is that can't be run as things are, and what is shown of it."""


@dataclass(frozen=True)
class JobReport:
    """Nothing to do now about a job: where it is, in a line, and when to look again."""

    phase: JobPhase
    text: str
    requeue_after: float | None = None
    asks_again: bool = False
    """Whether it waits for what nobody tells of."""


def hindrance(seen: SparkView) -> JobReport | None:
    """Why no job can be started; None where one can."""
    if (refused := _refused(seen)) is not None:
        return refused
    if not seen.reachable:
        return JobReport(
            JobPhase.NOT_SHARED,
            "Spark pods can't open the catalog's storage: use storage that they can reach, "
            "or start the operator with --storage-shared where they see its files",
            asks_again=True,
        )
    return _queued(seen)


def plan_job(seen: SparkView, job: JobRecord, template: SparkTemplate) -> Decision | JobReport:
    """What to do next about a job that is on record."""
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
    """The application of the current attempt of a job."""
    return next((app for app in seen.apps if (app.job_id, app.attempt) == (job.job_id, job.attempt)), None)


def shown_launched(status: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    """Ids and attempts of the jobs whose application a status shows."""
    return frozenset((job["jobId"], job["attempt"]) for job in _shown_jobs(status) if "application" in job)


def shown_running(status: Mapping[str, Any]) -> tuple[str, ...]:
    """The attempts that a status shows as running, each in a few words."""
    running = (job for job in _shown_jobs(status) if job.get("state") == JobState.RUNNING.name.capitalize())
    return tuple(f"attempt {job['attempt']} of job {job['jobId']}" for job in running)


def _shown_jobs(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    shown = [each.get("job") or {} for each in status.get("renditions") or []]
    for noun in ("snapshot", "compaction"):
        shown.append(status.get(f"{noun}Job") or {})
        shown.append((status.get(f"{noun}Schedule") or {}).get("job") or {})
    return shown


def job_status(seen: SparkView, job: JobRecord) -> dict[str, Any]:
    """What a status shows of any job: record and application."""
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
    """The command line of an attempt: one JSON spec, without secrets. `order` is what its kind needs."""
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
    """The end of the current attempt of a job."""
    return FailAttempt(job.kind, job.job_id, job.attempt, error, app, stopped)


def ended(app: AppState, why: str) -> FailAttempt:
    """The end of an application's attempt by somebody's word."""
    return FailAttempt(app.kind, app.job_id, app.attempt, why, app, stopped=True)


def stopped(seen: SparkView, running: Iterable[JobRecord], why: str) -> FailAttempt | None:
    """The end of an attempt of Spark's, or of a driver that is left, whatever it does; None: there is none.

    Where an attempt has no application, nothing else would end it, nor what it holds.
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
    """The next attempt of a job, by Spark."""
    return RetryJob(seen.collection_id, job.job_id, tasks(seen.stored, template.executor), abandoned)


def is_ending(seen: SparkView, job: JobRecord) -> bool:
    """Whether the driver of an attempt that is on record as failed has time left to end by itself."""
    return job.state is JobState.FAILED and seen.now.timestamp() - job.finished_ms / 1000 < _LAST_WORDS_S


def _plan_running(seen: SparkView, job: JobRecord, template: SparkTemplate) -> Decision | JobReport:
    if seen.missing is not None:
        return _not_installed(seen.missing)
    app = application_of(seen, job)
    if app is None and (job.job_id, job.attempt) in seen.launched:
        return failed(job, "its application is gone")
    if app is None and seen.objection is not None:
        return failed(job, seen.objection)
    if app is None and (queued := _queued(seen)) is not None:
        return queued
    if app is None:
        return LaunchAttempt(seen.collection_id, job, tasks(seen.stored, template.executor))
    match app.phase:
        case AppPhase.FAILED:
            return failed(job, app.message or "its application failed")
        case AppPhase.SUCCEEDED:
            # Seen before the record: had it committed, the record would say so.
            return failed(job, "its application completed without committing a result")
        case AppPhase.PENDING | AppPhase.RUNNING | AppPhase.UNCLEAR:
            if (late := _late(app, template, seen.now)) is not None:
                return failed(job, late, app)
            return _running(job, _progress(app))
        case _:
            assert_never(app.phase)


def _late(app: AppState, template: SparkTemplate, now: datetime) -> str | None:
    """Which deadline an application passed first; None where it has passed none."""
    start, whole = template.start_deadline_seconds, template.attempt_deadline_seconds
    age, waits = (now - app.created).total_seconds(), app.phase is AppPhase.PENDING
    if waits and age > start and (whole is None or start <= whole):
        return f"its driver did not start within {start} s (startDeadlineSeconds){_because(app)}"
    if whole is not None and age > whole:
        return overran(whole) + (f"; its driver did not start{_because(app)}" if waits else "")
    return None


def _plan_retry(seen: SparkView, job: JobRecord, template: SparkTemplate) -> Decision | JobReport:
    leftover = application_of(seen, job)
    if leftover is not None and not leftover.phase.over:
        if is_ending(seen, job):
            return JobReport(
                JobPhase.RETRYING, f"attempt {job.attempt} failed: {job.error}; its driver ends", 2.0
            )
        return failed(job, job.error, leftover)
    failures = job.failures if job.by == SPARK else 0
    if failures >= template.max_attempts:
        return JobReport(JobPhase.FAILED, f"failed {failures} times, last: {job.error}")
    if job.as_of is not None and job.as_of < seen.since:
        text = (
            f"failed: {job.error}; it can't be tried again: as of {job.as_of} is gone, and the collection can"
            f" be read as of {frontier(seen.since)} on, more of the past with a longer spec.retention.period"
        )
        return JobReport(JobPhase.FAILED, text)
    if (refused := _refused(seen)) is not None:
        return refused
    wait = backoff(max(failures, 1)) - (seen.now.timestamp() - job.finished_ms / 1000)
    if wait > 0:
        text = f"attempt {job.attempt} failed: {job.error}; the next one follows by itself"
        return JobReport(JobPhase.RETRYING, text, wait)
    return _queued(seen) or retry(seen, job, template)


def backoff(failed_attempts: int) -> float:
    """Seconds between the end of an attempt and the next one."""
    return min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2.0 ** (failed_attempts - 1))


def _running(job: JobRecord, what: str) -> JobReport:
    return JobReport(JobPhase.RUNNING, f"attempt {job.attempt} {what}", 2.0)


def _refused(seen: SparkView) -> JobReport | None:
    if seen.missing is not None:
        return _not_installed(seen.missing)
    return None if seen.objection is None else JobReport(JobPhase.NOT_TAKEN, seen.objection, asks_again=True)


def _queued(seen: SparkView) -> JobReport | None:
    return None if seen.full is None else JobReport(JobPhase.QUEUED, seen.full, _QUEUE_SECONDS)


def _because(app: AppState) -> str:
    return f": {app.message}" if app.message else ""


def _progress(app: AppState) -> str:
    match app.phase:
        case AppPhase.PENDING:
            return "waits for its driver" + _because(app)
        case AppPhase.UNCLEAR:
            return f"is in the state {app.message}, which this operator doesn't know; it waits for another"
        case _:
            return "runs"


def _not_installed(missing: str) -> JobReport:
    return JobReport(JobPhase.NOT_INSTALLED, missing, asks_again=True)


SNAPSHOT: Final = "snapshot"
"""The kind of a snapshot's JobRecord."""


COMPACT: Final = "compact"
"""The kind of a compaction's JobRecord."""
