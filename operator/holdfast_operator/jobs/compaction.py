"""Compactions, one kind of the jobs that a StorageCollection can request (see `requested`).

A compaction needs no particular state of the collection. If there is nothing to compact, it ends at once.
"""

from dataclasses import dataclass
from typing import ClassVar

from holdfast.collections import JobRecord
from holdfast_operator.api.collection import CompactionJobStatus, CompactionScheduleStatus, CompactionStatus
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.jobs.course import COMPACT, HINDRANCES, JobPhase, job_status
from holdfast_operator.jobs.requested import Order, RequestedKind, RequestedView
from holdfast_operator.jobs.steps import StartJob
from holdfast_operator.sparkapps.sizing import tasks


def _start(seen: RequestedView, order: Order) -> StartJob:
    count = tasks(seen.stored, order.template.executor)
    return StartJob(seen.collection_id, COMPACT, order.slot, {}, count)


def _done(job: JobRecord) -> str:
    """Describes what a compaction did."""
    result = job.result
    done = f"{result.get('compacted')} of {result.get('shards')} shards"
    left = result.get("left")
    beside = f", {left} compacted by others" if left else ""
    return f"{done}{beside}; {result.get('rows_before')} stored rows are {result.get('rows')}"


def _last_status(job: JobRecord) -> CompactionStatus:
    result = job.result
    return CompactionStatus(
        request_id=job.slot,
        shards=result.get("shards"),
        compacted=result.get("compacted"),
        left=result.get("left"),
        batches=result.get("batches"),
        rows_before=result.get("rows_before"),
        rows=result.get("rows"),
        bytes_before=result.get("bytes_before"),
        bytes=result.get("bytes"),
        job_id=job.job_id,
        attempt=job.attempt,
    )


@dataclass(frozen=True, kw_only=True)
class CompactionView(RequestedView):
    """Everything that the plans for compactions depend on."""

    kind: ClassVar[RequestedKind] = RequestedKind(
        job=COMPACT,
        noun="compaction",
        shown=ConditionType.COMPACTION_COMPLETED,
        scheduled=ConditionType.SCHEDULED_COMPACTION_COMPLETED,
        reasons={
            **HINDRANCES,
            JobPhase.QUEUED: Reason.COMPACTION_QUEUED,
            JobPhase.RUNNING: Reason.COMPACTION_RUNNING,
            JobPhase.RETRYING: Reason.COMPACTION_RETRYING,
            JobPhase.FAILED: Reason.COMPACTION_FAILED,
            JobPhase.DONE: Reason.COMPACTION_SUCCEEDED,
        },
        awaited=Reason.COMPACTION_SCHEDULED,
        start=_start,
        running=lambda _: "",
        done=_done,
        job_status=lambda seen, job: CompactionJobStatus(request_id=job.slot, **job_status(seen, job)),
        schedule_status=lambda shown, job: CompactionScheduleStatus(**shown.model_dump(), job=job),
        last_status=_last_status,
    )
