"""A condition that has no value for a row, such as a division by zero, fails only if that row is there."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.persist import PersistClient, Schema
from holdfast.persist.parts import unsummed, verified
from holdfast.tables.filters import filter_of
from unit.persist.open_stores import SHARD, Stores

SCHEMA = Schema.of({"k": "int64"}, {"n": "int64", "t": "string"})
SMALL: dict[str, Any] = {"part_target_bytes": 600, "compaction_fanin": 100}
Row = tuple[int, int]
"""A key and a number."""
Append = list[tuple[Row, int]]
"""Rows, and whether they are added or removed."""

NUMBER = pc.field("n")
WHERES = {
    "divide": pc.scalar(4) / NUMBER > 1,
    # Statistics exclude some row groups.
    "divide some": (pc.field("k") >= 2) & (pc.scalar(4) / NUMBER > 1),
}
appends = st.lists(
    st.lists(
        st.tuples(st.tuples(st.integers(0, 6), st.integers(0, 4)), st.sampled_from([1, 1, 1, -1])),
        min_size=1,
        max_size=20,
    ),
    min_size=1,
    max_size=5,
)


def write(client: PersistClient, given: list[Append]) -> None:
    writer = client.writer(SHARD, SCHEMA, purpose="t")
    for time, each in enumerate(given):
        writer.compare_and_append(
            [{"k": k, "n": n, "t": "t" * n, "_time": time, "_diff": diff} for (k, n), diff in each],
            time,
            time + 1,
        )


def contents(given: list[Append], as_of: int) -> dict[Row, int]:
    found: Counter[Row] = Counter()
    for each in given[: as_of + 1]:
        for row, diff in each:
            found[row] += diff
    return {row: count for row, count in found.items() if count}


def totals(rows: pa.Table, columns: list[str]) -> dict[tuple[Any, ...], int]:
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows.to_pylist():
        found[tuple(row[name] for name in columns)] += row["_diff"]
    return {row: count for row, count in found.items() if count}


@pytest.mark.parametrize(
    ("inline", "kept", "audit"), [(0, True, False), (900, False, False), (100_000, True, True)]
)
def test_a_condition_fails_only_for_rows_that_are_there(
    inline: int, kept: bool, audit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsummed, "_LEAST_ROWS", 0)
    if not kept:
        monkeypatch.setattr(verified, "_ROWS_BYTES", 0)

    @settings(max_examples=25)
    @given(given=appends, name=st.sampled_from(sorted(WHERES)), data=st.data())
    def check(given: list[Append], name: str, data: st.DataObject) -> None:
        client = Stores().open(**SMALL, inline_max_bytes=inline, audit_pushdown=audit)
        write(client, given)
        as_of = data.draw(st.integers(0, len(given) - 1))
        columns = data.draw(st.sampled_from([["k", "n", "t"], ["k"], ["n"], ["t"], []]))
        there = contents(given, as_of)
        full = columns == ["k", "n", "t"] and data.draw(st.booleans())
        reader = client.reader(SHARD, purpose="t")
        snapshot = reader.snapshot(as_of, columns=None if full else columns)
        snapshot = snapshot.filtered(filter_of(WHERES[name], SCHEMA))
        least = 2 if name == "divide some" else 0
        wanted: Counter[tuple[Any, ...]] = Counter()
        for (k, n), count in there.items():
            if k >= least and n and 4 // n > 1:
                row = {"k": k, "n": n, "t": "t" * n}
                wanted[tuple(row[each] for each in columns)] += count
        expected = {row: count for row, count in wanted.items() if count}
        for read in (snapshot.to_table, lambda: pa.Table.from_batches(snapshot, schema_of(columns))):
            found, error = result(read)
            if found is None:
                assert "where: divide by zero" in error
                assert any(n == 0 for _, n in there)
            else:
                assert totals(found, columns) == expected
                # A row that the other half of the condition excludes may not be evaluated.
                assert name == "divide some" or all(n for _, n in there)

    check()


def result(read: Callable[[], pa.Table]) -> tuple[pa.Table | None, str]:
    try:
        return read(), ""
    except BadInput as error:
        return None, str(error)


def schema_of(columns: list[str]) -> pa.Schema:
    return SCHEMA.narrowed(columns).arrow_diff if columns else pa.schema([SCHEMA.arrow_diff.field("_diff")])


def test_a_stream_goes_on_after_what_it_has_yielded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsummed, "_LEAST_ROWS", 0)
    monkeypatch.setattr(verified, "_ROWS_BYTES", 0)
    monkeypatch.setattr("holdfast.persist.parts.picked._FEW_ROWS", 1)
    client = Stores().open(**SMALL, inline_max_bytes=0)
    given: list[Append] = [[((key, 1), 1) for key in range(300)], [((150, 0), 1)], [((150, 0), -1)]]
    write(client, given)
    reader = client.reader(SHARD, purpose="t")
    for columns in (None, ["k"]):
        snapshot = reader.snapshot(2, columns=columns).filtered(filter_of(WHERES["divide"], SCHEMA))
        batches = list(snapshot)
        assert [row["k"] for rows in batches for row in rows.to_pylist()] == list(range(300))
        assert len(batches) > 3
    with pytest.raises(BadInput, match="where: divide by zero"):
        list(reader.snapshot(1).filtered(filter_of(WHERES["divide"], SCHEMA)))
