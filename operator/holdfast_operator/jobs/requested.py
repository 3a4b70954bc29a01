"""The plan for the jobs that a StorageCollection requests: a pure function of records and applications.

A job runs like all Spark jobs (`course`), and its schedule works like all schedules (`scheduled`). A kind of
jobs (`RequestedKind`) adds what the job does, when it can start, and what is shown: `snapshot`, `compaction`.

Invariants
- The work of a job is fixed at its first attempt. So all attempts of a job do the same.
- Only one such job of each collection runs at a time. A request goes before a scheduled run, but doesn't end
  one that is running.
- A scheduled run that failed is retried until the next one is due. No run waits behind it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, assert_never

from pydantic import BaseModel

from holdfast.collections import JobRecord, JobState
from holdfast.errors import BadInput
from holdfast_operator.api.collection import SparkTask
from holdfast_operator.api.cron import ScheduleStatus
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.health import WantedCondition
from holdfast_operator.engine.status_writer import timestamp
from holdfast_operator.engine.steps import Decision
from holdfast_operator.jobs.course import (
    JobPhase,
    JobReport,
    SparkView,
    application_of,
    failed,
    hindrance,
    plan_job,
)
from holdfast_operator.jobs.scheduled import Scheduled, Turn, long_over, missed_notes, slot_of, time_of, turn
from holdfast_operator.jobs.steps import FailAttempt, StartJob

Json = dict[str, Any]

_QUEUE_SECONDS: Final = 30.0
"""Many schedules are due at the same time. So a scheduled run checks less often whether it may start."""
_SUPERSEDED: Final = "it is not asked for any more"


@dataclass(frozen=True)
class JobRequest:
    """A request of one job. The same id never runs twice."""

    request_id: str
    task: SparkTask


@dataclass(frozen=True)
class Order:
    """One requested job, and the condition that shows it."""

    slot: str
    task: SparkTask
    """The work, with its part of the Spark template."""
    template: SparkTemplate
    shown: ConditionType
    again: str
    """What to do, or what happens next, if the job was given up."""
    name: str = ""
    """The name of the job in messages. Empty for its kind and its slot."""


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """The parts that differ between kinds of jobs. The callables take the kind's own `RequestedView`."""

    job: str
    """The kind of its JobRecords."""
    noun: str
    """The name of the kind in messages and in the names of fields."""
    reasons: Mapping[JobPhase, Reason]
    start: "Callable[[Any, Order], StartJob | RequestedReport]"
    """Returns a step that starts a job, or what the job waits for. Called if nothing else prevents a
    start."""
    running: Callable[[JobRecord], str]
    """Returns text to add to the message of a running job."""
    done: Callable[[JobRecord], str]
    """Returns text about a job that has committed."""


@dataclass(frozen=True, kw_only=True)
class RequestedKind(JobKind):
    """A kind of jobs that a StorageCollection can request, or run on a schedule."""

    shown: ConditionType
    scheduled: ConditionType
    awaited: Reason
    """The reason if no run of a schedule has started yet."""
    job_status: Callable[[Any, JobRecord], BaseModel]
    schedule_status: Callable[[ScheduleStatus, Any], BaseModel]
    last_status: Callable[[JobRecord], BaseModel]

    @property
    def job_field(self) -> str:
        """The status field of the requested job."""
        return f"{self.noun}Job"

    @property
    def schedule_field(self) -> str:
        """The field of the schedule, in the spec and in the status."""
        return f"{self.noun}Schedule"

    @property
    def last_field(self) -> str:
        """The status field of the last committed job."""
        return f"last{self.noun.capitalize()}"


@dataclass(frozen=True, kw_only=True)
class RequestedView(SparkView):
    """Everything that the plans for the jobs of one kind depend on."""

    kind: ClassVar[Any]
    """Its `JobKind`."""
    request: Any
    """What requests the job, or None."""
    template: SparkTemplate
    """The template of the requested job, or of the job that feeds the collection."""
    job: JobRecord | None = None
    last: JobRecord | None = None
    """The last committed job."""
    running: tuple[JobRecord, ...] = ()
    """All running jobs of this kind."""
    waits_for: str | None = None
    """A running job of another kind that must end first."""
    scheduled: Scheduled[Any] | None = None


@dataclass(frozen=True)
class RequestedReport:
    """Nothing to do now. Has what to show, and when to reconcile again."""

    condition: WantedCondition | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    requeue_after: float | None = None
    asks_again: bool = False
    """Whether it waits for something that triggers no event, so that it must be checked regularly."""
    notes: tuple[Note, ...] = ()


