"""A snapshot of some columns of several runs sums only rows with keys that rows were removed from.

It has the rows of a full read, also rows with counts below 0.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptBlob
from holdfast.persist import Schema
from holdfast.persist.parts import snapshot as snapshots
from holdfast.persist.parts import unsummed as unsummed_reads
from holdfast.persist.parts.unsummed import unsummed
from holdfast.tables.filters import Where, filter_of
from unit.persist.open_stores import SHARD, Stores

SMALL = {"part_target_bytes": 600, "audit_pushdown": True}
WIDE = Schema.of({"k": "int64?", "s": "string"}, {"v": "string", "w": "int64?"})
NAMES = WIDE.names
Row = tuple[int | None, str, str, int | None, int, int]
"""The values of the columns, the time and the diff."""

rows = st.tuples(
    st.none() | st.integers(0, 3),
    st.sampled_from("ab"),
    st.sampled_from("xy"),
    st.none() | st.integers(0, 1),
    st.just(0),
    st.sampled_from([1, 1, 1, 2, -1]),
)
wheres = st.sampled_from([None, [("v", "=", "x")], [("k", ">=", 2)], [("w", "is", None)]])


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each read that asked, so far, summed only some rows."""
    found: list[bool] = []

    def noted(*given: object, **named: object) -> object:
        result = unsummed(*given, **named)  # type: ignore[arg-type]
        found.append(result is not None)
        return result

    monkeypatch.setattr(snapshots, "unsummed", noted)
    monkeypatch.setattr(unsummed_reads, "_LEAST_ROWS", 0)
    return found


def updates(given: Sequence[Row]) -> pa.Table:
    fields = [*WIDE.arrow, pa.field("_time", pa.uint64()), pa.field("_diff", pa.int64())]
    columns = zip(*given, strict=True)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)],
        schema=pa.schema(fields),
    )


