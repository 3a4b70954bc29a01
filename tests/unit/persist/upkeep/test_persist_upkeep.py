"""Upkeep bounds the size of a shard, changes no contents, and deletes nothing that is needed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from logging import LogRecord
from typing import Any

import pytest

from holdfast.errors import AsOfTooEarly, CorruptBlob, LogRegressed, VersionTooNew
from holdfast.persist import PersistClient, PersistConfig, Updates
from holdfast.persist.rows.part import PARQUET_FORMAT_VERSION
from holdfast.persist.state.state import Batch, Part
from holdfast.persist.upkeep.compaction import plan_compaction
from testbed.faults import Fault, Operation, ScriptedPlan
from unit.persist.open_stores import SCHEMA, SHARD, Stores, contents, rows, updates

BLOBS: dict[str, Any] = {"inline_max_bytes": 0}
FAST: dict[str, Any] = {"compaction_fanin": 4, "rollup_every": 8}


def write(client: PersistClient, count: int, *, first: int = 0) -> None:
    """One row per time; every other one takes an earlier row away."""
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    for time in range(first, first + count):
        row = (time // 2, "x", time, -1 if time % 2 else 1)
        writer.compare_and_append(updates([row, (-1, "all", time, 1)]), time, time + 1)


def expected(as_of: int) -> Counter[tuple[int, str]]:
    found = Counter({(-1, "all"): as_of + 1})
    if as_of % 2 == 0:
        found[as_of // 2, "x"] = 1
    return found


def snapshot(stores: Stores, as_of: int) -> Counter[tuple[int, str]]:
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    return contents(reader.snapshot(as_of).to_table())


def of_sizes(*levels_and_sizes: tuple[int, int]) -> tuple[Batch, ...]:
    return tuple(
        Batch(n, n, n + 1, 0, ((Part(1, 1, n, n + 1, size, blob_key=f"{n}"),),), level)
        for n, (level, size) in enumerate(levels_and_sizes)
    )


@pytest.mark.parametrize(
    ("batches", "merged"),
    [
        ((), ()),
        (of_sizes(*[(0, 1)] * 2), ()),
        (of_sizes(*[(0, 1)] * 3), (0, 1, 2)),
        (of_sizes(*[(0, 1)] * 5), (0, 1, 2, 3, 4)),
        (of_sizes(*[(1, 1)] * 3, *[(0, 1)] * 2), (0, 1, 2)),
        (of_sizes(*[(1, 1)] * 3, *[(0, 1)] * 3), (3, 4, 5)),
        (of_sizes((1, 1), *[(0, 1)] * 2), ()),
        (of_sizes((0, 1), (1, 1), *[(0, 1)] * 3), (2, 3, 4)),
        (of_sizes(*[(0, 10**12)] * 3), (0, 1, 2)),
        (of_sizes((0, 10**12), *[(0, 1)] * 2), ()),
        (of_sizes((0, 10**12), *[(0, 1)] * 3), (1, 2, 3)),
        (of_sizes((3, 1), *[(0, 5_000_000)] * 2), (0, 1, 2)),
        (of_sizes((0, 1), (0, 10**12)), ()),
        (of_sizes((0, 1), (0, 1), (0, 10**12)), (0, 1)),
        (of_sizes((0, 10**12), (1, 1), (0, 1), (0, 10**12), (0, 1)), (1, 2)),
        (of_sizes((0, 1), *[(0, 10**12), (0, 1)] * 3), (1, 2, 3, 4, 5)),
    ],
)
def test_what_is_merged_next(batches: tuple[Batch, ...], merged: tuple[int, ...]) -> None:
    config = PersistConfig(compaction_fanin=3)
    assert tuple(batch.id for batch in plan_compaction(batches, config)) == merged


@pytest.mark.parametrize(("runs", "merged"), [(2, ()), (3, (0, 1, 2))])
def test_a_large_batch_of_many_runs_is_merged_with_small_ones(runs: int, merged: tuple[int, ...]) -> None:
    large, *small = of_sizes((0, 10**12), (0, 1), (0, 1))
    batches = (replace(large, runs=large.runs * runs), *small)
    config = PersistConfig(compaction_fanin=3)
    assert tuple(batch.id for batch in plan_compaction(batches, config)) == merged


@pytest.mark.parametrize(
    ("sizes", "most_rewritten"),
    [
        ([1000] * 4096, 4),
        ([10**13, *[1000] * 4096], 0.001),
        ([10**10, *[1000] * 300] * 10, 1),
        ([10**9, 1000] * 1000, 4),
        ([round(2 ** (10 + number * 0.61803 % 1 * 24)) for number in range(3000)], 4),
        ([1024 + 2**40 // 2**number for number in range(40)], 0.001),
    ],
)
def test_merges_leave_few_batches_and_rewrite_few_bytes(sizes: list[int], most_rewritten: float) -> None:
    """As if all updates stayed: a merge has the bytes of what it merges."""
    config, batches, rewritten = PersistConfig(), tuple[Batch, ...](), 0
    for time, size in enumerate(sizes):
        part = Part(1, 1, time, time + 1, size, blob_key="k")
        batches = (*batches, Batch(2 * time, time, time + 1, 0, ((part,),)))
        while merged := plan_compaction(batches, config):
            start, total = batches.index(merged[0]), sum(batch.size_bytes for batch in merged)
            rewritten += total
            part = Part(1, 1, merged[0].lower, merged[-1].upper, total, blob_key="k")
            level = max(batch.level for batch in merged) + 1
            batch = Batch(merged[-1].id + 1, part.lower, part.upper, 0, ((part,),), level)
            batches = (*batches[:start], batch, *batches[start + len(merged) :])
        assert len(batches) <= 56
    assert rewritten <= most_rewritten * sum(sizes)


class Reads:
    """Counts what is read of the log."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def decide(self, operation: Operation) -> Fault:
        self.seen[operation.name] += 1
        return Fault.NONE


