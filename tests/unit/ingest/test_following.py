"""A rendition follows another one: the same messages at the same times, until it takes over."""

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from holdfast.collections import Recipe, RenditionInfo, StorageController
from holdfast.errors import BadInput, HandoverInProgress, NotCaughtUp, SourceStalled, StorageError
from holdfast.ingest import Ingestion, StepOutcome, parse
from holdfast.ingest.made_from import made_from
from holdfast.ingest.opened import format_of
from holdfast.persist import PersistClient
from holdfast.persist.clock import Clock
from holdfast.persist.rows.schema import DIFF
from testbed.faults import Fault, FaultPlan, ProcessDeath, ScriptedPlan
from unit.collections.stores import Stores
from unit.ingest.pipelines import bad, created, drained, positions, row, rows
from unit.ingest.topic import Topic

NONE = {"generator": {"rows": 1}, "format": {"json": {}}, "run": {"progressInterval": "0s"}}
UPSERT = {**NONE, "envelope": "Upsert"}


class Moved(Clock):
    """The clock of the stores and of all processes, which tests move."""

    now = 1_700_000_000_000

    def wall_ms(self) -> int:
        self.now += 1
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * 1000)


class World:
    """The stores, a topic that keeps its messages, and pipelines of renditions."""

    def __init__(self, envelope: str = "None", **topic: Any) -> None:
        self.clock = Moved()
        self.open = Stores(self.clock).open
        self.topic = Topic(**{"deletes": False, **topic})
        self.client = self.open()
        created(self.client)
        self.controller = StorageController(self.client)
        self.block = UPSERT if envelope == "Upsert" else NONE

    def pipeline(
        self,
        rendition: str = "",
        client: PersistClient | None = None,
        *,
        anew: bool = False,
        **changes: Any,
    ) -> Ingestion:
        spec = parse({**self.block, **changes})
        controller = StorageController(client or self.client)
        form = partial(format_of, spec)
        return Ingestion(controller, "orders", spec, self.topic, form, rendition=rendition, anew=anew)

    def create(self, id_: str = "r2", *, follows: bool = True, **changes: Any) -> None:
        self.controller.renditions.create(
            "orders",
            shards=1,
            recipe=Recipe.SOURCE,
            pipeline=True,
            made_from=made_from(parse({**self.block, **changes}), follows=follows),
            rendition_id=id_,
        )

    def hand_over(self, id_: str = "r2") -> RenditionInfo:
        return self.controller.renditions.hand_over("orders", id_)

    def pass_to(self, time: int) -> None:
        self.clock.now = max(self.clock.now, time)

    def of(self, id_: str, at: int) -> Counter[tuple[Any, ...]]:
        """The contents of a rendition, current or not."""
        found: Counter[tuple[Any, ...]] = Counter()
        for shard in self.controller.describe("orders").rendition(id_).shards:
            with self.client.reader(shard, purpose="check") as reader:
                for each in reader.snapshot(at).to_table().to_pylist():
                    found[each["id"], each["name"]] += each[DIFF]
        return Counter({each: count for each, count in found.items() if count})

    def upper(self, id_: str) -> int:
        shard = self.controller.describe("orders").rendition(id_).shards[0]
        return self.client.recent_upper(shard)

    def times(self, id_: str, after: int) -> Iterator[int]:
        """The times at which a rendition changed."""
        pipeline = self.controller.describe("orders").rendition(id_).pipeline
        assert pipeline is not None
        with self.client.reader(pipeline.remap, purpose="check") as reader:
            yield from (first for first, _, _ in reader.change_counts(after) if first > after)


def ended(world: World, feed: Ingestion) -> None:
    """Take steps until the rendition is complete."""
    for _ in range(100):
        if feed.step().outcome is StepOutcome.HANDED_OVER:
            return
        world.clock.now += 1000
    raise AssertionError("it does not end")


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_a_follower_has_the_same_messages_at_the_same_times(envelope: str) -> None:
    world = World(envelope)
    numbers = iter(range(1000))

    def send(count: int) -> None:
        for number in (next(numbers) for _ in range(count)):
            world.topic.send(str(number % 3), row(number % 7, str(number)), key={"id": number % 7})

    send(20)
    feed = world.pipeline(batch={"maxRows": 3})
    drained(feed)
    world.create()
    follower = world.pipeline("r2", batch={"maxRows": 4})
    # What was bound before is read in several commits, and then all at one time.
    filled = [follower.step() for _ in range(20)]
    joined = world.upper("r2")
    assert [each.messages for each in filled if each.messages] == [4, 4, 4, 4, 4] or envelope == "Upsert"
    assert joined == world.upper("r1")
    for _ in range(5):
        send(4)
        drained(feed)
    drained(follower)
    assert world.upper("r2") == world.upper("r1")
    changed = list(world.times("r1", joined))
    assert len(changed) >= 10
    assert changed == list(world.times("r2", joined))
    for at in (joined - 1, *changed):
        assert world.of("r1", at) == world.of("r2", at), at
    assert sum(world.of("r2", changed[-1]).values()) == (7 if envelope == "Upsert" else 40)


