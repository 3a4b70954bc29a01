"""Restore drills: the consensus store is lost, or an older copy is restored, and the logs are rebuilt."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput, HandleExpired, HoldfastError, LocationMismatch
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.admin.recover import Recovery, ShardPlan
from holdfast.persist.admin.sweep import sweep
from holdfast.persist.admin.verify import verify
from holdfast.persist.stores import BlobMeta, Location, MemoryConsensus
from holdfast.persist.stores.location import BLOB_KEY
from holdfast.persist.stores.url import open_for_recovery
from testbed.faults import Fault, FaultyBlob, FaultyConsensus, ProcessDeath, ScriptedPlan
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, HandClock, Stores, contents, rows

BLOBS: dict[str, Any] = {"inline_max_bytes": 0, "compaction_fanin": 4, "rollup_every": 8}


def write(client: PersistClient, count: int, shard: str = SHARD, *, first: int = 0) -> None:
    with client.writer(shard, SCHEMA, purpose="test") as writer:
        for time in range(first, first + count):
            writer.compare_and_append(rows(time), time, time + 1)


def opened(stores: Stores, consensus: MemoryConsensus, **settings: Any) -> PersistClient:
    config = PersistConfig(
        **{
            "maintenance": "off",
            "debug_validate": True,
            "gc_grace_s": 0.0,
            "retry_deadline_s": 0.5,
            **settings,
        }
    )
    return PersistClient(Location.of(stores.blob, consensus, create=False), config=config, clock=stores.clock)


def recovery(stores: Stores, consensus: MemoryConsensus) -> Recovery:
    return Recovery(stores.blob, consensus, clock=stores.clock)


def check_contents(client: PersistClient, upper: int, shard: str = SHARD) -> None:
    assert client.recent_upper(shard) == upper
    if upper:
        table = client.reader(shard, purpose="check").snapshot(upper - 1).to_table()
        assert contents(table) == Counter({(key, "x"): 1 for key in range(upper)})


@pytest.mark.parametrize("settings", [{"rollup_every": 8}, BLOBS])
def test_a_lost_log_comes_back_as_of_the_newest_rollup(stores: Stores, settings: dict[str, Any]) -> None:
    client = stores.open(maintenance="inline", **settings)
    write(client, 21)
    client.critical_since(SHARD, purpose="retention").downgrade(3)
    write(stores.open(), 2, OTHER)
    newest = max(stores.state().rollups)
    known = recovery(stores, MemoryConsensus()).plan
    before = stores.blobs()
    lost = MemoryConsensus()
    plan = recovery(stores, lost).run()
    assert plan == known
    (shard,) = plan.shards
    assert (shard.shard_id, shard.head, shard.seqno, shard.healthy) == (SHARD, 0, newest, False)
    assert stores.blobs() > before, "no blob is deleted"
    again = opened(stores, lost)
    assert shard.upper is not None
    assert 21 - 8 <= shard.upper <= 21
    check_contents(again, shard.upper)
    assert verify(again, SHARD).findings == ()
    write(again, 10, first=shard.upper)
    again.maintain(SHARD)
    check_contents(opened(stores, lost), shard.upper + 10)
    assert verify(opened(stores, lost), SHARD).findings == ()
    with pytest.raises(HoldfastError):
        recovery(stores, lost).run()


def test_an_older_copy_is_brought_up_to_the_rollups(stores: Stores) -> None:
    client = stores.open(maintenance="inline", **BLOBS)
    write(client, 12)
    copy = MemoryConsensus()
    copy._logs.update({key: list(log) for key, log in stores.consensus._logs.items()})
    write(client, 30, first=12)
    newest = max(stores.state().rollups)
    (shard,) = recovery(stores, copy).run().shards
    assert shard.head < newest == shard.seqno
    again = opened(stores, copy)
    assert shard.upper is not None
    check_contents(again, shard.upper)
    assert shard.upper > 30
    assert verify(again, SHARD).findings == ()


def test_holds_come_back_and_leases_do_not(stores: Stores) -> None:
    client = stores.open(rollup_every=1)
    write(client, 5)
    client.critical_since(SHARD, purpose="retention", opaque=b"token").downgrade(3)
    client.reader(SHARD, purpose="dashboard")
    client.maintain(SHARD)
    lost = MemoryConsensus()
    recovery(stores, lost).run()
    info = opened(stores, lost).inspect(SHARD)
    assert [(hold.purpose, hold.since, hold.kind) for hold in info.holds] == [("retention", 3, "critical")]
    assert info.writers == ()


def test_processes_of_the_lost_log_are_fenced(stores: Stores) -> None:
    """They run on while an older copy is put in the place of the store that they use."""
    writing, reading = stores.open(rollup_every=4), stores.open()
    write(writing, 10)
    writing.maintain(SHARD)
    writer = writing.writer(SHARD, SCHEMA, purpose="zombie")
    listen = reading.reader(SHARD, purpose="zombie").listen(5)
    listen.next(0)
    backup = {key: list(log) for key, log in stores.consensus._logs.items()}
    writer.compare_and_append(rows(10), 10, 11)
    listen.next(0)
    stores.consensus._logs.clear()
    stores.consensus._logs.update(backup)
    recovery(stores, stores.consensus).run(restored=True)
    with pytest.raises(HandleExpired, match="recovered from its rollups"):
        writer.compare_and_append(rows(11), 11, 12)
    with pytest.raises(HandleExpired, match="recovered from its rollups"):
        listen.next(0)
    for client in (writing, reading):
        with pytest.raises(HandleExpired):
            client.recent_upper(SHARD)
    fresh = opened(stores, stores.consensus)
    check_contents(fresh, 10)
    write(fresh, 30, first=10)
    with pytest.raises(HandleExpired):
        writing.recent_upper(SHARD)
    assert verify(opened(stores, stores.consensus), SHARD).findings == ()


def test_a_store_from_before_is_refused(stores: Stores) -> None:
    write(stores.open(rollup_every=1), 5)
    stores.open(rollup_every=1).maintain(SHARD)
    lost = MemoryConsensus()
    recovery(stores, lost).run()
    with pytest.raises(LocationMismatch, match="how often they were recovered"):
        opened(stores, stores.consensus)


def test_a_healthy_store_is_left_alone(stores: Stores) -> None:
    write(stores.open(maintenance="inline", **BLOBS), 20)
    before = stores.stored()
    assert recovery(stores, stores.consensus).plan.healthy
    with pytest.raises(BadInput, match="is healthy"):
        recovery(stores, stores.consensus).run()
    assert stores.stored() == before


@pytest.mark.parametrize("first", ["an append", "a rollup"])
def test_a_healthy_store_is_left_alone_while_a_client_writes(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """It commits after the blobs were listed: what it names is missing from the listing."""
    client = stores.open(inline_max_bytes=0, rollup_every=1)
    write(client, 3)
    listed, times = stores.blob.list, iter(range(3, 100))

    def late(prefix: str) -> Iterator[BlobMeta]:
        found = [*listed(prefix)]
        if prefix in ("s", f"{SHARD}/"):
            write(client, 1, first=next(times))
            if first == "a rollup":
                client.maintain(SHARD)
        return iter(found)

    monkeypatch.setattr(stores.blob, "list", late)
    looked = recovery(stores, stores.consensus)
    assert looked.plan.healthy
    with pytest.raises(BadInput, match="healthy"):
        looked.run()
    check_contents(client, next(times))


def test_what_can_not_be_had_is_said_and_left_as_it_is(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    write(client, 3, OTHER)
    write(stores.open(maintenance="inline", **BLOBS), 20)
    stores.blob.delete(next(iter(sorted(stores.parts() & _named(stores)))))
    before = stores.blobs() | stores.blobs(OTHER)
    lost = MemoryConsensus()
    plan = {shard.shard_id: shard for shard in recovery(stores, lost).run().shards}
    assert plan[OTHER] == ShardPlan(
        OTHER, 0, 0, None, None, 3, healthy=False, problem="it has no log; no rollup of it was ever written"
    )
    assert plan[SHARD].seqno is None
    assert "names 1 blobs that are gone" in plan[SHARD].problem
    assert stores.blobs() | stores.blobs(OTHER) == before
    stores.clock.sleep(10 * 24 * 3600)
    assert all(swept.refused for swept in sweep(opened(stores, lost), delete=True))
    assert stores.blobs() | stores.blobs(OTHER) == before


def _named(stores: Stores) -> set[str]:
    return {str(part.blob_key) for batch in stores.state().batches for part in batch.parts}


def test_a_recovery_that_was_cut_short_is_done_again(stores: Stores) -> None:
    client = stores.open(maintenance="inline", **BLOBS)
    write(client, 20)
    write(client, 20, OTHER)
    location = stores.blob.get("location.json")
    assert location is not None
    for failing in range(40):
        lost = MemoryConsensus()
        plan = ScriptedPlan({failing: Fault.DEATH_AFTER})
        try:
            Recovery(FaultyBlob(stores.blob, plan), _Restarts(lost, plan), clock=stores.clock).run()
        except ProcessDeath:
            with pytest.raises(HoldfastError):
                opened(stores, lost)
            assert {shard.seqno for shard in recovery(stores, lost).run(restored=True).shards} != {None}
        fresh = opened(stores, lost)
        for shard in (SHARD, OTHER):
            upper = fresh.recent_upper(shard)
            assert upper >= 12
            check_contents(fresh, upper, shard)
        if plan.seen <= failing:
            return
    pytest.fail("40 calls are not enough")


class _Restarts(FaultyConsensus):
    def __init__(self, inner: MemoryConsensus, plan: ScriptedPlan) -> None:
        super().__init__(inner, plan)
        self._memory = inner

    def check_restart(self) -> None:
        self._memory.check_restart()

    def restart(self, key: str, seqno: int, data: bytes) -> bool:
        self.truncate(key, 0)
        return self._memory.restart(key, seqno, data)


def test_a_foreign_store_is_refused(stores: Stores) -> None:
    other = Stores()
    with pytest.raises(LocationMismatch):
        recovery(stores, other.consensus)
    other.blob.delete("location.json")
    with pytest.raises(BadInput, match="not the blob store of a location"):
        Recovery(other.blob, MemoryConsensus())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "location"


def test_a_drill_on_files(folder: Path) -> None:
    """A backup of the consensus file, more work, the file is lost, the backup comes back."""
    url = f"file://{folder}"
    config = PersistConfig(maintenance="inline", debug_validate=True, **BLOBS)
    with PersistClient.open(url, config=config) as client:
        write(client, 10)
    backup = folder.parent / "backup.sqlite"
    shutil.copy(folder / "consensus.sqlite", backup)
    with PersistClient.open(url, config=config) as client:
        write(client, 30, first=10)
    for file in folder.glob("consensus.sqlite*"):
        file.unlink()
    shutil.copy(backup, folder / "consensus.sqlite")
    blob, log, lost = open_for_recovery(url, blob=None, consensus=None, write=True, proof=BLOB_KEY)
    assert lost == ""
    (shard,) = Recovery(blob, log, clock=HandClock()).run().shards
    log.close()
    with PersistClient.open(url, config=config) as client:
        assert shard.upper is not None
        assert shard.upper >= 32
        check_contents(client, shard.upper)
        assert verify(client, SHARD).findings == ()
        write(client, 10, first=shard.upper)
    with PersistClient.open(url, mode="read") as client:
        assert verify(client, SHARD).findings == ()
