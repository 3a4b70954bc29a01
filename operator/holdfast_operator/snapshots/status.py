"""The status of a CollectionSnapshot, from its JobRecord. Pure."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from holdfast.collections import JobRecord, JobState
from holdfast.collections.record.jobs import job_id
from holdfast.errors import BadInput
from holdfast_operator.api.base import frontier
from holdfast_operator.api.snapshot import CollectionSnapshotStatus
from holdfast_operator.api.spark import SparkJobStatus
from holdfast_operator.jobs.course import SNAPSHOT, SparkView, job_status
from holdfast_operator.jobs.snapshot import location_of


def status_fields(seen: SparkView, record: JobRecord) -> dict[str, Any]:
    """Returns the status fields of a snapshot."""
    done = record.state is JobState.DONE
    result = record.result if done else {}
    as_of = result.get("as_of", record.as_of)
    status = CollectionSnapshotStatus(
        as_of=None if as_of is None else frontier(int(as_of)),
        collection_id=seen.collection_id,
        location=location_of(record) if done else None,
        table=result.get("table"),
        iceberg_snapshot_id=None if "snapshot_id" not in result else str(result["snapshot_id"]),
        rows=result.get("rows"),
        checksum=result.get("checksum"),
        size_bytes=result.get("bytes"),
        job=SparkJobStatus(**job_status(seen, record)),
        start_time=_moment(record.started_ms),
        completion_time=_moment(record.finished_ms) if done else None,
    )
    return status.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"conditions", "observed_generation"}
    )


def folder_of(destination: str, job_id: str) -> str:
    """Returns the URL of the folder in which each attempt of a job has its own folder."""
    parts = urlsplit(destination)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{job_id}").geturl()


def shown_folder(shown: CollectionSnapshotStatus, slot: str) -> str | None:
    """Returns the folder of the job in a slot, as a status shows it, or None if it is not that of this job.

    Somebody else may have written the status. But the folder has the id of the job as its name, and that is
    a digest of the collection and the slot, which contains the uid of the resource. So whatever a status
    says, it names no folder of another resource.
    """
    if shown.location is None or shown.collection_id is None or shown.table is not None:
        return None
    parts = urlsplit(shown.location)
    destination, _, name = parts.path.rstrip("/").rpartition("/")[0].rpartition("/")
    try:
        own = job_id(shown.collection_id, SNAPSHOT, slot)
    except BadInput:
        return None
    return parts._replace(path=f"{destination}/{own}").geturl() if name == own else None


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC)
