"""Runs that don't overlap are read, merged and committed as one."""

from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persist import PersistClient, Schema, Upload, WriteHandle
from holdfast.persist.parts.chains import joined
from holdfast.persist.parts.met import met_runs
from holdfast.persist.rows.order import EVERYTHING
from holdfast.persist.state.state import Part
from unit.persist.open_stores import SCHEMA, SHARD, Stores, contents

Limits = tuple[int | None, int | None]

NAMED = Schema.of({"k": "int64"})
RUNS = st.lists(
    st.tuples(st.integers(0, 20) | st.none(), st.integers(0, 8) | st.none()).map(
        lambda pair: (pair[0], None if pair[1] is None else (pair[0] or 0) + pair[1])
    ),
    max_size=12,
)


def run(number: int, limits: Limits) -> tuple[Part, ...]:
    return (Part(1, 1, 0, 1, 1, blob_key=f"p{number}", least=limits[0], greatest=limits[1]),)


@given(RUNS)
def test_runs_are_joined_into_the_fewest_that_do_not_overlap(given: list[Limits]) -> None:
    runs = [run(number, limits) for number, limits in enumerate(given)]
    found = joined(runs, lambda part: NAMED, NAMED)
    assert Counter(part for each in found for part in each) == Counter(part for each in runs for part in each)
    stated = [part for each in runs for part in each if part.greatest is not None]
    for each in found:
        assert len(each) == 1 or None not in [part.greatest for part in each]
        assert all(_last(before) < _first(after) for before, after in pairwise(each))
    deepest = max(sum(_contains(part, value) for part in stated) for value in range(-1, 30))
    assert len(found) == len(runs) - len(stated) + deepest


def _first(part: Part) -> int:
    # Without a least value, a null may be there: before all values.
    return -1 if part.least is None else int(part.least)


def _last(part: Part) -> int:
    assert isinstance(part.greatest, int)
    return part.greatest


def _contains(part: Part, value: int) -> bool:
    return _first(part) <= value <= _last(part)


@pytest.fixture
def stores() -> Stores:
    return Stores()


def client(stores: Stores) -> PersistClient:
    return stores.open(inline_max_bytes=0, part_target_bytes=4000)


def rows(keys: range, time: int = 0) -> pa.Table:
    count = len(keys)
    times, diffs = pa.array([time] * count, pa.uint64()), pa.array([1] * count)
    return pa.table({"k": keys, "v": [f"value {key}" for key in keys], "_time": times, "_diff": diffs})


def uploaded(writer: WriteHandle, other: PersistClient, keys: range) -> Upload:
    batches = rows(keys).cast(SCHEMA.arrow_updates).to_batches()
    return other.upload(writer.upload_ticket(), batches)


def test_uploads_that_do_not_overlap_are_one_run(stores: Stores) -> None:
    writer = client(stores).writer(SHARD, SCHEMA, purpose="test")
    # As tasks end: in any order.
    pieces = [range(2000, 3000), range(1000), range(1000, 2000), range(3000, 3001)]
    uploads = [uploaded(writer, client(stores), keys) for keys in pieces]
    writer.commit(writer.prepare_uploads(uploads, 0, 1))
    (batch,) = stores.state().batches
    assert len(batch.runs) == 1
    assert len(batch.runs[0]) > 4
    least = [_first(part) for part in batch.runs[0]]
    assert least == sorted(least)
    snapshot = client(stores).reader(SHARD, purpose="test").snapshot(0)
    read = pa.Table.from_batches(list(snapshot), SCHEMA.arrow_diff)
    assert read.column("k").to_pylist() == [*range(3001)]


def test_uploads_that_overlap_stay_apart(stores: Stores) -> None:
    """Also in one value: rows with it may be in any order across the two."""
    writer = client(stores).writer(SHARD, SCHEMA, purpose="test")
    uploads = [uploaded(writer, client(stores), keys) for keys in (range(1001), range(1000, 2000))]
    writer.commit(writer.prepare_uploads(uploads, 0, 1))
    (batch,) = stores.state().batches
    assert len(batch.runs) == 2
    found = contents(client(stores).reader(SHARD, purpose="test").snapshot(0).to_table())
    assert found[1000, "value 1000"] == 2


def test_appends_that_do_not_overlap_are_read_as_one_run(stores: Stores) -> None:
    writer = client(stores).writer(SHARD, SCHEMA, purpose="test")
    for time in range(5):
        writer.compare_and_append(rows(range(time * 100, time * 100 + 100), time), time, time + 1)
    state = stores.state()
    assert len(state.batches) > 1
    assert len(met_runs(state, EVERYTHING, None)) == 1
    snapshot = client(stores).reader(SHARD, purpose="test").snapshot(3)
    assert [row for batch in snapshot for row in batch.column("k").to_pylist()] == [*range(400)]
