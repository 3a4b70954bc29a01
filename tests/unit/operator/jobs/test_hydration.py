"""How the operator decides about the Spark job that fills a rendition: the record decides."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collections import JobRecord, JobState, Recipe, RenditionState, job_id
from holdfast.collections.renditions import MAX_LAG_MS
from holdfast.errors import CLOSED
from holdfast.persist import Schema, StoredSize
from holdfast.spark.jobs.spec import HydrateSpec
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.api.spark import effective
from holdfast_operator.collections import plan as collection
from holdfast_operator.collections.facts import CatalogState, CollectionFacts, CollectionView, RenditionFacts
from holdfast_operator.collections.status import phase_of
from holdfast_operator.collections.steps import AbortRendition, DropCollection, HandOver, Hydrate
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.steps import Decision, Release, Rhythm, Settle
from holdfast_operator.jobs.course import arguments, shown_launched, shown_running
from holdfast_operator.jobs.hydration import HydrationsView, may_have_driver, work_order
from holdfast_operator.jobs.steps import FailAttempt, LaunchAttempt, RetryJob, StartJob
from holdfast_operator.places.storage import Storage
from holdfast_operator.sparkapps.adapter import AppPhase, AppState, PassedOver

NOW = datetime(2026, 1, 2, tzinfo=UTC)
COLLECTION = "6b1f9c52-3f0d-4d1c-9f39-1d8a3a4b2c10"
JOB = job_id(COLLECTION, "hydrate", "spec-2")
MIB = 1 << 20
LARGE = 300 * MIB
UPPER = 10 * MAX_LAG_MS
SCHEMA = Schema.of(key={"id": "int64"}, value={"note": "string?"})
R1 = RenditionFacts("r1", 2, 5, UPPER, 12, LARGE, hash_columns=("id",))
NEW = RenditionFacts(
    "spec-2", shards=4, state=RenditionState.HYDRATING, hash_columns=("id",), held_from=CLOSED
)
TEMPLATE = {"startDeadline": "60s", "maxAttempts": 3}
ORDER = {"collection": COLLECTION, "rendition": "spec-2"}
START = StartJob(COLLECTION, "hydrate", "spec-2", ORDER, 1)
RETRY = RetryJob(COLLECTION, JOB, 1)


def spec(shards: int = 4, *, spark: dict[str, Any] | None = TEMPLATE, **fields: Any) -> StorageCollectionSpec:
    hydration = {} if spark is None else {"spark": spark, **fields.pop("hydration", {})}
    return StorageCollectionSpec.model_validate(
        {
            "catalogRef": {"name": "demo"},
            "columns": [
                {"name": "id", "type": "int64"},
                {"name": "note", "type": "string", "nullable": True},
            ],
            "key": ["id"],
            "rendition": {"shards": shards},
            "hydration": hydration,
            **fields,
        }
    )


def facts(*renditions: RenditionFacts, **fields: Any) -> CollectionFacts:
    there = {"since": 5, "upper": UPPER, "active_rendition": "r1", "renditions": renditions}
    return CollectionFacts(
        **{
            "collection_id": COLLECTION,
            "name": "flights",
            "schema": SCHEMA,
            "shards": 2,
            "dropped": False,
            **there,
            **fields,
        }
    )


def record(state: JobState, attempt: int = 1, **fields: Any) -> JobRecord:
    """An attempt by Spark, as all before it: each failed of itself."""
    failures = attempt - (0 if state is JobState.FAILED else 1)
    given = {"spec": ORDER, "by": "spark", "failures": failures, **fields}
    return JobRecord(JOB, COLLECTION, "hydrate", "spec-2", attempt, state, **given)


def own(state: JobState, attempt: int = 1, **fields: Any) -> JobRecord:
    """An attempt of an operator's own process."""
    return record(state, attempt, **{"by": "", **fields})


