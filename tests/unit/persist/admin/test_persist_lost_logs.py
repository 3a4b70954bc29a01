"""What a lost consensus store takes along: nobody has the write lock, and young shards soon get a rollup."""

import copy

import pytest

from holdfast.errors import Fenced
from holdfast.persist import PersistClient
from holdfast.persist.admin.recover import Recovery
from holdfast.persist.admin.verify import verify, without_log
from holdfast.persist.state.lock import LOCK_KEY, decode_lock
from holdfast.persist.stores import Location, MemoryConsensus
from holdfast.persist.upkeep.rollup import early_rollup_due, write_early_rollup
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, contents, rows


def write(client: PersistClient, count: int, shard: str = SHARD, *, first: int = 0) -> None:
    with client.writer(shard, SCHEMA, purpose="test") as writer:
        for time in range(first, first + count):
            writer.compare_and_append(rows(time), time, time + 1)


def opened(stores: Stores, consensus: MemoryConsensus) -> PersistClient:
    location = Location.of(stores.blob, consensus, create=False)
    return PersistClient(location, config=stores.open().config, clock=stores.clock)


def recover(stores: Stores, consensus: MemoryConsensus) -> Recovery:
    recovery = Recovery(stores.blob, consensus, clock=stores.clock)
    recovery.run(restored=True)
    return recovery


def test_who_held_the_lock_before_a_recovery_is_fenced(stores: Stores) -> None:
    write(stores.open(), 1)
    backup = copy.deepcopy(stores.consensus._logs)
    zombie = stores.open()
    zombie.exclusive("old")
    stores.consensus._logs.clear()
    stores.consensus._logs.update(backup)
    recover(stores, stores.consensus)
    new = opened(stores, stores.consensus)
    new.exclusive("new")
    with pytest.raises(Fenced):
        zombie.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(2), 1, 2)
    new.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(3), 1, 2)


def test_each_recovery_has_rows_of_its_own(stores: Stores) -> None:
    backup = copy.deepcopy(stores.consensus._logs)
    seen = set()
    for _ in range(3):
        stores.consensus._logs.clear()
        stores.consensus._logs.update(copy.deepcopy(backup))
        recover(stores, stores.consensus)
        opened(stores, stores.consensus).exclusive("job")
        seen.add(decode_lock(stores.consensus.heads([LOCK_KEY])[LOCK_KEY]).seqno >> 40)
    assert seen == {1, 2, 3}


def test_a_young_shard_that_was_closed_comes_back(stores: Stores) -> None:
    client = stores.open(maintenance="background")
    write(client, 3)
    client.create_or_load("orders", SCHEMA)
    name = client.names()
    client.close()
    lost = MemoryConsensus()
    plan = recover(stores, lost).plan
    assert all(shard.seqno is not None for shard in plan.shards)
    again = opened(stores, lost)
    assert again.names() == name
    found = again.reader(SHARD, purpose="test").snapshot(2).to_table()
    assert contents(found) == {(0, "x"): 1, (1, "x"): 1, (2, "x"): 1}
    assert verify(again, SHARD).findings == ()


def test_only_who_wrote_writes_rollups_when_it_closes(stores: Stores) -> None:
    write(stores.open(), 3)
    before = stores.blobs()
    for client in (stores.open(mode="read", maintenance="background"), stores.open(maintenance="inline")):
        client.reader(SHARD, purpose="test").snapshot(2).to_table()
        client.close()
    assert stores.blobs() == before


def test_the_thread_of_who_only_writes_little_gives_a_first_rollup(stores: Stores) -> None:
    client = stores.open(maintenance="background")
    write(client, 1)
    maintainer = client.session.maintainer
    assert maintainer._thread is not None
    assert maintainer._thread.is_alive()
    maintainer._free(client.session.machine(SHARD))
    assert stores.state().latest_rollup is not None
    maintainer._free(client.session.machine(SHARD))
    write(stores.open(), 1, OTHER)
    maintainer._look_around()
    assert stores.state(OTHER).latest_rollup is not None
    client.close()
    assert len(stores.blobs()) == 1


def test_early_rollups_are_few(stores: Stores) -> None:
    client = stores.open(rollup_every=10**6)
    machine = client.session.machine(SHARD)
    assert not early_rollup_due(machine.state)
    written = 0
    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        for time in range(300):
            writer.compare_and_append(rows(time), time, time + 1)
            before = machine.state.latest_rollup
            write_early_rollup(machine)
            written += machine.state.latest_rollup is not before
    assert 4 <= written <= 8


def test_the_upkeep_of_a_fenced_client_commits_nothing(stores: Stores) -> None:
    ended = stores.open(rollup_every=4, gc_grace_s=10.0)
    write(ended, 6)
    ended.finalize(SHARD)
    fenced = stores.open(gc_grace_s=0.0)
    fenced.exclusive("job")
    stores.open().exclusive("job")
    _, before = stores.stored()
    fenced.session.maintainer._look_around()
    assert stores.stored()[1] == before


def test_the_audit_tells_of_blobs_without_a_log(stores: Stores) -> None:
    client = stores.open(inline_max_bytes=0)
    write(client, 2)
    assert without_log(client) == ()
    lost = MemoryConsensus()
    (shard,) = recover(stores, lost).plan.shards
    assert shard.seqno is None
    (finding,) = without_log(opened(stores, lost))
    assert finding.shard_id == SHARD
    assert "blobs (2) but no log" in finding.what