@pytest.mark.long
def test_ten_thousand_small_appends_stay_small() -> None:
    stores = Stores()
    client = stores.open(maintenance="inline", debug_validate=False)
    hold = client.critical_since(SHARD, purpose="retention") if client.exists(SHARD) else None
    worst_log = worst_batches = 0
    for start in range(0, 10_000, 100):
        write(client, 100, first=start)
        hold = hold or client.critical_since(SHARD, purpose="retention")
        hold.downgrade(start)
        worst_log = max(worst_log, len(stores.consensus.scan(SHARD, 0, 10**6)))
        worst_batches = max(worst_batches, client.inspect(SHARD).batches)
    assert worst_log <= 300
    assert worst_batches <= 60
    assert sorted(key.split("/")[1][0] for key in stores.blobs()) == ["c", "v"], "digests and a rollup"
    reads = Reads()
    newcomer = stores.open(reads, mode="read")
    state = newcomer.session.machine(SHARD).refresh()
    assert reads.seen == {"consensus.heads": 1, "consensus.scan": 1, "blob.get": 1}
    assert state.seqno - max(state.rollups) <= 200
    assert len(stores.consensus.scan(SHARD, 0, 10**6)) <= 200
    assert state == client.session.machine(SHARD).state
    assert snapshot(stores, 9999) == expected(9999)
    assert snapshot(stores, 9900) == expected(9900)
    assert sum(batch.rows for batch in state.batches) < 10_000


@pytest.mark.parametrize("part_target_bytes", [10**6, 200])
def test_large_appends_go_to_blobs_which_are_merged_and_deleted(part_target_bytes: int) -> None:
    stores = Stores()
    client = stores.open(maintenance="inline", part_target_bytes=part_target_bytes, **BLOBS, **FAST)
    write(client, 70)
    hold = client.critical_since(SHARD, purpose="retention")
    hold.downgrade(40)
    write(client, 10, first=70)
    client.maintain(SHARD)
    state = stores.state()
    live = {part.blob_key for batch in state.batches for part in batch.parts}
    assert None not in live
    rollups = {rollup.blob_key for rollup in state.rollups.values()}
    assert {key for key in stores.blobs() if "/c" not in key} == live | rollups
    assert state.garbage == {}
    assert len(state.batches) < 20
    for as_of in (40, 53, 79):
        assert snapshot(stores, as_of) == expected(as_of)
    if part_target_bytes == 200:
        assert max(len(run) for batch in state.batches for run in batch.runs) > 1


def test_upkeep_keeps_what_a_listen_still_has_to_give(stores: Stores) -> None:
    client = stores.open(maintenance="inline", **FAST)
    write(client, 10)
    reader = client.reader(SHARD, purpose="test")
    reader.allow_compaction(9)
    listen = reader.listen(9)
    write(client, 40, first=10)
    assert len(stores.state().batches) < 20
    (found, _) = listen.next(0)
    assert isinstance(found, Updates)
    assert Counter(found.table["_time"].to_pylist()) == dict.fromkeys(range(10, 50), 2)


