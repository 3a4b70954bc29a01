"""A collection never shows a part of a transaction, if Debezium says where transactions end."""

import json
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.collections import Recipe, StorageController
from holdfast.errors import SourceStalled, StorageError
from holdfast.ingest import Ingestion, StepOutcome, parse
from holdfast.ingest.formats.transactions import JsonBounds, JsonMarks
from holdfast.ingest.opened import format_of
from holdfast.ingest.whole import Transactions
from holdfast.persist import PersistClient
from testbed.faults import Fault, ProcessDeath, ScriptedPlan
from unit.collections.stores import Stores
from unit.ingest.pipelines import created, positions, row, rows
from unit.ingest.snapshots import taken
from unit.ingest.test_following import World
from unit.ingest.topic import Topic

TABLE = {"connector": "mysql", "db": "shop", "table": "orders"}


class Database:
    """Transactions of a table, as Debezium writes them to a topic and to the topic of transactions."""

    def __init__(self) -> None:
        self.topic = Topic(deletes=False)
        self.ends = Topic(deletes=False, name="transactions")
        self.ends.partitions["0"] = []
        self.opened: list[int | None] = []
        self.shown: list[dict[int, str]] = [{}]
        """The contents of the table after each transaction."""

    def event(self, id_: str | None, order: int, key: int, name: str, partition: str = "0") -> None:
        told = None if id_ is None else {"id": id_, "total_order": order, "data_collection_order": order}
        event = {"op": "r" if id_ is None else "c", "before": None, "after": row(key, name)}
        self.topic.send(partition, {**event, "source": TABLE, "transaction": told}, key={"id": key})

    def begin(self, id_: str) -> None:
        self.ends.send("0", {"status": "BEGIN", "id": id_, "event_count": None, "data_collections": None})

    def end(self, id_: str, count: int, **others: int) -> None:
        counts = {**others, **({"orders": count} if count else {})}
        collections = [{"data_collection": f"shop.{name}", "event_count": n} for name, n in counts.items()]
        self.ends.send(
            "0",
            {
                "status": "END",
                "id": id_,
                "event_count": sum(counts.values()),
                "data_collections": collections,
                "ts_ms": 1,
            },
        )

    def commit(self, id_: str, changes: Mapping[int, str], partitions: int = 1) -> None:
        """A whole transaction."""
        self.begin(id_)
        for order, (key, name) in enumerate(changes.items(), 1):
            self.event(id_, order, key, name, str(key % partitions))
        self.end(id_, len(changes))
        self.shown.append({**self.shown[-1], **changes})

    def contents_below(self, bound: Mapping[str, int]) -> dict[int, str]:
        """The contents that these positions make. They must be between transactions."""
        orders: dict[str, list[set[int]]] = {}
        found: dict[int, str] = {}
        for partition, messages in self.topic.partitions.items():
            for position, (_, value) in enumerate(messages):
                event = json.loads(value or b"")
                is_bound = position < bound.get(partition, 0)
                mine = orders.setdefault(event["transaction"]["id"], [set(), set()])
                mine[not is_bound].add(event["transaction"]["data_collection_order"])
                if is_bound:
                    found[event["after"]["id"]] = event["after"]["name"]
        for within, beyond in orders.values():
            # What comes again later makes no difference.
            assert not within or beyond <= within
        return found

    def open(self, since_ms: int | None) -> Topic:
        self.opened.append(since_ms)
        return self.ends


def opened(
    client: PersistClient,
    database: Database,
    rendition: str = "",
    *,
    patience_s: float = 60,
    **block: Any,
) -> Ingestion:
    kafka = {"bootstrapServers": "nowhere:1", "topic": "orders", "transactions": "shop.transaction"}
    spec = parse(
        {
            "kafka": kafka,
            "format": {"json": {}},
            "envelope": "Debezium",
            "run": {"progressInterval": "0s", "interval": "0s"},
            **block,
        }
    )
    ingestion = Ingestion(
        StorageController(client),
        "orders",
        spec,
        database.topic,
        partial(format_of, spec),
        rendition=rendition,
        transactions=lambda _: Transactions("shop.transaction", JsonMarks(), JsonBounds(), database.open),
    )
    assert ingestion._whole is not None
    ingestion._whole.patience_s = patience_s
    return ingestion


