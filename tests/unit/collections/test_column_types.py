"""Columns whose values are stored in another type than people see: every way in and out of a table."""

import datetime as dt
import json
import math
import uuid
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast._pb import controller_pb2 as pb
from holdfast.cli import main
from holdfast.collections import CollectionSpec
from holdfast.collections.record.codec import decode, encode_key, encode_value
from holdfast.collections.snapshots.manifest import MANIFEST_NAME, file_schema, verify_snapshot
from holdfast.errors import BadInput, VersionTooNew
from holdfast.persist import Schema
from holdfast.persist.rows.canonical import prepare_updates
from holdfast.persist.rows.stored import logical_rows
from holdfast.tables import Table
from unit.collections.snapshots import snapshot
from unit.persist.rows.strategies import batches, contents, schemas

TIMES = pa.schema(
    [
        pa.field("id", pa.timestamp("s", "Europe/Paris"), nullable=False),
        ("ms", pa.timestamp("ms")),
        ("ns", pa.timestamp("ns")),
        ("there", pa.timestamp("ns", "America/New_York")),
        ("offset", pa.timestamp("us", "+02:00")),
        ("t_s", pa.time32("s")),
        ("t_ms", pa.time32("ms")),
        ("t_us", pa.time64("us")),
        ("t_ns", pa.time64("ns")),
    ]
)
PLAIN = dt.datetime.fromisoformat("2026-01-01")
COUNTS = [-7, 86_399, 0]
ROWS = pa.table(
    [
        pa.array([1_700_000_000, -5, 7], pa.int64()).cast(pa.timestamp("s", "UTC")),
        *(pa.array(COUNTS, pa.int64()).cast(each.type) for each in list(TIMES)[1:5]),
        *(pa.array([0, None, 86_399], each.type) for each in list(TIMES)[5:]),
    ],
    TIMES.names,
)


def made(folder: Path, rows: object = None, columns: pa.Schema = TIMES) -> Table:
    table = holdfast.table(folder / "location", "events", columns=columns, key=[columns.names[0]])
    if rows is not None:
        table.append(rows)
    return table


def ordered(rows: pa.Table) -> pa.Table:
    return rows.select(TIMES.names).sort_by("id").cast(TIMES)


@pytest.mark.parametrize(
    "form",
    [lambda rows: rows, pl.from_arrow, lambda rows: rows.to_batches()[0]],
    ids=["arrow", "polars", "batch"],
)
def test_moments_and_times_of_day_come_back_as_they_were(tmp_path: Path, form: Any) -> None:
    with made(tmp_path, form(ROWS)) as table:
        assert table.schema == TIMES
        assert table.read().schema == TIMES
        assert ordered(table.read()) == ordered(ROWS)
        assert ordered(table.scan().read_all()) == ordered(ROWS)
        assert "timestamp(s,Europe/Paris)" in repr(table)
        table._repr_html_()


def test_python_values_must_fit_the_unit(tmp_path: Path) -> None:
    paris = dt.datetime(2026, 3, 1, 12, tzinfo=ZoneInfo("Europe/Paris"))
    with made(tmp_path) as table:
        table.append({"id": [paris], "t_us": [dt.time(1, 2, 3, 4)], "ns": [PLAIN.replace(microsecond=7)]})
        (row,) = table.read().select(["id", "t_us"]).to_pylist()
        assert row == {"id": paris, "t_us": dt.time(1, 2, 3, 4)}
        for name, value in [
            ("id", paris.replace(microsecond=1)),
            ("id", paris.replace(tzinfo=None)),
            ("ms", PLAIN.replace(microsecond=1)),
            ("ns", PLAIN.replace(year=2900)),
            ("t_s", dt.time(1, 2, 3, 4)),
            ("t_us", dt.time(1, tzinfo=dt.UTC)),
            ("t_us", "01:02:03"),
            ("t_us", pa.scalar(86_400_000_000, pa.time64("us"))),
        ]:
            with pytest.raises(BadInput, match=f"column '{name}'"):
                table.append([{"id": paris, name: value}])
        assert table.count() == 1


