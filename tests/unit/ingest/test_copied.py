"""A copy of a rendition that a source feeds, such as one with more shards, is fed on by its pipeline."""

import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from holdfast.collections import Recipe, StorageController
from holdfast.errors import (
    BadInput,
    HandleExpired,
    NotCaughtUp,
    StorageError,
)
from holdfast.ingest import Ingestion
from testbed.faults import Fault, ProcessDeath, ScriptedPlan, SeededPlan
from unit.ingest.pipelines import bad, drained, positions, row, rows
from unit.ingest.test_following import World, ended
from unit.ingest.test_restored import is_over, send, totals

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


def copied(world: World, id_: str = "r2", **how: Any) -> int:
    """Create a copy, fill it, and hand over to it. Returns the time from which it is current."""
    world.controller.renditions.create("orders", shards=3, rendition_id=id_, **how)
    world.controller.hydrate("orders", id_)
    return world.hand_over(id_).held_from


def kept_by(world: World, id_: str, at: int) -> list[list[dict[str, Any]]]:
    """What the pipeline of a rendition keeps, current or not."""
    pipeline = world.controller.describe("orders").rendition(id_).pipeline
    assert pipeline is not None
    found = []
    for shard in pipeline.all:
        with world.client.reader(shard, purpose="check") as reader:
            found.append(sorted(reader.snapshot(at).to_table().to_pylist(), key=str))
    return found


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_a_copy_is_fed_on(envelope: str) -> None:
    world = World(envelope, deletes=True)
    send(world, range(25))
    feed = world.pipeline(batch={"maxRows": 4})
    drained(feed)
    world.controller.renditions.create("orders", shards=3, rendition_id="r2")
    world.controller.hydrate("orders", "r2")
    with pytest.raises(BadInput, match="r2 of collection orders is being filled from the collection"):
        world.pipeline("r2")
    # What is new meanwhile is copied too, and a bad record that a good one has ended.
    send(world, range(25, 47))
    drained(feed)
    world.controller.renditions.catch_up("orders", "r2")
    send(world, range(47, 52))
    drained(feed)
    before = rows(world.client), totals(world.client), bad(world.client)
    at = world.hand_over().held_from
    assert (rows(world.client), totals(world.client), bad(world.client)) == before
    assert kept_by(world, "r2", at - 1) == kept_by(world, "r1", at - 1)
    assert world.of("r2", at - 1) == world.of("r1", at - 1)
    ended(world, feed)
    send(world, range(52, 60))
    drained(world.pipeline())
    assert sum(position for position, _ in totals(world.client).values()) == 60
    assert len(world.controller.describe("orders").holding.shards) == 3
    if envelope == "None":
        assert rows(world.client) == Counter((each % 7, str(each)) for each in range(60) if each % 10 != 9)
        assert len(bad(world.client)) == 6
    with pytest.raises(BadInput, match="written by a source"):
        world.controller.writer("orders", purpose="test")


def test_a_copy_without_a_pipeline_is_a_table() -> None:
    world = World()
    send(world, range(5))
    drained(world.pipeline())
    copied(world, pipeline=False)
    writer = world.controller.writer("orders", purpose="test")
    writer.append([{"id": 9, "name": "table"}], writer.upper(), writer.upper() + 1)
    with pytest.raises(BadInput, match="keeps nothing for a pipeline"):
        world.pipeline()


def test_a_copy_does_not_take_over_from_a_pipeline_that_it_can_not_continue() -> None:
    world = World()
    send(world, range(5))
    drained(world.pipeline())
    world.controller.renditions.create("orders", shards=3, rendition_id="r2")
    world.controller.hydrate("orders", "r2")
    world.create("r3", envelope="Upsert")
    drained(world.pipeline("r3", envelope="Upsert"))
    world.pass_to(world.hand_over("r3").held_from)
    drained(world.pipeline("r3", envelope="Upsert"))
    send(world, range(5, 8))
    drained(world.pipeline("r3", envelope="Upsert"))
    for act in (world.hand_over, lambda: world.controller.renditions.catch_up("orders", "r2")):
        with pytest.raises(BadInput, match="now r3 is current, which has another one"):
            act()
    world.controller.renditions.abort("orders", "r2")
    assert positions(world.client) == {"0": 3, "1": 3, "2": 2}


