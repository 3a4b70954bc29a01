"""Another process changes the state between two steps of a command or write. Each uses the new state."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.collections import CollectionReader, Recipe, RenditionState, StorageController, rendition_copy
from holdfast.collections.differences import difference_shard_id
from holdfast.errors import AsOfTooEarly, BadInput, CollectionNotFound, HoldfastError, Overtaken
from holdfast.persist import ReadHandle, Schema
from holdfast.persist.rows.evolution import fitted
from unit.collections.snapshots import snapshot
from unit.collections.stores import SPEC, Stores, counted, updates

WIDER = Schema.of(key={"id": "int64"}, value={"name": "string?", "count": "int64?"})


@pytest.fixture
def controller(stores: Stores) -> StorageController:
    controller = StorageController(stores.open())
    controller.create_collection(SPEC)
    controller.writer("flights", purpose="test").append(updates([(1, "a", 5, 1), (2, "b", 6, 1)]), 0, 100)
    return controller


@pytest.fixture
def other(stores: Stores) -> StorageController:
    """Another process."""
    return StorageController(stores.open())


def before(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, act: Callable[..., object]) -> None:
    """Run `act` once, with the same arguments, before the first call of a method that it says True to."""
    call, done = getattr(owner, name), []

    def first(*args: Any, **kwargs: Any) -> Any:
        if not done and act(*args, **kwargs) is not None:
            done.append(True)
        return call(*args, **kwargs)

    monkeypatch.setattr(owner, name, first)


def test_an_upsert_takes_away_rows_that_came_with_columns_it_has_not_seen(stores: Stores) -> None:
    columns = {"id": "int64", "name": "string?"}
    first = holdfast.table(stores.open(), "t", columns=columns, key="id", shards=2)
    first.upsert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    late = holdfast.table(stores.open(), "t")
    assert late.read().num_rows == 2  # it has read, but not written
    StorageController(stores.open()).evolve_collection("t", WIDER)
    holdfast.table(stores.open(), "t").upsert([{"id": 1, "name": "a", "count": 5}])
    late.upsert([{"id": 1, "name": "z"}])
    rows = sorted(first.counts().to_pylist(), key=lambda row: row["id"])
    assert [tuple(row.values()) for row in rows] == [(1, "z", None, 1), (2, "b", None, 1)]


def test_rows_never_lose_columns() -> None:
    rows = pa.table({"id": [1], "count": [5]})
    with pytest.raises(HoldfastError, match="later schema: count"):
        fitted(rows, pa.schema([("id", pa.int64())]))


def test_a_table_whose_position_is_compacted_away_looks_anew(stores: Stores) -> None:
    idle = holdfast.table(stores.open(), "t", columns={"id": "int64", "n": "int64"}, key="id")
    idle.append([{"id": 1, "n": 1}])
    known = idle._opened.position().upper
    holdfast.table(stores.open(), "t").append([{"id": 2, "n": 0}])
    controller = StorageController(stores.open())
    assert controller.set_retention_hold("t", 1 << 62) >= known
    idle.upsert([{"id": 1, "n": 9}])
    assert sorted(tuple(row.values()) for row in idle.counts().to_pylist()) == [(1, 9, 1), (2, 0, 1)]


def test_a_hold_that_another_took_meanwhile_is_not_released(
    controller: StorageController, other: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = []

    def take(_: str, *, purpose: str, **__: object) -> object:
        return theirs.append(other.hold("flights", "p", since=50)) or True if "p" in purpose else None

    before(monkeypatch, controller.client, "prepare_critical", take)
    with pytest.raises(AsOfTooEarly):
        controller.hold("flights", "p", since=20)
    assert theirs[0].since == 50


def test_a_hold_that_comes_too_late_is_never_there_for_others(
    controller: StorageController, other: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = []

    def move(_: str, *, purpose: str, **__: object) -> object:
        return other.set_retention_hold("flights", 30) if purpose == "read: p" else None

    def find(*_: object) -> object:
        return theirs.append(other.hold("flights", "p")) or True

    before(monkeypatch, controller.client, "prepare_critical", move)
    before(monkeypatch, controller._capabilities, "held_since", find)
    with pytest.raises(AsOfTooEarly) as error:
        controller.hold("flights", "p", since=20)
    assert error.value.since == 30
    # Whoever came upon it meanwhile has it.
    assert all(hold.since == 30 for hold in theirs)
    assert other.hold("flights", "p", since=30).since == 30


def test_no_retention_of_a_collection_that_is_dropped_meanwhile(
    controller: StorageController, other: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(monkeypatch, controller._log, "write", lambda _: other.drop_collection("flights"))
    with pytest.raises(CollectionNotFound):
        controller.set_retention_hold("flights", 10)


def test_a_rendition_that_was_made_just_now_is_aborted_with_its_shards(
    controller: StorageController, other: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make(*_: object, **__: object) -> object:
        return made.append(other.renditions.create("flights", shards=2, rendition_id="rx")) or True

    # The record was read, and the command is not committed.
    before(monkeypatch, controller.renditions._log, "commit", make)
    controller.renditions.abort("flights", "rx")
    assert controller.describe("flights").rendition("rx").state is RenditionState.ABORTED
    assert all(controller.client.inspect(shard).finalized for shard in made[0].shards)


def test_replicas_are_told_alike_that_a_restore_took_a_time(
    stores: Stores, controller: StorageController, other: StorageController, tmp_path: Path
) -> None:
    replicas = [each.writer("flights", purpose="r", replicated=True) for each in (controller, other)]
    taken = controller.restore_collection("flights", snapshot(tmp_path / "s", [(9, "then")])).held_from
    told = []
    for replica in replicas:
        with pytest.raises(Overtaken) as error:
            replica.append(updates([(2, "late", taken, 1)]), taken, taken + 10)
        told.append((error.value.written, error.value.actual))
        replica.append(updates([(2, "late", taken + 1, 1)]), taken + 1, taken + 10)
    assert told == [(taken, taken + 1)] * 2
    assert controller.describe("flights").holding.suspect == ""
    with controller.reader("flights", purpose="look") as reader:
        assert counted(reader.snapshot().to_table()) == Counter({(9, "then"): 1, (2, "late"): 1})


def test_a_pipeline_goes_on_where_another_began(
    controller: StorageController, other: StorageController
) -> None:
    controller.renditions.create("flights", shards=2, recipe=Recipe.SOURCE, rendition_id="rs")
    one, two = (each.rendition_writer("flights", "rs", purpose="p") for each in (controller, other))
    one.append(updates([(1, "s", 50, 1)]), 50, 60)
    two.append(updates([(2, "s", 60, 1)]), 60, 70)
    assert two.rendition.start == 50
    assert one.upper() == two.upper() == 70


@pytest.mark.parametrize("read", ["writer", "recent_uppers"])
def test_a_pipeline_is_told_that_its_rendition_is_aborted_meanwhile(
    controller: StorageController, other: StorageController, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    made = controller.renditions.create("flights", shards=1, recipe=Recipe.SOURCE, rendition_id="rs")

    def upper() -> int:
        return controller.rendition_writer("flights", "rs", purpose="p").upper()

    # Opened before it is aborted, or while it is.
    ask = upper if read == "writer" else controller.rendition_writer("flights", "rs", purpose="p").upper

    def abort(shards: object, *_: object, **__: object) -> object:
        if shards not in (made.shards, *made.shards):
            return None
        other.renditions.abort("flights", "rs")
        return True

    before(monkeypatch, controller.client, read, abort)
    with pytest.raises(BadInput, match="rendition rs of collection flights can't be written: it is ABORTED"):
        ask()


def test_a_writer_opens_what_holds_where_another_has_retired_and_gone_meanwhile(
    controller: StorageController, other: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *_) = controller.describe("flights").holding.shards

    def turn(shard: str, *_: object, **__: object) -> object:
        return drop_first(other) if shard == first else None

    before(monkeypatch, controller.client, "writer", turn)
    writer = controller.writer("flights", purpose="late")
    upper = writer.upper()
    writer.append(updates([(3, "c", upper, 1)]), upper, upper + 1)
    with controller.reader("flights", purpose="look") as reader:
        assert counted(reader.snapshot().to_table()) == Counter({(1, "a"): 1, (2, "b"): 1, (3, "c"): 1})


def test_a_reader_that_holds_nothing_is_told_which_time_went(
    stores: Stores, controller: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = StorageController(stores.open(mode="read"))
    (first, *_) = controller.describe("flights").holding.shards

    def turn(shards: list[str], **_: object) -> object:
        return drop_first(controller) if first in shards else None

    with watcher.reader("flights", purpose="look") as reader:
        # As if another rendition had been current when the reader was opened.
        reader._shards.clear()
        before(monkeypatch, watcher.client, "readers", turn)
        with pytest.raises(AsOfTooEarly) as error:
            reader.snapshot()
        assert error.value.as_of == 99


def test_a_reader_opens_although_its_rendition_is_dropped_meanwhile(
    stores: Stores, controller: StorageController, other: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *_) = controller.describe("flights").holding.shards
    before(
        monkeypatch,
        other.client,
        "readers",
        lambda shards, **_: drop_first(controller) if first in shards else None,
    )
    with other.reader("flights", purpose="look") as reader:
        assert counted(reader.snapshot().to_table()) == Counter({(1, "a"): 1, (2, "b"): 1})


def drop_first(controller: StorageController) -> str:
    """Hand the collection over to another rendition, and drop the one that held."""
    controller.renditions.create("flights", shards=1, rendition_id="next")
    controller.renditions.catch_up("flights", "next")
    at = controller.renditions.hand_over("flights", "next", max_lag_ms=1 << 40).held_from
    controller.writer("flights", purpose="test").append(None, at, at + 10)
    controller.set_retention_hold("flights", at + 5)
    (gone,) = controller.renditions.drop_retired("flights")
    return gone


def fed(controller: StorageController, rows: int) -> int:
    """Hand the collection over to a source that has so many rows; answers the time."""
    controller.renditions.create("flights", shards=1, recipe=Recipe.SOURCE, rendition_id="rs")
    source = controller.rendition_writer("flights", "rs", purpose="p")
    source.append(pa.table({"id": pa.array(range(rows), pa.int64()), "name": ["x" * 20] * rows}), 0, 200)
    at = controller.renditions.hand_over("flights", "rs").held_from
    source.seal(at + 5)
    return at


class _Died(BaseException):
    pass


def died_making_a_difference(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that uploaded what differs and died before it committed it."""
    process = StorageController(stores.open())

    def die(_: object, effects: Callable[[object], object]) -> None:
        effects(None)
        raise _Died

    monkeypatch.setattr(process.renditions._log, "commit", die)
    with pytest.raises(_Died):
        process.renditions.make_difference("flights")


