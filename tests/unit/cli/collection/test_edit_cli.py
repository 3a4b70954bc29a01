"""`holdfast delete`, `update`, `merge` and `count`: the words of Python on the command line."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import csv, parquet

import holdfast
from holdfast.cli import main
from holdfast.file_formats import FILE_FORMATS

COLUMNS = {"id": "int64", "note": "string?", "size": "float64?"}


class Shop:
    """A location with the table `orders`, which has three rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with holdfast.table(folder / "at", "orders", columns=COLUMNS, key="id") as orders:
            orders.append({"id": [1, 2, 3], "note": ["a", None, "c d"], "size": [1.5, 2.0, None]})

    def run(self, *words: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(main, [*words, "--url", str(self.folder / "at")], input=stdin)

    def told(self, *words: str, stdin: bytes = b"") -> str:
        """What the command wrote to stderr, up to the time."""
        done = self.run(*words, stdin=stdin)
        assert (done.exit_code, done.stdout) == (0, ""), done.output
        return done.stderr.partition(", as of ")[0]

    def refused(self, *words: str, stdin: bytes = b"", code: int = 2) -> str:
        upper = self.upper()
        done = self.run(*words, stdin=stdin)
        assert (done.exit_code, done.stdout) == (code, ""), done.output
        assert self.upper() == upper
        return done.stderr

    def upper(self) -> int:
        with holdfast.table(self.folder / "at", "orders", mode="read") as orders:
            return orders.upper

    def rows(self) -> list[tuple[Any, ...]]:
        with holdfast.table(self.folder / "at", "orders", mode="read") as orders:
            return sorted(tuple(row.values()) for row in orders.read().to_pylist())


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop that no test changes."""
    return Shop(tmp_path_factory.mktemp("refusing"))


def test_rows_are_deleted_by_a_condition_a_key_or_all_of_them(shop: Shop) -> None:
    assert shop.told("delete", "orders", "--where", "note is null and id < 9") == "deleted 1 row of orders"
    assert shop.told("delete", "orders", "--key", "3", "--key", "7") == "deleted 1 row of orders"
    assert shop.rows() == [(1, "a", 1.5)]
    assert shop.told("delete", "orders", "--key", "7") == "deleted 0 rows of orders"
    assert shop.told("delete", "orders", "--all", "--quiet") == ""
    assert shop.rows() == []


def test_columns_are_set_by_a_condition_a_key_or_for_all_rows(shop: Shop) -> None:
    assert shop.told("update", "orders", "--set", "note=x=y", "--key", "1") == "updated 1 row of orders"
    assert (
        shop.told("update", "orders", "--set", "size=null", "--where", "id <= 2")
        == "updated 2 rows of orders"
    )
    assert shop.rows() == [(1, "x=y", None), (2, None, None), (3, "c d", None)]
    # Rows that have the value already do not change.
    both = ["--set", "note='null'", "--set", "size=1e3"]
    assert shop.told("update", "orders", *both, "--all") == "updated 3 rows of orders"
    assert shop.told("update", "orders", *both, "--all") == "updated 0 rows of orders"
    assert shop.rows() == [(each, "null", 1000.0) for each in (1, 2, 3)]
    # As a shell passes `note=''`.
    shop.told("update", "orders", "--set", "note=", "--key", "2")
    shop.told("update", "orders", "--set", "note='it''s'", "--key", "3")
    assert [row[1] for row in shop.rows()] == ["null", "", "it's"]


def test_what_changed_is_shown_as_json_too(shop: Shop) -> None:
    for words in (["delete", "orders", "--key", "1"], ["update", "orders", "--set", "note=z", "--all"]):
        done = shop.run(*words, "--format", "json")
        facts = json.loads(done.stdout)
        assert (facts["name"], facts["rows"], facts["time"]) == (
            "orders",
            {"delete": 1, "update": 2}[words[0]],
            shop.upper() - 1,
        )
        assert done.stderr == ""
    with holdfast.table(shop.folder / "at", "orders", mode="read") as orders:
        assert orders.history().to_pydict()["what"][-2:] == ["delete", "update"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "hint: give --where CONDITIONS or --key KEY, or --all for all rows"),
        (["--all", "--key", "1"], 2, "--key and --all can't be used together"),
        (["--where", "id = 1", "--all"], 2, "--where and --all can't be used together"),
        (["--where", ""], 2, "--where: expected a column"),
        (["--where", "", "--all"], 2, "--where and --all can't be used together"),
        (["--where", "price > 1"], 2, "column 'price' is not in the schema"),
        (["--key", "1.5"], 2, "--key: '1.5' is not a value of column 'id' (int64)"),
        (["--key", "null"], 2, 'hint: use --where "id is null"'),
        (["--key", "one"], 2, "--key: 'one' is not a value of column 'id' (int64)"),
    ],
)
def test_a_change_of_rows_needs_a_condition_that_fits(
    refusing: Shop, words: list[str], code: int, said: str
) -> None:
    assert said in refusing.refused("delete", "orders", *words, code=code)
    assert said in refusing.refused("update", "orders", "--set", "note=x", *words, code=code)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("note", "--set: 'note' has no '='"),
        ("price=1", "column 'price' is not in the schema"),
        ("id=4", "key column 'id' can't be set"),
        ("size=much", "--set: 'much' is not a value of column 'size' (float64)"),
        ("size=1e999", "--set: '1e999' is not a value of column 'size' (float64)"),
        ("size=", "--set: '' is not a value of column 'size' (float64)"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(refusing: Shop, value: str, said: str) -> None:
    assert said in refusing.refused("update", "orders", "--set", value, "--all")
    assert "is given twice" in refusing.refused(
        "update", "orders", "--set", "note=a", "--set", "note=b", "--all"
    )


DAY = datetime(2026, 2, 28, 12, 0, 0, 1)  # noqa: DTZ001 - of a column without a zone
TYPES: dict[str, tuple[str, object]] = {
    "bool": ("TRUE", True),
    "int8": ("-128", -128),
    "uint64": ("18446744073709551615", 2**64 - 1),
    "float32": ("0.1", 0.1),
    "float64": ("1e3", 1000.0),
    "decimal128(9,2)": ("1.50", Decimal("1.50")),
    "string": ("'it''s'", "it's"),
    "binary": ("00ff", b"\x00\xff"),
    "date32": ("2026-02-28", DAY.date()),
    "timestamp": ("2026-02-28T12:00:00.000001", DAY),
    "timestamp_utc": ("2026-02-28T12:00:00.000001", DAY.replace(tzinfo=UTC)),
    "timestamp(ns)": ("2026-02-28T12:00:00.000001", DAY),
    "timestamp(s,Europe/Paris)": ("2026-02-28T12:00", datetime(2026, 2, 28, 11, tzinfo=UTC)),
    "time(us)": ("12:00:00.000001", DAY.time()),
}


@pytest.mark.long
def test_a_value_of_each_type_is_set_and_found_as_a_key(tmp_path: Path) -> None:
    url = str(tmp_path)
    keys = {f"k{index}": type_ for index, type_ in enumerate(TYPES)}
    values = {f"v{index}": f"{type_}?" for index, type_ in enumerate(TYPES)}
    row = [value for _, value in TYPES.values()]
    with holdfast.table(url, "t", columns={**keys, **values}, key=[*keys]) as table:
        table.append([dict(zip(keys, row, strict=True))])
    key = ",".join(text for text, _ in TYPES.values())
    texts = [text for text, _ in TYPES.values()]
    given = [word for name, text in zip(values, texts, strict=True) for word in ("--set", f"{name}={text}")]
    done = CliRunner().invoke(main, ["update", "t", *given, "--key", key, "--url", url])
    assert done.stderr.startswith("updated 1 row of t"), done.output
    with holdfast.table(url, "t", mode="read") as table:
        found = table.read()
        for (type_, _), name, other in zip(TYPES.items(), keys, values, strict=True):
            assert found[name].to_pylist() == found[other].to_pylist(), type_
    done = CliRunner().invoke(main, ["delete", "t", "--key", key, "--url", url])
    assert done.stderr.startswith("deleted 1 row of t"), done.output


def test_a_key_of_several_columns_is_a_line_of_csv(tmp_path: Path) -> None:
    url = str(tmp_path)
    columns = {"day": "date32", "name": "string", "n": "int64?"}
    with holdfast.table(url, "t", columns=columns, key=["day", "name"]) as table:
        table.append(pa.table({"day": pa.array([0, 0], pa.date32()), "name": ["a,b", "c"], "n": [1, 2]}))
    for words, code, said in (
        (["--key", '1970-01-01,"a,b"'], 0, "deleted 1 row of t, as of "),
        (["--key", "1970-01-01"], 2, "--key: '1970-01-01' has 1 of 2 values: day, name"),
        (["--key", '1970-01-01,"c'], 2, "is not one line of CSV"),
    ):
        done = CliRunner().invoke(main, ["delete", "t", *words, "--url", url])
        assert done.exit_code == code, done.output
        assert said in done.stderr
    holdfast.table(url, "keyless", columns={"n": "int64"}).close()
    done = CliRunner().invoke(main, ["delete", "keyless", "--key", "1", "--url", url])
    assert "--key: there are no key columns" in done.stderr


MERGED: list[tuple[list[str], str, list[tuple[Any, ...]]]] = [
    (
        [],
        "2 rows into orders: 2 rows changed",
        [(1, "a", 7.0), (2, None, 2.0), (3, "c d", None), (9, None, 8.0)],
    ),
    (
        ["--missing", "ignore"],
        "2 rows into orders: 1 row changed",
        [(1, "a", 7.0), (2, None, 2.0), (3, "c d", None)],
    ),
    (
        ["--matched", "keep"],
        "2 rows into orders: 1 row changed",
        [(1, "a", 1.5), (2, None, 2.0), (3, "c d", None), (9, None, 8.0)],
    ),
    (
        ["--matched", "delete", "--missing", "ignore"],
        "2 rows into orders: 1 row changed",
        [(2, None, 2.0), (3, "c d", None)],
    ),
]


@pytest.mark.parametrize(("words", "said", "rows"), MERGED)
def test_rows_are_merged_from_a_file(
    shop: Shop, words: list[str], said: str, rows: list[tuple[Any, ...]]
) -> None:
    given = shop.folder / "rows.csv"
    given.write_text("id,size\n1,7\n9,8\n")
    assert shop.told("merge", "orders", "--from", str(given), *words) == f"merged {said}"
    assert shop.rows() == rows


@pytest.mark.long
def test_rows_are_merged_from_each_format(shop: Shop) -> None:
    for number, form in enumerate(FILE_FORMATS):
        given = shop.folder / f"rows.{form}"
        made = pa.table({"id": [1, 2], "size": [float(number)] * 2})
        if form == "csv":
            csv.write_csv(made, given)
        elif form == "json":
            given.write_text("".join(f"{json.dumps(row)}\n" for row in made.to_pylist()))
        elif form == "parquet":
            parquet.write_table(made, given)
        else:
            with pa.ipc.new_file(given, made.schema) as writer:
                writer.write_table(made)
        assert shop.told("merge", "orders", "--from", str(given)).startswith("merged 2 rows into orders")
        assert shop.rows() == [(1, "a", float(number)), (2, None, float(number)), (3, "c d", None)]


def test_rows_are_merged_from_standard_input(shop: Shop) -> None:
    assert shop.told("merge", "orders", "--format", "csv", stdin=b"id,note\n2,b\n") == (
        "merged 1 row into orders: 1 row changed"
    )
    assert shop.rows()[1] == (2, "b", 2.0)
    assert shop.told("merge", "orders", "--from", "-", "--format", "json") == (
        "merged 0 rows into orders: 0 rows changed"
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        # A null would take a value away that the line doesn't speak of.
        (b'{"id": 1, "size": 7}\n{"id": 2}\n', "column 'size' is in the first line, and not in all lines"),
        (b'{"id": 1}\n\n{"id": 2, "note": "x"}\n', "column 'note' is in line 3, and not in all lines"),
        (b'{"note": "x"}\n', "column 'id' is missing"),
        (b'{"id": 1}\n{"id": 1}\n', "table orders: a merge has key (id=1) more than once"),
        (b'{"id": 1, "price": 2}\n', "column 'price' is not in the schema"),
    ],
)
def test_rows_that_can_not_be_merged_are_refused(refusing: Shop, lines: bytes, said: str) -> None:
    refused = refusing.refused("merge", "orders", "--format", "json", stdin=lines)
    assert said in refused
    assert "standard input: " in refused


def test_rows_are_counted(shop: Shop) -> None:
    before = shop.upper() - 1
    shop.told("delete", "orders", "--key", "1")
    for words, found in (
        ([], 2),
        (["--where", "note is null"], 1),
        (["--as-of", str(before)], 3),
        (["--as-of", "2026-01-01", "--where", "id > 0"], 0),
        (["--as-of", str(before + 10**9), "--or-earlier"], 2),
    ):
        assert shop.run("count", "orders", *words).stdout == f"{found}\n"
        assert json.loads(shop.run("count", "orders", *words, "--json").stdout)["rows"] == found
    holdfast.table(shop.folder / "at", "none", columns=COLUMNS).close()
    assert (
        shop.run("count", "none").stdout == shop.run("count", "none", "--as-of", "2026-01-01").stdout == "0\n"
    )
    assert shop.run("count", "none", "--as-of", "2999-01-01").exit_code == 1
    assert "--where: expected" in shop.refused("count", "orders", "--where", "id")
    assert "no collection has the id or name 'gone'" in shop.refused("count", "gone")
    assert "no collection has the id or name 'gone'" in shop.refused("delete", "gone", "--all")
