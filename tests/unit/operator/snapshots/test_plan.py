"""What the operator does for a CollectionSnapshot: one object is one job, and a deletion cleans up."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.collections import JobRecord, JobState
from holdfast.collections.record.jobs import job_id
from holdfast_operator.api.names import Reason
from holdfast_operator.api.snapshot import CollectionSnapshotSpec, CollectionSnapshotStatus
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.deletion import Deletion
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.steps import Keep, Release, Rhythm, Settle, Wait
from holdfast_operator.jobs.snapshot import SnapshotView, slot_of
from holdfast_operator.jobs.steps import FailAttempt, ForgetRuns, StartJob
from holdfast_operator.snapshots.facts import CollectionState, SnapshotFacts
from holdfast_operator.snapshots.plan import plan
from holdfast_operator.snapshots.status import folder_of, shown_folder
from holdfast_operator.snapshots.steps import CancelApplication, RemoveFiles
from holdfast_operator.sparkapps.adapter import AppPhase, AppState

NOW = datetime(2026, 1, 2, tzinfo=UTC)
COLLECTION = "c1"
SLOT = slot_of("u1")
JOB = job_id(COLLECTION, "snapshot", SLOT)
FOLDER = f"file:///out/{JOB}"
SPEC = CollectionSnapshotSpec.model_validate(
    {"collectionRef": {"name": "flights"}, "destination": "file:///out"}
)
VIEW = SnapshotView(
    request=SPEC,
    object_name="one",
    template=SparkTemplate(),
    reachable=True,
    collection_id=COLLECTION,
    upper=42,
    now=NOW,
)
SEEN = SnapshotFacts(
    spec=SPEC, slot=SLOT, task=SPEC, collection=CollectionState.READABLE, job=VIEW, has_finalizer=False
)
APP = AppState("app", "uid", JOB, 1, AppPhase.RUNNING, "", NOW)
SHOWN = CollectionSnapshotStatus(
    as_of=41, rows=7, location=f"{FOLDER}/attempt-1", completion_time=NOW, job=None
)
RUNS = {"jobId": JOB, "attempt": 1, "state": "Running", "application": "app"}


def record(state: JobState, **fields: Any) -> JobRecord:
    spec = {"as_of": 41, "destination": "file:///out", "snapshot": "one"}
    return JobRecord(JOB, "c1", "snapshot", SLOT, 1, state, spec=spec, started_ms=1000, **fields)


def decided(seen: SnapshotFacts) -> Any:
    return plan(seen, Rhythm())


def told(seen: SnapshotFacts) -> tuple[Phase, Reason]:
    step = decided(seen)
    assert isinstance(step, Settle)
    return step.health.phase, step.health.reason


def with_job(state: JobState, **fields: Any) -> SnapshotFacts:
    job = record(state, **fields)
    running = (job,) if state is JobState.RUNNING else ()
    return replace(SEEN, has_finalizer=True, job=replace(VIEW, job=job, running=running), folder=FOLDER)


def test_nothing_starts_without_the_finalizer() -> None:
    assert decided(SEEN) == Keep()
    step = decided(replace(SEEN, has_finalizer=True))
    assert step == StartJob(
        "c1", "snapshot", SLOT, {"as_of": 41, "destination": "file:///out", "snapshot": "one"}, 1
    )


def test_nothing_starts_before_the_collection_would_end_it() -> None:
    loose = replace(SEEN, has_finalizer=True, collection_kept=False)
    assert decided(loose) == Wait(requeue_after=Rhythm().unsteady)
    # What needs no attempt doesn't wait.
    assert isinstance(decided(replace(loose, task=None)), Settle)


def test_one_that_is_committed_is_ready_and_needs_nothing_any_more() -> None:
    result = {"as_of": 41, "rows": 7, "bytes": 9, "checksum": "00ff", "path": f"/out/{JOB}/attempt-1"}
    step = decided(with_job(JobState.DONE, result=result, finished_ms=2000))
    assert isinstance(step, Settle)
    assert step.health.phase is Phase.READY
    assert step.fields is not None
    assert dict(step.fields) == {
        "asOf": 41,
        "collectionId": COLLECTION,
        "location": f"{FOLDER}/attempt-1",
        "rows": 7,
        "checksum": "00ff",
        "sizeBytes": 9,
        "job": {"jobId": JOB, "attempt": 1, "state": "Done"},
        "startTime": "1970-01-01T00:00:01Z",
        "completionTime": "1970-01-01T00:00:02Z",
    }
    suspended = replace(
        with_job(JobState.DONE, result=result, finished_ms=2000), collection=CollectionState.SUSPENDED
    )
    assert decided(suspended) == step
    for state in CollectionState:
        gone = replace(SEEN, has_finalizer=True, shown=SHOWN, collection=state, job=None)
        assert told(gone) == (Phase.READY, Reason.AVAILABLE)


@pytest.mark.parametrize(
    ("seen", "phase", "reason"),
    [
        (replace(SEEN, spec=None, problem="x"), Phase.STALLED, Reason.INVALID_SPEC),
        (
            replace(SEEN, job=None, collection=CollectionState.MISSING),
            Phase.STALLED,
            Reason.COLLECTION_NOT_FOUND,
        ),
        (replace(SEEN, collection=CollectionState.OBSERVED), Phase.STALLED, Reason.CATALOG_OBSERVED),
        (replace(SEEN, collection=CollectionState.SUSPENDED), Phase.RECONCILING, Reason.COLLECTION_NOT_READY),
        (
            replace(SEEN, job=None, collection=CollectionState.UNREADABLE),
            Phase.RECONCILING,
            Reason.COLLECTION_NOT_READY,
        ),
        (replace(SEEN, task=None), Phase.STALLED, Reason.NO_DESTINATION),
        (
            replace(SEEN, asks_to_delete=True, not_deletable="is elsewhere"),
            Phase.STALLED,
            Reason.LOCATION_NOT_ALLOWED,
        ),
        (replace(SEEN, job=replace(VIEW, upper=0)), Phase.RECONCILING, Reason.SNAPSHOT_NOT_READABLE),
        (replace(SEEN, job=replace(VIEW, since=99)), Phase.RECONCILING, Reason.SNAPSHOT_NOT_READABLE),
        (replace(SEEN, job=replace(VIEW, missing="none")), Phase.STALLED, Reason.SPARK_NOT_INSTALLED),
        (
            with_job(JobState.FAILED, by="spark", failures=9, error="boom"),
            Phase.STALLED,
            Reason.SNAPSHOT_FAILED,
        ),
    ],
)
def test_what_is_shown(seen: SnapshotFacts, phase: Phase, reason: Reason) -> None:
    if reason is Reason.SNAPSHOT_NOT_READABLE and seen.job is not None and seen.job.since == 99:
        assert told(seen)[0] is Phase.STALLED
    else:
        assert told(seen) == (phase, reason)


def test_each_failed_attempt_has_an_event() -> None:
    ended_ms = int(NOW.timestamp() * 1000)
    step = decided(with_job(JobState.FAILED, by="spark", failures=1, error="boom", finished_ms=ended_ms))
    assert isinstance(step, Settle)
    assert step.health.phase is Phase.RECONCILING
    assert [(note.reason, "boom" in note.message) for note in step.notes] == [
        (Reason.SNAPSHOT_RETRYING, True)
    ]


def test_a_catalog_that_is_opened_again_changes_nothing_that_is_shown() -> None:
    assert isinstance(decided(replace(SEEN, job=None, collection=CollectionState.OPENING)), Wait)


def test_a_suspended_or_deleted_collection_has_no_driver() -> None:
    for state in (CollectionState.SUSPENDED, CollectionState.MISSING):
        step = decided(replace(with_job(JobState.RUNNING, by="spark"), collection=state))
        assert isinstance(step, FailAttempt)
        assert step.stopped
    # The record ended with the collection. What is left of it is the application.
    gone = replace(SEEN, job=None, collection=CollectionState.MISSING, apps=(APP,))
    assert decided(gone) == CancelApplication(APP)


DELETING = replace(with_job(JobState.DONE, finished_ms=1), deleting=True, shown=SHOWN)


def test_a_deletion_ends_the_job_then_deletes_what_it_should_and_then_forgets() -> None:
    step = decided(replace(with_job(JobState.RUNNING, by="spark"), deleting=True, asks_to_delete=True))
    assert isinstance(step, FailAttempt)
    assert decided(DELETING) == ForgetRuns((JOB,))
    doomed = replace(DELETING, asks_to_delete=True)
    assert decided(doomed) == RemoveFiles(FOLDER)
    assert decided(replace(doomed, removed=True)) == ForgetRuns((JOB,))
    assert decided(replace(doomed, removed=True, job=VIEW)) == Release()
    assert decided(replace(DELETING, has_finalizer=False)) == Release()


def test_a_deletion_that_can_not_delete_says_what_is_left() -> None:
    doomed = replace(DELETING, asks_to_delete=True, not_deletable="is elsewhere")
    step = decided(doomed)
    assert isinstance(step, Settle)
    assert (step.health.phase, step.health.reason) == (Phase.STALLED, Reason.LOCATION_NOT_ALLOWED)
    assert FOLDER in step.health.message
    abandoned = decided(replace(doomed, deletion=Deletion(0, "no", asked=True)))
    assert isinstance(abandoned, Release)
    assert FOLDER in abandoned.notes[0].message


def test_a_deletion_without_a_store_waits_only_for_what_it_must_not_leave() -> None:
    away = replace(DELETING, job=None, collection=CollectionState.UNREADABLE, why="away")
    assert decided(away) == Release()
    assert decided(replace(away, asks_to_delete=True)) == RemoveFiles(FOLDER)
    assert told(replace(away, collection=CollectionState.OPENING))[1] is Reason.WAITING_FOR_CATALOG
    shown = CollectionSnapshotStatus.model_validate({"job": RUNS})
    runs = replace(away, shown=shown, shown_running=("attempt 1",), folder=None)
    assert told(runs)[1] is Reason.WAITING_FOR_CATALOG
    overdue = replace(runs, deletion=Deletion(600, "no"))
    released = decided(overdue)
    assert isinstance(released, Release)
    assert released.notes[0].reason is Reason.DELETION_INCOMPLETE
    # Nothing that is to be deleted is given up by itself.
    assert told(replace(overdue, asks_to_delete=True))[1] is Reason.WAITING_FOR_CATALOG
    gone = decided(replace(runs, asks_to_delete=True, collection=CollectionState.MISSING))
    assert isinstance(gone, Release)
    assert gone.notes[0].reason is Reason.DELETION_INCOMPLETE


@pytest.mark.parametrize(
    ("destination", "folder"),
    [
        ("file:///out/", f"file:///out/{JOB}"),
        ("s3://b/x?region=eu", f"s3://b/x/{JOB}?region=eu"),
        ("s3://b", f"s3://b/{JOB}"),
    ],
)
def test_the_folder_of_a_job_is_that_above_its_attempts(destination: str, folder: str) -> None:
    assert folder_of(destination, JOB) == folder
    before, mark, query = folder.partition("?")
    shown = CollectionSnapshotStatus(location=f"{before}/attempt-2{mark}{query}", collection_id=COLLECTION)
    assert shown_folder(shown, SLOT) == folder


@pytest.mark.parametrize(
    "change",
    [
        {"location": "file:///out"},
        {"location": f"file:///out/{JOB}"},
        {"location": f"file:///out/{JOB}/a/b"},
        {"location": None},
        {"collection_id": None},
        {"collection_id": ""},
        {"collection_id": "another"},
        {"table": "lake.flights"},
        # The folder of another snapshot.
        {"location": f"file:///out/{job_id(COLLECTION, 'snapshot', 'object:another-uid')}/attempt-1"},
    ],
    ids=str,
)
def test_a_status_names_no_folder_but_that_of_its_own_job(change: dict[str, Any]) -> None:
    """Others can write a status. The files of another snapshot must not be deleted because of that."""
    shown = CollectionSnapshotStatus(location=f"file:///out/{JOB}/attempt-1", collection_id=COLLECTION)
    assert shown_folder(shown, SLOT) == f"file:///out/{JOB}"
    assert shown_folder(shown, "object:another-uid") is None
    assert shown_folder(shown.model_copy(update=change), SLOT) is None
