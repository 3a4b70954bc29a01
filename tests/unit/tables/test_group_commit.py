"""AppendQueue of several threads to one table are committed together, and each thread gets its own result."""

import _thread
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.collections.record.column_names import ColumnNames
from holdfast.errors import BadInput, Determinate, HoldfastError, Indeterminate, UsedAfterFork
from holdfast.persist import Schema
from holdfast.tables import Table, group_commit
from holdfast.tables.changes import Append, Change, Committed
from holdfast.tables.group_commit import AppendQueue, Member
from testbed.faults import Fault, ScriptedPlan
from unit.collections.stores import Stores

COLUMNS = {"id": "int64", "note": "string?"}
SCHEMA = Schema.of(key={}, value={"id": "int64"})
LONG_S = 300


def in_threads(count: int, work: Callable[[int], object]) -> list[object]:
    """The results, or errors, of calls in threads."""
    results: list[object] = [None] * count

    def run(number: int) -> None:
        try:
            results[number] = work(number)
        except HoldfastError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in threads)
    return results


def while_waiting(
    table: Table, count: int, work: Callable[[int], object], then: Callable[[], object] = lambda: None
) -> list[object]:
    """Let threads begin work while somebody leads, until all of them wait and `then` was called."""
    appends = table._opened.appends
    leader = member(0, lambda _rows, _changes: Committed(0, (None,)))
    appends._leader[group_commit._LEADS] = leader

    def end() -> None:
        until(lambda: len(appends._waiting) == count)
        then()
        appends._leave(leader)

    thread = threading.Thread(target=end)
    thread.start()
    results = in_threads(count, work)
    thread.join(LONG_S)
    return results


def member(number: int, together: Callable[[pa.RecordBatch, Sequence[Change]], Committed]) -> Member:
    rows = pa.RecordBatch.from_pydict({"id": [number]})
    return Member(
        threading.RLock(),
        Append([]),
        rows,
        SCHEMA,
        ColumnNames(),
        together,
        lambda: together(rows, [Append([])]),
    )


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.001)


def ids(table: Table) -> list[int]:
    found: list[int] = table.read()["id"].to_pylist()
    return sorted(found)


def test_appends_that_wait_are_one_commit_in_their_order() -> None:
    table = holdfast.table(Stores().open(), "t", columns=COLUMNS)
    before = len(table.history())
    times = while_waiting(table, 8, lambda number: table.append([{"id": number}] * number))
    assert ids(table) == sorted(number for number in range(8) for _ in range(number))
    assert len(table.history()) == before + 1
    assert set(times) == {table.latest_time()}


def test_tables_of_one_location_share_their_groups(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    with holdfast.table(url, "t", columns=COLUMNS) as table:
        before = len(table.history())

        def append(number: int) -> int:
            with holdfast.table(url, "t") as own:
                return own.append([{"id": number}])

        assert len(set(while_waiting(table, 6, append))) == 1
        assert ids(table) == list(range(6))
        assert len(table.history()) == before + 1


def test_wrong_rows_are_the_error_of_their_own_thread() -> None:
    table = holdfast.table(Stores().open(), "t", columns=COLUMNS)
    results = in_threads(5, lambda number: table.append([{"id": number if number != 3 else "three"}]))
    assert [type(result) for result in results] == [int, int, int, BadInput, int]
    assert ids(table) == [0, 1, 2, 4]


def test_a_column_that_was_dropped_meanwhile_is_the_error_of_who_gives_it() -> None:
    stores = Stores()
    table = holdfast.table(stores.open(), "t", columns=COLUMNS, key="id")
    other = holdfast.table(stores.open(), "t")
    rows: list[dict[str, object]] = [{"id": number} for number in range(4)]
    rows[2]["note"] = "gone"

    def drop() -> None:
        other.drop_column("note")
        # A row that doesn't fit makes the table read its columns.
        with pytest.raises(BadInput):
            table.upsert([{"id": "wrong"}])

    results = while_waiting(table, 4, lambda number: table.append([rows[number]]), drop)
    assert [type(result) for result in results] == [int, int, BadInput, int]
    assert ids(table) == [0, 1, 3]


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_AFTER, Fault.INDETERMINATE_BEFORE, Fault.DETERMINATE])
def test_each_member_gets_the_error_of_the_store(fault: Fault) -> None:
    stores = Stores()
    holdfast.table(stores.open(), "t", columns=COLUMNS)
    fails = False
    plan = ScriptedPlan(
        dict.fromkeys(range(1000), fault),
        matches=lambda operation: fails and operation.name.startswith("consensus"),
    )
    table = holdfast.table(stores.open(plan), "t")
    table.append([{"id": -1}])
    fails = True
    results = while_waiting(table, 5, lambda number: table.append([{"id": number}]))
    fails = False
    kind = Determinate if fault is Fault.DETERMINATE else Indeterminate
    assert [type(result) for result in results] == [kind] * 5
    assert len(set(map(id, results))) == 5
    assert table.append([{"id": 9}]) == table.latest_time()
    # A group of unknown outcome is there as a whole or not at all.
    found = Counter(ids(table))
    assert set(found.values()) == {1}
    assert found.keys() >= {-1, 9}
    if fault is Fault.DETERMINATE:
        assert found.keys() == {-1, 9}


