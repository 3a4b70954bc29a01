"""Erasing a finalized shard deletes its data at once, and nothing else."""

from typing import Any

import pytest

from holdfast.errors import BadInput, NotErased, ShardFinalized
from holdfast.persist import PersistClient
from holdfast.persist.ids import new_id, part_key, rollup_key
from holdfast.persist.rows.part import checksum
from holdfast.persist.state.codec import encode_state
from holdfast.persist.state.command import AddRollup
from holdfast.persist.state.machine import commit, load_rollup
from holdfast.persist.state.state import Rollup
from testbed.faults import Fault, Operation, ProcessDeath, ScriptedPlan
from unit.persist.open_stores import SCHEMA, SHARD, Stores, rows

SECRET = "what nobody may find again"
KEEPING: dict[str, Any] = {"gc_grace_s": 3600.0, "rollup_every": 4}


def filled(stores: Stores, shard: str = SHARD, **settings: Any) -> PersistClient:
    """A shard with parts, rollups and log rows that contain the secret."""
    client = stores.open(**(KEEPING | settings))
    with client.writer(shard, SCHEMA, purpose="test") as writer:
        for time in range(9):
            writer.compare_and_append(rows(time, value=SECRET), time, time + 1)
            client.maintain(shard)
    return client


def shows_secret(stores: Stores) -> bool:
    blobs, logs = stores.stored()
    rows_of = [bytes(row.data) for scanned in logs.values() for row in scanned]
    return any(SECRET.encode() in (data or b"") for data in [*blobs.values(), *rows_of])


@pytest.mark.parametrize("inline", [0, 1 << 20], ids=["parts", "inline"])
def test_no_byte_of_the_data_is_left(stores: Stores, inline: int) -> None:
    client = filled(stores, inline_max_bytes=inline)
    before = stores.blobs()
    assert shows_secret(stores)
    client.finalize(SHARD)
    assert not client.is_erased(SHARD)
    client.maintain(SHARD)
    assert shows_secret(stores), "upkeep waits for its grace"
    client.erase(SHARD)
    assert client.is_erased(SHARD)
    assert not before & stores.blobs()
    assert stores.parts() == set()
    assert not shows_secret(stores)
    left = stores.stored()
    client.erase(SHARD)
    stores.open(**KEEPING).erase(SHARD)
    assert stores.stored() == left
    with pytest.raises(ShardFinalized):
        stores.open().writer(SHARD, SCHEMA, purpose="late")


def test_a_kill_at_any_operation_leaves_what_the_next_call_erases(stores: Stores) -> None:
    operations = 0
    for died in range(100):
        here = Stores()
        client = filled(here, inline_max_bytes=0)
        client.finalize(SHARD)
        here.blob.put(part_key(SHARD, new_id("w"), new_id("p")), SECRET.encode())
        plan = ScriptedPlan({died: Fault.DEATH_AFTER}, matches=lambda each: each.writes)
        try:
            here.open(plan, **KEEPING).erase(SHARD)
        except ProcessDeath:
            operations += 1
        else:
            break
        here.open(**KEEPING).erase(SHARD)
        assert here.open().is_erased(SHARD)
        assert here.parts() == set()
        assert not shows_secret(here)
    assert operations > 10


def test_uploads_that_nobody_can_commit_are_erased_too(stores: Stores) -> None:
    client = filled(stores)
    newest = stores.state().latest_rollup
    assert newest is not None
    client.finalize(SHARD)
    late = part_key(SHARD, new_id("w"), new_id("p"))
    stores.blob.put(late, SECRET.encode())
    # As if a process had died between the upload of this rollup and its record.
    stray, uploaded = rollup_key(SHARD, newest.seqno), stores.blob.get(newest.blob_key)
    assert uploaded is not None
    stores.blob.put(stray, uploaded)
    stores.blob.put(f"{SHARD}/foreign", b"not ours")
    client.erase(SHARD)
    assert late not in stores.blobs()
    assert f"{SHARD}/foreign" in stores.blobs()
    assert stray not in stores.blobs()


def test_a_backup_that_may_be_restored_keeps_its_blobs(stores: Stores) -> None:
    client = filled(stores, inline_max_bytes=0, retain_for_s=60.0)
    client.finalize(SHARD)
    before = stores.parts()
    client.erase(SHARD)
    assert stores.parts() == before
    stores.clock.sleep(61)
    client.erase(SHARD)
    assert stores.parts() == set()


def test_nothing_is_erased_of_a_shard_with_two_histories(stores: Stores) -> None:
    client = filled(stores, inline_max_bytes=0)
    client.finalize(SHARD)
    state = stores.state()
    unknown = rollup_key(SHARD, state.seqno + 100)
    stores.blob.put(unknown, b"the rollup of another history")
    before = stores.blobs()
    with pytest.raises(NotErased, match=f"nothing of {SHARD} is deleted: .* is a rollup of version"):
        client.erase(SHARD)
    assert before <= stores.blobs()
    stores.blob.delete(unknown)
    client.erase(SHARD)
    assert client.is_erased(SHARD)


def test_only_a_finalized_shard_can_be_erased(stores: Stores) -> None:
    client = filled(stores)
    before = stores.stored()
    with pytest.raises(BadInput, match="is not finalized"):
        client.erase(SHARD)
    with pytest.raises(BadInput, match="does not exist"):
        client.erase(new_id("s"))
    assert not client.is_erased(SHARD)
    assert stores.stored() == before


def test_a_rollup_that_another_process_is_about_to_record_is_spared() -> None:
    """It was uploaded before the listing, and is recorded after it."""
    stores = Stores()
    filled(stores).finalize(SHARD)
    stores.open(**KEEPING).maintain(SHARD)
    uploaded: list[Rollup] = []

    class Beside:
        """The other process."""

        def decide(self, operation: Operation) -> Fault:
            machine = stores.open(**KEEPING).session.machine(SHARD)
            if operation.name == "blob.list" and operation.keys == (f"{SHARD}/",) and not uploaded:
                state = machine.refresh()
                data = encode_state(state)
                uploaded.append(
                    Rollup(state.seqno, rollup_key(SHARD, state.seqno), len(data), checksum(data))
                )
                stores.blob.put(uploaded[0].blob_key, data)
            elif operation.name == "blob.delete" and len(uploaded) == 1:
                machine.refresh()
                assert commit([(machine, AddRollup(uploaded[0], machine.store_ms()))]) == [True]
                uploaded.append(uploaded[0])
            return Fault.NONE

    client = stores.open(Beside(), **KEEPING)
    client.erase(SHARD)
    assert len(uploaded) == 2
    assert stores.state().finalized
    newest = stores.state().latest_rollup
    assert newest is not None
    assert load_rollup(stores.open().location, newest) is not None
