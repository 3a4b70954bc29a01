"""Death and unknown outcomes at every durable operation of a pipeline, and the next one goes on."""

from collections import Counter
from typing import Any

import pytest

from holdfast.errors import StorageError
from holdfast.persist import PersistClient
from testbed.faults import Fault, ProcessDeath, ScriptedPlan
from unit.collections.stores import Stores
from unit.ingest.pipelines import created, drained, pipeline, positions, rows
from unit.ingest.topic import Topic

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]
MESSAGES = [(number % 3, {"id": number % 4, "name": str(number)}) for number in range(11)]
BLOCKS: list[dict[str, Any]] = [{}, {"envelope": "Upsert"}]


def feed(client: PersistClient, topic: Topic, block: dict[str, Any]) -> None:
    """Send and feed, some messages at a time. What was sent before is not sent again."""
    sent = sum(map(len, topic.partitions.values()))
    while True:
        drained(pipeline(client, topic, batch={"maxRows": 3}, **block))
        if sent == len(MESSAGES):
            return
        for partition, row in MESSAGES[sent : sent + 4]:
            topic.send(str(partition), row, key={"id": row["id"]})
        sent = min(sent + 4, len(MESSAGES))


def uninterrupted(block: dict[str, Any]) -> Counter[tuple[Any, ...]]:
    stores = Stores()
    created(stores.open())
    feed(stores.open(), Topic(), block)
    return rows(stores.open())


@pytest.mark.parametrize(
    "block",
    [pytest.param(BLOCKS[0], id="none", marks=pytest.mark.long), pytest.param(BLOCKS[1], id="upsert")],
)
@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=[] if each is Fault.DEATH_AFTER else pytest.mark.long) for each in FAULTS],
)
def test_a_fault_at_any_write_changes_nothing(fault: Fault, block: dict[str, Any]) -> None:
    wanted = uninterrupted(block)
    assert sum(wanted.values()) == (4 if block else len(MESSAGES))
    for number in range(200):
        stores = Stores()
        created(stores.open())
        topic = Topic()
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        try:
            feed(stores.open(plan), topic, block)
        except (StorageError, ProcessDeath):
            feed(stores.open(), topic, block)
        assert rows(stores.open()) == wanted
        assert positions(stores.open()) == topic.low == {"0": 4, "1": 4, "2": 3}
        if plan.seen <= number:
            assert number > 5
            return
    raise AssertionError("the work never ends")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.long
def test_another_pipeline_may_be_at_work(fault: Fault) -> None:
    wanted = uninterrupted({})
    for number in range(0, 30, 3):
        stores = Stores()
        created(stores.open())
        topic = Topic()
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        twin = pipeline(stores.open(), topic, batch={"maxRows": 2})
        broken = None
        for partition, row in MESSAGES:
            topic.send(str(partition), row, key={"id": row["id"]})
            twin.step()
            try:
                broken = broken or pipeline(stores.open(plan), topic, batch={"maxRows": 3})
                broken.step()
            except (StorageError, ProcessDeath):
                broken = pipeline(stores.open(), topic, batch={"maxRows": 3})
        assert broken is not None
        drained(twin)
        drained(broken)
        assert rows(stores.open()) == wanted
        assert plan.seen > number
