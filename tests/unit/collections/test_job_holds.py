"""What an attempt of a job reads is held from its start until its recorded end."""

import pytest

from holdfast.collections import JobRecord, JobState, StorageController
from holdfast.collections.record.jobs import hold_purpose
from holdfast.errors import AsOfTooEarly, BadInput, CollectionNotFound, Fenced
from holdfast.persist.state.inspect import HoldInfo
from unit.collections.stores import SPEC, Stores
from unit.collections.test_controller_jobs import Meanwhile

UPPER = 20


@pytest.fixture(autouse=True)
def collection(controller: StorageController) -> None:
    controller.create_collection(SPEC)
    controller.writer("c1", purpose="test").append(None, 0, UPPER)


def held(controller: StorageController) -> list[tuple[str, int]]:
    """The holds of jobs, with their times: all that there are on any shard of the collection."""
    info = controller.describe("c1")
    holds: list[HoldInfo] = []
    for shard in (info.metadata_shard, *info.data_shards):
        holds += controller.client.inspect(shard).holds
    return [(hold.purpose, hold.since) for hold in holds if hold.purpose.startswith("job ")]


def hold_of(job: JobRecord, as_of: int) -> tuple[str, int]:
    return hold_purpose(job.job_id, job.attempt), as_of


def test_what_a_record_reads_is_held_from_its_start_to_its_end(controller: StorageController) -> None:
    job = controller.start_job("c1", "snapshot", "1", spec={"as_of": 5})
    assert held(controller) == [hold_of(job, 5)]
    assert controller.set_retention_hold("c1", 15) == 5
    assert controller.start_job("c1", "snapshot", "1", spec={"as_of": 9}) == job
    assert controller.hold_for_job(job.job_id, 1, 5) == 5
    assert held(controller) == [hold_of(job, 5)]
    controller.finish_job(job.job_id, 1, {})
    assert held(controller) == []
    assert controller.set_retention_hold("c1", 15) == 15


def test_an_attempt_that_is_abandoned_hands_on_what_it_held(controller: StorageController) -> None:
    job = controller.start_job("c1", "snapshot", "1", spec={"as_of": 5})
    controller.set_retention_hold("c1", 15)
    again = controller.retry_job(job.job_id, abandoned=1)
    assert held(controller) == [hold_of(again, 5)]
    assert controller.set_retention_hold("c1", 15) == 5


def test_what_is_gone_is_not_read_by_another_attempt(controller: StorageController) -> None:
    job = controller.start_job("c1", "snapshot", "1", spec={"as_of": 5})
    controller.fail_job(job.job_id, 1, "no memory")
    failed = controller.job(job.job_id)
    assert held(controller) == []
    controller.set_retention_hold("c1", 15)
    for _ in range(2):
        with pytest.raises(AsOfTooEarly, match="as_of 5 is before since 15"):
            controller.retry_job(job.job_id)
        assert controller.job(job.job_id) == failed
    with pytest.raises(AsOfTooEarly):
        controller.start_job("c1", "snapshot", "2", spec={"as_of": 5})
    assert controller.jobs("c1") == (failed,)
    assert held(controller) == []


@pytest.mark.parametrize("as_of", ["5", 5.5, -1, 2**64, None])
def test_a_record_reads_as_of_a_time(controller: StorageController, as_of: object) -> None:
    with pytest.raises(BadInput, match="is not a time"):
        controller.start_job("c1", "snapshot", "1", spec={"as_of": as_of})
    assert controller.jobs() == ()


def test_drivers_of_one_attempt_share_the_time_that_the_first_one_took(
    stores: Stores, controller: StorageController
) -> None:
    job = controller.start_job("c1", "snapshot", "1", spec={})
    assert held(controller) == []
    other = StorageController(stores.open())
    asked = [(controller, 7), (other, 12), (other, 3)]
    assert [driver.hold_for_job(job.job_id, 1, as_of) for driver, as_of in asked] == [7, 7, 7]
    assert held(controller) == [hold_of(job, 7)]
    controller.retry_job(job.job_id, abandoned=1)
    assert held(controller) == []
    controller.set_retention_hold("c1", 15)
    with pytest.raises(AsOfTooEarly, match="as_of 7 is before since 15"):
        controller.hold_for_job(job.job_id, 2, 7)
    assert held(controller) == []


def test_only_the_attempt_that_runs_holds(stores: Stores, controller: StorageController) -> None:
    job = controller.start_job("c1", "snapshot", "1", spec={}).job_id
    controller.retry_job(job, abandoned=1)
    for attempt in (1, 3):
        with pytest.raises(Fenced, match="attempt 2"):
            controller.hold_for_job(job, attempt, 5)
    controller.finish_job(job, 2, {})
    with pytest.raises(Fenced, match="done"):
        controller.hold_for_job(job, 2, 5)
    with pytest.raises(BadInput, match="there is no job"):
        controller.hold_for_job("another", 1, 5)
    with pytest.raises(CollectionNotFound):
        controller.hold_for_job(controller.start_job("c2", "snapshot", "1", spec={}).job_id, 1, 5)
    assert held(controller) == []


def test_a_driver_that_is_replaced_while_it_takes_its_hold_takes_none(
    stores: Stores, controller: StorageController
) -> None:
    """As a machine that stands still between two steps, and is lost after the last one."""
    job = controller.start_job("c1", "snapshot", "1", spec={}).job_id

    def replaced() -> None:
        controller.retry_job(job, abandoned=1)
        controller.finish_job(job, 2, {})

    zombie = StorageController(stores.open(Meanwhile(controller.shard_id, replaced)))
    with pytest.raises(Fenced, match=r"attempt 2 is done"):
        zombie.hold_for_job(job, 1, 5)
    found = controller.job(job)
    assert found is not None
    assert (found.state, held(controller)) == (JobState.DONE, [])
