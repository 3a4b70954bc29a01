"""The plan for the Spark jobs that feed a StorageCollection from its source: a pure function.

Invariants
- In mode Continuous, one job follows the source. Its attempts run like those of all Spark jobs (`course`),
  but it is never given up: the next attempt follows after 5 seconds to 5 minutes. An attempt that ran for
  long starts this count anew.
- In mode Scheduled, each run is a job of its own (`scheduled`), which reads up to the end of the source.
- The slot of a job contains a digest of the source and of the effective template. So if either changes, its
  job is stopped and another one starts. Attempts that overlap do no harm: the commits decide.
- These jobs don't count against the limits of concurrent jobs, because one that follows a source never ends.
- The condition stays as it is while a new attempt may still fail like the one before it. So a source that
  fails again and again posts one Event, not one for each attempt.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from holdfast.collections import JobRecord, JobState
from holdfast.ingest.opened import left_in_source
from holdfast.ingest.spec import parse
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.api.rendition import HydrationJobStatus
from holdfast_operator.api.source import CollectionSource, SourceScheduleStatus
from holdfast_operator.api.spark import SparkJobStatus, SparkTemplate
from holdfast_operator.engine.health import WantedCondition
from holdfast_operator.engine.steps import Decision, Settle, reconciling
from holdfast_operator.jobs.course import (
    COLLECTION_SUSPENDED,
    HINDRANCES,
    JobPhase,
    JobReport,
    application_of,
    ended,
    failed,
    hindrance,
    job_status,
    plan_job,
    stopped,
)
from holdfast_operator.jobs.requested import (
    Order,
    RequestedKind,
    RequestedReport,
    RequestedView,
    plan_scheduled,
)
from holdfast_operator.jobs.steps import ForgetRuns, LaunchAttempt, RetryJob, StartJob
from holdfast_operator.sparkapps.adapter import INGEST, AppPhase, AppState
from holdfast_operator.sparkapps.sizing import cores

FORGET: Final = "forget:"
"""The slot of the job that deletes what a source keeps. The id of no request contains a colon."""
_FORGET: Final = "120s"
"""The time within which that job must start, and end. It has one attempt."""
_CONTINUOUS: Final = "continuous:"
"""Prefix of the slots of jobs that follow a source. The id of no request starts with it."""
_SUPERSEDED: Final = "spec.source has changed"
_SUSPENDED: Final = "spec.source.run.suspend is true"
_CHANGES: Final = "a new rendition will be filled, because spec.source makes other rows than before"
_RESTORING: Final = "the collection begins with spec.restoreFrom; its source is read from there on"
_NO_FAILURES: Final = frozenset({_SUPERSEDED, _SUSPENDED, COLLECTION_SUSPENDED})
"""The errors of attempts that the operator itself stopped."""
_SETTLED_S: Final = 120.0
"""An attempt that runs for so long has got over what ended the one before."""
_LONG_MS: Final = 600_000
"""After an attempt that ran for so long, the next one follows as after a first failure."""
_KEPT: Final = 10
"""Records of jobs of earlier sources to keep. Older ones go together when there are twice as many."""
_NEVER: Final = 1 << 30
"""More attempts than anybody sees."""


def _start(seen: "SourceView", order: Order) -> StartJob:
    return _started(seen, order.slot, once=True)


@dataclass(frozen=True, kw_only=True)
class SourceView(RequestedView):
    """Everything that the plan for the jobs of a source depends on. `job` follows it, in mode Continuous."""

    kind: ClassVar[RequestedKind] = RequestedKind(
        job=INGEST,
        noun="source",
        shown=ConditionType.SOURCE_STALLED,
        scheduled=ConditionType.SCHEDULED_INGESTION_COMPLETED,
        reasons={
            **HINDRANCES,
            JobPhase.QUEUED: Reason.INGESTION_QUEUED,
            JobPhase.RUNNING: Reason.INGESTION_RUNNING,
            JobPhase.RETRYING: Reason.INGESTION_RETRYING,
            JobPhase.FAILED: Reason.INGESTION_FAILED,
            JobPhase.DONE: Reason.INGESTION_SUCCEEDED,
        },
        awaited=Reason.INGESTION_SCHEDULED,
        start=_start,
        running=lambda _: "",
        done=lambda job: f"{job.result.get('messages')} messages",
        job_status=lambda seen, job: SparkJobStatus(**job_status(seen, job)),
        schedule_status=lambda shown, job: SourceScheduleStatus(**shown.model_dump(), job=job),
        last_status=lambda job: SparkJobStatus(job_id=job.job_id, attempt=job.attempt, state="Done"),
    )
    source: CollectionSource
    fed: bool
    """Whether the collection was created with a source."""
    restoring: bool = False
    """Whether the collection waits for the snapshot that it begins with."""
    forgetting: JobRecord | None = None
    """The job that deletes what the source keeps, if the collection is being deleted."""
    forget_apps: tuple[AppState, ...] = ()
    """Its applications, which `apps` leaves out."""
    earlier: tuple[JobRecord, ...] = ()
    """The jobs that followed earlier sources, and have ended."""
    changes: bool = False
    """Whether the source makes other rows than those of the current rendition. Then `job` feeds that one as
    it was, and `filler` fills the next one."""
    filling: str = ""
    """The rendition to fill from the source, or empty if there is none yet."""
    filler: JobRecord | None = None
    shown: WantedCondition | None = None
    """The condition SourceStalled in the current status."""


def slot_of(source: CollectionSource, template: SparkTemplate) -> str:
    """Returns the slot of the job that follows a source in mode Continuous, with this effective template."""
    told = json.dumps([source.block, template.model_dump(mode="json")], sort_keys=True)
    return _CONTINUOUS + hashlib.sha256(told.encode()).hexdigest()[:16]


def slot_to_fill(source: CollectionSource, template: SparkTemplate, rendition_id: str) -> str:
    """Returns the slot of the job that fills a rendition, and feeds the collection afterwards."""
    return f"{slot_of(source, template)}:{rendition_id}"


def is_of(slot: str, source: CollectionSource, template: SparkTemplate) -> bool:
    """Returns whether a slot belongs to a job that follows this source with this effective template."""
    own = slot_of(source, template)
    return slot == own or slot.startswith(f"{own}:")


def is_continuous(slot: str) -> bool:
    """Returns whether a slot belongs to a job that follows a source."""
    return slot.startswith(_CONTINUOUS)


def work_order(job: JobRecord) -> Mapping[str, Any]:
    """Returns the arguments of the job in addition to its location and ids."""
    return {name: job.spec[name] for name in ("source", "once", "forget", "rendition") if name in job.spec}


def plan(seen: SourceView) -> Decision | RequestedReport:
    """Returns the next step for the jobs that feed a collection, or what to show."""
    step = _plan(replace(seen, full=None))
    if isinstance(step, StartJob | RetryJob | LaunchAttempt):
        return replace(step, limited=False)
    return step


def _plan(seen: SourceView) -> Decision | RequestedReport:
    if (ending := _plan_end(seen)) is not None:
        return ending
    if not seen.fed:
        text = (
            "the collection was created without a source, and its contents have no bindings: feed another "
            "collection, or remove spec.source"
        )
        return RequestedReport(_condition("True", Reason.NOT_SOURCE_FED, text))
    if seen.restoring:
        return RequestedReport(_condition("Unknown", Reason.RESTORING, _RESTORING))
    if seen.source.run.suspend:
        return RequestedReport(_condition("Unknown", Reason.SUSPENDED, _SUSPENDED))
    if seen.changes:
        return _plan_change(seen)
    if not seen.source.run.is_continuous:
        return plan_scheduled(seen)
    if len(seen.earlier) > 2 * _KEPT:
        oldest = sorted(seen.earlier, key=lambda job: job.finished_ms)[:-_KEPT]
        return ForgetRuns(tuple(job.job_id for job in oldest))
    return _plan_follower(seen)


def plan_forget(seen: SourceView) -> Decision | Settle | None:
    """Returns the next step so that the source forgets a collection that is being deleted, or what to show.

    Returns None if it has forgotten the collection, or if the one attempt failed or can't be started.
    """
    job = seen.forgetting
    if not left_in_source(parse(seen.source.block), seen.collection_id) or not seen.fed:
        return None
    seen = replace(seen, full=None, apps=seen.forget_apps)
    if job is None:
        if hindrance(seen) is not None:
            return None
        order = {"source": seen.source.block, "forget": True}
        return StartJob(seen.collection_id, INGEST, FORGET, order, 1, limited=False)
    if job.state is not JobState.RUNNING:
        return None
    limits = {"start_deadline": _FORGET, "attempt_deadline": _FORGET}
    course = plan_job(seen, job, seen.template.model_copy(update=limits))
    if isinstance(course, LaunchAttempt):
        return replace(course, limited=False)
    if isinstance(course, Decision):
        return course
    if course.phase is JobPhase.NO_SECRET:
        return failed(job, course.text)
    text = f"a Spark job deletes what the source keeps for the collection: {course.text}"
    return Settle(reconciling(Reason.DELETING, text), requeue_after=2.0)


def is_forgotten(seen: SourceView | None) -> bool:
    """Returns whether the source keeps nothing for the collection any more."""
    return seen is not None and seen.forgetting is not None and seen.forgetting.state is JobState.DONE


def why_not_forgotten(seen: SourceView | None) -> str:
    """Returns why the source may still keep something for the collection."""
    if seen is None or seen.forgetting is None:
        why = seen.no_secret if seen is not None else None
        return "no Spark job could be started for it" + (f": {why}" if why else "")
    return f"the Spark job for it failed: {seen.forgetting.error}"


def _plan_end(seen: SourceView) -> Decision | None:
    """Returns a step that ends an attempt that is no longer needed, or None."""
    if seen.source.run.suspend or seen.restoring or not seen.fed:
        return stopped(seen, seen.running, _SUSPENDED)
    run = seen.scheduled.latest if seen.scheduled is not None else None
    wanted = {job.job_id for job in (seen.job, seen.filler, run) if job is not None}
    for app in seen.apps:
        if app.job_id not in wanted and not app.phase.over:
            return ended(app, _SUPERSEDED)
    for job in seen.running:
        if job.job_id not in wanted:
            return failed(job, _SUPERSEDED, stopped=True)
    return None


def _plan_follower(seen: SourceView) -> Decision | RequestedReport:
    if seen.job is None:
        hindered = hindrance(seen)
        if hindered is None:
            return _started(seen, slot_of(seen.source, seen.template), once=False)
        return RequestedReport(_of_course(seen, None, hindered), asks_again=True)
    job = seen.job
    if job.finished_ms - job.started_ms >= _LONG_MS:
        job = replace(job, failures=min(job.failures, 1))
    if job.error in _NO_FAILURES:
        job = replace(job, failures=0)
    template = seen.template.model_copy(update={"max_attempts": _NEVER})
    course = plan_job(seen, job, template)
    if isinstance(course, Decision):
        return course
    fields = {"job": job_status(seen, job)}
    after = None if course.phase is JobPhase.RUNNING and _is_settled(seen, job) else course.requeue_after
    return RequestedReport(_of_course(seen, job, course), fields, after, asks_again=True)


def _plan_change(seen: SourceView) -> Decision | RequestedReport:
    """The current rendition is fed as it was, and a job fills the next one from the source as it is now."""
    kept = None if seen.job is None else _plan_follower(seen)
    if isinstance(kept, Decision):
        return kept
    filled = _plan_filler(seen) if seen.filling else None
    if isinstance(filled, Decision):
        return filled
    found = [each for each in (filled, kept) if each is not None]
    conditions = [each.condition for each in found if each.condition is not None]
    worst = next((each for each in conditions if each.status == "True"), None)
    if worst is None:
        worst = (
            _condition("Unknown", Reason.HYDRATING_RENDITION, _CHANGES) if not conditions else conditions[0]
        )
    return RequestedReport(
        worst,
        {} if kept is None else kept.fields,
        min((each.requeue_after for each in found if each.requeue_after is not None), default=None),
        asks_again=True,
    )


def _plan_filler(seen: SourceView) -> Decision | RequestedReport:
    if seen.filler is None and hindrance(seen) is None:
        slot = slot_to_fill(seen.source, seen.template, seen.filling)
        return _started(seen, slot, once=False, rendition=seen.filling)
    report = _plan_follower(replace(seen, job=seen.filler))
    if isinstance(report, Decision) or report.condition is None:
        return report
    text = f"rendition {seen.filling}: {report.condition.message}"
    return replace(report, condition=replace(report.condition, message=text))


def fill_status(seen: SourceView) -> dict[str, HydrationJobStatus]:
    """Returns the status of the job that fills a rendition from the source, by the rendition."""
    if seen.filler is None or not seen.filling:
        return {}
    return {seen.filling: HydrationJobStatus(**job_status(seen, seen.filler))}


def _of_course(seen: SourceView, job: JobRecord | None, course: JobReport) -> WantedCondition:
    reason = seen.kind.reasons[course.phase]
    match course.phase:
        case (
            JobPhase.NOT_INSTALLED
            | JobPhase.NOT_SHARED
            | JobPhase.NOT_TAKEN
            | JobPhase.NO_SECRET
            | JobPhase.NOT_LAUNCHED
        ):
            return _condition("True", reason, f"no Spark job can read the source: {course.text}")
        case JobPhase.RUNNING if job is not None and _is_settled(seen, job):
            if _has_read(seen, job):
                return _condition("False", reason, "a Spark job reads the source")
            return _condition("False", reason, "a Spark job runs, and has read nothing new since it began")
        case JobPhase.RUNNING if job is not None and job.failures > 0 and seen.shown is not None:
            return seen.shown
        case JobPhase.RETRYING if job is not None and job.failures > 0:
            text = f"the source can't be read: {job.error}; the operator tries again every few minutes"
            return _condition("True", reason, text)
        case _:
            return _condition("Unknown", reason, course.text)


def _is_settled(seen: SourceView, job: JobRecord) -> bool:
    """Returns whether a driver runs, and has got over what ended the attempt before."""
    app = application_of(seen, job)
    if app is None or app.phase is not AppPhase.RUNNING:
        return False
    return job.failures == 0 or seen.age_of(app) >= _SETTLED_S or _has_read(seen, job)


def _has_read(seen: SourceView, job: JobRecord) -> bool:
    """Returns whether the collection has moved since the application of an attempt was created."""
    app = application_of(seen, job)
    return app is not None and seen.upper / 1000 > (app.created + seen.ahead).timestamp()


def _started(seen: SourceView, slot: str, *, once: bool, rendition: str = "") -> StartJob:
    spec = {"source": seen.source.block, "once": once}
    if rendition:
        spec["rendition"] = rendition
    return StartJob(seen.collection_id, INGEST, slot, spec, cores(seen.template.executor))


def _condition(status: Any, reason: Reason, message: str) -> WantedCondition:
    return WantedCondition(ConditionType.SOURCE_STALLED, status, reason, message)


def earlier_of(jobs: Sequence[JobRecord], kept: Collection[str]) -> tuple[JobRecord, ...]:
    """Returns the ended jobs of earlier sources among all recorded jobs, except in the slots to keep."""
    return tuple(
        job
        for job in jobs
        if job.kind == INGEST
        and is_continuous(job.slot)
        and job.slot not in kept
        and job.state is not JobState.RUNNING
    )
