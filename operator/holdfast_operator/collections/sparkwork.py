"""The Spark jobs of a StorageCollection: what its spec asks for, and what their plans see. Pure."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from holdfast.collections import JobRecord, JobState
from holdfast.collections.hydration import HYDRATE
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.kube import Json
from holdfast_operator.jobs import hydration, snapshot
from holdfast_operator.jobs.compaction import CompactionView
from holdfast_operator.jobs.course import COMPACT, SNAPSHOT, SparkView
from holdfast_operator.jobs.hydration import HydrationsView
from holdfast_operator.jobs.requested import RequestedKind, RequestedView, jobs_of, runs_of
from holdfast_operator.jobs.scheduled import Scheduled, shown_in, time_of
from holdfast_operator.jobs.snapshot import SnapshotView

V = TypeVar("V", bound=RequestedView)
Objection = Callable[[SparkTemplate], str | None]
"""Why what runs Spark jobs can't take a template."""

VIEWS: Final[tuple[type[RequestedView], ...]] = (SnapshotView, CompactionView)
KINDS: Final = tuple(view.kind for view in VIEWS)
"""The kinds of jobs that a spec asks for."""


def hydrations_view(
    shared: SparkView,
    spec: StorageCollectionSpec,
    jobs: Sequence[JobRecord],
    here: str | None,
    objection: Objection,
) -> HydrationsView:
    """What the plan for hydrations sees; `here` is the rendition that this process is filling."""
    template = spec.hydration.spark
    return HydrationsView(
        collection_id=shared.collection_id,
        reachable=shared.reachable,
        missing=shared.missing,
        objection=objection(template) if template else None,
        full=shared.full,
        apps=tuple(app for app in shared.apps if app.kind == HYDRATE),
        launched=shared.launched,
        stored=shared.stored,
        since=shared.since,
        upper=shared.upper,
        now=shared.now,
        jobs=tuple(job for job in jobs if job.kind == HYDRATE),
        here=here,
    )


def requested_view(
    view: type[V],
    shared: SparkView,
    spec: StorageCollectionSpec,
    status: Json,
    jobs: Sequence[JobRecord],
    objection: Objection,
) -> V:
    """What the plans for the jobs of one kind see that a request or a schedule asks for."""
    kind = view.kind
    request, schedule = asked_for(spec)[kind.job]
    scheduled = None
    if schedule is not None:
        scheduled = Scheduled(
            spec=schedule,
            shown=shown_in(status, kind.schedule_field),
            runs=runs_of(kind, jobs),
            objection=objection(schedule.spark),
        )
    known = jobs_of(kind, jobs, request)
    return view(
        collection_id=shared.collection_id,
        reachable=shared.reachable,
        missing=shared.missing,
        objection=objection(request.spark) if request else None,
        full=shared.full,
        apps=tuple(app for app in shared.apps if app.kind == kind.job),
        launched=shared.launched,
        stored=shared.stored,
        since=shared.since,
        upper=shared.upper,
        now=shared.now,
        request=request,
        job=known.job,
        last=known.last,
        running=known.running,
        waits_for=waits_for(kind, jobs),
        scheduled=scheduled,
    )


def template_of(
    spec: StorageCollectionSpec, job: JobRecord
) -> tuple[SparkTemplate, Mapping[str, Any]] | None:
    """What a job runs with, and what it is told; None where nobody asks for it any more."""
    if job.kind == HYDRATE:
        template = spec.hydration.spark
        return None if template is None else (template, hydration.work_order(job))
    request, schedule = asked_for(spec)[job.kind]
    asked = request if time_of(job.slot) is None else schedule
    order = snapshot.work_order(job) if job.kind == SNAPSHOT else {}
    return None if asked is None else (asked.spark, order)


def asked_for(spec: StorageCollectionSpec) -> dict[str, tuple[Any, Any]]:
    """The requests and schedules of a spec, by the kind of their jobs."""
    return {
        SNAPSHOT: (spec.snapshot, spec.snapshot_schedule),
        COMPACT: (spec.compaction, spec.compaction_schedule),
    }


def waits_for(kind: RequestedKind, jobs: Sequence[JobRecord]) -> str | None:
    """What runs beside the jobs of a kind, in words, and has to end before one of them begins."""
    for job in jobs:
        if job.state is not JobState.RUNNING or job.kind == kind.job:
            continue
        if job.kind == HYDRATE and kind.job == COMPACT:
            return f"the hydration of rendition {job.slot}"
        for other in KINDS:
            if other.job == job.kind:
                return f"{other.noun} {job.slot}"
    return None


def wants_jobs(spec: StorageCollectionSpec) -> bool:
    """Whether a spec asks for any job of Spark."""
    asked = (*chain.from_iterable(asked_for(spec).values()), spec.hydration.spark)
    return any(each is not None for each in asked)


def may_have_driver(spec: StorageCollectionSpec, status: Json) -> bool:
    """Whether a job of Spark may be under way, or may have been."""
    asked = chain.from_iterable(asked_for(spec).values())
    fields = {field for kind in KINDS for field in (kind.job_field, kind.schedule_field)}
    return any(asked) or bool(fields & status.keys()) or hydration.may_have_driver(status)