def test_garbage_waits_for_its_grace(stores: Stores) -> None:
    client = stores.open(gc_grace_s=60.0, **BLOBS, **FAST)
    write(client, 5)
    client.maintain(SHARD)
    assert len(stores.state().garbage) == 5
    assert len(stores.parts()) == 6
    stores.clock.sleep(59)
    client.maintain(SHARD)
    assert len(stores.parts()) == 6
    stores.clock.sleep(1)
    client.maintain(SHARD)
    assert len(stores.parts()) == 1
    assert stores.state().garbage == {}


def test_garbage_waits_for_the_readers_that_may_be_reading_it(stores: Stores) -> None:
    client, elsewhere = stores.open(**BLOBS, **FAST), stores.open()
    write(client, 5)
    reader = elsewhere.reader(SHARD, purpose="test")
    reading = elsewhere.session.machine(SHARD).state
    client.maintain(SHARD)
    assert len(stores.parts()) == 6
    elsewhere.session.machine(SHARD).refresh()
    with reader.pin(reading):
        reader.heartbeat()
        client.maintain(SHARD)
        assert len(stores.parts()) == 6
    reader.heartbeat()
    client.maintain(SHARD)
    assert len(stores.parts()) == 1


def test_a_reader_whose_parts_went_plans_again(stores: Stores) -> None:
    client = stores.open(**BLOBS, **FAST)
    write(client, 5)
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    planned, listen = reader.snapshot(3), reader.listen(2)
    client.maintain(SHARD)
    assert len(stores.parts()) == 1
    assert contents(planned.to_table()) == expected(3)
    assert len(listen.next(0)) == 2


def test_a_reader_whose_parts_and_time_went_is_told(stores: Stores) -> None:
    client = stores.open(**BLOBS, **FAST)
    write(client, 5)
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    planned, listen = reader.snapshot(3), reader.listen(2)
    client.critical_since(SHARD, purpose="retention").downgrade(4)
    client.maintain(SHARD)
    with pytest.raises(AsOfTooEarly) as error:
        planned.to_table()
    assert (error.value.as_of, error.value.since) == (3, 4)
    with pytest.raises(AsOfTooEarly):
        listen.next(0)


def test_a_lost_part_is_told_and_not_searched_for_ever(stores: Stores) -> None:
    client = stores.open(**BLOBS, **FAST)
    write(client, 5)
    lost = str(next(stores.state().batches[-1].parts).blob_key)
    stores.blob.delete(lost)
    reader = client.reader(SHARD, purpose="test")
    for attempt in (
        reader.snapshot(4).to_table,
        lambda: reader.listen(0).next(0),
        lambda: client.maintain(SHARD),
    ):
        with pytest.raises(CorruptBlob, match=f"^{lost} is missing"):
            attempt()


def test_what_can_not_be_merged_does_not_let_the_log_grow(stores: Stores) -> None:
    client = stores.open(maintenance="inline", **BLOBS, **FAST)
    write(client, 3)
    stores.blob.delete(min(stores.parts()))
    write(client, 60, first=3)
    assert len(stores.consensus.scan(SHARD, 0, 10**6)) < 30
    assert len(stores.blobs()) < 70


