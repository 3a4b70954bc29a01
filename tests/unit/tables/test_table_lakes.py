"""`Table.export` to Delta and Iceberg tables: the rows as of one time, each once, whoever reads them."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.types import StringType

import holdfast
from holdfast.cli import main
from holdfast.errors import BadInput, HoldfastError
from holdfast.persist import Schema
from holdfast.tables import Exported, Table, delta
from holdfast.tables.iceberg import commits, exports
from unit.collections.stores import Stores

COLUMNS = {
    "id": "int64",
    "small": "uint16?",
    "big": "uint64?",
    "price": "decimal128(9,2)?",
    "at": "timestamp_utc?",
    "local": "timestamp(s,Europe/Paris)?",
    "day": "timestamp(ms)?",
}


@pytest.fixture
def table() -> Table:
    return holdfast.table(Stores().open(), "t", columns=COLUMNS)


def row(id_: int) -> dict[str, Any]:
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    day = dt.datetime(1, 1, 1)  # noqa: DTZ001 - the column has no zone
    times = {"at": noon, "local": noon, "day": day}
    return {"id": id_, "small": 65535, "big": 2**64 - 1, "price": Decimal("1.50"), **times}


class Lake:
    """A table of another format, how it is written, and how it is read."""

    def __init__(self, form: str, folder: Path) -> None:
        self.form = form
        self.folder = folder
        self.target = str(folder / "orders") if form == "delta" else "lake.shop.orders"
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}",
        }

    def export(self, table: Table, as_of: int | None = None) -> Exported:
        extra: Any = {} if self.form == "delta" else {"properties": self.properties}
        return table.export(self.target, as_of, format=self.form, **extra)  # type: ignore[call-overload,no-any-return]

    def read(self) -> list[dict[str, Any]]:
        if self.form == "delta":
            rows = pa.table(DeltaTable(self.target).to_pyarrow_table())
        else:
            rows = load_catalog("lake", **self.properties).load_table("shop.orders").scan().to_arrow()
        return rows.sort_by("id").to_pylist()

    def commits(self) -> int:
        if self.form == "delta":
            return DeltaTable(self.target).version() + 1
        return len(load_catalog("lake", **self.properties).load_table("shop.orders").metadata.snapshots)

    def write_otherwise(self) -> None:
        rows = pa.table([[7]], pa.schema([pa.field("id", pa.int64(), nullable=False)]))
        if self.form == "delta":
            write_deltalake(self.target, rows, mode="append", schema_mode="merge")
        else:
            load_catalog("lake", **self.properties).load_table("shop.orders").append(rows)


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


def ids(lake: Lake) -> list[int]:
    return [each["id"] for each in lake.read()]


def test_each_row_is_there_once_as_of_the_time_and_a_later_export_replaces_all(
    table: Table, lake: Lake
) -> None:
    with pytest.raises(BadInput, match="nothing has been written"):
        lake.export(table)
    first = table.append([{**row(1), "_diff": 2}, {**row(2), "_diff": 1}])
    table.append([{"id": 3}])
    found = lake.export(table, first)
    assert (found.as_of, found.rows) == (first, 3)
    assert lake.read() == [row(1), row(1), row(2)]
    assert lake.export(table, first) == found
    assert lake.commits() == 1
    last = lake.export(table)
    assert ids(lake) == [1, 1, 2, 3]
    assert last.rows == 4
    with pytest.raises(BadInput, match="as of"):
        lake.export(table, first)
    other = holdfast.table(table.client, "other", columns={"id": "int64"})
    other.append([{"id": 9}])
    with pytest.raises(BadInput, match="can't replace"):
        lake.export(other)
    assert ids(lake) == [1, 1, 2, 3]
    lake.write_otherwise()
    table.append([{"id": 4}])
    with pytest.raises(BadInput, match="can't replace"):
        lake.export(table)
    assert ids(lake) == [1, 1, 2, 3, 7]
    assert table._opened.reading._busy == 0


def test_an_evolved_table_and_an_empty_one_replace_earlier_rows(table: Table, lake: Lake) -> None:
    table.append([row(1)])
    lake.export(table)
    schema = Schema.of(key={}, value={**COLUMNS, "more": "string?"})
    table._opened.controller.evolve_collection("t", schema)
    table._opened.renew()
    table.append([{"id": 2, "more": "x"}])
    lake.export(table)
    assert [each["more"] for each in lake.read()] == [None, "x"]
    table.delete(where=[])
    assert lake.export(table).rows == 0
    assert lake.read() == []


def test_an_export_that_dies_after_its_commit_is_found_by_the_next_one(
    table: Table, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = table.append([row(1)])

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> Any:
        raise Killed

    def lost(*args: Any, **kwargs: Any) -> None:
        write_deltalake(*args, **kwargs)
        raise Killed

    # Before the commit: the files are there, and no version names them.
    with monkeypatch.context() as patch:
        patch.setattr("deltalake.write_deltalake", killed)
        patch.setattr(exports, "commit", killed)
        patch.setattr(exports.TableLocation, "discard", lambda _: None)
        with pytest.raises(Killed):
            lake.export(table, time)
    # After the commit: only the result is lost.
    with monkeypatch.context() as patch:
        patch.setattr("deltalake.write_deltalake", lost)
        patch.setattr(exports, "discard_earlier", killed)
        with pytest.raises(Killed):
            lake.export(table, time)
    assert lake.export(table, time).rows == 1
    assert (lake.read(), lake.commits()) == ([row(1)], 1)


def test_of_two_exports_at_once_one_commits(
    table: Table, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = table.append([row(1)])
    lake.export(table, first)
    second = table.append([row(2)])
    third = table.append([row(3)])
    done: list[Exported] = []
    looked = delta._found if lake.form == "delta" else commits.check_replaceable

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        found = looked(*args, **kwargs)
        if not done:
            done.append(Exported("", 0, 0, 0))
            done.append(lake.export(table, third))
        return found

    monkeypatch.setattr(
        *((delta, "_found") if lake.form == "delta" else (commits, "check_replaceable")), meanwhile
    )
    with pytest.raises(BadInput, match="as of"):
        lake.export(table, second)
    assert ids(lake) == [1, 2, 3]


def test_what_delta_has_no_type_for_is_refused_and_nested_values_go_over(tmp_path: Path) -> None:
    client = Stores().open()
    fine = holdfast.table(
        client, "fine", columns={"id": "int64", "tags": "list<struct<a: uint8, b: string?>>?"}
    )
    fine.append([{"id": 1, "tags": [{"a": 255, "b": None}]}])
    fine.export(tmp_path / "fine", format="delta")
    assert DeltaTable(tmp_path / "fine").to_pyarrow_table().to_pylist() == fine.read().to_pylist()
    exact = holdfast.table(client, "exact", columns={"id": "int64", "at": "timestamp(ns)?"})
    exact.append([{"id": 1}])
    for form, extra in (
        ("delta", {}),
        ("iceberg", {"properties": {"type": "sql", "uri": "sqlite://", "warehouse": "/x"}}),
    ):
        with pytest.raises(BadInput, match="no type"):
            exact.export("lake.a.b" if form == "iceberg" else tmp_path / "exact", format=form, **extra)  # type: ignore[call-overload]
    assert not (tmp_path / "exact").exists()
    # Iceberg has times of day, and Delta has none.
    clock = holdfast.table(client, "clock", columns={"id": "int64", "s": "time(s)", "us": "time(us)"})
    clock.append([{"id": 1, "s": dt.time(23, 59, 59), "us": dt.time(1, 2, 3, 4)}])
    iceberg = Lake("iceberg", tmp_path)
    iceberg.export(clock)
    assert iceberg.read() == clock.read().to_pylist()
    with pytest.raises(BadInput, match="no type"):
        clock.export(tmp_path / "exact", format="delta")
    (tmp_path / "file").touch()
    with pytest.raises(HoldfastError, match="can't export"):
        fine.export(tmp_path / "file" / "x", format="delta")
    with pytest.raises(BadInput, match="format must be one of"):
        fine.export(tmp_path / "x", format="csv")  # type: ignore[call-overload]


def test_an_error_of_delta_is_one_line_with_its_cause() -> None:
    # As deltalake 1.6 writes it.
    said = (
        "Kernel error -> Generic S3 error\n          \x1b[31m\u21b3\x1b[0m Error performing GET http://h:1/x\n"
        "             \x1b[31m\u21b3\x1b[0m tcp connect error\n    \x1b[31m\u21b3\x1b[0m Connection refused\n"
    )
    assert str(delta._unusable(OSError(said), "s3://b/x")) == (
        "can't export to the Delta table s3://b/x: Kernel error -> Generic S3 error:"
        " Error performing GET http://h:1/x: tcp connect error: Connection refused"
    )
    assert str(delta._unusable(OSError("no\nmore"), "x")) == "can't export to the Delta table x: no"


def test_the_command_exports_and_duckdb_reads_it(lake: Lake, tmp_path: Path) -> None:
    url = str(tmp_path / "place")
    with holdfast.table(url, "t", columns=COLUMNS) as table:
        table.append([row(1), row(2)])
    extra = (
        []
        if lake.form == "delta"
        else [f"--property={name}={value}" for name, value in lake.properties.items()]
    )
    done = CliRunner().invoke(
        main, ["collection", "export", "t", lake.target, "--url", url, "--format", lake.form, *extra]
    )
    assert done.exit_code == 0, done.output
    assert "has 2 rows of t as of" in done.stderr
    files = [
        str(each) for each in (tmp_path / ("orders" if lake.form == "delta" else "shop")).rglob("*.parquet")
    ]
    assert duckdb.sql(
        "select count(*), max(small) from read_parquet($f)", params={"f": files}
    ).fetchall() == [(2, 65535)]


@pytest.mark.parametrize("target", ["orders", "lake.orders", "lake..orders", ""])
def test_a_target_that_is_no_table_of_a_catalog_is_refused(target: str) -> None:
    table = holdfast.table("memory://targets", "t", columns={"id": "int64"})
    with pytest.raises(BadInput, match="is not a table of an Iceberg catalog") as refused:
        table.export(target, format="iceberg")
    assert refused.value.hint == "write it as catalog.namespace.table, such as lake.shop.orders"


def test_a_renamed_column_is_renamed_in_the_table_and_no_column_of_nulls_is_left(lake: Lake) -> None:
    table = holdfast.table(Stores().open(), "t", columns={"id": "int64", "a": "string?"})
    table.append([{"id": 1, "a": "x"}])
    lake.export(table)
    # Twice, with an export between, and the first name gets a new column.
    for name in ("b", "c"):
        table.rename_column(table.schema.names[1], name)
        if name == "c":
            table.alter(add={"a": "int32?"})
        table.append([{"id": 2, name: "y"}])
        lake.export(table)
    twice = {"id": 2, "c": "y", "a": None}
    assert lake.read() == [{"id": 1, "c": "x", "a": None}, twice, twice]
    table.append([{"id": 3, "a": 5}])
    lake.export(table)
    assert lake.read()[-1] == {"id": 3, "c": None, "a": 5}


def test_a_dropped_column_is_dropped_and_one_with_its_name_is_another_one(lake: Lake) -> None:
    columns = {"id": "int64", "a": "string?", "b": "string?"}
    table = holdfast.table(Stores().open(), "t", columns=columns, key="id")
    table.append([{"id": 1, "a": "x", "b": "y"}])
    lake.export(table)
    before = table.drop_column("a") - 1
    table.append([{"id": 2, "b": "z"}])
    # A time before the drop still has the column.
    lake.export(table, before)
    assert lake.read() == [{"id": 1, "a": "x", "b": "y"}]
    lake.export(table)
    assert lake.read() == [{"id": 1, "b": "y"}, {"id": 2, "b": "z"}]
    # A new column with the name, of another type. One is dropped and added between two exports.
    table.alter(add={"a": "int32?"})
    table.rename_column("b", "c")
    table.append([{"id": 3, "a": 5, "c": "w"}])
    lake.export(table)
    table.drop_column("a")
    table.drop_column("c")
    table.alter(add={"a": "float64?"})
    table.append([{"id": 4, "a": 1.5}])
    lake.export(table)
    assert lake.read() == [{"id": id_, "a": 1.5 if id_ == 4 else None} for id_ in (1, 2, 3, 4)]
    if lake.form == "iceberg":
        found = load_catalog("lake", **lake.properties).load_table("shop.orders")
        first, *_, last = found.metadata.snapshots
        old = found.scan(snapshot_id=first.snapshot_id).to_arrow().to_pylist()
        assert old == [{"id": 1, "a": "x", "b": "y"}]
        fields = {each.schema_id: each for each in found.metadata.schemas}
        ids = [fields[each.schema_id].find_field("a").field_id for each in (first, last)]
        assert len(set(ids)) == 2


def test_a_column_that_others_added_stays(tmp_path: Path) -> None:
    lake = Lake("iceberg", tmp_path)
    table = holdfast.table(Stores().open(), "t", columns={"id": "int64", "a": "string?"}, key="id")
    table.append([{"id": 1, "a": "x"}])
    lake.export(table)
    with load_catalog("lake", **lake.properties).load_table("shop.orders").update_schema() as update:
        update.add_column("theirs", StringType())
    table.drop_column("a")
    table.append([{"id": 2}])
    lake.export(table)
    assert lake.read() == [{"id": 1, "theirs": None}, {"id": 2, "theirs": None}]
