"""Readers of a collection around a handover to a rendition with other contents."""

from collections import Counter
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from holdfast.collections import (
    CollectionListen,
    CollectionReader,
    CollectionWriter,
    Recipe,
    StorageController,
    read_collection_part,
)
from holdfast.collections.metadata import METADATA_SCHEMA
from holdfast.collections.routing import split_rows
from holdfast.errors import CLOSED, AsOfTooEarly, CollectionNotFound
from holdfast.persist import PersistClient, Progress
from testbed.faults import Fault, Operation
from unit.collections.listeners import Heard, contents
from unit.collections.stores import SCHEMA, SPEC, Row, Stores, counted, updates

OLD = [(number, "old", 10, 1) for number in range(20)]
NEW = [(number, "old" if number < 18 else "new", 10, 1) for number in range(1, 22)]


@pytest.fixture
def controller(client: PersistClient) -> StorageController:
    controller = StorageController(client)
    controller.create_collection(SPEC)
    return controller


@pytest.fixture
def writer(controller: StorageController) -> CollectionWriter:
    writer = controller.writer("flights", purpose="test")
    writer.append(updates(OLD), 0, 20)
    return writer


def write(
    controller: StorageController, id_: str, rows: Sequence[tuple[int, str, int, int]], upper: int
) -> None:
    """As the pipeline of a rendition does: all shards from the upper that they have to another."""
    client, info = controller.client, controller.describe("flights")
    rendition = info.rendition(id_)
    writers = [client.writer(shard, SCHEMA, purpose="pipeline") for shard in rendition.shards]
    batches = split_rows(rendition, updates(rows))
    steps = [
        each.prepare_batch(batch, each.upper(), upper) for each, batch in zip(writers, batches, strict=True)
    ]
    metadata = client.writer(info.metadata_shard, METADATA_SCHEMA, purpose="pipeline")
    if rendition is info.holding and upper > (promised := metadata.upper()):
        steps.append(metadata.prepare_seal(promised, upper))
    client.multi_write(steps)


def other_contents(controller: StorageController, shards: int = 2) -> int:
    """Hand over to a rendition that has `NEW`, and at that time and after one row more each."""
    made = controller.renditions.create("flights", shards=shards, recipe=Recipe.SOURCE)
    write(controller, made.id, NEW, 20)
    at = controller.renditions.hand_over("flights", made.id).held_from
    write(controller, made.id, [(100, "at", at, 1), (101, "after", at + 1, 1)], at + 3)
    return at


def pairs(rows: Sequence[tuple[int, str, int, int]]) -> Counter[Row]:
    return Counter((id_, name) for id_, name, _, _ in rows)


Path = Callable[[StorageController], object]
computed: Path = lambda controller: None  # noqa: E731
from_shard: Path = lambda controller: controller.renditions.make_difference("flights")  # noqa: E731


