"""Rows as dicts: exactly what was given is stored, or nothing."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from holdfast.errors import BadInput
from holdfast.persist.rows.canonical import prepare_updates
from holdfast.persist.rows.order import KeyRange
from holdfast.persist.rows.schema import Schema

NOON = datetime.fromisoformat("2020-01-01T12:30:00")
EAST = NOON.replace(tzinfo=timezone(timedelta(hours=5)))


class Level(IntEnum):
    HIGH = 7


def stored(type_: str, *values: Any) -> list[Any]:
    rows = [{"a": value} for value in values]
    return prepare_updates(Schema.of({"a": f"{type_}?"}), rows, default_time=0).column("a").to_pylist()


@pytest.mark.parametrize(
    ("type_", "value", "why"),
    [
        ("int64", 1.5, "1.5 in row 1: it is not an integer"),
        ("int64", Decimal("1.5"), "it is not an integer"),
        ("int64", np.float32(1.5), "it is not an integer"),
        ("int64", math.nan, "nan in row 1"),
        ("int64", math.inf, "inf in row 1"),
        ("int64", 1e30, "1e[+]30 in row 1"),
        ("int64", True, "row 1: True is a bool, but the column is int64"),
        ("int64", "7", "row 1: '7' is a string, but the column is int64"),
        pytest.param("int64", 10**5000, "a very long int in row 1", id="long"),
        ("int8", np.int64(300), "300.* in row 1"),
        ("uint8", 2.7, "it is not an integer"),
        ("uint64", -1, "-1 in row 1"),
        ("float32", 1e300, "1e[+]300 in row 1: beyond what float32 holds"),
        ("float32", np.float64(1e300), "beyond what float32 holds"),
        ("float64", 2**53 + 1, "9007199254740993 in row 1"),
        ("float64", True, "is a bool, but the column is double"),
        ("float64", Decimal("1.1"), "is a Decimal, but the column is double"),
        ("decimal128(10,2)", Decimal("1.255"), "1.255"),
        ("decimal128(10,2)", 1.25, "is a float, but the column is decimal128"),
        ("bool", 1, "is an integer, but the column is bool"),
        ("string", b"x", "is binary, but the column is string"),
        ("string", "\ud800", "surrogates not allowed"),
        ("binary", "x", "is a string, but the column is binary"),
        ("date32", NOON, "is a datetime, but the column is date32"),
        ("date32", 5, "is an integer, but the column is date32"),
        ("timestamp", EAST, "it has a time zone"),
        ("timestamp", pd.Timestamp("2020-01-01T00:00:00.000000001"), "finer than microseconds"),
        ("timestamp", 1.5, "is a float, but the column is timestamp"),
        ("timestamp", date(2020, 1, 1), "is a date, but the column is timestamp"),
        ("timestamp_utc", NOON, "it has no time zone"),
    ],
)
def test_what_would_lose_something_is_refused_by_column_row_and_value(
    type_: str, value: Any, why: str
) -> None:
    with pytest.raises(BadInput, match=f"^column 'a'(, | does not fit ).*{why}") as refused:
        stored(type_, None, value)
    assert "row 1" in str(refused.value)


@pytest.mark.parametrize(
    ("type_", "value", "same"),
    [
        ("int64", 2.0, 2),
        ("int64", Decimal("3.00"), 3),
        ("int64", np.int64(4), 4),
        ("int64", Level.HIGH, 7),
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("float32", np.float64(0.1), float(np.float32(0.1))),
        ("float32", math.inf, math.inf),
        ("float64", 1, 1.0),
        ("float64", np.float32(0.5), 0.5),
        ("decimal128(10,2)", 3, Decimal("3.00")),
        ("bool", np.True_, True),
        ("string", np.str_("x"), "x"),
        ("binary", bytearray(b"q"), b"q"),
        ("date32", date(2020, 1, 1), date(2020, 1, 1)),
        ("timestamp", pd.Timestamp(NOON), NOON),
        ("timestamp", NOON, NOON),
        ("timestamp_utc", EAST, EAST.astimezone(UTC)),
    ],
)
def test_what_loses_nothing_is_taken(type_: str, value: Any, same: Any) -> None:
    assert stored(type_, value, None) == [same, None]


@pytest.mark.parametrize("name", ["_time", "_diff"])
def test_times_and_diffs_are_integers(name: str) -> None:
    with pytest.raises(BadInput, match=f"column '{name}' does not fit u?int64: 1.5 in row 0"):
        prepare_updates(Schema.of({"a": "int64"}), [{"a": 1, name: 1.5}], default_time=0)


def test_a_limit_of_a_range_loses_nothing() -> None:
    with pytest.raises(BadInput, match=r"column 'a' does not fit int64: 1\.5"):
        KeyRange.between(Schema.of({"a": "int64"}), 1.5)


def test_a_column_name_is_text() -> None:
    with pytest.raises(BadInput, match="column name"):
        Schema.of({"\ud800": "int64"})


def test_an_arrow_column_of_floats_is_checked_as_before() -> None:
    schema = Schema.of({"a": "float32?"})
    given = pa.table({"a": pa.chunked_array([[0.5, None], [math.nan]], pa.float64())})
    assert prepare_updates(schema, given, default_time=0).column("a").to_pylist()[:2] == [0.5, None]
    with pytest.raises(BadInput, match="float32 can't hold exactly"):
        prepare_updates(schema, pa.table({"a": [0.1]}), default_time=0)
