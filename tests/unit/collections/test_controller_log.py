"""The controller's copy of its shard, and commands of several processes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pyarrow as pa
import pytest

from holdfast.collections import (
    CollectionSpec,
    CollectionState,
    Frontiers,
    JobState,
    Recipe,
    StorageController,
)
from holdfast.collections.collection_snapshot import read_collection_part
from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.record.codec import CONTROLLER_SCHEMA
from holdfast.errors import (
    CLOSED,
    CollectionInUse,
    CollectionNotFound,
    Fenced,
    UniquenessViolation,
    VersionTooNew,
)
from holdfast.persist import Prepared, Progress
from testbed.faults import Fault, FaultPlan, Operation
from unit.collections.stores import SCHEMA, SPEC, Stores, counted, updates


def spec(number: int) -> CollectionSpec:
    return CollectionSpec(f"c{number}", f"name {number}", SCHEMA)


def test_every_process_sees_what_another_has_done(stores: Stores, controller: StorageController) -> None:
    other = StorageController(stores.open())
    assert other.list_collections() == ()
    info = controller.create_collection(SPEC)
    assert other.list_collections() == (info,)
    assert other.create_collection(SPEC) == info
    other.drop_collection("flights")
    assert controller.describe("c1").state is CollectionState.DROPPED
    with pytest.raises(CollectionNotFound):
        controller.describe("flights")


def test_a_new_collection_can_be_read_as_soon_as_it_is_listed(controller: StorageController) -> None:
    info = controller.create_collection(SPEC)
    client = controller.client
    assert [client.inspect(shard).upper for shard in (info.metadata_shard, *info.data_shards)] == [1, 0, 0, 0]
    metadata = client.reader(info.metadata_shard, purpose="test").snapshot(0).to_table()
    assert metadata.to_pylist() == [{"rendition": "r1", "_diff": 1}]
    assert controller.frontiers("c1") == Frontiers(0, 0)


def test_of_racing_creations_one_wins_and_all_have_it(stores: Stores) -> None:
    barrier = threading.Barrier(4)

    def create(_: int) -> object:
        controller = StorageController(stores.open())
        barrier.wait()
        return controller.create_collection(SPEC)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(create, range(4)))
    assert found.count(found[0]) == 4
    client = stores.open()
    assert len(client.shards()) == 1 + 1 + SPEC.shards


def test_of_racing_creations_of_one_name_one_wins(stores: Stores) -> None:
    barrier = threading.Barrier(3)

    def create(number: int) -> bool:
        controller = StorageController(stores.open())
        barrier.wait()
        try:
            controller.create_collection(CollectionSpec(f"c{number}", "same", SCHEMA))
        except UniquenessViolation:
            return False
        return True

    with ThreadPoolExecutor(3) as threads:
        assert sorted(threads.map(create, range(3))) == [False, False, True]


def test_since_follows_the_commands_and_nobody_loses_track(
    stores: Stores, controller: StorageController
) -> None:
    """A reader without a lease is overtaken by since and compaction; it starts again and is right."""
    watcher = StorageController(stores.open(mode="read"))
    other, late = (StorageController(stores.open()) for _ in range(2))
    controller.create_collection(spec(0))
    assert all(len(each.list_collections()) == 1 for each in (watcher, other, late))
    for number in range(1, 150):
        (controller if number % 2 else other).create_collection(spec(number))
    other.close()
    for number in range(150, 220):
        controller.create_collection(spec(number))
    shard = controller.client.inspect(controller.shard_id)
    assert 220 - 2 * 64 <= shard.since < shard.upper
    assert shard.holds == tuple(hold for hold in shard.holds if hold.kind == "critical")
    controller.client.maintain(controller.shard_id)
    assert {info.collection_id for info in watcher.list_collections()} == {f"c{n}" for n in range(220)}
    assert watcher.list_collections() == controller.list_collections()
    assert late.list_collections() == controller.list_collections()
    assert StorageController(stores.open()).list_collections() == controller.list_collections()


def test_a_row_of_a_newer_version_is_refused_until_it_is_gone(
    stores: Stores, controller: StorageController
) -> None:
    controller.create_collection(SPEC)
    writer = stores.open().writer(controller.shard_id, CONTROLLER_SCHEMA, purpose="newer")

    def write(diff: int) -> None:
        row = {"key": [b"\x00\x63new"], "value": [b""], "_diff": [diff]}
        upper = writer.upper()
        writer.compare_and_append(pa.table(row), upper, upper + 1)

    write(+1)
    for _ in range(2):
        with pytest.raises(VersionTooNew, match="unknown kind"):
            controller.list_collections()
        with pytest.raises(VersionTooNew):
            controller.drop_collection("c1")
    write(-1)
    assert [info.collection_id for info in controller.list_collections()] == ["c1"]


def test_a_drop_waits_for_readers_or_takes_force(stores: Stores, controller: StorageController) -> None:
    controller.create_collection(SPEC)
    writer = controller.writer("c1", purpose="writer")
    writer.append(updates([(1, "a", 0, 1)]), 0, 10)
    reader = controller.reader("c1", purpose="dashboard")
    follow = reader.listen(9)
    with pytest.raises(CollectionInUse, match="'dashboard' on"):
        controller.drop_collection("c1")
    assert controller.describe("c1").state is CollectionState.DROPPING
    for opening in (controller.reader, controller.writer):
        with pytest.raises(CollectionNotFound):
            opening("c1", purpose="late")
    assert counted(reader.snapshot(9).to_table()).total() == 1
    writer.append(None, 10, 20)
    assert controller.drop_collection("c1", force=True).state is CollectionState.DROPPED
    with pytest.raises(CollectionNotFound):
        writer.append(None, 20, 30)
    with pytest.raises(CollectionNotFound):
        writer.upper()
    assert list(follow)[-1] == Progress(CLOSED)
    reader.close()


def test_a_drop_goes_on_when_the_readers_are_gone(stores: Stores, controller: StorageController) -> None:
    info = controller.create_collection(SPEC)
    reader = controller.reader("c1", purpose="dashboard")
    with pytest.raises(CollectionInUse):
        controller.drop_collection("c1", command_id="k")
    reader.close()
    other = StorageController(stores.open())
    assert other.drop_collection("c1", command_id="k").state is CollectionState.DROPPED
    assert {other.client.inspect(shard).finalized for shard in info.data_shards} == {True}
    assert other.drop_collection("c1").state is CollectionState.DROPPED


def test_a_drop_waits_for_running_jobs(stores: Stores, controller: StorageController) -> None:
    info = controller.create_collection(SPEC)
    job = controller.start_job("c1", "snapshot", "1", spec={})
    for shard in info.data_shards:
        stores.open().critical_since(shard, purpose=f"job {job.job_id} attempt 1")
    with pytest.raises(CollectionInUse, match=f"'job {job.job_id} attempt 1'"):
        controller.drop_collection("c1")
    controller.fail_job(job.job_id, 1, "killed")
    assert controller.drop_collection("c1").dropped


def test_records_that_were_handed_out_stay_as_they_are(stores: Stores) -> None:
    """Readers in other threads go through them while commands come in."""
    log = ControllerLog(stores.open())
    controller = StorageController(stores.open())
    controller.create_collection(SPEC)
    seen = iter(log.sync().collections.values())
    before = log.sync()
    controller.create_collection(spec(2))
    controller.drop_collection("c1")
    assert set(log.sync().names) == {"name 2"}
    assert [info.collection_id for info in seen] == ["c1"]
    assert (set(before.names), before.find("flights").state) == ({"flights"}, CollectionState.ACTIVE)


@pytest.mark.parametrize("mode", ["write", "read"])
def test_a_reader_of_a_dropped_collection_hears_just_that(
    stores: Stores, controller: StorageController, mode: Literal["write", "read"]
) -> None:
    controller.create_collection(SPEC)
    controller.writer("c1", purpose="writer").append(updates([(1, "a", 0, 1)]), 0, 10)
    client = stores.open(mode=mode)
    reader = StorageController(client).reader("c1", purpose="dashboard")
    snapshot, (part, *_) = reader.snapshot(9), reader.snapshot_parts(9)
    controller.drop_collection("c1", force=True)
    asked: list[Callable[[], object]] = [
        reader.since,
        reader.upper,
        reader.snapshot,
        lambda: reader.snapshot(9),
        lambda: reader.snapshot_parts(9),
        lambda: reader.listen(9),
        lambda: reader.subscribe(9),
        lambda: reader.allow_compaction(9),
        snapshot.to_table,
        lambda: list(snapshot),
        lambda: list(read_collection_part(client, part)),
    ]
    for ask in asked:
        with pytest.raises(CollectionNotFound, match="was dropped"):
            ask()
    reader.close()


def test_effects_that_look_at_newer_records_do_not_commit_what_was_decided_on_older_ones(
    stores: Stores, controller: StorageController
) -> None:
    other = StorageController(stores.open())
    job = controller.start_job("c1", "snapshot", "1", spec={}).job_id

    def effects() -> list[Prepared]:
        known = other.job(job)
        if known is not None and known.attempt == 1:
            other.retry_job(job, abandoned=1)
        assert controller.job(job) == other.job(job)
        return []

    with pytest.raises(Fenced):
        controller.finish_job(job, 1, {"late": True}, effects)
    after = other.job(job)
    assert after is not None
    assert (after.attempt, after.state) == (2, JobState.RUNNING)


class Uploads(FaultPlan):
    """Tries, while anything is uploaded to shards but the controller's, whether others can go on."""

    def __init__(self) -> None:
        self.controller: StorageController | None = None
        self.went_on: list[bool] = []

    def decide(self, operation: Operation) -> Fault:
        controller = self.controller
        if controller is None or operation.name != "blob.put":
            return Fault.NONE
        if not operation.keys[0].startswith(controller.shard_id):
            other = threading.Thread(target=controller.list_collections, daemon=True)
            other.start()
            other.join(20)
            self.went_on.append(not other.is_alive())
        return Fault.NONE


