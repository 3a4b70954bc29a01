"""The plan for the Spark jobs that fill renditions: a pure function of spec, records and applications.

Invariants
- Each attempt chooses who fills the rendition, and records it: Spark if the spec has a template and there is
  much to copy, otherwise the operator's own process. Both use the same record. A running attempt continues to
  its end even if the template changes.
- An attempt of an operator's process ends with that process. If it isn't running here, the next one follows.
- The job runs like all Spark jobs (`course`). The operator's process then copies rows that were written
  during the job. That needs no job.
- The driver of an attempt that is no longer needed is deleted. Exceptions are a driver that is ending after
  its commit, and, for some time, a driver that is ending after a failure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, assert_never

from holdfast.collections import JobRecord, JobState, Recipe, RenditionState, needs_spark
from holdfast.collections.hydration import HYDRATE
from holdfast.persist import StoredSize
from holdfast_operator.api.base import byte_count
from holdfast_operator.api.names import Reason
from holdfast_operator.api.rendition import CollectionHydration, HydrationJobStatus, RenditionPhase
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.health import Health
from holdfast_operator.engine.steps import Decision, reconciling, stalled
from holdfast_operator.jobs.course import (
    HINDRANCES,
    SPARK,
    JobPhase,
    JobReport,
    SparkView,
    application_of,
    ended,
    failed,
    hindrance,
    is_ending,
    job_status,
    plan_job,
    retry,
)
from holdfast_operator.jobs.steps import FailAttempt, StartJob
from holdfast_operator.sparkapps.sizing import tasks

_UNWANTED: Final = "nobody asks for it any more"
_ASK_AGAIN_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class HydrationsView(SparkView):
    """The jobs that fill, or filled, the renditions of a collection."""

    jobs: tuple[JobRecord, ...] = ()
    here: str | None = None
    """The rendition that this process is filling."""
    template: SparkTemplate | None = None
    """The template of the jobs. None if the spec asks for none."""

    @property
    def running(self) -> tuple[JobRecord, ...]:
        """The running jobs."""
        return tuple(job for job in self.jobs if job.state is JobState.RUNNING)

    def of(self, rendition_id: str) -> JobRecord | None:
        """Returns the job of a rendition, if any."""
        return next((job for job in self.jobs if job.slot == rendition_id), None)


@dataclass(frozen=True)
class Shown:
    """Nothing to do now for a job. Has what to show, and the seconds until the next reconciliation."""

    health: Health
    after: float | None


class Filled(Protocol):
    """A rendition that may have to be filled."""

    @property
    def id(self) -> str:
        """Its id, which is also the slot of its job."""

    @property
    def shards(self) -> int:
        """Its number of shards."""

    @property
    def upper(self) -> int:
        """It is complete before this time."""

    @property
    def staged(self) -> int:
        """How many pieces of it are staged."""

    @property
    def state(self) -> RenditionState:
        """Whether it is still being filled."""

    @property
    def recipe(self) -> Recipe:
        """How it is filled."""

    @property
    def suspect(self) -> str:
        """Why its contents can't be trusted. Empty if they can."""


def is_large(stored: StoredSize, spec: CollectionHydration) -> bool:
    """Returns whether there is too much to copy for one process."""
    if spec.minimum_bytes is not None:
        return stored.size_bytes >= byte_count(spec.minimum_bytes)
    return needs_spark(stored)


def is_sparks(job: JobRecord) -> bool:
    """Returns whether Spark runs, or ran, the latest attempt of a job."""
    return job.by == SPARK


def plan(seen: HydrationsView | None, rendition: Filled, *, large: bool) -> Decision | Shown | None:
    """Returns the next step for the Spark job that fills a rendition, or what to show.

    Returns None if the operator's own process fills the rendition. `large` is the result of `is_large`.
    """
    if seen is None or rendition.recipe is not Recipe.COPY or rendition.upper > 0:
        return None
    job = seen.of(rendition.id)
    if job is not None and is_sparks(job) and job.state is not JobState.FAILED:
        alone = seen.template is None and application_of(seen, job) is None
        if alone and job.state is JobState.RUNNING:
            return failed(job, _UNWANTED, stopped=True)
        course = plan_job(seen, job, seen.template or SparkTemplate())
    elif seen.template is None or not large or seen.here == rendition.id:
        return None
    else:
        course = _plan_next(seen, rendition, seen.template, job)
    if isinstance(course, Decision):
        return course
    return _report(rendition, course, _progress(rendition, job))


