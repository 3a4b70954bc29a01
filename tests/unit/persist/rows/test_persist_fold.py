"""Folding a chunk merges equal rows to one with the sum of their diffs, in the total order."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import polars_forks
from holdfast.persist.rows import arrow_rows
from holdfast.persist.rows.fold import fold, sort_ties
from holdfast.persist.rows.values import values_of
from unit.persist.rows import strategies

HUGE = 2**63 - 1


@pytest.fixture(autouse=True, params=["polars", "arrow", "arrow, for few rows"])
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polars_forks, "_lost", request.param == "arrow")
    if request.param == "polars":
        monkeypatch.setattr(arrow_rows, "FEW_ROWS", 0)


def folded(names: list[str], rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
    """The rows that are kept in the total order, and their sums."""
    kept, sums = fold(names, rows, values_of(rows.column("_diff")))
    order = sort_ties(names, rows, kept)
    if order is not None:
        kept, sums = kept[order], sums[order]
    return rows.take(pa.array(kept)).select(names), [int(total) for total in sums]


@given(data=st.data())
def test_equal_rows_are_summed_in_order(data: st.DataObject) -> None:
    schema = data.draw(strategies.schemas())
    batches = data.draw(st.lists(strategies.batches(schema), min_size=1, max_size=3))
    rows = pa.concat_batches(batches)
    if not rows.num_rows:
        return
    names = list(schema.names)
    expected: Counter[object] = Counter()
    for row, diff in zip(strategies.comparable(schema, rows), rows.column("_diff").to_pylist(), strict=True):
        expected[row] += diff
    found, sums = folded(names, rows)
    keys = strategies.comparable(schema, found)
    assert keys == sorted(expected)
    assert sums == [expected[key] for key in keys]


@pytest.mark.parametrize("second", [pa.int64(), pa.string()])
def test_rows_whose_hashes_collide_stay_apart(second: pa.DataType) -> None:
    """Half a hash has 32 bits: of so many rows with one number some pairs agree in it."""
    count = 300_000
    others = pa.array(np.random.default_rng(3).permutation(count)).cast(second)
    rows = pa.record_batch(
        [pa.array(np.full(count, 7)), others, pa.array(np.ones(count, np.int64))], ["a", "b", "_diff"]
    )
    found, sums = folded(["a", "b"], rows)
    assert found.num_rows == count
    assert set(sums) == {1}
    assert found.column("b").to_pylist() == sorted(others.to_pylist())


def test_sums_beyond_int64_are_exact() -> None:
    rows = pa.record_batch(
        [pa.array([2, 1, 2, 2]), pa.array([HUGE, 5, HUGE, -3], pa.int64())], ["a", "_diff"]
    )
    found, sums = folded(["a"], rows)
    assert found.to_pydict() == {"a": [1, 2]}
    assert sums == [5, 2 * HUGE - 3]


def test_runs_one_after_the_other_are_merged() -> None:
    random = np.random.default_rng(5)
    ids = random.integers(0, 2_000, 20_000)
    names = np.char.add("n", random.integers(0, 3, 20_000).astype(str))
    table = pa.table({"a": ids, "b": pa.array(names), "_time": np.zeros(20_000, np.uint64)})
    pieces = [
        table.slice(start, 5_000).sort_by([("a", "ascending"), ("b", "ascending")])
        for start in range(0, 20_000, 5_000)
    ]
    diffs = pa.array(random.choice([-1, 1], 20_000))
    rows = (
        pa.concat_tables(pieces)
        .select(["a", "b"])
        .append_column("_diff", diffs)
        .combine_chunks()
        .to_batches()[0]
    )
    expected: Counter[tuple[int, str]] = Counter()
    for row in rows.to_pylist():
        expected[row["a"], row["b"]] += row["_diff"]
    found, sums = folded(["a", "b"], rows)
    keys = [(row["a"], row["b"]) for row in found.to_pylist()]
    assert keys == sorted(expected)
    assert sums == [expected[key] for key in keys]
