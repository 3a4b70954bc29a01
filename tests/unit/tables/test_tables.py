"""`holdfast.table`: rows in and out, with and without a key, at any time, and several tables at one time."""

import inspect
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import holdfast
from holdfast import errors
from holdfast.collections import CollectionReader, StorageController
from holdfast.errors import (
    AsOfNotYetAvailable,
    BadInput,
    CollectionNotFound,
    HoldfastError,
    NoLocation,
    NotWritable,
    UnusablePath,
)
from holdfast.persist import PersistClient, Schema
from holdfast.tables import Delete, Revert, Table, Update, Upsert
from holdfast.tables.moments import milliseconds
from unit.collections.stores import Stores

COLUMNS = {"id": "int64", "note": "string?"}


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4()}" if request.param == "memory" else (tmp_path / "location").as_uri()


@pytest.fixture
def orders(url: str) -> Iterator[Table]:
    with holdfast.table(url, "orders", columns=COLUMNS, key=["id"]) as table:
        yield table


def rows(table: Table, as_of: Any = None) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.read(as_of).to_pylist()), key=str)


def test_importing_it_costs_nothing() -> None:
    program = "import sys, holdfast; holdfast.table; print('pyarrow' in sys.modules)"
    lazy = program.replace("holdfast.table; ", "")
    for text, loaded in ((lazy, "False"), (program, "True")):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == loaded
    with pytest.raises(AttributeError):
        holdfast.tabel  # type: ignore[attr-defined]  # noqa: B018
    assert "table" in dir(holdfast)


def test_a_table_shows_only_what_users_may_call(orders: Table) -> None:
    shown = {name for name in dir(orders) if not name.startswith("_")}
    assert shown == {
        *("append", "upsert", "merge", "delete", "update", "comment", "close"),
        *(
            "read",
            "scan",
            "count",
            "counts",
            "to_pandas",
            "to_polars",
            "to_duckdb",
            "retention",
            "retain",
            "rename",
            "rename_column",
            "alter",
            "drop_column",
            "revert",
            "export",
            "history",
            "diff",
            "tail",
            "latest_time",
        ),
        *("name", "key", "schema", "comments", "since", "upper", "client"),
    }


def test_all_errors_are_exported() -> None:
    found = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
    public = {n for n, each in found.items() if issubclass(each, HoldfastError) and not n.startswith("_")}
    assert public <= set(holdfast.__all__)
    assert all(getattr(holdfast, name) is found[name] for name in public)


def test_rows_come_go_and_stay_readable_as_of_any_time(orders: Table) -> None:
    assert rows(orders) == []
    first = orders.append([{"id": 1, "note": "a"}, {"id": 2}])
    second = orders.upsert({"id": [2, 3], "note": ["b", "c"]})
    third = orders.delete([1, 7])
    assert orders.since < first < second < third == orders.upper - 1
    assert rows(orders, first) == [(1, "a"), (2, None)]
    assert rows(orders, datetime.fromtimestamp(second / 1000, UTC)) == [(1, "a"), (2, "b"), (3, "c")]
    assert rows(orders) == [(2, "b"), (3, "c")]
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=first)
    assert rows(orders, moment.replace(tzinfo=None).isoformat()) == rows(orders, first)
    assert orders.read(columns=["note"]).column_names == ["note"]
    assert orders.to_pandas()["id"].tolist() == [2, 3]
    differing = orders.diff(first, second).to_pylist()
    assert sorted((each["id"], each["note"], each["_diff"]) for each in differing if each["id"] != 2) == [
        (3, "c", 1)
    ]
    assert {(each["note"], each["_diff"]) for each in differing if each["id"] == 2} == {(None, -1), ("b", 1)}
    assert orders.diff(third).num_rows == 0


def test_times_follow_the_clock_and_never_go_back(orders: Table) -> None:
    before = orders.client.clock.wall_ms()
    times = [orders.append([{"id": number}]) for number in range(20)]
    assert before <= times[0]
    assert all(later > earlier for earlier, later in pairwise(times))


@pytest.mark.parametrize(
    "made",
    [
        pa.table,
        lambda data: pa.RecordBatch.from_pydict(data),
        lambda data: pd.DataFrame(data, index=[5, 9]),
        pl.DataFrame,
        lambda data: [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)],
        lambda data: data,
    ],
    ids=["table", "batch", "pandas", "polars", "dicts", "lists"],
)
def test_rows_of_all_forms(orders: Table, made: Callable[[dict[str, list[Any]]], object]) -> None:
    orders.append(made({"id": [1, 2], "note": ["a", None]}))
    orders.upsert(made({"id": [2, 3], "note": ["b", "c"]}))
    assert rows(orders) == [(1, "a"), (2, "b"), (3, "c")]
    orders.delete(made({"id": [1, 3], "note": ["other", None]}))
    assert rows(orders) == [(2, "b")]


