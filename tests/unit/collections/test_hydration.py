"""Hydration in process: one attempt commits the contents, whatever happens to the others."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from holdfast.errors import BadInput, CorruptBlob, Fenced, HandleExpired, StorageError
from holdfast.persist import StoredSize
from holdfast.persist.storage.faults import Fault, FaultPlan, Operation, ProcessDeath, ScriptedPlan
from holdfast.storage import (
    CollectionWriter,
    JobState,
    RenditionInfo,
    StorageController,
    bringing,
    job_id,
    needs_spark,
)
from unit.collections.stores import SPEC, Row, Stores, counted, updates

ROWS = [(number, "x" * 40 + str(number), number % 10, 1) for number in range(300)]
JOB = job_id("c1", "hydrate", "r2")


@pytest.fixture
def stores() -> Stores:
    stores = Stores()
    controller = StorageController(stores.open())
    controller.create_collection(SPEC)
    writer = controller.writer("flights", purpose="test")
    writer.append(updates(ROWS), 0, 20)
    controller.renditions.create("flights", shards=2)
    return stores


@pytest.fixture
def controller(stores: Stores) -> StorageController:
    return opened(stores)


def opened(stores: Stores, plan: FaultPlan | None = None) -> StorageController:
    """A process whose uploads are blobs, so that something is lost where they are."""
    return StorageController(stores.open(plan, inline_max_bytes=0))


def writer_of(controller: StorageController) -> CollectionWriter:
    return controller.writer("flights", purpose="test")


def contents(controller: StorageController, rendition_id: str, as_of: int) -> Counter[Row]:
    """What is in the shards of a rendition."""
    found: Counter[Row] = Counter()
    for shard in controller.describe("flights").rendition(rendition_id).shards:
        with controller.client.reader(shard, purpose="look") as reader:
            found.update(counted(reader.snapshot(as_of).to_table()))
    return found


class Meanwhile:
    """Lets something happen before the first step of several shards, and counts r2's parts."""

    def __init__(self, stores: Stores, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action
        self.shards = made(StorageController(stores.open())).shards
        self.parts = 0
        self.deleted = 0

    def decide(self, operation: Operation) -> Fault:
        action = self.action
        if "/w" in operation.keys[0] and operation.keys[0].startswith(self.shards):
            self.parts += operation.name == "blob.put"
            self.deleted += operation.name == "blob.delete"
        if action is not None and operation.writes and len(operation.keys) > 1:
            self.action = None
            action()
        return Fault.NONE


def holds(controller: StorageController) -> set[str]:
    """Who holds the collection's metadata."""
    return {
        hold.purpose for hold in controller.client.inspect(controller.describe("c1").metadata_shard).holds
    }


def test_a_hydration_is_a_job_that_brings_all_and_tells_how_far_it_is(controller: StorageController) -> None:
    told: list[tuple[int, int]] = []
    assert controller.hydrate("flights", "r2", progress=lambda done, total: told.append((done, total))) == 20
    assert contents(controller, "r2", 19) == counted(updates(ROWS))
    assert told[0] == (0, 300)
    assert told[-1] == (300, 300)
    assert told == sorted(told)
    job = controller.job(JOB)
    assert job is not None
    assert (job.state, job.attempt, job.result) == (JobState.DONE, 1, {"upper": 20, "rows": 300})
    # Again it only catches up.
    writer_of(controller).append(updates([(1, "late", 20, 1), (0, ROWS[0][1], 25, -1)]), 20, 30)
    assert controller.hydrate("flights", "r2") == 30
    assert contents(controller, "r2", 29) == counted(updates([*ROWS[1:], (1, "late", 20, 1)]))
    assert controller.renditions.hand_over("flights", "r2").id == "r2"
    with pytest.raises(BadInput):
        controller.hydrate("flights", "r2")


def test_another_command_meanwhile_does_not_cost_the_uploads(stores: Stores) -> None:
    plan = Meanwhile(
        stores, lambda: StorageController(stores.open()).start_job("other", "snapshot", "1", spec={})
    )
    controller = opened(stores, plan)
    assert controller.hydrate("flights", "r2") == 20
    assert plan.action is None
    assert contents(controller, "r2", 19) == counted(updates(ROWS))
    assert (plan.parts, plan.deleted) == (2, 0)


def test_of_two_drivers_the_later_one_takes_over(stores: Stores) -> None:
    plan = Meanwhile(stores, lambda: opened(stores).hydrate("flights", "r2"))
    zombie = opened(stores, plan)
    # It is fenced, and sees that the other one has done it.
    assert zombie.hydrate("flights", "r2") == 20
    assert plan.action is None
    assert plan.deleted == 2
    assert contents(zombie, "r2", 19) == counted(updates(ROWS))
    job = zombie.job(JOB)
    assert job is not None
    assert (job.state, job.attempt) == (JobState.DONE, 2)


def test_a_driver_whose_place_was_taken_is_fenced(stores: Stores) -> None:
    plan = Meanwhile(stores, lambda: StorageController(stores.open()).retry_job(JOB, abandoned=1))
    controller = opened(stores, plan)
    with pytest.raises(Fenced):
        controller.hydrate("flights", "r2")
    assert contents(controller, "r1", 19) == counted(updates(ROWS))
    assert {controller.client.inspect(shard).upper for shard in made(controller).shards} == {0}
    assert controller.hydrate("flights", "r2") == 20


def made(controller: StorageController) -> RenditionInfo:
    return controller.describe("flights").rendition("r2")


def test_one_that_brought_something_by_hand_is_not_in_the_way(stores: Stores) -> None:
    plan = Meanwhile(stores, lambda: StorageController(stores.open()).renditions.catch_up("flights", "r2"))
    controller = opened(stores, plan)
    assert controller.hydrate("flights", "r2") == 20
    assert plan.action is None
    assert contents(controller, "r2", 19) == counted(updates(ROWS))


def test_an_abort_meanwhile_ends_it_with_that_reason(stores: Stores) -> None:
    plan = Meanwhile(stores, lambda: StorageController(stores.open()).renditions.abort("flights", "r2"))
    controller = opened(stores, plan)
    with pytest.raises(BadInput, match="r2 of collection flights is ABORTED"):
        controller.hydrate("flights", "r2")
    job = controller.job(JOB)
    assert job is not None
    assert job.state is JobState.FAILED
    assert "ABORTED" in job.error
    assert holds(controller) == {"retention"}


def test_what_can_not_be_read_fails_with_the_reason_on_record(
    stores: Stores, controller: StorageController
) -> None:
    writer = StorageController(stores.open(inline_max_bytes=0)).writer("flights", purpose="blobs")
    writer.append(updates([(1000, "blob", 20, 1)]), 20, 21)
    (key,) = [meta.key for meta in stores.blob.list("") if "/w" in meta.key]
    data = stores.blob.get(key)
    assert data is not None
    stores.blob.delete(key)
    stores.blob.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    for attempt in (1, 2):
        with pytest.raises(CorruptBlob):
            controller.hydrate("flights", "r2")
        job = controller.job(JOB)
        assert job is not None
        assert (job.state, job.attempt) == (JobState.FAILED, attempt)
        assert key in job.error
    stores.blob.delete(key)
    stores.blob.put(key, data)
    assert opened(stores).hydrate("flights", "r2") == 21
    assert contents(controller, "r2", 20) == counted(updates([*ROWS, (1000, "blob", 20, 1)]))


@pytest.mark.parametrize("fault", [Fault.DEATH_BEFORE, Fault.DEATH_AFTER, Fault.INDETERMINATE_AFTER])
def test_death_and_doubt_at_every_write(fault: Fault) -> None:
    for number in range(100):
        stores = Stores()
        controller = StorageController(stores.open())
        controller.create_collection(SPEC)
        writer_of(controller).append(updates(ROWS), 0, 20)
        controller.renditions.create("flights", shards=2)
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        with suppress(StorageError, HandleExpired, ProcessDeath):
            opened(stores, plan).hydrate("flights", "r2")
        writer_of(controller).append(updates([(1, "late", 20, 1)]), 20, 30)
        assert opened(stores).hydrate("flights", "r2") == 30
        assert contents(controller, "r2", 29) == counted(updates([*ROWS, (1, "late", 20, 1)]))
        if plan.seen <= number:
            return
    raise AssertionError("the work never ends")


def test_many_changes_are_brought_from_two_snapshots(
    controller: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.hydrate("flights", "r2")
    listened = controller.renditions.create("flights", shards=3)
    controller.renditions.catch_up("flights", listened.id)
    late = [(0, ROWS[0][1], 25, -1), (500, "in", 21, 1), (500, "in", 29, -1), (501, "twice", 22, 2)]
    writer_of(controller).append(updates(late), 20, 30)
    assert controller.renditions.catch_up("flights", listened.id) == 30
    monkeypatch.setattr(bringing, "_LISTENED_BYTES", -1)
    assert controller.hydrate("flights", "r2") == 30
    for time in (19, 28, 29):
        assert contents(controller, "r2", time) == contents(controller, listened.id, time)
    assert contents(controller, "r2", 29) == contents(controller, "r1", 29)


def test_an_empty_collection_is_hydrated_too() -> None:
    controller = StorageController(Stores().open())
    controller.create_collection(SPEC)
    controller.renditions.create("flights", shards=2)
    assert controller.hydrate("flights", "r2") == 0
    assert not needs_spark(controller.stored("flights"))
    assert needs_spark(StoredSize(1, 1 << 30))
    assert needs_spark(StoredSize(100_000_000, 1))