def app(phase: AppPhase, *, attempt: int = 1, age: float = 1.0, job: str = JOB) -> AppState:
    created = NOW - timedelta(seconds=age)
    return AppState(f"app-{attempt}", f"uid-{attempt}", job, attempt, phase, "", created, "hydrate")


def spark(*apps: AppState, job: JobRecord | None = None, **fields: Any) -> HydrationsView:
    jobs = () if job is None else (job,)
    """What is seen where the status shows the applications of all attempts."""
    launched = frozenset((JOB, attempt) for attempt in range(1, 9))
    given = {
        "collection_id": COLLECTION,
        "reachable": True,
        "now": NOW,
        "apps": apps,
        "jobs": jobs,
        "launched": launched,
        **fields,
    }
    return HydrationsView(**given)


def decided(
    hydrations: HydrationsView,
    there: CollectionFacts | None = None,
    asked: StorageCollectionSpec | None = None,
    **fields: Any,
) -> Decision:
    """Decided after the status shows what is there."""
    there = there or facts(R1, NEW)
    asked = asked or spec()
    own = asked.hydration.spark
    hydrations = replace(hydrations, template=None if own is None else effective(own))
    shown = {each.id: phase_of(there, each).value for each in there.renditions}
    given: dict[str, Any] = {
        "name": "flights",
        "spec": asked,
        "catalog": CatalogState.OPEN,
        "catalog_open": True,
        "item_id": "u1",
        "collection_id": COLLECTION,
        "facts": there,
        "hydrations": hydrations,
        "shown": shown,
        "now": NOW,
        "created": True,
    }
    return collection.plan(CollectionView(**{**given, **fields}), Rhythm(unsteady=2.0, steady=60.0))


def rest(*args: Any, **fields: Any) -> Settle:
    step = decided(*args, **fields)
    assert isinstance(step, Settle), step
    return step


@pytest.mark.parametrize(
    ("size", "asked", "starts"),
    [
        (256 * MIB, spec(), True),
        (256 * MIB - 1, spec(), False),
        (LARGE, spec(spark=None), False),
        (10, spec(hydration={"minimumBytes": 10}), True),
        (9, spec(hydration={"minimumBytes": 10}), False),
        (LARGE, spec(hydration={"minimumBytes": LARGE + 1}), False),
        (0, spec(hydration={"minimumBytes": 0}), True),
    ],
)
def test_spark_fills_from_a_size_on_where_there_is_a_template(
    size: int, asked: StorageCollectionSpec, starts: bool
) -> None:
    there = facts(replace(R1, bytes=size), NEW)
    step = decided(spark(), there, asked)
    assert (step == START) if starts else isinstance(step, Hydrate)


def test_a_large_one_without_a_template_is_filled_as_ever_and_that_is_said() -> None:
    step = decided(spark(), asked=spec(spark=None))
    assert isinstance(step, Hydrate)
    assert "copies all 12 rows, which takes long; set spec.hydration.spark" in step.health.message


def test_what_is_filled_or_no_copy_needs_no_job() -> None:
    """What was written since is caught up with in the operator, however much there is."""
    lagging = replace(NEW, upper=UPPER - MAX_LAG_MS - 1)
    assert isinstance(decided(spark(), facts(R1, lagging)), Hydrate)
    done = spark(app(AppPhase.RUNNING), job=record(JobState.DONE))
    assert isinstance(decided(done, facts(R1, lagging)), Hydrate)
    assert isinstance(decided(done, facts(R1, replace(NEW, upper=UPPER))), HandOver)
    sourced = facts(R1, replace(NEW, recipe=Recipe.SOURCE))
    step = decided(spark(), sourced, spec(rendition={"shards": 4, "recipe": "Source"}))
    assert isinstance(step, Settle)


def test_the_phase_is_shown_before_the_job_starts() -> None:
    step = rest(spark(), shown={"r1": "Active"})
    assert step.requeue_after == 0.0
    assert step.health.reason is Reason.HYDRATING_RENDITION


