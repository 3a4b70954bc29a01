"""The CollectionSnapshots that `spec.snapshotSchedule` creates and deletes: a pure function.

Invariants
- The name of a CollectionSnapshot contains the time of its run. So a run happens once, even if several
  processes start it.
- A run starts only after the previous one is Ready or Stalled.
- The latest Ready snapshot is always kept. Of Stalled ones, only that of the latest run is kept.
- Only snapshots that the schedule created are counted and deleted: those with its label, and with the name
  that it gives to their run. A label alone can be copied. Their own deletionPolicy decides about the files.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

from holdfast.collections import JobRecord, JobState
from holdfast.errors import BadInput
from holdfast_operator.api.base import frontier, milliseconds
from holdfast_operator.api.collection import SnapshotSchedule, SnapshotScheduleStatus, SnapshotStatus
from holdfast_operator.api.cron import ScheduleStatus
from holdfast_operator.api.names import (
    ANNOTATION_SCHEDULED,
    API_VERSION,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_SCHEDULE,
    MANAGED_BY,
    ConditionType,
    Kind,
    Reason,
)
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.denials import PAUSE_SECONDS
from holdfast_operator.engine.failures import RETRIES
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.kube import Json
from holdfast_operator.engine.resources import annotation, is_deleting
from holdfast_operator.engine.status_writer import phase_of, timestamp
from holdfast_operator.engine.steps import Decision
from holdfast_operator.jobs.course import SNAPSHOT
from holdfast_operator.jobs.requested import RequestedReport, condition_report
from holdfast_operator.jobs.scheduled import Scheduled, missed_notes, turn
from holdfast_operator.jobs.snapshot import location_of, name_of

FIELD: Final = "snapshotSchedule"
_LAST: Final = "lastSnapshot"
_MAX_LABEL: Final = 63
_MAX_STEM: Final = 200
_DIGITS: Final = 12


@dataclass(frozen=True)
class CreateSnapshot(Decision):
    """Create the CollectionSnapshot of a run, unless it exists already."""

    irreversible: ClassVar[bool] = True
    name: str
    time: datetime


@dataclass(frozen=True)
class DeleteSnapshot(Decision):
    """Delete a CollectionSnapshot that is no longer kept."""

    irreversible: ClassVar[bool] = True
    name: str
    uid: str


@dataclass(frozen=True)
class ScheduledSnapshot:
    """A CollectionSnapshot that the schedule created."""

    name: str
    uid: str
    time: datetime
    phase: Phase
    message: str = ""


@dataclass(frozen=True)
class SnapshotScheduleView:
    """Everything that the plan for the schedule depends on."""

    collection: str
    spec: SnapshotSchedule
    shown: ScheduleStatus
    there: tuple[ScheduledSnapshot, ...]
    """Those that are not being deleted, in the order of their times."""
    now: datetime
    denied: str | None = None
    """Why the CollectionSnapshot of a run couldn't be created a moment ago. None if it may be tried."""
    objection: str | None = None
    """Why the Spark template of its runs is not allowed or can't be run. None if it can."""


def schedule_label(collection: str) -> str:
    """Returns the value of `LABEL_SCHEDULE` for a StorageCollection."""
    return (
        collection if len(collection) <= _MAX_LABEL else hashlib.sha256(collection.encode()).hexdigest()[:40]
    )


def scheduled_snapshot(collection: str, body: Json) -> ScheduledSnapshot | None:
    """Returns what the plan needs of a CollectionSnapshot of a collection.

    Returns None if the schedule didn't create it, or if it is being deleted.
    """
    metadata, status = body["metadata"], body.get("status", {})
    time = _time_of(annotation(body, ANNOTATION_SCHEDULED))
    is_labelled = metadata.get("labels", {}).get(LABEL_SCHEDULE) == schedule_label(collection)
    if time is None or not is_labelled or is_deleting(body) or metadata["name"] != _name(collection, time):
        return None
    marks = {each.get("type"): str(each.get("message")) for each in status.get("conditions", ())}
    return ScheduledSnapshot(
        name=metadata["name"],
        uid=metadata["uid"],
        time=time,
        phase=phase_of(status),
        message=marks.get(ConditionType.READY.value, "it was just created"),
    )


def snapshot_body(collection: str, namespace: str, spec: SnapshotSchedule, step: CreateSnapshot) -> Json:
    """Returns the CollectionSnapshot of a run."""
    place = spec.model_dump(mode="json", by_alias=True, exclude_none=True, include={"destination", "iceberg"})
    spark = spec.spark.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {
        "apiVersion": API_VERSION,
        "kind": Kind.COLLECTION_SNAPSHOT.value,
        "metadata": {
            "name": step.name,
            "namespace": namespace,
            "labels": {
                LABEL_NAME: "holdfast",
                LABEL_MANAGED_BY: MANAGED_BY,
                LABEL_SCHEDULE: schedule_label(collection),
            },
            "annotations": {ANNOTATION_SCHEDULED: timestamp(step.time)},
        },
        "spec": {
            "collectionRef": {"name": collection},
            **place,
            **({"spark": spark} if spark else {}),
            "deletionPolicy": spec.deletion_policy,
        },
    }


