"""A guarded controller whose process was fenced out of the catalog can command nothing."""

import uuid
from collections.abc import Callable
from functools import partial

import pytest

from holdfast.catalog import Catalog, OpenMode, persist_catalog
from holdfast.collections import CollectionSpec, JobState, StorageController
from holdfast.collections.record.jobs import job_id
from holdfast.errors import BadInput, Fenced, HoldfastError, StorageError
from holdfast.persist import PersistClient, Prepared
from testbed.faults import Fault, ProcessDeath, ScriptedPlan
from unit.collections.stores import SCHEMA, SPEC, Stores, updates

ORGANIZATION = uuid.UUID("11111111-2222-3333-4444-555555555555")
OVER = job_id("c1", "snapshot", "0")
Command = Callable[[StorageController, str], object]

COMMANDS: dict[str, Command] = {
    "create": lambda c, _: c.create_collection(CollectionSpec("c2", "other", SCHEMA)),
    "create what is there": lambda c, _: c.create_collection(SPEC),
    "drop": lambda c, _: c.drop_collection("c1"),
    "drop by force": lambda c, _: c.drop_collection("c1", force=True),
    "retention": lambda c, _: c.set_retention_hold("c1", 8),
    "start job": lambda c, _: c.start_job("c1", "snapshot", "2", spec={}),
    "start job that is there": lambda c, _: c.start_job("c1", "snapshot", "1", spec={}),
    "retry job": lambda c, job: c.retry_job(job, abandoned=1),
    "finish job": lambda c, job: c.finish_job(job, 1, {}),
    "fail job": lambda c, job: c.fail_job(job, 1, "no"),
    "forget jobs": lambda c, _: c.forget_jobs([OVER]),
}


def opened(client: PersistClient, holder: str) -> Catalog:
    return persist_catalog(client, ORGANIZATION).open(OpenMode.WRITABLE, holder=holder, purpose="test")


def guarded(client: PersistClient, holder: str) -> StorageController:
    catalog = opened(client, holder)
    return StorageController(client, token=str(catalog.fence_token()), guard=catalog.fence_guard)


def prepare(controller: StorageController) -> str:
    """Collection c1 with a row, a job that is over, and a running one; that one's id."""
    controller.create_collection(SPEC)
    controller.finish_job(controller.start_job("c1", "snapshot", "0", spec={}).job_id, 1, {})
    controller.writer("c1", purpose="test").append(updates([(1, "a", 0, 1)]), 0, 10)
    return controller.start_job("c1", "snapshot", "1", spec={}).job_id


def everything(stores: Stores) -> list[tuple[object, ...]]:
    """All that commands change: the records and the frontiers and holds of every shard but the catalog's."""
    client = stores.open(mode="read")
    controller = StorageController(client)
    catalog = persist_catalog(client, ORGANIZATION).place
    shards = [client.inspect(shard) for shard in client.shards() if shard != catalog]
    held = [
        (
            s.shard_id,
            s.upper,
            s.since,
            s.finalized,
            sorted((h.purpose, h.since) for h in s.holds if h.kind == "critical"),
        )
        for s in shards
    ]
    return [*held, controller.list_collections(), controller.jobs()]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_fenced_controller_changes_nothing(stores: Stores, command: Command) -> None:
    first = guarded(stores.open(), "A")
    job = prepare(first)
    guarded(stores.open(), "B")
    before = everything(stores)
    with pytest.raises(Fenced, match="epoch 2"):
        command(first, job)
    assert everything(stores) == before


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_who_is_fenced_between_guard_and_commit_changes_nothing(stores: Stores, command: Command) -> None:
    client = stores.open()
    catalog = opened(client, "A")
    job = prepare(StorageController(client))
    before: list[object] = []

    def guard() -> Prepared:
        condition = catalog.fence_guard()
        if not before:
            opened(stores.open(), "B")
            before.append(everything(stores))
        return condition

    first = StorageController(client, guard=guard)
    # What has nothing to change may still answer: it was true while the token was good.
    try:
        command(first, job)
    except Fenced:
        pass
    else:
        assert command in (COMMANDS["create what is there"], COMMANDS["start job that is there"])
    assert everything(stores) == before[0]


