"""An open catalog of the operator and its successor: what the first does after it was fenced."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.catalog import catalog_shard_id
from holdfast.collections import CollectionState, JobState, StorageController
from holdfast.errors import CollectionInUse, Fenced, ShardFinalized
from holdfast.persist import Clock, PersistClient, Schema
from holdfast_operator.api.names import Reason
from holdfast_operator.catalogs.facts import NothingThere, Opening
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.collections import store
from holdfast_operator.collections.facts import ItemName
from holdfast_operator.collections.steps import CreateCollection, DropCollection, EnsureItem, Erase, Retain
from holdfast_operator.engine.steps import reconciling
from holdfast_operator.jobs.steps import ForgetRuns, RetryJob, StartJob
from holdfast_operator.places.bounds import Bounds
from holdfast_operator.places.storage import Storage

ORGANIZATION = "11111111-2222-3333-4444-555555555555"
NAME = ItemName("holdfast", "public", "flights")
SCHEMA = Schema.of(key={"id": "int64"}, value={})
OTHER = "00000000-0000-5000-8000-000000000001"
Open = Callable[..., OpenCatalog]


@pytest.fixture
def open_catalog(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def opened(holder: str, *, existing_only: bool = False) -> OpenCatalog:
            storage = Storage(url=f"file://{tmp_path}/store")
            opening = Opening(storage, ORGANIZATION, 0, "default", (), holder, "test", existing_only)
            catalog = OpenCatalog.open(opening)
            stack.callback(catalog.close)
            return catalog

        yield opened


def created(catalog: OpenCatalog) -> tuple[str, str]:
    """The collection's id and that of a running job."""
    store.take(catalog, EnsureItem(NAME, SCHEMA, 1))
    collection_id = store.look(catalog, NAME).collection_id
    assert collection_id is not None
    store.take(catalog, CreateCollection(collection_id, NAME, SCHEMA, 1))
    return collection_id, store.start(catalog, StartJob(collection_id, "snapshot", "1", {}, 1)).job_id


