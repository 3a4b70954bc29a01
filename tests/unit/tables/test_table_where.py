"""Conditions choose the rows that DuckDB chooses, from a text and from lists, and lose none by statistics."""

import math
from collections.abc import Iterator
from datetime import date
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.collections import conditions
from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.persist.rows.canonical import prepare_updates, sort_updates
from holdfast.persist.rows.part import encode_parquet
from holdfast.persist.rows.row_filter import PartBounds, both
from holdfast.tables.filters import filter_of
from holdfast.tables.where import parse_where

COLUMNS = {"i": "int32?", "f": "float32?", "g": "float64?", "s": "string?", "d": "date32?"}
SCHEMA = Schema.of({"id": "int64"}, COLUMNS)
TEXTS = ["", "a", "ab", "a%b", "a.b", "a\nb", "ä€😀", "b", "(+", "B"]
ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-2, 3),
        "f": st.none() | st.sampled_from([0.1, 0.25, -0.1, 2.0, math.inf, math.nan]),
        "g": st.none() | st.sampled_from([0.1, 0.25, -0.1, 2.0, -math.inf, math.nan]),
        "s": st.none() | st.sampled_from(TEXTS),
        "d": st.none() | st.sampled_from([date(2026, 1, 1), date(2026, 1, 2)]),
    }
)
VALUES = {
    "i": ["-1", "0", "2", "3.0"],
    "f": ["0.1", "-0.1", "0.25", "3"],
    "g": ["0.1", "-0.1", "0.25", "3"],
    "s": [f"'{each}'" for each in TEXTS],
    "d": ["'2026-01-01'", "'2026-01-02'", "'2026-02-01'"],
}
PATTERNS = ["%", "_", "a%", "%b", "a_b", "a%b%", "__", "ä_%", "(+", "", "a.%", "_b", "%😀", "A%"]


@st.composite
def leaves(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(COLUMNS)))
    value = st.sampled_from(VALUES[name])
    is_not = draw(st.sampled_from(["", "not "]))
    match draw(st.integers(0, 5)):
        case 0:
            return f"{name} is {is_not}null"
        case 1:
            return f"{name} {is_not}in ({', '.join(draw(st.lists(value, min_size=1, max_size=3)))})"
        case 2:
            return f"{name} {is_not}between {draw(value)} and {draw(value)}"
        case 3:
            return f"s {is_not}like '{draw(st.sampled_from(PATTERNS))}'"
        case _:
            return f"{name} {draw(st.sampled_from(['=', '!=', '<>', '<', '<=', '>', '>=']))} {draw(value)}"


