"""Several renditions of a collection that is fed from another one, and handovers of both collections."""

from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from holdfast.collections import Recipe, StorageController
from holdfast.ingest import StepOutcome
from holdfast.ingest.kept import errors, offsets
from holdfast.persist.admin.manual import compact_now
from unit.collections.stores import Stores
from unit.ingest.pipelines import drained as drained_topic
from unit.ingest.pipelines import pipeline
from unit.ingest.reclockedworld import RawCollection, bad, contents, drained, feeding, good, upper
from unit.ingest.test_following import Moved
from unit.ingest.topic import Topic


class World:
    """The raw collection goes on with the clock."""

    def __init__(self) -> None:
        self.clock = Moved()
        self.open = Stores(self.clock).open
        self.client = self.open()
        self.controller = StorageController(self.client)
        self.raw = RawCollection(self.client)

    def write(self, *rows: Any, diff: int = 1, wait_ms: int = 0) -> int:
        self.clock.now += wait_ms
        time = max(self.clock.wall_ms(), self.raw.upper)
        self.raw.write(time, *rows, diff=diff)
        return time


def test_the_hold_moves_with_what_is_fed() -> None:
    world = World()
    with feeding(world.client) as ingestion:
        world.write(good(1))
        drained(ingestion)
        for _ in range(3):
            world.write(good(1), wait_ms=6_000)
            drained(ingestion)
            (since,) = (each.since for each in world.controller.holds("raw") if each.durable and not each.own)
            assert since == world.raw.upper - 1
            world.controller.set_retention_hold("raw", world.raw.upper - 1)
            assert world.controller.frontiers("raw").since == since


@pytest.mark.parametrize("runs", ["both pipelines", "only the new one"])
def test_a_second_rendition_fixes_a_decoder(runs: str) -> None:
    world = World()
    client, raw = world.client, world.raw
    world.write(good(1), bad(1))
    # The first rendition doesn't know the column 'name'.
    only_id = {"columns": {"value": "value"}}
    include = {"record": "name"}
    with ExitStack() as stack:
        first = stack.enter_context(feeding(client, source=only_id, include=include))
        drained(first)
        before = world.write(good(2))
        drained(first)
        second = stack.enter_context(feeding(client, rendition="r2"))
        drained(second)
        assert drained(second) == 0
        taken = world.controller.renditions.hand_over("orders", "r2")
        # What comes before the handover must still get into the first one.
        late = world.write(good(3), bad(3), wait_ms=10)
        assert late < taken.held_from
        after = world.write(good(1), diff=-1, wait_ms=taken.held_from - late + 100)
        assert after > taken.held_from
        if runs == "both pipelines":
            assert drained(first) > 0
            assert first.step().outcome is StepOutcome.HANDED_OVER
        drained(second)
        assert upper(client) == raw.upper
        for time in (before, late, taken.held_from - 1):
            names = {name for _, name in contents(client, time)}
            lines = [value or b"" for _, value in raw.at(time)]
            assert names == {line.decode() for line in lines if line[:1] == b"{"}
        for time in (taken.held_from, after):
            assert contents(client, time) == raw.decoded(time)
            assert len(errors(world.controller, "orders", time)[1]) == 2
        drained(second)
    holds = [each.purpose for each in world.controller.holds("raw") if each.durable and not each.own]
    assert [each.rsplit("/")[-1] for each in holds] == ["r2"]


def test_the_pipeline_of_another_source_does_not_complete_what_a_collection_feeds() -> None:
    world = World()
    world.write(good(1))
    with feeding(world.client) as first:
        drained(first)
        topic = Topic()
        topic.send("0", {"id": 7, "name": "new"})
        world.controller.renditions.create(
            "orders", shards=1, recipe=Recipe.SOURCE, pipeline=True, rendition_id="r2"
        )
        second = pipeline(world.client, topic, rendition="r2")
        drained_topic(second)
        taken = world.controller.renditions.hand_over("orders", "r2")
        late = world.write(good(3), wait_ms=10)
        assert late < taken.held_from
        world.write(good(4), wait_ms=taken.held_from - late + 100)
        topic.send("0", {"id": 8, "name": "new"})
        drained_topic(second)
        assert upper(world.client) < taken.held_from
        drained(first)
    assert upper(world.client) >= taken.held_from
    assert contents(world.client, taken.held_from - 1) == Counter({(1, "x"): 1, (3, "x"): 1})
    assert contents(world.client, taken.held_from) == Counter({(7, "new"): 1})


def test_a_handover_of_the_source_is_read_through() -> None:
    world = World()
    client, raw = world.client, world.raw
    for most in (1000, 3):
        world.write(*(good(each) for each in range(10)), bad(1))
        with feeding(client, batch={"maxRows": most}, name="orders") as ingestion:
            drained(ingestion)
            made = raw.controller.renditions.create("raw", shards=3)
            raw.controller.renditions.catch_up("raw", made.id)
            world.write(good(1), diff=-1)
            taken = raw.controller.renditions.hand_over("raw", made.id)
            raw.upper = taken.held_from
            world.clock.now = max(world.clock.now, taken.held_from)
            last = world.write(good(2), bad(1), diff=-1)
            drained(ingestion)
        assert upper(client) == raw.upper
        for time in (taken.held_from - 1, taken.held_from, last):
            assert contents(client, time) == raw.decoded(time)


@pytest.mark.parametrize("most", [1000, 3])
@pytest.mark.parametrize("compacted", [False, True])
def test_the_difference_at_a_handover_of_the_source_comes_at_its_time(most: int, compacted: bool) -> None:
    world = World()
    client = world.client
    world.write(*(good(each) for each in range(10)), bad(1))
    copy: dict[str, Any] = {"source": {"name": "orders"}, "name": "copies", "batch": {"maxRows": most}}
    times = []
    with feeding(client, include={"record": "name"}) as first, feeding(client, rendition="r2") as second:
        drained(first)
        with feeding(client, "rows", **copy) as copies:
            drained(copies)
            times.append(world.write(good(1), diff=-1))
            for each in (first, second, copies):
                drained(each)
            taken = world.controller.renditions.hand_over("orders", "r2").held_from
            times.append(world.write(good(20), wait_ms=10))
            times += [taken - 1, taken]
            world.raw.write(taken, good(21), good(2))
            world.clock.now = taken + 10
            times.append(world.write(good(22), good(3)))
            drained(first)
            drained(second)
            if compacted:
                world.controller.renditions.make_difference("orders")
                for rendition in world.controller.describe("orders").live:
                    for shard in rendition.shards:
                        compact_now(client, shard, full=True)
            drained(copies)
    assert upper(client, "copies") == upper(client, "orders") == world.raw.upper
    for time in times:
        assert contents(client, time, "copies") == contents(client, time), time
    assert contents(client, taken, "copies") != contents(client, taken - 1, "copies")
    (binding,) = offsets(world.controller, "copies", taken)[1].to_pylist()
    assert binding["position"] == taken + 1
