"""How the operator decides about the runs of a schedule: one at a time, each once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.collections import JobRecord, JobState
from holdfast_operator.api.collection import CompactionSchedule, SparkTask
from holdfast_operator.api.cron import ScheduleStatus
from holdfast_operator.api.names import Reason
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.jobs.compaction import CompactionView
from holdfast_operator.jobs.requested import JobRequest, RequestedReport, plan, plan_scheduled
from holdfast_operator.jobs.scheduled import Scheduled
from holdfast_operator.jobs.steps import FailAttempt, ForgetRuns, RetryJob, StartJob
from holdfast_operator.sparkapps.adapter import AppPhase, AppState

NOW = datetime(2026, 1, 2, tzinfo=UTC)
JOB = "7a0c2f3e-0000-5000-8000-000000000001"


def template(**fields: Any) -> SparkTemplate:
    return SparkTemplate.model_validate(fields)


def record(state: JobState, attempt: int = 1, **fields: Any) -> JobRecord:
    return JobRecord(JOB, "c1", "compact", "one", attempt, state, **fields)


def app(phase: AppPhase, *, job: str = JOB) -> AppState:
    return AppState("app-1", "uid-1", job, 1, phase, "", NOW - timedelta(seconds=1), kind="compact")


ASKED = CompactionView(
    request=JobRequest("one", SparkTask()),
    template=template(maxAttempts=3),
    reachable=True,
    collection_id="c1",
    now=NOW,
)
RUNNING = replace(ASKED, job=record(JobState.RUNNING), launched=frozenset({(JOB, 1)}))
DONE = record(JobState.DONE, 2, finished_ms=5)


def told(seen: CompactionView) -> tuple[str, Reason]:
    report = plan(seen)
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    return report.condition.status, report.condition.reason


RUN_JOB = "7a0c2f3e-0000-5000-8000-000000000002"
SLOT = "schedule:2026-01-01T00:00:00Z"


def run(state: JobState, attempt: int = 1, slot: str = SLOT, **fields: Any) -> JobRecord:
    return replace(record(state, attempt, **fields), job_id=RUN_JOB, slot=slot)


def nightly(
    *runs: JobRecord, upcoming: datetime | None = NOW, objection: str | None = None, **fields: Any
) -> Scheduled[CompactionSchedule]:
    """A schedule whose time is NOW."""
    spec = {"schedule": "0 0 * * *", **fields}
    return Scheduled(
        spec=CompactionSchedule.model_validate(spec),
        template=template(maxAttempts=3),
        shown=ScheduleStatus(next_schedule_time=upcoming),
        runs=runs,
        objection=objection,
    )


ALONE = replace(ASKED, request=None, scheduled=nightly())
START = StartJob("c1", "compact", "schedule:2026-01-02T00:00:00Z", {}, 1)


def told_run(seen: CompactionView) -> tuple[str, Reason]:
    report = plan_scheduled(seen)
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    assert report.condition.type == "ScheduledCompactionCompleted"
    return report.condition.status, report.condition.reason


def test_a_run_that_is_due_is_named_by_its_time() -> None:
    late = NOW + timedelta(hours=3)
    assert plan_scheduled(ALONE) == plan_scheduled(replace(ALONE, now=late)) == START


@pytest.mark.parametrize(
    ("now", "ahead"),
    [(NOW + timedelta(hours=1), timedelta(hours=2)), (NOW - timedelta(hours=1), timedelta(hours=-2))],
)
def test_a_run_is_due_when_the_clocks_of_this_host_and_of_the_api_server_say_so(
    now: datetime, ahead: timedelta
) -> None:
    seen = replace(ALONE, now=now, ahead=ahead)
    assert isinstance(plan_scheduled(seen), RequestedReport)
    assert plan_scheduled(replace(seen, now=now + timedelta(hours=1))) == START


@pytest.mark.parametrize(
    ("scheduled", "expected"),
    [
        (nightly(upcoming=None), ("Unknown", Reason.COMPACTION_SCHEDULED)),
        (nightly(run(JobState.RUNNING), upcoming=None), ("Unknown", Reason.COMPACTION_RUNNING)),
        (nightly(run(JobState.RUNNING)), ("Unknown", Reason.COMPACTION_RUNNING)),
        (nightly(run(JobState.DONE), upcoming=None), ("True", Reason.COMPACTION_SUCCEEDED)),
        (
            nightly(run(JobState.FAILED, 3, by="spark", failures=3), upcoming=None),
            ("False", Reason.COMPACTION_FAILED),
        ),
        (nightly(run(JobState.DONE), suspend=True), ("Unknown", Reason.SUSPENDED)),
        (nightly(suspend=True), ("Unknown", Reason.SUSPENDED)),
        (nightly(run(JobState.RUNNING), suspend=True), ("Unknown", Reason.COMPACTION_RUNNING)),
        (nightly(objection="too many"), ("False", Reason.SPARK_TEMPLATE_REFUSED)),
        # Before the run is due.
        (nightly(upcoming=None, objection="too many"), ("False", Reason.SPARK_TEMPLATE_REFUSED)),
        (
            nightly(run(JobState.DONE), upcoming=None, objection="too many"),
            ("False", Reason.SPARK_TEMPLATE_REFUSED),
        ),
        (nightly(suspend=True, objection="too many"), ("Unknown", Reason.SUSPENDED)),
        (
            nightly(run(JobState.RUNNING), upcoming=None, objection="too many"),
            ("Unknown", Reason.COMPACTION_RUNNING),
        ),
        (nightly(timeZone="Mars/Olympus"), ("False", Reason.INVALID_SCHEDULE)),
        (nightly(schedule="0 0 31 2 *"), ("False", Reason.INVALID_SCHEDULE)),
    ],
)
def test_what_is_shown_of_a_schedule(
    scheduled: Scheduled[CompactionSchedule], expected: tuple[str, Reason]
) -> None:
    here = app(AppPhase.RUNNING, job=RUN_JOB)
    apps = (here,) if any(each.state is JobState.RUNNING for each in scheduled.runs) else ()
    assert told_run(replace(ALONE, scheduled=scheduled, apps=apps)) == expected


def test_a_schedule_wakes_at_its_next_time_and_shows_it() -> None:
    report = plan_scheduled(replace(ALONE, scheduled=nightly(run(JobState.DONE), upcoming=None)))
    assert isinstance(report, RequestedReport)
    assert report.requeue_after == 24 * 3600
    assert report.fields["compactionSchedule"] == {
        "lastScheduleTime": "2026-01-01T00:00:00Z",
        "nextScheduleTime": "2026-01-03T00:00:00Z",
        "missedRuns": 0,
        "job": {"requestId": SLOT, "jobId": RUN_JOB, "attempt": 1, "state": "Done"},
    }


def test_a_run_that_failed_is_tried_again_until_the_next_one_is_due() -> None:
    failed = run(JobState.FAILED, error="boom", by="spark", failures=1)
    assert plan_scheduled(replace(ALONE, scheduled=nightly(failed, upcoming=None))) == RetryJob(
        "c1", RUN_JOB, 1
    )
    assert plan_scheduled(replace(ALONE, scheduled=nightly(failed))) == START
    given_up = run(JobState.FAILED, 3, error="boom", by="spark", failures=3)
    assert plan_scheduled(replace(ALONE, scheduled=nightly(given_up))) == START
    report = plan_scheduled(replace(ALONE, scheduled=nightly(given_up, upcoming=None)))
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    assert report.condition.message.endswith("the next one is due at 2026-01-03T00:00:00Z")
    # Its driver is ended before another one is begun.
    alive = app(AppPhase.RUNNING, job=RUN_JOB)
    seen = replace(ALONE, scheduled=nightly(failed), apps=(alive,))
    assert plan_scheduled(seen) == FailAttempt("compact", RUN_JOB, 1, "boom", alive)


def test_one_compaction_runs_at_a_time_and_neither_ends_the_other() -> None:
    by_hand = replace(RUNNING, running=(record(JobState.RUNNING),), apps=(app(AppPhase.RUNNING),))
    seen = replace(by_hand, scheduled=nightly())
    assert told(seen) == ("Unknown", Reason.COMPACTION_RUNNING)
    assert told_run(seen) == ("Unknown", Reason.COMPACTION_QUEUED)
    retrying = replace(seen, scheduled=nightly(run(JobState.FAILED, by="spark", failures=1), upcoming=None))
    assert told_run(retrying) == ("Unknown", Reason.COMPACTION_QUEUED)

    alive = app(AppPhase.RUNNING, job=RUN_JOB)
    seen = replace(
        ASKED, scheduled=nightly(run(JobState.RUNNING)), running=(run(JobState.RUNNING),), apps=(alive,)
    )
    assert told(seen) == ("Unknown", Reason.COMPACTION_QUEUED)
    assert told_run(seen) == ("Unknown", Reason.COMPACTION_RUNNING)
    # Of many that are due at once each looks seldom whether it may start.
    queued = plan_scheduled(replace(ALONE, full="2 Spark jobs run"))
    assert isinstance(queued, RequestedReport)
    assert queued.requeue_after == 30.0
    # What was asked for by hand is planned first; done, it is in nobody's way.
    assert isinstance(plan(replace(ASKED, scheduled=nightly())), StartJob)
    assert plan_scheduled(replace(ASKED, job=DONE, scheduled=nightly())) == START


def test_runs_that_are_long_over_are_forgotten_but_the_last_one_that_was_committed() -> None:
    runs = [
        replace(run(JobState.FAILED, slot=f"schedule:2025-12-{day:02}T00:00:00Z"), job_id=f"j{day}")
        for day in range(1, 22)
    ]
    runs[2] = done = replace(runs[2], state=JobState.DONE)
    seen = replace(ALONE, scheduled=nightly(*runs), last=done)
    assert plan_scheduled(seen) == ForgetRuns(tuple(f"j{day}" for day in range(11, 0, -1) if day != 3))
    assert plan_scheduled(replace(seen, scheduled=nightly(*runs[11:], done))) == START


def test_a_run_of_a_schedule_that_is_gone_is_ended() -> None:
    alive = app(AppPhase.RUNNING, job=RUN_JOB)
    seen = replace(ALONE, scheduled=None, running=(run(JobState.RUNNING),), apps=(alive,))
    step = plan(seen)
    assert isinstance(step, FailAttempt)
    assert (step.job_id, step.app, step.stopped) == (RUN_JOB, alive, True)
    assert plan_scheduled(seen) == RequestedReport()
    # One that can't be read for now ends nothing.
    wrong = replace(seen, scheduled=nightly(run(JobState.RUNNING), timeZone="Mars/Olympus"))
    assert isinstance(plan(wrong), RequestedReport)
