"""How the operator decides about a snapshot: the record decides, and the application is only a hint."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collections import JobRecord, JobState
from holdfast.persist import StoredSize
from holdfast.spark.jobs.spec import SnapshotSpec
from holdfast.tables.iceberg.target import IcebergTarget
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.api.snapshot import CollectionSnapshotSpec
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.steps import Decision
from holdfast_operator.jobs.course import arguments, backoff
from holdfast_operator.jobs.requested import Order, RequestedReport, plan_order
from holdfast_operator.jobs.snapshot import SnapshotView, slot_of, work_order
from holdfast_operator.jobs.steps import FailAttempt, RetryJob, StartJob
from holdfast_operator.sparkapps.adapter import AppPhase, AppState

NOW = datetime(2026, 1, 2, tzinfo=UTC)
JOB = "7a0c2f3e-0000-5000-8000-000000000001"
SLOT = slot_of("u1")


TEMPLATE: dict[str, Any] = {"startDeadline": "60s", "maxAttempts": 3}


def request(**fields: Any) -> CollectionSnapshotSpec:
    return CollectionSnapshotSpec.model_validate(
        {
            "collectionRef": {"name": "flights"},
            "destination": "file:///out",
            "spark": TEMPLATE,
            **fields,
        }
    )


def template(**fields: Any) -> SparkTemplate:
    return SparkTemplate.model_validate(fields)


def record(state: JobState, attempt: int = 1, **fields: Any) -> JobRecord:
    spec = {"as_of": 41, "destination": "file:///out"}
    return JobRecord(JOB, "c1", "snapshot", SLOT, attempt, state, spec=spec, **fields)


def app(
    phase: AppPhase, *, attempt: int = 1, age: float = 1.0, job: str = JOB, message: str = ""
) -> AppState:
    created = NOW - timedelta(seconds=age)
    return AppState(f"app-{attempt}", f"uid-{attempt}", job, attempt, phase, message, created)


ASKED = SnapshotView(
    request=request(),
    object_name="one",
    template=SparkTemplate.model_validate(TEMPLATE),
    reachable=True,
    collection_id="c1",
    since=10,
    upper=42,
    now=NOW,
)
RUNNING = replace(ASKED, job=record(JobState.RUNNING), launched=frozenset({(JOB, 1)}))
DONE = record(
    JobState.DONE, 2, result={"as_of": 41, "rows": 7, "checksum": "00ff", "path": "/out/a"}, finished_ms=5
)


def plan(seen: SnapshotView) -> Decision | RequestedReport:
    order = Order(
        SLOT, seen.request, seen.template, ConditionType.READY, "create another one", name="the snapshot"
    )
    return plan_order(seen, order)


def told(seen: SnapshotView) -> tuple[str, Reason]:
    report = plan(seen)
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    return report.condition.status, report.condition.reason


@pytest.mark.parametrize(("as_of", "expected"), [(None, 41), (10, 10), (41, 41)])
def test_a_job_starts_at_a_fixed_time(as_of: int | None, expected: int) -> None:
    step = plan(replace(ASKED, request=request(asOf=as_of)))
    assert step == StartJob(
        "c1",
        "snapshot",
        SLOT,
        {"as_of": expected, "destination": "file:///out", "snapshot": "one"},
        1,
    )


def test_tasks_follow_from_what_is_stored() -> None:
    large = replace(ASKED, template=template(executor={"instances": 3}), stored=StoredSize(5_000_000, 10))
    step = plan(large)
    assert isinstance(step, StartJob)
    assert step.tasks == 6
    failed = replace(large, job=record(JobState.FAILED), now=NOW + timedelta(seconds=9))
    assert plan(failed) == RetryJob("c1", JOB, 6)


@pytest.mark.parametrize(
    ("seen", "status", "reason"),
    [
        (replace(ASKED, request=request(asOf=42)), "Unknown", Reason.SNAPSHOT_NOT_READABLE),
        (replace(ASKED, upper=0), "Unknown", Reason.SNAPSHOT_NOT_READABLE),
        (replace(ASKED, request=request(asOf=9)), "False", Reason.SNAPSHOT_NOT_READABLE),
        (replace(ASKED, reachable=False), "False", Reason.STORAGE_NOT_SHARED),
        (replace(ASKED, missing="nothing runs Spark"), "False", Reason.SPARK_NOT_INSTALLED),
        (replace(ASKED, not_launched="500 no"), "False", Reason.LAUNCH_FAILED),
        (replace(RUNNING, not_launched="500 no", launched=frozenset()), "False", Reason.LAUNCH_FAILED),
        (replace(RUNNING, missing="nothing runs Spark"), "False", Reason.SPARK_NOT_INSTALLED),
        (replace(ASKED, objection="too many"), "False", Reason.SPARK_TEMPLATE_REFUSED),
        (replace(RUNNING, apps=(app(AppPhase.UNCLEAR, age=999),)), "Unknown", Reason.SNAPSHOT_RUNNING),
        (replace(RUNNING, apps=(app(AppPhase.PENDING),)), "Unknown", Reason.SNAPSHOT_RUNNING),
        (replace(RUNNING, apps=(app(AppPhase.RUNNING, age=999),)), "Unknown", Reason.SNAPSHOT_RUNNING),
        (replace(ASKED, job=DONE), "True", Reason.SNAPSHOT_SUCCEEDED),
        (replace(ASKED, job=DONE, missing="nothing runs Spark"), "True", Reason.SNAPSHOT_SUCCEEDED),
        (
            replace(ASKED, job=record(JobState.FAILED, 5, error="boom", by="spark", failures=3)),
            "False",
            Reason.SNAPSHOT_FAILED,
        ),
        (
            replace(ASKED, job=record(JobState.FAILED, error="boom", by="spark", failures=1), since=42),
            "False",
            Reason.SNAPSHOT_FAILED,
        ),
        (
            replace(ASKED, job=record(JobState.FAILED, by="spark", failures=1), since=42, missing="no Spark"),
            "False",
            Reason.SNAPSHOT_FAILED,
        ),
    ],
)
def test_what_is_shown(seen: SnapshotView, status: str, reason: Reason) -> None:
    assert told(seen) == (status, reason)


@pytest.mark.parametrize("phase", list(AppPhase))
def test_done_on_record_is_success_whatever_the_application_says(phase: AppPhase) -> None:
    seen = replace(ASKED, job=DONE, apps=(app(phase, attempt=2),))
    assert told(seen) == ("True", Reason.SNAPSHOT_SUCCEEDED)


@pytest.mark.parametrize(
    ("apps", "error"),
    [
        ((), "gone"),
        ((app(AppPhase.SUCCEEDED),), "without committing"),
        ((app(AppPhase.FAILED, message="ExitCode: 7"),), "ExitCode: 7"),
        ((app(AppPhase.FAILED),), "failed"),
        ((app(AppPhase.RUNNING, attempt=2),), "gone"),
    ],
)
def test_an_attempt_without_a_result_failed(apps: tuple[AppState, ...], error: str) -> None:
    step = plan(replace(RUNNING, apps=apps))
    assert isinstance(step, FailAttempt)
    assert (step.job_id, step.attempt, step.app) == (JOB, 1, None)
    assert error in step.error


def test_an_attempt_with_two_applications_is_stopped_and_both_are_deleted() -> None:
    """The request for the first one had no response, and the operator was restarted."""
    first = replace(app(AppPhase.PENDING), via="kubeflow")
    second = replace(app(AppPhase.RUNNING), via="job")
    for apps in ((first, second), (replace(first, phase=AppPhase.FAILED), second)):
        step = plan(replace(RUNNING, apps=apps))
        assert isinstance(step, FailAttempt)
        assert (step.stopped, step.app) == (True, next(each for each in apps if not each.phase.over))
        assert "(job, kubeflow)" in step.error
    left = replace(ASKED, job=record(JobState.FAILED, 1, error="boom"))
    ended = replace(first, phase=AppPhase.FAILED)
    assert plan(replace(left, apps=(ended, second))) == FailAttempt("snapshot", JOB, 1, "boom", second)


def test_an_attempt_that_does_not_start_is_cancelled() -> None:
    late = app(AppPhase.PENDING, age=61)
    step = plan(replace(RUNNING, apps=(late,)))
    assert isinstance(step, FailAttempt)
    assert step.app == late
    assert "60 s" in step.error
    assert told(replace(RUNNING, apps=(app(AppPhase.PENDING, age=59),))) == (
        "Unknown",
        Reason.SNAPSHOT_RUNNING,
    )


def test_why_a_driver_does_not_start_is_told_while_it_waits_and_when_it_is_given_up() -> None:
    why = "ErrImagePull: no such image"
    step = plan(replace(RUNNING, apps=(app(AppPhase.PENDING, age=61, message=why),)))
    assert isinstance(step, FailAttempt)
    assert step.error == f"its driver did not start within 60 s (startDeadline): {why}"
    report = plan(replace(RUNNING, apps=(app(AppPhase.PENDING, message=why),)))
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    assert why in report.condition.message


@pytest.mark.parametrize("phase", [AppPhase.RUNNING, AppPhase.UNCLEAR])
def test_an_attempt_that_does_not_end_is_cancelled_where_the_template_says_when(phase: AppPhase) -> None:
    spark = template(attemptDeadline="1h")
    late = app(phase, age=3601)
    step = plan(replace(RUNNING, template=spark, apps=(late,)))
    assert isinstance(step, FailAttempt)
    assert (step.app, step.error) == (late, "it did not end within 3600 s (attemptDeadline)")
    for seen in (
        replace(RUNNING, template=spark, apps=(app(phase, age=3599),)),
        replace(RUNNING, apps=(app(phase, age=10**6),)),
    ):
        assert told(seen) == ("Unknown", Reason.SNAPSHOT_RUNNING)


WAITS = "its driver did not start within {} s (startDeadline): no node"
ENDS = "it did not end within {} s (attemptDeadline)"


@pytest.mark.parametrize(
    ("start", "whole", "age", "told"),
    [
        (300, 60, 60, None),
        (300, 60, 61, ENDS.format(60) + "; its driver did not start: no node"),
        # The operator was away, and both are over: the first one is what ended it.
        (300, 60, 999, ENDS.format(60) + "; its driver did not start: no node"),
        (60, 300, 60, None),
        (60, 300, 61, WAITS.format(60)),
        (60, 300, 999, WAITS.format(60)),
        (60, 60, 61, WAITS.format(60)),
        (60, None, 61, WAITS.format(60)),
    ],
)
def test_an_attempt_that_waits_for_its_driver_has_both_deadlines(
    start: int, whole: int | None, age: int, told: str | None
) -> None:
    spark = template(startDeadline=f"{start}s", attemptDeadline=whole and f"{whole}s")
    late = app(AppPhase.PENDING, age=age, message="no node")
    step = plan(replace(RUNNING, template=spark, apps=(late,)))
    if told is None:
        assert isinstance(step, RequestedReport)
    else:
        assert step == FailAttempt("snapshot", JOB, 1, told, late)


def test_one_whose_driver_runs_has_no_deadline_to_start() -> None:
    spark = template(startDeadline="1m", attemptDeadline="5m")
    runs = replace(RUNNING, template=spark, apps=(app(AppPhase.RUNNING, age=299),))
    assert told(runs) == ("Unknown", Reason.SNAPSHOT_RUNNING)
    step = plan(replace(runs, apps=(app(AppPhase.RUNNING, age=301),)))
    assert isinstance(step, FailAttempt)
    assert step.error == ENDS.format(300)


def test_a_template_that_can_not_be_had_starts_nothing_and_ends_what_was_not_launched() -> None:
    objection = "set executor.instances to 1"
    failed = record(JobState.FAILED, 1, error="boom", by="spark", failures=1)
    report = plan(replace(ASKED, job=failed, objection=objection))
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    assert (report.condition.reason, report.condition.message) == (Reason.SPARK_TEMPLATE_REFUSED, objection)
    never = replace(RUNNING, launched=frozenset(), objection=objection)
    step = plan(never)
    assert isinstance(step, FailAttempt)
    assert step.error == objection
    assert told(replace(never, apps=(app(AppPhase.RUNNING),))) == ("Unknown", Reason.SNAPSHOT_RUNNING)


def test_a_job_waits_until_fewer_run_before_it_starts_tries_again_or_is_launched() -> None:
    full = "2 Spark jobs run"
    failed = record(JobState.FAILED, 1, error="boom", by="spark", failures=1)
    for seen in (
        replace(ASKED, full=full),
        replace(ASKED, job=failed, full=full),
        replace(RUNNING, launched=frozenset(), full=full),
    ):
        report = plan(seen)
        assert isinstance(report, RequestedReport)
        assert report.condition is not None
        assert (report.condition.status, report.condition.reason) == ("Unknown", Reason.SNAPSHOT_QUEUED)
        assert (report.condition.message, report.requeue_after) == (full, 5.0)
        assert not isinstance(plan(replace(seen, full=None)), RequestedReport)
    # One that runs is one of those that fill it.
    assert told(replace(RUNNING, apps=(app(AppPhase.RUNNING),), full=full))[1] is Reason.SNAPSHOT_RUNNING


def test_the_next_attempt_waits_for_its_backoff() -> None:
    ended = int((NOW - timedelta(seconds=4)).timestamp() * 1000)
    failed = record(JobState.FAILED, 1, error="boom", finished_ms=ended)
    report = plan(replace(ASKED, job=failed))
    assert isinstance(report, RequestedReport)
    assert report.requeue_after == pytest.approx(1.0)
    assert told(replace(ASKED, job=failed)) == ("Unknown", Reason.SNAPSHOT_RETRYING)
    assert plan(replace(ASKED, job=failed, now=NOW + timedelta(seconds=2))) == RetryJob("c1", JOB, 1)


def test_an_end_in_the_future_delays_the_next_attempt_no_longer_than_any_end() -> None:
    """An operator on a host whose clock is right has recorded it, and the clock of this host is behind."""
    ended = int((NOW + timedelta(minutes=10)).timestamp() * 1000)
    failed = replace(ASKED, job=record(JobState.FAILED, 1, error="boom", finished_ms=ended))
    report = plan(replace(failed, failed_for={(JOB, 1): 3.0}))
    assert isinstance(report, RequestedReport)
    assert report.requeue_after == pytest.approx(2.0)
    assert plan(replace(failed, failed_for={(JOB, 1): 5.0})) == RetryJob("c1", JOB, 1)
    alive = replace(failed, apps=(app(AppPhase.RUNNING),))
    assert isinstance(plan(replace(alive, failed_for={(JOB, 1): 29.0})), RequestedReport)
    assert isinstance(plan(replace(alive, failed_for={(JOB, 1): 30.0})), FailAttempt)


def test_a_driver_of_a_failed_attempt_is_cleaned_up_before_the_next() -> None:
    failed = record(JobState.FAILED, 1, error="boom")
    alive = app(AppPhase.RUNNING)
    assert plan(replace(ASKED, job=failed, apps=(alive,))) == FailAttempt("snapshot", JOB, 1, "boom", alive)
    # One that failed just now ends by itself, and what it says then is not lost.
    just_now = replace(failed, finished_ms=int((NOW - timedelta(seconds=29)).timestamp() * 1000))
    report = plan(replace(ASKED, job=just_now, apps=(alive,)))
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    assert (report.condition.reason, report.requeue_after) == (Reason.SNAPSHOT_RETRYING, 1.0)
    later = replace(ASKED, job=just_now, apps=(alive,), now=NOW + timedelta(seconds=1))
    assert plan(later) == FailAttempt("snapshot", JOB, 1, "boom", alive)


@given(
    st.sampled_from([JobState.RUNNING, JobState.DONE, JobState.FAILED]),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(list(AppPhase)), st.integers(1, 4), st.floats(0, 500)), max_size=4),
)
def test_only_the_record_makes_a_success(
    state: JobState, attempt: int, seen_apps: list[tuple[AppPhase, int, float]]
) -> None:
    apps = tuple(app(phase, attempt=number, age=age) for phase, number, age in seen_apps)
    decision = plan(replace(ASKED, job=record(state, attempt), apps=apps))
    succeeded = (
        isinstance(decision, RequestedReport) and decision.condition and decision.condition.status == "True"
    )
    assert bool(succeeded) == (state is JobState.DONE)


def test_backoff_grows_to_its_limit() -> None:
    assert [backoff(n) for n in (1, 2, 3, 20)] == [5.0, 10.0, 20.0, 300.0]


def test_the_work_order_is_one_json_argument() -> None:
    running = record(JobState.RUNNING, 2)
    (argument,) = arguments({"url": "file:///x"}, "c1", running, work_order(running))
    assert json.loads(argument) == {
        "kind": "snapshot",
        "url": "file:///x",
        "collection": "c1",
        "as_of": 41,
        "destination": "file:///out",
        "job_id": JOB,
        "attempt": 2,
    }


def test_an_iceberg_table_is_asked_for_in_place_of_a_folder() -> None:
    table = {"catalog": "shop", "table": "sales.orders", "properties": {"type": "rest", "uri": "https://c"}}
    step = plan(replace(ASKED, request=request(destination=None, iceberg=table)))
    assert isinstance(step, StartJob)
    assert step.spec == {"as_of": 41, "iceberg": table, "snapshot": "one"}
    job = replace(record(JobState.RUNNING), spec=step.spec)
    (argument,) = arguments({"url": "s3://b/x"}, "c1", job, work_order(job))
    spec = SnapshotSpec.from_json(argument)
    assert spec.iceberg == IcebergTarget(**table)
    assert (spec.destination, spec.as_of) == (None, 41)
