"""What the operator decides about a StorageCollection, as a table of situations."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.collections import JobRecord, JobState
from holdfast.errors import CLOSED
from holdfast.persist import Schema
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.collections.facts import (
    CatalogState,
    CollectionFacts,
    CollectionView,
    ItemName,
    RenditionFacts,
)
from holdfast_operator.collections.plan import needs_finalizer, plan, schema_of
from holdfast_operator.collections.steps import (
    CommentColumns,
    CreateCollection,
    DropCollection,
    DropItem,
    EnsureItem,
    Erase,
    Retain,
)
from holdfast_operator.engine.deletion import LIMIT, Deletion
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.steps import Decision, Keep, Release, Rhythm, Settle, Wait
from holdfast_operator.jobs.compaction import CompactionView
from holdfast_operator.jobs.requested import RequestedView
from holdfast_operator.jobs.snapshot import SnapshotView
from holdfast_operator.jobs.steps import FailAttempt
from holdfast_operator.sparkapps.adapter import AppPhase, AppState

RHYTHM = Rhythm(unsteady=2.0, steady=60.0)
ITEM = ItemName("holdfast", "public", "flights")


COLUMNS: list[dict[str, Any]] = [
    {"name": "id", "type": "int64"},
    {"name": "note", "type": "string", "nullable": True},
]


def spec(**fields: Any) -> StorageCollectionSpec:
    return StorageCollectionSpec.model_validate(
        {
            "catalogRef": {"name": "demo"},
            "columns": COLUMNS,
            "key": ["id"],
            "rendition": {"shards": 2},
            **fields,
        }
    )


SCHEMA = Schema.of(key={"id": "int64"}, value={"note": "string?"})
FRESH = CollectionView(name="flights", spec=spec(), catalog=CatalogState.OPEN, catalog_open=True)
FACTS = CollectionFacts(
    collection_id="c1",
    name="holdfast.public.flights",
    schema=SCHEMA,
    shards=2,
    dropped=False,
    since=5,
    upper=90,
    active_rendition="r1",
    renditions=(RenditionFacts("r1", 2, 5, 90, 12, 3456),),
)
THERE = replace(FRESH, item_id="u1", collection_id="c1", facts=FACTS)


def decided(seen: CollectionView) -> Decision:
    return plan(seen, RHYTHM)


def rest(seen: CollectionView) -> Settle:
    step = decided(seen)
    assert isinstance(step, Settle)
    return step


WATCHED = replace(THERE, catalog_open=False, catalog_observed=True, retention_since=80)


@pytest.mark.parametrize(
    ("seen", "call"),
    [
        (replace(WATCHED, item_id=None, collection_id=None, facts=None), 'ensure_item("holdfast", "public"'),
        (replace(WATCHED, facts=None), 'create_collection(CollectionSpec("c1", "holdfast.public.flights"'),
    ],
)
def test_what_is_missing_in_an_observed_catalog_its_writer_has_to_make(
    seen: CollectionView, call: str
) -> None:
    step = rest(seen)
    assert (step.health.phase, step.health.reason) == (Phase.STALLED, Reason.CATALOG_OBSERVED)
    assert call in step.health.message


def test_a_collection_of_an_observed_catalog_is_shown_and_not_changed() -> None:
    step = rest(WATCHED)
    assert (step.health.phase, step.conditions) == (Phase.READY, ())
    assert step.fields is not None
    assert step.fields["collectionId"] == "c1"
    schedule = {"schedule": "@daily", "destination": "file:///x"}
    (condition,) = rest(replace(WATCHED, spec=spec(snapshotSchedule=schedule))).conditions
    assert (condition.status, condition.reason) == ("False", Reason.CATALOG_OBSERVED)
    mismatched = rest(replace(WATCHED, spec=spec(rendition={"shards": 3})))
    assert mismatched.health.reason is Reason.SCHEMA_MISMATCH


def test_a_collection_of_an_observed_catalog_is_never_dropped() -> None:
    step = decided(replace(WATCHED, deleting=True, spec=spec(deletionPolicy="Delete")))
    assert isinstance(step, Release)
    assert [each.reason for each in step.notes] == [Reason.DELETION_INCOMPLETE]


def test_first_the_item_then_the_collection_then_ready() -> None:
    assert decided(replace(FRESH, has_finalizer=False)) == Keep()


def test_nothing_else_is_shown_while_a_catalog_that_was_ready_is_opened_again() -> None:
    assert decided(replace(FRESH, catalog=CatalogState.OPENING)) == Wait(requeue_after=60.0)
    opening = replace(DOOMED, catalog=CatalogState.OPENING, catalog_open=False)
    assert isinstance(decided(opening), Settle)
    assert decided(FRESH) == EnsureItem(ITEM, SCHEMA, 2)
    assert decided(replace(THERE, facts=None)) == CreateCollection("c1", ITEM, SCHEMA, 2)
    step = rest(THERE)
    assert (step.health.phase, step.conditions) == (Phase.READY, ())
    assert step.fields == {
        "collectionId": "c1",
        "itemId": "u1",
        "since": 5,
        "upper": 90,
        "activeRendition": "r1",
        "shards": 2,
        "bytes": 3456,
        "renditions": [
            {
                "id": "r1",
                "phase": "Active",
                "shards": 2,
                "since": 5,
                "upper": 90,
                "rows": 12,
                "bytes": 3456,
            }
        ],
    }


@pytest.mark.parametrize(
    ("there", "asked", "changes"),
    [
        ({}, {"note": "free text"}, {"note": "free text"}),
        ({"note": "free text"}, {"note": "free text"}, None),
        ({"note": "free text"}, {"note": "another"}, {"note": "another"}),
        ({"note": "free text", "id": "what"}, {"note": "free text"}, {"id": None}),
        ({"id": "what"}, {"id": ""}, {"id": None}),
        ({}, {"id": ""}, None),
    ],
)
def test_columns_have_the_comments_of_the_spec_and_no_others(
    there: dict[str, str], asked: dict[str, str], changes: dict[str, str | None] | None
) -> None:
    columns = [{**column, "comment": asked.get(column["name"])} for column in COLUMNS]
    seen = replace(THERE, spec=spec(columns=columns), facts=replace(FACTS, comments=there))
    if changes is not None:
        assert decided(seen) == CommentColumns("c1", changes)
        seen = replace(seen, facts=replace(FACTS, comments={k: v for k, v in asked.items() if v}))
    assert rest(seen).health.phase is Phase.READY


def test_in_an_observed_catalog_comments_are_left_to_its_database_process() -> None:
    columns = [{**column, "comment": "mine"} for column in COLUMNS]
    step = rest(replace(WATCHED, spec=spec(columns=columns)))
    assert step.health.phase is Phase.READY
    assert (
        "its database process manages comments, retention and renditions, and drops it" in step.health.message
    )


def test_a_closed_frontier_is_told_in_words() -> None:
    step = rest(replace(THERE, facts=replace(FACTS, upper=CLOSED)))
    assert step.fields is not None
    assert step.fields["upper"] == "closed"


def test_without_a_key_all_columns_are_the_key() -> None:
    assert schema_of(spec(key=[])) == Schema.of(key={"id": "int64", "note": "string?"}, value={})


@pytest.mark.parametrize(
    ("seen", "phase", "reason", "names"),
    [
        (replace(FRESH, spec=None, problem="spec.y: bad"), Phase.STALLED, Reason.INVALID_SPEC, "spec.y"),
        (
            replace(FRESH, older_twin="StorageCollection ns/old"),
            Phase.STALLED,
            Reason.DUPLICATE_COLLECTION,
            "ns/old",
        ),
        (
            replace(FRESH, spec=spec(columns=[{"name": "id", "type": "decimal128(4,9)"}])),
            Phase.STALLED,
            Reason.INVALID_SCHEMA,
            "decimal128",
        ),
        (replace(FRESH, catalog=CatalogState.MISSING), Phase.STALLED, Reason.CATALOG_NOT_FOUND, "'demo'"),
        (replace(FRESH, catalog=CatalogState.DELETING), Phase.STALLED, Reason.CATALOG_DELETING, "'demo'"),
        (replace(FRESH, catalog=CatalogState.CLOSED), Phase.RECONCILING, Reason.CATALOG_NOT_READY, "'demo'"),
        (
            replace(THERE, spec=spec(key=["id", "note"])),
            Phase.STALLED,
            Reason.SCHEMA_MISMATCH,
            "note string?",
        ),
        (
            replace(THERE, facts=replace(FACTS, dropped=True)),
            Phase.STALLED,
            Reason.SCHEMA_MISMATCH,
            "was dropped",
        ),
    ],
)
def test_what_keeps_a_collection_from_being_ready(
    seen: CollectionView, phase: Phase, reason: Reason, names: str
) -> None:
    step = rest(seen)
    assert (step.health.phase, step.health.reason) == (phase, reason)
    assert names in step.health.message
    assert step.fields is None


def test_suspended_changes_nothing() -> None:
    assert rest(replace(FRESH, spec=spec(suspend=True))).health.phase is Phase.SUSPENDED


@pytest.mark.parametrize(("target", "due"), [(None, False), (5, False), (5 + 0, False), (50, True)])
def test_history_is_given_up_in_steps_that_are_worth_a_write(target: int | None, due: bool) -> None:
    step = decided(replace(THERE, retention_since=target))
    assert (step == Retain("c1", target or 0)) is due
    wide = replace(FACTS, since=0, upper=100_000)
    assert decided(replace(THERE, facts=wide, retention_since=400)) != Retain("c1", 400)
    assert decided(replace(THERE, facts=wide, retention_since=1000)) == Retain("c1", 1000)


def test_what_a_reader_needs_is_not_asked_for_again_and_again() -> None:
    """Or nothing else would be done; but when it has gone on, its history goes, also of what is idle."""
    data = replace(FACTS.renditions[0], oldest=5)
    needed = replace(FACTS, needed=5, renditions=(data,))
    assert rest(replace(THERE, facts=needed, retention_since=50)).health.phase is Phase.READY
    free = replace(needed, needed=CLOSED)
    assert decided(replace(THERE, facts=free, retention_since=50)) == Retain("c1", 50)
    moved = replace(free, since=50)
    assert decided(replace(THERE, facts=moved, retention_since=50)) == Retain("c1", 50)
    kept = replace(moved, renditions=(replace(data, needed=5),))
    assert rest(replace(THERE, facts=kept, retention_since=50)).health.phase is Phase.READY
    ended = replace(moved, renditions=(replace(data, oldest=29, upper=30),))
    assert rest(replace(THERE, facts=ended, retention_since=50)).health.phase is Phase.READY
    gone = replace(moved, renditions=(replace(data, oldest=50),))
    assert rest(replace(THERE, facts=gone, retention_since=50)).health.phase is Phase.READY


DELETING = replace(THERE, deleting=True, created=True)
DOOMED = replace(DELETING, spec=spec(deletionPolicy="Delete"))


def test_retain_leaves_everything() -> None:
    assert decided(DELETING) == Release()
    assert decided(replace(DELETING, catalog=CatalogState.MISSING, catalog_open=False)) == Release()
    assert (
        decided(replace(DELETING, catalog=CatalogState.CLOSED, catalog_open=False, facts=None)) == Release()
    )


SHOWN = ("attempt 3 of job j1",)
UNREAD = replace(DELETING, facts=None, catalog_open=False, shown_running=SHOWN)


@pytest.mark.parametrize("catalog", [CatalogState.CLOSED, CatalogState.OPENING, CatalogState.DELETING])
def test_retain_waits_for_the_catalog_only_where_an_attempt_is_shown_to_run_and_not_for_ever(
    catalog: CatalogState,
) -> None:
    unread = replace(UNREAD, catalog=catalog)
    waiting = rest(unread)
    assert (waiting.health.reason, waiting.requeue_after) == (Reason.WAITING_FOR_CATALOG, RHYTHM.unsteady)
    assert decided(replace(unread, shown_running=())) == Release()
    assert decided(replace(unread, catalog_void=True)) == Release()
    assert decided(replace(unread, older_twin="StorageCollection ns/old")) == Release()
    # There is a catalog, and no such collection in it.
    assert decided(replace(unread, catalog_open=True)) == Release()
    step = decided(replace(unread, deletion=Deletion(LIMIT, "no answer")))
    assert isinstance(step, Release)
    (note,) = step.notes
    assert (note.reason, note.warning) == (Reason.DELETION_INCOMPLETE, True)
    assert "of collection holdfast.public.flights could not be stopped" in note.message
    assert "attempt 3 of job j1" in note.message
    assert note.message.startswith("the catalog could not be written for 10 minutes (no answer)")


@pytest.mark.parametrize(
    "seen",
    [
        replace(UNREAD, catalog=CatalogState.MISSING),
        replace(UNREAD, catalog=CatalogState.OPEN, catalog_observed=True),
    ],
    ids=["missing", "observed"],
)
def test_retain_does_not_wait_where_nobody_can_end_an_attempt(seen: CollectionView) -> None:
    step = decided(seen)
    assert isinstance(step, Release)
    assert [note.reason for note in step.notes] == [Reason.DELETION_INCOMPLETE]


def test_delete_drops_in_reverse() -> None:
    assert decided(DOOMED) == DropCollection("c1")
    step = decided(replace(DOOMED, facts=replace(FACTS, dropped=True)))
    assert isinstance(step, Erase)
    assert step.collection_id == FACTS.collection_id
    assert step.resting is not None
    assert (step.resting.health.phase, step.resting.health.reason) == (Phase.RECONCILING, Reason.DELETING)
    assert decided(replace(DOOMED, facts=replace(FACTS, dropped=True, erased=True))) == DropItem(ITEM)
    assert decided(replace(DOOMED, facts=None)) == DropItem(ITEM)
    assert decided(replace(DOOMED, item_id=None, collection_id=None, facts=None)) == Release()


def test_delete_believes_the_store_and_not_the_status() -> None:
    silent = replace(DOOMED, created=False)
    assert decided(silent) == DropCollection("c1")
    assert decided(replace(silent, facts=None)) == DropItem(ITEM)
    closed = replace(silent, catalog=CatalogState.CLOSED, catalog_open=False)
    assert rest(closed).health.reason is Reason.WAITING_FOR_CATALOG
    assert rest(replace(closed, deletion=Deletion(LIMIT, "no"))).health.reason is Reason.WAITING_FOR_CATALOG
    step = decided(replace(closed, deletion=Deletion(asked=True)))
    assert isinstance(step, Release)
    assert [note.reason for note in step.notes] == [Reason.DELETION_INCOMPLETE]
    nowhere = (replace(closed, catalog_void=True), replace(closed, catalog=CatalogState.MISSING))
    assert [decided(seen) for seen in nowhere] == [Release(), Release()]


def test_delete_takes_nothing_of_others() -> None:
    assert decided(replace(DOOMED, older_twin="StorageCollection ns/old")) == Release()
    step = decided(replace(DOOMED, created=False, facts=replace(FACTS, shards=7)))
    assert isinstance(step, Release)
    assert "this resource did not create it" in step.notes[0].message


@pytest.mark.parametrize("kind", [SnapshotView, CompactionView])
@pytest.mark.parametrize("gone", [DELETING, DOOMED, replace(DELETING, catalog=CatalogState.MISSING)])
def test_attempts_of_spark_are_ended_before_a_collection_goes_whatever_becomes_of_its_data(
    kind: type[RequestedView], gone: CollectionView
) -> None:
    job = JobRecord("j1", "c1", kind.kind.job, "1", 3, JobState.RUNNING, by="spark")
    asked = kind(
        reachable=True, request=None, template=SparkTemplate(), collection_id="c1", since=5, upper=90
    )
    app = AppState("app-3", "uid-3", "j1", 3, AppPhase.PENDING, "", asked.now, kind.kind.job)
    ended = FailAttempt(kind.kind.job, "j1", 3, "the StorageCollection is being deleted", stopped=True)
    # Without an application too: its operator ended before the launch.
    assert decided(replace(gone, asked=(replace(asked, running=(job,)),))) == ended
    with_driver = replace(asked, running=(job,), apps=(app,))
    assert decided(replace(gone, asked=(with_driver,))) == replace(ended, app=app)
    over = replace(with_driver, apps=(replace(app, phase=AppPhase.FAILED),))
    assert decided(replace(gone, asked=(over,))) == ended
    left = replace(asked, apps=(app,))
    assert decided(replace(gone, asked=(left,))) == replace(ended, app=app)


def test_retain_ends_no_attempts_of_others() -> None:
    job = JobRecord("j1", "c1", "compact", "1", 3, JobState.RUNNING)
    of_spark = replace(job, by="spark")
    asked = CompactionView(
        reachable=True, request=None, template=SparkTemplate(), collection_id="c1", running=(job,)
    )
    assert decided(replace(DELETING, asked=(asked,))) == Release()
    asked = replace(asked, running=(of_spark,))
    # Never made by this resource, and otherwise than it asks for.
    strange = replace(DELETING, created=False, facts=replace(FACTS, shards=7), asked=(asked,))
    assert decided(strange) == Release()
    assert isinstance(decided(replace(strange, facts=FACTS)), FailAttempt)


def test_delete_waits_for_the_catalog_until_somebody_abandons_the_data() -> None:
    closed = replace(DOOMED, catalog=CatalogState.CLOSED, catalog_open=False)
    assert rest(closed).health.reason is Reason.WAITING_FOR_CATALOG
    missing = replace(closed, catalog=CatalogState.MISSING)
    assert rest(missing).health.reason is Reason.CATALOG_NOT_FOUND
    assert rest(missing).health.phase is Phase.STALLED
    # Where it can be tried it is tried first.
    assert decided(replace(DOOMED, deletion=Deletion(asked=True))) == DropCollection("c1")
    unread = replace(DOOMED, spec=None, problem="no such field", asks_to_delete=True)
    assert rest(unread).health.reason is Reason.INVALID_SPEC
    assert decided(replace(unread, created=False)) == Release()
    for lost in (
        replace(closed, deletion=Deletion(asked=True)),
        replace(missing, deletion=Deletion(asked=True)),
        replace(DOOMED, deletion=Deletion(0, "somebody reads it", asked=True)),
    ):
        step = decided(lost)
        assert isinstance(step, Release)
        assert [note.reason for note in step.notes] == [Reason.DELETION_INCOMPLETE]
        assert "holdfast.public.flights" in step.notes[0].message


def test_a_catalog_that_goes_too_is_still_there_to_be_cleaned() -> None:
    assert decided(replace(DOOMED, catalog=CatalogState.DELETING)) == DropCollection("c1")


def test_a_collection_is_kept_while_a_snapshot_of_it_may_start() -> None:
    assert not needs_finalizer(THERE)
    assert needs_finalizer(replace(THERE, has_waiting_snapshots=True))