def test_conditions_compare_moments_to_the_last_digit(tmp_path: Path) -> None:
    with made(tmp_path, ROWS) as table:

        def chosen(*where: tuple[str, str, Any]) -> list[int]:
            found = table.scan(columns=["id"], where=list(where)).read_all()["id"]
            return sorted(found.cast(pa.int64()).to_pylist())

        assert chosen(("ns", "<", "1970-01-01T00:00:00.000086399")) == [7, 1_700_000_000]
        assert chosen(("ns", "=", "1970-01-01T00:00:00.000086399")) == [-5]
        assert chosen(("ms", ">", "1970-01-01T00:01:26.3989")) == [-5]
        assert chosen(("ms", "=", "1970-01-01T00:01:26.3989")) == []
        assert chosen(("ns", "<", "2900-01-01")) == [-5, 7, 1_700_000_000]
        assert chosen(("ns", ">", "1600-01-01")) == [-5, 7, 1_700_000_000]
        # Without a zone, a moment is in the zone of its column.
        assert chosen(("id", "<=", "1970-01-01T01:00:07")) == [-5, 7]
        assert chosen(("id", "=", dt.datetime.fromtimestamp(7, dt.UTC))) == [7]
        assert chosen(("t_ns", "=", "00:00:00.000086399")) == [7]
        assert chosen(("t_s", "in", [dt.time(0), dt.time(1)])) == [1_700_000_000]
        seconds = pa.scalar(7, pa.timestamp("s", "UTC"))
        assert table.count(pc.field("id") == seconds) == 1
        assert table.count(pc.field("t_s") > pa.scalar(5, pa.time32("s"))) == 1


def test_changes_show_the_types_of_the_columns(tmp_path: Path) -> None:
    with made(tmp_path, ROWS) as table:
        first = table.latest_time()
        last = table.upsert(ROWS.slice(0, 1).set_column(1, "ms", pa.array([5], pa.timestamp("ms"))))
        changes = table.diff(first)
        assert changes.drop_columns("_diff").schema == TIMES
        assert sorted(changes["_diff"].to_pylist()) == [-1, 1]
        with table.tail(first) as tail:
            found = tail.next(5)
            assert found.select(TIMES.names).schema == TIMES
            assert set(found["_time"].to_pylist()) == {last}
        table.update(
            None, lambda rows: rows.set_column(2, "ns", rows["ns"]) if rows.schema == TIMES else 1 / 0
        )
        table.update(where=[("t_s", "is", None)], set={"t_s": dt.time(1)})
        assert sorted(table.read()["t_s"].to_pylist()) == [dt.time(0), dt.time(1), dt.time(23, 59, 59)]


def run(folder: Path, *arguments: str) -> Result:
    found = CliRunner().invoke(main, [*arguments, "--url", str(folder / "location")])
    assert found.exit_code == 0, found.output
    return found


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "arrow"])
def test_files_keep_every_digit(tmp_path: Path, form: str) -> None:
    with made(tmp_path, ROWS) as table:
        file = tmp_path / f"rows.{form}"
        run(tmp_path, "read", "events", "--output", str(file))
        table.delete(where=[])
        run(tmp_path, "write", "events", str(file))
        assert ordered(table.read()) == ordered(ROWS)


def test_lines_show_nanoseconds(tmp_path: Path) -> None:
    with made(tmp_path, ROWS.slice(1, 1)):
        (line,) = run(tmp_path, "read", "events", "--format", "json").stdout.splitlines()
        row = json.loads(line)
        assert row["id"] == "1970-01-01T00:59:55+01:00"
        assert (row["ns"], row["t_s"]) == ("1970-01-01T00:00:00.000086399", None)
        assert row["there"] == "1969-12-31T19:00:00.000086399-05:00"
        assert "00:00:00.000086399" in run(tmp_path, "read", "events").stdout


