"""A collection gets columns while its writers, readers and renditions continue."""

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pytest

from holdfast.collections import CollectionSpec, StorageController
from holdfast.errors import BadInput, CodecMismatch, CollectionNotFound
from holdfast.persist import Schema
from unit.collections.stores import SCHEMA, SPEC, Stores, updates

WIDER = Schema.of(key={"id": "int64"}, value={"name": "string?", "seats": "int32?"})
WIDEST = Schema.of(key={"id": "int64"}, value={"name": "string?", "seats": "int64?", "gate": "string?"})


@pytest.fixture
def controller(stores: Stores) -> StorageController:
    controller = StorageController(stores.open())
    controller.create_collection(SPEC, command_id="make")
    return controller


def rows(controller: StorageController) -> Counter[tuple[object, ...]]:
    with controller.reader("flights", purpose="look") as reader:
        return tallied(reader.snapshot().to_table().to_pylist())


def tallied(found: Iterable[dict[str, object]]) -> Counter[tuple[object, ...]]:
    counts: Counter[tuple[object, ...]] = Counter()
    for row in found:
        counts[row["id"], row["name"], row.get("seats"), row.get("gate")] += int(str(row["_diff"]))
    return Counter({row: count for row, count in counts.items() if count})


def test_all_renditions_evolve_in_one_step_and_old_writers_go_on(
    stores: Stores, controller: StorageController
) -> None:
    old = controller.writer("flights", purpose="old")
    old.append(updates([(number, "old", 5, 1) for number in range(10)]), 0, 20)
    controller.renditions.create("flights", shards=2)
    controller.renditions.catch_up("flights", "r2")
    other = StorageController(stores.open())
    assert other.evolve_collection("flights", WIDER, command_id="e").schema == WIDER
    assert other.evolve_collection("flights", WIDER).schema == WIDER
    assert controller.describe("flights").schema == WIDER
    new = controller.writer("flights", purpose="new")
    new.append([{"id": 11, "name": "new", "seats": 7}], 20, 30)
    old.append([{"id": 12, "name": "old"}], 30, 40)
    # Brought from shards of which it saw some before and some after.
    assert controller.renditions.catch_up("flights", "r2") == 40
    at = other.renditions.hand_over("flights", "r2").held_from
    assert old.upper() == at
    old.append([{"id": 0, "name": "old", "_diff": -1}], at, at + 1)
    other.evolve_collection("flights", WIDEST)
    # Made with the newest schema alone: it has none that the writers were opened with.
    other.renditions.create("flights", shards=4)
    other.renditions.catch_up("flights", "r3")
    at = other.renditions.hand_over("flights", "r3").held_from
    assert [len(other.client.inspect(shard).schemas) for shard in other.describe("c1").holding.shards] == [
        1
    ] * 4
    assert (old.upper(), new.upper()) == (at, at)
    old.append([{"id": 1, "name": "old", "_diff": -1}], at, at + 1)
    new.append([{"id": 11, "name": "new", "seats": 7, "_diff": -1}], at + 1, at + 2)
    newest = controller.writer("flights", purpose="newest")
    newest.append([{"id": 13, "name": "n", "seats": 1 << 40, "gate": "b"}], at + 2, at + 3)
    expected = Counter({(number, "old", None, None): 1 for number in (*range(2, 10), 12)})
    expected[13, "n", 1 << 40, "b"] = 1
    assert rows(controller) == expected
    assert controller.evolve_collection("flights", WIDER, command_id="e").schema == WIDEST
    assert controller.create_collection(SPEC, command_id="make").schema == WIDEST
    kinds = [each.kind.name for each in controller.history("flights")]
    assert kinds.count("EVOLVE_COLLECTION") == 2


def test_where_there_is_no_key_a_row_keeps_its_shard(stores: Stores) -> None:
    controller = StorageController(stores.open())
    first = Schema.of(key={}, value={"a": "int32?", "b": "string?"})
    wider = Schema.of(key={}, value={"a": "int64?", "b": "string?", "c": "float64?"})
    controller.create_collection(CollectionSpec("k", "keyless", first, shards=3))
    old = controller.writer("keyless", purpose="old")
    old.append([{"a": number, "b": str(number)} for number in range(50)], 0, 10)
    controller.evolve_collection("keyless", wider)
    assert controller.describe("keyless").holding.hash_columns == ("a", "b")
    new = controller.writer("keyless", purpose="new")
    gone: list[object] = [{"a": number, "b": str(number), "c": None, "_diff": -1} for number in range(25)]
    new.append(gone, 10, 20)
    # Of a rendition that was made now all three columns decide.
    made = controller.renditions.create("keyless", shards=2)
    assert made.hash_columns == ("a", "b", "c")
    controller.renditions.catch_up("keyless", "r2")
    at = controller.renditions.hand_over("keyless", "r2").held_from
    assert old.upper() == at
    old.append([{"a": number, "b": str(number), "_diff": -1} for number in range(25, 50)], at, at + 1)
    with controller.reader("keyless", purpose="look") as reader:
        table: pa.Table = reader.snapshot().to_table()
    assert table.num_rows == 0


def test_what_can_not_follow_is_refused_with_both(controller: StorageController) -> None:
    before = controller.describe("flights")
    narrower = Schema.of(key={"id": "int64"}, value={"name": "string"})
    with pytest.raises(CodecMismatch) as refused:
        controller.evolve_collection("flights", narrower)
    assert str(SCHEMA) in str(refused.value)
    assert str(narrower) in str(refused.value)
    assert "collection flights" in str(refused.value)
    with pytest.raises(BadInput):
        controller.evolve_collection("flights", None)  # type: ignore[arg-type]
    with pytest.raises(BadInput):
        controller.evolve_collection("flights", WIDER, command_id="make")
    assert controller.describe("flights") == before
    controller.drop_collection("flights")
    with pytest.raises(CollectionNotFound):
        controller.evolve_collection("flights", WIDER)
