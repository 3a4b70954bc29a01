"""The sweeper finds what crashes leave, and never deletes what is needed or may still get a name."""

from collections import Counter
from typing import Any

import pytest

from holdfast.errors import BadInput, HandleExpired, NotWritable
from holdfast.persist import PersistClient
from holdfast.persist.admin.sweep import Swept, check_age, sweep
from holdfast.persist.ids import new_id, part_key, rollup_key
from holdfast.persist.multi_write import LONGEST_UPLOAD_S
from holdfast.persist.rows.part import checksum
from holdfast.persist.state.codec import encode_state
from holdfast.persist.state.command import AddRollup, CondemnOrphans, ExpireHandles
from holdfast.persist.state.machine import commit
from holdfast.persist.state.state import Rollup
from testbed.faults import Fault, Operation
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, contents, rows

BLOBS: dict[str, Any] = {"inline_max_bytes": 0, "compaction_fanin": 4, "rollup_every": 8}
DAY_S = LONGEST_UPLOAD_S


def write(client: PersistClient, count: int, *, first: int = 0) -> None:
    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        for time in range(first, first + count):
            writer.compare_and_append(rows(time), time, time + 1)


def orphan(stores: Stores, key: str | None = None) -> str:
    key = key or part_key(SHARD, new_id("w"), new_id("p"))
    stores.blob.put(key, b"left by a crash")
    return key


def found(client: PersistClient, **how: Any) -> dict[str, Swept]:
    return {each.shard_id: each for each in sweep(client, **how)}


def keys(swept: Swept) -> set[str]:
    return {each.key for each in swept.orphans}


def test_what_a_crash_left_is_found_and_goes_when_asked(stores: Stores) -> None:
    client = stores.open(maintenance="inline", **BLOBS)
    write(client, 20)
    left = {orphan(stores), orphan(stores, rollup_key(SHARD, 3))}
    stores.clock.sleep(DAY_S - 1)
    assert found(client)[SHARD] == Swept(SHARD, (), 2)
    stores.clock.sleep(1)
    before = stores.stored()
    swept = found(stores.open(mode="read"))[SHARD]
    assert keys(swept) == left
    assert {(each.size_bytes, each.age_s) for each in swept.orphans} == {(15, DAY_S)}
    assert stores.stored() == before
    assert keys(found(client, delete=True)[SHARD]) == left
    assert not left & stores.blobs()
    assert stores.state().garbage == {}
    assert found(client)[SHARD] == Swept(SHARD, (), 0)
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    assert contents(reader.snapshot(19).to_table()) == Counter({(key, "x"): 1 for key in range(20)})


def test_what_is_named_or_may_be_is_spared(stores: Stores) -> None:
    """Parts of the state, garbage in its grace, rollups, and the uploads of writers that live."""
    client = stores.open(maintenance="inline", gc_grace_s=10 * DAY_S, **BLOBS)
    write(client, 20)
    writer = client.writer(SHARD, SCHEMA, purpose="slow")
    prepared = writer.prepare_append(rows(20), 20, 21)
    task = client.compactions.claim(SHARD, purpose="job") or None
    stores.clock.sleep(2 * DAY_S)
    before = stores.blobs()
    assert prepared.uploaded
    assert {*prepared.uploaded} <= before
    assert found(client, delete=True)[SHARD] == Swept(SHARD, (), 0)
    assert stores.blobs() == before
    assert task is None or task.writer.id in stores.state().writers