def test_an_upsert_after_another_looks_up_no_time(orders: Table) -> None:
    orders.upsert([{"id": 1, "note": "a"}])
    with mock.patch.object(CollectionReader, "upper", side_effect=AssertionError):
        orders.upsert([{"id": 1, "note": "b"}, {"id": 2, "note": "c"}])
        orders.delete([2])
    assert orders.read().select(["id", "note"]).to_pylist() == [{"id": 1, "note": "b"}]


def test_an_upsert_replaces_whatever_has_the_key(orders: Table) -> None:
    orders.append({"id": [1, 1, 1, 2], "note": ["a", "a", "b", "c"]})
    changed = orders.upsert([{"id": 1, "note": "one"}])
    assert rows(orders) == [(1, "one"), (2, "c")]
    same = orders.upsert([{"id": 1, "note": "one"}])
    assert orders.diff(changed, same).num_rows == 0
    with orders.tail(changed) as tail:
        while tail.progress <= same:
            assert tail.next(60.0).num_rows == 0  # nothing was written for it


@pytest.mark.parametrize("count", [1, 8, 9, 300])
def test_few_and_many_keys_of_many_rows(url: str, count: int) -> None:
    columns = {"region": "string?", "id": "int32", "note": "string"}
    with holdfast.table(url, "t", columns=columns, key=["region", "id"], shards=3) as table:
        regions = [None, "", "a", "b", "b\0"]
        keys = [(regions[number % 5], number) for number in range(600)]
        data = {"region": [key[0] for key in keys], "id": [key[1] for key in keys], "note": ["x"] * 600}
        table.append(data)
        some = keys[100 : 100 + count]
        table.upsert([{"region": region, "id": id_, "note": "y"} for region, id_ in some])
        table.delete(keys[:50])
        assert {(region, id_): note for region, id_, note in rows(table)} == {
            key: "y" if key in some else "x" for key in keys[50:]
        }


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("bool", [True, False]),
        ("float64?", [None, float("nan"), 0.0, -1.5]),
        ("uint64", [0, 2**64 - 1]),
        ("int64", [-(2**63), 2**63 - 1]),
        ("binary", [b"", b"\xff", b"\xff\x00"]),
        ("date32", [datetime(2020, 1, 1, tzinfo=UTC).date()]),
        ("timestamp_utc", [datetime(2020, 1, 1, tzinfo=UTC)]),
        ("decimal128(5,2)?", [None, 1, 2]),
    ],
)
def test_keys_of_every_type(url: str, type_: str, values: list[Any]) -> None:
    with holdfast.table(url, "t", columns={"k": type_, "n": "int64"}, key="k") as table:
        for number in (1, 2):
            table.upsert({"k": values, "n": [number] * len(values)})
        assert [row[1] for row in rows(table)] == [2] * len(values)
        table.delete(values[:1])
        table.delete([(values[-1],)])
        assert table.read().num_rows == max(len(values) - 2, 0)


def test_an_update_makes_rows_of_what_is_there(orders: Table) -> None:
    orders.append({"id": [1, 2, 3], "note": ["a", "b", "c"]})
    orders.update([1, 2, 9], lambda there: there.filter(pa.compute.equal(there["id"], 1)))
    assert rows(orders) == [(1, "a"), (3, "c")]
    orders.update(None, lambda there: [{"id": there.num_rows, "note": "all"}])
    assert rows(orders) == [(2, "all")]
    with pytest.raises(BadInput, match="id=3"):
        orders.update([2], lambda there: [{"id": 3}])


def test_a_table_without_a_key_is_a_multiset(url: str) -> None:
    with holdfast.table(url, "lines", columns={"n": "int64"}) as lines:
        lines.append({"n": [1, 1, 2]})
        lines.append({"n": [1, 3], "_diff": [-1, 2]})
        assert rows(lines) == [(1,), (2,), (3,), (3,)]
        assert {row["n"]: row["_diff"] for row in lines.counts().to_pylist()} == {1: 1, 2: 1, 3: 2}
        lines.append({"n": [2], "_diff": [-5]})
        with pytest.raises(BadInput, match="the count of a row is -"):
            lines.read()
        assert lines.counts().num_rows == 3


def test_a_tail_tells_each_change_once(orders: Table) -> None:
    first = orders.append([{"id": 1, "note": "a"}])
    with orders.tail() as tail, orders.tail(first, snapshot=True) as whole:
        second = orders.upsert([{"id": 1, "note": "b"}])
        wanted = {("a", second, -1), ("b", second, 1)}
        changes = next(iter(tail))
        assert {(row["note"], row["_time"], row["_diff"]) for row in changes.to_pylist()} == wanted
        assert tail.progress == second + 1
        assert tail.next(0.0).num_rows == 0
        assert whole.next(60.0).to_pylist() == [{"id": 1, "note": "a", "_time": first, "_diff": 1}]
        assert next(iter(whole)).num_rows == 2


