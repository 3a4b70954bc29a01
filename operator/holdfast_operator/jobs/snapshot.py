"""Snapshots, one kind of the jobs that a StorageCollection can request (see `requested`).

The time to read at is fixed at the first attempt. So all attempts of a job write the same rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from holdfast.collections import JobRecord
from holdfast_operator.api.base import frontier
from holdfast_operator.api.collection import (
    SnapshotJobStatus,
    SnapshotRequest,
    SnapshotScheduleStatus,
    SnapshotStatus,
    SnapshotTask,
)
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.api.snapshot import CollectionSnapshotSpec
from holdfast_operator.jobs.course import HINDRANCES, SNAPSHOT, JobPhase, job_status
from holdfast_operator.jobs.requested import (
    Order,
    RequestedKind,
    RequestedReport,
    RequestedView,
    condition_report,
)
from holdfast_operator.jobs.steps import StartJob
from holdfast_operator.sparkapps.sizing import tasks

_SLOT: Final = "object:"
"""Prefix of the slots of CollectionSnapshots. No `requestId` and no slot of a schedule starts with it."""
_NAME: Final = "snapshot"
"""In the spec of a JobRecord: the name of its CollectionSnapshot."""


def slot_of(uid: str) -> str:
    """Returns the slot of the JobRecord of a CollectionSnapshot. Another object has another one."""
    return _SLOT + uid


def is_of_object(job: JobRecord) -> bool:
    """Returns whether a job belongs to a CollectionSnapshot."""
    return job.slot.startswith(_SLOT)


def name_of(job: JobRecord) -> str:
    """Returns the name of the CollectionSnapshot of a job, or the slot of another job."""
    return str(job.spec.get(_NAME, job.slot))


def work_order(job: JobRecord) -> Mapping[str, Any]:
    """Returns the arguments of a snapshot's job in addition to its location and ids."""
    return {name: job.spec[name] for name in ("as_of", "destination", "iceberg") if name in job.spec}


def _start(seen: "SnapshotView", order: Order) -> StartJob | RequestedReport:
    task = order.task
    assert isinstance(task, SnapshotTask)
    latest = seen.upper - 1
    asked = task.as_of if isinstance(task, SnapshotRequest | CollectionSnapshotSpec) else None
    as_of = latest if asked is None else asked
    if seen.upper == 0 or as_of > latest:
        text = f"time {as_of} is not complete yet: " + (
            f"the latest complete time is {latest}" if seen.upper else "nothing has been written"
        )
        return condition_report(
            order.shown, "Unknown", Reason.SNAPSHOT_NOT_READABLE, f"{text}; the snapshot starts when it is"
        )
    if as_of < seen.since:
        return condition_report(
            order.shown,
            "False",
            Reason.SNAPSHOT_NOT_READABLE,
            f"time {as_of} is gone: the earliest readable time is {frontier(seen.since)}; "
            "request another snapshot, with another asOf",
        )
    name = {_NAME: seen.object_name} if seen.object_name else {}
    spec = {"as_of": as_of, **task.place, **name}
    count = tasks(seen.stored, order.template.executor)
    return StartJob(seen.collection_id, SNAPSHOT, order.slot, spec, count)


def _last_status(job: JobRecord) -> SnapshotStatus:
    result = job.result
    return SnapshotStatus(
        request_id=job.slot,
        as_of=frontier(int(result.get("as_of", _as_of(job)))),
        destination=str(result.get("path", job.spec.get("destination", ""))),
        table=result.get("table"),
        snapshot_id=result.get("snapshot_id"),
        rows=result.get("rows"),
        checksum=result.get("checksum"),
        job_id=job.job_id,
        attempt=job.attempt,
    )


def _as_of(job: JobRecord) -> int:
    return int(job.spec.get("as_of", 0))


@dataclass(frozen=True, kw_only=True)
class SnapshotView(RequestedView):
    """Everything that the plans for snapshots depend on."""

    object_name: str = ""
    """The name of the CollectionSnapshot that requests it."""

    kind: ClassVar[RequestedKind] = RequestedKind(
        job=SNAPSHOT,
        noun="snapshot",
        shown=ConditionType.SNAPSHOT_COMPLETED,
        scheduled=ConditionType.SCHEDULED_SNAPSHOT_COMPLETED,
        reasons={
            **HINDRANCES,
            JobPhase.QUEUED: Reason.SNAPSHOT_QUEUED,
            JobPhase.RUNNING: Reason.SNAPSHOT_RUNNING,
            JobPhase.RETRYING: Reason.SNAPSHOT_RETRYING,
            JobPhase.FAILED: Reason.SNAPSHOT_FAILED,
            JobPhase.DONE: Reason.SNAPSHOT_SUCCEEDED,
        },
        awaited=Reason.SNAPSHOT_SCHEDULED,
        start=_start,
        running=lambda job: f", as of {_as_of(job)}",
        done=lambda job: f"{job.result.get('rows')} rows as of {_as_of(job)}",
        job_status=lambda seen, job: SnapshotJobStatus(
            request_id=job.slot, as_of=frontier(_as_of(job)), **job_status(seen, job)
        ),
        schedule_status=lambda shown, job: SnapshotScheduleStatus(**shown.model_dump(), job=job),
        last_status=_last_status,
    )
