"""Every input becomes one form, or an error that names the column."""

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import polars_forks
from holdfast.errors import CLOSED, BadInput
from holdfast.persist.rows import arrow_rows, canonical
from holdfast.persist.rows.canonical import prepare_updates, sort_updates, time_bounds
from holdfast.persist.rows.part import encode_inline
from holdfast.persist.rows.schema import Schema
from unit.persist.rows.strategies import batches, comparable, schemas

PEOPLE = Schema.of(key={"id": "int64"}, value={"name": "string?"})


def test_columns_come_in_any_order_and_time_and_diff_have_defaults() -> None:
    batch = prepare_updates(PEOPLE, pa.table({"name": ["a", None], "id": [1, 2]}), default_time=7)
    assert batch.schema.equals(PEOPLE.arrow_updates)
    assert batch.to_pylist() == [
        {"id": 1, "name": "a", "_time": 7, "_diff": 1},
        {"id": 2, "name": None, "_time": 7, "_diff": 1},
    ]


@pytest.mark.parametrize(
    "given_",
    [
        pa.RecordBatch.from_pydict({"id": [1, 2], "name": ["a", "b"]}),
        pa.concat_tables([pa.table({"id": [1], "name": ["a"]}), pa.table({"id": [2], "name": ["b"]})]),
        pa.table({"id": pa.array([1, 2], pa.int8()), "name": pa.array(["a", "b"]).dictionary_encode()}),
        pa.table({"id": [1.0, 2.0], "name": pa.array(["a", "b"], pa.large_string())}),
        pa.table(
            {"id": [1, 2], "name": pa.array(["a", "b"], pa.string_view()), "_time": [3, 3], "_diff": [1, 1]}
        ),
        [{"id": 1, "name": "a"}, {"name": "b", "id": 2, "_diff": 1}],
        pl.DataFrame({"id": [1, 2], "name": ["a", "b"]}),
        pd.DataFrame({"id": [1, 2], "name": ["a", "b"]}),
        pd.DataFrame({"id": [0, 1, 2], "name": ["x", "a", "b"]})[1:],
    ],
    ids=["batch", "chunks", "dictionary", "large", "view", "dicts", "polars", "pandas", "pandas-filtered"],
)
def test_every_kind_of_input_gives_the_same_batch(given_: Any) -> None:
    batch = prepare_updates(PEOPLE, given_, default_time=3)
    expected = prepare_updates(PEOPLE, pa.table({"id": [1, 2], "name": ["a", "b"]}), default_time=3)
    assert batch.equals(expected)


def test_nothing_gives_an_empty_batch_with_all_columns() -> None:
    nothings: list[Any] = [
        None,
        [],
        pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())}),
    ]
    for nothing in nothings:
        batch = prepare_updates(PEOPLE, nothing, default_time=CLOSED)
        assert batch.num_rows == 0
        assert batch.schema.equals(PEOPLE.arrow_updates)
        assert time_bounds(batch) is None


def test_an_update_with_diff_zero_is_dropped() -> None:
    batch = prepare_updates(PEOPLE, [{"id": 1, "_diff": 0}, {"id": 2, "_diff": -1}], default_time=0)
    assert [(row["id"], row["_diff"]) for row in batch.to_pylist()] == [(2, -1)]


