"""Garbage waits by the store's clock, for readers and for a restore. Any live process frees it."""

from threading import Event
from typing import Any

import pytest

from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.state.machine import load_rollup
from holdfast.persist.stores import FileBlob, Location, MemoryBlob, MemoryConsensus
from holdfast.persist.upkeep.survey import HEADS, OPENED, Survey
from testbed.faults import Fault, Operation
from unit.persist.open_stores import SCHEMA, SHARD, HandClock, Stores, rows

BLOBS: dict[str, Any] = {"inline_max_bytes": 0}
FAST: dict[str, Any] = {"compaction_fanin": 4, "rollup_every": 8}


def write(client: PersistClient, count: int, shard: str = SHARD, *, first: int = 0) -> None:
    with client.writer(shard, SCHEMA, purpose="test") as writer:
        for time in range(first, first + count):
            writer.compare_and_append(rows(time), time, time + 1)


def newest_rollup(stores: Stores) -> set[str]:
    """The parts that the newest rollup names."""
    rollup = stores.state().latest_rollup
    assert rollup is not None
    state = load_rollup(stores.open().location, rollup)
    assert state is not None
    return {str(part.blob_key) for batch in state.batches for part in batch.parts}


def elsewhere(stores: Stores, ahead_s: float, **settings: Any) -> PersistClient:
    """A process whose own clock is wrong."""
    clock = HandClock()
    clock.now_s = stores.clock.now_s + ahead_s
    config = PersistConfig(maintenance="off", debug_validate=True, **settings)
    return PersistClient(stores.open().location, config=config, clock=clock)


@pytest.mark.parametrize("ahead_s", [-10_000.0, 10_000.0])
def test_the_clock_of_the_host_decides_nothing(stores: Stores, ahead_s: float) -> None:
    client = elsewhere(stores, ahead_s, gc_grace_s=60.0, **BLOBS, **FAST)
    write(client, 5)
    client.maintain(SHARD)
    assert {garbage.wall_ms for garbage in stores.state().garbage.values()} == {stores.clock.wall_ms()}
    stores.clock.sleep(59)
    stores.open(gc_grace_s=60.0, **FAST).maintain(SHARD)
    client.maintain(SHARD)
    assert len(stores.parts()) == 6
    stores.clock.sleep(1)
    client.maintain(SHARD)
    assert len(stores.parts()) == 1


def test_a_store_without_a_clock_leaves_it_to_the_host(stores: Stores) -> None:
    class Timeless(MemoryBlob):
        def clock_ms(self) -> int:
            told: Any = None
            return told

    location = Location.of(Timeless(), MemoryConsensus())
    clock = HandClock()
    config = PersistConfig(maintenance="off", gc_grace_s=60.0, **BLOBS, **FAST)
    client = PersistClient(location, config=config, clock=clock)
    write(client, 5)
    client.maintain(SHARD)
    for waited, left in ((59, 6), (1, 1)):
        clock.sleep(waited)
        client.maintain(SHARD)
        assert len([meta for meta in location.blob.list(SHARD) if "/w" in meta.key]) == left


def test_the_clock_of_a_folder_is_that_of_its_files(tmp_path: Any) -> None:
    blob = FileBlob(tmp_path / "blob")
    blob.put("a/b", b"x")
    (meta,) = blob.list("")
    told = blob.clock_ms()
    assert told is not None
    assert meta.modified_ms is not None
    assert 0 <= told - meta.modified_ms < 60_000
    assert [meta.key for meta in blob.list("")] == ["a/b"]
    assert FileBlob(tmp_path / "blob", read_only=True).clock_ms() is None


