"""What the operator decides about the Spark job that fills a rendition: the record rules."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CLOSED
from holdfast.persist import Schema
from holdfast.spark.jobs.spec import HydrateSpec
from holdfast.storage import JobRecord, JobState, Recipe, RenditionState, job_id
from holdfast.storage.renditions import MAX_LAG_MS
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.reconcile import collection
from holdfast_operator.reconcile.catalog import Rhythm
from holdfast_operator.reconcile.collection import CatalogState, DropCollection, Observed
from holdfast_operator.reconcile.collectionstatus import phase_of
from holdfast_operator.reconcile.facts import CollectionFacts, RenditionFacts
from holdfast_operator.reconcile.hydration import HydrationsObserved, is_shown_running, work_order
from holdfast_operator.reconcile.renditions import AbortRendition, HandOver, Hydrate
from holdfast_operator.reconcile.sparkjobs import STOPPED, FailAttempt, RetryJob, StartJob, arguments
from holdfast_operator.reconcile.steps import Settle, Step
from holdfast_operator.reconcile.storage import Storage
from holdfast_operator.runtime.status import Phase
from holdfast_operator.sparkapps.adapter import AppPhase, AppState

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
TEMPLATE = {"startDeadlineSeconds": 60, "maxAttempts": 3}
BY_SPARK = {"collection": COLLECTION, "rendition": "spec-2", "by": "spark"}
START = StartJob(COLLECTION, "hydrate", "spec-2", BY_SPARK)


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
    return JobRecord(JOB, COLLECTION, "hydrate", "spec-2", attempt, state, **{"spec": BY_SPARK, **fields})


def app(phase: AppPhase, *, attempt: int = 1, age: float = 1.0, job: str = JOB) -> AppState:
    created = NOW - timedelta(seconds=age)
    return AppState(f"app-{attempt}", f"uid-{attempt}", job, attempt, phase, "", created, "hydrate")


def spark(*apps: AppState, job: JobRecord | None = None, **fields: Any) -> HydrationsObserved:
    jobs = () if job is None else (job,)
    return HydrationsObserved(**{"reachable": True, "now": NOW, "apps": apps, "jobs": jobs, **fields})


def decided(
    hydrations: HydrationsObserved,
    there: CollectionFacts | None = None,
    asked: StorageCollectionSpec | None = None,
    **fields: Any,
) -> Step:
    """Decided after the status shows what is there."""
    there = there or facts(R1, NEW)
    shown = {each.id: phase_of(there, each).value for each in there.renditions}
    given: dict[str, Any] = {
        "name": "flights",
        "spec": asked or spec(),
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
    return collection.plan(Observed(**{**given, **fields}), Rhythm(unsteady=2.0, steady=60.0))


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
    assert "copies all 12 rows, which takes long: with spec.hydration.spark" in step.health.message


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
        (spark(installed=False), Reason.SPARK_NOT_INSTALLED, "or remove spec.hydration"),
        (spark(reachable=False), Reason.STORAGE_NOT_SHARED, "--storage-shared"),
        (
            spark(app(AppPhase.RUNNING), job=record(JobState.RUNNING)),
            Reason.HYDRATING_RENDITION,
            "is being filled by a Spark job: attempt 1 runs",
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
            "failed 3 times, last: boom; mend that and raise spec.hydration.spark.maxAttempts",
        ),
        (spark(job=record(JobState.DONE)), Reason.HYDRATING_RENDITION, "attempt 1 has committed"),
    ],
)
def test_what_is_shown(hydrations: HydrationsObserved, reason: Reason, message: str) -> None:
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
    assert is_shown_running(shown)
    assert not is_shown_running({"renditions": [{"id": "r1"}]})


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
    assert decided(spark(job=failed)) == RetryJob(COLLECTION, JOB)


def test_a_job_that_was_begun_in_the_operator_goes_on_there() -> None:
    """A template that comes later is for the next rendition; a large one would be begun anew."""
    own = record(JobState.RUNNING, spec={"collection": COLLECTION, "rendition": "spec-2"})
    assert isinstance(decided(spark(job=own)), Hydrate)
    assert isinstance(decided(spark(job=replace(own, state=JobState.FAILED))), Hydrate)


def test_without_the_template_the_driver_goes_and_the_operator_takes_its_place() -> None:
    alive = app(AppPhase.RUNNING)
    running = record(JobState.RUNNING)
    step = decided(spark(alive, job=running), asked=spec(spark=None))
    assert step == FailAttempt("hydrate", JOB, 1, "nobody asks for it any more", alive)
    failed = record(JobState.FAILED)
    assert isinstance(decided(spark(job=failed), asked=spec(spark=None)), Hydrate)
    # The attempt of the operator's own process is not ended.
    own = record(JobState.RUNNING, 2)
    assert isinstance(decided(spark(job=own), asked=spec(spark=None)), Hydrate)


def test_a_rendition_that_nobody_wants_is_given_up_and_its_driver_goes() -> None:
    alive = app(AppPhase.RUNNING)
    step = decided(spark(alive, job=record(JobState.RUNNING)), asked=spec(2))
    assert step == AbortRendition(COLLECTION, "spec-2")
    aborted = facts(R1, replace(NEW, state=RenditionState.ABORTED))
    ended = FailAttempt("hydrate", JOB, 1, "nobody asks for it any more", alive)
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
    assert step == FailAttempt("hydrate", JOB, 1, STOPPED, alive)
    stopped = record(JobState.FAILED, 3, error=STOPPED)
    settled = rest(spark(job=stopped), asked=spec(suspend=True))
    assert settled.health.reason is Reason.SUSPENDED
    assert settled.fields is not None
    # It is no failure of the job: it was its third attempt.
    assert decided(spark(job=stopped)) == RetryJob(COLLECTION, JOB)


def test_deletion_ends_the_driver_first() -> None:
    alive = app(AppPhase.RUNNING)
    deleting: dict[str, Any] = {"deleting": True, "asked": spec(2, deletionPolicy="Delete")}
    step = decided(spark(alive, job=record(JobState.RUNNING)), **deleting)
    assert step == FailAttempt("hydrate", JOB, 1, "the collection is being deleted", alive)
    assert decided(spark(job=record(JobState.FAILED)), **deleting) == DropCollection(COLLECTION)


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
    "storage",
    [Storage("file:///x"), Storage(blob="s3://b/x", consensus="postgresql://db/holdfast")],
)
def test_the_work_order_is_one_that_the_job_takes(storage: Storage) -> None:
    template = SparkTemplate.model_validate({"executor": {"instances": 5, "cores": 2}})
    job = record(JobState.RUNNING, 2)
    (argument,) = arguments(storage.place, COLLECTION, job, work_order(job, template))
    asked = HydrateSpec.from_json(argument)
    assert (asked.rendition, asked.job_id, asked.attempt, asked.partitions) == ("spec-2", JOB, 2, 20)
    assert storage.place.items() <= json.loads(argument).items()
    assert work_order(job, SparkTemplate())["partitions"] == 8
    many = SparkTemplate.model_validate({"executor": {"instances": 1000, "cores": 64}})
    assert work_order(job, many)["partitions"] == 256
