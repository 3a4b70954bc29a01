"""A restored collection is fed on from where its snapshot was: nothing is lost, and nothing is twice."""

import json
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.collections import (
    CollectionSpec,
    Recipe,
    RenditionState,
    RestoreSource,
    StorageController,
)
from holdfast.collections.snapshots.manifest import MANIFEST_NAME, verify_snapshot
from holdfast.errors import (
    BadInput,
    CorruptBlob,
    HandleExpired,
    HandoverInProgress,
    NotCaughtUp,
    SourceStalled,
    StorageError,
    VersionTooNew,
)
from holdfast.ingest import Ingestion, StepOutcome
from holdfast.ingest.kept import errors, offsets
from holdfast.ingest.sources.folder import Folder
from holdfast.ingest.sources.generator import Generator
from holdfast.ingest.waits import Waits
from holdfast.persist import PersistClient
from testbed.faults import Fault, ProcessDeath, ScriptedPlan, SeededPlan
from unit.collections.snapshots import snapshot
from unit.collections.stores import SCHEMA, Stores
from unit.ingest.pipelines import bad, created, drained, pipeline, positions, row, rows
from unit.ingest.snapshots import taken
from unit.ingest.test_following import World, ended

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


def kept(client: PersistClient, as_of: int | None = None) -> list[list[dict[str, Any]]]:
    """The bindings and the errors at a time."""
    tables = [each(StorageController(client), "orders", as_of)[1] for each in (offsets, errors)]
    return [table.sort_by([("partition", "ascending")]).to_pylist() for table in tables]


def totals(client: PersistClient) -> dict[str, tuple[int, int]]:
    """For each partition, the next position, and the number of messages before it."""
    return {each["partition"]: (each["position"], each["total"]) for each in kept(client)[0]}


def send(world: World, numbers: range) -> None:
    """Send messages with ids that occur again, to three partitions. Every tenth is bad."""
    for number in numbers:
        value = b"bad" if number % 10 == 9 else row(number % 7, str(number))
        world.topic.send(str(number % 3), value, key={"id": number % 7})


def restored(world: World, source: RestoreSource, client: PersistClient | None = None) -> int:
    """Restore, and return the time from which the collection has the contents of the snapshot."""
    return StorageController(client or world.client).restore_collection("orders", source).held_from


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_it_is_fed_on_from_there_and_becomes_what_it_would_have_been(envelope: str, tmp_path: Path) -> None:
    world = World(envelope)
    send(world, range(25))
    feed = world.pipeline(batch={"maxRows": 4})
    drained(feed)
    then = rows(world.client), kept(world.client)
    source = taken(world.client, tmp_path / "s")
    verify_snapshot(tmp_path / "s")
    send(world, range(25, 47))
    drained(feed)
    uninterrupted = rows(world.client), totals(world.client), bad(world.client)
    at = restored(world, source)
    assert (rows(world.client, at), kept(world.client, at)) == then
    assert rows(world.client, at - 1) == uninterrupted[0]
    assert bad(world.client, at - 1) == uninterrupted[2]
    # The pipeline before it writes nothing more, and says so.
    ended(world, feed)
    drained(world.pipeline(batch={"maxRows": 5}))
    assert (rows(world.client), totals(world.client), bad(world.client)) == uninterrupted
    assert (rows(world.client, at), kept(world.client, at)) == then
    send(world, range(47, 60))
    drained(world.pipeline())
    assert sum(position for position, _ in totals(world.client).values()) == 60
    info = world.controller.describe("orders")
    assert (info.holding.recipe, info.holding.is_fed) == (Recipe.RESTORED, True)
    with pytest.raises(BadInput, match="written by a source"):
        world.controller.writer("orders", purpose="test")


def test_a_snapshot_while_a_pipeline_writes_is_of_one_time(tmp_path: Path) -> None:
    world = World()
    send(world, range(12))
    feed = world.pipeline(batch={"maxRows": 5})
    drained(feed)

    def write() -> None:
        send(world, range(12, 30))
        drained(feed)

    source = taken(world.client, tmp_path / "s", meanwhile=write)
    assert source.manifest.rows == 11
    at = restored(world, source)
    assert positions(world.client, at) == {"0": 4, "1": 4, "2": 4}
    assert len(bad(world.client, at)) == 1
    drained(world.pipeline())
    assert sum(rows(world.client).values()) == 27
    assert len(bad(world.client)) == 3