def test_time_bounds_are_inclusive_and_span_all_of_uint64() -> None:
    batch = prepare_updates(PEOPLE, [{"id": 1, "_time": 2**64 - 1}, {"id": 1, "_time": 0}], default_time=5)
    assert time_bounds(batch) == (0, 2**64 - 1)


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        (pa.table({"name": ["a"]}), "column 'id' is missing"),
        (pa.table({"id": [1], "name": ["a"], "age": [3]}), "column 'age' is not in the schema"),
        (pa.table([[1], [2], ["a"]], names=["id", "id", "name"]), "column 'id' is given twice"),
        (
            pa.table({"id": [1, None], "name": ["a", "b"]}),
            "column 'id' is not nullable, but 1 row has a null",
        ),
        (
            pa.table({"id": pa.nulls(2), "name": ["a", "b"]}),
            "column 'id' is not nullable, but 2 rows have a null",
        ),
        (pa.table({"id": ["1"], "name": ["a"]}), "column 'id' is string"),
        (pa.table({"id": [1.5], "name": ["a"]}), "column 'id' does not fit int64"),
        (pa.table({"id": [math.nan], "name": ["a"]}), "column 'id' does not fit int64"),
        (pa.table({"id": pa.array([2**63], pa.uint64()), "name": ["a"]}), "column 'id' does not fit int64"),
        (pa.table({"id": [1], "name": [b"a"]}), "column 'name' is binary"),
        (
            pa.table({"id": [1], "name": ["a"], "_time": [-1]}),
            "column '_time' does not fit uint64: -1 is not from 0 to 18446744073709551615",
        ),
        (pa.table({"id": [1], "name": ["a"], "_time": [1.0]}), "column '_time' must be uint64"),
        (pa.table({"id": [1], "name": ["a"], "_diff": pa.array([None], pa.int64())}), "column '_diff'"),
        (pa.table({"id": [1], "name": ["a"], "_op": [1]}), "column '_op' is not in the schema"),
        ([{"id": "x"}], "column 'id', row 0: 'x' is a string, but the column is int64"),
        ([{"id": 2**63}], "column 'id' does not fit int64"),
        ([{"id": 1, "age": 3}], "column 'age' is not in the schema"),
        ([{"name": "a"}], "column 'id' is not nullable"),
        ([(1, "a")], "not a list of tuple"),
        ("id", "not str"),
        (7, "not int"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(updates: Any, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        prepare_updates(PEOPLE, updates, default_time=0)
    assert message in str(caught.value)


def test_text_that_is_not_utf8_is_refused() -> None:
    text = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(BadInput, match="'name' is not valid UTF-8"):
        prepare_updates(PEOPLE, pa.table({"id": [1], "name": text}), default_time=0)


def test_a_decimal_with_more_digits_than_its_type_is_refused() -> None:
    schema = Schema.of({}, {"x": "decimal128(5,2)?", "y": "list<decimal128(5,2)?>?"})
    type_ = pa.decimal128(5, 2)
    wide = pa.Array.from_buffers(type_, 1, [None, pa.py_buffer((100_000).to_bytes(16, "little"))])
    nested = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), wide)
    for rows in ({"x": wide}, {"y": nested}):
        with pytest.raises(BadInput, match="does not fit decimal128"):
            prepare_updates(schema, pa.table(rows), default_time=0)


def test_an_update_at_the_closed_frontier_is_refused() -> None:
    with pytest.raises(BadInput, match="no update can have the time"):
        prepare_updates(PEOPLE, [{"id": 1}], default_time=CLOSED)


