"""`copy_table` and `copy_tables`: history, kills, writers meanwhile, and the check."""

import re
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.collections import CollectionInfo, StorageController
from holdfast.collections.copying import _TableWrites, copy_all, copy_collection
from holdfast.errors import BadInput, CopiesRefused, CorruptBlob, StorageError, UniquenessViolation
from holdfast.persist import PersistClient
from holdfast.persist.upkeep.leases import SEAL_FOR_A_READ
from holdfast.tables import Table
from testbed.faults import Fault, ProcessDeath, ScriptedPlan
from unit.collections.stores import Stores


def history(table: Table, since: int, upper: int) -> list[tuple[int, Any]]:
    """The contents at each time at which they may differ, with the columns of that time."""
    written = table.history()["time"].drop_null().to_pylist()
    times = sorted({since, upper - 1, *written, *(time - 1 for time in written)})
    found = []
    for time in times:
        if since <= time < upper:
            rows = table.counts(time)
            keys = [(name, "ascending") for name in rows.column_names if pa.types.is_integer(rows[name].type)]
            found.append((time, rows.sort_by(keys).to_pylist()))
    return found


def long_life(client: PersistClient) -> Table:
    """A table with a history: changes, a handover, renamed, dropped and added columns, and a since."""
    table = holdfast.table(
        client,
        "orders",
        columns={"id": "int64", "note": "string?", "tags": "list<string>?", "old": "int32?"},
        key="id",
        shards=2,
        comments={"note": "a comment"},
        retain="3d",
    )
    first = table.append({"id": [*range(20)], "note": ["a"] * 20, "old": [7] * 20})
    controller = StorageController(client)
    controller.set_retention_hold("orders", first)
    table.upsert([{"id": 3, "note": None, "tags": ["x", "y"]}, {"id": 99, "note": "new"}])
    table.delete([5])
    table.rename_column("note", "text")
    table.drop_column("old")
    made = controller.renditions.create("orders", shards=3)
    controller.hydrate("orders", made.id)
    controller.renditions.hand_over("orders", made.id)
    table.alter(add={"old": "string?"}, types={})
    table.upsert([{"id": 1, "old": "again"}])
    return table


def test_a_copy_has_the_same_rows_at_all_times_and_the_same_columns() -> None:
    client, other = Stores().open(), Stores().open()
    table = long_life(client)
    copied = holdfast.copy_table(client, "orders", other)
    source, made = (StorageController(each).describe("orders") for each in (client, other))
    assert (made.schema, made.names, made.comments) == (source.schema, source.names, source.comments)
    assert (made.retain_ms, made.shards) == (source.retain_ms, 3)
    frontiers = StorageController(client).frontiers("orders")
    assert StorageController(other).frontiers("orders") == frontiers
    assert (copied.since, copied.upper) == (frontiers.since, frontiers.upper)
    assert frontiers.since > 0
    copy = holdfast.table(other, "orders")
    wanted = history(table, frontiers.since, frontiers.upper)
    assert len({str(rows) for _, rows in wanted}) >= 4
    assert history(copy, frontiers.since, frontiers.upper) == wanted
    assert copied.rows == table.count()
    with pytest.raises(holdfast.AsOfTooEarly):
        copy.read(frontiers.since - 1)
    assert holdfast.copy_table(client, "orders", other).was_there
    copy.upsert([{"id": 1, "text": "later"}])
    back = holdfast.copy_table(other, "orders", client, new_name="back")
    assert back.rows == copy.count()
    assert history(holdfast.table(client, "back"), frontiers.since, frontiers.upper) == wanted


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        (Fault.DEATH_AFTER, 12),
        *(
            pytest.param(fault, 1, marks=pytest.mark.long)
            for fault in (Fault.DEATH_BEFORE, Fault.DEATH_AFTER, Fault.INDETERMINATE_AFTER)
        ),
    ],
)
def test_a_copy_continues_after_a_kill_at_every_write(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, step: int
) -> None:
    monkeypatch.setattr("holdfast.collections.copying._CHUNK_ROWS", 4)
    stores = Stores()
    client = stores.open()
    table = holdfast.table(client, "t", columns={"id": "int64", "x": "int64?"}, key="id")
    first = table.append({"id": [1, 2, 3]})
    StorageController(client).set_retention_hold("t", first)
    for number in range(4):
        table.upsert({"id": [number, number + 1], "x": [number, number]})
    table.append({"id": [*range(100, 120)]})
    table.delete([2])
    frontiers = StorageController(client).frontiers("t")
    wanted = history(table, *(frontiers.since, frontiers.upper))
    for number in range(1, 200, step):
        others = Stores()
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        try:
            target = others.open(plan, inline_max_bytes=0)
            holdfast.copy_table(client, "t", target)
        except (StorageError, ProcessDeath, holdfast.HandleExpired):
            pass
        again = others.open()
        assert [each.name for each in holdfast.list_tables(again)] in ([], ["t.copying"], ["t"])
        holdfast.copy_table(client, "t", again)
        assert StorageController(again).frontiers("t") == frontiers
        assert history(holdfast.table(again, "t"), frontiers.since, frontiers.upper) == wanted
        if plan.seen <= number:
            assert number > 20
            return
    raise AssertionError("the copy never ends")


