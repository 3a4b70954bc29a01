"""The plan for the Spark jobs that fill renditions: a pure function of spec, records and applications.

Invariants
- Who fills a rendition is decided with the first attempt, and stays so; the record says it. Others, and the
  operator where there is no template or little to copy, fill it in their own process, with the same record.
- The course of the job is that of all Spark jobs (`sparkjobs`). What was written while it ran is caught up
  with in the operator's process: that needs no job.
- A driver whose attempt nobody wants any more is taken away, but not one that only ends what it committed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from holdfast.persist import StoredSize
from holdfast.storage import JobRecord, JobState, Recipe, RenditionState, needs_spark
from holdfast.storage.hydration import HYDRATE
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.api.rendition import CollectionHydration, HydrationJobStatus
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.reconcile.facts import CollectionFacts, RenditionFacts
from holdfast_operator.reconcile.sparkjobs import (
    STOPPED,
    Course,
    FailAttempt,
    SparkObserved,
    Stand,
    StartJob,
    application_of,
    hindrance,
    plan_job,
    state_shown,
)
from holdfast_operator.reconcile.steps import Step, reconciling, stalled
from holdfast_operator.runtime.status import Health
from holdfast_operator.sparkapps.adapter import AppState

_BY: Final = "by"
_SPARK: Final = "spark"
_LEAST_TASKS: Final = 8
_ASK_AGAIN_S: Final = 60.0
_TASKS_PER_CORE: Final = 2
_MOST_TASKS: Final = 256
"""Each leaves a run in every shard, which readers merge until they are compacted."""


@dataclass(frozen=True, kw_only=True)
class HydrationsObserved(SparkObserved):
    """What is known of the jobs that fill, or filled, the renditions of a collection."""

    jobs: tuple[JobRecord, ...] = ()

    def of(self, rendition_id: str) -> JobRecord | None:
        """The job of a rendition."""
        return next((job for job in self.jobs if job.slot == rendition_id), None)


@dataclass(frozen=True)
class Shown:
    """Nothing to do now about a job: what to show, and in how many seconds to look again."""

    health: Health
    after: float | None


def by_spark(
    seen: HydrationsObserved | None,
    facts: CollectionFacts,
    rendition: RenditionFacts,
    spec: CollectionHydration,
) -> SparkTemplate | None:
    """What the Spark job that fills a rendition runs with; None where none does."""
    if seen is None or spec.spark is None or rendition.recipe is not Recipe.COPY or rendition.upper > 0:
        return None
    job = seen.of(rendition.id)
    wanted = is_sparks(job) if job is not None else is_large(facts, spec)
    return spec.spark if wanted else None


def is_large(facts: CollectionFacts, spec: CollectionHydration) -> bool:
    """Whether there is so much to copy that one process is a poor place to do it."""
    active = facts.active
    if spec.minimum_bytes is not None:
        return active.bytes >= spec.minimum_bytes
    return needs_spark(StoredSize(active.rows, active.bytes))


def is_sparks(job: JobRecord) -> bool:
    """Whether a job was put on record for Spark."""
    return job.spec.get(_BY) == _SPARK


def plan(
    seen: HydrationsObserved, facts: CollectionFacts, rendition: RenditionFacts, template: SparkTemplate
) -> Step | Shown:
    """What to do next about the Spark job that fills a rendition, or what to show of it."""
    job = seen.of(rendition.id)
    if job is None:
        if (hindered := hindrance(seen)) is not None:
            return _report(rendition, hindered)
        order = {"collection": facts.collection_id, "rendition": rendition.id, _BY: _SPARK}
        return StartJob(facts.collection_id, HYDRATE, rendition.id, order)
    course = plan_job(seen, job, template, facts.collection_id)
    return course if isinstance(course, Step) else _report(rendition, course)


def unwanted(
    seen: HydrationsObserved, facts: CollectionFacts, spec: StorageCollectionSpec
) -> FailAttempt | None:
    """The end of a driver that nobody wants any more; None where there is none."""
    filled = (
        each
        for each in facts.renditions
        if each.state is RenditionState.HYDRATING
        and not each.suspect
        # Without a template it is the operator's process that takes its place.
        and spec.hydration.spark is not None
    )
    wanted = {job.job_id: job.attempt for each in filled if (job := seen.of(each.id)) and is_sparks(job)}
    done = {job.job_id for job in seen.jobs if job.state is JobState.DONE}
    for app in seen.apps:
        if not app.phase.over and app.job_id not in done and wanted.get(app.job_id) != app.attempt:
            return _ended(app, "nobody asks for it any more")
    return None


def stopped(seen: HydrationsObserved, why: str = STOPPED) -> FailAttempt | None:
    """The end of a driver, whatever it does; None where there is none."""
    live = (app for app in seen.apps if not app.phase.over)
    return next((_ended(app, why) for app in live), None)


def work_order(job: JobRecord, template: SparkTemplate) -> Mapping[str, Any]:
    """What the job is told beside where and which."""
    cores = template.executor.instances * template.executor.cores
    return {"rendition": job.slot, "partitions": min(_MOST_TASKS, max(_LEAST_TASKS, _TASKS_PER_CORE * cores))}


def job_statuses(seen: HydrationsObserved | None, facts: CollectionFacts) -> dict[str, HydrationJobStatus]:
    """What the status tells of the Spark jobs of renditions that are being filled, by the renditions' ids."""
    if seen is None:
        return {}
    hydrating = (each.id for each in facts.renditions if each.state is RenditionState.HYDRATING)
    jobs = ((id_, job) for id_ in hydrating if (job := seen.of(id_)) and is_sparks(job))
    return {id_: _status(seen, job) for id_, job in jobs}


def is_shown_running(status: Mapping[str, Any]) -> bool:
    """Whether a status tells of a Spark job that fills a rendition and may have a driver."""
    renditions: Sequence[Mapping[str, Any]] = status.get("renditions") or []
    return any("job" in each for each in renditions)


def _ended(app: AppState, why: str) -> FailAttempt:
    return FailAttempt(HYDRATE, app.job_id, app.attempt, why, app)


def _status(seen: HydrationsObserved, job: JobRecord) -> HydrationJobStatus:
    app = application_of(seen, job)
    return HydrationJobStatus(
        job_id=job.job_id,
        attempt=job.attempt,
        state=state_shown(job),
        application=app.name if app else None,
        started=app.created if app else None,
    )


def _report(rendition: RenditionFacts, course: Course) -> Shown:
    return Shown(_health(rendition, course), _ASK_AGAIN_S if course.asks_again else course.requeue_after)


def _health(rendition: RenditionFacts, course: Course) -> Health:
    named = f"rendition {rendition.id} ({rendition.shards} shards)"
    match course.stand:
        case Stand.NOT_INSTALLED | Stand.NOT_SHARED:
            reason = Reason.STORAGE_NOT_SHARED
            if course.stand is Stand.NOT_INSTALLED:
                reason = Reason.SPARK_NOT_INSTALLED
            text = f"{named} is to be filled by Spark: {course.text}; or remove spec.hydration"
            return stalled(reason, text)
        case Stand.RUNNING | Stand.RETRYING | Stand.DONE:
            return reconciling(
                Reason.HYDRATING_RENDITION, f"{named} is being filled by a Spark job: {course.text}"
            )
        case Stand.FAILED:
            text = (
                f"the Spark job that fills {named} {course.text}; mend that and raise "
                "spec.hydration.spark.maxAttempts, or remove spec.hydration to have the operator fill it"
            )
            return stalled(Reason.HYDRATION_FAILED, text)
        case _:
            assert_never(course.stand)
