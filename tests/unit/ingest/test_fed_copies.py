"""A copy of a collection that a source feeds has all that its pipeline kept, and is fed on from there."""

import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.collections import Recipe, StorageController
from holdfast.collections.copying import _FedWrites
from holdfast.collections.rendition_writer import RenditionWriter
from holdfast.errors import BadInput, CorruptBlob, HandleExpired, StorageError
from holdfast.ingest import StepOutcome
from holdfast.ingest.kept import offsets
from holdfast.persist import PersistClient, Schema
from holdfast.persist.rows.schema import DIFF
from testbed.faults import Fault, ProcessDeath, ScriptedPlan
from unit.collections.stores import Stores
from unit.ingest.pipelines import bad, drained, positions, row, rows
from unit.ingest.snapshots import taken
from unit.ingest.test_following import World, ended
from unit.ingest.test_restored import restored, send, totals

CHUNK = "holdfast.collections.copying._CHUNK_ROWS"
KEPT = "holdfast.collections.copying._KEPT_BYTES"


Found = list[Counter[str]]
"""Rows, bindings and bad records."""


def found_at(client: PersistClient, times: Iterable[int], name: str = "orders") -> dict[int, Found]:
    """What the shards of a collection have at each of these times, read one by one."""
    info = StorageController(client).describe(name)
    found: dict[int, Found] = {}
    with ExitStack() as stack:
        readers = {
            shard: stack.enter_context(client.reader(shard, purpose="check"))
            for each in info.held
            for shard in each.written_shards
        }
        for at in times:
            (rendition,) = (each for each in info.held if each.holds_at(at))
            kept = rendition.pipeline.all if rendition.pipeline else ()
            found[at] = []
            for shards in (rendition.shards, *((each,) for each in kept)):
                counts: Counter[str] = Counter()
                for shard in shards:
                    for each in readers[shard].snapshot(at).to_table().to_pylist():
                        diff = each.pop(DIFF)
                        counts[str(each)] += diff
                found[at].append(counts)
    return found


def changed(client: PersistClient) -> set[int]:
    """The readable times around each change of a collection."""
    controller = StorageController(client)
    frontiers = controller.frontiers("orders")
    times = {frontiers.since, frontiers.upper - 1}
    for rendition in controller.describe("orders").held:
        times |= {rendition.held_from - 1, rendition.held_from}
        for shard in rendition.written_shards:
            with client.reader(shard, purpose="check") as reader:
                counts = reader.change_counts(max(reader.since(), frontiers.since))
                times |= {each for at, _, _ in counts for each in (at - 1, at)}
    return {at for at in times if frontiers.since <= at < frontiers.upper}


def check_same(one: PersistClient, other: PersistClient) -> None:
    """Compare what two collections have at all times."""
    uppers = [StorageController(each).frontiers("orders").upper for each in (one, other)]
    assert uppers[0] == uppers[1]
    times = sorted(changed(one) | changed(other))
    assert found_at(one, times) == found_at(other, times)


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_it_has_the_same_at_all_times_and_is_fed_on(envelope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHUNK, 5)
    # With one of them, most of what is kept is uploaded.
    monkeypatch.setattr(KEPT, 200 if envelope == "Upsert" else 1 << 20)
    world = World(envelope)
    send(world, range(25))
    drained(world.pipeline(batch={"maxRows": 4}))
    other = Stores(world.clock).open()
    first = holdfast.copy_table(world.client, "orders", other)
    assert (first.was_fed, first.upper, first.rows) == (True, world.upper("r1"), sum(rows(other).values()))
    check_same(world.client, other)
    theirs, mine = (StorageController(each).describe("orders") for each in (world.client, other))
    assert mine.collection_id != theirs.collection_id
    assert (mine.holding.recipe, mine.holding.made_from) == (Recipe.SOURCE, theirs.holding.made_from)

    # With other shards, and brought up to date.
    world.controller.renditions.create("orders", shards=3, rendition_id="r2")
    world.controller.hydrate("orders", "r2")
    world.pass_to(world.hand_over("r2").held_from)
    send(world, range(25, 40))
    drained(world.pipeline(batch={"maxRows": 3}))
    assert holdfast.copy_table(world.client, "orders", other).brought_from == first.upper
    check_same(world.client, other)
    assert holdfast.copy_table(world.client, "orders", other).was_there

    # Both are fed on, each by itself. Nobody sees the other one.
    send(world, range(40, 60))
    drained(world.pipeline(batch={"maxRows": 7}))
    drained(world.pipeline(client=other, batch={"maxRows": 6}))
    assert (rows(other), totals(other), bad(other)) == (
        rows(world.client),
        totals(world.client),
        bad(world.client),
    )
    assert sum(positions(other).values()) == 60
    times = sorted(changed(other))
    before = found_at(other, times)
    for _ in range(2):
        with pytest.raises(BadInput, match="'orders' was fed on from its source") as refused:
            holdfast.copy_table(world.client, "orders", other)
        assert "feed only one of the two" in refused.value.hint
        send(world, range(60, 63))
        drained(world.pipeline())
    assert (sorted(changed(other)), found_at(other, times)) == (times, before)
    # It goes the other way: the place that is fed has the newest state.
    back = Stores(world.clock).open()
    assert holdfast.copy_tables(other, back)[0].was_fed
    check_same(other, back)