def test_lines_that_are_too_fine_are_refused(tmp_path: Path) -> None:
    with made(tmp_path):
        file = tmp_path / "rows.json"
        for text in ('{"id": "1970-01-01T00:00:00.5Z"}', '{"id": "1970-01-01"}'):
            file.write_text(text)
            found = CliRunner().invoke(
                main, ["write", "events", str(file), "--url", str(tmp_path / "location")]
            )
            assert (found.exit_code, "column 'id'" in found.stderr) == (2, True)


def test_a_snapshot_keeps_them(tmp_path: Path) -> None:
    schema = Schema.from_arrow(TIMES, ["id"])
    folder = tmp_path / "kept"
    snapshot(folder, [], schema)
    assert verify_snapshot(folder).schema == schema
    assert file_schema(schema).field("id").type == pa.timestamp("ms", "Europe/Paris")


def test_a_zone_must_be_known(tmp_path: Path) -> None:
    for zone in ("Europe/Atlantis", "+25:00", "a b"):
        with pytest.raises(BadInput, match=r"column 'id'.*zone|unknown column type"):
            made(tmp_path, columns=pa.schema([pa.field("id", pa.timestamp("s", zone))]))


def test_a_source_can_not_fill_them() -> None:
    with pytest.raises(BadInput, match=r"column 'at' is time\(ns\), which a source can't fill"):
        CollectionSpec("c1", "fed", Schema.of({"id": "int64"}, {"at": "time(ns)"}), source_fed=True)


NESTED = {
    "id": "int64",
    "tags": "list<string?>?",
    "place": 'struct<x: float64, "last seen": timestamp(ns)?, parts: list<binary>?>?',
    "counts": "map<string, decimal128(9,2)?>?",
    "pairs": "map<int8, time(s)>?",
}
CHAINS: list[dict[str, Any]] = [
    {
        "id": 1,
        "tags": ["a", None, ""],
        "place": {"x": math.nan, "last seen": PLAIN, "parts": [b"\xff", b""]},
        "counts": [("a", None), ("b", Decimal("1.50"))],
        "pairs": [(-1, dt.time(1)), (2, dt.time(2))],
    },
    {"id": 2, "tags": [], "place": {"x": 0.0, "last seen": None, "parts": None}, "counts": [], "pairs": []},
    {"id": 3, "tags": None, "place": None, "counts": None, "pairs": None},
]


def chained(folder: Path, rows: object = CHAINS, key: str | list[str] = "id") -> Table:
    table = holdfast.table(folder / "location", "events", columns=NESTED, key=key, shards=2)
    if not isinstance(rows, list) or rows:
        table.append(rows)
    return table


def told(rows: pa.Table) -> list[str]:
    """Rows as text, because NaN differs from itself."""
    return [str(row) for row in rows.sort_by("id").to_pylist()]


EXPECTED = told(pa.Table.from_pylist(CHAINS, Schema.of({}, NESTED).arrow))


@pytest.mark.parametrize("form", ["list", "dict", "arrow", "polars", "pandas"])
def test_nested_values_come_back_from_every_form(tmp_path: Path, form: str) -> None:
    rows: Any = pa.Table.from_pylist(CHAINS, Schema.of({}, NESTED).arrow)
    match form:
        case "list":
            rows = [{**row, "counts": dict(row["counts"])} if row["counts"] else row for row in CHAINS]
        case "dict":
            rows = {name: [row[name] for row in CHAINS] for name in NESTED}
        case "polars":
            rows = pl.from_arrow(rows)
        case "pandas":
            pytest.importorskip("pandas")
            rows = rows.to_pandas(types_mapper=pd_arrow)
    with chained(tmp_path, rows) as table:
        assert told(table.read()) == told(table.scan().read_all()) == EXPECTED
        assert table.read().schema == table.schema
        first = table.latest_time()
        # The same rows again change nothing.
        table.upsert(table.read())
        assert table.diff(first).num_rows == 0
        table.upsert(table.to_polars())
        assert table.diff(first).num_rows == 0
        assert (
            table.count([("tags", "is", None)])
            == table.count(pc.list_value_length(pc.field("tags")) > 0)
            == 1
        )
        table._repr_html_()


