"""A collection gets the contents of a snapshot, and readers see from which time."""

from collections import Counter
from pathlib import Path

import pytest

from holdfast.collections import Recipe, RenditionState, RestoreSource, StorageController
from holdfast.errors import BadInput, CorruptBlob, NotCaughtUp
from holdfast.persist import Progress, Schema
from unit.collections.listeners import contents
from unit.collections.snapshots import snapshot
from unit.collections.stores import SPEC, Row, Stores, counted, updates

THEN: list[Row] = [(number, "then") for number in range(30)] + [(3, "then"), (4, None)]


@pytest.fixture
def controller(stores: Stores) -> StorageController:
    controller = StorageController(stores.open())
    controller.create_collection(SPEC, command_id="make")
    rows = [(number, "then" if number < 10 else "now", 5, 1) for number in range(40)]
    controller.writer("flights", purpose="test").append(updates(rows), 0, 20)
    return controller


def test_contents_become_those_of_the_snapshot_and_listeners_see_what_differs(
    controller: StorageController, tmp_path: Path
) -> None:
    source = snapshot(tmp_path / "s", THEN)
    writer = controller.writer("flights", purpose="test")
    before = contents(controller)
    reader = controller.reader("flights", purpose="listener")
    heard = Counter(counted(reader.snapshot(15).to_table()))
    listen = reader.listen(15)
    told: list[int] = []
    made = controller.restore_collection("flights", source, command_id="back", progress=told.append)
    assert (made.id, made.state, made.recipe) == ("r2", RenditionState.HOLDING, Recipe.RESTORED)
    assert told[-1] == len(THEN)
    at = made.held_from
    assert contents(controller, at - 1) == before
    assert writer.upper() == at + 1
    assert contents(controller) == Counter(THEN)
    writer.append(updates([(100, "after", at + 1, 1)]), at + 1, at + 2)
    expected = Counter(THEN) + Counter({(100, "after"): 1})
    assert contents(controller) == expected
    changed = 0
    while listen.frontier < at + 2:
        for event in listen.next(10.0):
            if not isinstance(event, Progress):
                heard.update(counted(event.table))
                changed += event.table.num_rows
    assert Counter({row: count for row, count in heard.items() if count}) == expected
    # 10 are the same, one of them there twice now; 30 went, 20 came, and (4, None); then one was written.
    assert changed == 1 + 30 + 20 + 1 + 1
    assert controller.restore_collection("flights", source, command_id="back") == made
    assert contents(controller) == expected
    assert {each.purpose for each in controller.holds("flights")} == {"retention", "listener"}
    (told_then,) = (each for each in controller.history("flights") if each.kind.name == "RESTORE_COLLECTION")
    assert told_then.command_id == "back"
    assert dict(told_then.result) == {
        "rendition": "r2",
        "shards": 3,
        "recipe": "RESTORED",
        "snapshot": str(tmp_path / "s"),
        "as_of": 77,
        "rows": len(THEN),
        "checksum": dict(source.told)["checksum"],
    }


def test_what_was_written_while_it_was_filled_is_given_up(
    controller: StorageController, tmp_path: Path
) -> None:
    source = snapshot(tmp_path / "s", THEN)
    writer = controller.writer("flights", purpose="test")
    wrote: list[int] = []

    def write(_: int) -> None:
        upper = writer.upper()
        writer.append([{"id": 500 + upper, "name": "meanwhile"}], upper, upper + 50_000)
        wrote.append(500 + upper)

    made = controller.restore_collection("flights", source, progress=write)
    assert contents(controller) == Counter(THEN)
    assert {id_ for id_, _ in contents(controller, made.held_from - 1)} >= set(wrote)


