"""Several writers of a table, and one write to several tables: nothing is lost or half done."""

import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast
from holdfast.collections import StorageController
from holdfast.errors import BadInput, StorageError
from holdfast.persist import PersistClient, Schema
from holdfast.tables import Delete, Table, Update, Upsert
from testbed.faults import Fault, ProcessDeath, ScriptedPlan
from unit.collections.counting import KEYS, count, incremented
from unit.collections.stores import Stores

COUNTERS = {"id": "int64", "n": "int64"}


def total(table: Table) -> int:
    assert sorted(table.read()["id"].to_pylist()) == list(range(KEYS))  # each key once
    return int(pc.sum(table.read()["n"]).as_py())


def hand_over(client: PersistClient, shards: int) -> int:
    controller = StorageController(client)
    made = controller.renditions.create("counters", shards=shards)
    controller.renditions.catch_up("counters", made.id)
    return controller.renditions.hand_over("counters", made.id).held_from


def test_no_increment_of_two_processes_is_lost_through_handovers(tmp_path: Path) -> None:
    url = (tmp_path / "location").as_uri()
    context = multiprocessing.get_context("spawn")
    started = context.Semaphore(0)
    with holdfast.table(url, "counters", columns=COUNTERS, key="id", shards=2) as table:
        table.append({"id": range(KEYS), "n": [0] * KEYS})
        processes = [context.Process(target=count, args=(url, 15, started)) for _ in range(2)]
        for process in processes:
            process.start()
        for _ in processes:
            # One that died tells nothing.
            while not started.acquire(timeout=1):
                assert all(process.exitcode in (None, 0) for process in processes)
        for shards in (1, 3):
            hand_over(table.client, shards)
            table.update([0], incremented)
        for process in processes:
            process.join(300)
        assert [process.exitcode for process in processes] == [0, 0]
        assert total(table) == 32


def test_rows_that_need_a_later_schema_are_written_with_it() -> None:
    stores = Stores()
    with stores.open(inline_max_bytes=0) as one, stores.open() as two:
        table = holdfast.table(one, "t", columns={"id": "int64", "n": "int32"}, key="id")
        table.append([{"id": 0, "n": 0}])
        controller = StorageController(two)
        for type_, row in (("int64", {"id": 1, "n": 1 << 40}), ("int64?", {"id": 2, "n": None})):
            controller.evolve_collection("t", Schema.of({"id": "int64"}, {"n": type_}))
            table.append([row])
        found = sorted(table.read().to_pylist(), key=lambda row: row["id"])
        assert found == [{"id": 0, "n": 0}, {"id": 1, "n": 1 << 40}, {"id": 2, "n": None}]


def test_a_change_is_refused_only_by_the_latest_rows() -> None:
    stores = Stores()
    with stores.open() as one, stores.open() as two:
        table = holdfast.table(one, "t", columns={"id": "int64", "n": "int64", "m": "int64?"}, key="id")
        stale = holdfast.table(two, "t")
        stale.append([{"id": 1, "n": 1}, {"id": 1, "n": 2}])
        table.upsert([{"id": 1, "n": 3}])
        stale.merge([{"id": 1, "m": 4}], missing="ignore")
        table.upsert([{"id": 1, "n": 5}])

        def checked(rows: pa.Table) -> pa.Table:
            if rows["n"].to_pylist() != [5]:
                raise ValueError(f"n is {rows['n']}")
            return rows.set_column(1, "n", pa.array([6]))

        stale.update([1], checked)
        assert table.read().to_pylist() == [{"id": 1, "n": 6, "m": None}]
        with pytest.raises(ValueError, match="n is"):
            stale.update([1], checked)


def test_prepared_rows_have_no_null_where_none_may_be() -> None:
    with Stores().open() as client:
        holdfast.table(client, "t", columns={"id": "int64", "n": "int32"}, key="id")
        writer = StorageController(client).writer("t", purpose="test")
        rows = pa.table([[1], [None], [0], [1]], schema=writer.schema.arrow_updates)
        with pytest.raises(BadInput, match="column 'n' is not nullable"):
            writer.prepare(rows, writer.position(), 1, prepared=True)