def test_a_handover_between_pipelines_while_readers_read() -> None:
    world = World()
    world.topic.send("0", *(row(number) for number in range(5)))
    feed = world.pipeline()
    drained(feed)
    # The new rendition keeps only the last value of each key.
    world.create(envelope="Upsert")
    follower = world.pipeline("r2", envelope="Upsert")
    for number in (1, 1, 2):
        world.topic.send("0", row(number, "again"), key={"id": number})
    drained(feed)
    drained(follower)
    t_h = world.hand_over().held_from
    world.topic.send("1", row(1, "late"), key={"id": 1})
    # The old pipeline writes up to its end, and the new one waits for it.
    assert drained(feed) == 1
    assert drained(follower) == 1
    assert world.controller.frontiers("orders").upper <= t_h
    world.pass_to(t_h)
    ended(world, feed)
    assert world.topic.forgotten
    world.topic.send("1", row(9, "new"), key={"id": 9})
    drained(follower)
    assert positions(world.client) == {"0": 8, "1": 2}
    before, at, now = (rows(world.client, each) for each in (t_h - 1, t_h, world.upper("r2") - 1))
    assert before[1, "x"] == 1
    assert before[1, "again"] == 2
    assert before[1, "late"] == 1
    assert sum(before.values()) == 9
    assert at == Counter({(0, "x"): 1, (1, "late"): 1, (2, "again"): 1, (3, "x"): 1, (4, "x"): 1})
    assert now == at + Counter({(9, "new"): 1})


def test_a_rendition_that_lags_takes_over_without_a_new_message() -> None:
    world = World()
    world.topic.send("0", row(1))
    drained(world.pipeline())
    world.create(envelope="Upsert")
    drained(world.pipeline("r2", envelope="Upsert"))
    world.topic.send("0", row(1, "again"))
    drained(world.pipeline())
    # It lacks the second message by now, and may take over.
    t_h = world.hand_over().held_from
    both = Counter({(1, "x"): 1, (1, "again"): 1})
    assert rows(world.client) == both
    world.pipeline("r2", envelope="Upsert").run(once=True)
    assert (world.upper("r2") < t_h, rows(world.client)) == (True, both)
    world.pass_to(t_h)
    world.pipeline("r2", envelope="Upsert").run(once=True)
    assert rows(world.client, t_h - 1) == both
    assert rows(world.client) == rows(world.client, t_h) == Counter({(1, "again"): 1})
    upper = world.upper("r2")
    world.pipeline("r2", envelope="Upsert").run(once=True)
    assert world.upper("r2") == upper


def test_a_pipeline_whose_rendition_was_handed_over_never_writes_the_next_one() -> None:
    world = World()
    world.topic.send("0", row(1))
    feed = world.pipeline()
    drained(feed)
    world.create()
    follower = world.pipeline("r2")
    drained(follower)
    t_h = world.hand_over().held_from
    world.pass_to(t_h)
    world.topic.send("0", row(2))
    # It has not heard of the handover, and reads the message first.
    ended(world, feed)
    ended(world, feed)
    drained(follower)
    assert positions(world.client, t_h - 1) == {"0": 1}
    assert rows(world.client) == Counter({(1, "x"): 1, (2, "x"): 1})


def test_if_the_old_pipeline_is_dead_the_new_one_completes_it() -> None:
    world = World()
    world.topic.send("0", row(1))
    drained(world.pipeline())
    world.create()
    drained(world.pipeline("r2"))
    # The last thing that the old pipeline bound, and nobody followed.
    world.topic.send("0", row(2))
    drained(world.pipeline())
    t_h = world.hand_over().held_from
    follower = world.pipeline("r2")
    world.topic.send("0", row(3))
    drained(follower)
    assert world.upper("r2") < t_h
    world.pass_to(t_h)
    drained(follower)
    assert rows(world.client, t_h - 1) == Counter({(1, "x"): 1, (2, "x"): 1})
    assert rows(world.client) == Counter({(1, "x"): 1, (2, "x"): 1, (3, "x"): 1})