@pytest.mark.parametrize(
    ("hydrations", "reason", "message"),
    [
        (spark(missing="nothing runs Spark"), Reason.SPARK_NOT_INSTALLED, "or remove spec.hydration"),
        (spark(not_launched="500 no"), Reason.LAUNCH_FAILED, "500 no"),
        (spark(reachable=False), Reason.STORAGE_NOT_SHARED, "--storage-shared"),
        (spark(full="2 Spark jobs run"), Reason.HYDRATING_RENDITION, "(4 shards): 2 Spark jobs run"),
        (spark(objection="set it to 1"), Reason.SPARK_TEMPLATE_REFUSED, "set it to 1; or remove"),
        (
            spark(app(AppPhase.RUNNING), job=record(JobState.RUNNING)),
            Reason.HYDRATING_RENDITION,
            "a Spark job fills rendition spec-2 (4 shards): attempt 1 runs",
        ),
        (
            spark(
                replace(app(AppPhase.RUNNING), via="job", passed_over=(PassedOver("kubeflow", NOW),)),
                job=record(JobState.RUNNING),
            ),
            Reason.HYDRATING_RENDITION,
            "attempt 1 runs; adapter job launched it, because nobody noticed the last application",
        ),
        (
            spark(app(AppPhase.PENDING, age=59), job=record(JobState.RUNNING)),
            Reason.HYDRATING_RENDITION,
            "attempt 1 waits for its driver",
        ),
        (
            spark(job=record(JobState.FAILED, error="boom", finished_ms=int(NOW.timestamp() * 1000))),
            Reason.HYDRATING_RENDITION,
            "attempt 1 failed: boom; the next one follows by itself",
        ),
        (
            spark(job=record(JobState.FAILED, 3, error="boom")),
            Reason.HYDRATION_FAILED,
            "failed 3 times, last: boom; fix the cause and raise spec.hydration.spark.maxAttempts",
        ),
        (spark(job=record(JobState.DONE)), Reason.HYDRATING_RENDITION, "attempt 1 has committed"),
    ],
)
def test_what_is_shown(hydrations: HydrationsView, reason: Reason, message: str) -> None:
    step = rest(hydrations)
    assert step.health.reason is reason
    assert message in step.health.message
    assert (step.health.phase is Phase.STALLED) == (reason is not Reason.HYDRATING_RENDITION)


def test_the_status_tells_the_attempt_until_it_is_active() -> None:
    running = spark(app(AppPhase.RUNNING, attempt=2), job=record(JobState.RUNNING, 2))
    shown = rest(running).fields
    assert shown is not None
    jobs = {each["id"]: each.get("job") for each in shown["renditions"]}
    assert jobs == {
        "r1": None,
        "spec-2": {
            "jobId": JOB,
            "attempt": 2,
            "state": "Running",
            "application": "app-2",
            "started": "2026-01-01T23:59:59Z",
        },
    }
    assert may_have_driver(shown)
    assert may_have_driver(
        {"renditions": [{"id": "r1", "phase": "Active"}, {"id": "s", "phase": "Hydrating"}]}
    )
    assert not may_have_driver({"renditions": [{"id": "r1", "phase": "Active"}]})


@pytest.mark.parametrize(
    ("apps", "error"),
    [
        ((), "gone"),
        ((app(AppPhase.SUCCEEDED),), "without committing"),
        ((app(AppPhase.FAILED),), "failed"),
        ((app(AppPhase.PENDING, age=61),), "did not start within 60 s"),
    ],
)
def test_an_attempt_without_a_result_failed_and_the_next_one_follows(
    apps: tuple[AppState, ...], error: str
) -> None:
    step = decided(spark(*apps, job=record(JobState.RUNNING)))
    assert isinstance(step, FailAttempt)
    assert (step.kind, step.job_id, step.attempt) == ("hydrate", JOB, 1)
    assert error in step.error
    ended = int((NOW - timedelta(seconds=6)).timestamp() * 1000)
    failed = record(JobState.FAILED, error=error, finished_ms=ended)
    assert decided(spark(job=failed)) == RETRY