def test_the_last_step_of_a_drop_is_fenced_too(stores: Stores) -> None:
    """B takes over while A waits for a reader: A's next call ends nothing."""
    client = stores.open()
    first = guarded(client, "A")
    prepare(first)
    reader = first.reader("c1", purpose="report")
    with pytest.raises(HoldfastError, match="report"):
        first.drop_collection("c1")
    guarded(stores.open(), "B")
    reader.close()
    before = everything(stores)
    with pytest.raises(Fenced):
        first.drop_collection("c1")
    assert everything(stores) == before


def test_a_commit_of_the_catalog_itself_is_no_fence(stores: Stores) -> None:
    """The guard's condition is lost by an own commit in between: the command is tried again and done."""
    client = stores.open()
    catalog = opened(client, "A")
    calls: list[int] = []

    def guard() -> Prepared:
        condition = catalog.fence_guard()
        calls.append(1)
        if len(calls) == 1:
            catalog.ensure_item("holdfast", "public", "flights")
        return condition

    controller = StorageController(client, guard=guard)
    assert controller.create_collection(SPEC).name == "flights"
    assert len(calls) == 2


def test_the_successor_commands(stores: Stores) -> None:
    prepare(guarded(stores.open(), "A"))
    second = guarded(stores.open(), "B")
    assert second.set_retention_hold("c1", 8) == 8
    (job,) = (each for each in second.jobs() if each.job_id != OVER)
    assert second.finish_job(job.job_id, 1, {}).state is JobState.DONE
    assert second.drop_collection("c1").dropped


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE])
def test_a_fenced_command_in_doubt_changes_nothing(stores: Stores, fault: Fault) -> None:
    prepare(guarded(stores.open(), "A"))
    before: list[object] = []
    plan = ScriptedPlan({0: fault}, matches=lambda operation: bool(before) and operation.writes)
    client = stores.open(plan)
    catalog = opened(client, "A")

    def guard() -> Prepared:
        condition = catalog.fence_guard()
        if not before:
            opened(stores.open(), "B")
            before.append(everything(stores))
        return condition

    doubtful = StorageController(client, guard=guard)
    with pytest.raises((Fenced, StorageError, ProcessDeath)):
        doubtful.drop_collection("c1", force=True)
    assert plan.seen > 0
    assert everything(stores) == before[0]


def test_a_savepoint_guards_nothing(stores: Stores) -> None:
    client = stores.open()
    opened(client, "A")
    savepoint = persist_catalog(client, ORGANIZATION).open(OpenMode.SAVEPOINT)
    controller = StorageController(client, guard=savepoint.fence_guard)
    with pytest.raises(BadInput, match="savepoint"):
        controller.create_collection(SPEC)


def take(client: PersistClient, shards: tuple[str, ...], purpose: str) -> None:
    for shard in shards:
        client.critical_since(shard, purpose=purpose)


ENDS: dict[str, Command] = {
    "fail": lambda c, job: c.fail_job(job, 1, "killed"),
    "retry": lambda c, job: c.retry_job(job, abandoned=1),
    "finish": lambda c, job: c.finish_job(job, 1, {}),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_the_holds_of_a_killed_attempt_end_with_it(stores: Stores, end: Command) -> None:
    controller = StorageController(stores.open())
    job = prepare(controller)
    info = controller.describe("c1")
    shards = (info.metadata_shard, *info.data_shards)
    take(stores.open(), shards, f"job {job} attempt 1")
    take(stores.open(), shards, "job of somebody else attempt 1")
    assert controller.set_retention_hold("c1", 8) == 0
    end(controller, job)
    for shard in shards:
        purposes = {hold.purpose for hold in controller.client.inspect(shard).holds}
        assert purposes == {"retention", "job of somebody else attempt 1"}


def test_earlier_attempts_are_cleared_too(stores: Stores) -> None:
    controller = StorageController(stores.open())
    job = prepare(controller)
    controller.retry_job(job, abandoned=1)
    info = controller.describe("c1")
    late = partial(take, stores.open(), info.data_shards)
    late(f"job {job} attempt 1")
    late(f"job {job} attempt 2")
    controller.finish_job(job, 2, {})
    for shard in info.data_shards:
        assert {hold.purpose for hold in controller.client.inspect(shard).holds} == {"retention"}