class KnownJobs(NamedTuple):
    """The recorded jobs of one kind."""

    job: JobRecord | None
    """The requested job."""
    last: JobRecord | None
    """The last committed job."""
    running: tuple[JobRecord, ...]


def jobs_of(kind: RequestedKind, known: Sequence[JobRecord], request: JobRequest | None) -> KnownJobs:
    """Returns the jobs of a kind among all recorded jobs of a collection."""
    jobs = [job for job in known if job.kind == kind.job]
    done = [job for job in jobs if job.state is JobState.DONE]
    slot = None if request is None else request.request_id
    return KnownJobs(
        job=next((job for job in jobs if job.slot == slot), None),
        last=max(done, key=lambda job: job.finished_ms, default=None),
        running=tuple(job for job in jobs if job.state is JobState.RUNNING),
    )


def runs_of(kind: RequestedKind, known: Sequence[JobRecord]) -> tuple[JobRecord, ...]:
    """Returns the jobs of a kind that a schedule requested."""
    return tuple(job for job in known if job.kind == kind.job and time_of(job.slot) is not None)


def plan(seen: RequestedView) -> Decision | RequestedReport:
    """Returns the next step for the requested job and for jobs that are no longer requested."""
    kind, request = seen.kind, seen.request
    run = seen.scheduled.latest if seen.scheduled is not None else None
    wanted = {job.job_id for job in (seen.job if request else None, run) if job is not None}
    for app in seen.apps:
        if app.job_id not in wanted and not app.phase.over:
            return FailAttempt(kind.job, app.job_id, app.attempt, _SUPERSEDED, app, stopped=True)
    for job in seen.running:
        if job.job_id not in wanted:
            # Without an application, nothing else would end the job and release the time that it holds.
            return failed(job, _SUPERSEDED, stopped=True)
    if request is None:
        return RequestedReport(fields=job_fields(seen))
    again = "fix the cause and request another one: kubectl holdfast compact"
    order = Order(request.request_id, request.task, seen.template, kind.shown, again)
    report = plan_order(seen, order)
    return report if isinstance(report, Decision) else replace(report, fields=job_fields(seen))


def plan_order(seen: RequestedView, order: Order) -> Decision | RequestedReport:
    """Returns the next step for one ordered job, whose record is `seen.job`. The report has no fields."""
    return _plan_order(_beside(seen, seen.job), order, seen.job)


def plan_scheduled(seen: RequestedView) -> Decision | RequestedReport:
    """Returns the next step for the jobs of a schedule."""
    kind, asked = seen.kind, seen.scheduled
    if asked is None:
        return RequestedReport()
    if (forgotten := long_over(asked.runs, seen.last)) is not None:
        return forgotten
    seen = replace(seen, objection=asked.objection)
    try:
        found = turn(asked, seen.reached)
    except BadInput as error:
        text = f"spec.{kind.schedule_field}: {error}; correct it"
        return condition_report(kind.scheduled, "False", Reason.INVALID_SCHEDULE, text)
    report = _plan_run(seen, asked, found)
    if isinstance(report, Decision):
        return report
    due = [found.look_after]
    if report.requeue_after is not None:
        queued = report.condition is not None and report.condition.reason is kind.reasons[JobPhase.QUEUED]
        due.append(_QUEUE_SECONDS if queued else report.requeue_after)
    return replace(
        report,
        fields={kind.schedule_field: _schedule_status(seen, found.shown, asked.latest)},
        requeue_after=min(due),
        notes=missed_notes(found),
    )


def _plan_run(seen: RequestedView, asked: Scheduled[Any], found: Turn) -> Decision | RequestedReport:
    kind = seen.kind
    job, again = asked.latest, f"the next one is due at {timestamp(found.upcoming)}"
    if found.due is not None and not _is_at_work(seen, job):
        order = Order(slot_of(found.due), asked.spec, asked.template, kind.scheduled, again)
        return _plan_order(_beside(seen, None), order, None)
    over = job is None or job.state is JobState.DONE
    if over and asked.spec.suspend:
        text = f"no run starts until spec.{kind.schedule_field}.suspend is false again"
        return condition_report(kind.scheduled, "Unknown", Reason.SUSPENDED, text)
    if over and seen.objection is not None:
        # Its next run can't start. That may be in a week, so it is shown now.
        return condition_report(kind.scheduled, "False", kind.reasons[JobPhase.NOT_TAKEN], seen.objection)
    if job is None:
        return condition_report(kind.scheduled, "Unknown", kind.awaited, f"the first run: {again}")
    order = Order(job.slot, asked.spec, asked.template, kind.scheduled, again)
    return _plan_order(_beside(seen, job), order, job)