def test_an_attempt_that_nobody_came_to_launch_is_launched() -> None:
    """The operator ended between the record and the application."""
    running = record(JobState.RUNNING, 2)
    never = spark(job=running, launched=frozenset({(JOB, 1)}))
    assert decided(never) == LaunchAttempt(COLLECTION, running, 1)
    uninstalled = rest(replace(never, missing="nothing runs Spark"))
    assert uninstalled.health.reason is Reason.SPARK_NOT_INSTALLED
    # There it is: nothing to do but to wait for it.
    assert isinstance(decided(replace(never, apps=(app(AppPhase.PENDING, attempt=2),))), Settle)


def test_the_status_tells_whose_application_was_there() -> None:
    shown = rest(spark(app(AppPhase.RUNNING, attempt=2), job=record(JobState.RUNNING, 2))).fields
    assert shown is not None
    assert shown_launched(shown) == {(JOB, 2)}
    assert shown_running(shown) == (f"attempt 2 of job {JOB}",)
    waiting = rest(spark(job=record(JobState.RUNNING, 2), missing="nothing runs Spark")).fields
    assert waiting is not None
    assert shown_launched(waiting) == frozenset()
    assert shown_launched({}) == frozenset()
    over = rest(spark(job=record(JobState.FAILED, 9, failures=9))).fields
    assert over is not None
    assert "job" in over["renditions"][1]
    assert shown_running(over) == shown_running({}) == ()
    by_schedule = {"compactionSchedule": {"job": {"jobId": "j2", "attempt": 1, "state": "Running"}}}
    assert shown_running(by_schedule) == ("attempt 1 of job j2",)


def test_an_attempt_of_this_process_goes_on_whatever_template_comes() -> None:
    at_it = spark(job=own(JobState.RUNNING), here="spec-2")
    assert isinstance(decided(at_it), Hydrate)
    assert isinstance(decided(at_it, asked=spec(spark=None)), Hydrate)
    # The template is for the next attempt: this one failed, or its process is gone.
    ended = int((NOW - timedelta(seconds=6)).timestamp() * 1000)
    assert decided(spark(job=own(JobState.FAILED, finished_ms=ended))) == RETRY
    assert decided(spark(job=own(JobState.RUNNING, 4))) == replace(RETRY, abandoned=4)
    assert isinstance(decided(spark(job=own(JobState.RUNNING, 4)), asked=spec(spark=None)), Hydrate)
    there = facts(replace(R1, bytes=10), NEW)
    assert isinstance(decided(spark(job=own(JobState.RUNNING, 4)), there), Hydrate)


@pytest.mark.parametrize(
    ("staged", "pieces", "message"),
    [
        (0, 1000, "attempt 2 runs; 0 of 1,000 pieces are staged"),
        (412, 1000, "attempt 2 runs; 412 of 1,000 pieces are staged"),
        (1000, 1000, "attempt 2 runs; its rows are staged, committing"),
    ],
)
def test_the_progress_of_a_job_is_shown(staged: int, pieces: int, message: str) -> None:
    job = replace(record(JobState.RUNNING, 2), result={"plan": {"pieces": [[]] * pieces}})
    there = facts(R1, replace(NEW, staged=staged))
    step = rest(spark(app(AppPhase.RUNNING, attempt=2), job=job), there)
    assert step.health.message == f"a Spark job fills rendition spec-2 (4 shards): {message}"


def test_what_the_operators_process_failed_at_does_not_count_for_spark() -> None:
    ended = int((NOW - timedelta(seconds=6)).timestamp() * 1000)
    assert decided(spark(job=own(JobState.FAILED, 7, failures=7, finished_ms=ended))) == RETRY
    assert rest(spark(job=record(JobState.FAILED, 7, failures=3))).health.reason is Reason.HYDRATION_FAILED