def pd_arrow(type_: pa.DataType) -> Any:
    import pandas as pd

    return pd.ArrowDtype(type_)


def test_nested_values_are_changed_followed_and_compared(tmp_path: Path) -> None:
    with chained(tmp_path) as table:
        first = table.latest_time()
        table.update(where=[("id", "=", 3)], set={"tags": ["z"], "place": {"x": -0.0}})
        table.update(where=pc.field("id") == 2, set={"tags": pc.field("tags")})
        changes = table.diff(first)
        assert [(row["_diff"], row["tags"]) for row in changes.sort_by("_diff").to_pylist()] == [
            (-1, None),
            (1, ["z"]),
        ]
        with table.tail(first) as tail:
            assert set(map(str, tail.next(5)["tags"].to_pylist())) == {"None", "['z']"}
        table.delete([3])
        table.merge({"id": [3], "tags": [["m"]]})
        table.update([3], lambda rows: rows if rows["tags"].to_pylist() == [["m"]] else 1 / 0)
        assert table.read(first).num_rows == 3


def test_equal_nested_rows_of_a_table_without_key_are_summed(tmp_path: Path) -> None:
    with chained(tmp_path, key=[]) as table:
        swapped = [
            {**CHAINS[0], "counts": {"b": Decimal("1.5"), "a": None}, "pairs": dict(CHAINS[0]["pairs"])}
        ]
        table.append(swapped)
        assert sorted(table.counts()["_diff"].to_pylist()) == [1, 1, 2]
        table.append([{**swapped[0], "_diff": -2}])
        assert sorted(table.read()["id"].to_pylist()) == [2, 3]


def test_nested_values_survive_compaction_verification_and_many_rows(tmp_path: Path) -> None:
    with chained(tmp_path, []) as table:
        many = [{**row, "id": 3 * n + row["id"]} for n in range(400) for row in CHAINS]
        for start in range(0, 1200, 300):
            table.append(many[start : start + 300])
        expected = told(pa.Table.from_pylist(many, Schema.of({}, NESTED).arrow))
        assert told(table.read()) == expected
        for command in (["compact", "--full"], ["verify"]):
            found = CliRunner().invoke(
                main, ["persist", command[0], str(tmp_path / "location"), *command[1:]]
            )
            assert found.exit_code == 0, found.output
        assert told(table.read()) == told(table.scan().read_all()) == expected


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "arrow"])
def test_files_keep_nested_values(tmp_path: Path, form: str) -> None:
    with chained(tmp_path) as table:
        file = tmp_path / f"rows.{form}"
        run(tmp_path, "read", "events", "--output", str(file))
        table.delete(where=[])
        run(tmp_path, "write", "events", str(file))
        assert told(table.read()) == EXPECTED
    assert "struct<" in run(tmp_path, "collection", "describe", "events").stdout
    assert '{"a": null, "b": "1.50"}' in run(tmp_path, "read", "events").stdout


def test_lines_show_nested_values_as_json(tmp_path: Path) -> None:
    with chained(tmp_path, CHAINS[:1]):
        row = json.loads(run(tmp_path, "read", "events", "--format", "json").stdout)
    assert row == {
        "id": 1,
        "tags": ["a", None, ""],
        "place": {"x": "NaN", "last seen": "2026-01-01T00:00:00.000000000", "parts": ["/w==", ""]},
        "counts": {"a": None, "b": "1.50"},
        "pairs": [[-1, "01:00:00"], [2, "02:00:00"]],
    }