def drained(ingestion: Ingestion) -> int:
    committed = 0
    while (step := ingestion.step()).outcome is not StepOutcome.IDLE:
        committed += step.outcome is StepOutcome.COMMITTED
    return committed


def contents(client: PersistClient, as_of: int | None = None) -> dict[int, str]:
    if not StorageController(client).reader("orders", purpose="check").upper():
        return {}
    found = rows(client, as_of)
    assert set(found.values()) <= {1}
    return dict(found.keys())


@pytest.fixture
def client() -> PersistClient:
    client = Stores().open()
    created(client)
    return client


def test_a_transaction_waits_for_its_end_and_for_all_its_events(client: PersistClient) -> None:
    database = Database()
    database.commit("t1", {1: "a", 2: "a"})
    ingestion = opened(client, database)
    drained(ingestion)
    assert contents(client) == {1: "a", 2: "a"}
    database.event("t2", 1, 1, "b")
    database.event("t2", 2, 2, "b")
    step = ingestion.step()
    assert (step.outcome, contents(client)) == (StepOutcome.IDLE, {1: "a", 2: "a"})
    assert step.waits == (
        "transaction t2 (shop.orders, from message 0:2 on) waits for its END in topic shop.transaction"
    )
    database.end("t2", 3, customers=7)
    step = ingestion.step()
    assert (step.outcome, contents(client)) == (StepOutcome.IDLE, {1: "a", 2: "a"})
    assert step.waits.endswith("waits for 1 of its 3 events")
    database.event("t2", 3, 3, "b")
    database.event("t3", 1, 4, "c")
    assert ingestion.step().messages == 3
    assert contents(client) == {1: "a", 2: "b", 3: "b"} | {1: "b"}
    assert positions(client) == {"0": 5}
    assert ingestion.step().waits


def test_events_without_a_transaction_and_tombstones_do_not_wait(client: PersistClient) -> None:
    database = Database()
    database.event(None, 0, 1, "snapshot")
    database.topic.send("0", {"op": "r", "after": row(2, "old"), "source": TABLE}, None, b"junk")
    ingestion = opened(client, database)
    drained(ingestion)
    assert contents(client) == {1: "snapshot", 2: "old"}
    assert positions(client) == {"0": 4}
    assert database.opened == []


def test_a_new_process_finds_what_was_not_bound(client: PersistClient) -> None:
    database = Database()
    database.commit("t1", {1: "a"})
    database.event("t2", 1, 1, "b")
    database.end("t2", 2)
    for _ in range(2):
        drained(opened(client, database))
        assert contents(client) == {1: "a"}
    database.event("t2", 2, 2, "b")
    drained(opened(client, database))
    assert contents(client) == {1: "b", 2: "b"}


def test_partitions_end_before_the_same_transactions(client: PersistClient) -> None:
    """t2 has an event behind one of t1, so it waits for t1, and so does t3 for t2."""
    database = Database()
    database.event("t1", 1, 10, "x", "0")
    database.event("t2", 1, 20, "x", "0")
    database.event("t2", 2, 21, "x", "1")
    database.event("t3", 1, 31, "x", "1")
    for id_, count in (("t1", 2), ("t2", 2), ("t3", 1)):
        database.end(id_, count)
    database.topic.send("2", {"op": "r", "after": row(5, "alone"), "source": TABLE})
    ingestion = opened(client, database)
    drained(ingestion)
    assert contents(client) == {5: "alone"}
    database.event("t1", 2, 12, "x", "2")
    assert ingestion.step().messages == 5
    assert contents(client) == dict.fromkeys((10, 12, 20, 21, 31), "x") | {5: "alone"}


