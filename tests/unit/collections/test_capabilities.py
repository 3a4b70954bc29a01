"""Durable capabilities: what they keep, what is due for a collection, and who did what."""

import pytest

from holdfast.collections import CollectionState, Recipe, StorageController
from holdfast.collections.capabilities import collection_holds
from holdfast.collections.due_steps import StepKind
from holdfast.errors import AsOfTooEarly, CollectionInUse, CollectionNotFound, HandleExpired
from unit.collections.stores import SPEC, Stores, counted, updates

ROWS = [(number, str(number), 10, 1) for number in range(20)]


@pytest.fixture
def controller(stores: Stores) -> StorageController:
    controller = StorageController(stores.open(hostname="here"), who="ann", token="7")
    controller.create_collection(SPEC)
    controller.writer("flights", purpose="test").append(updates(ROWS), 0, 20)
    return controller


def turned(controller: StorageController, rendition_id: str) -> int:
    """Hand over to a new rendition; the time."""
    controller.renditions.create("flights", shards=2, rendition_id=rendition_id)
    controller.renditions.catch_up("flights", rendition_id)
    return controller.renditions.hand_over("flights", rendition_id, max_lag_ms=1 << 40).held_from


def fed(controller: StorageController, rendition_id: str) -> int:
    """Hand over to a new rendition of other rows, which its source has written up to then; the time."""
    controller.renditions.create("flights", shards=2, rendition_id=rendition_id, recipe=Recipe.SOURCE)
    source = controller.rendition_writer("flights", rendition_id, purpose="test")
    source.append(updates(ROWS[1:]), 0, 20)
    at = controller.renditions.hand_over("flights", rendition_id).held_from
    source.seal(at + 1)
    return at


def test_a_hold_outlives_its_process_and_keeps_what_retired(
    stores: Stores, controller: StorageController
) -> None:
    hold = controller.hold("flights", "audit", since=15)
    assert hold.since == 15
    at = turned(controller, "r2")
    writer = controller.writer("flights", purpose="test")
    writer.append(None, at, at + 10)
    controller.set_retention_hold("flights", at + 5)
    assert controller.advance("flights").steps == ()
    # Another process finds it by its purpose, wherever that is asked to begin.
    other = StorageController(stores.open(), who="bob")
    again = other.hold("flights", "audit", since=15)
    assert again.since == 15
    (kept,) = (each for each in other.holds("flights") if each.purpose == "audit")
    assert (kept.kind, kept.who, kept.host, kept.durable, kept.own) == ("read", "ann", "here", True, False)
    assert (kept.since, kept.keeps) == (15, ("r1",))
    assert kept.age_ms is not None
    (wait,) = controller.advance("flights").waits
    assert wait.rendition == "r1"
    assert "'audit' on here by ann at 15" in wait.why
    with other.reader("flights", purpose="late") as reader:
        assert counted(reader.snapshot(15).to_table()) == counted(updates(ROWS))
    again.downgrade(1 << 50)
    assert hold.since == at + 9  # not past the latest complete time
    # It moves nothing by itself: since follows with the next move of the collection's own.
    controller.set_retention_hold("flights", at + 6)
    done = controller.advance("flights")
    assert [(step.kind, step.rendition) for step in done.steps] == [(StepKind.DROP_RENDITION, "r1")]
    assert done.waits == ()
    assert controller.advance("flights").steps == ()
    with pytest.raises(AsOfTooEarly):
        other.hold("flights", "audit", since=15)
    with pytest.raises(AsOfTooEarly):
        other.hold("flights", "second", since=15)
    assert {each.purpose for each in controller.holds("flights")} == {"retention", "audit"}


def test_a_block_that_fails_keeps_its_hold(controller: StorageController) -> None:
    with pytest.raises(RuntimeError), controller.hold("flights", "audit"):
        raise RuntimeError
    with controller.hold("flights", "audit") as hold:
        assert hold.since == 0
    with pytest.raises(HandleExpired):
        hold.downgrade(5)
    with pytest.raises(HandleExpired):
        assert hold.since
    hold.release()
    assert {each.purpose for each in controller.holds("flights")} == {"retention"}
    assert controller.describe("flights").holders == ()


def test_a_collection_waits_with_its_end_for_who_has_capabilities(
    stores: Stores, controller: StorageController
) -> None:
    read = controller.hold("flights", "audit")
    write = controller.acquire_write("flights", "loader")
    assert write.writer.upper() == 20
    write.downgrade(25)
    assert controller.frontiers("flights").upper == 25
    # What fills a rendition is no reader.
    controller.renditions.create("flights", shards=2)
    controller.renditions.catch_up("flights", "r2")
    other = StorageController(stores.open())
    with pytest.raises(CollectionInUse, match=r"'audit' on here, 'loader' on here"):
        other.drop_collection("flights")
    with pytest.raises(CollectionNotFound):
        other.hold("flights", "late")
    assert [str(wait) for wait in other.advance("flights").waits] == [
        "held by " + str(wait) for wait in _told(other)
    ]
    read.release()
    other.release_write("flights", "loader")
    assert [step.kind for step in other.advance("flights").steps] == [StepKind.DROP_COLLECTION]
    assert other.describe("c1").state is CollectionState.DROPPED
    assert other.holds("c1") == ()
    read.release()
    write.release()


