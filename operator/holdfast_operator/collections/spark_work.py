"""The Spark jobs of a StorageCollection: which jobs its spec requests, and the views of their plans. Pure."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, Final, TypeVar

from holdfast.collections import JobRecord, JobState, RenditionState
from holdfast.collections.hydration import HYDRATE
from holdfast.errors import BadInput
from holdfast.ingest.credentials import SecretRef
from holdfast.ingest.made_from import made_from, other_recipe
from holdfast.ingest.spec import parse
from holdfast_operator.api.collection import CompactionSchedule, SparkTask, StorageCollectionSpec
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.api.source import CollectionSource
from holdfast_operator.api.spark import SparkTemplate, effective
from holdfast_operator.collections.facts import CollectionFacts
from holdfast_operator.collections.renditions import filled_from_source, is_made_alike
from holdfast_operator.engine.health import WantedCondition
from holdfast_operator.engine.kube import Json
from holdfast_operator.jobs import hydration, ingestion
from holdfast_operator.jobs.compaction import CompactionView
from holdfast_operator.jobs.course import COMPACT, SNAPSHOT, SparkView
from holdfast_operator.jobs.hydration import HydrationsView
from holdfast_operator.jobs.ingestion import (
    FORGET,
    SourceView,
    earlier_of,
    is_continuous,
    is_of,
    slot_of,
    slot_to_fill,
)
from holdfast_operator.jobs.requested import JobKind, JobRequest, RequestedView, jobs_of, runs_of
from holdfast_operator.jobs.scheduled import Scheduled, shown_in, time_of
from holdfast_operator.jobs.snapshot import name_of
from holdfast_operator.sparkapps.adapter import INGEST, SecretFiles
from holdfast_operator.sparkapps.sizing import cores

_HELD: Final = {RenditionState.HOLDING, RenditionState.RETIRED, RenditionState.DROPPED}
"""The states of renditions that took over at some time."""
V = TypeVar("V", bound=RequestedView)
Objection = Callable[[SparkTemplate], str | None]
"""Returns why the Spark adapter can't run a template, or None if it can."""

VIEWS: Final[tuple[type[RequestedView], ...]] = (CompactionView,)
KINDS: Final = tuple(view.kind for view in VIEWS)
"""The kinds of jobs that a StorageCollection can request itself."""
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def _shared(view: SparkView) -> dict[str, Any]:
    """Returns the fields that are the same in the views of all kinds of jobs."""
    own = {"objection", "no_secret", "apps"}
    return {each.name: getattr(view, each.name) for each in fields(SparkView) if each.name not in own}


def hydrations_view(
    shared: SparkView,
    spec: StorageCollectionSpec,
    base: SparkTemplate,
    jobs: Sequence[JobRecord],
    here: str | None,
    objection: Objection,
) -> HydrationsView:
    """Returns the view for the plan of hydrations. `here` is the rendition that this process is filling."""
    template = None if spec.hydration.spark is None else effective(base, spec.hydration.spark)
    return HydrationsView(
        **_shared(shared),
        objection=objection(template) if template else None,
        apps=tuple(app for app in shared.apps if app.kind == HYDRATE),
        jobs=tuple(job for job in jobs if job.kind == HYDRATE),
        here=here,
        template=template,
    )


def requested_view(
    view: type[V],
    shared: SparkView,
    spec: StorageCollectionSpec,
    compact: str,
    base: SparkTemplate,
    status: Json,
    jobs: Sequence[JobRecord],
    objection: Objection,
) -> V:
    """Returns the view for the plans of one kind of jobs, which a request or a schedule requests.

    `compact` is the value of the annotation that requests a compaction.
    """
    kind = view.kind
    request, schedule = asked_for(spec, compact)[kind.job]
    template = base if request is None else effective(base, request.task.spark)
    scheduled = None
    if schedule is not None:
        runs_template = effective(base, schedule.spark)
        scheduled = Scheduled(
            spec=schedule,
            template=runs_template,
            shown=shown_in(status, kind.schedule_field),
            runs=runs_of(kind, jobs),
            objection=objection(runs_template),
        )
    known = jobs_of(kind, jobs, request)
    return view(
        **_shared(shared),
        objection=objection(template) if request else None,
        apps=tuple(app for app in shared.apps if app.kind == kind.job),
        request=request,
        template=template,
        job=known.job,
        last=known.last,
        running=known.running,
        waits_for=waits_for(kind, jobs),
        scheduled=scheduled,
    )