def test_events_that_are_sent_again_count_once(client: PersistClient) -> None:
    database = Database()
    for order in (1, 2, 1, 2):
        database.event("t1", order, order, "a")
    database.end("t1", 3)
    ingestion = opened(client, database)
    drained(ingestion)
    assert contents(client) == {}
    database.event("t1", 3, 3, "a")
    drained(ingestion)
    assert contents(client) == {1: "a", 2: "a", 3: "a"}


def test_of_a_transaction_that_is_bound_a_part_may_come_again(client: PersistClient) -> None:
    database = Database()
    database.commit("t1", {1: "a", 2: "a", 3: "a"})
    drained(opened(client, database))
    for order in (2, 3):
        database.event("t1", order, order, "a")
    database.end("t1", 3)
    database.commit("t2", {1: "b", 2: "b"})
    drained(opened(client, database))
    assert contents(client) == {1: "b", 2: "b", 3: "a"}


def test_with_several_partitions_the_process_that_bound_it_knows(client: PersistClient) -> None:
    database = Database()
    database.commit("t1", {1: "a", 2: "a"}, partitions=2)
    ingestion = opened(client, database)
    drained(ingestion)
    database.event("t1", 1, 1, "a", "1")
    database.commit("t2", {1: "b", 2: "b"}, partitions=2)
    drained(ingestion)
    assert contents(client) == {1: "b", 2: "b"}


def test_but_not_if_a_message_is_missing_before_it(client: PersistClient) -> None:
    """Then nobody knows whether the others are bound, or deleted."""
    database = Database()
    database.commit("t1", {1: "a"})
    drained(opened(client, database))
    for order in (1, 2, 3):
        database.event("t2", order, order, "b")
    database.end("t2", 3)
    database.topic.holes.add(("0", 1))
    database.commit("t3", {9: "c"})
    ingestion = opened(client, database, patience_s=0)
    with pytest.raises(SourceStalled, match=r"t2 has 3 events of table shop.orders, and 2 can be read.*gone"):
        drained(ingestion)
    assert contents(client) == {1: "a"}


def test_a_gap_that_is_bound_is_not_forgotten(client: PersistClient) -> None:
    database = Database()
    database.commit("t1", {1: "a"})
    database.topic.send("0", b"compacted")
    database.topic.holes.add(("0", 1))
    drained(opened(client, database))
    assert positions(client) == {"0": 2}
    database.event("t2", 2, 2, "b")
    database.end("t2", 2)
    assert opened(client, database).step().waits
    assert contents(client) == {1: "a"}


def test_what_is_deleted_between_the_two_looks_is_found(client: PersistClient) -> None:
    database = Database()
    database.commit("t1", {1: "a", 2: "a"})
    ingestion = opened(client, database)
    found: list[int] = []
    read = ingestion._runner.read

    def late(*given: Any) -> Any:
        if not found:
            database.topic.holes.add(("0", 0))
        found.append(1)
        return read(*given)

    ingestion._runner.read = late  # type: ignore[method-assign]
    assert ingestion.step().outcome is StepOutcome.IDLE
    assert contents(client) == {}


@pytest.mark.parametrize("begun", [False, True])
def test_an_end_that_is_gone_stalls(client: PersistClient, begun: bool) -> None:
    database = Database()
    if begun:
        database.begin("t1")
    database.event("t1", 1, 1, "a")
    if begun:
        database.commit("t2", {1: "b"})
    ingestion = opened(client, database, patience_s=0)
    assert ingestion.step().outcome is StepOutcome.IDLE
    with pytest.raises(
        SourceStalled, match=r"the END of transaction t1, .* message 0:0, is not in topic shop"
    ):
        ingestion.step()
    # It looks at the whole topic before it says so.
    assert database.opened == [None, None]


def test_one_that_has_begun_waits_for_ever(client: PersistClient) -> None:
    database = Database()
    database.begin("t1")
    database.event("t1", 1, 1, "a")
    ingestion = opened(client, database, patience_s=0)
    for _ in range(5):
        assert ingestion.step().waits
    # But `once` ends.
    ingestion.run(once=True)
    database.end("t1", 1)
    drained(ingestion)
    assert contents(client) == {1: "a"}