@pytest.mark.parametrize(
    ("want", "array", "fits"),
    [
        ("float32", pa.array([1.5, None, math.nan]), True),
        ("float32", pa.array([0.1]), False),
        ("float32", pa.array([1e300]), False),
        ("float64", pa.array([0.1], pa.float32()), True),
        ("float64", pa.array([2**53 + 1]), False),
        ("int32", pa.array([Decimal(7)], pa.decimal128(5, 2)), True),
        ("int32", pa.array([Decimal("7.5")], pa.decimal128(5, 2)), False),
        ("decimal128(5,2)", pa.array([7]), True),
        ("decimal128(5,2)", pa.array([1000]), False),
        ("decimal128(5,2)", pa.array([Decimal("1.123")]), False),
        ("timestamp", pa.array([1000], pa.timestamp("ns")), True),
        ("timestamp", pa.array([1001], pa.timestamp("ns")), False),
        ("timestamp", pa.array([1], pa.timestamp("us", tz="UTC")), False),
        ("timestamp_utc", pa.array([1], pa.timestamp("s", tz="Europe/Berlin")), True),
        ("timestamp_utc", pa.array([1], pa.timestamp("us")), False),
        ("date32", pa.array([86_400_000], pa.date64()), True),
        ("bool", pa.array([1]), False),
        ("uint8", pa.array([True]), False),
        ("binary", pa.array([b"ab"], pa.binary(2)), True),
        ("string", pa.array([b"ab"]), False),
        ("int64", pa.array([[1]]), False),
    ],
)
def test_a_cast_loses_nothing(want: str, array: pa.Array, fits: bool) -> None:
    schema = Schema.of(key={}, value={"x": f"{want}?"})
    if fits:
        batch = prepare_updates(schema, pa.table({"x": array}), default_time=0)
        assert batch.schema.equals(schema.arrow_updates)
        assert batch.column("x").null_count == array.null_count
    else:
        with pytest.raises(BadInput, match="column 'x'"):
            prepare_updates(schema, pa.table({"x": array}), default_time=0)


def test_instants_keep_their_moment_across_zones() -> None:
    schema = Schema.of(key={"at": "timestamp_utc"})
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    batch = prepare_updates(
        schema, pa.table({"at": pa.array([noon], pa.timestamp("s", tz="+02:00"))}), default_time=0
    )
    assert batch.column("at").to_pylist() == [noon]


@pytest.mark.parametrize(("name", "code"), [("float32", "<f"), ("float64", "<d")])
def test_floats_have_one_nan_and_no_negative_zero(name: str, code: str) -> None:
    size = struct.calcsize(code)
    strange = {4: b"\x01\x00\xc0\xff", 8: b"\x01\x00\x00\x00\x00\x00\xf8\xff"}[size]
    raw = struct.pack(code, -0.0) + strange + struct.pack(code, 1.5) + struct.pack(code, -math.inf)
    schema = Schema.of(key={"x": f"{name}?"})
    type_ = schema.arrow.field("x").type
    clean = pa.Array.from_buffers(type_, 4, [None, pa.py_buffer(raw)])
    holes = pa.concat_arrays([pa.nulls(1, type_), clean])[0:]
    for array in (clean, clean[1:], holes):
        batch = prepare_updates(schema, pa.table({"x": array}), default_time=0)
        packed = [None if v is None else struct.pack(code, v) for v in batch.column("x").to_pylist()]
        nan = struct.pack(code, math.nan)
        expected = [struct.pack(code, 0.0), nan, struct.pack(code, 1.5), struct.pack(code, -math.inf)]
        assert (
            packed == ([None] if array.null_count else []) + expected[4 - (len(array) - array.null_count) :]
        )


@given(st.data())
def test_sorted_updates_are_in_the_total_order(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    batch = data.draw(batches(schema))
    expected = sorted(zip(comparable(schema, batch), batch.column("_time").to_pylist(), strict=True))
    for small, few, lost in ((0, 0, False), (0, 0, True), (0, 4096, False), (1000, 4096, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(canonical, "SMALL_ROWS", small)
            patch.setattr(arrow_rows, "FEW_ROWS", few)
            patch.setattr(polars_forks, "_lost", lost)
            for table in (batch, pa.Table.from_batches([batch])):
                result = sort_updates(schema, table)
                assert type(result) is type(table)
                assert result.schema.equals(schema.arrow_updates)
                times = result.column("_time").to_pylist()
                assert list(zip(comparable(schema, result), times, strict=True)) == expected
                assert sorted(result.column("_diff").to_pylist()) == sorted(batch.column("_diff").to_pylist())


@given(st.data())
def test_preparing_prepared_updates_changes_nothing(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    batch = data.draw(batches(schema))
    again = prepare_updates(schema, batch, default_time=0)
    assert encode_inline(again) == encode_inline(batch)