def test_a_tail_of_an_empty_table_begins_with_the_first_row(orders: Table) -> None:
    with orders.tail() as tail:
        orders.append([{"id": 1}])
        assert next(iter(tail)).column("id").to_pylist() == [1]


def test_several_tables_change_at_one_time(url: str, orders: Table) -> None:
    orders.append({"id": [1, 2, 3], "note": ["a", "b", "c"]})
    with (
        holdfast.table(url, "lines", columns={"n": "int64"}, shards=2) as lines,
        holdfast.table(url, "log", columns={"t": "string"}, key="t") as log,
    ):
        time = holdfast.write({orders: Delete([1]), lines: {"n": [7]}, log: Upsert([{"t": "x"}])})
        assert (rows(orders), rows(lines), rows(log)) == ([(2, "b"), (3, "c")], [(7,)], [("x",)])
        assert orders.upper == lines.upper == log.upper == time + 1
        assert (rows(lines, time - 1) if lines.since < time - 1 else [], rows(orders, time - 1)) == (
            [],
            [(1, "a"), (2, "b"), (3, "c")],
        )
        with pytest.raises(BadInput):
            holdfast.write({orders: Update(None, lambda there: []), lines: {"n": ["no number"]}})
        assert orders.upper == time + 1
        again = holdfast.table(url, "orders")
        with pytest.raises(BadInput, match="more than once"):
            holdfast.write({orders: [], again: []})
        again.close()


def test_tables_of_two_locations_are_not_written_together(orders: Table, tmp_path: Path) -> None:
    with holdfast.table(tmp_path / "other", "o", columns={"n": "int64"}) as other:
        with pytest.raises(BadInput, match="tables orders and o are in different locations"):
            holdfast.write({orders: [{"id": 1}], other: [{"n": 1}]})
        assert orders.upper == other.upper == 0


def test_what_is_there_is_opened_and_compared(url: str, orders: Table) -> None:
    with holdfast.table(url, "orders") as same:
        assert (same.key, same.schema, same.client) == (("id",), orders.schema, orders.client)
    arrow = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
    holdfast.table(url, "orders", columns=arrow, key=["id"]).close()
    frame = pl.DataFrame({"at": [date(2026, 1, 1)], "tags": [["a"]], "note": ["b"]})
    with holdfast.table(url, "framed", columns=frame.schema, key="at") as framed:
        framed.append(frame)
        assert framed.to_polars().equals(frame)
    with pytest.raises(BadInput, match="exists with other columns"):
        holdfast.table(url, "orders", columns=COLUMNS)
    with pytest.raises(CollectionNotFound, match="no table 'order'") as missing:
        holdfast.table(url, "order")
    assert "orders" in missing.value.hint


def test_an_older_declaration_opens_a_table_that_has_evolved(url: str) -> None:
    first = {"id": "int64", "note": "string", "price": "float32?"}
    with holdfast.table(url, "prices", columns=first, key=["id"]) as table:
        later = Schema.of(
            key={"id": "int64"}, value={"note": "string?", "price": "float64?", "seats": "int32?"}
        )
        table._opened.controller.evolve_collection("prices", later)
        for declared in (
            first,
            {"price": "float32?", "note": "string", "id": "int64"},
            {"id": "int64", "note": "string?"},
            {"id": "int64"},
            {"id": "int64", "seats": "int32?", "price": "float64?", "note": "string?"},
        ):
            with holdfast.table(url, "prices", columns=declared, key=["id"]) as same:
                same.upsert([{"id": 1, "note": "a"}])
        for other in (
            {**first, "more": "string?"},
            {"id": "int32"},
            {"id": "int64", "price": "int32?"},
            {"id": "int64", "price": "float64?", "note": "int64?"},
        ):
            with pytest.raises(BadInput, match="exists with other columns"):
                holdfast.table(url, "prices", columns=other, key=["id"])
        with pytest.raises(BadInput, match="exists with other columns"):
            holdfast.table(url, "prices", columns={"id": "int64", "note": "string"}, key=["note"])
        assert table.read().to_pylist() == [{"id": 1, "note": "a", "price": None, "seats": None}]


@pytest.mark.parametrize(
    "given",
    [
        {"id": [1]},
        [{"id": 1}],
        pa.table({"id": [1]}),
        pa.RecordBatch.from_pydict({"id": [1]}),
        pl.DataFrame({"id": [1]}),
        pd.DataFrame({"id": [1]}),
    ],
    ids=["lists", "dicts", "table", "batch", "polars", "pandas"],
)
def test_every_form_of_rows_may_leave_out_nullable_columns(orders: Table, given: Any) -> None:
    orders.append(given)
    orders.upsert(given)
    assert orders.read().to_pylist() == [{"id": 1, "note": None}]


