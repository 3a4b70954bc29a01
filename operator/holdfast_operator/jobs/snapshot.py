"""The job of a CollectionSnapshot, which runs like all jobs that can be requested (see `requested`).

The time to read at is fixed at the first attempt. So all attempts of a job write the same rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from holdfast.collections import JobRecord
from holdfast_operator.api.base import frontier
from holdfast_operator.api.names import Reason
from holdfast_operator.api.snapshot import CollectionSnapshotSpec
from holdfast_operator.jobs.course import HINDRANCES, SNAPSHOT, JobPhase
from holdfast_operator.jobs.requested import (
    JobKind,
    Order,
    RequestedReport,
    RequestedView,
    condition_report,
)
from holdfast_operator.jobs.steps import StartJob
from holdfast_operator.sparkapps.sizing import tasks

_SLOT: Final = "object:"
"""Prefix of the slots of CollectionSnapshots."""
_NAME: Final = "snapshot"
"""In the spec of a JobRecord: the name of its CollectionSnapshot."""


def slot_of(uid: str) -> str:
    """Returns the slot of the JobRecord of a CollectionSnapshot. Another object has another one."""
    return _SLOT + uid


def name_of(job: JobRecord) -> str:
    """Returns the name of the CollectionSnapshot of a job, or the slot of another job."""
    return str(job.spec.get(_NAME, job.slot))


def location_of(job: JobRecord) -> str | None:
    """Returns the URL of the folder or table that a job has written, or None if it isn't done."""
    path = job.result.get("path")
    if path is None:
        return None
    return Path(path).as_uri() if str(path).startswith("/") else str(path)


def work_order(job: JobRecord) -> Mapping[str, Any]:
    """Returns the arguments of a snapshot's job in addition to its location and ids."""
    return {name: job.spec[name] for name in ("as_of", "destination", "iceberg") if name in job.spec}


def _start(seen: "SnapshotView", order: Order) -> StartJob | RequestedReport:
    task = order.task
    assert isinstance(task, CollectionSnapshotSpec)
    latest = seen.upper - 1
    as_of = latest if task.as_of is None else task.as_of
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
            "create another CollectionSnapshot, with another asOf",
        )
    spec = {"as_of": as_of, **task.place, _NAME: seen.object_name}
    count = tasks(seen.stored, order.template.executor)
    return StartJob(seen.collection_id, SNAPSHOT, order.slot, spec, count)


def _as_of(job: JobRecord) -> int:
    return int(job.spec.get("as_of", 0))


@dataclass(frozen=True, kw_only=True)
class SnapshotView(RequestedView):
    """Everything that the plans for snapshots depend on."""

    object_name: str = ""
    """The name of the CollectionSnapshot that requests it."""

    kind: ClassVar[JobKind] = JobKind(
        job=SNAPSHOT,
        noun="snapshot",
        reasons={
            **HINDRANCES,
            JobPhase.QUEUED: Reason.SNAPSHOT_QUEUED,
            JobPhase.RUNNING: Reason.SNAPSHOT_RUNNING,
            JobPhase.RETRYING: Reason.SNAPSHOT_RETRYING,
            JobPhase.FAILED: Reason.SNAPSHOT_FAILED,
            JobPhase.DONE: Reason.SNAPSHOT_SUCCEEDED,
        },
        start=_start,
        running=lambda job: f", as of {_as_of(job)}",
        done=lambda job: f"{job.result.get('rows')} rows as of {_as_of(job)}",
    )