@pytest.mark.parametrize("path", [computed, from_shard])
def test_who_begins_before_at_or_after_a_handover_gets_the_same(
    path: Path, client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    reader = controller.reader("flights", purpose="early")
    waiting = Heard(reader.listen(15), pairs(OLD))
    at = other_contents(controller)
    path(controller)
    end = at + 3
    after = pairs(NEW) + Counter({(100, "at"): 1, (101, "after"): 1})
    assert contents(controller, at - 1) == pairs(OLD)
    assert contents(controller, at) == pairs(NEW) + Counter({(100, "at"): 1})
    assert waiting.until(end) == after
    # Rows that both have were not told: 0 and 18 to 19 went, 18 to 21 came, and then one row.
    assert waiting.times == {at: 3 + 4 + 1, at + 1: 1}
    for as_of in (15, at - 2, at - 1, at, at + 1, at + 2):
        listening = Heard(reader.listen(as_of), contents(controller, as_of))
        assert listening.until(end) == after
        assert all(time > as_of for time in listening.times)
        assert Heard(reader.subscribe(as_of)).until(end) == after


def test_a_listen_that_begins_beyond_the_promise_sees_the_handover_before_it(
    client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    reader = controller.reader("flights", purpose="early")
    ahead = Heard(reader.listen(50_000))
    at = other_contents(controller)
    assert at < 50_000
    beyond = Heard(reader.listen(50_000))
    write(controller, "r2", [(200, "x", 50_000, 1), (201, "y", 50_001, 1)], 60_001)
    for each in (ahead, beyond):
        assert each.until(60_000) == {(201, "y"): 1}


def test_a_listen_that_has_come_to_the_time_of_a_handover_before_it_goes_on(
    controller: StorageController, writer: CollectionWriter
) -> None:
    reader = controller.reader("flights", purpose="early")
    waiting = Heard(reader.listen(15), pairs(OLD))
    promised = controller.client.recent_upper(controller.describe("flights").metadata_shard)
    writer.seal(promised - 1)
    waiting.until(promised - 1)
    made = controller.renditions.create("flights", shards=1, recipe=Recipe.SOURCE)
    write(controller, made.id, NEW, 20)
    write(controller, "r1", [], promised)
    # The old shards end where the promise does.
    assert waiting.until(promised) == pairs(OLD)
    assert controller.renditions.hand_over("flights", made.id).held_from == promised
    write(controller, made.id, [], promised + 3)
    assert waiting.until(promised + 3) == pairs(NEW)


def test_two_handovers_within_one_poll(
    client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    reader = controller.reader("flights", purpose="behind")
    behind = [Heard(reader.listen(as_of), pairs(OLD)) for as_of in (15, 19)]
    first = other_contents(controller)
    write(controller, "r2", [(102, "last", first + 4, 1)], first + 20_000)
    controller.renditions.create("flights", shards=1)
    controller.renditions.catch_up("flights", "r3")
    second = controller.renditions.hand_over("flights", "r3").held_from
    last = controller.writer("flights", purpose="after")
    last.append(updates([(103, "after both", second, 1)]), second, second + 2)
    expected = contents(controller, second + 1)
    behind.append(Heard(reader.listen(first), contents(controller, first)))
    assert [each.until(second + 2) for each in behind] == [expected] * 3
    assert behind[0].times[second] == 1


def test_what_differs_is_put_into_a_shard_once(
    stores: Stores, client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    early = controller.reader("flights", purpose="early")
    waiting = Heard(early.listen(15), pairs(OLD))
    assert controller.renditions.make_difference("flights") is None
    at = other_contents(controller)
    shard = controller.renditions.make_difference("flights")
    assert shard is not None
    other = StorageController(stores.open())
    assert other.renditions.make_difference("flights") == shard
    info = controller.describe("flights")
    assert info.holding.difference_shard == shard
    assert [hold.since for hold in client.inspect(shard).holds] == [0]
    with client.reader(shard, purpose="look") as reader:
        told = reader.snapshot(at).to_table()
    expected = pairs(NEW)
    expected.subtract(pairs(OLD))
    assert counted(told) == Counter({row: count for row, count in expected.items() if count})
    assert waiting.until(at + 3) == contents(controller, at + 2)


def test_who_finds_the_difference_reads_it(controller: StorageController, writer: CollectionWriter) -> None:
    seen: list[Operation] = []

    class Watching:
        def decide(self, operation: Operation) -> Fault:
            seen.append(operation)
            return Fault.NONE

    stores = Stores()
    client = stores.open(inline_max_bytes=0)
    controller = StorageController(client)
    controller.create_collection(SPEC)
    controller.writer("flights", purpose="test").append(updates(OLD), 0, 20)
    listening = stores.open(Watching())
    waiting = Heard(StorageController(listening).reader("flights", purpose="early").listen(15), pairs(OLD))
    at = other_contents(controller)
    shard = controller.renditions.make_difference("flights")
    assert waiting.until(at + 3) == contents(controller, at + 2)
    read = {key.split("/")[0] for name, keys in seen if name.startswith("blob.") for key in keys}
    assert shard in read
    assert not read & set(controller.describe("flights").rendition("r1").shards)


def test_of_a_copy_nothing_is_read_to_find_what_differs() -> None:
    seen: list[str] = []

    class Watching:
        def decide(self, operation: Operation) -> Fault:
            seen.extend(key for key in operation.keys if operation.name in {"blob.get", "blob.open_input"})
            return Fault.NONE

    stores = Stores()
    controller = StorageController(stores.open(Watching(), inline_max_bytes=0))
    controller.create_collection(SPEC)
    controller.writer("flights", purpose="test").append(updates(OLD), 0, 20)
    reader = controller.reader("flights", purpose="early")
    waiting = Heard(reader.listen(19), pairs(OLD))
    controller.renditions.create("flights", shards=3)
    controller.renditions.catch_up("flights", "r2")
    at = controller.renditions.hand_over("flights", "r2").held_from
    controller.writer("flights", purpose="test").append(updates([(100, "at", at, 1)]), at, at + 3)
    seen.clear()
    assert controller.renditions.make_difference("flights") is None
    assert not seen
    assert waiting.until(at + 3) == pairs(OLD) + Counter({(100, "at"): 1})
    assert waiting.times == {at: 1}
    # One part, which has the row.
    assert len({key for key in seen if key.split("/")[0] in controller.describe("flights").data_shards}) == 1


@pytest.mark.parametrize("suspect", ["r1", "r2"])
def test_a_copy_that_is_not_to_be_trusted_is_compared(
    controller: StorageController, writer: CollectionWriter, suspect: str
) -> None:
    reader = controller.reader("flights", purpose="early")
    waiting = Heard(reader.listen(19), pairs(OLD))
    controller.renditions.create("flights", shards=2)
    controller.renditions.catch_up("flights", "r2")
    # What nobody may do.
    write(controller, "r2", [(100, "odd", 20, 1)], 21)
    at = controller.renditions.hand_over("flights", "r2").held_from
    controller.renditions.suspect("flights", suspect, "it looks odd")
    controller.writer("flights", purpose="test").seal(at + 3)
    assert waiting.until(at + 3) == pairs(OLD) + Counter({(100, "odd"): 1})
    told = sum((counted(pa.Table.from_batches([each])) for each in reader.changes(19, at)), Counter[Row]())
    assert told == {(100, "odd"): 1}
    assert controller.renditions.make_difference("flights") is not None


def test_the_difference_goes_with_what_it_differs_from(
    client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    at = other_contents(controller)
    shard = controller.renditions.make_difference("flights")
    assert shard is not None
    controller.set_retention_hold("flights", at - 1)
    assert controller.renditions.drop_retired("flights") == ()
    with client.reader(shard, purpose="look") as reader:
        assert reader.since() <= at
    controller.set_retention_hold("flights", at)
    assert controller.renditions.drop_retired("flights") == ("r1",)
    assert client.inspect(shard).finalized
    assert controller.describe("flights").holding.difference_shard == ""
    assert controller.renditions.make_difference("flights") is None
    assert contents(controller, at + 2) == pairs(NEW) + Counter({(100, "at"): 1, (101, "after"): 1})


def test_the_difference_goes_with_the_collection(
    client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    other_contents(controller)
    shard = controller.renditions.make_difference("flights")
    assert shard is not None
    controller.drop_collection("flights")
    assert client.inspect(shard).finalized


def test_nobody_makes_a_difference_before_the_tail_is_there(
    client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    made = controller.renditions.create("flights", shards=1, recipe=Recipe.SOURCE)
    write(controller, made.id, NEW, 20)
    controller.renditions.hand_over("flights", made.id)
    assert controller.renditions.make_difference("flights") is None


def dropped_while_unheld(stores: Stores, client: PersistClient, controller: StorageController) -> int:
    """A handover, and the end of the old rendition, which a client of mode "read" does not hold back."""
    at = other_contents(controller)
    controller.set_retention_hold("flights", at + 1)
    assert controller.renditions.drop_retired("flights") == ("r1",)
    return at


def test_who_holds_nothing_is_told_that_what_it_reads_is_gone(
    stores: Stores, client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    reader = StorageController(stores.open(mode="read")).reader("flights", purpose="reads only")
    behind, parts = Heard(reader.listen(15), pairs(OLD)), reader.snapshot_parts(18)
    at = dropped_while_unheld(stores, client, controller)
    for _ in range(2):
        with pytest.raises(AsOfTooEarly):
            behind.until(at + 1)
    # It tells what it knew before, and nothing that it doesn't.
    assert behind.listen.frontier <= at
    assert behind.contents == pairs(OLD)
    for part in parts:
        with pytest.raises(AsOfTooEarly):
            list(read_collection_part(client, part))
    with pytest.raises(AsOfTooEarly):
        reader.snapshot(18)
    assert counted(reader.snapshot(at + 2).to_table()) == contents(controller, at + 2)


def test_a_client_that_holds_nothing_follows_through_a_handover(
    stores: Stores, client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    reader = StorageController(stores.open(mode="read")).reader("flights", purpose="reads only")
    waiting = Heard(reader.listen(15), pairs(OLD))
    at = other_contents(controller)
    assert waiting.until(at + 3) == contents(controller, at + 2)
    assert counted(reader.snapshot(at - 1).to_table()) == pairs(OLD)


def test_what_was_planned_before_a_handover_is_read_after_it(
    stores: Stores, client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    reader = controller.reader("flights", purpose="planner")
    parts, snapshot = reader.snapshot_parts(18), reader.snapshot(18)
    at = other_contents(controller)
    controller.set_retention_hold("flights", at + 1)
    assert controller.renditions.drop_retired("flights") == ()
    elsewhere = stores.open(mode="read")
    told: Counter[Row] = Counter()
    for part in parts:
        for batch in read_collection_part(elsewhere, part):
            told.update(counted(batch))
    assert told == counted(snapshot.to_table()) == pairs(OLD)


def in_the_gap(client: PersistClient, controller: StorageController) -> CollectionListen:
    """A listen that has told all before a handover, of which nothing is written yet."""
    listen = controller.reader("flights", purpose="early").listen(15)
    made = controller.renditions.create("flights", shards=1, recipe=Recipe.SOURCE)
    write(controller, made.id, NEW, 20)
    at = controller.renditions.hand_over("flights", made.id).held_from
    while listen.frontier < at:
        listen.next(60.0)
    assert listen.next(0.0) == []
    return listen


@pytest.mark.parametrize("gap", [False, True])
def test_a_listen_ends_with_its_collection(
    gap: bool, client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    listen = (
        in_the_gap(client, controller) if gap else controller.reader("flights", purpose="early").listen(15)
    )
    controller.drop_collection("flights", force=True)
    told = list(listen)
    assert told == [Progress(CLOSED)]
    assert listen.next(0.0) == []


def test_what_ends_with_a_collection_tells_nothing_of_it(
    client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    reader: CollectionReader = controller.reader("flights", purpose="early")
    waiting = reader.listen(15)
    at = other_contents(controller)
    controller.drop_collection("flights", force=True)
    assert list(waiting) == [Progress(CLOSED)]
    for call in (lambda: reader.listen(at), lambda: reader.subscribe(at), lambda: reader.snapshot(at)):
        with pytest.raises(CollectionNotFound):
            call()