def source_view(
    shared: SparkView,
    spec: StorageCollectionSpec,
    base: SparkTemplate,
    status: Json,
    jobs: Sequence[JobRecord],
    objection: Objection,
    *,
    fed: bool,
    restoring: bool = False,
    facts: CollectionFacts | None = None,
) -> SourceView | None:
    """Returns the view for the plan of the jobs that feed the collection. None without a source."""
    source = spec.source
    if source is None:
        return None
    template = effective(base, source.spark)
    scheduled = None
    if source.run.cron is not None:
        scheduled = Scheduled(
            spec=source.run.cron,
            template=template,
            shown=shown_in(status, SourceView.kind.schedule_field),
            runs=runs_of(SourceView.kind, jobs),
            objection=objection(template),
        )
    apps = [app for app in shared.apps if app.kind == INGEST]
    forgetting = next((job for job in jobs if job.kind == INGEST and job.slot == FORGET), None)
    known = [job for job in jobs if job.kind == INGEST and job is not forgetting]
    shown = [each for each in status.get("conditions") or [] if each["type"] == SourceView.kind.shown]
    changes = facts is not None and not is_made_alike(facts.active, spec)
    filling = filled_from_source(facts, spec) if facts is not None else ""
    filler = next(
        (job for job in known if filling and job.slot == slot_to_fill(source, template, filling)), None
    )
    if facts is not None and changes:
        followed = _kept_feeding(facts, known)
    else:
        followed = _following(facts, source, template, known) if source.run.is_continuous else None
    kept = {slot_of(source, template), *(job.slot for job in (filler, followed) if job is not None)}
    return SourceView(
        **_shared(shared),
        no_secret=shared.no_secret,
        objection=objection(template),
        apps=tuple(app for app in apps if forgetting is None or app.job_id != forgetting.job_id),
        forgetting=forgetting,
        forget_apps=tuple(app for app in apps if forgetting and app.job_id == forgetting.job_id),
        request=None,
        template=template,
        job=followed,
        last=max(
            (job for job in known if job.state is JobState.DONE), key=lambda j: j.finished_ms, default=None
        ),
        running=tuple(job for job in known if job.state is JobState.RUNNING),
        scheduled=scheduled,
        source=source,
        fed=fed,
        restoring=restoring,
        earlier=earlier_of(jobs, kept),
        changes=changes,
        filling=filling,
        filler=filler,
        shown=_as_wanted(shown[0]) if shown else None,
    )


def _following(
    facts: CollectionFacts | None,
    source: CollectionSource,
    template: SparkTemplate,
    known: Sequence[JobRecord],
) -> JobRecord | None:
    """Returns the job that follows the source. One that filled a rendition goes on if that took over."""
    found = [job for job in known if is_of(job.slot, source, template)]
    return _latest(found if facts is None else _of_held(facts, found))


def _kept_feeding(facts: CollectionFacts, known: Sequence[JobRecord]) -> JobRecord | None:
    """Returns the latest job whose source made the rows of the current rendition, or None."""
    return _latest(
        job
        for job in _of_held(facts, known)
        if is_continuous(job.slot)
        and not other_recipe(facts.active.made_from, made_from(parse(job.spec["source"])))
    )