def test_limits_grow_with_a_transaction_up_to_a_bound(client: PersistClient) -> None:
    database = Database()
    database.commit("t1", {1: "a"})
    database.commit("t2", dict.fromkeys(range(10, 30), "b"))
    database.commit("t3", {1: "c"})
    ingestion = opened(client, database, batch={"maxRows": 2})
    steps = []
    while (step := ingestion.step()).outcome is StepOutcome.COMMITTED:
        steps.append((step.messages, step.more))
    assert steps == [(1, True), (21, False)]
    database.commit("t4", dict.fromkeys(range(40, 60), "b"))
    ingestion = opened(client, database, batch={"maxBytes": "100", "maxTransactionBytes": "1Ki"})
    with pytest.raises(SourceStalled, match=r"transaction t4.* more than 1,024 bytes") as stalled:
        ingestion.step()
    assert "raise batch.maxTransactionBytes" in stalled.value.hint


def test_one_end_for_several_tables_and_names(client: PersistClient) -> None:
    database = Database()
    table = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders"}
    for order in (1, 2):
        told = {"id": f"571:{order}", "data_collection_order": order}
        event = {"op": "c", "after": row(order, "x"), "source": table, "transaction": told}
        database.topic.send("0", event if order == 1 else {"schema": {}, "payload": event})
    counts = [("shop.orders", 1), ("public.orders", 2), ("public.other", 1)]
    database.ends.send(
        "0",
        {"payload": {"status": "BEGIN", "id": "571:0"}},
        {
            "status": "END",
            "id": "571:9",
            "data_collections": [{"data_collection": name, "event_count": n} for name, n in counts],
        },
    )
    drained(opened(client, database))
    assert contents(client) == {1: "x", 2: "x"}


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"transaction": {"id": 5, "data_collection_order": 1}}, "has a transaction that can't be used"),
        ({"transaction": {"id": "t1"}}, "no data_collection_order"),
        (
            {"transaction": {"id": "t1", "data_collection_order": 2}, "source": {**TABLE, "table": "b"}},
            "several tables: shop.orders and shop.b",
        ),
    ],
)
def test_what_nobody_can_count_stalls(client: PersistClient, event: dict[str, Any], told: str) -> None:
    database = Database()
    database.event("t1", 1, 1, "a")
    database.topic.send("0", {"op": "c", "after": row(2), "source": TABLE, **event})
    with pytest.raises(SourceStalled, match=told):
        opened(client, database).step()
    assert contents(client) == {}


def test_an_end_with_another_number_stalls(client: PersistClient) -> None:
    database = Database()
    database.event("t1", 1, 1, "a")
    database.end("t1", 0, customers=3)
    with pytest.raises(SourceStalled, match=r"t1 has at least 1 events .* says 0"):
        opened(client, database, patience_s=0).step()


SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_time_shows_whole_transactions(seed: int) -> None:
    """Two instances read at random, while a database writes at random and sends some again."""
    random_ = random.Random(seed)
    stores = Stores()
    client = stores.open()
    created(client)
    database = Database()
    pending: list[tuple[Any, ...]] = []
    partitions = random_.choice((1, 1, 2, 3))
    for number in range(12):
        keys = random_.sample(range(9), random_.randint(1, 5))
        changes = dict.fromkeys(keys, f"v{number}")
        database.shown.append({**database.shown[-1], **changes})
        events: list[tuple[Any, ...]] = [
            ("event", f"t{number}", order, key, f"v{number}", str(key % partitions))
            for order, key in enumerate(keys, 1)
        ]
        if partitions == 1 and random_.random() < 0.3:
            begin = random_.randint(0, len(events) - 1)
            events = events[: random_.randint(begin, len(events))] + events[begin:]
        pending += [("begin", f"t{number}"), *events, ("end", f"t{number}", len(keys))]
    size = {"maxRows": random_.choice((1, 3, 1000))}
    instances = [opened(stores.open(), database, batch=size) for _ in range(2)]
    found: list[tuple[dict[int, str], dict[str, int]]] = []
    while pending or random_.random() < 0.9:
        for _ in range(random_.randint(1, 6)):
            if pending:
                what, *given = pending.pop(0)
                getattr(database, what)(*given)
        if random_.random() < 0.1:
            instances[0] = opened(stores.open(), database, batch=size)
        if random_.choice(instances).step().outcome is StepOutcome.COMMITTED:
            found.append((contents(client), positions(client)))
    for each in instances:
        drained(each)
    assert contents(client) == database.shown[-1]
    assert found
    for shown, bound in found:
        # With several partitions, a transaction may come before an earlier one of other rows.
        assert partitions > 1 or shown in database.shown
        assert shown == database.contents_below(bound)


