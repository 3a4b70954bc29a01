"""Writing, reading and following a collection."""

import pickle
import threading
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from holdfast.collections import (
    CollectionInfo,
    CollectionReader,
    CollectionSpec,
    CollectionWriter,
    Frontiers,
    StorageController,
    read_collection_part,
)
from holdfast.collections.frontiers import PROMISE_MS
from holdfast.collections.metadata import METADATA_SCHEMA
from holdfast.errors import (
    CLOSED,
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    CollectionNotFound,
    NotWritable,
    TornRendition,
    UpperMismatch,
)
from holdfast.persist import PersistClient, Progress, Updates
from holdfast.persist.rows.row_hash import shard_of
from unit.collections.listeners import Heard
from unit.collections.stores import SCHEMA, SPEC, Stores, counted, updates

ROWS = [(number, str(number), 10, 1) for number in range(50)]
CONTENTS = Counter({(number, str(number)): 1 for number in range(50)})


@pytest.fixture
def info(controller: StorageController) -> CollectionInfo:
    return controller.create_collection(SPEC)


@pytest.fixture
def writer(controller: StorageController, info: CollectionInfo) -> CollectionWriter:
    return controller.writer(info.collection_id, purpose="test")


def test_a_new_collection_has_nothing_to_read(controller: StorageController, info: CollectionInfo) -> None:
    assert controller.frontiers("flights") == Frontiers(0, 0)
    with pytest.raises(AsOfNotYetAvailable):
        controller.reader("flights", purpose="test").snapshot()


def test_what_was_written_is_read_at_its_time(
    controller: StorageController, writer: CollectionWriter
) -> None:
    writer.append(updates(ROWS), 0, 100)
    writer.append(updates([(7, "7", 150, -1), (7, None, 160, 1)]), 100, 200)
    reader = controller.reader("flights", purpose="test")
    assert counted(reader.snapshot().to_table()) == CONTENTS - Counter([(7, "7")]) + Counter([(7, None)])
    assert counted(reader.snapshot(155).to_table()) == CONTENTS - Counter([(7, "7")])
    assert counted(pa.Table.from_batches(reader.snapshot(10))) == CONTENTS
    assert counted(reader.snapshot(9).to_table()) == Counter()
    with pytest.raises(AsOfNotYetAvailable):
        reader.snapshot(200)


def test_every_row_is_in_the_shard_of_its_hash(
    client: PersistClient, writer: CollectionWriter, info: CollectionInfo
) -> None:
    writer.append(updates(ROWS), 0, 100)
    seen = 0
    for number, shard in enumerate(info.renditions[0].shards):
        table = client.reader(shard, purpose="test").snapshot(99).to_table()
        assert set(shard_of(table, ["id"], 3).tolist()) == {number}
        seen += table.num_rows
    assert seen == len(ROWS)


def test_a_write_takes_all_shards_even_without_rows(
    client: PersistClient, writer: CollectionWriter, info: CollectionInfo
) -> None:
    writer.append(updates(ROWS[:1]), 0, 100)
    writer.seal(120)
    writer.seal(110)
    assert {client.recent_upper(shard) for shard in info.data_shards} == {120}


def test_the_promise_moves_only_with_a_write_beyond_it(
    client: PersistClient, writer: CollectionWriter, info: CollectionInfo
) -> None:
    assert client.recent_upper(info.metadata_shard) == 1
    writer.append(None, 0, 100)
    assert client.recent_upper(info.metadata_shard) == 100 + PROMISE_MS
    seqno = client.inspect(info.metadata_shard).seqno
    writer.append(None, 100, 100 + PROMISE_MS)
    assert client.inspect(info.metadata_shard).seqno == seqno
    writer.append(None, 100 + PROMISE_MS, 101 + PROMISE_MS)
    assert client.recent_upper(info.metadata_shard) == 101 + 2 * PROMISE_MS


def test_a_promise_moved_by_another_costs_a_writer_nothing(
    client: PersistClient, stores: Stores, writer: CollectionWriter, info: CollectionInfo
) -> None:
    other = stores.open().writer(info.metadata_shard, METADATA_SCHEMA, purpose="test")
    other.seal(50)
    writer.append(updates(ROWS), 0, 100)
    assert client.recent_upper(info.metadata_shard) == 100 + PROMISE_MS
    assert writer.upper() == 100


def test_a_lost_append_tells_the_upper_of_the_collection(
    controller: StorageController, stores: Stores, writer: CollectionWriter
) -> None:
    other = StorageController(stores.open()).writer("flights", purpose="other")
    other.append(updates(ROWS), 0, 100)
    with pytest.raises(UpperMismatch, match="flights") as lost:
        writer.append(updates([(1, "lost", 10, 1)]), 0, 50)
    assert (lost.value.expected, lost.value.actual) == (0, 100)
    writer.append(None, 100, 101)
    assert counted(controller.reader("flights", purpose="test").snapshot().to_table()) == CONTENTS