@pytest.mark.parametrize("fault", [each for each in Fault if each is not Fault.NONE])
def test_a_fault_at_any_write_of_a_follower_and_of_the_handover(fault: Fault) -> None:
    def run(world: World, plan: FaultPlan | None) -> None:
        client = world.open(plan)
        follower = world.pipeline("r2", client)
        drained(follower)
        if len(world.topic.partitions) == 1:
            world.topic.send("1", *(row(number) for number in range(10, 14)))
            drained(world.pipeline(batch={"maxRows": 3}))
        drained(follower)
        taken = StorageController(client).renditions.hand_over("orders", "r2")
        world.pass_to(taken.held_from)
        world.topic.partitions.setdefault("2", [])
        if not world.topic.partitions["2"]:
            world.topic.send("2", row(20))
        drained(follower)

    for number in range(200):
        world = World()
        world.topic.send("0", *(row(number) for number in range(5)))
        drained(world.pipeline(batch={"maxRows": 2}))
        world.create()
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        try:
            run(world, plan)
        except (StorageError, ProcessDeath):
            run(world, None)
        t_h = world.controller.describe("orders").holding.held_from
        before = Counter((number, "x") for number in [*range(5), *range(10, 14)])
        assert rows(world.client, t_h - 1) == world.of("r2", t_h - 1) == before
        assert rows(world.client) == before + Counter([(20, "x")])
        assert positions(world.client) == {"0": 5, "1": 4, "2": 1}
        if plan.seen <= number:
            assert number > 8
            return
    raise AssertionError("the work never ends")


@pytest.mark.parametrize("changed", ["fewer", "other"])
@pytest.mark.parametrize("phase", ["filling", "following"])
def test_other_messages_than_the_leader_had_are_gone(changed: str, phase: str) -> None:
    world = World(piece=100)
    world.topic.send("0", *(row(number) for number in range(5)))
    feed = world.pipeline()
    drained(feed)
    world.create()
    follower = world.pipeline("r2")
    if phase == "following":
        drained(follower)
        world.topic.send("0", *(row(number) for number in range(5, 8)))
        drained(feed)
    if changed == "fewer":
        # A compacted topic.
        world.topic.holes.add(("0", len(world.topic.partitions["0"]) - 2))
    else:
        world.topic.partitions["0"][-2] = (None, b'{"id": 77}')
    before = world.upper("r2")
    if (changed, phase) == ("other", "filling"):
        drained(follower)  # Only the numbers of messages are compared.
        return
    with pytest.raises(SourceStalled, match=r"rendition r2 of collection orders can't get the same messages"):
        drained(follower)
    assert world.upper("r2") in {before, before + 1}
    if phase == "following":
        with pytest.raises(BadInput, match="r2 of collection orders is suspect: partition 0 has"):
            world.hand_over()
    world.topic.send("1", row(100))
    assert drained(feed) == 1


def test_a_follower_of_messages_that_are_deleted_says_so() -> None:
    world = World()
    world.topic.send("0", row(1), row(2))
    drained(world.pipeline())
    world.topic.low["0"] = 1
    world.create()
    with pytest.raises(SourceStalled, match=r"messages 0 to 1 of partition 0 are gone .*topic") as caught:
        drained(world.pipeline("r2"))
    assert "--anew" in str(caught.value.hint)
    with pytest.raises(NotCaughtUp, match="r2 of collection orders is not filled yet"):
        world.hand_over()


def test_nothing_is_acknowledged_that_a_follower_still_needs() -> None:
    world = World(deletes=True)
    world.create()
    feed, follower = world.pipeline(), world.pipeline("r2")
    world.topic.send("0", row(1), row(2))
    drained(feed)
    assert world.topic.acknowledged == {}
    drained(follower)
    world.topic.send("0", row(3))
    drained(feed)
    assert world.topic.acknowledged == {"0": 2}
    drained(follower)
    world.pass_to(world.hand_over().held_from)
    ended(world, feed)
    drained(follower)
    world.topic.send("0", row(4))
    drained(follower)
    assert world.topic.acknowledged == {"0": 4}
    assert sum(rows(world.client).values()) == 4