def test_categories_are_stored_as_their_values(url: str) -> None:
    declared = pa.schema([("id", pa.int64()), ("kind", pa.dictionary(pa.int32(), pa.string()))])
    with holdfast.table(url, "kinds", columns=declared, key=["id"]) as table:
        assert table.schema.field("kind").type == pa.string()
        table.append(pd.DataFrame({"id": [1], "kind": pd.Categorical(["a"])}))
        table.append(pl.DataFrame({"id": [2, 3], "kind": pl.Series(["b", None], dtype=pl.Categorical)}))
        table.append(pl.DataFrame({"id": [4], "kind": pl.Series(["c"], dtype=pl.Enum(["c", "d"]))}))
        assert table.to_pandas()["kind"].replace({float("nan"): None}).tolist() == ["a", "b", None, "c"]


def test_a_location_is_named_by_a_url_or_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with holdfast.table(tmp_path / "a shop", "t", columns={"n": "int64"}) as table:
        table.append([{"n": 1}])
        for where in ("a shop", "./a shop", f"{tmp_path}/a shop", "~/a shop", (tmp_path / "a shop").as_uri()):
            with holdfast.table(where, "t") as same:
                assert (same.client, rows(same)) == (table.client, [(1,)])
    with PersistClient.open("a shop", mode="read") as client:
        assert client.shards()


def test_looking_for_a_table_makes_no_location(tmp_path: Path) -> None:
    for mode in ("read", "write"):
        with pytest.raises(NoLocation):
            holdfast.table(tmp_path / "none", "t", mode=mode)
    assert not (tmp_path / "none").exists()


def test_a_reader_writes_and_holds_nothing(tmp_path: Path) -> None:
    where = tmp_path / "location"
    with holdfast.table(where, "t", columns={"n": "int64"}) as table:
        table.append([{"n": 1}])
    with holdfast.table(where, "t", mode="read") as table:
        assert rows(table) == [(1,)]
        with table.tail(0, snapshot=False) as tail:
            assert tail.next(60.0).num_rows == 1
        holds = table.client.inspect(table._opened.info.metadata_shard).holds
        assert [hold.kind for hold in holds if hold.kind != "critical"] == []
        with pytest.raises(NotWritable):
            table.append([{"n": 1}])


def test_the_client_goes_with_the_last_table(tmp_path: Path) -> None:
    one = holdfast.table(tmp_path, "a", columns={"n": "int64"})
    two = holdfast.table(tmp_path, "b", columns={"n": "int64"})
    one.close()
    one.close()
    two.append([{"n": 1}])
    two.close()
    for name, closed in (("a", one), ("b", two)):
        for use in (closed.read, lambda table=closed: table.append([]), closed.tail):
            with pytest.raises(BadInput, match=f"^table {name} is closed"):
                use()
    with holdfast.table(tmp_path, "b") as again:
        assert again.client is not two.client
        assert rows(again) == [(1,)]


def test_the_hold_of_an_open_table_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.tables.reading.FOLLOW_S", 0.0)
    client = Stores().open()
    with holdfast.table(client, "t", columns={"n": "int64"}, key="n") as table:
        table.append([{"n": 0}])
        table.read()
        latest = table.append([{"n": 1}])
        table.read()
        info = table._opened.info
        (hold,) = (each for each in client.inspect(info.metadata_shard).holds if each.kind != "critical")
        assert hold.since == latest
        StorageController(client).set_retention_hold("t", latest)
        assert table.since == latest
        assert rows(table) == [(0,), (1,)]


def test_a_lost_lease_costs_a_reader_nothing_but_its_hold(orders: Table) -> None:
    orders.append([{"id": 1}])
    assert orders.read().num_rows == 1
    reader = orders._opened.reading._reader
    assert reader is not None
    reader.close()
    orders._opened.reading._forget(reader)
    assert orders.read().num_rows == 1


def test_a_dropped_table_says_so(url: str, orders: Table) -> None:
    orders.append([{"id": 1}])
    with PersistClient.open(url) as client:
        StorageController(client).drop_collection("orders", force=True)
    for use in (orders.read, lambda: orders.append([{"id": 1}]), lambda: orders.upsert([{"id": 1}])):
        with pytest.raises(CollectionNotFound, match="dropped"):
            use()
    with holdfast.table(url, "orders", columns={"n": "int64"}) as new:
        assert rows(new) == []