def test_a_copy_of_a_table_that_is_written_has_the_time_at_which_it_began() -> None:
    stores, others = Stores(), Stores()
    client = stores.open()
    table = holdfast.table(client, "t", columns={"id": "int64"})
    table.append({"id": [*range(10)]})
    began = table.upper
    writes: list[int] = []

    def on_rows(what: str, rows: int) -> None:
        if len(writes) < 5:
            writes.append(table.append([{"id": 100 + len(writes)}]))

    copied = holdfast.copy_table(client, "t", others.open(), on_rows=on_rows)
    assert len(writes) >= 2
    assert (copied.upper, copied.rows) == (began, 10)
    copy = holdfast.table(others.open(), "t")
    assert copy.upper == began
    assert copy.count() == 10


def test_a_location_is_copied_at_one_moment_and_says_what_is_gone() -> None:
    stores, others = Stores(), Stores()
    client = stores.open()
    tables = [
        holdfast.table(client, name, columns={"id": "int64"}, retain="forever") for name in ("a", "b", "c")
    ]
    holdfast.table(client, "empty", columns={"id": "int64"})
    for number in range(3):
        holdfast.write({each: [{"id": number}] for each in tables})
    source = StorageController(client)

    class Killed(Exception):
        pass

    def kill(_: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        copy_all(source, StorageController(others.open()), on_table=kill)
    holdfast.write({each: [{"id": 9}] for each in tables})
    tables[2].close()
    holdfast.drop_table(client, "c", force=True)
    gone: list[str] = []
    copies = holdfast.copy_tables(client, others.open(), on_gone=gone.append)
    assert [(each.name, each.rows) for each in copies] == [("a", 3), ("b", 3), ("empty", 0)]
    assert len(gone) == 1
    assert [each.name for each in holdfast.list_tables(others.open())] == ["a", "b", "empty"]
    holdfast.table(client, "later", columns={"id": "int64"}).append([{"id": 1}])
    again = holdfast.copy_tables(client, others.open())
    assert [(each.name, each.rows, each.was_there) for each in again] == [
        ("a", 4, False),
        ("b", 4, False),
        ("empty", 0, True),
        ("later", 1, False),
    ]
    assert len({each.upper for each in again[:2]}) == 1
    assert all(each.was_there for each in holdfast.copy_tables(client, others.open()))
    with pytest.raises(BadInput, match="is the location itself"):
        holdfast.copy_tables(client, stores.open())


class Killed(Exception):
    """The end of a process."""


def killed(*_: object) -> None:
    raise Killed


def test_what_is_refused_does_not_keep_other_tables_from_being_copied() -> None:
    client, other = Stores().open(), Stores().open()
    tables = {
        name: holdfast.table(client, name, columns={"id": "int64"}, retain="forever")
        for name in ("altered", "damaged", "plain", "taken")
    }
    holdfast.write({each: {"id": [1, 2]} for each in tables.values()})
    holdfast.table(other, "taken", columns={"id": "int64"}).append({"id": [9]})
    append = _TableWrites.append

    def lossy(self: Any, rows: Any, *given: Any) -> None:
        is_damaged = self._name == "damaged.copying"
        append(self, [each.slice(1) for each in rows] if is_damaged else rows, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_TableWrites, "append", lossy)
        with pytest.raises(CopiesRefused) as refused:
            holdfast.copy_tables(client, other)
    found = refused.value
    assert list(found.refused) == ["damaged", "taken"]
    assert re.match(r"damaged\.copying is corrupt: .*; drop it, and copy again", found.refused["damaged"])
    assert re.match("the target has a table 'taken', .*; give the copy another", found.refused["taken"])
    assert found.copied == 2
    assert [each.partition(":")[0] for each in found.__notes__[1:]] == ["damaged", "taken"]
    holdfast.table(other, "altered").append({"id": [7]})
    holdfast.drop_table(other, "damaged.copying", force=True)
    holdfast.write({each: {"id": [3]} for each in tables.values()})
    seen: list[str] = []
    with pytest.raises(CopiesRefused, match="2 of 4 tables could not be copied: altered, taken") as refused:
        holdfast.copy_tables(client, other, on_table=lambda each: seen.append(each.name))
    assert list(refused.value.refused) == ["altered", "taken"]
    assert seen == ["damaged", "plain"]
    # What to do helps, also if the history of the table has moved on.
    holdfast.drop_table(other, "altered", force=True)
    holdfast.drop_table(other, "taken", force=True)
    time = holdfast.write({each: {"id": [4]} for each in tables.values()})
    StorageController(client).set_retention_hold("altered", time)
    copies = holdfast.copy_tables(client, other)
    assert [(each.name, each.rows, each.upper) for each in copies] == [(each, 4, time + 1) for each in tables]
    # The records of earlier runs do not accumulate.
    for _ in range(3):
        holdfast.copy_tables(client, other)
    runs = StorageController(other).jobs(str(client.location_id))
    assert [each.slot for each in runs] == ["5", "6"]


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_whose_uppers_are_gone_takes_new_ones(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = Stores().open(), Stores().open()
    tables = [holdfast.table(client, name, columns={"id": "int64"}, retain="forever") for name in ("a", "b")]
    holdfast.write({each: {"id": [1]} for each in tables})
    if begun:
        start = StorageController.start_job

        def start_or_end(self: StorageController, id_: str, *given: Any, **named: Any) -> Any:
            if id_ != str(client.location_id) and any(each.name == "a" for each in self.list_collections()):
                raise Killed
            return start(self, id_, *given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(StorageController, "start_job", start_or_end)
            with pytest.raises(Killed):
                holdfast.copy_tables(client, other)
        assert [each.name for each in holdfast.list_tables(other)] == ["a", "b.copying"]
    else:
        with pytest.raises(Killed):
            holdfast.copy_tables(client, other, on_table=killed)
    time = holdfast.write({each: {"id": [2]} for each in tables})
    StorageController(client).set_retention_hold("b", time)
    copies = holdfast.copy_tables(client, other)
    assert [(each.name, each.rows, each.upper) for each in copies] == [("a", 2, time + 1), ("b", 2, time + 1)]


def test_an_unfinished_copy_gets_the_upper_of_the_run() -> None:
    client, other = Stores().open(), Stores().open()
    tables = [holdfast.table(client, name, columns={"id": "int64"}, retain="forever") for name in ("a", "b")]
    holdfast.write({each: {"id": [1]} for each in tables})
    with pytest.raises(Killed):
        holdfast.copy_table(client, "b", other, on_rows=killed)
    time = holdfast.write({each: {"id": [2]} for each in tables})
    copies = holdfast.copy_tables(client, other)
    assert [(each.rows, each.upper) for each in copies] == [(2, time + 1)] * 2


def test_marks_do_not_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.collections.copy_marks._MOST_MARKS", 2)
    client, others = Stores().open(), [Stores().open() for _ in range(4)]
    table = holdfast.table(client, "t", columns={"id": "int64"}, retain="forever")
    for number in range(2):
        table.append({"id": [number]})
        for each in others:
            assert holdfast.copy_table(client, "t", each).rows == number + 1
            assert holdfast.copy_table(client, "t", each).was_there
    jobs = StorageController(client).jobs(StorageController(client).describe("t").collection_id)
    assert [each.kind for each in jobs] == ["copied"] * 2


def test_a_copy_that_differs_keeps_its_name_and_says_so() -> None:
    client, other = Stores().open(), Stores().open()
    table = holdfast.table(client, "t", columns={"id": "int64"})
    table.append({"id": [1, 2]})
    table.append({"id": [3]})
    source, target = StorageController(client), StorageController(other)
    append = _TableWrites.append

    def lossy(self: Any, rows: Any, *given: Any) -> None:
        append(self, [each.slice(1) for each in rows], *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_TableWrites, "append", lossy)
        with pytest.raises(CorruptBlob, match=r"t\.copying"):
            copy_collection(source, target, source.describe("t").collection_id, "t")
    assert [each.name for each in holdfast.list_tables(other)] == ["t.copying"]
    with pytest.raises(CorruptBlob):
        holdfast.copy_table(client, "t", other)


def test_names_that_others_have_are_refused() -> None:
    client, other = Stores().open(), Stores().open()
    for each in (client, other):
        holdfast.table(each, "t", columns={"id": "int64"}).append([{"id": 1}])
    with pytest.raises(UniquenessViolation, match="which is no copy of this one"):
        holdfast.copy_table(client, "t", other)
    with pytest.raises(BadInput, match="is the location of table 't' itself"):
        holdfast.copy_table(client, "t", client)
    holdfast.table(other, "u.copying", columns={"id": "int64"}).append([{"id": 1}])
    with pytest.raises(UniquenessViolation, match="which is no copy"):
        holdfast.copy_table(client, "t", other, new_name="u")
    with pytest.raises(holdfast.CollectionNotFound):
        holdfast.copy_table(client, "nope", other)


def test_rows_count_as_often_as_their_diff_says() -> None:
    client, other = Stores().open(), Stores().open()
    table = holdfast.table(client, "t", columns={"x": "float64"})
    table.append([{"x": float("nan"), "_diff": 3}, {"x": -0.0, "_diff": 1}])
    copied = holdfast.copy_table(client, "t", other)
    assert copied.rows == 4
    found: Counter[str] = Counter(map(str, holdfast.table(other, "t").read()["x"].to_pylist()))
    assert found == {"nan": 3, "0.0": 1}


def test_several_runs_of_a_copy_make_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.collections.copying._CHUNK_ROWS", 3)
    stores, others = Stores(), Stores()
    table = holdfast.table(stores.open(), "t", columns={"id": "int64", "x": "int64?"}, key="id")
    for number in range(12):
        table.upsert({"id": [number, number + 1], "x": [number, number]})
    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(holdfast.copy_table, stores.open(), "t", others.open()) for _ in range(3)]
        found = [run.result() for run in runs]
    assert {(each.id, each.rows, each.checksum) for each in found} == {(found[0].id, 13, found[0].checksum)}
    assert [each.name for each in holdfast.list_tables(others.open())] == ["t"]
    assert holdfast.table(others.open(), "t").read().equals(table.read())


def test_an_unfinished_copy_whose_history_is_gone_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.collections.copying._CHUNK_ROWS", 1)
    stores, others = Stores(), Stores()
    client = stores.open()
    with holdfast.table(client, "t", columns={"id": "int64"}) as table:
        times = [table.append([{"id": number}]) for number in range(4)]

    class Killed(Exception):
        pass

    def kill(what: str, rows: int) -> None:
        if rows > 1:
            raise Killed

    with pytest.raises(Killed):
        holdfast.copy_table(client, "t", others.open(), on_rows=kill)
    StorageController(client).set_retention_hold("t", times[3])
    with pytest.raises(BadInput, match="has given up its history before") as refused:
        holdfast.copy_table(client, "t", others.open())
    assert refused.value.hint == "drop it, and copy again: holdfast drop 't.copying' --force"
    assert holdfast.drop_table(others.open(), "t.copying", force=True)
    assert holdfast.copy_table(client, "t", others.open()).rows == 4


def test_a_source_that_gives_up_history_as_a_copy_begins_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = Stores().open(), Stores().open()
    with holdfast.table(client, "t", columns={"id": "int64"}) as table:
        times = [table.append([{"id": number}]) for number in range(4)]
    source = StorageController(client)
    create = StorageController.create_collection

    def with_retention(target: StorageController, *given: Any, **named: Any) -> CollectionInfo:
        source.set_retention_hold("t", times[2])
        return create(target, *given, **named)

    monkeypatch.setattr(StorageController, "create_collection", with_retention)
    copied = holdfast.copy_table(client, "t", other)
    assert copied.rows == 4
    with holdfast.table(other, "t") as copy:
        assert [copy.count(as_of=time) for time in times] == [1, 2, 3, 4]
    # The copy has ended, and its hold with it.
    source.set_retention_hold("t", times[2])
    assert source.frontiers("t").since == times[2]


def test_a_copy_is_brought_up_to_date() -> None:
    client, other = Stores().open(), Stores().open()
    table = long_life(client)
    first = holdfast.copy_table(client, "orders", other)
    table.upsert([{"id": 1, "text": "later"}, {"id": 200}])
    table.alter(add={"new": "float32?"}, types={})
    table.upsert([{"id": 2, "new": 0.5}])
    table.delete([3])
    controller = StorageController(client)
    made = controller.renditions.create("orders", shards=1)
    controller.hydrate("orders", made.id)
    controller.renditions.hand_over("orders", made.id)
    table.upsert([{"id": 4, "new": 1.5}])

    found = holdfast.copy_table(client, "orders", other)
    assert (found.id, found.brought_from, found.was_there) == (first.id, first.upper, False)
    frontiers = controller.frontiers("orders")
    assert (found.since, found.upper) == (first.since, frontiers.upper)
    copy = holdfast.table(other, "orders")
    since = max(first.since, frontiers.since)
    assert history(copy, since, frontiers.upper) == history(table, since, frontiers.upper)
    assert (found.rows, found.rows) == (copy.count(), table.count())
    again = holdfast.copy_table(client, "orders", other)
    assert (again.was_there, again.rows, again.checksum) == (True, found.rows, found.checksum)
    assert [job.slot for job in StorageController(other).jobs(found.id)] == ["1", "updates"]


def test_the_checksum_is_that_of_a_new_copy() -> None:
    client, other, third = (Stores().open() for _ in range(3))
    table = holdfast.table(client, "t", columns={"id": "int64"}, key="id", retain="forever")
    table.append({"id": [1, 2, 3]})
    holdfast.copy_table(client, "t", other)
    table.delete([2])
    table.append({"id": [4]})
    found, new = (holdfast.copy_table(client, "t", target) for target in (other, third))
    assert (found.rows, found.changes, found.checksum) == (new.rows, new.changes, new.checksum)
    assert found.rows == 3


@pytest.mark.parametrize(
    "fault",
    [
        Fault.DEATH_AFTER,
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in (Fault.DEATH_BEFORE, Fault.INDETERMINATE_AFTER)
        ),
    ],
)
def test_bringing_a_copy_up_to_date_continues_after_a_kill(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr("holdfast.collections.copying._CHUNK_ROWS", 4)
    client = Stores().open()
    table = holdfast.table(client, "t", columns={"id": "int64", "x": "int64?"}, key="id", retain="forever")
    others = Stores()
    for number in range(1, 400, 3):
        table.upsert({"id": [number, number + 1], "x": [number, number]})
        if number == 1:
            holdfast.copy_table(client, "t", others.open(inline_max_bytes=0))
        for each in range(3):
            table.upsert({"id": [each, 9], "x": [number, each]})
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        with suppress(StorageError, ProcessDeath, holdfast.HandleExpired):
            holdfast.copy_table(client, "t", others.open(plan, inline_max_bytes=0))
        table.delete([9])
        again = others.open()
        found = holdfast.copy_table(client, "t", again)
        assert (found.upper, found.rows) == (table.upper, table.count())
        if plan.seen <= number:
            assert number > 10
            assert history(holdfast.table(again, "t"), found.since, found.upper) == history(
                table, found.since, found.upper
            )
            return
    raise AssertionError("the copy never ends")


def test_a_copy_that_others_wrote_is_refused() -> None:
    client, other = Stores().open(), Stores().open()
    table = holdfast.table(client, "t", columns={"id": "int64"}, retain="forever")
    table.append({"id": [1]})
    holdfast.copy_table(client, "t", other)
    with holdfast.table(other, "t") as copy:
        copy.append({"id": [7]})
        for _ in range(2):
            with pytest.raises(BadInput, match="was written by others") as refused:
                holdfast.copy_table(client, "t", other)
            assert refused.value.hint.endswith("holdfast drop 't'")
            table.append({"id": [2]})
        assert sorted(copy.read()["id"].to_pylist()) == [1, 7]


def test_a_copy_that_others_write_while_it_is_brought_up_to_date_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.collections.copying._CHUNK_ROWS", 2)
    client, other = Stores().open(), Stores().open()
    table = holdfast.table(client, "t", columns={"id": "int64"}, retain="forever")
    table.append({"id": [1]})
    holdfast.copy_table(client, "t", other)
    with holdfast.table(other, "t") as copy:
        for number in range(2, 20):
            table.append({"id": [number]})
        times = [table.upper]

        def write(what: str, rows: int) -> None:
            if what == "copying" and rows > 6 and len(times) == 1:
                times.append(copy.append({"id": [100]}))

        table.append({"id": [20]})
        with pytest.raises(BadInput, match="was written by others"):
            holdfast.copy_table(client, "t", other, on_rows=write)
        assert copy.upper == times[1] + 1
        assert 100 in copy.read()["id"].to_pylist()


def test_a_copy_that_a_read_has_sealed_says_so() -> None:
    client, other = Stores().open(), Stores().open()
    table = holdfast.table(client, "t", columns={"id": "int64"}, retain="forever")
    first = table.append({"id": [1]})
    holdfast.copy_table(client, "t", other)
    StorageController(other).writer("t", purpose=SEAL_FOR_A_READ).seal(first + 5)
    writer = StorageController(client).writer("t", purpose="test")
    writer.append([{"id": 2}], first + 1, first + 9)
    with pytest.raises(BadInput, match=r"other rows than the table; a read by host .* sealed it") as refused:
        holdfast.copy_table(client, "t", other)
    assert "mode='read'" in refused.value.hint


def test_an_empty_copy_that_others_wrote_is_refused() -> None:
    client, other = Stores().open(), Stores().open()
    table = holdfast.table(client, "t", columns={"id": "int64"})
    holdfast.copy_table(client, "t", other)
    with holdfast.table(other, "t") as copy:
        copy.append({"id": [7]})
        with pytest.raises(
            BadInput, match=r"was written by others.*: it has times before \d+, and the table"
        ):
            holdfast.copy_table(client, "t", other)
        while table.append({"id": [1]}) < copy.upper:
            pass
        with pytest.raises(BadInput, match=r"was written by others.*: its latest times have other rows"):
            holdfast.copy_table(client, "t", other)
        assert copy.read()["id"].to_pylist() == [7]


def test_the_check_counts_each_change_once() -> None:
    client, other = Stores().open(), Stores().open()
    table = holdfast.table(client, "t", columns={"id": "int64"}, retain="forever")
    table.append({"id": [1]})
    holdfast.copy_table(client, "t", other)
    table.append({"id": [*range(10, 30)]})
    seen: list[tuple[str, int]] = []
    holdfast.copy_table(client, "t", other, on_rows=lambda *each: seen.append(each))
    assert seen == [("copying", 20), ("checking", 20), ("checking", 20)]


def test_times_of_a_copy_that_have_the_same_rows_are_no_difference() -> None:
    client, other = Stores().open(), Stores().open()
    table = holdfast.table(client, "t", columns={"id": "int64"}, retain="forever")
    table.append({"id": [1]})
    copied = holdfast.copy_table(client, "t", other)
    with holdfast.table(other, "t") as copy:
        sealed = copy.append([])
    assert sealed >= copied.upper
    # A row at a time that the copy already has would be a difference.
    while table.append([]) <= sealed:
        pass
    table.append({"id": [2]})
    assert holdfast.copy_table(client, "t", other).rows == 2


def test_a_copy_of_a_table_that_nobody_had_written_is_brought_up_to_date() -> None:
    client, other = Stores().open(), Stores().open()
    table = holdfast.table(client, "t", columns={"id": "int64"})
    assert holdfast.copy_table(client, "t", other).upper == 0
    assert holdfast.copy_table(client, "t", other).was_there
    first = table.append({"id": [1]})
    table.append({"id": [2]})
    StorageController(client).set_retention_hold("t", first)
    found = holdfast.copy_table(client, "t", other)
    assert (found.rows, found.since, found.brought_from) == (2, first, 0)
    table.append({"id": [3]})
    assert holdfast.copy_table(client, "t", other).rows == 3
    assert sorted(holdfast.table(other, "t").read()["id"].to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("change", ["renamed", "given up"])
def test_a_copy_that_can_not_follow_says_what_to_do(change: str) -> None:
    client, other = Stores().open(), Stores().open()
    with holdfast.table(client, "t", columns={"id": "int64", "x": "int64?"}) as table:
        table.append({"id": [1]})
        holdfast.copy_table(client, "t", other)
        last = [table.append({"id": [2]}), table.append({"id": [3]})][-1]
        if change == "renamed":
            table.rename_column("x", "y")
    if change == "given up":
        StorageController(client).set_retention_hold("t", last)
    with pytest.raises(BadInput, match="can't be brought up to date") as refused:
        holdfast.copy_table(client, "t", other)
    assert "holdfast drop 't'" in refused.value.hint
    assert holdfast.table(other, "t").count() == 1


def returned(folder: Path, saved: Path) -> None:
    """Return a location to the state that was saved, as a restored disk does."""
    shutil.rmtree(folder)
    shutil.copytree(saved, folder)


def test_a_source_that_was_returned_to_an_earlier_state_is_refused(tmp_path: Path) -> None:
    source, saved, target = (tmp_path / name for name in ("source", "saved", "target"))

    def append(*ids: int) -> None:
        with holdfast.table(source, "t", columns={"id": "int64"}, key="id") as table:
            table.append({"id": [*ids]})

    append(1)
    shutil.copytree(source, saved)
    append(2)
    holdfast.copy_table(source, "t", target)
    append(3)
    # The source has what the copy has: only what is new is read.
    assert holdfast.copy_table(source, "t", target).rows == 3
    returned(source, saved)
    with pytest.raises(BadInput, match="the table has another history than the copy 't' before"):
        holdfast.copy_table(source, "t", target)
    append(4)
    append(5)
    for _ in range(2):
        with pytest.raises(BadInput, match="the table has another history than the copy 't' before") as found:
            holdfast.copy_table(source, "t", target)
        assert "give a new copy another name" in found.value.hint
    with holdfast.table(target, "t", mode="read") as copy:
        assert sorted(copy.read()["id"].to_pylist()) == [1, 2, 3]


def test_a_copy_of_a_source_without_its_mark_is_compared_in_full(tmp_path: Path) -> None:
    """A client that only reads can't leave a mark."""
    source, target = tmp_path / "source", tmp_path / "target"
    with holdfast.table(source, "t", columns={"id": "int64"}, key="id") as table:
        table.append({"id": [1]})
        with PersistClient.open(source.as_uri(), mode="read") as client:
            holdfast.copy_table(client, "t", target)
            table.append({"id": [2]})
            assert holdfast.copy_table(client, "t", target).rows == 2
        assert holdfast.copy_table(source, "t", target).was_there