def _told(controller: StorageController) -> list[str]:
    held = [each for each in controller.holds("flights") if not each.own]
    assert {each.kind for each in held} == {"read", "write"}
    where = {"read": " by ann at 0, for ", "write": " by ann, for "}
    return [f"{each}{where[each.kind]}{(each.age_ms or 0) // 1000} s" for each in held]


def test_force_ends_capabilities_too(controller: StorageController) -> None:
    read = controller.hold("flights", "audit")
    controller.acquire_write("flights", "loader")
    controller.renditions.create("flights", shards=2)
    dropped = controller.drop_collection("flights", force=True)
    assert (dropped.state, dropped.holders) == (CollectionState.DROPPED, ())
    with pytest.raises(CollectionNotFound):
        assert read.since
    with pytest.raises(CollectionNotFound):
        read.downgrade(10)
    read.release()


def test_readers_and_jobs_are_told_once(stores: Stores, controller: StorageController) -> None:
    reader = StorageController(stores.open(hostname="there")).reader("flights", purpose="look")
    reader.snapshot(12)
    job = controller.start_job("c1", "snapshot", "1", spec={})
    shards = (controller.describe("flights").metadata_shard, *controller.describe("flights").data_shards)
    for shard in shards:
        controller.client.critical_since(shard, purpose=f"job {job.job_id} attempt 1")
    told = [each for each in controller.holds("flights") if not each.own]
    assert [(each.purpose, each.host, each.durable) for each in told] == [
        ("look", "there", False),
        (f"job {job.job_id} attempt 1", "", True),
    ]
    assert told[0].lease_s is not None
    assert told[0].age_ms is None
    assert told[1].age_ms is not None


def test_what_took_over_with_all_it_needs_holds_nothing(controller: StorageController) -> None:
    promised = controller.client.recent_upper(controller.describe("flights").metadata_shard)
    controller.writer("flights", purpose="test").append(None, 20, promised)
    assert turned(controller, "r2") == promised
    assert {each.purpose for each in controller.holds("flights")} == {"retention"}
    # A copy differs in nothing from what it took over from.
    assert controller.advance("flights").steps == ()


def test_what_differs_with_a_handover_is_put_down_once(controller: StorageController) -> None:
    fed(controller, "r2")
    assert [str(step) for step in controller.advance("flights").steps] == [
        "r2: store the differences at its handover, for those who listen through it"
    ]
    shard = controller.describe("flights").holding.difference_shard
    assert controller.client.exists(shard)
    assert controller.advance("flights").steps == ()


def test_a_difference_that_nobody_can_read_is_not_due(controller: StorageController) -> None:
    at = fed(controller, "r2")
    controller.set_retention_hold("flights", at)
    assert [step.kind for step in controller.advance("flights").steps] == [StepKind.DROP_RENDITION]
    assert not controller.describe("flights").holding.difference_shard


def test_a_tail_that_nobody_brought_is_due(stores: Stores, controller: StorageController) -> None:
    controller.renditions.create("flights", shards=2)
    controller.renditions.catch_up("flights", "r2")
    waits = controller.advance("flights").waits
    assert [wait.rendition for wait in waits] == ["r2"]
    fed(controller, "r3")
    due = controller.advance("flights")
    assert [(step.kind, step.rendition) for step in due.steps] == [(StepKind.DIFFERENCE, "r3")]
    assert {wait.rendition for wait in due.waits} == {"r1", "r2"}


def test_the_history_tells_who_did_what_with_what_result(controller: StorageController) -> None:
    at = turned(controller, "r2")
    controller.renditions.create("flights", shards=1)
    controller.renditions.abort("flights", "r3")
    controller.hold("flights", "audit").release()
    told = controller.history("flights")
    assert [(each.kind.name, dict(each.result)) for each in told] == [
        ("CREATE_COLLECTION", {"shards": 3}),
        ("CREATE_RENDITION", {"rendition": "r2", "shards": 2, "recipe": "COPY"}),
        ("HAND_OVER", {"rendition": "r2", "at": at, "old": "r1", "shards": 2}),
        ("CREATE_RENDITION", {"rendition": "r3", "shards": 1, "recipe": "COPY"}),
        ("ABORT_RENDITION", {"rendition": "r3"}),
        ("ACQUIRE", {"purpose": "audit", "to": "read"}),
        ("RELEASE", {"purpose": "audit", "to": "read"}),
    ]
    assert {(each.who, each.host, each.token) for each in told} == {("ann", "here", "7")}


def test_nothing_is_held_for_less_than_no_time(controller: StorageController) -> None:
    """The wall clock of who asks is behind that of who took it."""
    controller.hold("flights", "audit")
    controller.acquire_write("flights", "loader")
    info = controller.describe("flights")
    shards = {shard: controller.client.inspect(shard) for shard in (info.metadata_shard, *info.data_shards)}
    holds = collection_holds(info, shards, (), now_ms=1)
    assert {(each.kind, each.purpose): each.age_ms for each in holds} == {
        ("read", "retention"): 0,
        ("read", "audit"): 0,
        ("write", "loader"): 0,
    }
