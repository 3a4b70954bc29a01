"""The plan for the jobs that a StorageCollection asks for: a pure function of records and applications.

Invariants
- The course of a job is that of all Spark jobs (`course`), and when a run of a schedule is due is that of
  all schedules (`scheduled`). What a job of one kind does, when it can start and what is shown of it is that
  kind's (`RequestedKind`): a snapshot's (`snapshot`), a compaction's (`compaction`).
- What is done is fixed with the first attempt: all attempts of a job do the same.
- Of a collection one such job runs at a time. What somebody asks for goes before what a schedule does, but
  ends nothing of it.
- A run of a schedule that failed is tried again until the next one is due: none waits behind it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, assert_never

from pydantic import BaseModel

from holdfast.collections import JobRecord, JobState
from holdfast.errors import BadInput
from holdfast_operator.api.collection import JobRequest, SparkTask
from holdfast_operator.api.cron import ScheduleStatus
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.status import WantedCondition, timestamp
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
"""Many schedules come due at once: what nobody waits for looks less often whether it may start."""
_SUPERSEDED: Final = "it is not asked for any more"


@dataclass(frozen=True)
class Order:
    """One job that is asked for, and how that is shown."""

    slot: str
    task: SparkTask
    shown: ConditionType
    again: str
    """What to do, or what comes, where it was given up."""


@dataclass(frozen=True, kw_only=True)
class RequestedKind:
    """What a kind of jobs has of its own. `seen` is the kind's own `RequestedView`."""

    job: str
    """The kind of its JobRecords."""
    noun: str
    """What people call it; also the field of the spec that asks for one."""
    shown: ConditionType
    scheduled: ConditionType
    reasons: Mapping[JobPhase, Reason]
    awaited: Reason
    """No run of a schedule has begun yet."""
    start: "Callable[[Any, Order], StartJob | RequestedReport]"
    """What begins a job, or what it waits for; nothing hinders it."""
    running: Callable[[JobRecord], str]
    """What is told of one that runs, beside that it does."""
    done: Callable[[JobRecord], str]
    """What is told of one that has committed."""
    job_status: Callable[[Any, JobRecord], BaseModel]
    schedule_status: Callable[[ScheduleStatus, Any], BaseModel]
    last_status: Callable[[JobRecord], BaseModel]

    @property
    def job_field(self) -> str:
        """The field of the status about the job that is asked for."""
        return f"{self.noun}Job"

    @property
    def schedule_field(self) -> str:
        """The field of the spec, and of the status, about its schedule."""
        return f"{self.noun}Schedule"

    @property
    def last_field(self) -> str:
        """The field of the status about the one that was committed last."""
        return f"last{self.noun.capitalize()}"


@dataclass(frozen=True, kw_only=True)
class RequestedView(SparkView):
    """What the plans for the jobs of one kind depend on."""

    kind: ClassVar[RequestedKind]
    request: Any
    """The `SparkTask` that somebody asks for, with the `requestId` of it; None where nobody does."""
    job: JobRecord | None = None
    last: JobRecord | None = None
    """The one that was committed last."""
    running: tuple[JobRecord, ...] = ()
    """All of its jobs that run."""
    waits_for: str | None = None
    """What runs for the collection beside them, that has to end first."""
    scheduled: Scheduled[Any] | None = None


@dataclass(frozen=True)
class RequestedReport:
    """Nothing to do now: what to show, and when to look again."""

    condition: WantedCondition | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    requeue_after: float | None = None
    asks_again: bool = False
    """Whether it waits for what nobody tells of."""
    notes: tuple[Note, ...] = ()


class KnownJobs(NamedTuple):
    """The jobs of one kind on record."""

    job: JobRecord | None
    """The one that is asked for now."""
    last: JobRecord | None
    """The one that was committed last."""
    running: tuple[JobRecord, ...]


def jobs_of(kind: RequestedKind, known: Sequence[JobRecord], request: JobRequest | None) -> KnownJobs:
    """The jobs of a kind among all that are on record for a collection."""
    jobs = [job for job in known if job.kind == kind.job]
    done = [job for job in jobs if job.state is JobState.DONE]
    slot = None if request is None else request.request_id
    return KnownJobs(
        job=next((job for job in jobs if job.slot == slot), None),
        last=max(done, key=lambda job: job.finished_ms, default=None),
        running=tuple(job for job in jobs if job.state is JobState.RUNNING),
    )


def runs_of(kind: RequestedKind, known: Sequence[JobRecord]) -> tuple[JobRecord, ...]:
    """The jobs of a kind that a schedule asked for."""
    return tuple(job for job in known if job.kind == kind.job and time_of(job.slot) is not None)