def test_a_snapshot_and_a_restore_keep_nested_values(tmp_path: Path) -> None:
    from holdfast.collections.snapshots.locate import folder_at
    from holdfast.collections.snapshots.parquet import write_named

    schema = Schema.of({"id": "int64"}, {each: type_ for each, type_ in NESTED.items() if each != "id"})
    with chained(tmp_path) as table:
        stored = prepare_updates(schema, CHAINS, default_time=0).select(schema.names)
        (tmp_path / "kept").mkdir()
        file = write_named([stored], schema, folder_at(tmp_path / "kept"), "part-0.parquet")
        manifest = replace(snapshot(tmp_path / "empty", [], schema).manifest, files=(file,))
        (tmp_path / "kept" / MANIFEST_NAME).write_text(manifest.to_json())
        table.delete(where=[])
        assert (
            "restored"
            in run(tmp_path, "collection", "restore", "events", str(tmp_path / "kept"), "--yes").stdout
        )
        assert told(table.read()) == EXPECTED


def test_a_column_of_a_nested_type_is_added(tmp_path: Path) -> None:
    with made(tmp_path, columns=pa.schema([pa.field("id", pa.int64(), nullable=False)])) as table:
        table.append([{"id": 1}])
        with table.tail() as tail:
            run(tmp_path, "collection", "alter", "events", "--add", "x:struct<a: list<time(ns)?>>?")
            with holdfast.table(tmp_path / "location", "events") as again:
                again.append([{"id": 2, "x": {"a": [None]}}])
            assert tail.next(5)["x"].to_pylist() == [{"a": [None]}]
        assert sorted(map(str, table.read()["x"].to_pylist())) == ["None", "{'a': [None]}"]
    refused = ["collection", "alter", "events", "--type", "x:struct<a: list<time(us)?>>?", "--url"]
    assert CliRunner().invoke(main, [*refused, str(tmp_path / "location")]).exit_code != 0


def test_the_record_keeps_types_where_earlier_builds_refuse_them(tmp_path: Path) -> None:
    with holdfast.table(tmp_path / "location", "t", columns={"id": "int64", "tags": "list<string>"}) as made:
        info = made._opened.describe()
    key = encode_key(info)
    row = pb.Row.FromString(encode_value(info))
    columns = {each.name: each for each in row.collection.schema.value}
    assert (columns["id"].type, columns["id"].later_type) == ("int64", "")
    assert (columns["tags"].type, columns["tags"].later_type) == ("binary", "list<string>")
    assert decode(key, encode_value(info)) == info
    columns["tags"].later_type = "list<quark>"
    with pytest.raises(VersionTooNew, match="unknown column type"):
        decode(key, row.SerializeToString(deterministic=True))


@settings(max_examples=10)
@given(st.data())
def test_values_of_every_type_survive_writes_compaction_reads_and_diffs(data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=3))
    url = f"memory://{uuid.uuid4()}"
    given_columns = {column.name: column for column in schema.columns}
    with holdfast.table(url, "values", columns=given_columns, key=schema.key_names, shards=2) as table:
        total: dict[Any, int] = {}
        times, sums = [], []
        for _ in range(3):
            batch = data.draw(batches(schema, max_rows=8, diffs=st.sampled_from([1, 2])))
            times.append(table.append(logical_rows(batch, schema).drop_columns("_time")))
            for row, count in contents(schema, batch).items():
                total[row] = total.get(row, 0) + count
            sums.append(dict(total))
            for shard in table._opened.describe().holding.shards:
                table.client.maintain(shard)
        for time, expected in zip(times, sums, strict=True):
            assert contents(schema, prepare_updates(schema, table.counts(time), default_time=0)) == expected
        scanned = table.scan().read_all()
        assert contents(schema, prepare_updates(schema, scanned, default_time=0)) == total
        changes = contents(schema, prepare_updates(schema, table.diff(times[0], times[2]), default_time=0))
        both = {*total, *sums[0]}
        assert changes == {row: n for row in both if (n := total.get(row, 0) - sums[0].get(row, 0))}
