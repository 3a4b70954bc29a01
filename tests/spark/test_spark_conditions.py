"""Conditions of the option `where` mean the same as in Spark, and rows that cannot match are not read."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast import polars_forks
from holdfast.collections.conditions import kept, narrowed
from holdfast.errors import BadInput
from holdfast.persist import Schema, SnapshotPart
from holdfast.persist.rows.canonical import python_values
from holdfast.spark.conditions import conditions

SCHEMA = Schema.of(
    key={"id": "int64"},
    value={
        "ratio": "float64?",
        "name": "string?",
        "price": "decimal128(10,2)?",
        "day": "date32?",
        "at": "timestamp_utc?",
        "local": "timestamp?",
        "raw": "binary?",
        "small": "uint8?",
        "on": "bool?",
    },
)
NAN = float("nan")
UTC = dt.UTC
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "id": 1,
            "ratio": -0.0,
            "name": "a",
            "price": Decimal("1.50"),
            "day": dt.date(2026, 1, 1),
            "on": True,
        },
        {"id": 2, "ratio": NAN, "name": None, "at": dt.datetime(2026, 1, 1, tzinfo=UTC), "small": 255},
        {
            "id": 3,
            "ratio": 2.5,
            "name": "c",
            "local": dt.datetime.fromisoformat("2026-01-01"),
            "raw": b"\x00\xff",
            "on": False,
        },
        {"id": 4, "ratio": None, "name": "d\0", "price": Decimal("-2.00"), "small": 7},
    ],
    schema=SCHEMA.arrow,
)


@pytest.mark.parametrize("lost", [False, True], ids=["polars", "arrow"])
@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ([("id", ">=", 2), ("id", "<", 4)], [2, 3]),
        ([("id", "==", 3)], [3]),
        ([("id", "in", [1, 4, 9])], [1, 4]),
        ([("id", "!=", 1), ("name", "<>", "c")], [4]),
        ([("ratio", ">", 1)], [2, 3]),
        ([("ratio", "=", NAN)], [2]),
        ([("ratio", "<=", NAN)], [1, 2, 3]),
        ([("ratio", "=", 0)], [1]),
        ([("name", "is", None)], [2]),
        ([("name", "is not", None)], [1, 3, 4]),
        ([("name", ">", "d")], [4]),
        ([("price", "<", "1.50")], [4]),
        ([("price", "=", 1.5)], [1]),
        ([("day", "=", "2026-01-01")], [1]),
        ([("at", "<=", "2026-01-01T01:00:00+01:00")], [2]),
        ([("at", "<=", "2026-01-01")], [2]),
        ([("local", "=", "2026-01-01T00:00:00")], [3]),
        ([("raw", "=", "00ff")], [3]),
        ([("small", "in", [255])], [2]),
        ([("on", "=", False)], [3]),
        ([("id", "<", 0)], []),
        ([("id", "<", 2.5), ("price", "<", "1.501")], [1]),
        ([("id", "in", [0.9, "2", Decimal("3.0")])], [2, 3]),
        ([("id", "in", [0.9])], []),
    ],
)
def test_rows_are_kept_of_which_all_conditions_hold(
    where: list[Any], ids: list[int], lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polars_forks, "_lost", lost)
    assert kept(ROWS, conditions(where, "orders", SCHEMA)).column("id").to_pylist() == ids


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (("nam", "=", "a"), "collection orders has no column 'nam'; it has id, ratio"),
        (("id", "glob", "a"), "'glob' is not an operator; the operators are ="),
        (("id", ["="], 1), "is not an operator"),
        (("id", "=", None), "None is not a value of column 'id'"),
        (("id", "=", True), "True is not a value of column 'id'"),
        (("id", "=", "1_0"), "'1_0' is not a value of column 'id' (int64)"),
        (("id", "=", " 1"), "' 1' is not a value of column 'id'"),
        (("id", "like", "a"), "'like' can be used only for text"),
        (("id", "not in", [1, None]), "a list of values for 'not in' has null"),
        (("id", "in", [1, "one"]), "'one' is not a value of column 'id'"),
        (("id", "=", [1]), "[1] is not a value of column 'id'"),
        (("name", "=", Decimal("1.5")), "1.5 is not a value of column 'name' (string)"),
        (("name", "=", 1), "1 is not a value of column 'name' (string)"),
        (("price", "<", "1.5 EUR"), "'1.5 EUR' is not a value of column 'price'"),
        (("ratio", "=", Decimal("1e400")), "1E+400 is not a value of column 'ratio' (double)"),
        (("ratio", "=", "1e99999999999999999999"), "is not a value of column 'ratio'"),
        (("on", "=", 1), "1 is not a value of column 'on'"),
        (("id", "in", []), "'in' needs a list of values"),
        (("id", "in", 3), "'in' needs a list of values"),
        (("id", "is", 3), "'is' can be used only with null"),
        (("day", "=", "tomorrow"), "'tomorrow' is not a value of column 'day'"),
        (("local", "=", "2026-01-01T00:00:00Z"), "is not a value of column 'local'"),
        (("raw", "=", "xyz"), "'xyz' is not a value of column 'raw'"),
    ],
)
def test_what_does_not_fit_a_column_is_refused(condition: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        conditions([condition], "orders", SCHEMA)
    assert message in str(caught.value)


WHOLE = SnapshotPart("s", 5)


@pytest.mark.parametrize(
    ("where", "limits"),
    [
        ([("id", ">=", 2), ("id", "<", 4)], (2, 4)),
        ([("id", ">", 2), ("id", "<=", 4)], (2, 5)),
        ([("id", "=", 3), ("name", "=", "x")], (3, 4)),
        ([("id", "in", [7, 3, 5])], (3, 8)),
        ([("id", "!=", 3), ("id", "is not", None), ("ratio", ">", 1)], (None, None)),
    ],
)
def test_conditions_on_the_first_column_limit_what_is_read(where: list[Any], limits: tuple[Any, Any]) -> None:
    wanted = conditions(where, "orders", SCHEMA)
    part = narrowed(WHOLE, wanted, SCHEMA)
    assert part is not None
    assert (part.lower, part.upper) == limits
    inside = narrowed(SnapshotPart("s", 5, lower=4, upper=100), wanted, SCHEMA)
    if limits[1] is not None and limits[1] <= 4:
        assert inside is None
    else:
        assert inside is not None
        assert inside.lower == max(4, limits[0] or 4)


def test_limits_of_floats_are_in_the_order_of_floats() -> None:
    schema = Schema.of(key={"ratio": "float64"})
    part = narrowed(
        WHOLE, conditions([("ratio", ">=", -1.5), ("ratio", "<=", NAN)], "orders", schema), schema
    )
    assert part is not None
    inside = python_values(pa.array([-1.5, -0.5, 0.0, float("inf"), NAN]))
    assert all(part.lower <= value < part.upper for value in inside)
    assert not part.lower <= python_values(pa.array([-1.6]))[0]