def test_an_earlier_time_is_that_of_the_rendition_that_was_current_then(tmp_path: Path) -> None:
    world = World()
    send(world, range(5))
    drained(world.pipeline())
    early = world.upper("r1") - 1
    world.create(envelope="Upsert")
    send(world, range(5, 9))
    drained(world.pipeline())
    drained(world.pipeline("r2", envelope="Upsert"))
    world.pass_to(world.hand_over().held_from)
    send(world, range(10, 11))
    drained(world.pipeline("r2", envelope="Upsert"))
    late = taken(world.client, tmp_path / "t")
    at = restored(world, taken(world.client, tmp_path / "s", early))
    assert positions(world.client, at) == {"0": 2, "1": 2, "2": 1}
    assert rows(world.client, at) == Counter((each, str(each)) for each in range(5))
    drained(world.pipeline())
    assert positions(world.client) == {"0": 3, "1": 4, "2": 3}
    # A rendition is made as that of its snapshot was, so the pipeline of another one is refused.
    restored(world, late)
    with pytest.raises(BadInput, match=r"r4 .* is made with envelope Upsert, format json, and the spec has"):
        world.pipeline()
    assert drained(world.pipeline(envelope="Upsert")) == 0


def test_messages_after_the_snapshot_that_are_deleted_are_never_a_silent_gap(tmp_path: Path) -> None:
    world = World(deletes=True)
    send(world, range(6))
    feed = world.pipeline()
    drained(feed)
    source = taken(world.client, tmp_path / "s")
    send(world, range(6, 12))
    drained(feed)
    at = restored(world, source)
    with pytest.raises(SourceStalled, match="0 lost 2 to 4"):
        drained(world.pipeline())
    assert positions(world.client) == positions(world.client, at) == {"0": 2, "1": 2, "2": 2}


@pytest.mark.parametrize("reached", [False, True])
def test_a_compacted_topic_that_has_fewer_messages_now_is_stalled(reached: bool, tmp_path: Path) -> None:
    world = World(piece=100)
    send(world, range(6))
    feed = world.pipeline()
    drained(feed)
    source = taken(world.client, tmp_path / "s")
    send(world, range(6, 30))
    drained(feed)
    world.topic.holes.add(("1", 4))
    restored(world, source)
    before = positions(world.client)
    batch = {"maxRows": 2 if reached else 100}
    with pytest.raises(SourceStalled, match=r"1 has \d+ messages up to 9, and had 10 .*topic") as told:
        drained(world.pipeline(batch=batch))
    assert "--anew" in str(told.value.hint)
    assert (positions(world.client) == before) is not reached
    with pytest.raises(SourceStalled, match="partition 1 has"):
        drained(world.pipeline(batch=batch))
    drained(world.pipeline(anew=True))
    assert positions(world.client) == {"0": 10, "1": 10, "2": 10}
    # From there on nothing is compared any more.
    send(world, range(30, 33))
    drained(world.pipeline())
    assert positions(world.client) == {"0": 11, "1": 11, "2": 11}


def test_a_restore_after_a_restore_still_misses_what_the_first_rendition_had(tmp_path: Path) -> None:
    world = World(piece=100)
    send(world, range(6))
    feed = world.pipeline()
    drained(feed)
    first = taken(world.client, tmp_path / "s")
    send(world, range(6, 12))
    drained(feed)
    second = taken(world.client, tmp_path / "t")
    send(world, range(12, 18))
    drained(feed)
    world.topic.holes.add(("2", 5))
    for source in (second, first):
        restored(world, source)
    with pytest.raises(SourceStalled, match="partition 2 has 5 messages up to 5, and had 6"):
        drained(world.pipeline())


@pytest.mark.parametrize("recipe", [Recipe.COPY, Recipe.SOURCE])
def test_a_rendition_that_continues_a_restored_one_misses_the_same_messages(
    recipe: Recipe, tmp_path: Path
) -> None:
    world = World(piece=100)
    send(world, range(6))
    feed = world.pipeline()
    drained(feed)
    source = taken(world.client, tmp_path / "s")
    send(world, range(6, 18))
    drained(feed)
    world.topic.holes.add(("2", 5))
    restored(world, source)
    if recipe is Recipe.COPY:
        world.controller.renditions.create("orders", shards=3, rendition_id="r3")
        world.controller.hydrate("orders", "r3")
    else:
        world.create("r3")
        drained(world.pipeline("r3"))
    world.pass_to(world.hand_over("r3").held_from)
    with pytest.raises(SourceStalled, match="partition 2 has 5 messages up to 5, and had 6"):
        drained(world.pipeline())
    world.topic.holes.clear()
    drained(world.pipeline())
    assert positions(world.client) == {"0": 6, "1": 6, "2": 6}
    assert rows(world.client) == Counter((each % 7, str(each)) for each in range(18) if each != 9)


