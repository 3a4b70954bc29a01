"""JobRecords: if several attempts run a job, one commits its effects."""

from collections import Counter
from collections.abc import Callable

import pytest

from holdfast.collections import JobState, StorageController
from holdfast.errors import BadInput, Fenced, HoldfastError, UpperMismatch
from holdfast.persist import PersistClient, Prepared
from testbed.faults import Fault, Operation
from unit.collections.stores import SCHEMA, Stores, counted, updates

ROWS = [(number, "x" * 50, 0, 1) for number in range(100)]


class Meanwhile:
    """Lets something happen just before the first write to `shard` and another shard together."""

    def __init__(self, shard: str, action: Callable[[], object]) -> None:
        self.shard = shard
        self.action: Callable[[], object] | None = action

    def decide(self, operation: Operation) -> Fault:
        action = self.action
        if action is not None and len(operation.keys) > 1 and self.shard in operation.keys:
            self.action = None
            action()
        return Fault.NONE


def rows_of(stores: Stores, shard: str) -> Counter[tuple[int, str | None]]:
    client = stores.open(mode="read")
    return (
        counted(client.reader(shard, purpose="check").snapshot(0).to_table())
        if client.exists(shard)
        else Counter()
    )


def append(client: PersistClient, shard: str) -> Prepared:
    return client.writer(shard, SCHEMA, purpose="job").prepare_append(updates(ROWS), 0, 1)


def test_a_job_is_found_by_object_kind_and_slot(stores: Stores, controller: StorageController) -> None:
    first = controller.start_job("c1", "snapshot", "2013-01-01", spec={"as_of": 3})
    other = StorageController(stores.open())
    assert other.start_job("c1", "snapshot", "2013-01-01", spec={"as_of": 4}) == first
    second = other.start_job("c2", "snapshot", "2013-01-01", spec={})
    assert controller.job(first.job_id) == first
    assert controller.job("nothing") is None
    assert [job.job_id for job in controller.jobs("c2")] == [second.job_id]
    assert {job.job_id for job in controller.jobs()} == {first.job_id, second.job_id}


def test_the_effect_comes_with_the_record(stores: Stores, controller: StorageController) -> None:
    job = controller.start_job("c1", "fill", "1", spec={})
    shard = controller.client.new_shard_id()
    done = controller.finish_job(job.job_id, 1, {"rows": 100}, [append(controller.client, shard)])
    assert (done.state, done.result) == (JobState.DONE, {"rows": 100})
    assert rows_of(stores, shard).total() == 100
    assert StorageController(stores.open()).job(job.job_id) == done


def test_a_zombie_is_fenced_and_its_effect_is_not_applied(
    stores: Stores, controller: StorageController
) -> None:
    job = controller.start_job("c1", "fill", "1", spec={})
    zombie = StorageController(stores.open())
    shard = zombie.client.new_shard_id()
    effect = append(zombie.client, shard)
    second = controller.retry_job(job.job_id, abandoned=1)
    assert second.attempt == 2
    with pytest.raises(Fenced, match="attempt 2"):
        zombie.finish_job(job.job_id, 1, {}, [effect])
    with pytest.raises(Fenced):
        zombie.fail_job(job.job_id, 1, "late")
    assert rows_of(stores, shard) == Counter()
    assert controller.job(job.job_id) == second
    controller.finish_job(job.job_id, 2, {}, [append(controller.client, shard)])
    assert rows_of(stores, shard).total() == 100
    with pytest.raises(Fenced, match="done"):
        zombie.finish_job(job.job_id, 2, {})


def test_a_job_that_is_forgotten_is_gone_for_everybody_and_for_good(
    stores: Stores, controller: StorageController
) -> None:
    first, second = (controller.start_job("c1", "fill", slot, spec={}) for slot in "12")
    controller.finish_job(first.job_id, 1, {})
    with pytest.raises(BadInput, match="is running"):
        controller.forget_jobs([first.job_id, second.job_id])
    assert [job.slot for job in controller.jobs("c1")] == ["1", "2"]
    controller.forget_jobs([first.job_id])
    for each in (controller, StorageController(stores.open())):
        assert [job.slot for job in each.jobs("c1")] == ["2"]
        assert each.job(first.job_id) is None


def test_a_zombie_that_has_looked_before_is_fenced_by_the_commit(stores: Stores) -> None:
    boss = StorageController(stores.open())
    job = boss.start_job("c1", "fill", "1", spec={})
    plan = Meanwhile(boss.shard_id, lambda: boss.retry_job(job.job_id, abandoned=1))
    zombie = StorageController(stores.open(plan))
    shard = zombie.client.new_shard_id()
    with pytest.raises(Fenced, match="attempt 2"):
        zombie.finish_job(job.job_id, 1, {}, [append(zombie.client, shard)])
    assert plan.action is None
    assert rows_of(stores, shard) == Counter()


@pytest.mark.parametrize("inline_max_bytes", [64 * 1024, 0], ids=["inline", "uploaded"])
def test_effects_are_prepared_again_after_a_lost_race(stores: Stores, inline_max_bytes: int) -> None:
    boss = StorageController(stores.open())
    job = boss.start_job("c1", "fill", "1", spec={})
    plan = Meanwhile(boss.shard_id, lambda: boss.start_job("c2", "fill", "1", spec={}))
    driver = StorageController(stores.open(plan, inline_max_bytes=inline_max_bytes))
    shard = driver.client.new_shard_id()
    tries = []

    def effects() -> list[Prepared]:
        tries.append(1)
        return [append(driver.client, shard)]

    assert driver.finish_job(job.job_id, 1, {}, effects).state is JobState.DONE
    assert len(tries) == 2
    assert rows_of(stores, shard).total() == 100


def test_an_uploaded_effect_is_not_used_twice(stores: Stores) -> None:
    boss = StorageController(stores.open())
    job = boss.start_job("c1", "fill", "1", spec={})
    plan = Meanwhile(boss.shard_id, lambda: boss.start_job("c2", "fill", "1", spec={}))
    driver = StorageController(stores.open(plan, inline_max_bytes=0))
    shard = driver.client.new_shard_id()
    with pytest.raises(HoldfastError, match="committed first"):
        driver.finish_job(job.job_id, 1, {}, [append(driver.client, shard)])
    running = boss.job(job.job_id)
    assert running is not None
    assert running.state is JobState.RUNNING
    driver.finish_job(job.job_id, 1, {}, [append(driver.client, shard)])
    assert rows_of(stores, shard).total() == 100


def test_an_effect_that_lost_on_its_own_shard_leaves_the_job_running(
    stores: Stores, controller: StorageController
) -> None:
    job = controller.start_job("c1", "fill", "1", spec={})
    shard = controller.client.new_shard_id()
    effect = append(controller.client, shard)
    stores.open().writer(shard, SCHEMA, purpose="other").seal(1)
    with pytest.raises(UpperMismatch) as lost:
        controller.finish_job(job.job_id, 1, {}, [effect])
    assert lost.value.shard_id == shard
    assert controller.job(job.job_id) == job


def test_a_failed_job_is_tried_again_and_a_running_one_is_not(controller: StorageController) -> None:
    job = controller.start_job("c1", "fill", "1", spec={"n": 1})
    with pytest.raises(BadInput, match="running"):
        controller.retry_job(job.job_id)
    controller.fail_job(job.job_id, 1, "no memory")
    again = controller.retry_job(job.job_id)
    assert (again.attempt, again.state, again.spec, again.error) == (2, JobState.RUNNING, {"n": 1}, "")