def test_what_is_only_fed_by_empty_steps_is_still_a_copy() -> None:
    world = World()
    send(world, range(5))
    drained(world.pipeline())
    other = Stores(world.clock).open()
    holdfast.copy_table(world.client, "orders", other)
    idle = world.pipeline(client=other, run={"progressInterval": "10ms"})
    idle.load()
    time.sleep(0.02)
    world.clock.now += 2000
    assert idle.step().outcome is StepOutcome.COMMITTED
    with pytest.raises(BadInput, match=r"it has times before \d+, and the table before"):
        holdfast.copy_table(world.client, "orders", other)
    world.clock.now += 2000
    send(world, range(5, 9))
    drained(world.pipeline())
    holdfast.copy_table(world.client, "orders", other)
    # The pipeline finds what the copy has now.
    drained(world.pipeline(client=other))
    idle.step()
    assert (rows(other), totals(other)) == (rows(world.client), totals(world.client))


def test_a_pipeline_of_the_copy_that_is_faster_is_never_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHUNK, 3)
    world = World()
    send(world, range(6))
    drained(world.pipeline())
    other = Stores(world.clock).open()
    holdfast.copy_table(world.client, "orders", other)
    send(world, range(6, 20))
    drained(world.pipeline(batch={"maxRows": 3}))
    feed = world.pipeline(client=other, batch={"maxRows": 2})
    stepped: list[int] = []

    def step(what: str, done: int) -> None:
        if what == "copying" and done > 2 and not stepped:
            stepped.append(done)
            feed.load()
            feed.step()

    with pytest.raises(BadInput, match="was fed on from its source"):
        holdfast.copy_table(world.client, "orders", other, on_rows=step)
    assert stepped
    drained(feed)
    assert (rows(other), totals(other), bad(other)) == (
        rows(world.client),
        totals(world.client),
        bad(world.client),
    )


@pytest.mark.parametrize("changes", [False, True])
def test_a_copy_that_was_handed_over_says_when_it_can_follow(changes: bool) -> None:
    world = World("Upsert")
    send(world, range(25))
    drained(world.pipeline())
    other = Stores(world.clock).open()
    holdfast.copy_table(world.client, "orders", other)
    controller = StorageController(other)
    controller.renditions.create("orders", shards=3, rendition_id="x2")
    controller.hydrate("orders", "x2")
    held_from = controller.renditions.hand_over("orders", "x2").held_from
    with pytest.raises(BadInput, match=r"'orders' was handed over to rendition x2, so .* yet") as refused:
        holdfast.copy_table(world.client, "orders", other)
    assert f"when the table has times from {held_from} on" in refused.value.hint
    if changes:
        # The copy has the times before the handover, without these rows.
        send(world, range(25, 40))
        drained(world.pipeline())
        for seconds in (1, 20):
            with pytest.raises(
                BadInput, match=r"was handed over to rendition x2, or was fed on .* other rows"
            ):
                holdfast.copy_table(world.client, "orders", other)
            world.clock.now += seconds * 1000
            send(world, range(40, 45))
            drained(world.pipeline())
        return
    world.clock.now += 20_000
    send(world, range(40, 45))
    drained(world.pipeline())
    holdfast.copy_table(world.client, "orders", other)
    assert (rows(other), totals(other)) == (rows(world.client), totals(world.client))
    send(world, range(45, 50))
    for client in (world.client, other):
        drained(world.pipeline(client=client))
    assert (rows(other), totals(other)) == (rows(world.client), totals(world.client))