def test_racing_writers_lose_nothing(stores: Stores, info: CollectionInfo) -> None:
    appends = 15

    def write(who: int) -> None:
        writer = StorageController(stores.open()).writer("flights", purpose=f"writer {who}")
        upper = writer.upper()
        for number in range(appends):
            while True:
                try:
                    writer.append(updates([(number, f"{who}", upper, 1)] * 2), upper, upper + 3000)
                    break
                except UpperMismatch as mismatch:
                    upper = mismatch.actual
            upper += 3000

    threads = [threading.Thread(target=write, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    controller = StorageController(stores.open())
    assert controller.frontiers("flights").upper == 2 * appends * 3000
    contents = counted(controller.reader("flights", purpose="test").snapshot().to_table())
    assert contents == Counter({(n, str(who)): 2 for n in range(appends) for who in range(2)})


@pytest.mark.parametrize(
    ("rows", "lower", "upper", "message"),
    [
        ([(1, "a", 9, 1)], 10, 20, "time 9"),
        ([(1, "a", 20, 1)], 10, 20, "time 20"),
        ([], 20, 20, "from 20 to 20"),
        ([], 0, CLOSED + 1, "not a frontier"),
    ],
)
def test_a_write_outside_of_its_times_is_refused(
    writer: CollectionWriter, rows: list[tuple[int, str, int, int]], lower: int, upper: int, message: str
) -> None:
    writer.append(None, 0, 10)
    with pytest.raises(BadInput, match=message):
        writer.append(updates(rows), lower, upper)
    assert writer.upper() == 10


def test_rows_without_times_are_at_the_expected_upper(
    controller: StorageController, writer: CollectionWriter
) -> None:
    writer.append(None, 0, 40)
    writer.append(pa.table({"name": ["x"], "id": [1]}), 40, 50)
    reader = controller.reader("flights", purpose="test")
    assert counted(reader.snapshot(39).to_table()) == Counter()
    assert counted(reader.snapshot(40).to_table()) == Counter([(1, "x")])


def test_a_collection_can_be_closed(
    controller: StorageController, writer: CollectionWriter, client: PersistClient, info: CollectionInfo
) -> None:
    writer.append(updates(ROWS), 0, CLOSED)
    assert writer.upper() == client.recent_upper(info.metadata_shard) == CLOSED
    assert counted(controller.reader("flights", purpose="test").snapshot(10).to_table()) == CONTENTS


def test_a_torn_rendition_is_told_not_hidden(
    client: PersistClient, controller: StorageController, info: CollectionInfo
) -> None:
    client.writer(info.data_shards[1], SCHEMA, purpose="vandal").seal(5)
    with pytest.raises(TornRendition, match="r1 of collection flights") as torn:
        controller.writer("flights", purpose="test")
    assert torn.value.uppers == dict(zip(info.data_shards, [0, 5, 0], strict=True))
    with pytest.raises(TornRendition):
        controller.frontiers("flights")


def test_a_subscription_sees_each_change_once_and_progress_after_it(
    stores: Stores, controller: StorageController, writer: CollectionWriter
) -> None:
    writer.append(updates(ROWS), 0, 100)
    follow = controller.reader("flights", purpose="test").subscribe(20)
    first, progress = follow.next(1.0)
    assert isinstance(first, Updates)
    assert counted(first.table) == CONTENTS
    assert set(first.table["_time"].to_pylist()) == {20}
    assert progress == Progress(21)
    assert follow.next(1.0) == [Progress(100)]
    assert follow.next(0.0) == []
    StorageController(stores.open()).writer("flights", purpose="other").append(
        updates([(1, "1", 130, -1), (2, "2", 110, -1)]), 100, 200
    )
    second, progress = follow.next(1.0)
    assert isinstance(second, Updates)
    assert second.table["_time"].to_pylist() == [110, 130]
    assert progress == Progress(200)


def test_a_listener_waits_for_all_shards_and_for_the_promise(
    client: PersistClient, controller: StorageController, info: CollectionInfo
) -> None:
    """No writer of collections gets the shards apart like this; a listener must not depend on it."""
    follow = controller.reader("flights", purpose="test").listen(0)
    shards = [client.writer(shard, SCHEMA, purpose="test") for shard in info.data_shards]
    metadata = client.writer(info.metadata_shard, METADATA_SCHEMA, purpose="test")
    shards[0].compare_and_append(updates([(1, "a", 5, 1), (1, "b", 15, 1)]), 0, 30)
    shards[1].seal(20)
    assert follow.next(0.0) == []
    shards[2].seal(30)
    assert follow.next(0.0) == []
    metadata.seal(10)
    events = follow.next(0.0)
    assert [event.table["name"].to_pylist() for event in events if isinstance(event, Updates)] == [["a"]]
    assert events[-1] == Progress(10)
    metadata.seal(40)
    events = follow.next(0.0)
    assert [event.table["name"].to_pylist() for event in events if isinstance(event, Updates)] == [["b"]]
    assert events[-1] == Progress(20)


def test_since_is_the_metadata_shards_and_data_follows_it(
    client: PersistClient, controller: StorageController, writer: CollectionWriter, info: CollectionInfo
) -> None:
    def data_sinces() -> set[int]:
        return {client.inspect(shard).since for shard in info.data_shards}

    writer.append(updates(ROWS), 0, 100)
    slow, fast = (controller.reader("flights", purpose=name) for name in ("slow", "fast"))
    assert controller.set_retention_hold("flights", 60) == 0
    fast.allow_compaction(50)
    assert (slow.since(), data_sinces()) == (0, {0})
    slow.allow_compaction(30)
    assert slow.since() == 30
    assert max(data_sinces()) <= 30
    slow.close()
    fast.allow_compaction(1000)
    assert controller.set_retention_hold("flights", 1000) == 99
    fast.allow_compaction(99)
    assert (controller.frontiers("flights").since, data_sinces()) == (99, {99})
    with pytest.raises(AsOfTooEarly):
        fast.snapshot(98)
    assert counted(fast.snapshot(99).to_table()) == CONTENTS


def test_parts_of_a_snapshot_are_read_elsewhere(
    stores: Stores, controller: StorageController, writer: CollectionWriter
) -> None:
    writer.append(updates(ROWS), 0, 100)
    reader = controller.reader("flights", purpose="test")
    for most in (None, 1, 2, 10):
        parts = pickle.loads(pickle.dumps(reader.snapshot_parts(50, most)))
        assert 1 <= len(parts) <= (most or 100)
        other = stores.open(mode="read")
        batches = [batch for part in parts for batch in read_collection_part(other, part)]
        assert counted(pa.Table.from_batches(batches)) == CONTENTS


ASKED: dict[str, Callable[[CollectionReader], object]] = {
    "since": lambda reader: reader.since(),
    "upper": lambda reader: reader.upper(),
    "readable": lambda reader: reader.readable(15),
    "snapshot": lambda reader: reader.snapshot(15),
    "snapshot_parts": lambda reader: reader.snapshot_parts(15),
    "listen": lambda reader: reader.listen(15),
    "subscribe": lambda reader: reader.subscribe(15),
    "changes": lambda reader: reader.changes(12, 15),
    "change_counts": lambda reader: reader.change_counts(15),
    "changed_within": lambda reader: reader.changed_within(12, 15, 1),
    "allow_compaction": lambda reader: reader.allow_compaction(12),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
def test_a_reader_that_was_closed_answers_nothing_and_holds_nothing(
    controller: StorageController, writer: CollectionWriter, ask: Callable[[CollectionReader], object]
) -> None:
    writer.append(updates(ROWS), 0, 20)
    reader = controller.reader("flights", purpose="closed")
    ask(reader)
    reader.close()
    with pytest.raises(BadInput, match="this reader of collection flights is closed"):
        ask(reader)
    reader.close()
    assert {each.purpose for each in controller.holds("flights")} == {"retention"}


def test_a_listen_of_a_closed_reader_takes_no_new_hold(
    controller: StorageController, writer: CollectionWriter
) -> None:
    writer.append(updates(ROWS), 0, 20)
    reader = controller.reader("flights", purpose="closed")
    heard = Heard(reader.listen(15))
    reader.close()
    controller.renditions.create("flights", shards=2)
    controller.renditions.catch_up("flights", "r2")
    at = controller.renditions.hand_over("flights", "r2").held_from
    with pytest.raises(BadInput, match="this reader of collection flights is closed"):
        heard.until(at + 1)
    assert {each.purpose for each in controller.holds("flights")} == {"retention"}


def test_a_read_only_process_writes_nothing(stores: Stores, writer: CollectionWriter) -> None:
    writer.append(updates(ROWS), 0, 100)
    before = {key: stores.consensus.heads([key])[key].seqno for key in stores.consensus.list_keys()}
    controller = StorageController(stores.open(mode="read"))
    assert [info.name for info in controller.list_collections()] == ["flights"]
    assert controller.frontiers("flights") == Frontiers(0, 100)
    assert counted(controller.reader("flights", purpose="test").snapshot().to_table()) == CONTENTS
    with pytest.raises(NotWritable):
        controller.writer("flights", purpose="test")
    with pytest.raises(NotWritable):
        controller.create_collection(CollectionSpec("c2", "other", SCHEMA))
    after = {key: stores.consensus.heads([key])[key].seqno for key in stores.consensus.list_keys()}
    assert before == after


def test_a_location_without_collections_reads_as_one(stores: Stores) -> None:
    controller = StorageController(stores.open(mode="read"))
    assert controller.list_collections() == ()
    with pytest.raises(CollectionNotFound, match="'flights'"):
        controller.describe("flights")


def test_whoever_holds_the_metadata_holds_the_data(
    client: PersistClient, controller: StorageController, writer: CollectionWriter, info: CollectionInfo
) -> None:
    writer.append(updates(ROWS), 0, 100)
    hold = client.critical_since(info.metadata_shard, purpose="hold on the collection")
    assert controller.set_retention_hold("flights", 60) == 0
    assert {client.inspect(shard).since for shard in info.data_shards} == {0}
    hold.downgrade(40)
    assert controller.set_retention_hold("flights", 60) == 40
    assert {client.inspect(shard).since for shard in info.data_shards} == {40}
    hold.release()
    assert controller.set_retention_hold("flights", 70) == 70
    assert {client.inspect(shard).since for shard in info.data_shards} == {70}
