"""What the operator decides about a snapshot: the record rules, the application is only a hint."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persist import StoredSize
from holdfast.storage import JobRecord, JobState
from holdfast_operator.api.collection import SnapshotRequest
from holdfast_operator.api.names import Kind, Reason
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.reconcile.snapshot import SnapshotObserved, SnapshotReport, plan, work_order
from holdfast_operator.reconcile.sparkjobs import FailAttempt, RetryJob, StartJob, arguments, backoff
from holdfast_operator.runtime.kube import ObjectKey
from holdfast_operator.sparkapps.adapter import AppPhase, AppState, Launch
from holdfast_operator.sparkapps.kubeflow import app_state, application, application_name

NOW = datetime(2026, 1, 2, tzinfo=UTC)
JOB = "7a0c2f3e-0000-5000-8000-000000000001"


def request(**fields: Any) -> SnapshotRequest:
    return SnapshotRequest.model_validate(
        {
            "requestId": "one",
            "destination": "file:///out",
            "spark": {"startDeadlineSeconds": 60, "maxAttempts": 3},
            **fields,
        }
    )


def record(state: JobState, attempt: int = 1, **fields: Any) -> JobRecord:
    spec = {"as_of": 41, "destination": "file:///out"}
    return JobRecord(JOB, "c1", "snapshot", "one", attempt, state, spec=spec, **fields)


def app(
    phase: AppPhase, *, attempt: int = 1, age: float = 1.0, job: str = JOB, message: str = ""
) -> AppState:
    created = NOW - timedelta(seconds=age)
    return AppState(f"app-{attempt}", f"uid-{attempt}", job, attempt, phase, message, created)


ASKED = SnapshotObserved(
    request=request(),
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


def told(seen: SnapshotObserved) -> tuple[str, Reason]:
    report = plan(seen)
    assert isinstance(report, SnapshotReport)
    assert report.mark is not None
    return report.mark.status, report.mark.reason


def test_nobody_asked() -> None:
    report = plan(replace(ASKED, request=None, last=DONE))
    assert isinstance(report, SnapshotReport)
    assert report.mark is None
    assert report.fields["lastSnapshot"]["rows"] == 7


@pytest.mark.parametrize(("as_of", "expected"), [(None, 41), (10, 10), (41, 41)])
def test_a_job_starts_at_a_fixed_time(as_of: int | None, expected: int) -> None:
    step = plan(replace(ASKED, request=request(asOf=as_of)))
    assert step == StartJob("c1", "snapshot", "one", {"as_of": expected, "destination": "file:///out"}, 1)


def test_tasks_follow_from_what_is_stored() -> None:
    asked = request(spark={"executor": {"instances": 3}})
    large = replace(ASKED, request=asked, stored=StoredSize(5_000_000, 10))
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
        (replace(ASKED, installed=False), "False", Reason.SPARK_NOT_INSTALLED),
        (replace(RUNNING, installed=False), "False", Reason.SPARK_NOT_INSTALLED),
        (replace(RUNNING, apps=(app(AppPhase.PENDING),)), "Unknown", Reason.SNAPSHOT_RUNNING),
        (replace(RUNNING, apps=(app(AppPhase.RUNNING, age=999),)), "Unknown", Reason.SNAPSHOT_RUNNING),
        (replace(ASKED, job=DONE), "True", Reason.SNAPSHOT_SUCCEEDED),
        (replace(ASKED, job=DONE, installed=False), "True", Reason.SNAPSHOT_SUCCEEDED),
        (
            replace(ASKED, job=record(JobState.FAILED, 5, error="boom", by="spark", failures=3)),
            "False",
            Reason.SNAPSHOT_FAILED,
        ),
    ],
)
def test_what_is_shown(seen: SnapshotObserved, status: str, reason: Reason) -> None:
    assert told(seen) == (status, reason)


@pytest.mark.parametrize("phase", list(AppPhase))
def test_done_on_record_is_success_whatever_the_application_says(phase: AppPhase) -> None:
    seen = replace(ASKED, job=DONE, last=DONE, apps=(app(phase, attempt=2),))
    assert told(seen) == ("True", Reason.SNAPSHOT_SUCCEEDED)
    report = plan(seen)
    assert isinstance(report, SnapshotReport)
    assert report.fields["lastSnapshot"] == {
        "requestId": "one",
        "asOf": 41,
        "destination": "/out/a",
        "rows": 7,
        "checksum": "00ff",
        "jobId": JOB,
        "attempt": 2,
    }


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


def test_the_next_attempt_waits_for_its_backoff() -> None:
    ended = int((NOW - timedelta(seconds=4)).timestamp() * 1000)
    failed = record(JobState.FAILED, 1, error="boom", finished_ms=ended)
    report = plan(replace(ASKED, job=failed))
    assert isinstance(report, SnapshotReport)
    assert report.requeue_after == pytest.approx(1.0)
    assert told(replace(ASKED, job=failed)) == ("Unknown", Reason.SNAPSHOT_RETRYING)
    assert plan(replace(ASKED, job=failed, now=NOW + timedelta(seconds=2))) == RetryJob("c1", JOB, 1)


def test_a_driver_of_a_failed_attempt_is_cleaned_up_before_the_next() -> None:
    failed = record(JobState.FAILED, 1, error="boom")
    alive = app(AppPhase.RUNNING)
    assert plan(replace(ASKED, job=failed, apps=(alive,))) == FailAttempt("snapshot", JOB, 1, "boom", alive)


def test_another_request_takes_the_old_one_away() -> None:
    old = app(AppPhase.RUNNING, job="other")
    for seen in (ASKED, replace(ASKED, request=None), replace(ASKED, job=DONE)):
        step = plan(replace(seen, apps=(old,)))
        assert isinstance(step, FailAttempt)
        assert (step.job_id, step.app, step.stopped) == ("other", old, True)
    ended = app(AppPhase.SUCCEEDED, job="other")
    assert isinstance(plan(replace(ASKED, apps=(ended,))), StartJob)


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
    succeeded = isinstance(decision, SnapshotReport) and decision.mark and decision.mark.status == "True"
    assert bool(succeeded) == (state is JobState.DONE)


def test_backoff_grows_to_its_limit() -> None:
    assert [backoff(n) for n in (1, 2, 3, 20)] == [5.0, 10.0, 20.0, 300.0]


OWNER = ObjectKey(Kind.STORAGE_COLLECTION, "ns", "flights.2013.with-a-name-that-is-rather-long")
RECORD = record(JobState.RUNNING, 2)
LAUNCH = Launch(
    owner=OWNER,
    owner_uid="uid-1",
    job_kind="snapshot",
    job_id=JOB,
    attempt=2,
    arguments=arguments({"url": "file:///x"}, "c1", RECORD, work_order(RECORD)),
    template=SparkTemplate(spark_conf={"spark.a": "b"}),
    secrets=("keys", "more"),
)


def test_the_work_order_is_one_json_argument() -> None:
    (argument,) = LAUNCH.arguments
    assert json.loads(argument) == {
        "kind": "snapshot",
        "url": "file:///x",
        "collection": "c1",
        "as_of": 41,
        "destination": "file:///out",
        "job_id": JOB,
        "attempt": 2,
    }


def test_one_application_per_attempt_restarted_by_nobody() -> None:
    body = application(LAUNCH)
    spec = body["spec"]
    assert spec["restartPolicy"] == {"type": "Never"}
    assert spec["mainApplicationFile"] == "local:///opt/holdfast/jobs/snapshot.py"
    assert (spec["mode"], spec["type"], spec["timeToLiveSeconds"]) == ("cluster", "Python", 86400)
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("StorageCollection", OWNER.name, "uid-1")
    names = {application_name(OWNER, "snapshot", job, n) for job in (JOB, "x") for n in (1, 2)}
    assert len(names) == 4
    assert all(len(name) <= 50 for name in names)
    for value in body["metadata"]["labels"].values():
        assert len(value) <= 63


def pods(**template: Any) -> tuple[Any, Any]:
    """What the pods of driver and executors get beside their heap."""
    made = application(replace(LAUNCH, template=SparkTemplate.model_validate(template)))["spec"]
    return made["driver"].get("memoryOverhead"), made["executor"].get("memoryOverhead")


def test_pods_have_room_for_the_python_process_of_each_core() -> None:
    """Each takes up to 600 MiB outside of the JVM, which has 384 MiB or a tenth of the heap."""
    assert pods() == ("1024m", "1024m")
    assert pods(executor={"cores": 4, "memory": "2g"}) == ("1024m", f"{384 + 4 * 640}m")
    assert pods(executor={"cores": 2, "memory": "8g"}, driver={"memory": "10g"}) == (
        f"{1024 + 640}m",
        f"{819 + 2 * 640}m",
    )
    # Spark takes a number for MiB.
    assert pods(driver={"memory": "10240"}, executor={"memory": "4194304k"}) == ("1664m", f"{409 + 640}m")


def test_what_the_template_says_of_memory_stays() -> None:
    told = {"cores": 4, "memoryOverhead": "3g"}
    assert pods(executor=told, driver={"memoryOverhead": "700m"}) == ("700m", "3g")
    assert pods(sparkConf={"spark.executor.memoryOverhead": "2g"}) == ("1024m", None)
    assert pods(sparkConf={"spark.driver.memoryOverheadFactor": "0.9"}) == (None, "1024m")
    assert pods(sparkConf={"spark.kubernetes.memoryOverheadFactor": "0.9"}) == (None, None)
    assert pods(sparkConf={"spark.executor.pyspark.memory": "2g"}) == ("1024m", None)


def test_secrets_are_named_and_never_carried() -> None:
    for pod in ("driver", "executor"):
        part = application(LAUNCH)["spec"][pod]
        assert part["envFrom"] == [{"secretRef": {"name": "keys"}}, {"secretRef": {"name": "more"}}]
        assert part["securityContext"]["allowPrivilegeEscalation"] is False
        assert part["podSecurityContext"]["runAsNonRoot"] is True
    assert "envFrom" not in application(replace(LAUNCH, secrets=()))["spec"]["driver"]


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (None, AppPhase.PENDING),
        ("SUBMITTED", AppPhase.PENDING),
        ("RUNNING", AppPhase.RUNNING),
        ("SUCCEEDING", AppPhase.RUNNING),
        ("COMPLETED", AppPhase.SUCCEEDED),
        ("FAILING", AppPhase.RUNNING),
        ("FAILED", AppPhase.FAILED),
        ("SUBMISSION_FAILED", AppPhase.FAILED),
    ],
)
def test_the_states_of_the_spark_operator(state: str | None, phase: AppPhase) -> None:
    body = application(LAUNCH)
    body["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-02T00:00:00Z"}
    if state is not None:
        body["status"] = {"applicationState": {"state": state, "errorMessage": "a\n  b"}}
    seen = app_state(body)
    assert seen is not None
    assert (seen.phase, seen.job_id, seen.attempt) == (phase, JOB, 2)
    assert seen.message == ("a b" if state else "")


def test_an_application_of_somebody_else_is_not_ours() -> None:
    body = application(LAUNCH)
    body["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-02T00:00:00Z", "labels": {}}
    assert app_state(body) is None


def test_a_superseded_job_is_ended_also_where_its_application_is_gone() -> None:
    """Nobody else would: its record would run, and its holds stay, for ever."""
    old = replace(record(JobState.RUNNING), job_id="another")
    assert plan(replace(ASKED, running=(old,))) == FailAttempt(
        "snapshot", "another", 1, "superseded by another request", stopped=True
    )
    seen = replace(RUNNING, running=(record(JobState.RUNNING),), apps=(app(AppPhase.RUNNING),))
    assert told(seen)[1] is Reason.SNAPSHOT_RUNNING
