"""`holdfast collection read --where --columns`: the conditions that it reads, and those that it refuses."""

import datetime as dt
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import main
from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.tables.where import parse_where

COLUMNS = {
    "id": "int64",
    "note": "string?",
    "on": "bool?",
    "day": "date32?",
    "at": "timestamp_utc?",
    "raw": "binary?",
    "and so": "float64?",
}
SCHEMA = Schema.of({"id": "int64"}, {name: type_ for name, type_ in COLUMNS.items() if name != "id"})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = (tmp_path_factory.mktemp("where") / "location").as_uri()
    with holdfast.table(url, "t", columns=COLUMNS, key="id") as table:
        none = dict.fromkeys(COLUMNS)
        table.append(
            [
                {**none, "id": 1, "note": "it's", "on": True, "day": dt.date(2026, 1, 1), "and so": 1.5},
                {
                    **none,
                    "id": 2,
                    "note": "a and b",
                    "on": False,
                    "day": dt.date(2026, 1, 2),
                    "raw": b"\x00\xff",
                },
                {**none, "id": 3, "note": "true", "at": dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)},
                {**none, "id": 4, "and so": -1.5},
            ]
        )
    return url


def read(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["collection", "read", "t", "--url", url, "--format", "json", *arguments])


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("id = 3", [3]),
        ("id==3", [3]),
        ("id!=3 AND id <> 1", [2, 4]),
        ("id > 1 and id<=3", [2, 3]),
        ("id < 2.5", [1, 2]),
        ("id in (1,4, 77)", [1, 4]),
        ("note is null", [4]),
        ("note IS NOT NULL and id >= 2", [2, 3]),
        ("note = 'it''s'", [1]),
        ("note = 'a and b'", [2]),
        ("note in ('a and b', true)", [2, 3]),
        ("note = '3'", []),
        ("on = true", [1]),
        ("on in (true, FALSE)", [1, 2]),
        ("day >= 2026-01-02", [2]),
        ("day = '2026-01-01'", [1]),
        ("at >= '2026-01-01T13:00:00+01:00'", [3]),
        ("raw = 00ff", [2]),
        ('"and so" < 0', [4]),
        ("id = 4 or note like 'a%'", [2, 4]),
        ("id not in (1, 2) and not (id = 3)", [4]),
        ('"and so" = -1.5 and "note" is null', [4]),
    ],
)
def test_rows_for_which_all_conditions_hold(url: str, where: str, ids: list[int]) -> None:
    result = read(url, "--where", where, "--columns", "id")
    assert result.exit_code == 0, result.output
    assert sorted(json.loads(line)["id"] for line in result.stdout.splitlines()) == ids


def test_columns_limit_and_counts_go_together(url: str) -> None:
    result = read(url, "--where", "id > 1", "--columns", "note, id", "--limit", "1", "--diff")
    assert result.exit_code == 0, result.output
    assert [[*json.loads(line)] for line in result.stdout.splitlines()] == [["note", "id", "_diff"]]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "expected a column, not its end"),
        ("id", "expected one of = == != <> < <= > >=, in, like, between, not, is, not its end"),
        ("id =", "expected a value, not its end"),
        ("id = 1 xor id = 2", "expected 'and' or 'or', not 'xor'"),
        ("id = 1 and", "expected a column, not its end"),
        ("= 1", "expected a column, not '='"),
        ("id ( 1", "expected one of"),
        ("id in 1", "expected '(', not '1'"),
        ("id in (1 2)", "expected ',' or ')', not '2'"),
        ("id in ()", "expected a value, not ')'"),
        ("id is 3", "expected 'null', not '3'"),
        ("id = null", "nothing equals null"),
        ("note = 'open", "can't read"),
        ("nope = 1", "'nope' is not in the schema"),
        ("note = 3", "column 'note' is text, and 3 is a number"),
        ("note in ('a', -1.5e3)", "column 'note' is text, and -1.5e3 is a number"),
        ("id = x", "'x' is not a value of column 'id'"),
        ("on = 1", "'1' is not a value of column 'on'"),
    ],
)
def test_a_wrong_condition_is_one_line(where: str, message: str, url: str) -> None:
    result = read(url, "--where", where)
    assert result.exit_code != 0
    assert message in result.output
    assert "collection t: " in result.output


def test_a_column_that_does_not_exist_is_refused(url: str) -> None:
    assert "'nope' is not in the schema" in read(url, "--columns", "id,nope").output


@pytest.mark.parametrize("text", ["id = 'a''", '"id = 1', 'id = 1 " and', "'", "''''''"])
def test_quotes_must_be_closed(text: str) -> None:
    with pytest.raises(BadInput):
        parse_where(text, SCHEMA)


def test_the_conditions_are_those_of_a_list() -> None:
    found: list[list[tuple[str, str, Any]]] = parse_where(
        "\"id\" in (1, '2') and on = True or not (note = true or id between 1 and 2)", SCHEMA
    )
    assert found == [
        [("id", "in", ["1", "2"]), ("on", "=", True)],
        [("note", "!=", "true"), ("id", "<", "1")],
        [("note", "!=", "true"), ("id", ">", "2")],
    ]


@pytest.mark.parametrize(
    ("where", "told", "hint"),
    [
        ('note = "it\'s"', "in double quotes is a column", "write 'it''s' in single quotes"),
        ("id = 1.5", "column 'id' has whole numbers (int64), so it never equals 1.5", "id > 1.5"),
        ("id != -.5", "never equals -.5", "id > -.5"),
        ("id in (1, 2e-1)", "never equals 2e-1", "id > 2e-1"),
        ("id = 1e-999999999", "never equals 1e-999999999", "id > 1e-999999999"),
        (f"id = {'9' * 1900}.5", f"never equals {'9' * 59}…", "compare with <"),
    ],
)
def test_a_comparison_that_can_find_nothing_is_refused(url: str, where: str, told: str, hint: str) -> None:
    result = read(url, "--where", where)
    assert result.exit_code == 2
    message, hinted = result.stderr.splitlines()
    assert told in message
    assert hint in hinted


@pytest.mark.parametrize("value", ["1e30", "1e40", "1e999999999", "9" * 1900, "1" + "0" * 1900 + ".0"])
def test_a_number_beyond_all_of_the_column_equals_none(url: str, value: str) -> None:
    assert read(url, "--where", f"id = {value}").stdout == ""
    assert read(url, "--where", f"id in ({value}, 3)").stdout == read(url, "--where", "id = 3").stdout


def test_a_number_with_an_endless_exponent_is_no_value(url: str) -> None:
    assert "is not a value of column 'id'" in read(url, "--where", f"id = 1e{'9' * 30}").output


def test_whole_numbers_may_have_a_point(url: str) -> None:
    for where in ("id = 3.0", "id in (3e0)", "id > 2.5 and id < 3.5"):
        assert json.loads(read(url, "--where", where).stdout)["id"] == 3