def test_a_table_goes_on_when_it_evolves() -> None:
    stores = Stores()
    old, other = (holdfast.table(stores.open(), "t", columns=COLUMNS, key="id", shards=2) for _ in range(2))
    old.append([{"id": 1, "note": "a"}, {"id": 2, "note": "b"}])
    other.append([{"id": 3, "note": "c"}])
    columns = {"id": "int64", "note": "string?", "count": "int64?"}
    wider = Schema.of(key={"id": "int64"}, value={"note": "string?", "count": "int64?"})
    controller = StorageController(stores.open())
    controller.evolve_collection("t", wider)
    assert old.append([{"id": 4, "note": "d"}]) > 0
    with holdfast.table(stores.open(), "t", columns=columns, key="id") as new:
        new.upsert([{"id": 1, "note": "one", "count": 1}])
        new.upsert([{"id": 2, "note": "two", "count": 2}])
        # Who opened it before takes away what it had no column for.
        old.upsert([{"id": 1, "note": "again"}])
        other.update([2], lambda there: there)
        assert rows(new) == [(1, "again", None), (2, "two", 2), (3, "c", None), (4, "d", None)]
        assert rows(old) == rows(other) == rows(new)
        assert {row["_diff"] for row in new.counts().to_pylist()} == {1}
        assert old.schema.names == ["id", "note", "count"]
        assert old.read(columns=["count"]).num_rows == 4


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda t: t.append([{"id": "x"}]), "^table orders: column 'id', row 0: 'x' is a string"),
        (lambda t: t.append([{"idd": 1}]), "'idd' is not in the schema"),
        (lambda t: t.append(5), "not int"),
        (lambda t: t.append([5]), "that contains 5"),
        (lambda t: t.append({"id": 1}), "not a list of values"),
        (lambda t: t.append({"id": [1, 2], "note": ["a"]}), "id 2, note 1"),
        (lambda t: t.append({"note": ["a"]}), "'id' is missing"),
        (lambda t: t.append([{"note": "a"}]), "not nullable"),
        (lambda t: t.append([{"id": 1, "_time": 5}]), "'_time' can't be given"),
        (lambda t: t.append([{"id": 1, "_diff": 2**63 - 1}]), "at most 1,000,000,000,000 times"),
        (lambda t: t.append({"id": [1, 2], "_diff": [1, -(10**12) - 1]}), r"the row \(id=2, note=None\) has"),
        (lambda t: t.alter(add=["x"]), "a dict of columns"),
        (lambda t: t.upsert([{"id": 1, "_diff": 5}]), "'_diff' can't be given"),
        (lambda t: t.upsert([{"id": 1}, {"id": 1}]), r"key \(id=1\) more than once"),
        (lambda t: t.delete(["a"]), "^table orders: column 'id', row 0: 'a' is a string"),
        (lambda t: t.delete("a"), "keys must be a list"),
        (lambda t: t.read("yesterday"), "'yesterday' is neither"),
        (lambda t: t.read(-1), "out of range"),
        (lambda t: t.read(True), "is neither"),
        (lambda t: t.read(columns=["nope"]), "'nope' is not in the schema"),
        (lambda t: t.diff(5, 3), "forward in time"),
        (lambda t: t.delete(5), "keys must be a list, not 5"),
        (lambda t: holdfast.write({"orders": []}), "not 'orders'"),
        (lambda t: holdfast.write({}), "at least one table"),
        (lambda t: holdfast.write([t]), "a dict of tables"),
        (lambda t: holdfast.table(t.client, "x", key="id"), "a key without columns"),
        (lambda t: holdfast.table(t.client, "x", columns={"id": "int64"}, key="k"), "key column 'k'"),
        (lambda t: holdfast.table(t.client, "x", columns={"id": "int64"}, key=5), "key must be a column"),
        (lambda t: holdfast.table(t.client, "x", columns={"id": "int64"}, key=["id"] * 2), "is given twice"),
        (lambda t: holdfast.table(t.client, "x", columns={"id": "int6"}), "unknown column type"),
        (lambda t: holdfast.table(t.client, "x", columns=["id"]), "a dict of names and types"),
        (lambda t: holdfast.table(5, "x"), "a URL or a path"),
        (lambda t: holdfast.table("", "x"), "is not a URL"),
        (lambda t: holdfast.table("me:secret@host/x", "x"), "^the location is not a URL"),
        (lambda t: holdfast.table("s3:/bucket/x", "x"), "^location 's3:/bucket/x' is not a URL"),
        (lambda t: t.append([{"id": 2**70}]), "in row 0: it is beyond the range of this type"),
    ],
)
def test_what_is_wrong_is_one_line_and_changes_nothing(
    orders: Table, use: Callable[[Table], object], message: str
) -> None:
    time = orders.append([{"id": 1, "note": "a"}])
    with pytest.raises(BadInput, match=message) as refused:
        use(orders)
    assert "\n" not in str(refused.value)
    assert rows(orders) == [(1, "a")]
    assert orders.upper == time + 1


def test_moments_without_a_zone_are_told_how_to_get_one(orders: Table) -> None:
    moments = pa.array([0], pa.timestamp("us"))
    table = holdfast.table(orders.client, "x", columns={"at": "timestamp_utc"})
    with pytest.raises(BadInput, match="column 'at' is timestamp") as refused:
        table.append(pa.table({"at": moments}))
    assert "dt.tz_localize" in refused.value.hint
    assert table.count() == 0