@pytest.mark.parametrize("finished", [False, True])
def test_a_copy_may_give_up_history_while_it_is_incomplete(
    finished: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CHUNK, 5)
    world = World()
    send(world, range(25))
    drained(world.pipeline(batch={"maxRows": 4}))
    world.controller.retain("orders", 1)
    other = Stores(world.clock).open()
    if finished:
        holdfast.copy_table(world.client, "orders", other)
        send(world, range(25, 50))
        drained(world.pipeline(batch={"maxRows": 4}))
    before = _FedWrites.append
    appends: list[int] = []

    def append(self: Any, *given: Any) -> None:
        if len(appends) == 3:
            raise ProcessDeath
        appends.append(1)
        before(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(_FedWrites, "append", append)
        with pytest.raises(ProcessDeath):
            holdfast.copy_table(world.client, "orders", other)
    controller = StorageController(other)
    (begun,) = controller.list_collections()
    controller.apply_retention(begun.collection_id)
    since = controller.frontiers(begun.collection_id).since
    holdfast.copy_table(world.client, "orders", other)
    assert (since > 0) is finished
    upper = controller.frontiers("orders").upper
    assert found_at(other, [since, upper - 1]) == found_at(world.client, [since, upper - 1])


KILLS = [
    (Fault.DEATH_AFTER, 13),
    *(
        # A death before every other write, and one after these, are deaths between all of them.
        pytest.param(fault, 2, marks=pytest.mark.long)
        for fault in (Fault.DEATH_BEFORE, Fault.DEATH_AFTER, Fault.INDETERMINATE_AFTER)
    ),
]


def exactly_once(client: PersistClient, name: str) -> None:
    """At its last time, the copy has exactly the rows and bad records of the messages that are bound."""
    upper = StorageController(client).frontiers(name).upper
    if upper:
        found, bound, broken = found_at(client, [upper - 1], name)[upper - 1]
        table = offsets(StorageController(client), name, upper - 1)[1]
        assert bound.total() >= table.num_rows
        assert found.total() + broken.total() == sum(table["total"].to_pylist())


@pytest.mark.parametrize(("fault", "step"), KILLS)
def test_a_kill_at_every_write(monkeypatch: pytest.MonkeyPatch, fault: Fault, step: int) -> None:
    monkeypatch.setattr(CHUNK, 4)
    if (fault, step) == (Fault.DEATH_AFTER, 2):
        # Most of what is kept is uploaded.
        monkeypatch.setattr(KEPT, 200)
    world = World()
    send(world, range(20))
    drained(world.pipeline(batch={"maxRows": 6}))
    for number in range(1, 200, step):
        others = Stores(world.clock)
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        with suppress(StorageError, ProcessDeath, HandleExpired):
            holdfast.copy_table(world.client, "orders", others.open(plan, inline_max_bytes=0))
        again = others.open()
        for each in holdfast.list_tables(again):
            exactly_once(again, each.name)
        holdfast.copy_table(world.client, "orders", again)
        exactly_once(again, "orders")
        if plan.seen <= number:
            assert number > 15
            check_same(world.client, again)
            return
    raise AssertionError("the copy never ends")


@pytest.mark.parametrize(("fault", "step"), KILLS)
def test_a_kill_while_it_is_brought_up_to_date(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, step: int
) -> None:
    monkeypatch.setattr(CHUNK, 4)
    if (fault, step) == (Fault.DEATH_AFTER, 2):
        # Most of what is kept is uploaded.
        monkeypatch.setattr(KEPT, 200)
    world = World()
    others = Stores(world.clock)
    feed = world.pipeline(batch={"maxRows": 3})
    sent = 0
    for number in range(1, 400, step):
        send(world, range(sent, sent + 5))
        sent += 5
        drained(feed)
        if number == 1:
            holdfast.copy_table(world.client, "orders", others.open(inline_max_bytes=0))
            continue
        plan = ScriptedPlan({number - 1: fault}, matches=lambda operation: operation.writes)
        with suppress(StorageError, ProcessDeath, HandleExpired):
            holdfast.copy_table(world.client, "orders", others.open(plan, inline_max_bytes=0))
        exactly_once(others.open(), "orders")
        send(world, range(sent, sent + 1))
        sent += 1
        drained(feed)
        again = others.open()
        found = holdfast.copy_table(world.client, "orders", again)
        assert found.upper == world.upper("r1")
        if plan.seen < number:
            assert number > 5
            check_same(world.client, again)
            return
    raise AssertionError("the copy never ends")


def test_a_copy_over_another_decoder_has_both_and_follows_only_its_own() -> None:
    world = World()
    send(world, range(12))
    drained(world.pipeline())
    other, third = Stores(world.clock).open(), Stores(world.clock).open()
    holdfast.copy_table(world.client, "orders", other)
    world.create(envelope="Upsert")
    drained(world.pipeline("r2", envelope="Upsert"))
    feed = world.pipeline()
    world.pass_to(world.hand_over().held_from)
    ended(world, feed)
    send(world, range(12, 20))
    drained(world.pipeline("r2", envelope="Upsert"))
    with pytest.raises(BadInput, match="the table is made in another way from its messages than the copy"):
        holdfast.copy_table(world.client, "orders", other)
    holdfast.copy_table(world.client, "orders", third)
    check_same(world.client, third)
    send(world, range(20, 30))
    with pytest.raises(BadInput, match="is made with envelope Upsert"):
        world.pipeline(client=third)
    for client in (world.client, third):
        drained(world.pipeline(client=client, envelope="Upsert"))
    assert (rows(third), totals(third)) == (rows(world.client), totals(world.client))


def test_a_table_that_is_fed_no_more_and_its_copy_are_told_apart() -> None:
    world = World()
    send(world, range(5))
    drained(world.pipeline())
    other, third = Stores(world.clock).open(), Stores(world.clock).open()
    holdfast.copy_table(world.client, "orders", other)
    world.controller.renditions.create("orders", shards=1, pipeline=False, rendition_id="r2")
    world.controller.renditions.catch_up("orders", "r2")
    world.pass_to(world.hand_over().held_from + 1)
    with holdfast.table(world.client, "orders") as table:
        table.append([row(50, "table")])
    with pytest.raises(BadInput, match="no source feeds the table any more") as refused:
        holdfast.copy_table(world.client, "orders", other)
    assert "drop this one" in refused.value.hint
    assert not holdfast.copy_table(world.client, "orders", third).was_fed
    with holdfast.table(third, "orders") as copy:
        copy.append([row(51, "copy")])


def test_columns_that_are_added_are_followed() -> None:
    world = World()
    send(world, range(8))
    drained(world.pipeline())
    other = Stores(world.clock).open()
    holdfast.copy_table(world.client, "orders", other)
    wider = Schema.of(key={"id": "int64"}, value={"name": "string?", "new": "int64?"})
    world.controller.evolve_collection("orders", wider)
    world.topic.send("0", {"id": 1, "name": "x", "new": 7})
    drained(world.pipeline())
    holdfast.copy_table(world.client, "orders", other)
    check_same(world.client, other)
    world.topic.send("0", {"id": 2, "name": "y", "new": 8})
    for client in (world.client, other):
        drained(world.pipeline(client=client))
    assert rows(other) == rows(world.client)
    assert rows(other)[2, "y", 8] == 1


def test_a_collection_that_has_nothing_yet() -> None:
    world = World()
    other = Stores(world.clock).open()
    assert holdfast.copy_table(world.client, "orders", other).was_fed
    send(world, range(7))
    drained(world.pipeline())
    assert holdfast.copy_table(world.client, "orders", other).rows == 7
    check_same(world.client, other)
    third = Stores(world.clock).open()
    holdfast.copy_table(World().client, "orders", third)
    drained(world.pipeline(client=third))
    assert rows(third) == rows(world.client)


def test_a_restored_collection_is_copied_when_it_has_read_all_again(tmp_path: Path) -> None:
    world = World()
    send(world, range(6))
    drained(world.pipeline())
    source = taken(world.client, tmp_path / "s")
    send(world, range(6, 15))
    drained(world.pipeline())
    restored(world, source)
    other = Stores(world.clock).open()
    with pytest.raises(BadInput, match="has not yet read again what rendition r1 had of") as refused:
        holdfast.copy_table(world.client, "orders", other)
    assert "holdfast ingest --once" in refused.value.hint
    assert holdfast.list_tables(other) == []
    drained(world.pipeline())
    holdfast.copy_table(world.client, "orders", other)
    check_same(world.client, other)


@pytest.mark.parametrize("number", [0, 1])
def test_other_bindings_or_bad_records_are_found(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    send(world, range(20))
    drained(world.pipeline())
    append = _FedWrites.append

    def lossy(self: Any, given: Any, kept: list[Any], *at: int) -> None:
        changed = list(kept)
        changed[number] = [each.slice(1) for each in kept[number]]
        append(self, given, changed, *at)

    monkeypatch.setattr(_FedWrites, "append", lossy)
    other = Stores(world.clock).open()
    with pytest.raises(CorruptBlob, match=("bindings", "bad records")[number]):
        holdfast.copy_table(world.client, "orders", other)
    assert [each.name for each in holdfast.list_tables(other)] == ["orders.copying"]


@pytest.mark.parametrize("most_bytes", [1 << 20, 1 << 30])
def test_many_bad_records_are_not_held_in_memory(most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KEPT, most_bytes)
    world, other = World(), Stores().open(inline_max_bytes=0)
    writer = world.controller.rendition_writer("orders", "r1", purpose="test")
    steps, records, size = 8, 1000, 500
    for step in range(steps):
        found = [
            {"partition": "0", "position": number, "kind": "bad", "reason": secrets.token_hex(size // 2)}
            for number in range(step * records, (step + 1) * records)
        ]
        writer.append(None, step, step + 1, kept=[None, found])
    # All of them are in the first commit of the copy.
    world.controller.set_retention_hold("orders", steps - 1)
    append, held = RenditionWriter.append, [0]

    def appended(self: RenditionWriter, *given: Any, kept: list[pa.Table | None], **named: Any) -> None:
        held.append(sum(each.nbytes for each in kept if each is not None))
        append(self, *given, kept=kept, **named)

    monkeypatch.setattr(RenditionWriter, "append", appended)
    holdfast.copy_table(world.client, "orders", other)
    assert found_at(other, [steps - 1]) == found_at(world.client, [steps - 1])
    assert (max(held) > steps * records * size) is (most_bytes == 1 << 30)
    assert max(held) <= most_bytes


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_a_source_that_was_returned_to_an_earlier_state_and_fed_on_is_refused(
    envelope: str, tmp_path: Path
) -> None:
    """Otherwise the copy would have messages twice, and rows that were replaced."""
    source, saved, target, inbox = (tmp_path / name for name in ("source", "saved", "target", "in"))
    inbox.mkdir()

    def fed(number: int) -> None:
        (inbox / f"f{number}.jsonl").write_text(f'{{"id": {number}, "v": "a"}}\n')
        holdfast.ingest_source(
            source,
            "orders",
            {
                "files": {"path": str(inbox), "pattern": "*.jsonl"},
                "format": {"json": {}},
                "envelope": envelope,
            },
            columns={"v": "string"},
            key={"id": "int64"},
            once=True,
        )

    fed(1)
    shutil.copytree(source, saved)
    fed(2)
    holdfast.copy_table(source, "orders", target)
    shutil.rmtree(source)
    shutil.copytree(saved, source)
    fed(3)
    with pytest.raises(BadInput, match="has another history than the copy 'orders' before"):
        holdfast.copy_table(source, "orders", target)
    with holdfast.table(target, "orders", mode="read") as copy:
        assert sorted(copy.read()["id"].to_pylist()) == [1, 2]
