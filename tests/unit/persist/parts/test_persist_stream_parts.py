"""Pieces of a snapshot by key: each row is in exactly one piece, and no needed row is skipped."""

import math
import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput, CorruptBlob
from holdfast.persist import PersistClient, Schema
from holdfast.persist.parts.runs import At, merged
from holdfast.persist.parts.split import choose
from holdfast.persist.rows.canonical import prepare_updates, python_values, sort_updates
from holdfast.persist.rows.consolidate import consolidate_at
from holdfast.persist.rows.groups import GroupBounds, group_bounds
from holdfast.persist.rows.order import NULL, KeyRange
from holdfast.persist.rows.part import (
    KEY_FORMAT_VERSION,
    KEY_HAS_NAN,
    KEY_SCHEMA,
    checksum,
    encode_parquet,
    schema_json,
)
from holdfast.persist.rows.schema import TIME
from holdfast.persist.state.machine import Machine, Version
from holdfast.persist.state.state import Part
from unit.persist.open_stores import SHARD, Stores, rows
from unit.persist.rows import strategies

LAST = 2**64 - 1


def stored(client: PersistClient, key: str, data: bytes, count: int) -> Part:
    client.location.blob.put(key, data)
    return Part(count, 1, 0, 2**64, len(data), checksum(data), key)


def machine_of(client: PersistClient, schema: Schema) -> Machine:
    """The cache of a shard that has this schema, and no part yet."""
    machine = client.session.machine(SHARD)
    machine.publish(Version(replace(machine.state, schemas={1: schema})))
    return machine


def ordered_firsts(schema: Schema, batches: list[pa.RecordBatch]) -> list[Any]:
    """The values of the first column that a range can have as its limit."""
    values = [value for batch in batches for value in python_values(batch.column(0))]
    return sorted({value for value in values if value is not None})


@given(data=st.data())
@pytest.mark.long
def test_a_range_of_keys_has_exactly_its_rows(data: st.DataObject) -> None:
    schema = data.draw(strategies.schemas())
    batches = data.draw(st.lists(strategies.batches(schema), min_size=1, max_size=4))
    as_of = data.draw(st.integers(0, 6) | st.just(LAST - 1))
    earliest = data.draw(st.integers(0, min(as_of, 6)))
    client = Stores().open(audit_pushdown=True)
    size = data.draw(st.integers(1, 5))
    runs = []
    for index, batch in enumerate(batches):
        encoded = encode_parquet(schema, 1, sort_updates(schema, batch), row_group_rows=size)
        runs.append([stored(client, f"part{index}", encoded, batch.num_rows)])
    values = ordered_firsts(schema, batches)
    limits = sorted(data.draw(st.lists(st.sampled_from(values), max_size=3, unique=True))) if values else []
    machine = machine_of(client, schema)
    pieces = []
    for lower, upper in zip([None, *limits], [*limits, None], strict=True):
        wanted = KeyRange(
            None if lower is None else ((True, lower),), None if upper is None else ((True, upper),)
        )
        found = [*merged(machine, schema, runs, At(as_of, earliest), wanted)]
        for table in found:
            for value in python_values(table.column(0).combine_chunks()):
                assert lower is None or (value is not None and value >= lower)
                assert upper is None or value is None or value < upper
        pieces += found
    union = pa.concat_tables([schema.arrow_diff.empty_table(), *pieces])
    first = pa.scalar(earliest, pa.uint64())
    since = [batch.filter(pc.greater_equal(batch[TIME], first)) for batch in batches]
    expected = consolidate_at(schema, since, as_of)
    assert strategies.contents(schema, union) == strategies.contents(schema, expected)
    assert union.num_rows == expected.num_rows
    keys = strategies.comparable(schema, union)
    assert keys == sorted(set(keys))


