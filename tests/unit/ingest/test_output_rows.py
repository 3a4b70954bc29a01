"""Without a copy of the output, the rows of a step's keys are looked up in it. The outcome is the same."""

import random
from collections import Counter
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from holdfast.collections import CollectionSpec, StorageController
from holdfast.ingest import Ingestion, IngestStep, StepOutcome, ingestion
from holdfast.ingest.envelope import UpsertState
from holdfast.ingest.kept import errors
from holdfast.ingest.output_rows import OutputRows
from holdfast.persist import PersistClient, Schema
from unit.collections.stores import NoWait, Stores
from unit.ingest.pipelines import SCHEMA, bad, created, drained, pipeline, row, rows
from unit.ingest.topic import Topic

NEVER, ALWAYS = -1, 1 << 40
"""How large a copy may be: none at all, and as large as it gets."""
FLOATS = Schema.of({"id": "float64", "tenant": "string?"}, {"name": "string?", "x": "float32?"})
KINDS: dict[str, tuple[Schema, tuple[str, ...]]] = {
    "integers": (SCHEMA, ()),
    "floats": (FLOATS, ()),
    "shards by another column": (SCHEMA, ("name",)),
    "truncated": (SCHEMA, ()),
}


class Ticking(NoWait):
    """A clock that goes on when the test says so."""

    ms = 1_000

    def wall_ms(self) -> int:
        return self.ms


class World:
    """A collection whose pipeline may have a copy of so many bytes."""

    def __init__(self, kind: str, most_bytes: int, seed: int) -> None:
        schema, hash_columns = KINDS[kind]
        self.clock = Ticking()
        config = random.Random(seed)
        self.stores = Stores(self.clock)
        self.client = self.stores.open(
            inline_max_bytes=config.choice([0, 64 * 1024]),
            maintenance=config.choice(["inline", "off"]),
            compaction_fanin=2,
        )
        spec = CollectionSpec("c1", "orders", schema, 3, hash_columns, source_fed=True)
        controller = StorageController(self.client)
        controller.create_collection(spec)
        self.reader = controller.reader("orders", purpose="check")
        self.topic = Topic(deletes=False)
        self.envelope = "Debezium" if kind == "truncated" else "Upsert"
        self.most_bytes = most_bytes
        self.feed = self.opened()
        self.copied: set[bool] = set()

    def opened(self) -> Ingestion:
        with pytest.MonkeyPatch.context() as patch:
            state = partial(_state, self.most_bytes)
            patch.setattr(ingestion, "UpsertState", state)
            return pipeline(self.client, self.topic, envelope=self.envelope)

    def limit(self, most_bytes: int) -> None:
        """Change how large the copy may be."""
        assert self.feed._state is not None
        self.most_bytes = self.feed._state._most_bytes = most_bytes

    def step(self) -> tuple[IngestStep, str]:
        """Take a step. Returns it with the contents after it, in order: floats as text, with their signs."""
        self.clock.ms += 1_000
        step = self.feed.step()
        assert self.feed._state is not None
        self.copied.add(self.feed._state.rows is not None)
        contents = [tuple(each.values()) for each in self.reader.snapshot().to_table().to_pylist()]
        assert {each[-1] for each in contents} <= {1}
        return step, "\n".join(sorted(map(repr, contents)))

    def errors(self) -> list[dict[str, Any]]:
        """The bad records."""
        return (
            errors(StorageController(self.client), "orders")[1]
            .sort_by([(each, "ascending") for each in ("partition", "position")])
            .to_pylist()
        )


def _state(most_bytes: int, schema: Schema, _: int) -> UpsertState:
    return UpsertState(schema, most_bytes)


def sent(topic: Topic, kind: str, chance: random.Random) -> None:
    """Send a message of some kind."""
    name = chance.choice(["a", "b", "c" * 40, None])
    if kind == "truncated":
        id_, op = chance.randint(0, 15), chance.choice("ccccuuuuddt")
        after = row(id_, name) if op in "cu" else None
        event = {"op": op, "before": row(id_) if op == "d" else None, "after": after, "source": {"lsn": 7}}
        topic.send(chance.choice("01"), event, key=None if op == "t" else {"id": id_})
        return
    key: dict[str, Any] = {"id": chance.randint(0, 15)}
    value: dict[str, Any] = {**key, "name": name}
    if kind == "floats":
        key = {
            "id": chance.choice([0.0, -0.0, float("nan"), 1.5, 2.5, 3.5]),
            "tenant": chance.choice(["t", "u", None]),
        }
        value = {**key, "name": name, "x": chance.choice([0.0, -0.0, float("nan"), None])}
    what = chance.random()
    message: object = b"bad" if what < 0.1 else None if what < 0.25 else value
    topic.send(chance.choice("01"), message, key=key)