@pytest.mark.parametrize("without", [{"spark": None}, {"hydration": {"minimumBytes": LARGE + 1}}])
def test_a_driver_goes_on_to_its_end_without_the_template(without: dict[str, Any]) -> None:
    """Then it is the operator's turn, where nobody asks for Spark by then."""
    asked, running = spec(**without), record(JobState.RUNNING)
    alive = spark(app(AppPhase.RUNNING), job=running)
    assert rest(alive, asked=asked).health.message.endswith("attempt 1 runs")
    ended = decided(spark(app(AppPhase.FAILED), job=running), asked=asked)
    assert isinstance(ended, FailAttempt)
    assert not ended.stopped
    assert isinstance(decided(spark(job=record(JobState.FAILED)), asked=asked), Hydrate)
    # The template is there again: whoever is at it goes on, whose turn is next is asked anew.
    assert isinstance(decided(spark(job=own(JobState.RUNNING, 2), here="spec-2")), Hydrate)
    assert decided(spark(job=own(JobState.RUNNING, 2))) == replace(RETRY, abandoned=2)


@pytest.mark.parametrize("fields", [{}, {"launched": frozenset()}, {"missing": "nothing runs Spark"}])
def test_without_template_and_driver_the_operator_takes_its_place(fields: dict[str, Any]) -> None:
    step = decided(spark(job=record(JobState.RUNNING), **fields), asked=spec(spark=None))
    assert step == FailAttempt("hydrate", JOB, 1, "nobody asks for it any more", stopped=True)


def test_a_driver_that_has_put_its_failure_on_record_ends_by_itself() -> None:
    """What it says then is not lost; only one that doesn't end is taken away."""
    alive = app(AppPhase.RUNNING)
    failed = record(JobState.FAILED, error="boom", finished_ms=int(NOW.timestamp() * 1000))
    seen = spark(alive, job=failed)
    assert "its driver is ending" in rest(seen).health.message
    later = decided(replace(seen, now=NOW + timedelta(seconds=30)))
    assert later == FailAttempt("hydrate", JOB, 1, "nobody asks for it any more", alive, stopped=True)
    assert decided(spark(app(AppPhase.FAILED), job=failed), asked=spec(2)) == AbortRendition(
        COLLECTION, "spec-2"
    )


def test_a_rendition_that_nobody_wants_is_given_up_and_its_driver_goes() -> None:
    alive = app(AppPhase.RUNNING)
    step = decided(spark(alive, job=record(JobState.RUNNING)), asked=spec(2))
    assert step == AbortRendition(COLLECTION, "spec-2")
    aborted = facts(R1, replace(NEW, state=RenditionState.ABORTED))
    ended = FailAttempt("hydrate", JOB, 1, "nobody asks for it any more", alive, stopped=True)
    assert decided(spark(alive, job=record(JobState.FAILED)), aborted, spec(2)) == ended
    # It only ends what it committed.
    held = facts(
        replace(R1, state=RenditionState.RETIRED, held_to=UPPER),
        replace(NEW, state=RenditionState.HOLDING, held_from=UPPER, held_to=CLOSED, upper=UPPER),
        active_rendition="spec-2",
    )
    assert isinstance(decided(spark(alive, job=record(JobState.DONE)), held), Settle)


def test_an_older_attempt_that_lives_is_taken_away() -> None:
    zombie, current = app(AppPhase.RUNNING), app(AppPhase.RUNNING, attempt=2)
    step = decided(spark(zombie, current, job=record(JobState.RUNNING, 2)))
    assert isinstance(step, FailAttempt)
    assert step.app == zombie