def plan(seen: SnapshotScheduleView | None) -> Decision | RequestedReport:
    """Returns the next step for the schedule, or what to show."""
    if seen is None:
        return RequestedReport()
    shown = ConditionType.SCHEDULED_SNAPSHOT_COMPLETED
    times = {each.time for each in seen.there}
    if seen.shown.last_schedule_time is not None:
        times.add(seen.shown.last_schedule_time)
    asked = Scheduled(spec=seen.spec, template=SparkTemplate(), shown=seen.shown, times=frozenset(times))
    try:
        found = turn(asked, seen.now)
    except BadInput as error:
        return condition_report(shown, "False", Reason.INVALID_SCHEDULE, f"spec.{FIELD}: {error}; correct it")
    latest = seen.there[-1] if seen.there else None
    at_work = latest is not None and latest.phase is Phase.RECONCILING
    if found.due is not None and not at_work and seen.denied is None:
        return CreateSnapshot(_name(seen.collection, found.due), found.due)
    if (old := _no_longer_kept(seen)) is not None:
        return DeleteSnapshot(old.name, old.uid)
    status = SnapshotScheduleStatus(
        **found.shown.model_dump(), last_snapshot=None if latest is None else latest.name
    )
    report, look_after = _report(seen, latest, found.upcoming), found.look_after
    if found.due is not None and not at_work:
        text = f"the CollectionSnapshot of {timestamp(found.due)} can't be created: {seen.denied}; {RETRIES}"
        report = condition_report(shown, "False", Reason.FORBIDDEN, text)
        look_after = min(look_after, PAUSE_SECONDS)
    return RequestedReport(
        report.condition,
        fields={FIELD: status.model_dump(mode="json", by_alias=True, exclude_none=True)},
        requeue_after=look_after,
        notes=missed_notes(found),
    )


def _report(
    seen: SnapshotScheduleView, latest: ScheduledSnapshot | None, upcoming: datetime
) -> RequestedReport:
    shown = ConditionType.SCHEDULED_SNAPSHOT_COMPLETED
    is_over = latest is None or latest.phase is Phase.READY
    if is_over and seen.spec.suspend:
        text = f"no run starts until spec.{FIELD}.suspend is false again"
        return condition_report(shown, "Unknown", Reason.SUSPENDED, text)
    if is_over and seen.objection is not None:
        # The job of the next run can't start. That may be in a week, so it is shown now.
        return condition_report(shown, "False", Reason.SPARK_TEMPLATE_REFUSED, seen.objection)
    if latest is None:
        text = f"the first run: the next one is due at {timestamp(upcoming)}"
        return condition_report(shown, "Unknown", Reason.SNAPSHOT_SCHEDULED, text)
    text = f"CollectionSnapshot '{latest.name}': {latest.message}"
    match latest.phase:
        case Phase.READY:
            return condition_report(shown, "True", Reason.SNAPSHOT_SUCCEEDED, text)
        case Phase.STALLED:
            text = f"{text}; the next run is due at {timestamp(upcoming)}"
            return condition_report(shown, "False", Reason.SNAPSHOT_FAILED, text)
        case _:
            # Its progress is in its own status.
            text = f"CollectionSnapshot '{latest.name}' is in progress"
            return condition_report(shown, "Unknown", Reason.SNAPSHOT_RUNNING, text)


def _no_longer_kept(seen: SnapshotScheduleView) -> ScheduledSnapshot | None:
    """Returns the oldest snapshot that is no longer kept, or None."""
    ready = [each for each in seen.there if each.phase is Phase.READY]
    keep = len(ready) if seen.spec.keep_last is None else seen.spec.keep_last
    old = ready[: max(len(ready) - keep, 0)]
    if seen.spec.keep_for is not None:
        oldest = seen.now - timedelta(milliseconds=milliseconds(seen.spec.keep_for))
        old += [each for each in ready[:-1] if each.time < oldest]
    old += [each for each in seen.there[:-1] if each.phase is Phase.STALLED]
    return min(old, key=lambda each: each.time, default=None)


def last_snapshot(jobs: Sequence[JobRecord]) -> Mapping[str, Any]:
    """Returns the status field of the last committed snapshot. Empty if there is none."""
    done = (job for job in jobs if job.kind == SNAPSHOT and job.state is JobState.DONE)
    last = max(done, key=lambda job: job.finished_ms, default=None)
    if last is None:
        return {}
    result = last.result
    status = SnapshotStatus(
        name=name_of(last),
        as_of=frontier(int(result.get("as_of", last.as_of or 0))),
        location=location_of(last) or "",
        table=result.get("table"),
        rows=result.get("rows"),
        checksum=result.get("checksum"),
    )
    return {_LAST: status.model_dump(mode="json", by_alias=True, exclude_none=True)}


def _name(collection: str, time: datetime) -> str:
    stem = collection
    if len(stem) > _MAX_STEM:
        # A dash may not follow a dot in a name.
        cut = stem[: _MAX_STEM - _DIGITS - 1].rstrip("-.")
        stem = f"{cut}-{hashlib.sha256(stem.encode()).hexdigest()[:_DIGITS]}"
    return f"{stem}-{time:%Y%m%d%H%M%S}"


def _time_of(text: str) -> datetime | None:
    """Returns the time of a run, or None if it can't be parsed."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