def test_a_file_that_is_gone_or_changed_since_is_never_a_silent_gap(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()

    def put(name: str, *ids: int) -> None:
        (folder / name).write_text("".join(json.dumps(row(each)) + "\n" for each in ids))

    def fed(client: PersistClient) -> Ingestion:
        files = {"files": {"path": str(folder)}, "generator": None}
        return pipeline(client, Folder(folder, "*", Waits(), whole=False, on_changed="error"), **files)

    client = Stores().open()
    created(client)
    put("a", 1, 2)
    drained(fed(client))
    source = taken(client, tmp_path / "s")
    for name, id_ in (("b", 3), ("c", 4), ("d", 5)):
        put(name, id_)
    drained(fed(client))
    (folder / "a").unlink()
    (folder / "b").unlink()
    put("c", 4, 44)
    StorageController(client).restore_collection("orders", source)
    assert rows(client) == Counter({(1, "x"): 1, (2, "x"): 1})
    for _ in range(2):
        with pytest.raises(SourceStalled, match=r"partition [bc] are gone .*file://"):
            drained(fed(client))
    # What is there comes again, and the file of the snapshot is not missed.
    assert set(positions(client)) <= {"a", "d"}


def test_the_generator_makes_the_rows_after_the_snapshot_again(tmp_path: Path) -> None:
    client = Stores().open()
    created(client, schema=SCHEMA)

    def fed(count: int) -> Ingestion:
        source = Generator(count, 0, 0, 50, lambda: 0)
        return pipeline(client, source, generator={"rows": count, "keys": 50}, envelope="Upsert")

    drained(fed(100))
    source = taken(client, tmp_path / "s")
    drained(fed(300))
    uninterrupted = rows(client), totals(client)
    StorageController(client).restore_collection("orders", source)
    assert positions(client) == {"0": 100}
    drained(fed(300))
    assert (rows(client), totals(client)) == uninterrupted


def test_rows_alone_are_refused_where_a_source_feeds_the_collection(tmp_path: Path) -> None:
    world = World()
    send(world, range(5))
    drained(world.pipeline())
    before = world.controller.describe("orders"), rows(world.client)
    with pytest.raises(BadInput, match=r"a source feeds collection orders, but .* has only rows"):
        restored(world, snapshot(tmp_path / "s", [(1, "a")]))
    assert (world.controller.describe("orders"), rows(world.client)) == before


def test_a_table_gets_only_the_rows(tmp_path: Path) -> None:
    world = World()
    send(world, range(5))
    drained(world.pipeline())
    source = taken(world.client, tmp_path / "s")
    world.controller.create_collection(CollectionSpec("t", "table", SCHEMA))
    made = world.controller.restore_collection("table", source)
    assert (made.pipeline, made.is_fed) == (None, False)
    writer = world.controller.writer("table", purpose="test")
    writer.append([{"id": 9, "name": "table"}], writer.upper(), writer.upper() + 1)
    table = world.controller.reader("table", purpose="check").snapshot().to_table()
    assert table.num_rows == 6


def test_a_collection_that_is_not_fed_any_more_is_fed_again_from_a_snapshot(tmp_path: Path) -> None:
    world = World()
    send(world, range(5))
    drained(world.pipeline())
    source = taken(world.client, tmp_path / "s")
    world.controller.renditions.create("orders", shards=3, pipeline=False, rendition_id="r2")
    world.controller.renditions.catch_up("orders", "r2")
    world.hand_over()
    # It is a table now, so it may get rows alone.
    assert not world.controller.restore_collection("orders", snapshot(tmp_path / "t", [(1, "a")])).is_fed
    assert world.controller.restore_collection("orders", source).is_fed
    send(world, range(5, 8))
    drained(world.pipeline())
    assert positions(world.client) == {"0": 3, "1": 3, "2": 2}


def test_a_new_collection_is_fed_on_from_the_snapshot(tmp_path: Path) -> None:
    world = World()
    send(world, range(7))
    drained(world.pipeline())
    source = taken(world.client, tmp_path / "s")
    send(world, range(7, 17))
    drained(world.pipeline())
    # In another location.
    client = Stores().open()
    pipeline_ = source.manifest.pipeline
    assert pipeline_ is not None
    controller = StorageController(client)
    spec = CollectionSpec(
        "new", "orders", source.manifest.schema, 3, source_fed=True, made_from=pipeline_.made_from
    )
    controller.create_collection(spec)
    controller.restore_collection("orders", source)
    assert positions(client) == {"0": 3, "1": 2, "2": 2}
    drained(pipeline(client, world.topic))
    assert (rows(client), totals(client), bad(client)) == (
        rows(world.client),
        totals(world.client),
        bad(world.client),
    )


def test_snapshots_with_the_same_rows_are_told_apart_by_their_bindings(tmp_path: Path) -> None:
    world = World("Upsert")
    world.topic.send("0", row(1), key={"id": 1})
    feed = world.pipeline()
    drained(feed)
    first = taken(world.client, tmp_path / "s")
    world.topic.send("0", row(1), key={"id": 1})
    drained(feed)
    second = taken(world.client, tmp_path / "t")
    assert first.manifest.checksum == second.manifest.checksum

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.controller.restore_collection("orders", first, progress=stop)
    assert world.controller.restore_collection("orders", second).id == "r3"
    assert positions(world.client) == {"0": 2}
    assert world.controller.restore_collection("orders", first).id == "r2"
    assert positions(world.client) == {"0": 1}


def test_nobody_writes_a_rendition_that_is_being_restored(tmp_path: Path) -> None:
    world = World(deletes=True)
    send(world, range(6))
    feed = world.pipeline()
    drained(feed)
    source = taken(world.client, tmp_path / "s")

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.controller.restore_collection("orders", source, progress=stop)
    with pytest.raises(BadInput, match="r2 of collection orders is being restored from a snapshot"):
        world.pipeline("r2")
    # The source is not told what the restored rendition must read again.
    send(world, range(6, 12))
    drained(feed)
    assert world.topic.low == {"0": 2, "1": 2, "2": 2}
    restored(world, source)
    drained(world.pipeline())
    assert positions(world.client) == {"0": 4, "1": 4, "2": 4}
    assert world.topic.low == {"0": 4, "1": 4, "2": 4}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=[] if each is Fault.DEATH_AFTER else pytest.mark.long) for each in FAULTS],
)
@pytest.mark.parametrize("next_", ["restore", pytest.param("feed", marks=pytest.mark.long)])
def test_a_fault_at_any_write_of_a_restore(fault: Fault, next_: str, tmp_path: Path) -> None:
    world = World()
    send(world, range(10))
    drained(world.pipeline(batch={"maxRows": 3}))
    then = rows(world.client), kept(world.client)
    source = taken(world.client, tmp_path / "s")
    for number in range(100):
        world = World()
        send(world, range(10))
        feed = world.pipeline(batch={"maxRows": 3})
        drained(feed)
        send(world, range(10, 17))
        drained(feed)
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        try:
            restored(world, source, world.open(plan))
        except (StorageError, ProcessDeath):
            drained(world.pipeline(world.controller.describe("orders").holding.id))
            if next_ == "restore" or world.controller.describe("orders").holding.id == "r1":
                restored(world, source)
        drained(world.pipeline())
        info = world.controller.describe("orders")
        at = info.rendition("r2").held_from
        assert (rows(world.client, at), kept(world.client, at)) == then
        held = info.holding
        assert rows(world.client) == Counter((each % 7, str(each)) for each in range(17) if each != 9)
        assert positions(world.client) == {"0": 6, "1": 6, "2": 5}
        assert len(bad(world.client)) == 1
        holds = [each.purpose for each in world.client.inspect(info.metadata_shard).holds]
        assert not [each for each in holds if each.startswith("rendition")]
        if plan.seen <= number:
            assert number >= 4
            assert held.id == "r2"
            return
    raise AssertionError("the restore never ends")