def flip(data: bytes, position: int) -> bytes:
    damaged = bytearray(data)
    damaged[position // 8] ^= 1 << position % 8
    return bytes(damaged)


DAMAGES: dict[str, Callable[[bytes], list[bytes]]] = {
    "flipped": lambda data: [flip(data, bit) for bit in range(0, len(data) * 8, 37)],
    "cut": lambda data: [data[:length] for length in range(0, len(data), 29)],
    "longer": lambda data: [data + b"\0"],
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_part_is_never_read(stores: Stores, how: str) -> None:
    write(stores.open(**BLOBS), 1)
    (key,) = stores.parts()
    data = stores.blob.get(key)
    assert data is not None
    for bad in DAMAGES[how](data):
        stores.blob.put(key, bad)
        with pytest.raises(CorruptBlob, match=key):
            snapshot(stores, 0)
    stores.blob.put(key, data)
    assert snapshot(stores, 0) == expected(0)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_rollup_is_never_read(stores: Stores, how: str) -> None:
    write(stores.open(maintenance="inline", **FAST), 12)
    (key,) = (key for key in stores.blobs() if "/v" in key)
    data = stores.blob.get(key)
    assert data is not None
    for bad in DAMAGES[how](data):
        stores.blob.put(key, bad)
        with pytest.raises(CorruptBlob, match=key):
            stores.state()
    stores.blob.delete(key)
    with pytest.raises(CorruptBlob, match=f"{key} is missing: version"):
        stores.state()
    stores.blob.put(key, data)
    assert snapshot(stores, 11) == expected(11)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_log_is_never_read(stores: Stores, how: str) -> None:
    write(stores.open(), 3)
    log = stores.consensus._logs[SHARD]
    for index, sound in list(enumerate(log)):
        for bad in DAMAGES[how](sound.data):
            log[index] = sound._replace(data=bad)
            with pytest.raises(CorruptBlob, match=f"{SHARD} log {sound.seqno}"):
                stores.state()
        log[index] = sound
    log[1], log[2] = log[1]._replace(data=log[2].data), log[2]._replace(data=log[1].data)
    with pytest.raises(CorruptBlob):
        stores.state()


def test_a_part_of_a_newer_format_is_told_from_damage(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("holdfast.persist.rows.part.PARQUET_FORMAT_VERSION", PARQUET_FORMAT_VERSION + 1)
        write(stores.open(**BLOBS), 1)
    with pytest.raises(VersionTooNew, match="part format 2, this Holdfast reads up to 1"):
        snapshot(stores, 0)


def holders(stores: Stores) -> set[str]:
    return {reader.purpose for reader in stores.state().leased_readers.values()}


def leased(stores: Stores, **settings: Any) -> PersistClient:
    return stores.open(lease_s=100.0, **settings)


def test_a_lease_ends_after_it_was_seen_silent_for_its_whole_length(stores: Stores) -> None:
    writer, watcher = leased(stores), leased(stores)
    write(writer, 3)
    silent = leased(stores).reader(SHARD, purpose="silent")
    living = leased(stores).reader(SHARD, purpose="living")
    stores.clock.sleep(10_000)
    watcher.maintain(SHARD)
    assert holders(stores) == {"silent", "living"}
    for _ in range(3):
        stores.clock.sleep(50)
        living.heartbeat()
        watcher.maintain(SHARD)
    assert holders(stores) == {"living"}
    living.allow_compaction(2)
    assert stores.state().since == 2
    silent.allow_compaction(2)
    assert holders(stores) == {"living", "silent"}
    assert [*stores.state().writers] == []


def test_a_lease_that_ends_does_not_move_since(stores: Stores) -> None:
    client = leased(stores)
    write(client, 9)
    reader = client.reader(SHARD, purpose="test")
    client.critical_since(SHARD, purpose="backup").downgrade(5)
    for _ in range(2):
        client.maintain(SHARD)
        stores.clock.sleep(200)
    client.maintain(SHARD)
    assert holders(stores) == set()
    assert stores.state().since == 0
    client.critical_since(SHARD, purpose="backup").downgrade(6)
    assert stores.state().since == 6
    reader.heartbeat()
    (anew,) = stores.state().leased_readers.values()
    assert (anew.purpose, anew.since) == ("test", 6)


def test_a_lease_taken_anew_is_not_mistaken_for_the_old_one(stores: Stores) -> None:
    client, watcher = leased(stores), leased(stores)
    write(client, 3)
    reader = client.reader(SHARD, purpose="test")
    reader.heartbeat()
    watcher.maintain(SHARD)
    stores.clock.sleep(200)
    client.maintain(SHARD)
    stores.clock.sleep(200)
    client.maintain(SHARD)
    assert holders(stores) == set()
    reader.heartbeat()
    watcher.maintain(SHARD)
    assert holders(stores) == {"test"}


def test_a_lease_is_not_taken_anew_after_its_reader_was_closed(stores: Stores) -> None:
    client = leased(stores)
    write(client, 3)
    reader = client.reader(SHARD, purpose="test")
    reader.close()
    reader.heartbeat()
    reader.allow_compaction(2)
    assert holders(stores) == set()


def test_a_busy_shard_does_not_keep_leases_from_their_heartbeat() -> None:
    stores = Stores()
    location = stores.open().location
    config = PersistConfig(lease_s=0.02, compaction_fanin=2, retry_deadline_s=1.0)
    with PersistClient(location, config=config) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        writer.seal(1)
        reader = client.reader(SHARD, purpose="test")
        for time in range(1, 20_000):
            writer.compare_and_append(rows(time), time, time + 1)
            beats = [r.heartbeats for r in client.session.machine(SHARD).state.leased_readers.values()]
            if beats and beats[0] >= 3:
                break
        else:
            pytest.fail("no heartbeat in 20,000 appends")
        reader.close()


def test_upkeep_in_the_background_keeps_up_and_ends_with_its_client() -> None:
    stores = Stores()
    location = stores.open().location
    config = PersistConfig(gc_grace_s=0.0, debug_validate=True, **FAST)
    with PersistClient(location, config=config) as client:
        write(client, 200)
    stores.open(**FAST).maintain(SHARD)
    state = stores.state()
    assert len(state.batches) <= 20
    assert state.seqno - max(state.rollups) <= 20
    assert snapshot(stores, 199) == expected(199)


def test_upkeep_of_two_processes_at_once_loses_nothing(stores: Stores) -> None:
    """The second merges what the first has merged already, and takes its own result away."""
    slow = stores.open(**BLOBS, **FAST)
    write(slow, 5)

    class First:
        armed = True

        def decide(self, operation: Operation) -> Fault:
            if self.armed and operation.name == "consensus.compare_and_set":
                self.armed = False
                slow.maintain(SHARD)
            return Fault.NONE

    stores.open(First(), **BLOBS, **FAST).maintain(SHARD)
    state = stores.state()
    assert [part.blob_key for batch in state.batches for part in batch.parts] == [*stores.parts()]
    assert snapshot(stores, 4) == expected(4)


def test_a_rollup_that_went_while_it_was_looked_for_is_found_in_a_newer_row(stores: Stores) -> None:
    client = stores.open(**FAST)
    write(client, 9)
    client.maintain(SHARD)

    class Moves:
        armed = True

        def decide(self, operation: Operation) -> Fault:
            if self.armed and operation.name == "blob.get":
                self.armed = False
                write(client, 9, first=9)
                client.maintain(SHARD)
            return Fault.NONE

    newcomer = stores.open(Moves(), mode="read")
    assert newcomer.recent_upper(SHARD) == 18
    assert sorted(key.split("/")[1][0] for key in stores.blobs()) == ["c", "v"]


def test_a_process_that_fell_far_behind_catches_up(stores: Stores) -> None:
    client, late = stores.open(maintenance="inline", **FAST), stores.open()
    write(client, 3)
    assert late.recent_upper(SHARD) == 3
    write(client, 50, first=3)
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno > 10
    assert late.recent_upper(SHARD) == 53
    assert late.session.machine(SHARD).state == client.session.machine(SHARD).state


def test_a_log_that_went_back_is_refused(stores: Stores) -> None:
    client = stores.open()
    write(client, 5)
    del stores.consensus._logs[SHARD][3:]
    with pytest.raises(LogRegressed, match="this client saw version 5, and the store now has version 3"):
        client.recent_upper(SHARD)


@pytest.mark.parametrize("maintenance", ["background", "inline", "off"])
def test_upkeep_logs_once_that_the_log_went_back(
    stores: Stores, own_records: Callable[[], list[LogRecord]], maintenance: Any
) -> None:
    client = stores.open(maintenance=maintenance, **FAST)
    write(client, 5)
    reader = client.reader(SHARD, purpose="test")
    del stores.consensus._logs[SHARD][2:]
    maintainer = client.session.maintainer
    for _ in range(2):
        maintainer._guarded(reader.heartbeat, SHARD)
    client.close()
    told = [record.getMessage() for record in own_records()]
    (line,) = [message for message in told if "went back" in message]
    assert line.startswith(f"upkeep stops: the log of {SHARD} in ")
    assert "holdfast persist recover URL --accept" in line
    assert not [message for message in told if "no rollup" in message]


@pytest.mark.parametrize("maintenance", ["background", "inline", "off"])
def test_a_close_does_not_repeat_an_error_that_was_raised(
    stores: Stores, own_records: Callable[[], list[LogRecord]], maintenance: Any
) -> None:
    client = stores.open(maintenance=maintenance, **FAST)
    write(client, 5)
    client.reader(SHARD, purpose="test")
    del stores.consensus._logs[SHARD][2:]
    with pytest.raises(LogRegressed):
        client.recent_upper(SHARD)
    client.close()
    assert [record.getMessage() for record in own_records() if record.levelname != "DEBUG"] == []


def test_upkeep_deletes_nothing_before_the_commit_that_makes_it_garbage() -> None:
    """Whichever call fails, what the newest version names is there."""
    for failing in range(60):
        stores = Stores()
        plan = ScriptedPlan({failing: Fault.DEATH_BEFORE})
        client = stores.open(plan, maintenance="inline", **BLOBS, **FAST)
        died = False
        try:
            write(client, 10)
        except BaseException:  # noqa: BLE001 - the death
            died = True
        state = stores.state()
        named = {p.blob_key for b in state.batches for p in b.parts} | {
            r.blob_key for r in state.rollups.values()
        }
        assert named <= stores.blobs()
        if state.upper:
            assert snapshot(stores, state.upper - 1) == expected(state.upper - 1)
        assert died == (plan.seen > failing)
