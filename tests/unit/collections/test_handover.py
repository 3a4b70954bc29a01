"""Writers and readers of a collection continue while another rendition takes over."""

import threading
from collections import Counter

import pytest

from holdfast.collections import CollectionWriter, RenditionState, StorageController
from holdfast.errors import AsOfTooEarly, BadInput, NotCaughtUp, UpperMismatch
from holdfast.persist import PersistClient
from unit.collections.listeners import contents, listener
from unit.collections.stores import SCHEMA, SPEC, Row, Stores, counted, updates

ROWS = [(number, str(number), 10, 1) for number in range(50)]


@pytest.fixture
def controller(client: PersistClient) -> StorageController:
    controller = StorageController(client)
    controller.create_collection(SPEC)
    return controller


@pytest.fixture
def writer(controller: StorageController) -> CollectionWriter:
    writer = controller.writer("flights", purpose="test")
    writer.append(updates(ROWS), 0, 20)
    return writer


def test_writers_and_readers_go_on_through_a_handover(
    stores: Stores, controller: StorageController, writer: CollectionWriter
) -> None:
    early = listener(controller, 15)
    made = controller.renditions.create("flights", shards=2)
    assert made.state is RenditionState.HYDRATING
    assert controller.renditions.catch_up("flights", "r2") == 20
    writer.append(updates([(0, "0", 25, -1), (100, "new", 25, 1)]), 20, 30)
    before = contents(controller)
    holding = controller.renditions.hand_over("flights", "r2")
    at = holding.held_from
    assert contents(controller, at - 1) == before
    with pytest.raises(UpperMismatch) as lost:
        writer.append(updates([(101, "late", 30, 1)]), 30, 31)
    assert lost.value.actual == at
    # A process that opens it now, and the one that had it open, write the same rendition.
    late = listener(controller, at - 1)
    writer.append(updates([(101, "late", at, 1)]), at, at + 5)
    other = StorageController(stores.open()).writer("flights", purpose="other")
    assert other.upper() == at + 5
    other.append(updates([(102, "later", at + 5, 1)]), at + 5, at + 6)
    after = contents(controller)
    assert after == before + Counter({(101, "late"): 1, (102, "later"): 1})
    newest = listener(controller, at + 2)
    assert [each.until(at + 6) for each in (early, late, newest)] == [after] * 3
    assert contents(controller, 24) == counted(updates(ROWS))


def test_two_handovers_in_a_row_and_the_end_of_what_retired(
    controller: StorageController, writer: CollectionWriter
) -> None:
    early = listener(controller, 15)
    for number, shards in ((2, 1), (3, 5)):
        controller.renditions.create("flights", shards=shards)
        with pytest.raises(NotCaughtUp, match=f"rendition r{number} of collection flights is not filled yet"):
            controller.renditions.hand_over("flights", f"r{number}")
        controller.renditions.catch_up("flights", f"r{number}")
        at = controller.renditions.hand_over("flights", f"r{number}").held_from
        writer.append(updates([(number, "new", at, 1)]), at, at + 1)
    after = contents(controller)
    assert controller.renditions.drop_retired("flights") == ()
    controller.set_retention_hold("flights", at)
    assert controller.renditions.drop_retired("flights") == ()  # `early` may still read them
    assert early.until(at + 1) == after
    info = controller.describe("flights")
    assert [each.state.name for each in info.renditions] == ["RETIRED", "RETIRED", "HOLDING"]


def test_a_rendition_that_lags_is_refused_with_the_lag_and_what_to_do(
    controller: StorageController, writer: CollectionWriter
) -> None:
    controller.renditions.create("flights", shards=2)
    assert controller.renditions.catch_up("flights", "r2") == 20
    writer.append(updates([]), 20, 50)
    with pytest.raises(NotCaughtUp) as refused:
        controller.renditions.hand_over("flights", "r2", max_lag_ms=10)
    assert str(refused.value) == (
        "rendition r2 of collection flights lags by 30 ms: it is filled up to 20, and the collection is"
        " complete up to 50; a handover allows 10 ms"
    )
    assert "renditions.catch_up('flights', 'r2')" in refused.value.hint
    assert "max_lag_ms" in refused.value.hint
    assert refused.value.hint.endswith("run: holdfast collection handover flights --rendition r2")
    assert controller.renditions.hand_over("flights", "r2", max_lag_ms=30).id == "r2"


def test_a_retired_rendition_goes_when_nobody_may_read_its_times(
    client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    reader = controller.reader("flights", purpose="slow")
    old = controller.describe("flights").holding
    controller.renditions.create("flights", shards=1)
    controller.renditions.catch_up("flights", "r2")
    at = controller.renditions.hand_over("flights", "r2").held_from
    writer.append(None, at, at + 10)
    controller.set_retention_hold("flights", at + 5)
    assert controller.renditions.drop_retired("flights") == ()
    assert counted(reader.snapshot(15).to_table()) == counted(updates(ROWS))
    reader.allow_compaction(at)
    assert controller.renditions.drop_retired("flights") == ("r1",)
    assert {client.inspect(shard).finalized for shard in old.shards} == {True}
    with pytest.raises(AsOfTooEarly):
        reader.snapshot(at - 1)
    assert contents(controller, at) == counted(updates(ROWS))


def test_what_is_aborted_is_gone_and_holds_nothing(
    client: PersistClient, controller: StorageController, writer: CollectionWriter
) -> None:
    made = controller.renditions.create("flights", shards=2)
    controller.renditions.catch_up("flights", "r2")
    controller.renditions.abort("flights", "r2")
    controller.renditions.abort("flights", "r2")
    assert {client.inspect(shard).finalized for shard in made.shards} == {True}
    metadata = controller.describe("flights").metadata_shard
    assert [hold.purpose for hold in client.inspect(metadata).holds if hold.kind == "critical"] == [
        "retention"
    ]
    with pytest.raises(BadInput):
        controller.renditions.hand_over("flights", "r2")
    with pytest.raises(BadInput):
        controller.renditions.create("flights", shards=2, rendition_id="r2")
    with pytest.raises(BadInput):
        controller.renditions.abort("flights", "r1")


def test_no_acknowledged_write_is_lost_by_writers_that_race_handovers(
    stores: Stores, controller: StorageController, writer: CollectionWriter
) -> None:
    acknowledged: list[Row] = []
    handed_over = threading.Event()

    def write(number: int) -> None:
        mine = StorageController(stores.open()).writer("flights", purpose=f"writer {number}")
        count = 0
        while not handed_over.is_set() or count < 20:
            row = (1000 * number + count, "raced")
            upper = mine.upper()
            try:
                mine.append([{"id": row[0], "name": row[1]}], upper, upper + 3000)
            except UpperMismatch:
                continue
            acknowledged.append(row)
            count += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in (1, 2)]
    early = listener(controller, 15)
    for thread in threads:
        thread.start()
    for number in (2, 3, 4):
        controller.renditions.create("flights", shards=number)
        controller.renditions.catch_up("flights", f"r{number}")
        controller.renditions.hand_over("flights", f"r{number}", max_lag_ms=1 << 40)
    handed_over.set()
    for thread in threads:
        thread.join()
    expected = Counter(counted(updates(ROWS)))
    expected.update(acknowledged)
    assert contents(controller) == expected
    with controller.reader("flights", purpose="look") as reader:
        assert early.until(reader.upper()) == expected
    assert controller.describe("flights").schema == SCHEMA
