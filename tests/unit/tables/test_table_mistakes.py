"""Mistakes in calls of tables: one clear line each, and nothing changes. Empty frames are no mistakes."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.errors import AsOfNotYetAvailable, BadInput
from holdfast.tables import Table, creating

NOON = datetime(2026, 1, 1, 12)  # noqa: DTZ001 - the mistake


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "location")


@pytest.fixture
def orders(location: str) -> Iterator[Table]:
    columns = {"id": "int64", "item": "string?", "at": "timestamp_utc?", "local": "timestamp?"}
    with holdfast.table(location, "orders", columns=columns, key="id") as table:
        yield table


@pytest.mark.parametrize("value", [NOON, pd.Timestamp(NOON)])
def test_a_condition_needs_the_zone_that_its_column_has(orders: Table, value: datetime) -> None:
    orders.append([{"id": 1, "at": NOON.replace(tzinfo=UTC), "local": NOON}])
    for operator, given in (("=", value), (">", value), ("in", [value]), ("in", (value,))):
        for call in (orders.read, orders.scan, orders.count, orders.delete, orders.to_duckdb):
            with pytest.raises(BadInput, match=r"table orders: where: column 'at' .*it has no time zone\n"):
                call(where=[("at", operator, given)])
    assert orders.count([("local", "=", value)]) == 1
    assert orders.count([("local", "in", [value])]) == 1
    assert orders.count([("at", "=", value.replace(tzinfo=UTC))]) == 1
    assert orders.count([("at", "=", "2026-01-01T12:00Z")]) == 1


def test_a_file_with_a_key_twice_makes_no_table(tmp_path: Path, location: str) -> None:
    file = tmp_path / "a.csv"
    lines = [f"{each % 20_000},{each % 7},x\n" for each in range(30_000)]
    file.write_text("a,b,c\n" + "".join(lines))
    with pytest.raises(BadInput, match=r"table t: .*a.csv has key \(a=\d+\) more than once\n"):
        holdfast.create_table(location, "t", file, key="a")
    done = CliRunner().invoke(main, ["create", "t", "--from", str(file), "--key", "a", "--url", location])
    assert done.exit_code == 2
    assert re.search(r"a.csv has key \(a=\d+\) more than once$", done.stderr.splitlines()[0])
    assert not Path(location).exists()
    for key in ((), ("a", "b")):
        with holdfast.create_table(location, f"t{len(key)}", file, key=key) as table:
            assert table.count() == 30_000


def test_keys_with_one_hash_are_not_taken_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a\n" + "".join(f"{each}\n" for each in range(100)))
    monkeypatch.setattr(creating, "row_hash", lambda rows, _: rows["a"].to_numpy().astype(np.uint64) // 5)
    monkeypatch.setattr(creating, "_CANDIDATES", 3)
    creating.table_of_file("t", file, key=["a"])
    file.write_text(f"{file.read_text()}98\n")
    with pytest.raises(BadInput, match=r"key \(a=98\) more than once"):
        creating.table_of_file("t", file, key=["a"])


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame(),
        pd.DataFrame({"id": [], "item": []}),
        pd.DataFrame(columns=["id", "at"]),
        pl.DataFrame(),
        pl.DataFrame({"id": [], "item": []}),
        {},
        {"item": []},
    ],
)
def test_frames_without_a_row_are_empty_batches(orders: Table, rows: Any) -> None:
    orders.append([{"id": 1, "item": "a"}])
    for change in (orders.append, orders.upsert, orders.merge, orders.delete):
        change(rows)
    orders.update(None, lambda _: rows)
    assert orders.count() == 0


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, dict])
def test_their_columns_must_be_known(orders: Table, make: Callable[[Any], Any]) -> None:
    for name, said in (("zz", "'zz' is not in the schema"), ("_time", "'_time' can't be given")):
        for change in (orders.append, orders.upsert):
            with pytest.raises(BadInput, match=said):
                change(make({"id": [], name: []}))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: t.read(limit=10**30), "limit must be a number of rows from 0 to 2"),
        (lambda t: t.to_duckdb(limit=10**30), "limit must be a number of rows from 0 to 2"),
        (lambda t: t.export(None), "the target of an export must be a path or a URL, not None"),
        (lambda t: t.export(b"x"), "the target of an export must be a path or a URL, not b'x'"),
        (lambda t: t.update([1], "x"), "table orders: the function of an update must take rows"),
        (lambda t: t.tail().next("a"), "timeout must be a number of seconds, or None, not 'a'"),
        (lambda t: t.tail().next(float("nan")), "timeout must be a number of seconds, or None, not nan"),
        (lambda t: t.to_duckdb(connection=5), "connection must be one of DuckDB, not 5"),
        (lambda t: holdfast.sql(t.client, "select $a", parameters=5), "parameters must be a list"),  # type: ignore[arg-type]
        (lambda t: holdfast.sql(t.client, "select $a", parameters="x"), "parameters must be a list"),
        (lambda t: holdfast.drop_table(t.client, None), "the name of a table must be text, not None"),  # type: ignore[arg-type]
        (lambda t: t.rename_column("id", 5), "table orders: the name of a column must be text, not 5"),
        (lambda t: t.merge([{"id": 2, "zz": 7}]), r"'zz' is not in the schema \(id, item, at, local\)"),
        (lambda t: holdfast.drop_table(t.client, "order"), "hint: did you mean orders?"),
        (
            lambda t: holdfast.table(t.client, "x", columns={"id": int}),
            "not type\nhint: use one of .*, list<T>",
        ),
        (lambda t: holdfast.table(t.client, "x", columns=pd.DataFrame()), "hint: such as {'id': 'int64'"),
    ],
)
def test_a_wrong_argument_gets_one_line(orders: Table, call: Callable[[Any], Any], said: str) -> None:
    orders.append([{"id": 1}])
    with pytest.raises(BadInput, match=said):
        call(orders)
    assert orders.read(limit=2**63 - 1)["id"].to_pylist() == [1]


def test_messages_name_the_table_and_a_way(orders: Table) -> None:
    with pytest.raises(AsOfNotYetAvailable, match=r"^table orders has no complete time: nothing has been"):
        orders.latest_time()
    bag = holdfast.table(orders.client, "bag", columns={"id": "int64"})
    with bag, pytest.raises(BadInput, match=r"delete\(where=\.\.\.\)"):
        bag.delete([1])
    orders.append([{"id": 3, "_diff": -1}])
    for call in (orders.read, orders.count, lambda: orders.read(limit=5), lambda: orders.scan().read_all()):
        with pytest.raises(BadInput, match=r"^table orders: the count of a row is -1"):
            call()
