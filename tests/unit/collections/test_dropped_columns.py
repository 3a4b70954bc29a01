"""Dropped columns: earlier times still have them, and a model says what every read returns."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.cli import main
from holdfast.collections import (
    CollectionSpec,
    RestoreSource,
    StorageController,
    read_collection_part,
)
from holdfast.collections.record.column_names import ColumnNames
from holdfast.errors import BadInput, CodecMismatch
from holdfast.persist import PersistClient, Schema
from holdfast.spark import planned_write
from holdfast.spark import scan as spark_scan
from holdfast.spark.options import ReadOptions
from holdfast.spark.place import Place
from holdfast.spark.write_options import WriteOptions
from holdfast.tables import Table
from unit.collections.stores import Stores

COLUMNS = {"id": "int64", "a": "string?", "b": "list<int32>", "c": "int32?"}


@pytest.fixture
def client() -> Iterator[PersistClient]:
    with Stores().open(inline_max_bytes=0, audit_pushdown=True) as opened:
        yield opened


@pytest.fixture
def table(client: PersistClient) -> Table:
    made = holdfast.table(client, "t", columns=COLUMNS, key="id", shards=2, comments={"b": "gone soon"})
    made.append([{"id": i, "a": f"a{i}", "b": [i], "c": i % 2} for i in range(4)])
    return made


def values(rows: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in rows.to_pylist()), key=str)


def add(table: Table, name: str, type_: str) -> None:
    controller = StorageController(table.client)
    schema = controller.describe(table.name).schema
    value: dict[str, Any] = {each.name: each for each in schema.value}
    wider = Schema.of({each.name: each for each in schema.key}, {**value, name: type_})
    controller.evolve_collection(table.name, wider)


def test_no_column_takes_the_name_that_stands_for_a_dropped_one(table: Table, client: PersistClient) -> None:
    name = ColumnNames().with_drop(table._opened.info.schema, "b", 5).with_hidden().shown("b")
    with pytest.raises(BadInput, match="null character"):
        table.rename_column("a", name)
    with pytest.raises(BadInput, match="null character"):
        add(table, name, "string?")
    with pytest.raises(BadInput, match="null character"):
        holdfast.table(client, "other", columns={"id": "int64", name: "string"}, key="id")


def test_only_earlier_times_have_the_column(table: Table, client: PersistClient) -> None:
    first = table.latest_time()
    dropped = table.drop_column("b")
    assert dropped == table.latest_time() > first
    assert table.read().schema.names == table.schema.names == ["id", "a", "c"]
    assert values(table.read(first), "id", "b")[3] == (3, [3])
    assert table.count([("id", ">", 1)]) == 2
    assert table.count(pc.field("b").is_valid(), first) == 4
    assert table.scan(["b"], as_of=first).read_all().num_rows == 4
    with pytest.raises(BadInput, match="'b'"):
        table.read(columns=["b"])
    assert table.comments == {}
    table.upsert([{"id": 0, "a": "new"}])
    assert values(table.diff(first), "id", "a", "_diff") == [(0, "a0", -1), (0, "new", 1)]
    with StorageController(client).reader("t", purpose="test") as reader:
        for time, names in ((first, ["id", "a", "b", "c", "_diff"]), (dropped, ["id", "a", "c", "_diff"])):
            for part in pickle.loads(pickle.dumps(reader.snapshot_parts(time, 2))):
                for batch in read_collection_part(client, part):
                    assert batch.schema.names == names
        assert {name for batch in reader.changes(first, dropped) for name in batch.schema.names} == set()


def test_rows_that_look_equal_are_not_summed(client: PersistClient) -> None:
    keyless = holdfast.table(client, "k", columns={"v": "string"})
    add(keyless, "w", "int64?")
    keyless.append([{"v": "x", "w": 1}, {"v": "x", "w": 2}, {"v": "y"}])
    keyless.drop_column("w")
    assert values(keyless.counts(), "v", "_diff") == [("x", 1), ("x", 1), ("y", 1)]
    assert keyless.count() == 3
    with pytest.raises(BadInput, match="can't be removed by their values"):
        keyless.append([{"v": "x", "_diff": -1}])
    keyless.delete(where=[("v", "=", "x")])
    assert values(keyless.read(), "v") == [("y",)]


def test_all_changes_remove_the_hidden_values_of_a_row(table: Table) -> None:
    table.drop_column("c")
    table.drop_column("b")
    table.upsert([{"id": 0, "a": "upserted"}])
    table.merge([{"id": 1, "a": "merged"}])
    table.update([2], lambda rows: rows.set_column(1, "a", pa.array(["made"])))
    table.update(where=[("id", "=", 3)], set={"a": pc.field("a")})
    expected = [(0, "upserted", 1), (1, "merged", 1), (2, "made", 1), (3, "a3", 1)]
    assert values(table.counts(), "id", "a", "_diff") == expected
    table.delete(where=pc.field("a") == "merged")
    table.delete([0, 2, 3])
    assert table.counts().num_rows == 0


def test_a_place_stands_for_a_column_that_is_shown(table: Table) -> None:
    wide = holdfast.table(table.client, "w", columns={"id": "int64", "b": "int64", "c": "int64"}, key="id")
    wide.append([{"id": 1, "b": 7, "c": 9}, {"id": 2, "b": 9, "c": 7}])
    wide.drop_column("b")
    chosen = pc.field(1) == 9
    assert values(wide.scan(where=chosen).read_all(), "id") == [(1,)]
    wide.update(where=chosen, set={"c": pc.field(1) + 1})
    assert values(wide.read(), "id", "c") == [(1, 10), (2, 7)]
    wide.delete(where=pc.field(1) == 7)
    assert values(wide.read(), "id", "c") == [(1, 10)]


def test_a_column_that_came_and_went_unseen() -> None:
    stores = Stores()
    with stores.open() as one, stores.open() as two:
        table = holdfast.table(one, "t", columns={"id": "int64", "a": "string"}, key="id")
        stale = holdfast.table(two, "t")
        stale.append([{"id": 1, "a": "x"}, {"id": 2, "a": "y"}])
        add(table, "d", "int32?")
        table.upsert([{"id": 1, "a": "x", "d": 5}, {"id": 2, "a": "y", "d": 6}])
        table.drop_column("d")
        with pytest.raises(BadInput, match="can't be removed by their values"):
            stale.append([{"id": 1, "a": "x", "_diff": -1}])
        assert values(table.counts(), "id", "a", "_diff") == [(1, "x", 1), (2, "y", 1)]
        add(table, "e", "int32?")
        table.upsert([{"id": 1, "a": "x", "e": 5}])
        table.drop_column("e")
        stale.upsert([{"id": 1, "a": "new"}])
        assert values(table.counts(), "id", "a", "_diff") == [(1, "new", 1), (2, "y", 1)]


def test_a_new_column_with_the_name_is_another_column(table: Table) -> None:
    first = table.latest_time()
    table.drop_column("b")
    add(table, "b", "string?")
    table.upsert([{"id": 1, "b": "text"}])
    assert table.read(first).schema.field("b").type != pa.string()
    assert values(table.scan(["b"], [("b", "=", "text")]).read_all(), "b") == [("text",)]
    second = table.latest_time()
    table.drop_column("b")
    assert "b" not in table.schema.names
    assert values(table.read(second), "b") == [("text",), (None,), (None,), (None,)]
    assert values(table.read(first), "b")[0] == ([0],)
    with pytest.raises(BadInput, match="earlier times still have it"):
        table.rename_column("a", "b")


def test_what_can_not_be_dropped(table: Table, client: PersistClient) -> None:
    upper = table.upper
    for name, told in (("id", "key column 'id' can't be dropped"), ("x", "has no column 'x'")):
        with pytest.raises(BadInput, match=told):
            table.drop_column(name)
    assert table.upper == upper
    keyless = holdfast.table(client, "k", columns={"v": "string", "w": "int64"}, shards=2)
    keyless.append([{"v": f"v{i}", "w": i} for i in range(9)])
    with pytest.raises(BadInput, match="r1 chooses the shard of a row by it") as refused:
        keyless.drop_column("w")
    assert "holdfast collection handover k --shards 2 --hash COLUMN" in str(refused.value.hint)
    assert not StorageController(client).describe("k").schema.value[-1].nullable
    controller = StorageController(client)
    made = controller.renditions.create("k", shards=2, hash_columns=("v",))
    controller.hydrate("k", made.id)
    controller.renditions.hand_over("k", made.id)
    keyless.drop_column("w")
    keyless.append([{"v": "new"}])
    assert keyless.count() == 10
    controller.create_collection(
        CollectionSpec("f", "f", Schema.of({"k": "int64"}, {"v": "string?"}), source_fed=True)
    )
    with pytest.raises(BadInput, match="a source feeds"):
        controller.drop_column("f", "v")


@pytest.mark.parametrize("used", [False, True])
def test_other_processes_must_write_without_it(used: bool) -> None:
    stores = Stores()
    with stores.open() as one, stores.open() as two:
        table = holdfast.table(one, "t", columns=COLUMNS, key="id")
        stale = holdfast.table(two, "t")
        writer = StorageController(two).writer("t", purpose="test")
        if used:
            stale.append([{"id": 1, "b": [1]}])
        table.drop_column("b")
        with pytest.raises(BadInput, match="'b'") as refused:
            stale.append([{"id": 2, "b": [2]}])
        assert refused.value.hint == "column 'b' was dropped"
        with pytest.raises(CodecMismatch, match="column 'b' of collection t was dropped"):
            writer.append([{"id": 2, "b": [2]}], 5, 6)
        stale.upsert([{"id": 2, "a": "x"}])
        with pytest.raises(BadInput, match="table t: column 'b' was dropped"):
            holdfast.table(two, "t", columns=COLUMNS, key="id")
        assert values(table.read(), "id", "a")[-1] == (2, "x")


def test_copies_restores_and_sql(tmp_path: Path) -> None:
    with holdfast.table(tmp_path / "lake", "t", columns=COLUMNS, key="id") as table:
        first = table.append([{"id": i, "a": f"a{i}", "b": [i], "c": i} for i in range(3)])
        table.export(tmp_path / "whole")
        table.drop_column("b")
        table.drop_column("c")
        controller = StorageController(table.client)
        made = controller.renditions.create("t", shards=2)
        controller.hydrate("t", made.id)
        controller.renditions.hand_over("t", made.id)
        assert values(table.read(first), "b") == [([0],), ([1],), ([2],)]
        table.upsert([{"id": 0, "a": "after"}])
        before = values(table.counts(), "id", "a", "_diff")
        assert before == [(0, "after", 1), (1, "a1", 1), (2, "a2", 1)]
        table.export(tmp_path / "snapshot")
        table.delete(where=[])
        with pytest.raises(BadInput, match="does not fit"):
            controller.restore_collection("t", RestoreSource.open(tmp_path / "whole"))
        controller.restore_collection("t", RestoreSource.open(tmp_path / "snapshot"))
        assert values(table.counts(), "id", "a", "_diff") == before
        url = tmp_path / "lake"
        assert holdfast.sql(url, "select * from t where id = 0").read().to_pylist() == [
            {"id": 0, "a": "after"}
        ]
        then = holdfast.sql(url, f"select c from as_of('t', {first}) where c = 2").read()
        assert then.to_pylist() == [{"c": 2}]


def test_on_the_command_line(tmp_path: Path) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["collection", *arguments, "--url", tmp_path.as_uri()])
        assert result.exit_code == code, result.output
        return result.output

    with holdfast.table(tmp_path, "t", columns=COLUMNS, key="id") as table:
        first = table.append([{"id": 1, "a": "x", "b": [1], "c": 5}])
    assert "t has no column c from " in run("drop-column", "t", "c")
    assert run("read", "t", "--format", "csv", "--columns", "id,a") == '"id","a"\n1,"x"\n'
    assert run("read", "t", "--format", "csv", "--columns", "c", "--as-of", str(first)) == '"c"\n5\n'
    assert "key column" in run("drop-column", "t", "id", code=2)


@dataclass
class Named:
    """A column of the model: its current or last name, and the first time at which it is gone."""

    id: int
    name: str
    dropped: int | None = None


class Model:
    """A table in plain Python: all columns that ever were, and the rows after each write."""

    def __init__(self) -> None:
        self.columns = [Named(0, "a"), Named(1, "b")]
        self.rows: dict[int, dict[int, int | None]] = {}
        self.written: list[tuple[int, dict[int, dict[int, int | None]]]] = []

    def shown(self) -> dict[str, int]:
        return {each.name: each.id for each in self.columns if each.dropped is None}

    def write(self, time: int, key: int, given: dict[str, int | None]) -> None:
        names = self.shown()
        self.rows = {**self.rows, key: {names[name]: value for name, value in given.items()}}
        self.written.append((time, self.rows))

    def delete(self, time: int, key: int) -> None:
        self.rows = {each: row for each, row in self.rows.items() if each != key}
        self.written.append((time, self.rows))

    def at(self, time: int) -> list[dict[str, int | None]]:
        columns: dict[str, int] = {}
        later = [each for each in self.columns if each.dropped is not None and each.dropped > time]
        for each in sorted(later, key=lambda each: each.dropped or 0):
            columns.setdefault(each.name, each.id)
        for name, id_ in self.shown().items():
            columns.setdefault(name, id_)
        rows = next((rows for at, rows in reversed(self.written) if at <= time), {})
        return [
            {"id": key, **{name: row.get(id_) for name, id_ in columns.items()}} for key, row in rows.items()
        ]


OPERATIONS = st.tuples(
    st.sampled_from(
        ["write", "write", "write", "delete", "rename", "drop", "add", "handover", "other process"]
    ),
    st.integers(0, 3),
    st.integers(0, 3),
    st.lists(st.none() | st.integers(-3, 3), min_size=4, max_size=4),
)


def unordered(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted((sorted(row.items()) for row in rows), key=str)


SEQUENCES = st.lists(OPERATIONS, min_size=6, max_size=14)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(SEQUENCES, st.integers(1, 2))
def test_a_sequence_of_changes_reads_as_in_a_model(operations: list[Any], shards: int) -> None:
    check_against_model(operations, shards)


@pytest.mark.long
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(SEQUENCES, st.integers(1, 2))
def test_many_sequences_of_changes_read_as_in_a_model(operations: list[Any], shards: int) -> None:
    check_against_model(operations, shards)


def check_against_model(operations: list[Any], shards: int) -> None:
    stores, model = Stores(), Model()
    with stores.open(inline_max_bytes=0, audit_pushdown=True) as client, stores.open() as other:
        columns = {"id": "int64", "a": "int32?", "b": "int32?"}
        mine = table = holdfast.table(client, "t", columns=columns, key="id", shards=shards)
        theirs = holdfast.table(other, "t")
        controller = StorageController(client)
        for what, key, number, drawn in operations:
            names = list(model.shown())
            name, free = (names or ["a"])[number % max(1, len(names))], "abcd"[key]
            match what:
                case "write":
                    given = dict(zip(names, drawn, strict=False))
                    model.write(table.upsert([{"id": key, **given}]), key, given)
                case "delete":
                    model.delete(table.delete([key]), key)
                case "rename" if names:
                    # A name of a column that earlier times still have is refused, and so is one in use.
                    if free != name and any(
                        each.name == free and each.dropped != 0 for each in model.columns
                    ):
                        with pytest.raises(BadInput):
                            table.rename_column(name, free)
                    else:
                        table.rename_column(name, free)
                        next(each for each in model.columns if each.id == model.shown()[name]).name = free
                case "drop" if names:
                    dropped = table.drop_column(name)
                    next(each for each in model.columns if each.id == model.shown()[name]).dropped = dropped
                case "add" if free not in names:
                    add(table, free, "int32?")
                    model.columns.append(Named(len(model.columns), free))
                case "handover":
                    made = controller.renditions.create("t", shards=1 + number % 2)
                    controller.hydrate("t", made.id)
                    controller.renditions.hand_over("t", made.id)
                case "other process":
                    table = theirs if table is mine else mine
        times = [time for time, _ in model.written] + [each.dropped for each in model.columns if each.dropped]
        # Before the first of them nothing was written.
        for time in sorted(
            {time - before for time in times for before in (0, 1)} - {min(times, default=0) - 1}
        ):
            expected = model.at(time)
            for each in (mine, theirs):
                assert unordered(each.read(time).to_pylist()) == unordered(expected)
            for name in {name for row in expected for name in row}:
                wanted = sum(row[name] == 1 for row in expected)
                assert mine.count([(name, "=", 1)], time) == wanted
        if model.written:
            assert {*mine.schema.names} == {"id", *model.shown()}


def test_a_write_and_a_scan_of_spark_use_the_names(tmp_path: Path) -> None:
    url = (tmp_path / "lake").as_uri()
    options = WriteOptions(place=Place(url), collection="t")
    with holdfast.table(url, "t", columns=COLUMNS | {"b": "int32?"}, key="id", shards=2) as table:
        first = table.append([{"id": 0, "a": "a0", "b": 7, "c": 8}])
        table.rename_column("a", "free")
        table.rename_column("b", "a")
        table.rename_column("free", "b")
        table.drop_column("c")

        def write(rows: dict[str, list[Any]], meanwhile: Any = None, *, replaces: bool = False) -> None:
            planned = planned_write.plan(options, lambda _name, _schema: None, replaces=replaces)
            uploads = planned_write.upload(pickle.loads(pickle.dumps(planned)), [pa.record_batch(rows)])
            if meanwhile is not None:
                meanwhile()
            planned_write.commit(planned, [uploads])

        write({"id": [1], "b": ["b1"], "a": [1]}, lambda: table.append([{"id": 2}]))
        assert values(table.read(), "id", "a", "b") == [(0, 7, "a0"), (1, 1, "b1"), (2, None, None)]
        write({"id": [3], "b": ["b3"]}, replaces=True)
        assert values(table.counts(), "id", "a", "b", "_diff") == [(3, None, "b3", 1)]
        with pytest.raises(BadInput, match="were renamed or dropped during the write"):
            write({"id": [4], "a": [4]}, lambda: table.drop_column("a"))
        assert table.count() == 1
        for as_of, names in ((first, ["id", "b", "a", "c", "_diff"]), (None, ["id", "b", "_diff"])):
            scan = spark_scan.find(ReadOptions(url=url, collection="t", as_of=as_of))
            assert [*scan.schema.arrow_diff.names] == names
            for task in spark_scan.plan(scan):
                assert all(batch.schema.names == names for batch in spark_scan.read(task))


def test_a_table_gets_columns_and_wider_types() -> None:
    table = holdfast.table(Stores().open(), "t", columns={"id": "int64", "n": "int32?"}, key="id")
    other = holdfast.table(table.client, "t")
    table.append([{"id": 1, "n": 1}])
    table.alter(add={"note": "string?"}, types={"n": "int64?"})
    table.append([{"id": 2, "n": 2**40, "note": "x"}])
    assert other.read().sort_by("id").to_pylist() == [
        {"id": 1, "n": 1, "note": None},
        {"id": 2, "n": 2**40, "note": "x"},
    ]
    other.append([{"id": 3}])
    for add, types, message in (
        ({"note": "string?"}, {}, "t already has a column 'note'"),
        ({"more": "string"}, {}, "column 'more' must be nullable"),
        ({}, {"none": "int64"}, "t has no column 'none'"),
        ({}, {}, "nothing to alter"),
    ):
        with pytest.raises(BadInput, match=message):
            table.alter(add=add, types=types)
    with pytest.raises(CodecMismatch):
        table.alter(types={"n": "string?"})
    assert table.schema.names == ["id", "n", "note"]
