"""How the operator decides about the Spark job that feeds a collection: the record decides."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collections import JobRecord, JobState, Recipe, RenditionState, job_id
from holdfast.errors import CLOSED
from holdfast.ingest.spec import parse
from holdfast.persist import Schema
from holdfast.spark.jobs.spec import IngestJobSpec
from holdfast_operator.api.base import byte_count
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import ConditionType, Kind, Reason
from holdfast_operator.api.source import CollectionSource
from holdfast_operator.api.spark import SparkTemplate, effective
from holdfast_operator.collections.attempts import Attempts
from holdfast_operator.collections.facts import CollectionFacts, RenditionFacts
from holdfast_operator.collections.renditions import made_of
from holdfast_operator.collections.spark_work import files_of, may_have_driver, source_view, template_of
from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.health import WantedCondition
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.steps import Decision, Settle
from holdfast_operator.jobs.course import SparkView, arguments, failed, shown_running
from holdfast_operator.jobs.ingestion import (
    SourceView,
    is_forgotten,
    plan,
    plan_forget,
    slot_of,
    slot_to_fill,
    why_not_forgotten,
)
from holdfast_operator.jobs.requested import RequestedReport
from holdfast_operator.jobs.steps import FailAttempt, ForgetRuns, LaunchAttempt, RetryJob, StartJob
from holdfast_operator.sparkapps.adapter import AppPhase, AppState

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
COLLECTION = "6b1f9c52-3f0d-4d1c-9f39-1d8a3a4b2c10"
TOPIC = {
    "kafka": {"bootstrapServers": "kafka:9092", "topic": "orders", "start": {"offsets": {"0": 17}}},
    "format": {"json": {}},
    "envelope": "Upsert",
    "include": {"position": "kafka_offset"},
    "run": {"interval": "1s"},
    "batch": {"maxBytes": "64Mi"},
    "onError": {"collect": {"limit": 10}},
}
FOLDER = {"files": {"path": "/data/orders", "pattern": "*.jsonl"}, "format": {"json": {}}}
HOURLY = {"mode": "Scheduled", "cron": {"schedule": "@hourly"}}


def source(block: dict[str, Any] = TOPIC, **fields: Any) -> CollectionSource:
    return CollectionSource.model_validate({**block, **fields})


def spec(block: dict[str, Any] = TOPIC, **fields: Any) -> StorageCollectionSpec:
    columns = [{"name": "id", "type": "int64"}, {"name": "kafka_offset", "type": "int64"}]
    return StorageCollectionSpec.model_validate(
        {"catalogRef": {"name": "demo"}, "columns": columns, "key": ["id"], "source": {**block, **fields}}
    )


def slot_for(asked: StorageCollectionSpec) -> str:
    assert asked.source is not None
    return slot_of(asked.source, effective(asked.spark, asked.source.spark))


def record(slot: str, state: JobState = JobState.RUNNING, attempt: int = 1, **fields: Any) -> JobRecord:
    given_fields = {"by": "spark", "started_ms": NOW_MS - 60_000, "failures": attempt - 1, **fields}
    id_ = job_id(COLLECTION, "ingest", slot)
    return JobRecord(id_, COLLECTION, "ingest", slot, attempt, state, **given_fields)


def app(job: JobRecord, phase: AppPhase, *, age: float = 10.0) -> AppState:
    name = f"app-{job.attempt}"
    return AppState(
        name, "uid", job.job_id, job.attempt, phase, "", NOW - timedelta(seconds=age), kind="ingest"
    )


def view(
    asked: StorageCollectionSpec,
    *jobs: JobRecord,
    apps: tuple[AppState, ...] = (),
    status: dict[str, Any] | None = None,
    fed: bool = True,
    restoring: bool = False,
    facts: CollectionFacts | None = None,
    **fields: Any,
) -> SourceView:
    launched = frozenset((each.job_id, each.attempt) for each in apps)
    shared = SparkView(
        collection_id=COLLECTION, reachable=True, apps=apps, launched=launched, now=NOW, **fields
    )
    found = source_view(
        shared,
        asked,
        asked.spark,
        status or {},
        jobs,
        lambda _: None,
        fed=fed,
        restoring=restoring,
        facts=facts,
    )
    assert found is not None
    return found


def stalled_condition(step: Decision | RequestedReport) -> tuple[str, Reason]:
    assert isinstance(step, RequestedReport)
    found = step.condition
    assert found is not None
    assert found.type is ConditionType.SOURCE_STALLED
    return found.status, found.reason


@pytest.mark.parametrize("block", [TOPIC, FOLDER])
def test_the_resource_and_the_command_take_the_same_block(block: dict[str, Any]) -> None:
    assert parse(source(block).block) == parse(block)


@pytest.mark.parametrize(
    ("size", "expected"), [(17, 17), ("2Mi", 2 << 20), ("3Gi", 3 << 30), ("4Ti", 4 << 40)]
)
def test_a_size_is_written_as_everywhere_in_a_resource(size: int | str, expected: int) -> None:
    sized = source(batch={"maxBytes": size})
    assert parse(sized.block).max_bytes == expected
    assert byte_count(str(size)) == expected


def test_the_work_order_is_a_spec_that_the_job_takes() -> None:
    asked = spec(spark={"executor": {"instances": 2, "cores": 3}})
    start = plan(view(asked))
    assert isinstance(start, StartJob)
    assert (start.kind, start.tasks, start.limited) == ("ingest", 6, False)
    job = record(start.slot, spec=start.spec)
    found = template_of(asked, "", SparkTemplate(), job)
    assert found is not None
    (text,) = arguments({"url": "file:///data"}, COLLECTION, job, found[1])
    parsed = IngestJobSpec.from_json(text)
    assert (parsed.once, parsed.partitions) == (False, 6)
    assert parsed.parsed == parse(TOPIC)
    assert json.loads(text)["source"] == asked.source.block if asked.source else None


def test_a_job_follows_the_source_and_is_never_given_up() -> None:
    asked = spec()
    assert asked.source is not None
    slot = slot_for(asked)
    job = record(slot)
    launch = plan(view(asked, job))
    assert launch == LaunchAttempt(COLLECTION, job, 1, limited=False)
    waiting = view(asked, job, apps=(app(job, AppPhase.PENDING),))
    assert stalled_condition(plan(waiting)) == ("Unknown", Reason.INGESTION_RUNNING)
    running = view(asked, job, apps=(app(job, AppPhase.RUNNING),))
    assert stalled_condition(plan(running)) == ("False", Reason.INGESTION_RUNNING)
    ended = plan(view(asked, job, apps=(app(job, AppPhase.SUCCEEDED),)))
    assert isinstance(ended, FailAttempt)
    for attempt in (1, 30):
        over = record(slot, JobState.FAILED, attempt, failures=attempt, error="no broker", finished_ms=NOW_MS)
        report = plan(view(asked, over))
        assert stalled_condition(report) == ("True", Reason.INGESTION_RETRYING)
        assert isinstance(report, RequestedReport)
        assert report.condition is not None
        assert "no broker" in report.condition.message
        later = replace(over, finished_ms=NOW_MS - 301_000)
        assert plan(view(asked, later)) == RetryJob(COLLECTION, over.job_id, 1, limited=False)


SASL: dict[str, Any] = {
    **TOPIC,
    "kafka": {
        "bootstrapServers": "kafka:9092",
        "topic": "orders",
        "security": {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
        "secretRef": {"name": "kafka"},
    },
}
NO_SECRET = "Secret 'kafka' has no key password, which spec.source.kafka.secretRef needs: add it"


@pytest.mark.parametrize("block", [SASL, SASL | {"run": HOURLY}])
def test_without_its_secret_no_attempt_starts_and_the_condition_says_why(block: dict[str, Any]) -> None:
    asked = spec(block)
    assert asked.source is not None
    is_continuous = asked.source.run.is_continuous
    last_hour = (NOW - timedelta(hours=1)).isoformat()
    status = {} if is_continuous else {"sourceSchedule": {"nextScheduleTime": last_hour}}
    start = plan(view(asked, status=status))
    assert isinstance(start, StartJob)
    job = record(start.slot, spec=start.spec)
    failed = replace(job, state=JobState.FAILED, failures=1, error="x", finished_ms=NOW_MS - 400_000)
    assert isinstance(plan(view(asked, failed, status=status)), RetryJob | StartJob)
    for jobs in ((), (job,), (failed,)):
        report = plan(view(asked, *jobs, status=status, no_secret=NO_SECRET))
        assert isinstance(report, RequestedReport)
        assert report.asks_again
        assert report.condition is not None
        assert (report.condition.reason, report.condition.message.endswith(NO_SECRET)) == (
            Reason.SECRET_NOT_FOUND,
            True,
        )
        assert is_continuous or "sourceSchedule" in report.fields
    # One that runs goes on: it has read its Secret.
    running = view(asked, job, apps=(app(job, AppPhase.RUNNING),), status=status, no_secret=NO_SECRET)
    report = plan(running)
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    assert report.condition.reason is Reason.INGESTION_RUNNING


@pytest.mark.parametrize("block", [TOPIC, TOPIC | {"run": HOURLY}])
def test_nothing_is_read_before_the_snapshot_that_the_collection_begins_with(block: dict[str, Any]) -> None:
    asked = spec(block)
    waiting = view(asked, restoring=True)
    assert stalled_condition(plan(waiting)) == ("Unknown", Reason.RESTORING)
    job = record("continuous:1")
    ended = plan(view(asked, job, apps=(app(job, AppPhase.RUNNING),), restoring=True))
    assert isinstance(ended, FailAttempt)


PLAIN = {**TOPIC, "envelope": "None"}
R1 = RenditionFacts("r1", 1, is_fed=True, made_from=made_of(spec(PLAIN)))
SPEC_2 = RenditionFacts(
    "spec-2",
    1,
    state=RenditionState.HYDRATING,
    recipe=Recipe.SOURCE,
    is_fed=True,
    made_from=made_of(spec(TOPIC)),
    held_from=CLOSED,
)


def known(*renditions: RenditionFacts) -> CollectionFacts:
    (active,) = (each for each in renditions if each.state is RenditionState.HOLDING)
    schema = Schema.of(key={"id": "int64"}, value={"kafka_offset": "int64"})
    return CollectionFacts(
        "c1", "orders", schema, 1, False, upper=90, active_rendition=active.id, renditions=renditions
    )


def test_another_format_is_read_beside_the_one_that_feeds_the_collection() -> None:
    before, asked = spec(PLAIN), spec(TOPIC)
    assert before.source is not None
    assert asked.source is not None
    old = record(slot_for(before), spec={"source": before.source.block, "once": False})
    running = (app(old, AppPhase.RUNNING),)
    # Until the rendition is there, the old job goes on.
    report = plan(view(asked, old, apps=running, facts=known(R1)))
    assert stalled_condition(report) == ("False", Reason.INGESTION_RUNNING)
    there = known(R1, SPEC_2)
    start = plan(view(asked, old, apps=running, facts=there))
    assert isinstance(start, StartJob)
    assert start.spec == {"source": asked.source.block, "once": False, "rendition": "spec-2"}
    new = record(start.slot, spec=start.spec)
    both = (*running, replace(app(new, AppPhase.RUNNING), name="app-2"))
    report = plan(view(asked, old, new, apps=both, facts=there))
    assert stalled_condition(report) == ("False", Reason.INGESTION_RUNNING)
    # Each job has its own source, also when it is tried again.
    for job, spec_of in ((old, before), (new, asked)):
        found = template_of(asked, "", SparkTemplate(), job)
        assert found is not None
        assert spec_of.source is not None
        assert found[1]["source"] == spec_of.source.block
        assert found[1].get("rendition", "") == job.spec.get("rendition", "")
    broken = replace(new, state=JobState.FAILED, failures=1, error="it is gone", finished_ms=NOW_MS)
    report = plan(view(asked, old, broken, apps=running, facts=there))
    assert stalled_condition(report) == ("True", Reason.INGESTION_RETRYING)
    assert isinstance(report, RequestedReport)
    assert report.condition is not None
    assert report.condition.message.startswith("rendition spec-2: the source can't be read: it is gone")
    # After the handover, the job that filled it goes on, and the other one ends.
    over = known(
        replace(R1, state=RenditionState.RETIRED, held_to=50),
        replace(SPEC_2, state=RenditionState.HOLDING, held_from=50),
    )
    ended = plan(view(asked, old, new, apps=both, facts=over))
    assert isinstance(ended, FailAttempt)
    assert ended.job_id == old.job_id
    gone = replace(old, state=JobState.FAILED, error=ended.error, finished_ms=NOW_MS)
    report = plan(view(asked, gone, new, apps=both[1:], facts=over))
    assert stalled_condition(report) == ("False", Reason.INGESTION_RUNNING)


def test_a_change_that_is_undone_ends_its_job_and_is_no_obstacle_later() -> None:
    before, asked = spec(PLAIN), spec(TOPIC)
    assert before.source is not None
    assert asked.source is not None
    old = record(slot_for(before), spec={"source": before.source.block, "once": False})
    slot = slot_to_fill(asked.source, SparkTemplate(), "spec-2")
    new = record(slot, spec={"source": asked.source.block, "once": False, "rendition": "spec-2"})
    aborted = replace(SPEC_2, state=RenditionState.ABORTED)
    both = (app(old, AppPhase.RUNNING), replace(app(new, AppPhase.RUNNING), name="app-2"))
    ended = plan(view(before, old, new, apps=both, facts=known(R1, aborted)))
    assert isinstance(ended, FailAttempt)
    assert ended.job_id == new.job_id
    gone = replace(new, state=JobState.FAILED, error=ended.error, finished_ms=NOW_MS)
    again = known(R1, aborted, replace(SPEC_2, id="spec-3"))
    start = plan(view(asked, old, gone, apps=both[:1], facts=again))
    assert isinstance(start, StartJob)
    assert start.spec["rendition"] == "spec-3"


def test_runs_on_a_schedule_wait_until_the_next_rendition_is_filled() -> None:
    asked = spec(TOPIC | {"run": HOURLY})
    start = plan(view(asked, facts=known(R1, SPEC_2)))
    assert isinstance(start, StartJob)
    assert start.spec["rendition"] == "spec-2"
    # Later, no job follows the source all the time.
    over = known(
        replace(R1, state=RenditionState.RETIRED, held_to=50),
        replace(SPEC_2, state=RenditionState.HOLDING, held_from=50),
    )
    job = record(start.slot, spec=start.spec)
    assert isinstance(plan(view(asked, job, apps=(app(job, AppPhase.RUNNING),), facts=over)), FailAttempt)


def test_a_deletion_does_not_wait_for_a_secret() -> None:
    asked = spec(SASL)
    seen = view(asked, no_secret=NO_SECRET)
    assert plan_forget(seen) is None
    assert why_not_forgotten(seen).endswith(NO_SECRET)
    forget = record("forget:")
    ended = plan_forget(view(asked, forget, no_secret=NO_SECRET))
    assert isinstance(ended, FailAttempt)
    assert ended.error == NO_SECRET


def test_the_secrets_of_a_source_are_files_of_its_job_only() -> None:
    registry = {"url": "http://r", "secretRef": {"name": "kafka"}}
    asked = spec({**SASL, "format": {"avro": {"registry": registry}}})
    assert asked.source is not None
    job = record(slot_for(asked))
    (found,) = files_of(asked, SparkTemplate(), job)
    assert (found.name, found.shared) == ("kafka", True)
    assert found.keys == ("username", "password", "ca.crt", "tls.crt", "tls.key", "keyPassword")
    assert files_of(asked, SparkTemplate(), replace(job, kind="snapshot")) == ()
    # The work order names the Secret, and has nothing of it.
    assert asked.source.block["kafka"]["secretRef"] == {"name": "kafka"}


def test_an_attempt_that_ran_for_long_is_followed_soon() -> None:
    asked = spec()
    assert asked.source is not None
    slot = slot_for(asked)
    fields: dict[str, Any] = {"failures": 9, "error": "x", "finished_ms": NOW_MS - 6_000}
    short = record(slot, JobState.FAILED, 9, **fields)
    assert isinstance(plan(view(asked, short)), RequestedReport)
    long = replace(short, started_ms=NOW_MS - 3_600_000)
    assert isinstance(plan(view(asked, long)), RetryJob)


def test_a_job_that_was_suspended_after_failures_goes_on_soon() -> None:
    asked = spec()
    assert asked.source is not None
    fields: dict[str, Any] = {"failures": 7, "error": "spec.source.run.suspend is true"}
    job = record(slot_for(asked), JobState.FAILED, 8, finished_ms=NOW_MS - 1_000, **fields)
    assert stalled_condition(plan(view(asked, job))) == ("Unknown", Reason.INGESTION_RETRYING)
    later = replace(job, finished_ms=NOW_MS - 6_000)
    assert isinstance(plan(view(asked, later)), RetryJob)


def test_a_new_attempt_changes_the_condition_only_when_it_has_run_for_a_while() -> None:
    asked = spec()
    assert asked.source is not None
    job = record(slot_for(asked), attempt=3)
    shown = {
        "type": "SourceStalled",
        "status": "True",
        "reason": "IngestionRetrying",
        "message": "the source can't be read: no broker; the operator tries again by itself",
    }
    status = {"conditions": [shown]}
    young = view(asked, job, apps=(app(job, AppPhase.RUNNING, age=119),), status=status)
    report = plan(young)
    assert isinstance(report, RequestedReport)
    assert report.condition == WantedCondition(
        ConditionType.SOURCE_STALLED, "True", Reason.INGESTION_RETRYING, shown["message"]
    )
    old = view(asked, job, apps=(app(job, AppPhase.RUNNING, age=121),), status=status)
    assert stalled_condition(plan(old)) == ("False", Reason.INGESTION_RUNNING)
    # It has read something. No time has to pass.
    reads = view(asked, job, apps=(app(job, AppPhase.RUNNING, age=9),), status=status, upper=NOW_MS - 8_000)
    assert stalled_condition(plan(reads)) == ("False", Reason.INGESTION_RUNNING)
    before = view(asked, job, apps=(app(job, AppPhase.RUNNING, age=9),), status=status, upper=NOW_MS - 9_001)
    assert stalled_condition(plan(before)) == ("True", Reason.INGESTION_RETRYING)


def test_a_job_that_has_read_nothing_says_so() -> None:
    job = record(slot_for(spec()))
    for upper, text in (
        (NOW_MS - 10_001, "a Spark job runs, and has read nothing new since it began"),
        (NOW_MS - 9_999, "a Spark job reads the source"),
    ):
        report = plan(view(spec(), job, apps=(app(job, AppPhase.RUNNING),), upper=upper))
        assert isinstance(report, RequestedReport)
        assert report.condition is not None
        assert (report.condition.status, report.condition.message) == ("False", text)


def test_attempts_that_fail_by_their_own_report_are_counted_once() -> None:
    metrics, key = Metrics(), ObjectKey(Kind.STORAGE_COLLECTION, "ns", "orders")
    services: Any = SimpleNamespace(clock=SystemClock(), metrics=metrics)

    class NoStores:
        async def use(self, *_: object) -> None:
            """The record is not what is tested."""

    stores: Any = NoStores()
    nothing: Any = None
    attempts = Attempts(services, stores, nothing, nothing)

    def counted() -> tuple[float, ...]:
        steps = ("failed", "stopped")
        return tuple(metrics.spark_jobs.labels("ingest", each)._value.get() for each in steps)

    def looked(attempt: int, state: JobState) -> tuple[float, ...]:
        attempts.failed_for(key, [record("source", state, attempt)])
        return counted()

    # One that was over before this process began was counted by another one.
    assert looked(1, JobState.FAILED) == (0, 0)
    assert looked(2, JobState.RUNNING) == (0, 0)
    assert looked(2, JobState.FAILED) == (1, 0)
    assert looked(2, JobState.FAILED) == (1, 0)
    # Its application is left over, and is cancelled.
    asyncio.run(attempts.fail(key, key, failed(record("source", JobState.FAILED, 2), "it stalled")))
    assert counted() == (1, 0)
    # The operator itself ends the next ones.
    for attempt, is_stopped, expected in ((3, False, (2, 0)), (4, True, (2, 1))):
        job = record("source", attempt=attempt)
        attempts.failed_for(key, [job])
        asyncio.run(attempts.fail(key, key, failed(job, "it ended", stopped=is_stopped)))
        assert counted() == expected
        assert looked(attempt, JobState.FAILED) == expected


def test_another_source_stops_the_job_and_starts_another() -> None:
    before, after = spec(), spec(run={"interval": "2s"})
    assert before.source is not None
    job = record(slot_for(before))
    stop = plan(view(after, job, apps=(app(job, AppPhase.RUNNING),)))
    assert isinstance(stop, FailAttempt)
    assert (stop.attempt, stop.stopped, stop.app is not None) == (1, True, True)
    over = replace(job, state=JobState.FAILED, finished_ms=NOW_MS)
    start = plan(view(after, over))
    assert isinstance(start, StartJob)
    assert start.slot != job.slot
    many = [replace(over, slot=f"continuous:{n:02}", finished_ms=n, job_id=f"j{n}") for n in range(21)]
    assert plan(view(after, *many)) == ForgetRuns(tuple(f"j{n}" for n in range(11)))


@pytest.mark.parametrize(("fields", "reason"), [({"run": {"suspend": True}}, Reason.SUSPENDED), ({}, None)])
def test_suspended_or_not_made_for_it_no_job_runs(fields: dict[str, Any], reason: Reason | None) -> None:
    asked = spec(**fields)
    assert asked.source is not None
    fed = reason is not None
    job = record(slot_for(asked))
    stop = plan(view(asked, job, apps=(app(job, AppPhase.RUNNING),), fed=fed))
    assert isinstance(stop, FailAttempt)
    assert stop.stopped
    status = stalled_condition(plan(view(asked, fed=fed)))
    assert status == (("Unknown", reason) if fed else ("True", Reason.NOT_SOURCE_FED))


def test_what_hinders_all_spark_jobs_is_shown() -> None:
    missing = plan(view(spec(), missing="no Spark operator is installed"))
    assert stalled_condition(missing) == ("True", Reason.SPARK_NOT_INSTALLED)
    failing = plan(view(spec(), not_launched="500 no"))
    assert stalled_condition(failing) == ("True", Reason.LAUNCH_FAILED)
    full = plan(view(spec(), full="8 Spark jobs run"))
    assert isinstance(full, StartJob), "jobs of sources don't count against the limit"


def test_a_scheduled_run_reads_up_to_the_end() -> None:
    asked = spec(run=HOURLY)
    waiting = plan(view(asked))
    assert isinstance(waiting, RequestedReport)
    assert waiting.fields["sourceSchedule"]["nextScheduleTime"] == "2026-01-02T13:00:00Z"
    due = {"sourceSchedule": {"nextScheduleTime": "2026-01-02T12:00:00Z"}}
    start = plan(view(asked, status=due))
    assert isinstance(start, StartJob)
    assert (start.spec["once"], start.limited) == (True, False)
    done = record(start.slot, JobState.DONE, result={"messages": 4}, finished_ms=NOW_MS)
    report = plan(view(asked, done, status=due))
    assert isinstance(report, RequestedReport)
    condition = report.condition
    assert condition is not None
    assert (condition.type, condition.status) == (ConditionType.SCHEDULED_INGESTION_COMPLETED, "True")
    assert "4 messages" in condition.message
    follower = record(slot_for(asked) if asked.source else "")
    assert isinstance(plan(view(asked, follower)), FailAttempt), "the job of mode Continuous ends"


def test_a_scheduled_run_is_given_up_after_failures() -> None:
    asked = spec(run=HOURLY)
    status = {"sourceSchedule": {"nextScheduleTime": "2026-01-02T12:00:00Z"}}
    start = plan(view(asked, status=status))
    assert isinstance(start, StartJob)
    over = record(start.slot, JobState.FAILED, 3, failures=3, error="no broker", finished_ms=NOW_MS)
    report = plan(view(asked, over, status=status))
    assert isinstance(report, RequestedReport)
    found = report.condition
    assert found is not None
    assert (found.type, found.status) == (ConditionType.SCHEDULED_INGESTION_COMPLETED, "False")
    assert found.reason is Reason.INGESTION_FAILED
    assert "no broker" in found.message


def test_a_source_forgets_a_collection_before_it_is_dropped() -> None:
    asked = spec()
    start = plan_forget(view(asked))
    assert isinstance(start, StartJob)
    assert (start.slot, start.spec["forget"], start.limited) == ("forget:", True, False)
    job = record("forget:", spec=start.spec)
    found = template_of(asked, "", SparkTemplate(), job)
    assert found is not None
    (text,) = arguments({"url": "file:///data"}, COLLECTION, job, found[1])
    assert IngestJobSpec.from_json(text).forget
    launched = plan_forget(view(asked, job))
    assert isinstance(launched, LaunchAttempt)
    running = view(asked, job, apps=(app(job, AppPhase.RUNNING),))
    assert running.apps == (), "nothing else stops it"
    waits = plan_forget(running)
    assert isinstance(waits, Settle)
    assert "deletes what the source keeps" in waits.health.message
    late = plan_forget(view(asked, job, apps=(app(job, AppPhase.PENDING, age=121),)))
    assert isinstance(late, FailAttempt)
    failed = view(asked, replace(job, state=JobState.FAILED, error="topic t doesn't exist"))
    assert why_not_forgotten(failed) == "the Spark job for it failed: topic t doesn't exist"
    assert why_not_forgotten(None) == "no Spark job could be started for it"
    for over, forgotten in ((JobState.DONE, True), (JobState.FAILED, False)):
        ended = view(asked, replace(job, state=over))
        assert plan_forget(ended) is None
        assert is_forgotten(ended) is forgotten
    assert plan_forget(view(spec(FOLDER))) is None, "files keep nothing"
    assert plan_forget(view(asked, missing="no Spark operator is installed")) is None


def test_the_status_tells_which_attempts_a_deletion_must_end() -> None:
    job = {"jobId": "j", "attempt": 2, "state": "Running", "application": "a"}
    for status in ({"source": {"job": job}}, {"sourceSchedule": {"job": job}}):
        assert shown_running(status) == ("attempt 2 of job j",)
        assert may_have_driver(spec(), "", status)


@given(st.sampled_from(list(JobState)), st.integers(1, 5), st.sampled_from([None, *AppPhase]), st.booleans())
def test_no_two_attempts_are_wanted_at_once(
    state: JobState, attempt: int, phase: AppPhase | None, running: bool
) -> None:
    asked = spec()
    assert asked.source is not None
    job = record(slot_for(asked), state, attempt, finished_ms=NOW_MS - 400_000, error="x")
    apps = () if phase is None else (app(job, phase, age=400),)
    step = plan(view(asked, job, apps=apps))
    if isinstance(step, StartJob | RetryJob | LaunchAttempt):
        assert all(each.phase.over or each.attempt != attempt for each in apps)
    assert running or not isinstance(step, StartJob)
