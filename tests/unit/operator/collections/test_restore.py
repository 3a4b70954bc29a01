"""`spec.restoreFrom` of a StorageCollection: the decision, and its effect in the store."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.collections import JobState, Recipe, RenditionState, StorageController
from holdfast.collections.hydration import HYDRATE
from holdfast.errors import CLOSED
from holdfast.ingest import IngestStep, ingest_source
from holdfast.persist import PersistClient, Schema
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.catalogs.facts import NotAllowed, Opening, RestoreFailed
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.collections import store
from holdfast_operator.collections.facts import (
    CatalogState,
    CollectionFacts,
    CollectionView,
    ItemName,
    RenditionFacts,
    Superseded,
)
from holdfast_operator.collections.item_definition import is_out_of_date, item_definition
from holdfast_operator.collections.plan import made_of, plan
from holdfast_operator.collections.renditions import is_long_over
from holdfast_operator.collections.restore import begins_with_snapshot
from holdfast_operator.collections.status import phase_of
from holdfast_operator.collections.steps import (
    AbortRendition,
    CreateCollection,
    CreateRendition,
    DropCollection,
    EnsureItem,
    Restore,
)
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.steps import Decision, Rhythm, Settle, ready
from holdfast_operator.places.bounds import Bounds
from holdfast_operator.places.storage import Storage
from testbed.minio import Minio
from unit.collections.snapshots import snapshot
from unit.ingest.snapshots import taken

SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string"})
COLUMNS = [{"name": "id", "type": "int64"}, {"name": "name", "type": "string"}]
URL, OTHER = "file:///volume/monday", "file:///volume/tuesday"
R1 = RenditionFacts("r1", 1, 0, 90, 12, 3456, hash_columns=("id",))


def spec(url: str | None = URL, /, **fields: Any) -> StorageCollectionSpec:
    asked = {} if url is None else {"restoreFrom": {"snapshot": url}}
    return StorageCollectionSpec.model_validate(
        {"catalogRef": {"name": "demo"}, "columns": COLUMNS, "key": ["id"], **asked, **fields}
    )


def facts(*renditions: RenditionFacts) -> CollectionFacts:
    (active,) = (each for each in renditions if each.state is RenditionState.HOLDING)
    return CollectionFacts(
        "c1",
        "holdfast.public.flights",
        SCHEMA,
        active.shards,
        dropped=False,
        upper=90,
        active_rendition=active.id,
        renditions=renditions,
    )


def decided(there: CollectionFacts, asked: StorageCollectionSpec, **fields: Any) -> Decision:
    shown = {each.id: phase_of(there, each).value for each in there.renditions}
    seen = CollectionView(
        **{
            "name": "flights",
            "spec": asked,
            "catalog": CatalogState.OPEN,
            "catalog_open": True,
            "item_id": "u1",
            "definition": item_definition(SCHEMA, there.shards),
            "collection_id": "c1",
            "facts": there,
            "shown": shown,
            **fields,
        }
    )
    return plan(seen, Rhythm(unsteady=2.0, steady=60.0))


def id_of(url: str) -> str:
    step = decided(facts(R1), spec(url))
    assert isinstance(step, Restore)
    assert step.snapshot == url
    return step.rendition_id


def filling(url: str = URL) -> RenditionFacts:
    return RenditionFacts(
        id_of(url), 1, state=RenditionState.HYDRATING, recipe=Recipe.RESTORED, held_from=CLOSED
    )


def done(url: str = URL) -> tuple[RenditionFacts, RenditionFacts]:
    """What was before, and what it was restored into."""
    held = replace(filling(url), state=RenditionState.HOLDING, held_from=50, upper=90, hash_columns=("id",))
    return replace(R1, state=RenditionState.RETIRED, held_to=50), held


def test_a_value_names_the_rendition_that_it_restores() -> None:
    assert id_of(URL) == id_of(URL)
    assert id_of(URL) != id_of(OTHER)
    # One that was begun is gone on with, one that was given up never is.
    step = decided(facts(R1, filling()), spec())
    assert isinstance(step, Restore)
    assert step.rendition_id == id_of(URL)
    aborted = replace(filling(), state=RenditionState.ABORTED, shards=0)
    step = decided(facts(R1, aborted), spec())
    assert isinstance(step, Restore)
    assert step.rendition_id == f"{id_of(URL)}-2"


def test_it_is_shown_first_and_leaves_only_the_room_that_there_is() -> None:
    step = decided(facts(R1), spec(), shown={})
    assert isinstance(step, Settle)
    assert (step.health.reason, step.requeue_after) == (Reason.RESTORING, 0.0)
    for there, most, room in ((facts(R1), 4000, 544), (facts(R1, filling()), 4000, None)):
        step = decided(there, spec(maxBytes=most))
        assert isinstance(step, Restore)
        assert step.room == room
        assert step.resting is not None
        assert step.resting.health.reason is Reason.RESTORING
        assert not is_long_over(there, spec())


@pytest.mark.parametrize("asked", [spec(None), spec(OTHER)], ids=["removed", "another"])
def test_what_nobody_asks_for_any_more_is_given_up(asked: StorageCollectionSpec) -> None:
    assert decided(facts(R1, filling()), asked) == AbortRendition("c1", id_of(URL))


def test_it_happens_once_and_another_value_restores_again() -> None:
    before, held = done()
    there = facts(before, held)
    for each in (spec(), spec(None)):
        step = decided(there, each)
        assert isinstance(step, Settle)
        assert step.health.phase is Phase.READY
        assert is_long_over(there, each)
    assert decided(there, spec(rendition={"shards": 3})) == CreateRendition(
        "c1", "spec-3", 3, (), Recipe.COPY
    )
    step = decided(there, spec(OTHER))
    assert isinstance(step, Restore)
    assert step.rendition_id == id_of(OTHER)
    later = replace(
        filling(OTHER), state=RenditionState.HOLDING, held_from=70, upper=90, hash_columns=("id",)
    )
    for state in (RenditionState.RETIRED, RenditionState.DROPPED):
        over = facts(replace(held, state=state, held_to=70), later)
        assert isinstance(decided(over, spec()), Settle)


def test_the_status_and_one_event_tell_of_it() -> None:
    there = facts(*done())
    step = decided(there, spec(), shown={"r1": "Active", id_of(URL): "Hydrating"})
    assert isinstance(step, Settle)
    assert step.fields is not None
    assert step.fields["restore"] == {"snapshot": URL, "rendition": id_of(URL), "at": 50}
    assert [note.reason for note in step.notes] == [Reason.HYDRATED, Reason.HANDED_OVER, Reason.RESTORED]
    # Nobody saw it begin; it was told before; there is no status to tell what was told.
    for shown, told in (({"r1": "Active"}, 1), ({"r1": "Retiring", id_of(URL): "Active"}, 0), ({}, 0)):
        step = decided(there, spec(), shown=shown)
        assert isinstance(step, Settle)
        assert [note.reason for note in step.notes].count(Reason.RESTORED) == told
    step = decided(there, spec(None))
    assert isinstance(step, Settle)
    assert step.fields is not None
    assert "restore" not in step.fields


def test_how_far_the_collection_has_come_meanwhile_does_not_matter() -> None:
    there = replace(facts(R1), upper=10_000_000)
    assert phase_of(there, filling()) == "Hydrating"
    assert phase_of(there, replace(filling(), upper=1)) == "CaughtUp"
    assert phase_of(replace(there, upper=0), filling()) == "Hydrating"


def test_in_an_observed_catalog_nothing_is_restored() -> None:
    step = decided(facts(R1), spec(), catalog_open=False, catalog_observed=True)
    assert isinstance(step, Settle)
    assert [(condition.type, condition.reason) for condition in step.conditions] == [
        (ConditionType.RESTORED, Reason.CATALOG_OBSERVED)
    ]


def test_the_item_follows_the_collection_and_what_others_wrote_is_left() -> None:
    old = item_definition(Schema.of(key={"id": "int64"}), 1)
    item = ItemName("holdfast", "public", "flights")
    assert decided(facts(R1), spec(None), definition=old) == EnsureItem(item, SCHEMA, 1)
    other = replace(R1, shards=4)
    rendition = {"shards": 4}
    step = decided(facts(other), spec(None, rendition=rendition), definition=item_definition(SCHEMA, 1))
    assert step == EnsureItem(item, SCHEMA, 4)
    for kept in ("", "CREATE TABLE flights", "[]", '{"key":[]}', item_definition(SCHEMA, 1)):
        assert not is_out_of_date(kept, SCHEMA, 1)
        assert isinstance(decided(facts(R1), spec(None), definition=kept), Settle)


@pytest.mark.parametrize(("rows", "long"), [(12, False), (20_000_000, True)])
def test_what_one_process_copies_for_long_says_so(rows: int, long: bool) -> None:
    copy = RenditionFacts("spec-2", 3, state=RenditionState.HYDRATING, held_from=CLOSED, hash_columns=("id",))
    there = facts(replace(R1, rows=rows), copy)
    step = decided(there, spec(None, rendition={"shards": 3}), shown={"r1": "Active"})
    assert isinstance(step, Settle)
    assert step.health.reason is Reason.HYDRATING_RENDITION
    assert ("the operator's own process copies all" in step.health.message) is long


# In a store:

ORGANIZATION = "11111111-2222-3333-4444-555555555555"
NAME = ItemName("holdfast", "public", "flights")


def restored(
    catalog: OpenCatalog,
    collection: str,
    rendition: str,
    snapshot: str,
    *,
    bounds: Bounds,
    room: int | None,
    stopped: Callable[[], bool],
) -> None:
    step = Restore(collection, rendition, ready(""), snapshot=snapshot, room=room)
    store.restore(catalog, step, stopped, bounds)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[OpenCatalog, str, StorageController]]:
    """A catalog, the id of a collection with three rows, and the controller of an application."""
    storage = Storage(url=f"file://{tmp_path}/store")
    catalog = OpenCatalog.open(Opening(storage, ORGANIZATION, 0, "default", (), "operator", "test"))
    with ExitStack() as stack:
        stack.callback(catalog.close)
        store.take(catalog, EnsureItem(NAME, SCHEMA, 1))
        collection = store.look(catalog, NAME).collection_id
        assert collection is not None
        store.take(catalog, CreateCollection(collection, NAME, SCHEMA, 2))
        client = stack.enter_context(PersistClient.open(storage.url))
        controller = stack.enter_context(StorageController(client))
        rows = [{"id": number, "name": "before"} for number in range(3)]
        controller.writer(collection, purpose="test").append(rows, 0, 10)
        yield catalog, collection, controller


def contents(controller: StorageController, collection: str) -> list[tuple[int, str]]:
    with controller.reader(collection, purpose="test") as reader:
        rows = reader.snapshot().to_table().to_pylist()
    return sorted((row["id"], row["name"]) for row in rows for _ in range(row["_diff"]))


def never() -> bool:
    return False


def test_a_snapshot_is_restored_once_whatever_is_written_later(
    opened: tuple[OpenCatalog, str, StorageController], tmp_path: Path
) -> None:
    catalog, collection, controller = opened
    rows = [(7, "kept"), (8, "kept")]
    snapshot(tmp_path / "monday", rows, SCHEMA)
    url, bounds = (tmp_path / "monday").as_uri(), Bounds("ns", None, (tmp_path.as_uri(),))

    def restore(*, stopped: Callable[[], bool] = never) -> None:
        restored(
            catalog,
            collection,
            "spec-restore-1",
            url,
            bounds=bounds,
            room=None,
            stopped=stopped,
        )

    with pytest.raises(Superseded, match="given up after"):
        restore(stopped=lambda: True)
    assert len(contents(controller, collection)) == 3
    restore()
    assert contents(controller, collection) == rows
    held = controller.describe(collection).holding
    assert (held.id, bool(held.difference_shard)) == ("spec-restore-1", True)
    writer = controller.writer(collection, purpose="test")
    upper = writer.upper()
    writer.append([{"id": 9, "name": "new"}], upper, upper + 1)
    restore()
    assert contents(controller, collection) == [*rows, (9, "new")]


def test_what_can_not_be_restored_is_told_in_a_line_and_changes_nothing(
    opened: tuple[OpenCatalog, str, StorageController], tmp_path: Path
) -> None:
    catalog, collection, controller = opened
    volume = tmp_path / "volume" / "ns"
    bounds = Bounds("ns", volume.parent)
    rows = [(1, "a"), (2, "b")]
    snapshot(volume / "good", rows, SCHEMA)
    snapshot(tmp_path / "elsewhere", rows, SCHEMA)
    snapshot(volume / "foreign", rows, Schema.of(key={"id": "int64"}, value={"name": "string", "x": "int8?"}))
    snapshot(volume / "torn", rows, SCHEMA)
    part = volume / "torn" / "part-0.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    snapshot(volume / "lost", rows, SCHEMA)
    (volume / "lost" / "part-1.parquet").unlink()
    snapshot(volume / "odd", rows, SCHEMA)
    (volume / "odd" / "_manifest.json").write_text("{")
    (volume / "link").symlink_to(tmp_path / "elsewhere")
    (volume / "empty").mkdir()
    for name, room, says in (
        ("good", 10, "spec.maxBytes leaves only 10"),
        ("missing", None, "there is no"),
        ("empty", None, "never finished"),
        ("foreign", None, "does not fit collection"),
        ("torn", None, "part-0.parquet"),
        ("lost", None, "part-1.parquet"),
        ("odd", None, "not a snapshot manifest"),
    ):
        with pytest.raises(RestoreFailed, match=says) as failed:
            restored(
                catalog,
                collection,
                "spec-restore-1",
                f"file://{volume}/{name}",
                bounds=bounds,
                room=room,
                stopped=never,
            )
        assert "\n" not in str(failed.value)
    for url, within, says in (
        (f"file://{volume}/../../elsewhere", bounds, "a file that this operator doesn.t read"),
        (f"file://{volume}/link", bounds, "a file that this operator doesn.t read"),
        (f"file://{volume}/good", Bounds("ns"), "it has to be in s3://"),
        (
            f"file://{volume}/good",
            Bounds("evil", volume.parent),
            "this namespace has only what is below .*evil;",
        ),
    ):
        with pytest.raises(NotAllowed, match=says) as refused:
            restored(catalog, collection, "spec-restore-1", url, bounds=within, room=None, stopped=never)
        assert settled(refused.value).health.reason is Reason.LOCATION_NOT_ALLOWED
    assert [each.id for each in controller.describe(collection).renditions] == ["r1"]
    assert len(contents(controller, collection)) == 3
    restored(
        catalog,
        collection,
        "spec-restore-1",
        f"file://{volume}/good",
        bounds=bounds,
        room=1 << 20,
        stopped=never,
    )
    assert contents(controller, collection) == rows


def fed_snapshot(folder: Path, number: int, **block: Any) -> dict[str, Any]:
    """A snapshot of a collection that a folder feeds: of one file out of two. Returns the block."""
    inbox = folder / "in"
    inbox.mkdir()
    source = {"files": {"path": str(inbox)}, "format": {"json": {}}, **block}
    (inbox / "1.jsonl").write_text(json.dumps({"id": number, "name": "first"}))
    ingest_source(f"file://{folder}/other", "orders", source, schema=SCHEMA, once=True)
    with PersistClient.open(f"file://{folder}/other") as client:
        taken(client, folder / "made")
    (inbox / "2.jsonl").write_text(json.dumps({"id": number + 1, "name": "second"}))
    return source


def test_a_collection_with_a_source_begins_with_a_snapshot_and_is_fed_on(tmp_path: Path) -> None:
    source = fed_snapshot(tmp_path, 7)
    url, asked = (tmp_path / "made").as_uri(), spec((tmp_path / "made").as_uri(), source=source)
    storage = Storage(url=f"file://{tmp_path}/store")
    catalog = OpenCatalog.open(Opening(storage, ORGANIZATION, 0, "default", (), "operator", "test"))
    with ExitStack() as stack:
        stack.callback(catalog.close)
        store.take(catalog, EnsureItem(NAME, SCHEMA, 1))
        collection = store.look(catalog, NAME).collection_id
        assert collection is not None
        store.take(catalog, CreateCollection(collection, NAME, SCHEMA, 1, made_of(asked)))
        look = store.look(catalog, NAME).facts
        assert look is not None
        assert begins_with_snapshot(look, asked)
        assert not begins_with_snapshot(look, spec(None, source=source))
        bounds = Bounds("ns", None, (tmp_path.as_uri(),))
        id_ = id_of(url)
        restored(catalog, collection, id_, url, bounds=bounds, room=None, stopped=never)
        look = store.look(catalog, NAME).facts
        assert look is not None
        assert (look.active_rendition, look.fed) == (id_, True)
        assert not begins_with_snapshot(look, asked)
        # The positions came with the rows: only the second file is read.
        steps: list[IngestStep] = []
        ingest_source(storage.url, collection, source, once=True, on_step=steps.append)
        assert sum(step.messages for step in steps) == 1
        with PersistClient.open(storage.url) as client, StorageController(client) as controller:
            assert contents(controller, collection) == [(7, "first"), (8, "second")]
        # The difference of the handover is complete for ever, and says nothing about the source.
        progress = store.progress(catalog, collection)
        assert progress is not None
        assert (progress.messages, len(progress.positions)) == (2, 2)


def test_a_snapshot_of_another_format_is_refused_before_anything_changes(tmp_path: Path) -> None:
    source = fed_snapshot(tmp_path, 7)
    asked = spec(source={**source, "envelope": "Upsert"})
    storage = Storage(url=f"file://{tmp_path}/store")
    catalog = OpenCatalog.open(Opening(storage, ORGANIZATION, 0, "default", (), "operator", "test"))
    with ExitStack() as stack:
        stack.callback(catalog.close)
        store.take(catalog, EnsureItem(NAME, SCHEMA, 1))
        collection = store.look(catalog, NAME).collection_id
        assert collection is not None
        store.take(catalog, CreateCollection(collection, NAME, SCHEMA, 1, made_of(asked)))
        bounds, url = Bounds("ns", None, (tmp_path.as_uri(),)), (tmp_path / "made").as_uri()
        with pytest.raises(
            RestoreFailed, match=r"made with envelope None, .* and the spec has envelope Upsert"
        ):
            restored(catalog, collection, "spec-restore-1", url, bounds=bounds, room=None, stopped=never)
        look = store.look(catalog, NAME).facts
        assert look is not None
        assert [each.id for each in look.renditions] == ["r1"]


@pytest.mark.s3
def test_a_snapshot_in_a_bucket_is_restored_where_catalogs_may_be(
    opened: tuple[OpenCatalog, str, StorageController], tmp_path: Path, minio: Minio, bucket: str
) -> None:
    catalog, collection, controller = opened
    rows = [(7, "kept"), (8, "kept")]
    snapshot(tmp_path / "made", rows, SCHEMA)
    for path in (tmp_path / "made").iterdir():
        minio.client.upload_file(str(path), bucket, f"backups/monday/{path.name}")
    service = f"endpoint={minio.endpoint}"

    def restore(url: str, *places: str) -> None:
        restored(
            catalog,
            collection,
            "spec-restore-1",
            url,
            bounds=Bounds("ns", None, places),
            room=None,
            stopped=never,
        )

    monday = f"s3://{bucket}/backups/monday?{service}"
    for url, place, says in (
        (
            monday,
            f"s3://{bucket}/catalogs?{service}",
            "outside of where this operator may keep",
        ),
        (
            f"s3://{bucket}/catalogs/../backups/monday?{service}",
            f"s3://{bucket}/catalogs?{service}",
            "outside of where this operator may keep",
        ),
        (f"s3://{bucket}/backups/tuesday?{service}", f"s3://{bucket}?{service}", "never finished"),
        (f"s3://no-such-bucket/monday?{service}", f"s3://no-such-bucket?{service}", "there is no S3 bucket"),
    ):
        with pytest.raises((RestoreFailed, NotAllowed), match=says) as failed:
            restore(url, place)
        assert "\n" not in str(failed.value)
    assert len(contents(controller, collection)) == 3
    restore(monday, "file:///elsewhere", f"s3://{bucket}/backups?{service}")
    assert contents(controller, collection) == rows


def test_a_rendition_that_somebody_gives_up_meanwhile_is_no_fault_of_the_spec(
    opened: tuple[OpenCatalog, str, StorageController],
) -> None:
    catalog, collection, controller = opened
    store.take(catalog, CreateRendition(collection, "spec-2", 3, (), Recipe.COPY))

    def aborted() -> bool:
        controller.renditions.abort(collection, "spec-2")
        return False

    with pytest.raises(Superseded, match="ABORTED"):
        store.hydrate(catalog, collection, "spec-2", aborted)
    with pytest.raises(Superseded):
        store.hand_over(catalog, collection, "spec-2", None, lambda: False)
    (job,) = (job for job in controller.jobs(collection) if job.kind == HYDRATE)
    assert (job.state, "ABORTED" in job.error) == (JobState.FAILED, True)


@pytest.mark.parametrize("end", ["abort", "drop"])
def test_a_job_that_was_left_ends_with_what_it_was_for(
    opened: tuple[OpenCatalog, str, StorageController], end: str
) -> None:
    """An operator was killed while it filled a rendition."""
    catalog, collection, controller = opened
    store.take(catalog, CreateRendition(collection, "spec-2", 3, (), Recipe.COPY))
    left = controller.start_job(collection, HYDRATE, "spec-2", spec={})
    if end == "abort":
        store.take(catalog, AbortRendition(collection, "spec-2"))
    else:
        store.take(catalog, DropCollection(collection))
        look = store.look(catalog, NAME).facts
        assert look is not None
        assert look.dropped
        assert is_long_over(look, spec(None))
    known = controller.job(left.job_id)
    assert known is not None
    assert known.state is JobState.FAILED


def test_who_listens_through_a_handover_is_spared_the_comparison(
    opened: tuple[OpenCatalog, str, StorageController],
) -> None:
    catalog, collection, controller = opened
    store.take(catalog, CreateRendition(collection, "spec-2", 3, (), Recipe.COPY))
    store.hydrate(catalog, collection, "spec-2", never)
    store.hand_over(catalog, collection, "spec-2", None, never)
    assert not controller.describe(collection).holding.difference_shard
    store.take(catalog, CreateRendition(collection, "spec-3", 3, (), Recipe.SOURCE))
    source = controller.rendition_writer(collection, "spec-3", purpose="test")
    source.append([{"id": 7, "name": "other"}], 0, 10)
    store.hand_over(catalog, collection, "spec-3", None, never)
    source.seal(controller.describe(collection).holding.held_from + 1)
    store.hand_over(catalog, collection, "spec-3", None, never)
    made = controller.describe(collection).holding.difference_shard
    assert made
    store.hand_over(catalog, collection, "spec-3", None, never)
    assert controller.describe(collection).holding.difference_shard == made


def test_a_restored_rendition_that_a_pipeline_feeds_fits_a_spec_with_recipe_source() -> None:
    source = spec(None, rendition={"shards": 1, "recipe": "Source"})
    made = replace(R1, id="r2", recipe=Recipe.RESTORED)
    assert isinstance(decided(facts(replace(made, is_fed=True)), source), Settle)
    assert isinstance(decided(facts(made), source), CreateRendition)