def is_over(feed: Ingestion) -> bool:
    """Take a step. Returns whether it was the last one."""
    try:
        return feed.step().outcome is StepOutcome.HANDED_OVER
    except (StorageError, HandleExpired, ProcessDeath):
        return True


def follow(world: World, id_: str) -> None:
    """Fill another rendition, and hand over to it if that is possible."""
    world.create(id_)
    for _ in range(20):
        world.pipeline(id_).step()
    try:
        world.pass_to(world.hand_over(id_).held_from)
    except (BadInput, HandoverInProgress, NotCaughtUp):
        world.controller.renditions.abort("orders", id_)


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(each, marks=pytest.mark.long) for each in range(2, 40))]
)
def test_any_order_of_steps_snapshots_restores_and_new_processes(seed: int, tmp_path: Path) -> None:
    """In every other world the stores fail, and processes die."""
    chance = random.Random(seed)
    rate, death_rate = (0.02, 0.01) if seed % 2 else (0.0, 0.0)

    def opened() -> PersistClient:
        return world.open(SeededPlan(chance.getrandbits(32), rate=rate, death_rate=death_rate))

    world = World(chance.choice(["None", "Upsert"]))
    feeds: list[Ingestion] = [world.pipeline(batch={"maxRows": 3})]
    sources: list[RestoreSource] = []
    sent = 0
    for number in range(120):
        act = chance.random()
        if act < 0.25:
            world.topic.send(str(sent % 5 % 2), row(sent % 5, str(sent)), key={"id": sent % 5})
            sent += 1
        elif act < 0.8 and feeds:
            feed = chance.choice(feeds)
            if is_over(feed):
                feeds.remove(feed)
        elif act < 0.87:
            with suppress(StorageError, ProcessDeath):
                feeds.append(world.pipeline(client=opened(), batch={"maxRows": chance.randint(1, 5)}))
        elif act < 0.93 and world.controller.frontiers("orders").upper:
            sources.append(taken(world.client, tmp_path / str(number)))
        elif act < 0.95 and sources:
            # An earlier handover may wait for its source. A later restore of the snapshot continues.
            with suppress(HandoverInProgress, StorageError, ProcessDeath):
                restored(world, chance.choice(sources), opened())
        elif act < 0.97 and sources:
            # A pipeline with the same decoder follows, whatever is restored meanwhile.
            follow(world, f"f{number}")
        world.clock.now += chance.choice([0, 0, 50, 12_000])
    current = world.controller.describe("orders").holding
    world.pass_to(current.held_from)
    last = world.pipeline(current.id)
    for _ in range(200):
        last.step()
        world.clock.now += 500
    messages = [(each % 5, str(each)) for each in range(sent)]
    wanted = Counter(messages) if "envelope" not in world.block else Counter(dict(messages).items())
    assert positions(world.client) == dict(Counter(str(each % 5 % 2) for each in range(sent)))
    assert rows(world.client) == wanted
    held = [each for each in world.controller.describe("orders").held if each.pipeline is not None]
    for each in held:
        for at in (each.held_from, *world.times(each.id, each.held_from)):
            if at < min(each.held_to, world.upper(current.id)):
                found = sum(positions(world.client, at).values())
                assert sum(rows(world.client, at).values()) == found or "envelope" in world.block