def test_a_difference_is_made_where_somebody_died_who_made_it(
    stores: Stores, controller: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = fed(controller, 50_000)
    died_making_a_difference(stores, monkeypatch)
    left = difference_shard_id(controller.client.location_id, "c1", "rs")
    assert controller.client.exists(left)
    controller.evolve_collection("flights", WIDER)
    assert controller.renditions.make_difference("flights") == left
    with controller.client.reader(left, purpose="look") as reader:
        assert reader.snapshot(at).to_table().num_rows == 50_002


def test_what_is_left_of_a_difference_goes_with_the_retired_rendition(
    stores: Stores, controller: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = fed(controller, 50_000)
    died_making_a_difference(stores, monkeypatch)
    controller.set_retention_hold("flights", at + 2)
    assert controller.renditions.drop_retired("flights") == ("r1",)
    left = difference_shard_id(controller.client.location_id, "c1", "rs")
    assert controller.client.inspect(left).finalized


def test_what_is_left_of_a_difference_goes_with_the_collection(
    stores: Stores, controller: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed(controller, 50_000)
    died_making_a_difference(stores, monkeypatch)
    controller.drop_collection("flights", force=True)
    left = difference_shard_id(controller.client.location_id, "c1", "rs")
    assert controller.client.inspect(left).finalized


def test_no_difference_is_made_before_the_old_source_is_there(controller: StorageController) -> None:
    fed(controller, 1)
    controller.renditions.create("flights", shards=1, recipe=Recipe.SOURCE, rendition_id="new")
    new, old = (controller.rendition_writer("flights", each, purpose="p") for each in ("new", "rs"))
    new.append(updates([(7, "new", 0, 1)]), 0, 200)
    at = controller.renditions.hand_over("flights", "new").held_from
    new.seal(at + 1)
    assert old.upper() < at
    assert controller.renditions.make_difference("flights") is None
    old.seal(at)
    assert controller.renditions.make_difference("flights") is not None


def test_who_catches_up_late_is_not_told_of_a_since_that_has_moved(
    controller: StorageController, other: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else brought all of it, and retention followed, before this one opened its reader."""
    for number, upper in ((2, 200), (3, 300)):
        controller.renditions.create("flights", shards=number)
        controller.renditions.catch_up("flights", f"r{number}")
        controller.writer("flights", purpose="test").append(
            updates([(7, "c", upper - 1, 1)]), upper - 100, upper
        )

        def overtaking(*_: object, number: int = number, upper: int = upper, **__: object) -> bool:
            monkeypatch.undo()
            other.renditions.catch_up("flights", f"r{number}")
            other.set_retention_hold("flights", upper - 1)
            other.advance("flights")
            return True

        before(monkeypatch, rendition_copy, "CollectionReader", overtaking)
        assert controller.renditions.catch_up("flights", f"r{number}") == upper


def test_after_a_handover_to_a_copy_only_what_is_new_is_brought(
    controller: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.renditions.create("flights", shards=2)
    controller.renditions.catch_up("flights", "r2")
    at = controller.renditions.hand_over("flights", "r2").held_from
    controller.renditions.create("flights", shards=1)
    assert controller.renditions.catch_up("flights", "r3") == at
    controller.writer("flights", purpose="test").append(updates([(9, "n", at, 1)]), at, at + 1)

    def refused(*_: object) -> None:
        raise AssertionError("the difference between two copies is computed")

    monkeypatch.setattr(CollectionReader, "handed_over", refused)
    assert controller.renditions.catch_up("flights", "r3") == at + 1
    controller.renditions.hand_over("flights", "r3")
    with controller.reader("flights", purpose="look") as reader:
        assert counted(reader.snapshot(at).to_table()) == Counter({(1, "a"): 1, (2, "b"): 1, (9, "n"): 1})


def test_a_handover_that_changes_much_is_caught_up_with(controller: StorageController) -> None:
    controller.renditions.create("flights", shards=2, rendition_id="rc")
    controller.renditions.catch_up("flights", "rc")
    fed(controller, 1000)
    controller.renditions.catch_up("flights", "rc")
    now = controller.renditions.hand_over("flights", "rc").held_from
    controller.writer("flights", purpose="test").append(None, now, now + 1)
    with controller.reader("flights", purpose="look") as reader:
        assert counted(reader.snapshot(now).to_table()) == Counter(
            {(id_, "x" * 20): 1 for id_ in range(1000)}
        )


def test_a_snapshot_of_shards_that_evolve_between_is_of_one_schema(
    controller: StorageController, other: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = controller.describe("flights").holding.shards
    reader = controller.reader("flights", purpose="look")
    reader.snapshot()
    call, planned = ReadHandle.snapshot, []

    def evolving(handle: ReadHandle, *args: Any, **kwargs: Any) -> Any:
        found = call(handle, *args, **kwargs)
        if handle.shard_id in shards and not planned:
            planned.append(handle.shard_id)
            other.evolve_collection("flights", WIDER)
            for shard in shards:
                controller.client.recent_upper(shard)
        return found

    monkeypatch.setattr(ReadHandle, "snapshot", evolving)
    seen = reader.snapshot(50)
    assert planned
    assert seen.schema == WIDER
    assert counted(seen.to_table()) == Counter({(1, "a"): 1, (2, "b"): 1})
    assert {batch.schema for batch in seen} == {WIDER.arrow_diff}