def test_an_update_may_append_to_its_own_table_while_others_wait() -> None:
    table = holdfast.table(Stores().open(), "t", columns=COLUMNS, key="id")
    table.append([{"id": 0}])
    others: list[threading.Thread] = []

    def function(there: pa.Table) -> pa.Table:
        if not others:
            others.append(threading.Thread(target=table.append, args=([{"id": 1}],)))
            others[0].start()
            until(lambda: bool(table._opened.appends._leader))
            table.append([{"id": 2}])
        return there

    in_threads(1, lambda _: table.update(None, function))
    others[0].join(LONG_S)
    assert ids(table) == [0, 1, 2]


def test_ctrl_c_ends_the_wait_of_the_main_thread_only() -> None:
    table = holdfast.table(Stores().open(), "t", columns=COLUMNS)
    appends, interrupted = table._opened.appends, threading.Event()

    def busy() -> None:
        with table._opened.writing:
            other.start()
            until(lambda: len(appends._waiting) == 2)
            _thread.interrupt_main()
            assert interrupted.wait(LONG_S)

    other = threading.Thread(target=table.append, args=([{"id": 1}],))
    thread = threading.Thread(target=busy)

    thread.start()
    until(lambda: bool(appends._leader))
    with pytest.raises(KeyboardInterrupt):
        table.append([{"id": 2}])
    interrupted.set()
    thread.join(LONG_S)
    other.join(LONG_S)
    assert not appends._waiting
    assert not appends._leader
    table.append([{"id": 3}])
    assert ids(table) == [1, 3]


def test_a_forked_child_opens_its_own_table(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    table = holdfast.table(url, "t", columns=COLUMNS)
    release = threading.Event()

    def busy() -> None:
        with table._opened.writing:
            assert release.wait(LONG_S)

    threads = [threading.Thread(target=busy)]
    threads += [threading.Thread(target=table.append, args=([{"id": number}],)) for number in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(table._opened.appends._waiting) == 3)
    child = os.fork()
    if not child:
        code = 1
        try:
            with pytest.raises(UsedAfterFork):
                table.append([{"id": 7}])
            holdfast.table(url, "t").append([{"id": 8}])
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    release.set()
    for thread in threads:
        thread.join(LONG_S)
    assert ids(table) == [0, 1, 2, 8]
    table.close()


class Killed(BaseException):
    """What ends a thread."""


def test_who_was_led_by_a_killed_thread_does_not_know_and_the_next_ones_go_on() -> None:
    appends, stored = AppendQueue(), []
    killed = threading.Event()

    def together(rows: pa.RecordBatch, _: Sequence[Change]) -> Committed:
        if rows.num_rows > 1 and not killed.is_set():
            killed.set()
            raise Killed
        if not rows.column("id").to_pylist()[0]:
            until(lambda: len(appends._waiting) == 3)
        stored.extend(rows.column("id").to_pylist())
        return Committed(1, (None,))

    ends: list[str] = []

    def work(number: int) -> object:
        try:
            return appends.commit(member(number, together))
        except Killed:
            ends.append("killed")
            return None

    first = threading.Thread(target=work, args=(0,))
    first.start()
    until(lambda: bool(appends._leader))
    results = in_threads(3, lambda number: work(number + 1))
    first.join(LONG_S)
    assert ends == ["killed"]
    assert [type(result) for result in results].count(Indeterminate) == 2
    assert stored == [0]
    appends.commit(member(9, together))
    assert stored == [0, 9]


def test_a_wait_ends_even_if_nobody_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "_LOOK_AGAIN_S", 0.01)
    appends = AppendQueue()
    # Somebody leads, and ends without waking the others.
    gone = member(0, lambda _rows, _changes: Committed(0, (None,)))
    appends._leader[group_commit._LEADS] = gone
    thread = threading.Thread(
        target=appends.commit, args=(member(1, lambda _rows, _changes: Committed(0, (None,))),)
    )
    thread.start()
    until(lambda: len(appends._waiting) == 1)
    del appends._leader[group_commit._LEADS]
    thread.join(LONG_S)
    assert not thread.is_alive()


PLANS = st.lists(
    st.sampled_from(["done", "determinate", "indeterminate before", "indeterminate after"]),
    max_size=12,
)


@settings(deadline=None)
@given(plan=PLANS, wrong=st.sets(st.integers(0, 11), max_size=3))
def test_every_append_is_there_once_or_its_thread_knows(plan: list[str], wrong: set[int]) -> None:
    """Threads append while commits end in all ways. Rows in `wrong` are refused, with those beside them."""
    appends, outcomes, lock = AppendQueue(), list(plan), threading.Lock()
    stored: Counter[int] = Counter()

    def together(rows: pa.RecordBatch, _: Sequence[Change]) -> Committed:
        with lock:
            outcome = outcomes.pop() if outcomes else "done"
        time.sleep(0.0005)
        given = rows.column("id").to_pylist()
        if wrong.intersection(given):
            raise BadInput("a wrong row")
        if outcome == "determinate":
            raise Determinate("the store is gone")
        if outcome == "indeterminate before":
            raise Indeterminate("the store is gone")
        with lock:
            assert not any(stored[number] for number in given), "a row is stored twice"
            stored.update(given)
            total = sum(stored.values())
        if outcome == "indeterminate after":
            raise Indeterminate("the store is gone")
        return Committed(total, (None,))

    results = in_threads(12, lambda number: appends.commit(member(number, together)))
    assert not appends._waiting
    assert not appends._leader
    for number, result in enumerate(results):
        if isinstance(result, Indeterminate):
            continue
        if number in wrong and not isinstance(result, Determinate):
            assert isinstance(result, BadInput)
        assert stored[number] == (not isinstance(result, HoldfastError)), (number, result)