def test_what_a_restore_may_need_is_kept_as_long_as_asked(stores: Stores) -> None:
    client = stores.open(maintenance="inline", retain_for_s=3600.0, **BLOBS, **FAST)
    write(client, 40)
    kept = stores.blobs()
    assert len(kept) > 40
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno > 30
    stores.clock.sleep(3599)
    client.maintain(SHARD)
    assert stores.blobs() >= kept
    stores.clock.sleep(3)
    client.maintain(SHARD)
    state = stores.state()
    assert state.garbage.keys() <= {key for key in stores.blobs() if "/v" in key}
    assert len(stores.parts()) == sum(1 for batch in state.batches for _ in batch.parts)


def test_a_finalized_shard_that_retains_comes_to_rest(stores: Stores) -> None:
    client = stores.open(maintenance="inline", retain_for_s=60.0, **BLOBS, **FAST)
    write(client, 20)
    client.finalize(SHARD)
    assert len(stores.parts()) > 20
    for _ in range(4):
        stores.clock.sleep(61)
        client.maintain(SHARD)
    before = stores.stored()
    assert stores.parts() == set()
    stores.clock.sleep(61)
    client.maintain(SHARD)
    assert stores.stored() == before


def test_what_the_newest_rollup_names_is_there(stores: Stores) -> None:
    """So that the newest rollup is whole, should the log be lost at any instant."""

    class Look:
        def decide(self, operation: Operation) -> Fault:
            if operation.name == "blob.delete" and stores.state().rollups:
                assert newest_rollup(stores) <= stores.parts() - {*operation.keys}
            return Fault.NONE

    client = stores.open(Look(), maintenance="inline", compaction_fanin=3, rollup_every=50, **BLOBS)
    write(client, 120)
    assert newest_rollup(stores) <= stores.parts()
    assert len(stores.parts()) < 40


def wait_for(stores: Stores, shards: list[str]) -> None:
    waiting = Event()
    for _ in range(2000):
        if not any(stores.parts(shard) for shard in shards):
            return
        waiting.wait(0.005)
    pytest.fail("it did not happen in 10 s")


def test_dropped_shards_are_freed_by_a_client_that_never_touched_them(stores: Stores) -> None:
    first = stores.open(gc_grace_s=60.0, **BLOBS)
    shards = [f"s{number:08}-0000-4000-8000-000000000000" for number in range(2 * OPENED + 3)]
    for shard in shards:
        write(first, 2, shard)
        first.finalize(shard)
        first.maintain(shard)
    first.close()
    # A damaged shard keeps nobody from looking at the others.
    stores.blob.delete(next(key for key in stores.blobs(shards[0]) if "/v" in key))
    assert sum(len(stores.parts(shard)) for shard in shards) == 2 * len(shards)
    config = PersistConfig(lease_s=0.04, gc_grace_s=60.0, retry_deadline_s=0.1)
    with PersistClient(stores.open().location, config=config) as client:
        with client.writer(SHARD, SCHEMA, purpose="test") as writer:
            writer.seal(1)
        client.reader(SHARD, purpose="keeps the thread")
        stores.clock.sleep(61)
        wait_for(stores, shards[1:])


def test_a_look_around_costs_little_where_nothing_moves(stores: Stores) -> None:
    client = stores.open()
    shards = [f"s{number:08}-0000-4000-8000-000000000000" for number in range(40)]
    for shard in shards:
        write(client, 1, shard)
    seen: list[str] = []

    class Count:
        def decide(self, operation: Operation) -> Fault:
            seen.append(operation.name)
            return Fault.NONE

    other = stores.open(Count())
    survey = Survey(other.location, other.config, other.session._new_machine, list, start=shards[20])
    rounds = []
    while len(rounds) < 3:
        found = survey.next()
        assert len(found) <= OPENED
        assert not any(survey.wants_upkeep(machine) for machine in found)
        rounds.append([machine.shard_id for machine in found])
    assert sorted(shard for found in rounds for shard in found) == shards
    assert rounds[0][0] in (shards[20], shards[21])
    seen.clear()
    assert survey.next() == []
    assert seen == ["consensus.list_keys", "consensus.heads"]
    assert len(shards) <= HEADS