def test_an_append_that_was_prepared_too_long_ago_is_refused(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    write(client, 3)
    prepared = client.writer(SHARD, SCHEMA, purpose="sleeper").prepare_append(rows(3), 3, 4)
    stores.clock.sleep(DAY_S / 2 + 1)
    with pytest.raises(BadInput, match="was prepared more than 12 hours ago: its uploads may be deleted"):
        client.multi_write([prepared])
    assert stores.state().upper == 3


def test_what_was_swept_can_not_be_appended_any_more(stores: Stores) -> None:
    """A writer that was taken for dead, and wakes before its blob is deleted."""
    client = stores.open(gc_grace_s=1000.0, **BLOBS)
    write(client, 3)
    prepared = client.writer(SHARD, SCHEMA, purpose="sleeper").prepare_append(rows(3), 3, 4)
    other = stores.open(gc_grace_s=1000.0, **BLOBS)
    machine = other.session.machine(SHARD)
    writers = machine.refresh().writers.values()
    commit([(machine, ExpireHandles((), tuple((writer.id, writer.heartbeats) for writer in writers)))])
    now = stores.clock.wall_ms()
    assert commit([(machine, CondemnOrphans(tuple((key, now) for key in prepared.uploaded)))]) == [
        tuple(prepared.uploaded)
    ]
    with pytest.raises(HandleExpired, match="sent no heartbeat for too long"):
        client.multi_write([prepared])
    assert stores.state().upper == 3


def test_an_append_that_comes_while_the_sweeper_works_is_refused(stores: Stores) -> None:
    """Its writer was taken for dead; it comes after the sweeper has read the state, before it condemns."""
    client = stores.open(**BLOBS)
    write(client, 3)
    prepared = client.writer(SHARD, SCHEMA, purpose="sleeper").prepare_append(rows(3), 3, 4)
    machine = stores.open().session.machine(SHARD)
    writers = machine.refresh().writers.values()
    commit([(machine, ExpireHandles((), tuple((writer.id, writer.heartbeats) for writer in writers)))])
    stores.clock.sleep(3600)

    class Meanwhile:
        armed = False

        def decide(self, operation: Operation) -> Fault:
            if self.armed and operation.name == "consensus.compare_and_set":
                self.armed = False
                with pytest.raises(HandleExpired, match="sent no heartbeat for too long"):
                    client.multi_write([prepared])
            return Fault.NONE

    plan = Meanwhile()
    sweeper = stores.open(plan, **BLOBS)
    plan.armed = True
    assert keys(found(sweeper, older_than_s=60.0, delete=True)[SHARD]) == {*prepared.uploaded}
    assert not {*prepared.uploaded} & stores.blobs()
    assert stores.state().upper == 3


def test_a_rollup_that_may_still_be_recorded_is_spared(stores: Stores) -> None:
    """Who wrote it sleeps for days before it records it; once a later one is recorded it is an orphan."""
    client = stores.open(**{**BLOBS, "rollup_every": 1000})
    write(client, 5)
    machine = client.session.machine(SHARD)
    state = machine.refresh()
    key, data = rollup_key(SHARD, state.seqno), encode_state(state)
    stores.blob.put(key, data)
    left = orphan(stores, rollup_key(SHARD, state.seqno - 1))
    stores.clock.sleep(2 * DAY_S)
    assert found(stores.open(**BLOBS), delete=True)[SHARD] == Swept(SHARD, (), 0)
    record = AddRollup(Rollup(state.seqno, key, len(data), checksum(data)), machine.store_ms())
    assert commit([(machine, record)]) == [True]
    assert keys(found(stores.open(**BLOBS), delete=True)[SHARD]) == {left}
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    assert contents(reader.snapshot(4).to_table()) == Counter({(key, "x"): 1 for key in range(5)})


def test_a_log_that_was_lost_or_is_old_is_no_reason_to_sweep(stores: Stores) -> None:
    client = stores.open(maintenance="inline", **BLOBS)
    write(client, 5)
    early = list(stores.consensus._logs[SHARD])
    write(client, 20, first=5)
    orphan(stores, part_key(OTHER, new_id("w"), new_id("p")))
    stores.clock.sleep(2 * DAY_S)
    before = stores.blobs() | stores.blobs(OTHER)
    stores.consensus._logs[SHARD] = early
    swept = found(stores.open(**BLOBS), delete=True)
    assert "the consensus store has no log of it" in swept[OTHER].refused
    assert "is missing: version" in swept[SHARD].refused
    assert stores.blobs() | stores.blobs(OTHER) == before


def test_a_log_that_ends_before_a_rollup_is_an_old_copy(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    write(client, 5)
    orphan(stores)
    orphan(stores, rollup_key(SHARD, 100))
    stores.clock.sleep(2 * DAY_S)
    (swept,) = found(client, delete=True).values()
    assert (
        swept.refused == f"its log ends at version {stores.state().seqno}, but there is a blob of version 100"
    )
    assert swept.orphans == ()


def test_what_holdfast_did_not_name_is_left_alone(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    write(client, 3)
    for key in (f"{SHARD}/notes/by-hand", f"{SHARD}/v1", "some/thing"):
        stores.blob.put(key, b"mine")
    stores.clock.sleep(2 * DAY_S)
    assert found(client, delete=True) == {SHARD: Swept(SHARD, (), 0)}


def test_a_client_that_only_reads_deletes_nothing(stores: Stores) -> None:
    with pytest.raises(NotWritable):
        found(stores.open(mode="read"), delete=True)
    with pytest.raises(BadInput, match="younger than 24 hours"):
        check_age(3600)
