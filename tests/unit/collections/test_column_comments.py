"""Columns of a collection get comments. Only the record changes, not the schema."""

from dataclasses import replace

import pytest

import holdfast
from holdfast.collections import CollectionSpec, CommandKind, StorageController
from holdfast.errors import BadInput, CollectionNotFound, Fenced
from holdfast.persist import Prepared, Schema
from unit.collections.stores import SCHEMA, SPEC, Stores, updates

SAID = {"id": "the number\nof a flight\t(IATA)", "name": "die Fluggesellschaft ✈"}
WIDER = Schema.of(key={"id": "int64"}, value={"name": "string?", "seats": "int32?"})


@pytest.fixture
def controller(stores: Stores) -> StorageController:
    controller = StorageController(stores.open())
    controller.create_collection(SPEC)
    return controller


def comment_commands(controller: StorageController) -> list[object]:
    kind = CommandKind.COMMENT_COLUMNS
    return [each.result for each in controller.history("flights") if each.kind is kind]


def test_comments_come_with_the_collection_and_are_seen_by_other_processes(stores: Stores) -> None:
    spec = CollectionSpec("c1", "flights", SCHEMA, comments={**SAID, "id": ""})
    assert spec.comments == {"name": SAID["name"]}
    StorageController(stores.open()).create_collection(spec)
    there = StorageController(stores.open()).describe("flights")
    assert there.comments == {"name": SAID["name"]}
    assert hash(there) == hash(replace(there, comments=SAID))


def test_comments_are_changed_and_taken_away_one_by_one(
    stores: Stores, controller: StorageController
) -> None:
    assert controller.comment_columns("flights", SAID).comments == SAID
    assert controller.comment_columns("flights", {"name": "another"}).comments == {**SAID, "name": "another"}
    other = StorageController(stores.open())
    assert other.describe("c1").comments == {**SAID, "name": "another"}
    assert other.comment_columns("c1", {"id": None, "name": ""}).comments == {}
    assert controller.describe("flights") == other.describe("flights")
    assert comment_commands(other) == [
        {"comments": SAID},
        {"comments": {"name": "another"}},
        {"comments": {"id": None, "name": None}},
    ]


def test_what_is_so_already_is_no_command(controller: StorageController) -> None:
    controller.comment_columns("flights", {"name": None})
    controller.comment_columns("flights", {})
    assert comment_commands(controller) == []
    controller.comment_columns("flights", SAID)
    controller.comment_columns("flights", {"id": SAID["id"]})
    assert len(comment_commands(controller)) == 1


def test_the_same_command_again_does_not_bring_back_what_was_changed_since(
    controller: StorageController,
) -> None:
    controller.comment_columns("flights", SAID, command_id="k")
    controller.comment_columns("flights", {"name": "another"})
    again = controller.comment_columns("flights", SAID, command_id="k")
    assert again.comments == {**SAID, "name": "another"}


def test_no_shard_is_touched_and_whoever_reads_and_writes_goes_on(
    stores: Stores, controller: StorageController
) -> None:
    writer = controller.writer("flights", purpose="w")
    writer.append(updates([(1, "a", 5, 1)]), 0, 10)
    info = controller.describe("flights")
    before = [stores.open().inspect(shard) for shard in (info.metadata_shard, *info.data_shards)]
    after = controller.comment_columns("flights", SAID)
    assert [stores.open().inspect(shard) for shard in (info.metadata_shard, *info.data_shards)] == before
    assert (after.schema, after.renditions) == (info.schema, info.renditions)
    writer.append(updates([(2, "b", 15, 1)]), 10, 20)
    with controller.reader("flights", purpose="r") as reader:
        assert reader.snapshot().to_table().num_rows == 2


def test_comments_stay_when_the_collection_becomes_another(controller: StorageController) -> None:
    controller.comment_columns("flights", SAID)
    controller.writer("flights", purpose="w").append(updates([(1, "a", 5, 1)]), 0, 10)
    assert controller.evolve_collection("flights", WIDER).comments == SAID
    assert controller.comment_columns("flights", {"seats": "how many"}).comments["seats"] == "how many"
    controller.renditions.create("flights", shards=1, rendition_id="r2")
    controller.renditions.catch_up("flights", "r2")
    controller.renditions.hand_over("flights", "r2")
    assert controller.describe("flights").comments == {**SAID, "seats": "how many"}


def test_the_creation_again_finds_the_collection_with_the_comments_that_it_has(
    controller: StorageController,
) -> None:
    controller.comment_columns("flights", SAID)
    again = CollectionSpec(SPEC.collection_id, SPEC.name, SCHEMA, SPEC.shards, comments={"id": "otherwise"})
    assert controller.create_collection(again).comments == SAID


BAD: dict[str, tuple[object, str]] = {
    "column": ({"id": "x", "nope": "y"}, r"flights has no column 'nope' to comment on \(id, name\)"),
    "text": ({"id": 5}, "column 'id' is 5, expected a text"),
    "length": ({"id": "x" * 1025}, "at most 1024 characters"),
    "control character": ({"id": "a\x1b[31m"}, "without control characters"),
    "carriage return": ({"id": "a\r\n"}, "without control characters"),
    "half of a pair": ({"id": "a\ud800"}, "column 'id'"),
    "mapping": (["id"], "a dict of columns and texts"),
}


@pytest.mark.parametrize(("comments", "message"), BAD.values(), ids=BAD.keys())
def test_what_is_no_comment_is_refused_in_one_line(
    controller: StorageController, comments: dict[str, str | None], message: str
) -> None:
    controller.comment_columns("flights", {"id": "x" * 1024})
    before = controller.describe("flights"), controller.history("flights")
    with pytest.raises(BadInput, match=message) as refused:
        controller.comment_columns("flights", comments)
    assert "\n" not in str(refused.value)
    assert (controller.describe("flights"), controller.history("flights")) == before
    with pytest.raises(BadInput, match="dict" if message.endswith("texts") else "flights"):
        CollectionSpec("c2", "flights", SCHEMA, comments=comments)  # type: ignore[arg-type]


def test_what_is_gone_gets_none(controller: StorageController) -> None:
    controller.drop_collection("flights")
    for name in ("flights", "c1", "never"):
        with pytest.raises(CollectionNotFound):
            controller.comment_columns(name, SAID)


def test_a_process_that_is_fenced_says_nothing(stores: Stores, controller: StorageController) -> None:
    def lost() -> Prepared:
        raise Fenced("1", "2", what="the operator")

    with pytest.raises(Fenced):
        StorageController(stores.open(), guard=lost).comment_columns("flights", SAID)
    assert controller.describe("flights").comments == {}


def test_a_table_is_made_with_comments_and_gets_others(stores: Stores) -> None:
    columns = {"id": "int64", "note": "string?"}
    with stores.open() as client:
        table = holdfast.table(client, "orders", columns=columns, key="id", comments={"note": "free text"})
        assert table.comments == {"note": "free text"}
        table.comments.clear()
        assert table.comments == {"note": "free text"}
        table.comment({"note": None, "id": "of the order"})
        table.append([{"id": 1, "note": "a"}])
        there = holdfast.table(client, "orders", columns=columns, key="id", comments={"note": "ignored"})
        assert there.comments == table.comments == {"id": "of the order"}
        with pytest.raises(BadInput, match="comments without columns"):
            holdfast.table(client, "orders", comments={"id": "x"})
        with pytest.raises(BadInput, match="collection x has no column 'nope'"):
            holdfast.table(client, "x", columns=columns, comments={"nope": "x"})
        with pytest.raises(CollectionNotFound):
            holdfast.table(client, "x")