CONDITIONS = st.recursive(
    leaves(),
    lambda inner: (
        st.builds("{} and {}".format, inner, inner)
        | st.builds("{} or {}".format, inner, inner)
        | st.builds("({})".format, inner)
        | st.builds("not ({})".format, inner)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("polars", [True, False])  # Not in a forked child.
def test_duckdb_chooses_the_same_rows(polars: bool) -> None:
    connection = duckdb.connect()

    @settings(max_examples=30, phases=[Phase.generate])
    @given(rows=st.lists(ROWS, min_size=1, max_size=12), where=CONDITIONS)
    def check(rows: list[dict[str, Any]], where: str) -> None:
        numbered = [{"id": number, **row} for number, row in enumerate(rows)]
        batch = pa.RecordBatch.from_pylist(numbered, SCHEMA.arrow)
        connection.register("t", pa.Table.from_batches([batch]))
        expected = connection.execute(f"SELECT id FROM t WHERE {where} ORDER BY id").fetchall()
        chosen = filter_of(parse_where(where, SCHEMA), SCHEMA)
        with mock.patch.object(conditions, "polars_works", return_value=polars):
            found = batch.filter(chosen.mask(batch)).column("id").to_pylist()
        assert found == [number for (number,) in expected], where

        updates = sort_updates(SCHEMA, prepare_updates(SCHEMA, numbered, default_time=0))
        part = encode_parquet(SCHEMA, 1, pa.Table.from_batches([updates]), row_group_rows=2)
        bounds = PartBounds(SCHEMA, pq.read_metadata(pa.BufferReader(part)))
        assert {number // 2 for number in found} <= set(chosen.groups(bounds)) <= set(range(bounds.groups))

    check()


def test_statistics_exclude_a_group_only_for_all_of_the_alternatives() -> None:
    rows = [
        {**dict.fromkeys(COLUMNS), "id": n, "i": n, "s": text}
        for n, text in enumerate(("a1", "a2", "b1", "b2", "c1", "c2"))
    ]
    updates = sort_updates(SCHEMA, prepare_updates(SCHEMA, rows, default_time=0))
    part = encode_parquet(SCHEMA, 1, pa.Table.from_batches([updates]), row_group_rows=2)
    bounds = PartBounds(SCHEMA, pq.read_metadata(pa.BufferReader(part)))

    def groups(where: Any) -> list[int]:
        return list(filter_of(where, SCHEMA).groups(bounds))

    assert groups([[("id", "<", 2)], [("s", "like", "c%")]]) == [0, 2]
    assert groups([[("id", "<", 2), ("s", "like", "c%")], [("i", "=", 3)]]) == [1]
    assert groups([("s", "like", "b_")]) == [1]
    assert groups([[("id", ">", 9)], [("g", "=", 0)]]) == []
    assert groups([("id", "not in", [0, 1])]) == [0, 1, 2]
    assert groups([("g", "not in", [1])]) == []


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return (tmp_path_factory.mktemp("where") / "location").as_uri()


@pytest.fixture(scope="module")
def table(url: str) -> Iterator[holdfast.Table]:
    with holdfast.table(url, "t", columns=COLUMNS) as table:
        values = [(1, 0.1, "ant"), (2, 0.25, "bee"), (None, None, None)]
        table.append([{"i": i, "f": f, "g": f, "s": s, "d": None} for i, f, s in values])
        yield table


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ([], [1, 2, None]),
        ([[("i", "=", 1)], [("s", "like", "b%")]], [1, 2]),
        ([[("i", "=", 1), ("s", "like", "b%")]], []),
        ([("i", "not in", [1, 7])], [2]),
        ([("i", "not in", [1.5])], [1, 2]),
        ([("s", "not like", "a%")], [2]),
        ([("f", "=", 0.1)], [1]),
        ([("f", "in", [0.1, 0.2])], [1]),
        ([("f", ">", 0.1)], [2]),
        ([("f", "<", 1e39)], [1, 2]),
        ([("f", ">=", -1e39)], [1, 2]),
        ([("g", "=", 0.1)], [1]),
    ],
)
def test_lists_choose_rows(table: holdfast.Table, where: Any, found: list[int | None]) -> None:
    assert sorted(table.read(columns=["i"], where=where)["i"].to_pylist(), key=str) == found
    assert table.count(where) == len(found)


@pytest.mark.parametrize("value", ["0.1", "0.25"])
def test_a_float32_column_has_the_number_that_was_written(
    table: holdfast.Table, url: str, value: str
) -> None:
    by_list = table.count([("f", "=", float(value))])
    by_text = table.count(parse_where(f"f = {value}", SCHEMA))
    with holdfast.sql(url, f"SELECT count(*) FROM t WHERE f = {value}") as result:
        by_sql = result.read().column(0).to_pylist()
    assert [by_list, by_text, *by_sql] == [1, 1, 1]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ([("i", "not in", [1, None])], "has null, which equals nothing"),
        ([("i", "not in", 1)], "'not in' needs a list"),
        ([("i", "like", "1%")], "'like' can be used only for text"),
        ([("s", "like", 3)], "'like' needs a pattern"),
        ([("s", "like", r"a\%")], "has a backslash"),
        ([("s", "like", "_" * 1001)], "at most 1000 characters"),
        ([[]], "is not a condition"),
        ([[("i", "=", 1)], []], "is not a condition"),
        ([[("i", "=", 1)], ("i", "=", 2)], "is not a condition"),
        ([[[("i", "=", 1)]]], "is not a condition"),
    ],
)
def test_a_wrong_list_is_refused(table: holdfast.Table, where: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        table.read(where=where)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("i = 1 or", "expected a column"),
        ("(i = 1", r"expected 'and', 'or' or '\)'"),
        ("i not 1", "expected in, like or between"),
        ("s like a", "expected a pattern in single quotes"),
        ("i between 1 or 2", "expected 'and'"),
        ("i not in (1, null)", "nothing equals null"),
        (" and ".join(["(i = 1 or i = 2)"] * 10), "has more than 1000 cases"),
        ("(" * 101 + "i = 1" + ")" * 101, "more than 100 parentheses"),
    ],
)
def test_a_wrong_text_is_refused(where: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_where(where, SCHEMA)


@pytest.mark.parametrize(("first", "given_rows"), [("id = 30", 1), ("id = -1", 0), ("id >= 30", 100)])
def test_the_second_of_two_filters_gets_only_rows_that_the_first_one_chooses(
    first: str, given_rows: int
) -> None:
    schema = Schema.of({"id": "int64"}, {"s": "string?"})
    texts = [None if i % 3 else str(i) for i in range(100)]
    rows = pa.record_batch({"id": range(100), "s": texts, "_diff": [1] * 100}, schema.arrow_diff)
    one, two = (filter_of(parse_where(text, schema), schema) for text in (first, "s is not null"))
    expected = pc.and_(one.mask(rows), two.mask(rows))
    with mock.patch.object(two, "mask", wraps=two.mask) as mask:
        assert both(one, two).mask(rows) == expected
    assert sum(call.args[0].num_rows for call in mask.mock_calls) == given_rows