@given(data=st.data())
def test_what_is_left_of_a_range_follows_a_row(data: st.DataObject) -> None:
    schema = data.draw(strategies.schemas())
    batch = sort_updates(schema, data.draw(strategies.batches(schema)))
    client = Stores().open(audit_pushdown=True)
    part = stored(client, "part", encode_parquet(schema, 1, batch, row_group_rows=2), batch.num_rows)
    machine = machine_of(client, schema)
    whole = [*merged(machine, schema, [[part]], At(LAST - 1))]
    if not whole:
        return
    table = pa.concat_tables(whole)
    index = data.draw(st.integers(0, table.num_rows - 1))
    columns = [python_values(table.column(name).combine_chunks()) for name in schema.names]
    key = tuple((value is not None, value) for value in (column[index] for column in columns))
    rest = [*merged(machine, schema, [[part]], At(LAST - 1), KeyRange().beyond(key))]
    found = pa.concat_tables([schema.arrow_diff.empty_table(), *rest])
    assert strategies.comparable(schema, found) == strategies.comparable(schema, table.slice(index + 1))


FIRST = {
    "float64?": [math.nan, None, 1.5, -math.inf, math.inf, 0.0, -0.0, 2.5, None, math.nan],
    "string?": ["", "a", None, "b", "b", "é", "\U0001f600", "z" * 5000, "a", None],
    "decimal128(10,2)?": [Decimal("-1.50"), Decimal(3), None, Decimal("3.00"), Decimal("99999999.99")] * 2,
    "int64": [5] * 10,
    "bool?": [True, False, None, True, False] * 2,
    "timestamp": [pa.scalar(n, pa.timestamp("us")) for n in (-(2**62), 2**62, 0, 0, 1, 2, 3, 4, 5, 6)],
    "uint64": [2**64 - 1, 0, 1, 2**63, 2**63, 2**64 - 1, 5, 6, 7, 8],
    "binary": [b"", b"\xff", b"\x00", b"a", b"a", b"b", b"c", b"\xff\xff", b"", b"a"],
}


@pytest.mark.parametrize("inline", [0, 10**6])
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("most", [None, 2, 3, 100])
def test_the_parts_of_a_snapshot_are_all_of_it_once(first: str, most: int | None, inline: int) -> None:
    schema = Schema.of({"a": first}, {"b": "int64"})
    stores = Stores()
    client = stores.open(inline_max_bytes=inline, part_target_bytes=40, audit_pushdown=True)
    writer = client.writer(SHARD, schema, purpose="test")
    for time in range(3):
        column = pa.array(FIRST[first], schema.arrow.field("a").type)
        writer.compare_and_append(pa.table({"a": column, "b": [n % 3 for n in range(10)]}), time, time + 1)
    reader = client.reader(SHARD, purpose="test")
    parts = pickle.loads(pickle.dumps(reader.snapshot_parts(1, most)))
    assert 1 <= len(parts) <= (most or 100)
    if most == 100 and first != "int64":
        assert len(parts) > 2
    whole = reader.snapshot(1).to_table()
    other = stores.open(mode="read", audit_pushdown=True)
    found = pa.Table.from_batches(
        [batch for part in parts for batch in other.read_snapshot_part(part)], schema.arrow_diff
    )
    assert found.num_rows == whole.num_rows
    assert strategies.contents(schema, found) == strategies.contents(schema, whole)
    keys = strategies.comparable(schema, found)
    assert keys == sorted(set(keys))
    projected = [batch for part in parts for batch in other.read_snapshot_part(part, ["b"])]
    assert [row for b in projected for row in b.to_pylist()] == found.select(["b", "_diff"]).to_pylist()


def test_parts_are_about_equal() -> None:
    stores = Stores()
    client = stores.open(inline_max_bytes=0, part_target_bytes=20_000)
    writer = client.writer(SHARD, Schema.of({"k": "int64"}, {"v": "string"}), purpose="test")
    for time in range(5):
        writer.compare_and_append(rows(*range(time, 20_000, 5)), time, time + 1)
    parts = client.reader(SHARD, purpose="test").snapshot_parts(4, 4)
    sizes = [sum(batch.num_rows for batch in client.read_snapshot_part(part)) for part in parts]
    assert sum(sizes) == 20_000
    assert len(sizes) == 4
    assert all(3_000 < size < 7_000 for size in sizes)