def test_what_is_suspended_has_no_driver_and_goes_on_afterwards() -> None:
    alive = app(AppPhase.RUNNING)
    step = decided(spark(alive, job=record(JobState.RUNNING)), asked=spec(suspend=True))
    assert step == FailAttempt("hydrate", JOB, 1, "spec.suspend is true", alive, stopped=True)
    stopped = record(JobState.FAILED, 5, error="spec.suspend is true", failures=2)
    settled = rest(spark(job=stopped), asked=spec(suspend=True))
    assert settled.health.reason is Reason.SUSPENDED
    assert settled.fields is not None
    # Three of them were stopped: that is no failure of the job.
    assert decided(spark(job=stopped)) == RETRY
    assert rest(spark(job=replace(stopped, failures=3))).health.reason is Reason.HYDRATION_FAILED


def test_deletion_ends_the_driver_first() -> None:
    alive = app(AppPhase.RUNNING)
    for policy, then in (("Delete", DropCollection(COLLECTION)), ("Retain", Release())):
        deleting: dict[str, Any] = {"deleting": True, "asked": spec(2, deletionPolicy=policy)}
        running = record(JobState.RUNNING, by="spark")
        ended = FailAttempt("hydrate", JOB, 1, "the StorageCollection is being deleted", stopped=True)
        assert decided(spark(alive, job=running), **deleting) == replace(ended, app=alive)
        assert decided(spark(job=running), **deleting) == ended
        assert decided(spark(job=record(JobState.FAILED)), **deleting) == then


@given(
    st.sampled_from([None, *JobState]),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(list(AppPhase)), st.integers(1, 4), st.floats(0, 500)), max_size=4),
)
def test_no_application_makes_it_filled(
    state: JobState | None, attempt: int, seen_apps: list[tuple[AppPhase, int, float]]
) -> None:
    """Whatever applications say: it is handed over only when its shards have the contents."""
    apps = [app(phase, attempt=number, age=age) for phase, number, age in seen_apps]
    job = None if state is None else record(state, attempt)
    step = decided(spark(*apps, job=job))
    assert isinstance(step, StartJob | RetryJob | FailAttempt | Settle)
    assert isinstance(step, FailAttempt) or step == START or state is not None


@pytest.mark.parametrize(
    ("rows", "size", "instances", "cores", "expected"),
    [
        (0, 0, 1, 1, 1),
        (10, 256 * MIB, 1, 1, 4),
        (10, 256 * MIB + 1, 1, 1, 5),
        (10, 64 * MIB, 3, 4, 12),
        (10, 13 * 64 * MIB, 3, 4, 24),
        (20_000_000, 256 * MIB, 2, 2, 20),
        (20_000_001, 256 * MIB, 2, 2, 24),
        (10, 1 << 34, 2, 2, 256),
        (10, 1 << 39, 2, 2, 256),
        (10, 1 << 40, 2, 2, 512),
        (10, 1 << 50, 2, 2, 10_000),
        (10, 10, 1000, 64, 256),
    ],
)
def test_tasks_follow_from_what_is_stored(
    rows: int, size: int, instances: int, cores: int, expected: int
) -> None:
    template = {"executor": {"instances": instances, "cores": cores}}
    asked = spec(spark=template, hydration={"minimumBytes": 0})
    there = spark(stored=StoredSize(rows, size))
    assert decided(there, asked=asked) == replace(START, tasks=expected)
    running = replace(there, jobs=(record(JobState.RUNNING),), launched=frozenset())
    assert decided(running, asked=asked) == LaunchAttempt(COLLECTION, record(JobState.RUNNING), expected)


@pytest.mark.parametrize(
    "storage",
    [Storage("file:///x"), Storage(blob="s3://b/x", consensus="postgresql://db/holdfast")],
)
def test_the_work_order_is_one_that_the_job_takes(storage: Storage) -> None:
    job = record(JobState.RUNNING, 2)
    (argument,) = arguments(storage.place, COLLECTION, job, {**work_order(job), "partitions": 20})
    asked = HydrateSpec.from_json(argument)
    assert (asked.rendition, asked.job_id, asked.attempt, asked.partitions) == ("spec-2", JOB, 2, 20)
    assert storage.place.items() <= json.loads(argument).items()