def _plan_next(
    seen: HydrationsView,
    rendition: Filled,
    template: SparkTemplate,
    job: JobRecord | None,
) -> Decision | JobReport:
    """Plans the next attempt by Spark, even if the operator's process made the previous one."""
    if job is not None and job.state is not JobState.RUNNING:
        return plan_job(seen, job, template)
    if (hindered := hindrance(seen)) is not None:
        return hindered
    if job is not None:
        return retry(seen, job, template, abandoned=job.attempt)
    order = {"collection": seen.collection_id, "rendition": rendition.id}
    return StartJob(seen.collection_id, HYDRATE, rendition.id, order, tasks(seen.stored, template.executor))


def unwanted(seen: HydrationsView, renditions: Iterable[Filled]) -> FailAttempt | None:
    """Returns a step that ends a driver that is no longer needed, or None."""
    filled = (
        job
        for each in renditions
        if each.state is RenditionState.HYDRATING and not each.suspect and (job := seen.of(each.id))
    )
    wanted = {
        job.job_id: job.attempt
        for job in filled
        if is_sparks(job) and (job.state is JobState.RUNNING or is_ending(seen, job))
    }
    done = {job.job_id for job in seen.jobs if job.state is JobState.DONE}
    for app in seen.apps:
        if not app.phase.over and app.job_id not in done and wanted.get(app.job_id) != app.attempt:
            return ended(app, _UNWANTED)
    return None


def work_order(job: JobRecord) -> Mapping[str, Any]:
    """Returns the arguments of the job in addition to its location and ids."""
    return {"rendition": job.slot}


def job_statuses(seen: HydrationsView | None, renditions: Iterable[Filled]) -> dict[str, HydrationJobStatus]:
    """Returns the status of the Spark jobs that fill renditions, by the renditions' ids."""
    if seen is None:
        return {}
    hydrating = (each.id for each in renditions if each.state is RenditionState.HYDRATING)
    jobs = ((id_, job) for id_ in hydrating if (job := seen.of(id_)) and is_sparks(job))
    return {id_: HydrationJobStatus(**job_status(seen, job)) for id_, job in jobs}


def may_have_driver(status: Mapping[str, Any]) -> bool:
    """Returns whether a status shows a rendition that a Spark job fills or filled, or may fill."""
    renditions: Sequence[Mapping[str, Any]] = status.get("renditions") or []
    return any("job" in each or each.get("phase") == RenditionPhase.HYDRATING for each in renditions)


def _progress(rendition: Filled, job: JobRecord | None) -> str:
    """Returns how much of a rendition is staged, as the end of a sentence. Empty if that isn't known."""
    plan = None if job is None else job.plan
    if plan is None:
        return ""
    pieces = len(plan["pieces"])
    if rendition.staged >= pieces:
        return "; its rows are staged, committing"
    return f"; {rendition.staged:,} of {pieces:,} pieces are staged"


def _report(rendition: Filled, course: JobReport, progress: str) -> Shown:
    return Shown(
        _health(rendition, course, progress), _ASK_AGAIN_S if course.asks_again else course.requeue_after
    )


def _health(rendition: Filled, course: JobReport, progress: str) -> Health:
    named = f"rendition {rendition.id} ({rendition.shards} shards)"
    match course.phase:
        case (
            JobPhase.NOT_INSTALLED
            | JobPhase.NOT_SHARED
            | JobPhase.NOT_TAKEN
            | JobPhase.NO_SECRET
            | JobPhase.NOT_LAUNCHED
        ):
            text = f"a Spark job can't fill {named}: {course.text}; or remove spec.hydration"
            return stalled(HINDRANCES[course.phase], text)
        case JobPhase.QUEUED:
            return reconciling(Reason.HYDRATING_RENDITION, f"a Spark job will fill {named}: {course.text}")
        case JobPhase.RUNNING | JobPhase.RETRYING | JobPhase.DONE:
            text = f"a Spark job fills {named}: {course.text}{progress}"
            return reconciling(Reason.HYDRATING_RENDITION, text)
        case JobPhase.FAILED:
            text = (
                f"the Spark job that fills {named} {course.text}; fix the cause and raise "
                "spec.hydration.spark.maxAttempts, or remove spec.hydration to let the operator fill it"
            )
            return stalled(Reason.HYDRATION_FAILED, text)
        case _:
            assert_never(course.phase)