def by_sign(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Counter[tuple[object, ...]]:
    """How often rows of these columns are there, apart from how often they are there less than not at all."""
    found: Counter[tuple[object, ...]] = Counter()
    for batch in batches:
        assert batch.num_rows
        for row in batch.to_pylist():
            found[(*(row[name] for name in columns), row["_diff"] > 0)] += row["_diff"]
    return found


@pytest.mark.parametrize("inline", [0, 900])
@pytest.mark.parametrize("apart", [True, False])
def test_it_has_the_rows_of_a_full_read(
    inline: int, apart: bool, reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    @settings(max_examples=25)
    @given(
        appends=st.lists(st.lists(rows, min_size=1, max_size=30), min_size=2, max_size=5),
        columns=st.lists(st.sampled_from(NAMES), unique=True),
        where=wheres,
        data=st.data(),
    )
    def check(appends: list[list[Row]], columns: list[str], where: Where | None, data: st.DataObject) -> None:
        client = Stores().open(**SMALL, inline_max_bytes=inline)
        writer = client.writer(SHARD, WIDE, purpose="t")
        for time, each in enumerate(appends):
            writer.compare_and_append(updates([(*row[:4], time, row[5]) for row in each]), time, time + 1)
        reader = client.reader(SHARD, purpose="t")
        as_of = data.draw(st.integers(0, len(appends) - 1))
        full, narrow = reader.snapshot(as_of), reader.snapshot(as_of, columns=columns)
        if where is not None:
            full, narrow = (each.filtered(filter_of(where, WIDE)) for each in (full, narrow))
        assert by_sign(narrow, columns) == by_sign(full, columns)
        assert by_sign(narrow.to_table().to_batches(), columns) == by_sign(full, columns)

    # Rows to sum are read apart if they are in few row groups: here always, or never.
    monkeypatch.setattr(unsummed_reads, "_APART", 2.0 if apart else 0.0)
    check()
    assert any(reads)


@pytest.mark.parametrize("seen", [0, 1, 12])
def test_it_goes_on_after_its_parts_were_replaced(
    seen: int, reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Stores()
    client = stores.open(**SMALL, inline_max_bytes=0)
    other = stores.open(**{**SMALL, "part_target_bytes": 900, "compaction_fanin": 2}, inline_max_bytes=0)
    first: list[Row] = [(key // 3, "a", "xy"[key % 2], key, 0, 1) for key in range(300)]
    second: list[Row] = [(key // 3, "a", "xy"[key % 2], key, 1, -1) for key in range(1, 300, 7)]
    writer = client.writer(SHARD, WIDE, purpose="t")
    writer.compare_and_append(updates(first), 0, 1)
    writer.compare_and_append(updates(second), 1, 2)
    before = stores.parts()
    expected = by_sign(client.reader(SHARD, purpose="t").snapshot(1), ["v"])
    batches = iter(client.reader(SHARD, purpose="t").snapshot(1, columns=["v"]))
    read = [next(batches) for _ in range(seen)]
    other.maintain(SHARD)
    for key in before:
        stores.blob.delete(key)
    assert by_sign([*read, *batches], ["v"]) == expected
    assert reads[0]


def test_what_was_removed_is_read_once(reads: list[bool]) -> None:
    client = Stores().open(**SMALL, inline_max_bytes=0)
    writer = client.writer(SHARD, WIDE, purpose="t")
    given: list[Row] = [(key, "a", "x", key, 0, 1) for key in range(40)]
    writer.compare_and_append(updates(given), 0, 1)
    writer.compare_and_append(updates([(*row[:4], 1, -1) for row in given[:3]]), 1, 2)
    snapshot = client.reader(SHARD, purpose="t").snapshot(1, columns=["v"])
    assert snapshot.to_table().num_rows == 37
    assert reads == [True]
    assert sum(rows.num_rows for rows in snapshot.filtered(filter_of([("v", "=", "x")], WIDE))) == 37
    assert reads == [True] * 2


def test_what_needs_more_memory_is_merged(reads: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    client = Stores().open(**SMALL, inline_max_bytes=0)
    writer = client.writer(SHARD, WIDE, purpose="t")
    given: list[Row] = [(key, "a", "x", key, 0, 1) for key in range(40)]
    writer.compare_and_append(updates(given), 0, 1)
    writer.compare_and_append(updates([(*row[:4], 1, -1) for row in given[:30]]), 1, 2)
    expected = by_sign(updates(given[30:]).to_batches(), ["v"])
    reader = client.reader(SHARD, purpose="t")
    for name, most in (("_MOST_KEY_BYTES", 100), ("_MOST_RUNS", 1), ("_LEAST_ROWS", 71)):
        with monkeypatch.context() as patch:
            patch.setattr(unsummed_reads, name, most)
            assert by_sign(reader.snapshot(1, columns=["v"]), ["v"]) == expected
    # All rows of a key are in memory at once, so there must not be many.
    writer.compare_and_append(updates([(7, "b", "y", key, 2, 1) for key in range(100)]), 2, 3)
    monkeypatch.setattr(unsummed_reads, "_ONE_KEY_BYTES", 100)
    assert by_sign(reader.snapshot(2, columns=["v"]), ["v"]) == expected + Counter({("y", True): 100})
    assert reads == [False] * 4


def test_a_damaged_part_is_found(reads: list[bool]) -> None:
    stores = Stores()
    client = stores.open(**SMALL, inline_max_bytes=0)
    writer = client.writer(SHARD, WIDE, purpose="t")
    for time in range(2):
        given: list[Row] = [(key, "a", "x", key, time, 1) for key in range(40)]
        writer.compare_and_append(updates(given), time, time + 1)
    reader = client.reader(SHARD, purpose="t")
    assert reader.snapshot(1, columns=["v"]).to_table().num_rows == 80
    assert all(reads)
    key = max(stores.parts())
    data = bytearray(stores.blob.get(key) or b"")
    data[len(data) // 3] ^= 1
    stores.blob.put(key, bytes(data))
    with pytest.raises(CorruptBlob):
        reader.snapshot(1, columns=["v"]).to_table()
