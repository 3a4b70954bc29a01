"""How the operator decides about a compaction: as about a snapshot, but only one of both at a time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.collections import JobRecord, JobState
from holdfast.persist import StoredSize
from holdfast_operator.api.collection import CompactionSchedule, SparkTask, StorageCollectionSpec
from holdfast_operator.api.cron import ScheduleStatus
from holdfast_operator.api.names import Reason
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.collections.spark_work import asked_for, waits_for
from holdfast_operator.jobs.compaction import CompactionView
from holdfast_operator.jobs.requested import JobRequest, RequestedReport, jobs_of, plan, plan_scheduled
from holdfast_operator.jobs.scheduled import Scheduled
from holdfast_operator.jobs.snapshot import SnapshotView
from holdfast_operator.jobs.steps import FailAttempt, LaunchAttempt, RetryJob, StartJob
from holdfast_operator.sparkapps.adapter import AppPhase, AppState

NOW = datetime(2026, 1, 2, tzinfo=UTC)
JOB = "7a0c2f3e-0000-5000-8000-000000000001"
RESULT = {
    "shards": 4,
    "compacted": 2,
    "skipped": 1,
    "left": 1,
    "batches": 9,
    "rows_before": 100,
    "rows": 60,
    "bytes_before": 2000,
    "bytes": 1000,
}
ASKED = CompactionView(
    request=JobRequest("one", SparkTask()),
    template=SparkTemplate(),
    reachable=True,
    collection_id="c1",
    now=NOW,
)


def record(state: JobState, kind: str = "compact", slot: str = "one", **fields: Any) -> JobRecord:
    return JobRecord(JOB, "c1", kind, slot, 1, state, **fields)


def told(seen: CompactionView) -> tuple[str, Reason, str]:
    report = plan(seen)
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    return report.condition.status, report.condition.reason, report.condition.message


def test_it_starts_whatever_has_been_written_in_tasks_that_follow_from_that() -> None:
    assert plan(ASKED) == StartJob("c1", "compact", "one", {}, 1)
    assert plan(replace(ASKED, stored=StoredSize(5_000_000, 10))) == StartJob("c1", "compact", "one", {}, 5)
    running = replace(ASKED, job=record(JobState.RUNNING), running=(record(JobState.RUNNING),))
    assert plan(running) == LaunchAttempt("c1", record(JobState.RUNNING), 1)
    ended_ms = int(NOW.timestamp() * 1000)
    failed = record(JobState.FAILED, error="boom", by="spark", failures=1, finished_ms=ended_ms)
    assert told(replace(ASKED, job=failed))[1] is Reason.COMPACTION_RETRYING
    assert plan(replace(ASKED, job=failed, now=NOW + timedelta(days=1))) == RetryJob("c1", JOB, 1)


def test_what_it_did_is_shown() -> None:
    done = record(JobState.DONE, result=RESULT, finished_ms=5)
    report = plan(replace(ASKED, job=done, last=done))
    assert isinstance(report, RequestedReport)
    assert report.fields["lastCompaction"] == {
        "requestId": "one",
        "shards": 4,
        "compacted": 2,
        "left": 1,
        "batches": 9,
        "rowsBefore": 100,
        "rows": 60,
        "bytesBefore": 2000,
        "bytes": 1000,
        "jobId": JOB,
        "attempt": 1,
    }
    assert report.fields["compactionJob"]["state"] == "Done"
    text = "compaction one is committed: 2 of 4 shards, 1 compacted by others; 100 stored rows are 60"
    assert told(replace(ASKED, job=done)) == ("True", Reason.COMPACTION_SUCCEEDED, text)


def test_one_that_nobody_asks_for_any_more_is_ended() -> None:
    old = record(JobState.RUNNING, slot="old")
    ended = FailAttempt("compact", JOB, 1, "it is not asked for any more", stopped=True)
    assert plan(replace(ASKED, running=(old,))) == ended
    app = AppState("app", "uid", JOB, 1, AppPhase.RUNNING, "", NOW, kind="compact")
    assert plan(replace(ASKED, request=None, apps=(app,))) == replace(ended, app=app)


@pytest.mark.parametrize(
    ("kind", "other", "waits"),
    [
        (CompactionView, record(JobState.RUNNING, "snapshot", "s1"), "snapshot s1"),
        (CompactionView, record(JobState.RUNNING, "hydrate", "r2"), "the hydration of rendition r2"),
        (CompactionView, record(JobState.DONE, "snapshot", "s1"), None),
        (CompactionView, record(JobState.RUNNING, "compact", "c2"), None),
        (SnapshotView, record(JobState.RUNNING, "compact", "c2"), "compaction c2"),
        (SnapshotView, record(JobState.RUNNING, "hydrate", "r2"), None),
        (SnapshotView, record(JobState.RUNNING, "stream write", "x"), None),
    ],
)
def test_a_compaction_waits_for_other_jobs_and_a_snapshot_for_a_compaction(
    kind: Any, other: JobRecord, waits: str | None
) -> None:
    assert waits_for(kind.kind, (other,)) == waits


def test_one_that_waits_says_for_what_and_one_that_runs_does_not_wait() -> None:
    behind = replace(ASKED, waits_for="snapshot s1")
    text = "waiting for snapshot s1 to end"
    assert told(behind) == ("Unknown", Reason.COMPACTION_QUEUED, text)
    failed = record(JobState.FAILED, error="boom", by="spark", failures=1)
    retried = replace(behind, job=failed, now=NOW + timedelta(days=1))
    assert told(retried)[:2] == ("Unknown", Reason.COMPACTION_QUEUED)
    job = record(JobState.RUNNING)
    assert plan(replace(behind, job=job, running=(job,))) == LaunchAttempt("c1", job, 1)


def test_a_schedule_asks_for_compactions_and_the_records_of_snapshots_are_none_of_them() -> None:
    spec = CompactionSchedule.model_validate({"schedule": "@daily"})
    shown = ScheduleStatus(next_schedule_time=NOW)
    seen = replace(ASKED, request=None, scheduled=Scheduled(spec=spec, template=SparkTemplate(), shown=shown))
    assert plan_scheduled(seen) == StartJob("c1", "compact", "schedule:2026-01-02T00:00:00Z", {}, 1)
    report = plan_scheduled(replace(seen, now=NOW - timedelta(hours=1)))
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    assert report.condition.reason is Reason.COMPACTION_SCHEDULED
    assert report.fields["compactionSchedule"]["nextScheduleTime"] == "2026-01-02T00:00:00Z"
    known = (record(JobState.RUNNING, "snapshot"), record(JobState.DONE, finished_ms=4, result=RESULT))
    assert jobs_of(ASKED.kind, known, ASKED.request) == (known[1], known[1], ())


def test_an_annotation_asks_for_one_with_the_template_of_the_schedule() -> None:
    fields: dict[str, Any] = {"catalogRef": {"name": "demo"}, "columns": [{"name": "id", "type": "int64"}]}
    spec = StorageCollectionSpec.model_validate(fields)
    assert asked_for(spec, "")["compact"] == (None, None)
    assert asked_for(spec, "one")["compact"] == (JobRequest("one", SparkTask()), None)
    schedule = {"schedule": "@daily", "spark": {"maxAttempts": 5}}
    spec = StorageCollectionSpec.model_validate({**fields, "compactionSchedule": schedule})
    request, _ = asked_for(spec, "one")["compact"]
    assert request is not None
    assert request.task.spark.max_attempts == 5
    # Any text is an id, and none is that of a run of the schedule.
    request, _ = asked_for(spec, "schedule:2026-01-02T00:00:00Z")["compact"]
    assert request is not None
    assert len(request.request_id) == 32
    assert request.request_id.isalnum()