def test_a_rendition_that_begins_anew_takes_over_once_it_has_what_was_there() -> None:
    world = World()
    world.topic.send("0", *(row(number) for number in range(6)))
    drained(world.pipeline())
    world.topic.low["0"] = 2
    world.topic.begins = {"0": 2}
    world.create(follows=False)
    feed = world.pipeline("r2", batch={"maxRows": 1})
    for _ in range(3):
        feed.step()
    with pytest.raises(NotCaughtUp):
        world.hand_over()
    assert drained(feed) >= 1
    t_h = world.hand_over().held_from
    world.pass_to(t_h)
    drained(feed)
    world.topic.send("0", row(6))
    drained(feed)
    assert rows(world.client, t_h - 1) == Counter((number, "x") for number in range(6))
    assert rows(world.client) == Counter((number, "x") for number in range(2, 7))


def test_another_decoder_does_not_write_a_rendition() -> None:
    world = World()
    world.create(envelope="Upsert")
    with pytest.raises(BadInput, match=r"r2 .* is made with envelope Upsert, format json, and the spec has"):
        world.pipeline("r2")
    with pytest.raises(BadInput, match="has or had another rendition r2"):
        world.create()
    with pytest.raises(BadInput, match="no rendition r9"):
        world.pipeline("r9")


def test_a_follower_keeps_its_own_bad_records() -> None:
    world = World()
    world.topic.send("0", row(1), b"bad", row(2))
    drained(world.pipeline())
    world.create()
    follower = world.pipeline("r2")
    drained(follower)
    world.topic.send("0", b"worse")
    drained(world.pipeline())
    drained(follower)
    world.pass_to(world.hand_over().held_from)
    drained(follower)
    assert bad(world.client) == [("0", 1, "decode"), ("0", 3, "decode")]


def test_a_follower_behind_the_retention_is_filled_again() -> None:
    world = World()
    feed = world.pipeline()
    world.topic.send("0", row(1))
    drained(feed)
    world.create()
    drained(world.pipeline("r2"))
    for number in range(2, 8):
        world.topic.send("0", row(number))
        drained(feed)
    world.controller.set_retention_hold("orders", world.upper("r1") - 1)
    follower = world.pipeline("r2", batch={"maxRows": 2})
    drained(follower)
    assert world.upper("r2") == world.upper("r1")
    assert world.of("r2", world.upper("r2") - 1) == Counter((number, "x") for number in range(1, 8))


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(each, marks=pytest.mark.long) for each in range(3, 60))]
)
def test_any_order_of_steps_handovers_and_new_processes(seed: int) -> None:
    chance = random.Random(seed)
    world = World(chance.choice(["None", "Upsert"]))
    feeds: list[Ingestion] = [world.pipeline(batch={"maxRows": 3})]
    sent, count, handovers = 0, 1, 0
    for _ in range(150):
        act = chance.random()
        if act < 0.25:
            world.topic.send(str(sent % 5 % 2), row(sent % 5, str(sent)), key={"id": sent % 5})
            sent += 1
        elif act < 0.8 and feeds:
            feed = chance.choice(feeds)
            if feed.step().outcome is StepOutcome.HANDED_OVER:
                feeds.remove(feed)
        elif act < 0.88:
            info = world.controller.describe("orders")
            id_ = chance.choice([each.id for each in info.live])
            feeds.append(world.pipeline(id_, world.open(), batch={"maxRows": chance.randint(1, 5)}))
        elif act < 0.92 and len(feeds) > 1:
            feeds.remove(chance.choice(feeds))
        elif act < 0.95:
            count += 1
            world.create(f"r{count}")
            feeds.append(world.pipeline(f"r{count}"))
        elif count > 1:
            try:
                world.hand_over(f"r{chance.randint(2, count)}")
                handovers += 1
            except (NotCaughtUp, BadInput, HandoverInProgress):
                pass
        world.clock.now += chance.choice([0, 0, 50, 12_000])
    current = world.controller.describe("orders").holding
    world.pass_to(current.held_from)
    last = world.pipeline(current.id)
    for _ in range(100):
        if last.step().outcome is StepOutcome.IDLE and sum(positions(world.client).values()) == sent:
            break
    messages = [(number % 5, str(number)) for number in range(sent)]
    wanted = Counter(messages) if world.block is NONE else Counter(dict(messages).items())
    assert positions(world.client) == dict(Counter(str(number % 5 % 2) for number in range(sent)))
    assert rows(world.client) == wanted
    # Each time of the collection has exactly what its offsets say.
    held = [each for each in world.controller.describe("orders").held if each.pipeline is not None]
    for each in held:
        for at in world.times(each.id, each.held_from):
            if each.held_from <= at < min(each.held_to, world.upper(current.id)):
                offsets = positions(world.client, at)
                assert sum(rows(world.client, at).values()) == sum(offsets.values()) or world.block is UPSERT