def of_rendition(client: PersistClient, id_: str, at: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for shard in StorageController(client).describe("orders").rendition(id_).shards:
        with client.reader(shard, purpose="check") as reader:
            found |= {each["id"]: each["name"] for each in reader.snapshot(at).to_table().to_pylist()}
    return found


def test_a_follower_has_whole_transactions_at_the_same_times(client: PersistClient) -> None:
    database = Database()
    feed = opened(client, database)
    database.commit("t0", {1: "a", 2: "a"})
    drained(feed)
    recorded = feed.info.holding.made_from
    feed._controller.renditions.create(
        "orders", shards=1, recipe=Recipe.SOURCE, pipeline=True, made_from=recorded, rendition_id="r2"
    )
    follower = opened(client, database, "r2", batch={"maxRows": 1})
    drained(follower)
    for number in range(1, 5):
        database.event(f"t{number}", 1, 1, f"v{number}")
        drained(feed)
        drained(follower)
        database.end(f"t{number}", 2)
        database.event(f"t{number}", 2, 2, f"v{number}")
        drained(feed)
        at = feed._upper - 1
        drained(follower)
        assert of_rendition(client, "r2", at) == contents(client, at) == {1: f"v{number}", 2: f"v{number}"}
        assert of_rendition(client, "r2", at - 1) == contents(client, at - 1)
    assert follower.bound == feed.bound


@pytest.mark.parametrize("are_gone", [False, True])
def test_a_restored_collection_reads_whole_transactions_again(tmp_path: Path, are_gone: bool) -> None:
    """Also if nothing says any more where they end."""
    world, database = World(), Database()
    client = world.client
    database.commit("t0", {1: "a", 2: "a"})
    drained(opened(client, database))
    source = taken(client, tmp_path / "s")
    for number in range(1, 4):
        database.commit(f"t{number}", {1: f"v{number}", 2: f"v{number}"})
        drained(opened(client, database))
    world.pass_to(StorageController(client).restore_collection("orders", source).held_from)
    assert contents(client) == {1: "a", 2: "a"}
    if are_gone:
        database.ends.partitions["0"] = []
    ingestion = opened(client, database, batch={"maxRows": 1})
    found = []
    while ingestion.step().outcome is not StepOutcome.IDLE:
        found.append(contents(client))
    assert found[-1] == database.shown[-1]
    assert not [each for each in found if each not in database.shown]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(each, marks=[] if each is Fault.INDETERMINATE_AFTER else pytest.mark.long)
        for each in Fault
        if each is not Fault.NONE
    ],
)
def test_a_fault_at_any_write_leaves_no_part_of_a_transaction(fault: Fault) -> None:
    for number in range(60):
        stores = Stores()
        client = stores.open()
        created(client)
        database = Database()
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        feed = None
        for transaction in range(3):
            database.commit(f"t{transaction}", dict.fromkeys(range(3), f"v{transaction}"), partitions=2)
            database.event(f"t{transaction + 1}", 1, 0, f"v{transaction + 1}")
            try:
                feed = feed or opened(stores.open(plan), database, batch={"maxRows": 2})
                drained(feed)
            except (StorageError, ProcessDeath):
                feed = opened(stores.open(), database)
            assert contents(client) in database.shown
        database.topic.partitions["0"].pop()
        drained(opened(stores.open(), database))
        assert contents(client) == database.shown[-1]
        if plan.seen <= number:
            assert number > 3
            return
    raise AssertionError("the work never ends")