TIMES: dict[str, Callable[[Table, Any], object]] = {
    "latest_time": lambda t, time: t.latest_time(time),
    "revert": lambda t, time: t.revert(time),
    "tail": lambda t, time: t.tail(time),
    "export": lambda t, time: t.export("/proc/nowhere", time),
    "diff": lambda t, time: t.diff(time),
    "read": lambda t, time: t.read(time),
    "scan": lambda t, time: t.scan(as_of=time),
    "counts": lambda t, time: t.counts(time),
    "count": lambda t, time: t.count(as_of=time),
    "to_pandas": lambda t, time: t.to_pandas(time),
    "to_polars": lambda t, time: t.to_polars(time),
    "to_duckdb": lambda t, time: t.to_duckdb(time),
}
"""All methods that take a time."""


def parameters(name: str) -> set[str]:
    return set(inspect.signature(getattr(Table, name)).parameters)


def test_a_time_without_a_zone_is_refused_wherever_one_is_taken(orders: Table) -> None:
    taking = {name for name in dir(Table) if name[0] != "_" and callable(getattr(Table, name))}
    assert set(TIMES) == {name for name in taking if parameters(name) & {"as_of", "at", "start"}}
    orders.append([{"id": 1}])
    upper = orders.upper
    others: list[Callable[[Table, Any], object]] = [
        lambda t, time: t.diff(0, time),
        lambda t, time: holdfast.sql(t.client, "SELECT 1", as_of=time),
        lambda t, time: holdfast.write({t: Revert(time)}),
    ]
    for use in (*TIMES.values(), *others):
        for naive, instead in (
            (datetime.now(), "datetime.now(timezone.utc)"),  # noqa: DTZ005
            (pd.Timestamp.now(), "pd.Timestamp.now('UTC')"),
        ):
            with pytest.raises(BadInput, match=r"^the time 20.* has no zone") as refused:
                use(orders, naive)
            assert "\n" not in str(refused.value)
            assert instead in refused.value.hint
    assert orders.upper == upper
    # What the hints say works, and texts and dates are in UTC.
    for time in (datetime.now(UTC), datetime.now().astimezone(), pd.Timestamp.now("UTC")):
        assert orders.latest_time(time) == upper - 1
    assert milliseconds("1970-01-02T00:00") == milliseconds(date(1970, 1, 2)) == 86_400_000
    with pytest.raises(BadInput, match="NaT"):
        orders.read(pd.NaT)


