"""Death and unknown outcomes at every durable operation. The result is whole, and work can continue."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.collections import (
    CollectionInfo,
    CollectionState,
    CollectionWriter,
    JobState,
    StorageController,
)
from holdfast.collections.record.jobs import hold_purpose
from holdfast.errors import CollectionNotFound, HandleExpired, StorageError
from holdfast.persist import PersistClient
from testbed.faults import Fault, ProcessDeath, ScriptedPlan, SeededPlan
from unit.collections.stores import SPEC, Row, Stores, counted, updates

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]
APPENDS = [[(number, str(step), step * 7000, 1) for number in range(step, step + 5)] for step in range(4)]


def at_every_write(
    fault: Fault,
    work: Callable[[PersistClient], object],
    prepare: Callable[[Stores], object],
    **settings: Any,
) -> list[tuple[Stores, bool]]:
    """Run `work` with the fault at its first, second, ... write; the stores then, and if it ended well."""
    outcomes = []
    for number in range(100):
        stores = Stores()
        prepare(stores)
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        client = stores.open(plan, **settings)
        try:
            work(client)
            ended = True
        except (StorageError, HandleExpired, ProcessDeath):
            ended = False
        outcomes.append((stores, ended))
        if plan.seen <= number:
            assert ended
            return outcomes
    raise AssertionError("the work never ends")


def create(client: PersistClient) -> CollectionInfo:
    return StorageController(client).create_collection(SPEC, command_id="k1")


def write(client: PersistClient) -> None:
    writer = StorageController(client).writer("flights", purpose="test")
    for step, rows in enumerate(APPENDS):
        if writer.upper() <= step * 7000:
            writer.append(updates(rows), step * 7000, (step + 1) * 7000)


def drop(client: PersistClient) -> CollectionInfo:
    return StorageController(client).drop_collection("c1", command_id="k2")


def contents(client: PersistClient) -> Counter[Row]:
    return counted(StorageController(client).reader("flights", purpose="check").snapshot().to_table())


def expected(steps: int) -> Counter[Row]:
    return Counter((id_, name) for rows in APPENDS[:steps] for id_, name, _, _ in rows)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_collection_is_created_whole_or_not_at_all(fault: Fault) -> None:
    outcomes = at_every_write(fault, create, lambda stores: None)
    assert len(outcomes) >= 2
    for stores, ended in outcomes:
        client = stores.open()
        found = StorageController(client).list_collections()
        shards = {shard for info in found for shard in (info.metadata_shard, *info.data_shards)}
        controller_shard = {StorageController(client).shard_id} & set(client.shards())
        assert set(client.shards()) - controller_shard == shards
        assert found or not ended
        for shard in shards:
            assert [hold.purpose for hold in client.inspect(shard).holds] == ["retention"]
        again = create(client)
        assert again.state is CollectionState.ACTIVE
        assert not found or again == found[0]
        write(client)
        assert contents(client) == expected(4)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("inline_max_bytes", [64 * 1024, 0], ids=["inline", "uploaded"])
@pytest.mark.long
def test_an_append_reaches_all_shards_or_none(fault: Fault, inline_max_bytes: int) -> None:
    outcomes = at_every_write(
        fault, write, lambda stores: create(stores.open()), inline_max_bytes=inline_max_bytes
    )
    assert len(outcomes) > len(APPENDS)
    for stores, _ in outcomes:
        client = stores.open()
        controller = StorageController(client)
        info = controller.describe("flights")
        uppers = {client.recent_upper(shard) for shard in info.data_shards}
        assert len(uppers) == 1
        (upper,) = uppers
        assert upper <= client.recent_upper(info.metadata_shard)
        if upper:
            assert contents(client) == expected(upper // 7000)
        write(client)
        assert contents(client) == expected(4)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_collection_is_dropped_whole_or_can_be_dropped_again(fault: Fault) -> None:
    def prepare(stores: Stores) -> None:
        client = stores.open()
        create(client)
        write(client)

    for stores, ended in at_every_write(fault, drop, prepare):
        client = stores.open()
        controller = StorageController(client)
        info = controller.describe("c1")
        finalized = {client.inspect(shard).finalized for shard in (info.metadata_shard, *info.data_shards)}
        assert finalized == {info.state is CollectionState.DROPPED}
        assert not ended or info.state is CollectionState.DROPPED
        assert drop(client).state is CollectionState.DROPPED
        assert controller.list_collections() == ()
        with pytest.raises(CollectionNotFound):
            controller.writer("c1", purpose="test")


@pytest.mark.parametrize("seed", range(12))
def test_nothing_acknowledged_is_lost_and_nothing_comes_twice(seed: int) -> None:
    """Two processes write in turns; each may die or fail at any call, and is replaced."""
    choose = random.Random(seed)
    stores = Stores()
    info = create(stores.open())
    acknowledged: Counter[Row] = Counter()
    doubtful: Counter[Row] = Counter()
    writers: list[CollectionWriter | None] = [None, None]
    for number in range(60):
        who = choose.randrange(2)
        row, upper = (number, str(who)), -1
        try:
            writer = writers[who]
            if writer is None:
                plan = SeededPlan(choose.randrange(2**32), rate=0.1, death_rate=0.02)
                client = stores.open(plan, inline_max_bytes=choose.choice([0, 65536]), rollup_every=10)
                writer = writers[who] = StorageController(client).writer("c1", purpose=f"writer {who}")
            upper = writer.upper()
            writer.append(updates([(*row, upper, 1)] * 3), upper, upper + choose.choice([1, 5000]))
        except (StorageError, HandleExpired, ProcessDeath):
            writers[who] = None
            if upper >= 0:
                doubtful[row] += 3
            continue
        acknowledged[row] += 3
    client = stores.open()
    uppers = {client.recent_upper(shard) for shard in info.data_shards}
    assert len(uppers) == 1
    found = contents(client)
    assert found >= acknowledged
    assert set((found - acknowledged).values()) <= {3}
    assert found - acknowledged <= doubtful


def jobs_holds(controller: StorageController) -> set[str]:
    """What is held, on any shard, by attempts of jobs."""
    info = controller.describe("c1")
    shards = (info.metadata_shard, *info.data_shards)
    holds = (hold for shard in shards for hold in controller.client.inspect(shard).holds)
    return {hold.purpose for hold in holds if hold.purpose.startswith("job ")}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("spec", [{}, {"as_of": 5}], ids=["held by its driver", "held by its record"])
def test_a_job_holds_while_an_attempt_of_it_runs_and_no_longer(fault: Fault, spec: dict[str, int]) -> None:
    """Starts, holds by its drivers, a failure and its end: killed, or in doubt, at each of their writes."""

    def conduct(client: PersistClient) -> None:
        controller = StorageController(client)
        job = controller.start_job("c1", "snapshot", "1", spec=spec).job_id
        controller.hold_for_job(job, 1, 5)
        controller.retry_job(job, abandoned=1)
        controller.hold_for_job(job, 2, 5)
        controller.fail_job(job, 2, "no memory")
        controller.retry_job(job)
        controller.hold_for_job(job, 3, 5)
        controller.finish_job(job, 3, {})

    def prepare(stores: Stores) -> None:
        client = stores.open()
        create(client)
        write(client)

    outcomes = at_every_write(fault, conduct, prepare)
    assert len(outcomes) > 8, "each command writes at least once"
    for stores, ended in outcomes:
        controller = StorageController(stores.open())
        found = controller.jobs("c1")
        running = {hold_purpose(job.job_id, job.attempt) for job in found if job.state is JobState.RUNNING}
        assert jobs_holds(controller) <= running
        assert jobs_holds(controller) == running or not spec
        assert not ended or [job.state for job in found] == [JobState.DONE]
        for job in found:
            if job.state is not JobState.DONE:
                again = controller.retry_job(job.job_id, abandoned=job.attempt)
                assert jobs_holds(controller) == (
                    {hold_purpose(job.job_id, again.attempt)} if spec else set()
                )
                controller.finish_job(job.job_id, again.attempt, {})
        assert jobs_holds(controller) == set()
