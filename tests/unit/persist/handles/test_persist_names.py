"""Names for shards: one shard for each name, whoever asks first, even if the answer is lost."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import (
    BadInput,
    CodecMismatch,
    CorruptBlob,
    Determinate,
    Indeterminate,
    NotWritable,
    ShardFinalized,
)
from holdfast.persist import PersistClient, Schema, WriteMode
from holdfast.persist.handles.names import NAMES_SCHEMA, names_shard_id
from testbed.faults import Fault, Operation, ProcessDeath, ScriptedPlan
from unit.persist.open_stores import SCHEMA, Stores, rows

OTHER_SCHEMA = Schema.of({"k": "string"})


def commits(operation: Operation) -> bool:
    return operation.name == "consensus.compare_and_set"


def test_a_name_stands_for_one_shard(stores: Stores) -> None:
    client, other = stores.open(), stores.open()
    assert client.names() == {}
    orders = client.create_or_load("orders, EU", SCHEMA)
    assert other.create_or_load("orders, EU", SCHEMA) == orders
    assert other.create_or_load("Bestellungen (für die EU)", OTHER_SCHEMA) != orders
    assert client.names() == {
        "Bestellungen (für die EU)": other.create_or_load("Bestellungen (für die EU)", OTHER_SCHEMA),
        "orders, EU": orders,
    }
    client.writer(orders, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 1)
    assert stores.state(orders).upper == 1


def test_another_schema_is_refused_and_a_later_one_is_known(stores: Stores) -> None:
    client = stores.open()
    shard = client.create_or_load("orders", SCHEMA)
    before = stores.stored()
    with pytest.raises(CodecMismatch, match="'orders': the schema does not fit") as refused:
        client.create_or_load("orders", OTHER_SCHEMA)
    assert str(SCHEMA) in str(refused.value)
    assert str(OTHER_SCHEMA) in str(refused.value)
    assert stores.stored() == before
    later = Schema.of({"k": "int64"}, {"v": "string?"})
    client.evolve(shard, later)
    assert client.create_or_load("orders", SCHEMA) == client.create_or_load("orders", later) == shard


def test_a_named_shard_has_its_mode(stores: Stores) -> None:
    client = stores.open()
    shard = client.create_or_load("orders", SCHEMA, mode=WriteMode.WRITE_SEAL)
    assert stores.state(shard).write_mode is WriteMode.WRITE_SEAL
    assert client.create_or_load("orders", SCHEMA, mode=WriteMode.WRITE_SEAL) == shard
    with pytest.raises(BadInput, match=r"'orders': shard .* has write mode WRITE_SEAL"):
        client.create_or_load("orders", SCHEMA)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "1 to 255"),
        ("x" * 256, "1 to 255"),
        (7, "1 to 255"),
        (" orders", "begins or ends with spaces"),
        ("or\nders", "invisible characters"),
        ("or\u200bders", "invisible characters"),
        ("u\u0308", "NFC"),
    ],
)
def test_a_name_can_be_typed_and_told_from_others(stores: Stores, name: str, words: str) -> None:
    before = stores.stored()
    with pytest.raises(BadInput, match=words):
        stores.open().create_or_load(name, SCHEMA)
    assert stores.stored() == before


def test_a_reading_client_finds_names_and_makes_none(stores: Stores) -> None:
    reading = stores.open(mode="read")
    with pytest.raises(NotWritable, match="no shard is named 'orders'"):
        reading.create_or_load("orders", SCHEMA)
    shard = stores.open().create_or_load("orders", SCHEMA)
    before = stores.stored()
    assert reading.create_or_load("orders", SCHEMA) == shard
    assert reading.names() == {"orders": shard}
    with pytest.raises(NotWritable):
        reading.forget("orders")
    assert stores.stored() == before


def test_a_name_that_is_forgotten_may_be_used_again(stores: Stores) -> None:
    client = stores.open()
    first = client.create_or_load("orders", SCHEMA)
    assert client.forget("orders") == first
    second = client.create_or_load("orders", OTHER_SCHEMA)
    assert second != first
    assert not stores.state(first).finalized
    assert client.forget("orders", finalize=True) == second
    assert stores.state(second).finalized
    with pytest.raises(BadInput, match="no shard is named 'orders'"):
        client.forget("orders")
    assert client.names() == {}


def test_the_name_of_a_shard_that_ended_tells_so(stores: Stores) -> None:
    client = stores.open()
    shard = client.create_or_load("orders", SCHEMA)
    client.finalize(shard)
    with pytest.raises(ShardFinalized, match="'orders' belongs to shard") as ended:
        client.create_or_load("orders", SCHEMA)
    assert "forget" in ended.value.hint
    client.forget("orders", finalize=True)
    assert client.create_or_load("orders", SCHEMA) != shard


def test_the_names_shard_keeps_its_newest_time_only(stores: Stores) -> None:
    client = stores.open()
    for number in range(5):
        client.create_or_load(f"n{number}", SCHEMA)
    state = stores.state(names_shard_id(stores.location_id))
    assert (state.since, state.upper) == (4, 5)
    assert [hold.purpose for hold in state.critical_readers.values()] == ["names retention"]


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_BEFORE, Fault.INDETERMINATE_AFTER, Fault.DETERMINATE])
@pytest.mark.parametrize("deadline", [0.0, 0.5])
def test_a_creation_in_doubt_makes_no_second_shard(stores: Stores, fault: Fault, deadline: float) -> None:
    stores.open().create_or_load("first", SCHEMA)
    plan = ScriptedPlan({0: fault}, matches=commits)
    shaky = stores.open(plan, retry_deadline_s=deadline)
    if deadline == 0.0:
        with pytest.raises(Determinate if fault is Fault.DETERMINATE else Indeterminate):
            shaky.create_or_load("orders", SCHEMA)
    shard = shaky.create_or_load("orders", SCHEMA)
    assert plan.seen
    assert shaky.names()["orders"] == shard
    assert len([key for key in stores.consensus.list_keys() if key.startswith("s")]) == 3


def test_a_death_in_the_middle_leaves_both_or_neither(stores: Stores) -> None:
    for fault in (Fault.DEATH_BEFORE, Fault.DEATH_AFTER):
        dying = stores.open(ScriptedPlan({0: fault}, matches=commits))
        with pytest.raises(ProcessDeath):
            dying.create_or_load(fault.value, SCHEMA)
        known = stores.open().names()
        assert (fault.value in known) == (fault is Fault.DEATH_AFTER)
        assert all(stores.state(shard).exists for shard in known.values())


def test_of_many_that_ask_at_once_all_get_the_same_shards(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(4)]
    found: list[dict[str, str]] = []
    start = threading.Barrier(4)

    def ask(order: list[str]) -> None:
        with PersistClient.open(tmp_path.as_uri()) as client:
            start.wait()
            found.append({name: client.create_or_load(name, SCHEMA) for name in order})

    with PersistClient.open(tmp_path.as_uri()) as client:
        threads = [threading.Thread(target=ask, args=(names[i:] + names[:i],)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [client.names()] * 4
        assert len(set(found[0].values())) == 4
        assert set(client.shards()) == {*found[0].values(), names_shard_id(client.location_id)}


def test_a_name_that_is_there_twice_is_never_answered_from(stores: Stores) -> None:
    client = stores.open()
    client.create_or_load("orders", SCHEMA)
    twice = pa.table({"name": ["orders"], "shard": ["s00000000-0000-4000-8000-00000000000f"]})
    writer = client.writer(names_shard_id(stores.location_id), NAMES_SCHEMA, purpose="foreign")
    writer.compare_and_append(twice, 1, 2)
    with pytest.raises(CorruptBlob, match="each name once"):
        client.create_or_load("orders", SCHEMA)


def test_what_is_unknown_stays_unknown(stores: Stores) -> None:
    faults = dict.fromkeys(range(100), Fault.INDETERMINATE_BEFORE)
    shaky = stores.open(ScriptedPlan(faults, matches=commits))
    with pytest.raises(Indeterminate):
        shaky.create_or_load("orders", SCHEMA)
    assert stores.open().names() == {}