def test_all_reads_take_the_latest_time_before_one_that_is_not_complete(
    orders: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """An export doesn't: repeated with the same time, it must find what it wrote."""
    siblings = {name for name in TIMES if name not in ("latest_time", "revert", "tail", "export")}
    assert {name for name in TIMES if "or_earlier" in parameters(name)} == siblings
    with_limit = {name for name in siblings if "columns" in parameters(name)}
    assert {name for name in TIMES if "limit" in parameters(name)} == with_limit
    first = orders.append([{"id": 1, "note": "a"}, {"id": 2}])
    late = "2090-01-01"
    for name in siblings:
        with pytest.raises(AsOfNotYetAvailable) as refused:
            getattr(orders, name)(**{"start" if name == "diff" else "as_of": late})
        assert "or_earlier=True" in refused.value.hint
    caplog.set_level("INFO", "holdfast")
    assert orders.count(as_of=late, or_earlier=True) == 2
    assert f"table orders is read as of {first} " in caplog.text
    for given in (late, first):
        for found in (
            orders.read(given, or_earlier=True),
            orders.read(given, limit=2, or_earlier=True),
            orders.scan(as_of=given, or_earlier=True),
            orders.counts(given, or_earlier=True),
        ):
            assert found.schema.metadata == {b"as_of": str(first).encode()}
            assert pa.table(found).num_rows == 2
        assert orders.to_pandas(given, or_earlier=True).attrs == {"as_of": first}
        assert orders.to_polars(given, or_earlier=True).height == 2
        assert orders.to_duckdb(given, or_earlier=True).fetchall() == [(1, "a"), (2, None)]
    assert orders.read(first).schema.metadata is None
    assert orders.to_pandas().attrs == {}
    orders.delete([1])
    assert orders.diff(first, late, or_earlier=True).to_pylist() == [{"id": 1, "note": "a", "_diff": -1}]
    assert orders.diff(late, or_earlier=True).num_rows == 0


def test_all_reads_of_rows_take_a_limit(orders: Table) -> None:
    orders.append([{"id": number} for number in range(5)])
    for limit in (0, 2, 9):
        expected = min(limit, 5)
        assert orders.read(limit=limit).num_rows == expected
        assert orders.read(columns=["note"], limit=limit).shape == (expected, 1)
        assert orders.scan(limit=limit).read_all().num_rows == expected
        assert len(orders.to_pandas(limit=limit)) == orders.to_polars(limit=limit).height == expected
        assert len(orders.to_duckdb(limit=limit).fetchall()) == expected
    assert orders.read(where=[("id", ">", 2)], limit=1)["id"].to_pylist() in ([3], [4])
    for use in (orders.read, orders.scan, orders.to_pandas, orders.to_polars, orders.to_duckdb):
        with pytest.raises(BadInput, match="limit must be a number of rows"):
            use(limit=-1)


def test_a_time_that_is_not_complete_is_no_answer(orders: Table) -> None:
    orders.append([{"id": 1}])
    with pytest.raises(
        AsOfNotYetAvailable,
        match=r"^table orders is not complete at 3786912000000 \(2090-01-01T00:00:00.* latest .* \(20\d\d-",
    ):
        orders.read("2090-01-01")
    with pytest.raises(AsOfNotYetAvailable, match="table orders is not complete at"):
        orders.tail("2090-01-01", snapshot=True)
    with pytest.raises(AsOfNotYetAvailable, match="not complete"):
        orders.diff("2090-01-01")
    assert issubclass(AsOfNotYetAvailable, HoldfastError)


def test_a_table_that_nobody_uses_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.tables.reading.IDLE_S", 0.2)
    given_up = threading.Event()
    close = CollectionReader.close

    def closed(reader: CollectionReader) -> None:
        close(reader)
        given_up.set()

    monkeypatch.setattr(CollectionReader, "close", closed)
    client = Stores().open()
    with holdfast.table(client, "t", columns={"n": "int64"}) as table:
        table.append([{"n": 0}])
        assert rows(table) == [(0,)]
        assert given_up.wait(20)
        holds = client.inspect(table._opened.info.metadata_shard).holds
        assert [each.kind for each in holds] == ["critical"]
        assert rows(table) == [(0,)], "the next read opens a reader"


READ_ONLY = """
import os, sys
import holdfast
from holdfast.errors import UnusablePath
# Permissions don't bind root, so the tables are opened as nobody where the tests run as root. What is
# imported late may be root's alone: this imports it.
with holdfast.table(sys.argv[3], "orders", mode="read") as table:
    table.read()
os.getuid() or (os.setgroups([]), os.setresuid(65534, 65534, 65534))
for columns in (None, {"id": "int64"}):
    try:
        holdfast.table(sys.argv[1], "orders", columns=columns, key=["id"] if columns else ())
    except UnusablePath as error:
        print(error.hint)
with holdfast.table(sys.argv[1], "orders", mode="read") as table:
    print(table.read().to_pylist())
try:
    holdfast.table(sys.argv[2], "orders")
except UnusablePath as error:
    print(error.hint)
"""


def test_a_folder_that_can_only_be_read_is_opened_for_reading(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        there, closed = folder / "there", folder / "closed"
        closed.mkdir()
        for place in (there, tmp_path):
            with holdfast.table(place, "orders", columns={"id": "int64"}, key=["id"]) as orders:
                orders.append([{"id": 1}])
        for path in folder.rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)
        closed.chmod(0o000)
        folder.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, *(each.as_uri() for each in (there, closed, tmp_path))],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        for path in (folder, there, closed):
            path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    hint = 'open the table with mode="read", which writes nothing, or make the folder writable'
    *lines, unreadable = done.stdout.splitlines()
    assert lines == [hint, hint, "[{'id': 1}]"]
    assert unreadable == UnusablePath.hint


def test_dates_from_pandas_are_midnights(client: PersistClient) -> None:
    table = holdfast.table(client, "days", columns={"day": "date32?", "n": "int64"})
    days = pd.to_datetime(["2026-01-04", None])
    table.append(pd.DataFrame({"day": days, "n": [1, 2]}))
    assert table.read()["day"].to_pylist() == [date(2026, 1, 4), None]
    with pytest.raises(BadInput, match="table days: column 'day' is a date, and has times of day"):
        table.append(pd.DataFrame({"day": days + pd.Timedelta(hours=1), "n": [1, 2]}))


def test_rows_in_a_form_that_is_not_known_get_a_hint(client: PersistClient) -> None:
    table = holdfast.table(client, "t", columns={"id": "int64"})
    for rows, hint in (
        (pl.LazyFrame({"id": [1]}), "collect()"),
        (({"id": n} for n in [1]), "list(rows)"),
        (pd.Series([1], name="id"), "to_frame()"),
        (pl.Series("id", [1]), "to_frame()"),
        (np.array([1, 2]), "a dict of arrays"),
        (pa.chunked_array([[1]]), "non-struct"),
        (pa.array([1]), ""),
        (None, ""),
    ):
        with pytest.raises(BadInput, match="table t: rows must be") as error:
            table.append(rows)
        assert hint in str(error.value.hint)
    assert table.upper == 0


