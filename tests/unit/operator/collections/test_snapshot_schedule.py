"""Which CollectionSnapshots a schedule creates and deletes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.collections import JobRecord, JobState
from holdfast_operator.api.collection import SnapshotSchedule
from holdfast_operator.api.cron import ScheduleStatus
from holdfast_operator.api.names import ANNOTATION_SCHEDULED, LABEL_SCHEDULE, Kind, Reason
from holdfast_operator.collections.snapshot_index import SnapshotIndex
from holdfast_operator.collections.snapshot_schedule import (
    CreateSnapshot,
    DeleteSnapshot,
    ScheduledSnapshot,
    SnapshotScheduleView,
    last_snapshot,
    plan,
    scheduled_snapshot,
    snapshot_body,
)
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.jobs.requested import RequestedReport

NOW = datetime(2026, 1, 10, tzinfo=UTC)
SPEC = {"schedule": "0 0 * * *", "destination": "file:///out"}


def there(days: int, phase: Phase = Phase.READY) -> ScheduledSnapshot:
    """The one of so many days ago."""
    return ScheduledSnapshot(f"s{days}", f"u{days}", NOW - timedelta(days=days), phase, "well")


def view(
    *snapshots: ScheduledSnapshot, upcoming: datetime | None = None, **spec: Any
) -> SnapshotScheduleView:
    return SnapshotScheduleView(
        collection="flights",
        spec=SnapshotSchedule.model_validate({**SPEC, **spec}),
        shown=ScheduleStatus(next_schedule_time=upcoming),
        there=tuple(sorted(snapshots, key=lambda each: each.time)),
        now=NOW,
    )


def told(seen: SnapshotScheduleView) -> tuple[str, Reason]:
    report = plan(seen)
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    return report.condition.status, report.condition.reason


def test_a_run_that_is_due_is_an_object_with_its_time_in_its_name() -> None:
    step = plan(view(upcoming=NOW))
    assert step == CreateSnapshot("flights-20260110000000", NOW)
    body = snapshot_body("flights", "ns", view(deletionPolicy="Delete", spark={"maxAttempts": 2}).spec, step)
    assert body["spec"] == {
        "collectionRef": {"name": "flights"},
        "destination": "file:///out",
        "spark": {"maxAttempts": 2},
        "deletionPolicy": "Delete",
    }
    body["metadata"] |= {"uid": "u"}
    found = scheduled_snapshot("flights", body)
    assert found == ScheduledSnapshot(
        "flights-20260110000000", "u", NOW, Phase.RECONCILING, "it was just created"
    )
    # It is there, or the status says that it was: its time never comes again.
    assert not isinstance(plan(view(replace(found, phase=Phase.READY), upcoming=NOW)), CreateSnapshot)
    again = replace(view(upcoming=NOW), shown=ScheduleStatus(next_schedule_time=NOW, last_schedule_time=NOW))
    assert not isinstance(plan(again), CreateSnapshot)
    long = plan(replace(view(upcoming=NOW), collection="c" * 253))
    assert isinstance(long, CreateSnapshot)
    assert len(long.name) <= 253


@pytest.mark.parametrize(
    "change",
    [
        {"deletionTimestamp": "2026-01-11T00:00:00Z"},
        {"labels": {}},
        {"labels": {LABEL_SCHEDULE: "trains"}},
        # What a user made of a scheduled one, with its label.
        {"name": "flights-before-the-change"},
        {"name": "flights-20260109000000"},
        {"annotations": {}},
        {"annotations": {ANNOTATION_SCHEDULED: "yesterday"}},
    ],
)
def test_only_what_the_schedule_made_and_is_not_being_deleted_is_of_the_schedule(
    change: dict[str, Any],
) -> None:
    body = snapshot_body("flights", "ns", view().spec, CreateSnapshot("flights-20260110000000", NOW))
    body["metadata"] |= {"uid": "u"}
    index, key = SnapshotIndex(), ObjectKey(Kind.COLLECTION_SNAPSHOT, "ns", "any")
    collection = ObjectKey(Kind.STORAGE_COLLECTION, "ns", "flights")
    index.put(key, body)
    assert [each.uid for each in index.scheduled(collection)] == ["u"]
    index.put(key, {**body, "metadata": {**body["metadata"], **change}})
    assert index.scheduled(collection) == ()
    # It is still reconciled with its collection.
    assert index.waiting_for(collection) == (key,)
    index.drop(key)
    assert index.waiting_for(collection) == ()


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (view(), ("Unknown", Reason.SNAPSHOT_SCHEDULED)),
        (view(suspend=True), ("Unknown", Reason.SUSPENDED)),
        (view(there(1)), ("True", Reason.SNAPSHOT_SUCCEEDED)),
        (view(there(1), suspend=True), ("Unknown", Reason.SUSPENDED)),
        (view(there(1, Phase.STALLED)), ("False", Reason.SNAPSHOT_FAILED)),
        (view(there(1, Phase.RECONCILING), upcoming=NOW), ("Unknown", Reason.SNAPSHOT_RUNNING)),
        (view(timeZone="Mars/Olympus"), ("False", Reason.INVALID_SCHEDULE)),
        # Before the run is due.
        (replace(view(), objection="no"), ("False", Reason.SPARK_TEMPLATE_REFUSED)),
        (replace(view(there(1)), objection="no"), ("False", Reason.SPARK_TEMPLATE_REFUSED)),
        (replace(view(there(1), suspend=True), objection="no"), ("Unknown", Reason.SUSPENDED)),
        (replace(view(there(1, Phase.STALLED)), objection="no"), ("False", Reason.SNAPSHOT_FAILED)),
        (replace(view(there(1, Phase.RECONCILING)), objection="no"), ("Unknown", Reason.SNAPSHOT_RUNNING)),
    ],
)
def test_what_is_shown(seen: SnapshotScheduleView, expected: tuple[str, Reason]) -> None:
    assert told(seen) == expected


def test_a_run_whose_object_is_denied_says_by_whom_and_holds_up_nothing_else() -> None:
    denied = "403 exceeded quota: team"
    seen = replace(view(*(there(days) for days in (3, 2, 1)), upcoming=NOW, keepLast=2), denied=denied)
    assert plan(seen) == DeleteSnapshot("s3", "u3")
    report = plan(replace(seen, there=seen.there[1:]))
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    assert (report.condition.status, report.condition.reason) == ("False", Reason.FORBIDDEN)
    assert denied in report.condition.message
    assert report.requeue_after == 30
    assert isinstance(plan(replace(seen, there=seen.there[1:], denied=None)), CreateSnapshot)


def test_one_that_failed_does_not_hold_up_the_next_and_only_the_latest_of_these_is_kept() -> None:
    assert isinstance(plan(view(there(1, Phase.STALLED), upcoming=NOW)), CreateSnapshot)
    failed = [there(days, Phase.STALLED) for days in (3, 2, 1)]
    assert plan(view(*failed)) == DeleteSnapshot("s3", "u3")
    assert isinstance(plan(view(failed[-1])), RequestedReport)


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ({}, None),
        ({"keepLast": 4}, None),
        ({"keepLast": 2}, "s5"),
        ({"keepFor": "100h"}, "s5"),
        ({"keepFor": "6d"}, None),
        ({"keepLast": 4, "keepFor": "100h"}, "s5"),
    ],
)
def test_the_oldest_that_is_no_longer_kept_goes(keep: dict[str, Any], expected: str | None) -> None:
    step = plan(view(there(5), there(3), there(2), there(1), **keep))
    assert (step.name if isinstance(step, DeleteSnapshot) else None) == expected


def test_the_latest_good_one_stays_however_old_it_is_and_whatever_failed_since() -> None:
    seen = view(there(90), there(1, Phase.STALLED), keepLast=1, keepFor="1d")
    assert isinstance(plan(seen), RequestedReport)
    working = view(there(90), there(1, Phase.RECONCILING), keepLast=1, keepFor="1d")
    assert isinstance(plan(working), RequestedReport)


def test_the_last_one_is_that_which_was_committed_last() -> None:
    def job(name: str, finished_ms: int, state: JobState = JobState.DONE) -> JobRecord:
        result = {"as_of": 5, "path": "/out/a", "rows": 7, "checksum": "00ff"}
        spec = {"as_of": 5, "snapshot": name}
        return JobRecord(
            "j", "c", "snapshot", "object:u", 1, state, spec=spec, result=result, finished_ms=finished_ms
        )

    assert last_snapshot([job("a", 2), job("b", 3), job("c", 4, JobState.FAILED)]) == {
        "lastSnapshot": {"name": "b", "asOf": 5, "location": "file:///out/a", "rows": 7, "checksum": "00ff"}
    }
    assert last_snapshot([]) == {}