def test_a_part_of_a_snapshot_opens_few_row_groups() -> None:
    """What is skipped is not decoded: a piece that has no rows reads no page."""
    schema = Schema.of({"k": "int64"})
    batch = prepare_updates(schema, pa.table({"k": range(100)}), default_time=0)
    metadata = pq.read_metadata(pa.BufferReader(encode_parquet(schema, 1, batch, row_group_rows=10)))
    wanted = KeyRange(((True, 25),), ((True, 50),))
    bounds = group_bounds(schema, metadata)
    assert [n for n, group in enumerate(bounds) if group.may_meet(wanted, 0, 0)] == [2, 3, 4]
    assert not any(group.may_meet(KeyRange(), 1, 9) for group in bounds)
    late = prepare_updates(schema, pa.table({"k": range(100)}), default_time=7)
    metadata = pq.read_metadata(pa.BufferReader(encode_parquet(schema, 1, late, row_group_rows=10)))
    assert not any(group.may_meet(KeyRange(), 0, 6) for group in group_bounds(schema, metadata))
    assert all(group.may_meet(KeyRange(), 7, 7) for group in group_bounds(schema, metadata))


def test_the_audit_finds_statistics_that_lie() -> None:
    """A foreign file whose footer denies its NaN: Parquet's statistics leave it out."""
    schema = Schema.of({"f": "float64"})
    batch = prepare_updates(schema, pa.table({"f": [1.0, 2.0, math.nan]}), default_time=0)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema.arrow_updates, store_schema=False) as writer:
        writer.write_batch(sort_updates(schema, batch))
        writer.add_key_value_metadata(
            {
                KEY_FORMAT_VERSION: b"1",
                KEY_SCHEMA: schema_json(schema).encode(),
                KEY_HAS_NAN: b"{}",
            }
        )
    data = sink.getvalue().to_pybytes()
    (three,) = python_values(pa.array([3.0]))
    wanted = KeyRange(((True, three),))
    trusting, auditing = Stores().open(), Stores().open(audit_pushdown=True)
    run = [[stored(trusting, "part", data, 3)]]
    assert [*merged(machine_of(trusting, schema), schema, run, At(0), wanted)] == []
    run = [[stored(auditing, "part", data, 3)]]
    with pytest.raises(CorruptBlob, match="no wanted row in row group 0"):
        list(merged(machine_of(auditing, schema), schema, run, At(0), wanted))


def group(count: int, low: int | None, high: int | None) -> GroupBounds:
    return GroupBounds(
        count, None if low is None else ((True, low),), None if high is None else ((True, high),), 0
    )


@pytest.mark.parametrize(
    ("groups", "pieces", "expected"),
    [
        ([], 4, []),
        ([group(10, 0, 9)], 1, []),
        ([group(10, 0, 9), group(10, 10, 19)], 2, [10]),
        ([group(10, n, n + 9) for n in (0, 10, 20, 30)], 4, [10, 20, 30]),
        ([group(10, n, n + 9) for n in (0, 10, 20, 30)] * 8, 2, [20]),
        ([group(10, 5, 5)] * 4, 4, []),
        ([group(10, None, None)] * 4, 4, []),
        ([GroupBounds(10, NULL, NULL, 0)] * 4, 4, []),
        ([GroupBounds(10, NULL, NULL, 0), group(10, 5, None)], 2, [5]),
        ([group(90, 0, 0), group(5, 1, 4), group(5, 5, 9)], 2, [1]),
    ],
)
def test_where_rows_are_cut(groups: list[GroupBounds], pieces: int, expected: list[int]) -> None:
    assert choose(groups, pieces) == expected


def test_a_snapshot_is_cut_into_one_part_at_least(stores: Stores) -> None:
    client = stores.open()
    client.writer(SHARD, Schema.of({"k": "int64"}, {"v": "string"}), purpose="test").seal(1)
    reader = client.reader(SHARD, purpose="test")
    (part,) = reader.snapshot_parts(0)
    assert (part.lower, part.upper) == (None, None)
    assert client.read_snapshot_part(part).to_table().num_rows == 0
    with pytest.raises(BadInput, match="0 parts"):
        reader.snapshot_parts(0, 0)
