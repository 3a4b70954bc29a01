"""Hydration in one process: one attempt commits the contents, whatever happens to the others."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from holdfast.collections import (
    CollectionState,
    CollectionWriter,
    JobState,
    RenditionInfo,
    StorageController,
    job_id,
    needs_spark,
)
from holdfast.collections.due_steps import StepKind
from holdfast.errors import (
    BadInput,
    CollectionInUse,
    CollectionNotFound,
    CorruptBlob,
    Fenced,
    HandleExpired,
    StorageError,
)
from holdfast.persist import StoredSize
from testbed.faults import Fault, FaultPlan, Operation, ProcessDeath, ScriptedPlan
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


def common_upper(controller: StorageController) -> int:
    (upper,) = set(
        controller.client.recent_uppers(controller.describe("flights").rendition("r2").shards).values()
    )
    return upper


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


def test_a_drop_waits_for_who_fills(stores: Stores) -> None:
    other = StorageController(stores.open())

    def drop() -> None:
        with pytest.raises(CollectionInUse, match=rf"in use by job {JOB} \(hydrate r2, attempt 1\)"):
            other.drop_collection("flights")
        due = other.advance("c1")
        assert (due.steps, list(map(str, due.waits))) == ((), [f"in use by {other.job(JOB)}"])

    plan = Meanwhile(stores, drop)
    with pytest.raises(CollectionNotFound):
        opened(stores, plan).hydrate("flights", "r2")
    assert plan.action is None
    # What it had done it could commit; now nobody is at it.
    job = other.job(JOB)
    assert job is not None
    assert (job.state, job.result) == (JobState.DONE, {"upper": 20, "rows": 300})
    assert [step.kind for step in other.advance("c1").steps] == [StepKind.DROP_COLLECTION]
    assert other.describe("c1").state is CollectionState.DROPPED


def test_a_drop_by_force_ends_who_fills(stores: Stores) -> None:
    other = StorageController(stores.open())
    plan = Meanwhile(stores, lambda: other.drop_collection("flights", force=True))
    with pytest.raises((Fenced, CollectionNotFound)):
        opened(stores, plan).hydrate("flights", "r2")
    assert plan.action is None
    job = other.job(JOB)
    assert job is not None
    assert (job.state, job.attempt, job.error) == (JobState.FAILED, 1, "the collection was dropped")
    assert other.describe("c1").state is CollectionState.DROPPED


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
    with pytest.raises(BadInput, match="r2 of collection flights can't be filled: it is ABORTED"):
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


def test_what_was_written_meanwhile_is_brought_in_rounds(controller: StorageController) -> None:
    """Until a round has little to bring, or no less than the one before: so it ends beside any writer."""
    controller.hydrate("flights", "r2")
    writer = writer_of(controller)
    lags = iter((60_000, 30_000, 40_000, 7, 7))
    rounds: list[int] = []

    def written(done: int, total: int) -> None:
        if done == 0:
            rounds.append(total)
            upper = writer.upper()
            writer.append(updates([(1, "late", upper, 1)]), upper, upper + next(lags))

    written(0, 0)
    upper = controller.renditions.catch_up("flights", "r2", progress=written)
    assert rounds == [0, 1, 1, 1]
    assert contents(controller, "r2", upper - 1)[(1, "late")] == 3
    assert contents(controller, "r1", upper - 1) == contents(controller, "r2", upper - 1)
    assert controller.renditions.catch_up("flights", "r2", progress=written) == upper + 7
    assert len(rounds) == 5


def test_whoever_hears_of_progress_can_end_it(controller: StorageController) -> None:
    upper = controller.hydrate("flights", "r2")
    writer_of(controller).append(updates([(1, "late", upper, 1)]), upper, upper + 10)

    class Enough(Exception):
        """Nobody wants it any more."""

    def told(done: int, total: int) -> None:
        raise Enough

    for fill in (controller.hydrate, controller.renditions.catch_up):
        with pytest.raises(Enough):
            fill("flights", "r2", progress=told)
        assert common_upper(controller) == upper
    assert controller.hydrate("flights", "r2") == upper + 10


def test_an_empty_collection_is_hydrated_too() -> None:
    controller = StorageController(Stores().open())
    controller.create_collection(SPEC)
    controller.renditions.create("flights", shards=2)
    assert controller.hydrate("flights", "r2") == 0
    assert not needs_spark(controller.stored("flights"))
    assert needs_spark(StoredSize(1, 1 << 30))
    assert needs_spark(StoredSize(100_000_000, 1))