def _is_at_work(seen: RequestedView, job: JobRecord | None) -> bool:
    """Returns whether an attempt of a job is running, or a failed one may still have a driver."""
    if job is None or job.state is JobState.RUNNING:
        return job is not None
    app = application_of(seen, job)
    return app is not None and not app.phase.over


def _beside(seen: RequestedView, job: JobRecord | None) -> RequestedView:
    """Returns the view for a job that waits while another one is running."""
    if job is not None and job.state is JobState.RUNNING:
        return seen
    other = f"{seen.kind.noun} {seen.running[0].slot}" if seen.running else seen.waits_for
    return seen if other is None else replace(seen, full=f"waiting for {other} to end")


def _plan_order(seen: RequestedView, order: Order, job: JobRecord | None) -> Decision | RequestedReport:
    if job is not None:
        course = plan_job(seen, job, order.template)
        return course if isinstance(course, Decision) else _shown(seen.kind, order, job, course)
    hindered = hindrance(seen)
    if hindered is None:
        start: StartJob | RequestedReport = seen.kind.start(seen, order)
        return start
    if hindered.phase is not JobPhase.QUEUED:
        return _hindered(seen.kind, order, hindered)
    after = hindered.requeue_after
    return condition_report(
        order.shown, "Unknown", seen.kind.reasons[JobPhase.QUEUED], hindered.text, requeue_after=after
    )


def _shown(kind: JobKind, order: Order, job: JobRecord, course: JobReport) -> RequestedReport:
    status, text = "Unknown", course.text
    name = order.name or f"{kind.noun} {order.slot}"
    match course.phase:
        case (
            JobPhase.NOT_INSTALLED
            | JobPhase.NOT_SHARED
            | JobPhase.NOT_TAKEN
            | JobPhase.NO_SECRET
            | JobPhase.NOT_LAUNCHED
        ):
            return _hindered(kind, order, course)
        case JobPhase.RUNNING:
            text += kind.running(job)
        case JobPhase.RETRYING | JobPhase.QUEUED:
            pass
        case JobPhase.FAILED:
            status = "False"
            text = f"{name} {text}; {order.again}"
        case JobPhase.DONE:
            status = "True"
            text = f"{name} is committed: {kind.done(job)}"
        case _:
            assert_never(course.phase)
    return condition_report(
        order.shown, status, kind.reasons[course.phase], text, requeue_after=course.requeue_after
    )


def _hindered(kind: JobKind, order: Order, course: JobReport) -> RequestedReport:
    after = course.requeue_after
    report = condition_report(
        order.shown, "False", kind.reasons[course.phase], course.text, requeue_after=after
    )
    return replace(report, asks_again=course.asks_again)


def condition_report(
    shown: ConditionType,
    status: Any,
    reason: Reason,
    message: str,
    *,
    requeue_after: float | None = None,
) -> RequestedReport:
    """Returns a report with one condition."""
    return RequestedReport(WantedCondition(shown, status, reason, message), requeue_after=requeue_after)


def job_fields(seen: RequestedView) -> Mapping[str, Any]:
    """Returns the status fields of the requested jobs and of the last committed one."""
    kind, fields = seen.kind, dict[str, Any]()
    if seen.request is not None:
        fields[f"{kind.noun}Request"] = seen.request.request_id
    if seen.job is not None and seen.request is not None:
        fields[kind.job_field] = _dump(kind.job_status(seen, seen.job))
    if seen.scheduled is not None:
        shown, latest = seen.scheduled.shown, seen.scheduled.latest
        fields[kind.schedule_field] = _schedule_status(seen, shown, latest)
    if seen.last is not None:
        fields[kind.last_field] = _dump(kind.last_status(seen.last))
    return fields


def _schedule_status(seen: RequestedView, shown: ScheduleStatus, job: JobRecord | None) -> Json:
    status = None if job is None else seen.kind.job_status(seen, job)
    return _dump(seen.kind.schedule_status(shown, status))


def _dump(model: BaseModel) -> Json:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