UPLOADING: dict[str, Callable[[StorageController], object]] = {
    "hydrate": lambda c: c.hydrate("c1", "r2"),
    "make a difference": lambda c: c.renditions.make_difference("c1"),
    "begin": lambda c: c.rendition_writer("c1", "fed", purpose="p").append(
        updates([(7, "fed", 60, 1)]), 50, 90
    ),
}


@pytest.mark.parametrize("command", UPLOADING.values(), ids=UPLOADING.keys())
def test_others_go_on_while_a_command_uploads(
    stores: Stores, command: Callable[[StorageController], object]
) -> None:
    plan = Uploads()
    controller = StorageController(stores.open(plan, inline_max_bytes=0))
    controller.create_collection(SPEC)
    controller.writer("c1", purpose="test").append(updates([(1, "a", 5, 1), (2, "b", 6, 1)]), 0, 100)
    controller.renditions.create("c1", shards=2, rendition_id="r2")
    controller.renditions.create("c1", shards=1, rendition_id="fed", recipe=Recipe.SOURCE)
    if command is UPLOADING["make a difference"]:
        source = controller.rendition_writer("c1", "fed", purpose="p")
        source.append(updates([(3, "c", 5, 1)]), 0, 100)
        source.seal(controller.renditions.hand_over("c1", "fed").held_from + 1)
    plan.controller = controller
    command(controller)
    assert plan.went_on
    assert all(plan.went_on)