def plan(seen: RequestedView) -> Decision | RequestedReport:
    """What to do next about the job that somebody asks for, and about what nobody asks for any more."""
    kind, request = seen.kind, seen.request
    run = seen.scheduled.latest if seen.scheduled is not None else None
    wanted = {job.job_id for job in (seen.job if request else None, run) if job is not None}
    for app in seen.apps:
        if app.job_id not in wanted and not app.phase.over:
            return FailAttempt(kind.job, app.job_id, app.attempt, _SUPERSEDED, app, stopped=True)
    for job in seen.running:
        if job.job_id not in wanted:
            # Without an application nothing would end it, nor what it holds.
            return failed(job, _SUPERSEDED, stopped=True)
    if request is None:
        return RequestedReport(fields=job_fields(seen))
    again = f"mend that and set a new spec.{kind.noun}.requestId"
    order = Order(request.request_id, request, kind.shown, again)
    report = _plan_order(_beside(seen, seen.job), order, seen.job)
    return report if isinstance(report, Decision) else replace(report, fields=job_fields(seen))


def plan_scheduled(seen: RequestedView) -> Decision | RequestedReport:
    """What to do next about the jobs of a schedule."""
    kind, asked = seen.kind, seen.scheduled
    if asked is None:
        return RequestedReport()
    if (forgotten := long_over(asked.runs, seen.last)) is not None:
        return forgotten
    seen = replace(seen, objection=asked.objection)
    try:
        found = turn(asked, seen.now)
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
        order = Order(slot_of(found.due), asked.spec, kind.scheduled, again)
        return _plan_order(_beside(seen, None), order, None)
    over = job is None or job.state is JobState.DONE
    if over and asked.spec.suspend:
        text = f"no run begins before spec.{kind.schedule_field}.suspend is false again"
        return condition_report(kind.scheduled, "Unknown", Reason.SUSPENDED, text)
    if job is None:
        return condition_report(kind.scheduled, "Unknown", kind.awaited, f"the first run: {again}")
    return _plan_order(_beside(seen, job), Order(job.slot, asked.spec, kind.scheduled, again), job)


def _is_at_work(seen: RequestedView, job: JobRecord | None) -> bool:
    """Whether an attempt of a job runs, or one that failed may still have a driver."""
    if job is None or job.state is JobState.RUNNING:
        return job is not None
    app = application_of(seen, job)
    return app is not None and not app.phase.over


def _beside(seen: RequestedView, job: JobRecord | None) -> RequestedView:
    """The same for a job that waits while another one runs."""
    if job is not None and job.state is JobState.RUNNING:
        return seen
    other = f"{seen.kind.noun} {seen.running[0].slot}" if seen.running else seen.waits_for
    return seen if other is None else replace(seen, full=f"{other} runs; it starts when that has ended")


def _plan_order(seen: RequestedView, order: Order, job: JobRecord | None) -> Decision | RequestedReport:
    if job is not None:
        course = plan_job(seen, job, order.task.spark)
        return course if isinstance(course, Decision) else _shown(seen.kind, order, job, course)
    hindered = hindrance(seen)
    if hindered is None:
        return seen.kind.start(seen, order)
    if hindered.phase is not JobPhase.QUEUED:
        return _hindered(seen.kind, order, hindered)
    after = hindered.requeue_after
    return condition_report(
        order.shown, "Unknown", seen.kind.reasons[JobPhase.QUEUED], hindered.text, requeue_after=after
    )


def _shown(kind: RequestedKind, order: Order, job: JobRecord, course: JobReport) -> RequestedReport:
    status, text = "Unknown", course.text
    match course.phase:
        case JobPhase.NOT_INSTALLED | JobPhase.NOT_SHARED | JobPhase.NOT_TAKEN:
            return _hindered(kind, order, course)
        case JobPhase.RUNNING:
            text += kind.running(job)
        case JobPhase.RETRYING | JobPhase.QUEUED:
            pass
        case JobPhase.FAILED:
            status = "False"
            text = f"{kind.noun} {order.slot} {text}; {order.again}"
        case JobPhase.DONE:
            status = "True"
            text = f"{kind.noun} {order.slot} is committed: {kind.done(job)}"
        case _:
            assert_never(course.phase)
    return condition_report(
        order.shown, status, kind.reasons[course.phase], text, requeue_after=course.requeue_after
    )


def _hindered(kind: RequestedKind, order: Order, course: JobReport) -> RequestedReport:
    report = condition_report(order.shown, "False", kind.reasons[course.phase], course.text)
    return replace(report, asks_again=course.asks_again)


def condition_report(
    shown: ConditionType,
    status: Any,
    reason: Reason,
    message: str,
    *,
    requeue_after: float | None = None,
) -> RequestedReport:
    """A report of one condition."""
    return RequestedReport(WantedCondition(shown, status, reason, message), requeue_after=requeue_after)


def job_fields(seen: RequestedView) -> Mapping[str, Any]:
    """What the status tells of the jobs that are asked for, and of the last one."""
    kind, fields = seen.kind, dict[str, Any]()
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