def test_rows_of_other_libraries(client: PersistClient) -> None:
    table = holdfast.table(client, "t", columns={"id": "int64", "n": "int64?"}, key="id")
    with duckdb.connect() as connection:
        for number, rows in enumerate(
            (
                connection.sql("SELECT 0::bigint AS id, 2 AS n"),
                np.array([(1, 2)], dtype=[("id", "i8"), ("n", "i4")]),
                pa.table({"id": [2], "n": [2]}).to_reader(),
                pa.chunked_array([[{"id": 3, "n": 2}]]),
            )
        ):
            table.append(rows)
            assert table.read(where=[("id", "=", number)]).to_pylist() == [{"id": number, "n": 2}]
    for keys in (
        pd.Series([0]),
        pl.Series([1]),
        np.array([2]),
        pa.chunked_array([[3]]),
        pd.Index([4]),
        pa.array([5]),
        {6},
        (each for each in [7]),
    ):
        table.upsert([{"id": number} for number in range(8)])
        table.delete(keys)
        assert table.count() == 7
    with pytest.raises(BadInput, match="table t: keys must be"):
        table.delete(pl.LazyFrame({"id": [1]}))
    with pytest.raises(BadInput, match="column 'id': only handle 1-dimensional arrays"):
        table.append({"id": np.array([[1]])})


def test_the_named_levels_of_an_index_are_columns(client: PersistClient) -> None:
    table = holdfast.table(client, "t", columns={"id": "int64", "n": "int64?"}, key="id")
    frame = pd.DataFrame({"id": [1, 2], "n": [3, 4]})
    table.append(frame.set_index("id"))
    table.upsert(frame.set_index(["id", "n"]))
    # What a filter leaves has an index without a name.
    table.upsert(frame[frame.n > 3])
    assert rows(table) == [(1, 3), (2, 4)]
    table.delete(frame[:1].set_index("id"))
    assert rows(table) == [(2, 4)]
    with pytest.raises(BadInput, match="column 'id' is also the name of a level of the frame's index"):
        table.append(frame.set_index("id", drop=False))
    with pytest.raises(BadInput, match="column 'other' is not in the schema"):
        table.append(frame.rename_axis("other"))


@pytest.mark.parametrize("made", [pl.DataFrame, pd.DataFrame, pa.table])
def test_a_table_of_rows_in_memory(client: PersistClient, made: Callable[[Any], Any]) -> None:
    given = made({"id": [1], "note": ["a"]})
    with pytest.raises(BadInput, match="create_table makes a table of a file, not of") as refused:
        holdfast.create_table(client, "m", given)  # type: ignore[arg-type]
    # The hint works.
    assert "columns=pa.table(rows).schema" in refused.value.hint
    assert holdfast.table(client, "m", columns=pa.table(given).schema).append(given) > 0


def test_a_refused_type_is_told_in_the_words_of_the_user(orders: Table) -> None:
    orders.alter(add={"n": "int64?", "price": "decimal128(10,2)?"})
    for types, told in [
        ({"n": "int32?"}, "orders: column 'n' can't become int32: not every int64 fits into it"),
        ({"n": "int64"}, "orders: column 'n' can't become int64: it may have nulls, so write int64?"),
        ({"note": "int64?"}, "orders: column 'note' can't become int64: not every string fits into it"),
        (
            {"price": "decimal128(9,2)?"},
            "orders: column 'price' can't become decimal128(9,2): not every decimal128(10,2) fits into it",
        ),
        ({"id": "uint64"}, "orders: column 'id' can't become uint64: a key column keeps its type"),
    ]:
        with pytest.raises(errors.CodecMismatch) as refused:
            orders.alter(types=types)
        assert str(refused.value) == told
        assert "shard" not in refused.value.hint
    orders.append([{"id": 1, "n": 2**40}])


def test_a_row_may_be_added_a_trillion_times(orders: Table) -> None:
    orders.append([{"id": 1, "_diff": 10**12}])
    orders.append([{"id": 1, "_diff": 1 - 10**12}])
    assert orders.read().to_pylist() == [{"id": 1, "note": None}]


ENDS = """
import os, sys, threading
import holdfast
from holdfast.collections import StorageController

table = holdfast.table(sys.argv[1], "t", columns={"id": "int64"}, key="id")
table.append([{"id": 1}])
assert table.count() == 1
tail = table.tail()
scan = table.scan()
with StorageController(table.client) as controller:
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    # The end of a child releases nothing of its parent.
    held = [each.purpose for each in controller.holds("t") if not each.own]
    assert held == ["table", "table tail"], held
threading.Thread(target=tail.next, daemon=True).start()
%s
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("1 / 0", 1), ("table.close(); tail.close()", 0)])
def test_the_end_of_a_process_releases_what_it_did_not_close(tmp_path: Path, end: str, code: int) -> None:
    url = str(tmp_path / "location")
    done = subprocess.run(
        [sys.executable, "-c", ENDS % end, url], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert ("ZeroDivisionError" in done.stderr) is (code == 1)
    assert "ignored" not in done.stderr
    with PersistClient.open(url) as client, StorageController(client) as controller:
        assert [each for each in controller.holds("t") if not each.own] == []