def test_nothing_changes_where_it_does_not_fit(controller: StorageController, tmp_path: Path) -> None:
    before = controller.describe("flights"), contents(controller)
    other = Schema.of(key={"id": "int64"}, value={"name": "string"})
    stricter = Schema.of(key={"id": "int32"}, value={"name": "string?"})
    with pytest.raises(BadInput, match="int32"):
        controller.restore_collection("flights", snapshot(tmp_path / "stricter", [], stricter))
    damaged = snapshot(tmp_path / "damaged", THEN)
    path = tmp_path / "damaged" / "part-1.parquet"
    snapshot(tmp_path / "damaged2", [(1, "x")] * len(THEN))
    path.write_bytes((tmp_path / "damaged2" / "part-1.parquet").read_bytes())
    with pytest.raises(CorruptBlob, match=r"part-1\.parquet"):
        controller.restore_collection("flights", damaged)
    with pytest.raises(BadInput, match="not a snapshot"):
        RestoreSource.open(tmp_path)
    with pytest.raises(BadInput, match="make"):
        controller.restore_collection("flights", snapshot(tmp_path / "s", THEN), command_id="make")
    assert (controller.describe("flights"), contents(controller)) == before
    # A column that may be null now has no null in rows of before.
    first = snapshot(tmp_path / "other", [(1, "a")], other)
    controller.restore_collection("flights", first, command_id="first")
    assert contents(controller) == Counter([(1, "a")])
    with pytest.raises(BadInput, match="another snapshot"):
        controller.restore_collection("flights", snapshot(tmp_path / "s", THEN), command_id="first")


def test_it_goes_on_where_it_broke_off(stores: Stores, controller: StorageController, tmp_path: Path) -> None:
    source = snapshot(tmp_path / "s", THEN)

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        controller.restore_collection("flights", source, progress=stop)
    with pytest.raises(NotCaughtUp):
        controller.renditions.hand_over("flights", "r2")
    (wait,) = controller.advance("flights").waits
    assert "restore" in wait.why
    # A snapshot of others rows is another restore.
    second = controller.restore_collection("flights", snapshot(tmp_path / "t", [(1, "t")]))
    assert second.id == "r3"
    other = StorageController(stores.open())
    assert other.restore_collection("flights", source).id == "r2"
    assert contents(other) == Counter(THEN)
    assert {each.purpose for each in other.holds("flights")} == {"retention"}
    # What was given up is not taken up again.
    with pytest.raises(KeyboardInterrupt):
        controller.restore_collection("flights", source, command_id="again", progress=stop)
    controller.renditions.abort("flights", "r4")
    with pytest.raises(BadInput, match="aborted"):
        controller.restore_collection("flights", source, command_id="again")


def test_another_restore_of_the_same_snapshot_may_be_faster_and_be_handed_over_from_since(
    stores: Stores, controller: StorageController, tmp_path: Path
) -> None:
    source = snapshot(tmp_path / "s", THEN)
    faster = StorageController(stores.open())

    def restored_and_handed_over(_: int) -> None:
        if faster.describe("flights").holding.id == "r3":
            return
        faster.restore_collection("flights", source, command_id="faster")
        faster.renditions.create("flights", shards=1)
        faster.renditions.catch_up("flights", "r3")
        faster.renditions.hand_over("flights", "r3")

    made = controller.restore_collection(
        "flights", source, command_id="slower", progress=restored_and_handed_over
    )
    assert (made.id, made.state) == ("r2", RenditionState.RETIRED)
    assert contents(controller, made.held_to - 1) == contents(controller) == Counter(THEN)
    assert controller.describe("flights").holding.id == "r3"


def test_a_snapshot_of_nothing_and_of_a_collection_that_has_nothing_yet(
    stores: Stores, tmp_path: Path
) -> None:
    controller = StorageController(stores.open())
    controller.create_collection(SPEC)
    empty = snapshot(tmp_path / "empty", [], files=0)
    made = controller.restore_collection("flights", empty)
    assert (made.held_from, contents(controller)) == (2, Counter())
    full = controller.restore_collection("flights", snapshot(tmp_path / "s", THEN))
    assert contents(controller) == Counter(THEN)
    assert full.held_from == 3
    assert {each.purpose for each in controller.holds("flights")} == {"retention"}
