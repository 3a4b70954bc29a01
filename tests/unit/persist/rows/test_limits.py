"""The limits of a part exclude none of its rows, for every type, and are short."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist import KeyRange, Schema
from holdfast.persist.rows.canonical import sort_updates
from holdfast.persist.rows.column_types import arrow_type, is_basic
from holdfast.persist.rows.limits import Limit, StatedBounds, first_value, key_of, limits_of
from holdfast.persist.rows.order import key_at
from holdfast.persist.rows.values import canonical_floats, count_type
from unit.persist.rows import strategies

LONG = [
    "z" * 31,
    "z" * 33,
    "z" * 5000,
    "z" * 31 + "\U0010ffff" * 3,
    "\U0010ffff" * 40,
    "z" * 31 + "\ud7ff" * 2,
    "",
    "a",
]
VALUES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    **{name: (name, values) for name, values in strategies.VALUES.items()},
    "long string": ("string", st.sampled_from(LONG)),
    "long binary": ("binary", st.sampled_from([b"\xff" * 40, b"a" + b"\xff" * 40, b"b" * 33, b"", b"\0"])),
}


@pytest.mark.parametrize("name", sorted(filter(is_basic, VALUES)))
@settings(max_examples=60)
@given(data=st.data())
def test_limits_exclude_no_row(name: str, data: st.DataObject) -> None:
    type_, values = VALUES[name]
    schema = Schema.of({"a": type_ + "?"})
    column = pa.array(data.draw(st.lists(values | st.none(), min_size=1, max_size=6)), arrow_type(type_))
    if type_.startswith("float"):
        column = canonical_floats(column)
    count = len(column)
    updates = pa.RecordBatch.from_arrays(
        [column, pa.array([0] * count, pa.uint64()), pa.array([1] * count, pa.int64())],
        schema=schema.arrow_updates,
    )
    rows = sort_updates(schema, pa.Table.from_batches([updates])).combine_chunks().to_batches()[0]
    least, greatest = limits_of(first_value(schema, rows, 0), first_value(schema, rows, count - 1))
    first, last = (key_at(["a"], rows, index) for index in (0, count - 1))
    assert least is None or key_of(least) <= first
    assert greatest is None or last <= key_of(greatest)
    for index in range(count):
        assert KeyRange(lower=key_at(["a"], rows, index)).may_meet(key_of(least), key_of(greatest))
    for limit in (least, greatest):
        assert not isinstance(limit, str | bytes) or len(limit) <= 256
    if least is None or greatest is None:
        return
    _, bounds = StatedBounds(schema, [(None, greatest), (least, greatest)]).of(schema.columns[0])
    assert not bounds.has_nulls
    if bounds.values is not None:
        low, high = (key_at(["a"], pa.table({"a": bounds.values}), index) for index in (0, 1))
        assert low <= first
        assert last <= high


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("int64", -(2**63)),
        ("uint32", 7),
        ("bool", False),
        ("string", "b"),
        ("binary", b"b"),
        ("float64", -0.5),
        ("float32", 0.5),
        ("date32", -7),
        ("timestamp_utc", 7),
    ],
)
def test_most_types_have_limits(type_: str, value: object) -> None:
    schema = Schema.of({"a": type_})
    stored = schema.columns[0].stored.type
    is_count = pa.types.is_temporal(stored)
    array = pa.array([value], count_type(stored)).view(stored) if is_count else pa.array([value], stored)
    rows = pa.RecordBatch.from_arrays([array], ["a"])
    least, greatest = limits_of(*[first_value(schema, rows, 0)] * 2)
    assert least is not None
    assert least == greatest
    _, bounds = StatedBounds(schema, [(None, greatest), (least, greatest)]).of(schema.columns[0])
    assert bounds.values is not None
    assert bounds.values.slice(0, 1).equals(array)


@pytest.mark.parametrize(
    ("first", "last", "limits"),
    [
        ("a" * 40, "b" * 40, ("a" * 32, "b" * 31 + "c")),
        ("page/" * 8 + "1", "page/" * 8 + "2", ("page/" * 8 + "1", "page/" * 8 + "2")),
        ("x" * 300 + "1", "x" * 300 + "2", ("x" * 256, "x" * 255 + "y")),
        (b"a" + b"\xff" * 40, b"a" + b"\xff" * 41, (b"a" + b"\xff" * 40, b"a" + b"\xff" * 41)),
        (b"\xff" * 300, b"\xff" * 300, (b"\xff" * 256, None)),
        (None, "z" * 33, (None, "z" * 31 + "{")),
        (3, 7, (3, 7)),
    ],
)
def test_long_values_are_cut_after_what_they_have_alike(
    first: Limit | None, last: Limit | None, limits: tuple[Limit | None, Limit | None]
) -> None:
    assert limits_of(first, last) == limits