def fed(kind: str, seed: int) -> list[World]:
    """Feed the same messages in equal steps: with a copy, without one, and with one for half of them."""
    worlds = [World(kind, most, seed) for most in (ALWAYS, NEVER, ALWAYS)]
    for number in range(10):
        states = []
        if number == 5:
            worlds[2].limit(NEVER)
        restarts = random.Random(seed * 100 + number).random() < 0.2
        for world in worlds:
            chance = random.Random(seed * 1_000 + number)
            for _ in range(chance.randint(1, 8)):
                sent(world.topic, kind, chance)
            if restarts:
                world.feed = world.opened()
            states.append(world.step())
        assert states[0][0].outcome is StepOutcome.COMMITTED
        assert states[1] == states[0], "looked up"
        assert states[2] == states[0], "copied, then looked up"
    return worlds


def check_same(kind: str, seed: int) -> World:
    """Check that all ways have one outcome. Returns the world that began with a copy and went on without."""
    copied, looked_up, both = worlds = fed(kind, seed)
    assert all(each.errors() == copied.errors() for each in worlds)
    assert copied.copied == {True}
    assert False in looked_up.copied
    return both


@pytest.mark.parametrize("kind", KINDS)
def test_a_lookup_makes_the_changes_that_a_copy_makes(kind: str) -> None:
    assert check_same(kind, 1).copied == {True, False}


@pytest.mark.parametrize("seed", range(2, 7))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long
def test_of_many_seeds_each_makes_the_same_changes(kind: str, seed: int) -> None:
    check_same(kind, seed)


def test_a_copy_has_at_most_as_many_bytes_as_a_step() -> None:
    client, topic = Stores().open(), Topic()
    created(client)
    topic.send("0", *(row(id_) for id_ in range(100)))
    feed = pipeline(client, topic, envelope="Upsert", batch={"maxRows": 10, "maxBytes": "500"})
    sizes = []
    while feed.step().outcome is StepOutcome.COMMITTED:
        assert feed._state is not None
        sizes.append(-1 if feed._state.rows is None else feed._state.rows.estimated_size())
    assert sizes[0] > 0
    assert sizes[-1] == -1
    assert max(sizes) <= 500
    again = pipeline(client, topic, envelope="Upsert", batch={"maxBytes": "500"})
    again.load()
    assert again._state is not None
    assert again._state.rows is None
    assert len(rows(client)) == 100


def test_a_step_whose_time_is_gone_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another instance commits while the rows are looked up, and retention gives up the time before."""
    client, topic = Stores().open(), Topic(deletes=False)
    created(client)
    topic.send("0", row(1, "a"), key={"id": 1})
    feed = pipeline(client, topic, envelope="Upsert", batch={"maxBytes": "1"})
    drained(feed)
    topic.send("0", row(1, "b"), key={"id": 1})
    look_up = OutputRows.of

    def late(self: OutputRows, keys: pa.Table) -> pa.Table:
        monkeypatch.setattr(OutputRows, "of", look_up)
        assert drained(pipeline(client, topic, envelope="Upsert")) == 1
        controller = StorageController(client)
        controller.set_retention_hold("orders", controller.frontiers("orders").upper - 1)
        return look_up(self, keys)

    monkeypatch.setattr(OutputRows, "of", late)
    assert feed.step().outcome is StepOutcome.LOST
    assert OutputRows.of is look_up
    topic.send("0", None, key={"id": 1})
    assert drained(feed) == 1
    assert rows(client) == Counter()


@pytest.mark.parametrize("most", ["256Mi", "1"])
def test_rows_of_an_instance_with_a_later_schema_end(most: str) -> None:
    """An instance that began before the collection evolved replaces rows of one that began after it."""
    client, topic = Stores().open(), Topic(deletes=False)
    created(client)
    feed = pipeline(client, topic, envelope="Upsert", batch={"maxBytes": most})
    topic.send("0", row(1, "a"), key={"id": 1})
    drained(feed)
    evolve(client)
    topic.send("0", {**row(1, "b"), "seats": 7}, key={"id": 1})
    drained(pipeline(client, topic, envelope="Upsert"))
    assert rows(client) == Counter({(1, "b", 7): 1})
    topic.send("0", {**row(1, "c"), "seats": 8}, key={"id": 1})
    drained(feed)
    assert rows(client) == Counter({(1, "c", 8): 1})
    topic.send("0", None, key={"id": 1})
    drained(feed)
    assert rows(client) == Counter()
    assert bad(client) == []


def test_an_instance_goes_on_without_a_copy_while_the_collection_evolves() -> None:
    client, topic = Stores().open(), Topic(deletes=False)
    created(client)
    feed = pipeline(client, topic, envelope="Upsert", batch={"maxBytes": "1"})
    for id_ in (1, 2):
        topic.send("0", row(id_, "a"), key={"id": id_})
    drained(feed)
    evolve(client)
    topic.send("0", {**row(1, "b"), "seats": 7}, key={"id": 1})
    drained(feed)
    assert rows(client) == Counter({(1, "b", 7): 1, (2, "a", None): 1})


def evolve(client: PersistClient) -> None:
    later = Schema.of(key={"id": "int64"}, value={"name": "string?", "seats": "int32?"})
    StorageController(client).evolve_collection("orders", later)