def _of_held(facts: CollectionFacts, jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """Returns the jobs that fed a rendition which took over at some time."""
    held = {each.id for each in facts.renditions if each.state in _HELD}
    return [job for job in jobs if job.spec.get("rendition", facts.active_rendition) in held]


def _latest(jobs: Iterable[JobRecord]) -> JobRecord | None:
    return max(jobs, key=lambda job: job.started_ms, default=None)


def _as_wanted(condition: Json) -> WantedCondition | None:
    """Returns a condition of a status, or None if an operator of another version wrote it."""
    if condition["reason"] not in set(Reason):
        return None
    type_, reason = ConditionType(condition["type"]), Reason(condition["reason"])
    return WantedCondition(type_, condition["status"], reason, condition["message"])


def template_of(
    spec: StorageCollectionSpec, compact: str, base: SparkTemplate, job: JobRecord
) -> tuple[SparkTemplate, Mapping[str, Any]] | None:
    """Returns the template and the work order of a job, or None if the spec no longer requests it."""
    if job.kind == HYDRATE:
        own = spec.hydration.spark
        return None if own is None else (effective(base, own), hydration.work_order(job))
    if job.kind == INGEST:
        if spec.source is None:
            return None
        template = effective(base, spec.source.spark)
        block = _block_of(spec.source, template, job)
        parts = cores(template.executor)
        return template, {**ingestion.work_order(job), "source": block, "partitions": parts}
    request, schedule = asked_for(spec, compact)[job.kind]
    if time_of(job.slot) is None:
        return None if request is None else (effective(base, request.task.spark), {})
    return None if schedule is None else (effective(base, schedule.spark), {})


def _block_of(source: CollectionSource, template: SparkTemplate, job: JobRecord) -> Mapping[str, Any]:
    """Returns the source that a job reads.

    A later attempt of a scheduled run takes the source as it is now: the positions say how far it is. A job
    that feeds the current rendition, until one of another format takes over, keeps what it has.
    """
    keeps = is_continuous(job.slot) and not is_of(job.slot, source, template)
    block: Mapping[str, Any] = job.spec["source"] if keeps else source.block
    return block


def secrets_of(spec: StorageCollectionSpec) -> tuple[SecretRef, ...]:
    """Returns the Secrets that the source of a spec names. Empty if the source is invalid."""
    if spec.source is None:
        return ()
    try:
        return parse(spec.source.block, "spec.source").secrets
    except BadInput:
        return ()


def files_of(spec: StorageCollectionSpec, base: SparkTemplate, job: JobRecord) -> tuple[SecretFiles, ...]:
    """Returns the Secrets whose keys the pods of a job get as files, each once."""
    found: dict[str, SecretFiles] = {}
    if spec.source is None or job.kind != INGEST:
        return ()
    template = effective(base, spec.source.spark)
    for each in parse(_block_of(spec.source, template, job)).secrets:
        other = found.get(each.name, SecretFiles(each.name, (), shared=False))
        keys = tuple(dict.fromkeys((*other.keys, *each.keys)))
        found[each.name] = SecretFiles(each.name, keys, shared=other.shared or each.shared)
    return tuple(found.values())


def asked_for(
    spec: StorageCollectionSpec, compact: str
) -> dict[str, tuple[JobRequest | None, CompactionSchedule | None]]:
    """Returns the request and the schedule, by the kind of job.

    `compact` is the value of the annotation that requests a compaction. That one runs with the Spark template
    of the schedule, if there is one.
    """
    request = None
    if compact:
        task: SparkTask = spec.compaction_schedule or SparkTask()
        request = JobRequest(_request_id(compact), task)
    return {COMPACT: (request, spec.compaction_schedule)}


def _request_id(value: str) -> str:
    """Returns the slot for the value of an annotation, which may be any text."""
    return value if _REQUEST_ID.fullmatch(value) else hashlib.sha256(value.encode()).hexdigest()[:32]


def waits_for(kind: JobKind, jobs: Sequence[JobRecord]) -> str | None:
    """Describes the running job of another kind that must end before a job of this kind can start."""
    for job in jobs:
        if job.state is not JobState.RUNNING or job.kind == kind.job:
            continue
        if job.kind == HYDRATE and kind.job == COMPACT:
            return f"the hydration of rendition {job.slot}"
        if job.kind == SNAPSHOT:
            return f"snapshot {name_of(job)}"
        if job.kind == COMPACT:
            return f"compaction {job.slot}"
    return None


def wants_jobs(spec: StorageCollectionSpec, compact: str) -> bool:
    """Returns whether a Spark job is requested."""
    asked = (*chain.from_iterable(asked_for(spec, compact).values()), spec.hydration.spark, spec.source)
    return any(each is not None for each in asked)


def may_have_driver(spec: StorageCollectionSpec, compact: str, status: Json) -> bool:
    """Returns whether a Spark job may be running, or may have run."""
    asked = chain.from_iterable(asked_for(spec, compact).values())
    fields = {field for kind in KINDS for field in (kind.job_field, kind.schedule_field)}
    fields |= {"source", SourceView.kind.schedule_field}
    has_source = spec.source is not None
    return has_source or any(asked) or bool(fields & status.keys()) or hydration.may_have_driver(status)