def test_threads_share_a_table() -> None:
    table = holdfast.table(Stores().open(), "counters", columns=COUNTERS, key="id", shards=2)
    table.append({"id": range(KEYS), "n": [0] * KEYS})
    times: list[int] = []

    def work(key: int) -> None:
        for _ in range(5):
            times.append(table.update([key % KEYS], incremented))
            table.read()

    threads = [threading.Thread(target=work, args=(key,)) for key in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert total(table) == 20
    assert len(set(times)) == 20


def test_who_was_overtaken_reads_and_goes_to_the_new_rendition() -> None:
    stores = Stores()
    mine, other = (
        holdfast.table(stores.open(), "counters", columns=COUNTERS, key="id", shards=2) for _ in range(2)
    )
    mine.append({"id": range(KEYS), "n": [0] * KEYS})
    calls = 0

    def interrupted(there: pa.Table) -> pa.Table:
        nonlocal calls
        calls += 1
        if calls == 1:
            other.update([1], incremented)
        elif calls == 2:
            hand_over(other.client, 1)
        elif calls == 3:
            # Where the collection is complete up to its promise exactly, a handover moves no upper.
            at = hand_over(other.client, 4)
            assert other.upper == at
        return incremented(there)

    mine.update([1], interrupted)
    assert calls == 4
    assert total(mine) == total(other) == 2


def test_an_upsert_at_the_time_of_a_handover_sees_what_the_new_rendition_begins_with() -> None:
    table = holdfast.table(Stores().open(), "counters", columns=COUNTERS, key="id")
    table.append({"id": range(KEYS), "n": [0] * KEYS})
    at = hand_over(table.client, 2)
    assert table.upsert([{"id": 1, "n": 5}]) > at
    assert total(table) == 5


FAULTS = [Fault.DETERMINATE, Fault.INDETERMINATE_AFTER, Fault.DEATH_BEFORE, Fault.DEATH_AFTER]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_write_of_several_tables_is_whole_or_not_there(fault: Fault) -> None:
    """The fault at the first, second, ... write to a store, and then to what was interrupted once more."""
    for number in range(100):
        stores = Stores()
        _tables(stores.open())
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        # What is not in the state itself is uploaded first.
        client = stores.open(plan, inline_max_bytes=0)
        try:
            a, b = _tables(client)
            holdfast.write({a: Upsert([{"id": 1, "n": 7}, {"id": 9, "n": 1}]), b: Delete([0, 1])})
            ended = True
        except (StorageError, ProcessDeath):
            ended = False
        found = [
            sorted((row["id"], row["n"]) for row in table.read().to_pylist())
            for table in _tables(stores.open())
        ]
        before = [[(0, 0), (1, 0), (2, 0)]] * 2
        after = [[(0, 0), (1, 7), (2, 0), (9, 1)], [(2, 0)]]
        assert found == after if ended else found in (before, after)
        if fault is Fault.DETERMINATE and not ended:
            assert found == before
        if plan.seen <= number:
            assert ended
            return
    raise AssertionError("the work never ends")


def _tables(client: PersistClient) -> list[Table]:
    tables = [
        holdfast.table(client, name, columns=COUNTERS, key="id", shards=shards)
        for name, shards in {"a": 2, "b": 1}.items()
    ]
    for table in tables:
        if table.upper == 0:
            table.append({"id": [0, 1, 2], "n": [0] * 3})
    return tables


@pytest.mark.parametrize("moved", ["a", "b"])
def test_a_write_of_several_tables_is_tried_again_as_a_whole(moved: str) -> None:
    stores = Stores()
    tables = dict(zip("ab", _tables(stores.open()), strict=True))
    others = dict(zip("ab", _tables(stores.open()), strict=True))
    third = holdfast.table(tables["a"].client, "c", columns=COUNTERS)
    calls: list[str] = []

    def interrupted(name: str) -> Callable[[pa.Table], pa.Table]:
        def function(there: pa.Table) -> pa.Table:
            calls.append(name)
            if calls == ["a", "b"]:
                others[moved].update([0], incremented)
            return incremented(there)

        return function

    time = holdfast.write(
        {tables[name]: Update([0, 1], interrupted(name)) for name in "ab"} | {third: [{"id": 5, "n": 0}]}
    )
    assert calls == ["a", "b", "a", "b"]
    for name, wanted in {"a": 2 + (moved == "a"), "b": 2 + (moved == "b")}.items():
        assert others[name].upper == time + 1
        assert pc.sum(others[name].read()["n"]).as_py() == wanted
    assert (third.upper, third.read().num_rows) == (time + 1, 1)


@pytest.mark.parametrize("number", range(0, 15, 3))
def test_after_an_unknown_outcome_the_table_goes_on(number: int) -> None:
    stores = Stores()
    _tables(stores.open())
    # The store answers nothing for a while: what it was asked is done all the same.
    silence = dict.fromkeys(range(number, number + 40), Fault.INDETERMINATE_AFTER)
    plan = ScriptedPlan(silence, matches=lambda operation: operation.name.startswith("consensus") and begun)
    begun = False
    table = holdfast.table(stores.open(plan), "a")
    table.append([{"id": 99, "n": 0}])
    begun = True
    acknowledged, doubtful = set(), set()
    for id_ in range(100, 130):
        try:
            table.append([{"id": id_, "n": 0}])
            acknowledged.add(id_)
        except StorageError:
            doubtful.add(id_)
    assert doubtful
    assert 129 in acknowledged
    found = [id_ for id_ in table.read()["id"].to_pylist() if id_ >= 100]
    assert len(set(found)) == len(found)
    assert acknowledged <= set(found) <= acknowledged | doubtful


def test_a_merge_of_some_columns_finds_a_key_that_is_nan() -> None:
    table = holdfast.table(
        Stores().open(), "t", columns={"x": "float64", "a": "int64?", "b": "int64?"}, key="x"
    )
    table.append({"x": [float("nan"), 1.0], "a": [1, 1], "b": [2, 2]})
    table.merge([{"x": float("nan"), "a": 3}])
    assert sorted(zip(*table.read(columns=["a", "b"]).to_pydict().values(), strict=True)) == [(1, 2), (3, 2)]