COMMANDS: dict[str, Callable[[OpenCatalog, str, str], object]] = {
    "create": lambda c, _, __: store.take(
        c, CreateCollection(OTHER, ItemName("holdfast", "public", "x"), SCHEMA, 1)
    ),
    "drop": lambda c, collection, _: store.take(c, DropCollection(collection)),
    "retain": lambda c, collection, _: store.take(c, Retain(collection, 0)),
    "start snapshot": lambda c, collection, _: store.start(c, StartJob(collection, "snapshot", "2", {}, 1)),
    "retry job": lambda c, collection, job: store.start(c, RetryJob(collection, job, 1)),
    "fail job": lambda c, _, job: store.fail_job(c, job, 1, "no"),
    "forget jobs": lambda c, _, job: store.take(c, ForgetRuns((job,))),
    "destroy": lambda c, _, __: c.destroy(),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_fenced_operator_commands_nothing(
    open_catalog: Open, command: Callable[[OpenCatalog, str, str], object]
) -> None:
    first = open_catalog("first")
    collection_id, job = created(first)
    second = open_catalog("second")
    with pytest.raises(Fenced, match="epoch 2"):
        command(first, collection_id, job)
    look = store.look(second, NAME)
    assert look.facts is not None
    assert not look.facts.dropped
    assert [(job.slot, job.state, job.attempt) for job in look.jobs] == [("1", JobState.RUNNING, 1)]
    assert second.confirm().epoch == 2


def test_an_attempt_that_has_ended_is_not_failed_and_nobody_is_fenced(open_catalog: Open) -> None:
    catalog = open_catalog("first")
    collection_id, job = created(catalog)
    storage = catalog.opening.storage
    with PersistClient.open(storage.url) as client:
        StorageController(client).finish_job(job, 1, {"rows": 0})
    store.fail_job(catalog, job, 1, "late")
    assert [(job.slot, job.state) for job in store.look(catalog, NAME).jobs] == [("1", JobState.DONE)]
    store.take(catalog, DropCollection(collection_id))
    with PersistClient.open(storage.url) as client:
        assert StorageController(client).describe(collection_id).state is CollectionState.DROPPED


def test_a_drop_that_waits_for_a_reader_is_not_done(open_catalog: Open) -> None:
    catalog = open_catalog("first")
    collection_id, job = created(catalog)
    store.fail_job(catalog, job, 1, "over")
    with PersistClient.open(catalog.opening.storage.url) as client:
        reader = StorageController(client).reader(collection_id, purpose="a report")
        for _ in range(2):
            with pytest.raises(CollectionInUse, match="a report"):
                store.take(catalog, DropCollection(collection_id))
            facts = store.look(catalog, NAME).facts
            assert facts is not None
            assert not facts.dropped
        reader.close()
    store.take(catalog, DropCollection(collection_id))
    facts = store.look(catalog, NAME).facts
    assert facts is not None
    assert facts.dropped


def test_no_job_keeps_what_the_operator_drops(open_catalog: Open) -> None:
    """Whoever started it: nobody else would end one whose process was killed."""
    catalog = open_catalog("first")
    collection_id, job = created(catalog)
    with PersistClient.open(catalog.opening.storage.url) as client:
        controller = StorageController(client)
        own = controller.start_job(collection_id, "report", "1", spec={})
        with pytest.raises(CollectionInUse, match="report 1, attempt 1"):
            controller.drop_collection(collection_id)
        store.take(catalog, DropCollection(collection_id))
        for id_ in (job, own.job_id):
            ended = controller.job(id_)
            assert ended is not None
            assert (ended.state, ended.failures) == (JobState.FAILED, 0)
        assert controller.describe(collection_id).state is CollectionState.DROPPED


def test_what_was_destroyed_is_destroyed(open_catalog: Open) -> None:
    catalog = open_catalog("first")
    client = catalog.client
    catalog.destroy()
    catalog.destroy()
    with pytest.raises(ShardFinalized):
        open_catalog("second")
    assert client.is_erased(catalog_shard_id(ORGANIZATION))


def test_a_deletion_that_was_killed_before_the_data_was_gone_goes_on(open_catalog: Open) -> None:
    catalog = open_catalog("first")
    client, shard = catalog.client, catalog_shard_id(ORGANIZATION)
    client.finalize(shard)
    with pytest.raises(ShardFinalized):
        open_catalog("second", existing_only=True)
    assert client.is_erased(shard)


def test_the_data_of_a_dropped_collection_is_deleted_before_its_item(open_catalog: Open) -> None:
    catalog = open_catalog("first")
    collection_id, _ = created(catalog)
    store.take(catalog, DropCollection(collection_id))
    facts = store.look(catalog, NAME).facts
    assert facts is not None
    assert (facts.dropped, facts.erased) == (True, False)
    health = reconciling(Reason.DELETING, "its data is being deleted")
    store.take_long(catalog, Erase(collection_id, "", health), lambda: False, Bounds("demo", None, ()))
    facts = store.look(catalog, NAME).facts
    assert facts is not None
    assert (facts.dropped, facts.erased) == (True, True)
    assert store.look(catalog, NAME).item_id is not None


def test_nothing_is_made_where_only_what_exists_is_asked_for(open_catalog: Open) -> None:
    with pytest.raises(NothingThere, match=ORGANIZATION):
        open_catalog("first", existing_only=True)
    assert open_catalog("first").confirm().epoch == 1
    assert open_catalog("second", existing_only=True).confirm().epoch == 2


def test_how_far_a_fast_clock_is_ahead_of_the_store(
    open_catalog: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = open_catalog("first")
    created(catalog)
    assert store.look(catalog, NAME).ahead_ms == 0
    hour = timedelta(hours=1).total_seconds()
    monkeypatch.setattr(Clock, "wall_ms", lambda _: int((time.time() + hour) * 1000))
    assert store.look(catalog, NAME).ahead_ms == pytest.approx(hour * 1000, abs=10_000)
