"""Schemas and updates of every type for the property tests of the data plane, and what they should mean."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
from hypothesis import strategies as st

from holdfast.persist.rows.canonical import prepare_updates
from holdfast.persist.rows.column_types import arrow_type
from holdfast.persist.rows.schema import Column, Schema

Row = dict[str, Any]


def _ints(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.sampled_from([low, high, 0, 1, 2]) | st.integers(low, high)


def _floats(width: Literal[32, 64]) -> st.SearchStrategy[float]:
    special = [math.nan, -math.nan, 0.0, -0.0, math.inf, -math.inf, 1.5]
    return st.sampled_from(special) | st.floats(width=width)


def _microseconds(zone: dt.tzinfo | None) -> st.SearchStrategy[Any]:
    # All of int64, which is more than Python's years.
    type_ = pa.timestamp("us", tz="UTC" if zone else None)
    return _ints(64, signed=True).map(lambda value: pa.scalar(value, type_))


def _moments(type_: pa.DataType) -> st.SearchStrategy[Any]:
    # Milliseconds hold a thousandth of the seconds.
    counts = _ints(54 if type_.unit == "s" else 64, signed=True)
    return counts.map(lambda value: pa.scalar(value, type_))


def _times_of_day(type_: pa.DataType) -> st.SearchStrategy[Any]:
    most = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[type_.unit] - 1
    counts = st.sampled_from([0, 1, most]) | st.integers(0, most)
    return counts.map(lambda value: pa.scalar(value, type_))


def _decimals(scale: int, digits: int) -> st.SearchStrategy[Decimal]:
    unscaled = st.sampled_from([0, 1, 10, -100]) | st.integers(-(10**digits) + 1, 10**digits - 1)
    return unscaled.map(lambda value: Decimal(f"{value}e-{scale}"))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    **{f"int{bits}": _ints(bits, signed=True) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": _ints(bits, signed=False) for bits in (8, 16, 32, 64)},
    "float32": _floats(32),
    "float64": _floats(64),
    "decimal128(10,2)": _decimals(2, 10),
    "decimal128(38,5)": _decimals(5, 38),
    "string": st.sampled_from(["", "a", "B", "é", "\uffff", "\U0001f600", "a\x00"]) | st.text(max_size=20),
    "binary": st.sampled_from([b"", b"\x00", b"\xff", b"a"]) | st.binary(max_size=20),
    "date32": _ints(32, signed=True).map(lambda value: pa.scalar(value, pa.date32())),
    "timestamp": _microseconds(None),
    "timestamp_utc": _microseconds(dt.UTC),
    **{
        name: _moments(arrow_type(name))
        for name in (
            "timestamp(s)",
            "timestamp(ms)",
            "timestamp(ns)",
            "timestamp(s,UTC)",
            "timestamp(ms,+02:00)",
            "timestamp(us,Europe/Paris)",
            "timestamp(ns,America/New_York)",
        )
    },
    **{f"time({unit})": _times_of_day(arrow_type(f"time({unit})")) for unit in ("s", "ms", "us", "ns")},
}


def _nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


NESTED: dict[str, st.SearchStrategy[Any]] = {
    "list<int8?>": st.lists(_nullable(VALUES["int8"]), max_size=3),
    "list<list<string>?>": st.lists(_nullable(st.lists(VALUES["string"], max_size=3)), max_size=3),
    'struct<a: bool, "b c": binary?>': st.fixed_dictionaries(
        {"a": st.booleans(), "b c": _nullable(VALUES["binary"])}
    ),
    "map<int16, float32?>": st.dictionaries(VALUES["int16"], _nullable(VALUES["float32"]), max_size=3).map(
        lambda found: list(found.items())
    ),
    "list<struct<x: float64, y: map<string, decimal128(10,2)>?, z: time(s)?>?>": st.lists(
        _nullable(
            st.fixed_dictionaries(
                {
                    "x": VALUES["float64"],
                    "y": _nullable(
                        st.dictionaries(VALUES["string"], VALUES["decimal128(10,2)"], max_size=2).map(
                            lambda found: list(found.items())
                        )
                    ),
                    "z": _nullable(st.sampled_from([dt.time(0), dt.time(23, 59, 59)])),
                }
            )
        ),
        max_size=3,
    ),
}
"""Types that only value columns can have."""
VALUES |= NESTED


@st.composite
def schemas(draw: st.DrawFn, max_columns: int = 4) -> Schema:
    types = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=max_columns))
    types.sort(key=lambda name: name in NESTED)
    columns = [Column(f"c{i}", name, draw(st.booleans())) for i, name in enumerate(types)]
    keys = draw(st.integers(0, sum(name not in NESTED for name in types)))
    return Schema(tuple(columns[:keys]), tuple(columns[keys:]))


@st.composite
def batches(
    draw: st.DrawFn, schema: Schema, max_rows: int = 30, diffs: st.SearchStrategy[int] | None = None
) -> pa.RecordBatch:
    """Prepared updates with few distinct values, so that rows meet."""
    count = draw(st.integers(0, max_rows))
    arrays, fields = [], []
    for column in schema.columns:
        values = VALUES[column.type] | st.none() if column.nullable else VALUES[column.type]
        pool = draw(st.lists(values, min_size=1, max_size=4))
        chosen = draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count))
        arrays.append(pa.array(chosen, arrow_type(column.type)))
        fields.append(column.name)
    times = draw(st.lists(st.integers(0, 5) | st.just(2**64 - 1), min_size=count, max_size=count))
    chosen_diffs = draw(
        st.lists(st.integers(-2, 2) if diffs is None else diffs, min_size=count, max_size=count)
    )
    arrays += [pa.array(times, pa.uint64()), pa.array(chosen_diffs, pa.int64())]
    return prepare_updates(schema, pa.table(arrays, names=[*fields, "_time", "_diff"]), default_time=0)


def comparable(schema: Schema, table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows as tuples whose equality and order are those of the design, straight from its words."""
    columns: list[list[Any]] = []
    for column in schema.columns:
        values = table.column(column.name)
        if column.type.startswith(("timestamp", "time(")):
            values = values.cast(pa.int32() if pa.types.is_time32(values.type) else pa.int64())
        elif column.type == "date32":
            values = values.cast(pa.int32())
        columns.append([_comparable(value) for value in values.to_pylist()])
    return list(zip(*columns, strict=True))


def _comparable(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, 1, 0.0) if math.isnan(value) else (1, 0, value)
    return (1, value.encode()) if isinstance(value, str) else (1, value)


def contents(schema: Schema, table: pa.Table | pa.RecordBatch) -> dict[tuple[Any, ...], int]:
    """The sum of the diffs of each row, without zeros."""
    sums: dict[tuple[Any, ...], int] = {}
    for row, diff in zip(comparable(schema, table), table.column("_diff").to_pylist(), strict=True):
        sums[row] = sums.get(row, 0) + diff
    return {row: total for row, total in sums.items() if total}