def test_damage_in_what_the_pipeline_kept_is_found_before_anything_changes(tmp_path: Path) -> None:
    world = World()
    send(world, range(12))
    drained(world.pipeline())
    source = taken(world.client, tmp_path / "s")
    assert {"_errors", "_remap", MANIFEST_NAME} < {each.name for each in (tmp_path / "s").iterdir()}
    before = world.controller.describe("orders")
    for name in ("_remap", "_errors"):
        whole = (tmp_path / "s" / name).read_bytes()
        (tmp_path / "s" / name).unlink()
        with pytest.raises(CorruptBlob, match=name):
            restored(world, source)
        (tmp_path / "s" / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(CorruptBlob, match=name):
            restored(world, source)
        (tmp_path / "s" / name).write_bytes(whole)
    assert world.controller.describe("orders") == before


def test_a_manifest_with_bindings_is_refused_by_who_does_not_know_them(tmp_path: Path) -> None:
    world = World()
    send(world, range(3))
    drained(world.pipeline())
    source = taken(world.client, tmp_path / "s")
    text = source.manifest.to_json()
    assert type(source.manifest).from_json(text) == source.manifest
    given = json.loads(text)
    assert given["version"] == 2
    assert given["pipeline"]["remap"]["rows"] == 3
    file = tmp_path / "s" / MANIFEST_NAME
    for changed, told in (
        ({"version": 3}, VersionTooNew),
        ({"pipeline": None}, BadInput),
        ({"pipeline": {**given["pipeline"], "made_from": 1}}, BadInput),
        ({"pipeline": {"made_from": "", "remap": given["pipeline"]["remap"]}}, BadInput),
    ):
        file.write_text(json.dumps({**given, **changed}))
        with pytest.raises(told):
            RestoreSource.open(tmp_path / "s")
    # Snapshots of tables are as before.
    table = snapshot(tmp_path / "t", [(1, "a")]).manifest
    assert (json.loads(table.to_json())["version"], "pipeline" in table.to_json()) == (1, False)


def test_a_copy_that_takes_over_from_a_pipeline_seals_all_that_it_keeps() -> None:
    world = World()
    send(world, range(5))
    feed = world.pipeline()
    drained(feed)
    world.controller.renditions.create("orders", shards=3, pipeline=False, rendition_id="r2")
    world.controller.renditions.catch_up("orders", "r2")
    at = world.hand_over().held_from
    assert positions(world.client, at - 1) == {"0": 2, "1": 2, "2": 1}
    assert world.controller.describe("orders").rendition("r1").state is RenditionState.RETIRED
    ended(world, feed)
