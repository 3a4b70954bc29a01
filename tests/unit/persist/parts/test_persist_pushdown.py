"""What statistics let a reader skip never matches, for every type. The audit still reads it."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.persist import KeyRange, PersistClient, Schema
from holdfast.persist.parts.runs import At, merged
from holdfast.persist.rows.canonical import python_values, sort_updates
from holdfast.persist.rows.column_types import arrow_type, is_basic
from holdfast.persist.rows.consolidate import consolidate_at
from holdfast.persist.rows.part import checksum, encode_parquet
from holdfast.persist.rows.values import canonical_floats
from holdfast.persist.state.state import Part
from unit.persist.open_stores import SHARD, Stores
from unit.persist.rows import strategies

LAST = 2**64 - 2
# Longer than what writers of Parquet keep as statistics; some cut them short.
LONG = ["z" * 5000, "z" * 5000 + "a", "z" * 4999, "z" * 5000 + "\U0001f600", "a", ""]
VALUES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    **{name: (name, values) for name, values in strategies.VALUES.items()},
    "long string": ("string", st.sampled_from(LONG)),
    "long binary": ("binary", st.sampled_from([text.encode() + b"\xff" for text in LONG])),
}


def ordered(type_: str, value: Any) -> tuple[bool, Any]:
    """A value as it compares in the total order."""
    array = pa.array([value], arrow_type(type_))
    if type_.startswith("float"):
        array = canonical_floats(array)
    (found,) = python_values(array)
    return found is not None, found


@pytest.mark.parametrize("name", sorted(filter(is_basic, VALUES)))
@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.long
def test_a_range_of_any_type_has_exactly_its_rows(name: str, data: st.DataObject) -> None:
    type_, values = VALUES[name]
    schema = Schema.of({"a": type_ + "?"}, {"b": "int8"})
    pool = data.draw(st.lists(values | st.none(), min_size=1, max_size=8))
    count = data.draw(st.integers(1, 30))
    chosen = data.draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count))
    times = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    column = pa.array(chosen, arrow_type(type_))
    if type_.startswith("float"):
        column = canonical_floats(column)
    batch = pa.RecordBatch.from_arrays(
        [
            column,
            pa.array([index % 2 for index in range(count)], pa.int8()),
            pa.array(times, pa.uint64()),
            pa.array([1] * count, pa.int64()),
        ],
        schema=schema.arrow_updates,
    )
    encoded = encode_parquet(
        schema, 1, sort_updates(schema, batch), row_group_rows=data.draw(st.integers(1, 6))
    )
    client = Stores().open(audit_pushdown=True)
    client.writer(SHARD, schema, purpose="test").seal(1)
    client.location.blob.put("part", encoded)
    part = Part(count, 1, 0, 4, len(encoded), checksum(encoded), "part")
    limits = values | st.sampled_from(pool) | st.none()
    lower, upper = data.draw(limits), data.draw(limits)
    as_of = data.draw(st.integers(0, 3))
    found = list(
        merged(
            client.session.machine(SHARD), schema, [[part]], At(as_of), KeyRange.between(schema, lower, upper)
        )
    )
    table = pa.concat_tables([schema.arrow_diff.empty_table(), *found])
    low, high = (None if limit is None else ordered(type_, limit) for limit in (lower, upper))
    kept = [
        (low is None or ordered(type_, value) >= low) and (high is None or ordered(type_, value) < high)
        for value in consolidate_at(schema, [batch], as_of).column("a")
    ]
    expected = consolidate_at(schema, [batch], as_of).filter(pa.array(kept, pa.bool_()))
    assert strategies.contents(schema, table) == strategies.contents(schema, expected)
    keys = strategies.comparable(schema, table)
    assert keys == sorted(set(keys))


def shard(client: PersistClient) -> Schema:
    """A shard with two key columns in several row groups."""
    schema = Schema.of({"a": "float64?", "b": "string"}, {"c": "int64"})
    rows = pa.table(
        {
            "a": [None, float("nan"), -0.0, 1.5] * 10,
            "b": [str(number // 4) for number in range(40)],
            "c": list(range(40)),
        }
    )
    client.writer(SHARD, schema, purpose="test").compare_and_append(rows, 0, 1)
    return schema


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (None, None, range(40)),
        (0.0, 2, [*range(2, 40, 4), *range(3, 40, 4)]),
        (-0.0, 1.5, range(2, 40, 4)),
        (1.6, None, range(1, 40, 4)),
        (float("nan"), None, range(1, 40, 4)),
        (None, -1e300, range(0, 40, 4)),
        ((None, "5"), (0.0,), range(20, 40, 4)),
        ((0.0, "3"), (0.0, "6"), [14, 18, 22]),
        ((1.5, "9", 39), (1.5, "9", 40), [39]),
    ],
)
def test_a_range_is_given_in_values(stores: Stores, lower: Any, upper: Any, expected: Any) -> None:
    client = stores.open(inline_max_bytes=0, part_target_bytes=300, audit_pushdown=True)
    schema = shard(client)
    reader = client.reader(SHARD, purpose="test")
    wanted = KeyRange.between(schema, lower, upper)
    for found in (
        reader.snapshot(0, wanted=wanted, columns=["c"]).to_table(),
        pa.Table.from_batches(reader.snapshot(0, wanted=wanted)),
    ):
        assert sorted(found.column("c").to_pylist()) == sorted(expected)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("x", "column 'a'"),
        ((1.0, 2), "column 'b'"),
        ((1.0, "x", 1, 1), "4 values, but the schema has 3 columns"),
        ((), "no value"),
    ],
)
def test_a_range_that_does_not_fit_the_schema_is_refused(stores: Stores, limit: Any, message: str) -> None:
    schema = shard(stores.open())
    with pytest.raises(BadInput, match=message):
        KeyRange.between(schema, limit)
    with pytest.raises(BadInput, match=message):
        KeyRange.between(schema, None, limit)