def resharded(world: World, plan: ScriptedPlan | None) -> None:
    """Create a copy, fill it and hand over to it, or continue that, as another process."""
    controller = StorageController(world.open(plan))
    controller.renditions.create("orders", shards=3, rendition_id="r2")
    if controller.describe("orders").holding.id == "r1":
        controller.hydrate("orders", "r2")
    controller.renditions.hand_over("orders", "r2")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=[] if each is Fault.DEATH_AFTER else pytest.mark.long) for each in FAULTS],
)
def test_a_fault_at_any_write_of_a_copy(fault: Fault) -> None:
    for number in range(200):
        world = World()
        send(world, range(10))
        feed = world.pipeline(batch={"maxRows": 3})
        drained(feed)
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)

        try:
            resharded(world, plan)
        except (StorageError, ProcessDeath):
            # The pipeline may be the first that finds the tail missing.
            send(world, range(10, 14))
            drained(world.pipeline())
            resharded(world, None)
        if sum(map(len, world.topic.partitions.values())) == 10:
            send(world, range(10, 14))
        drained(world.pipeline())
        info = world.controller.describe("orders")
        at = info.holding.held_from
        assert info.holding.id == "r2"
        assert rows(world.client) == Counter((each % 7, str(each)) for each in range(14) if each != 9)
        assert positions(world.client) == {"0": 5, "1": 5, "2": 4}
        assert len(bad(world.client)) == 1
        assert world.of("r2", at - 1) == world.of("r1", at - 1)
        holds = [each.purpose for each in world.controller.holds("orders") if each.durable]
        assert "rendition r2" not in holds
        if plan.seen <= number:
            assert number > 6
            return
    raise AssertionError("the copy never ends")


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(each, marks=pytest.mark.long) for each in range(2, 30))]
)
def test_any_order_of_steps_copies_and_handovers(seed: int) -> None:
    """In every other world the stores fail, and processes die."""
    chance = random.Random(seed)
    rate, death_rate = (0.02, 0.01) if seed % 2 else (0.0, 0.0)

    def opened() -> Any:
        return world.open(SeededPlan(chance.getrandbits(32), rate=rate, death_rate=death_rate))

    world = World(chance.choice(["None", "Upsert"]), deletes=chance.random() < 0.5)
    feeds: list[Ingestion] = [world.pipeline(batch={"maxRows": 3})]
    sent = made = 0
    for _ in range(150):
        act = chance.random()
        if act < 0.25:
            world.topic.send(str(sent % 5 % 2), row(sent % 5, str(sent)), key={"id": sent % 5})
            sent += 1
        elif act < 0.75 and feeds:
            feed = chance.choice(feeds)
            if is_over(feed):
                feeds.remove(feed)
        elif act < 0.83:
            with suppress(StorageError, ProcessDeath):
                feeds.append(world.pipeline(client=opened(), batch={"maxRows": chance.randint(1, 5)}))
        elif act < 0.88:
            with suppress(StorageError, ProcessDeath):
                StorageController(opened()).renditions.create("orders", shards=chance.randint(1, 3))
                made += 1
        else:
            filling = [each.id for each in world.controller.describe("orders").live if each.shards]
            id_ = chance.choice(filling)
            with suppress(StorageError, ProcessDeath, BadInput, NotCaughtUp, HandleExpired):
                controller = StorageController(opened())
                if chance.random() < 0.6:
                    controller.hydrate("orders", id_)
                else:
                    controller.renditions.hand_over("orders", id_, max_lag_ms=1 << 40)
        world.clock.now += chance.choice([0, 0, 50, 12_000])
    current = world.controller.describe("orders").holding
    world.pass_to(current.held_from)
    drained(world.pipeline())
    messages = [(each % 5, str(each)) for each in range(sent)]
    wanted = Counter(messages) if "envelope" not in world.block else Counter(dict(messages).items())
    assert positions(world.client) == dict(Counter(str(each % 5 % 2) for each in range(sent)))
    assert rows(world.client) == wanted
    for each in world.controller.describe("orders").held:
        assert (each.recipe is Recipe.COPY) is (each.id != "r1")
        for at in (each.held_from, *world.times(each.id, each.held_from)):
            if at < min(each.held_to, world.upper(current.id)):
                found = sum(positions(world.client, at).values())
                assert sum(rows(world.client, at).values()) == found or "envelope" in world.block


def test_the_tail_of_a_copy_comes_from_the_rendition_before_it_and_not_from_the_source() -> None:
    for number in range(50):
        world = World()
        send(world, range(6))
        feed = world.pipeline()
        drained(feed)
        world.controller.renditions.create("orders", shards=3, rendition_id="r2")
        world.controller.hydrate("orders", "r2")
        send(world, range(6, 12))
        drained(feed)
        plan = ScriptedPlan({number: Fault.DEATH_BEFORE}, matches=lambda operation: operation.writes)
        with suppress(ProcessDeath):
            StorageController(world.open(plan)).renditions.hand_over("orders", "r2")
        at = world.controller.describe("orders").rendition("r2").held_from
        if not 0 < world.upper("r2") < at < 1 << 62:
            continue
        world.topic.low = {"0": 4, "1": 4, "2": 4}
        send(world, range(12, 15))
        drained(world.pipeline())
        assert positions(world.client) == {"0": 5, "1": 5, "2": 5}
        assert world.of("r2", at - 1) == world.of("r1", at - 1)
        assert kept_by(world, "r2", at - 1) == kept_by(world, "r1", at - 1)
        return
    raise AssertionError("the handover never lacks a tail")
