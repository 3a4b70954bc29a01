"""A read opens only the parts that can have wanted rows, by the limits in the state."""

import pyarrow as pa
import pytest

from holdfast.errors import CorruptBlob
from holdfast.persist import KeyRange, PersistClient
from holdfast.persist.admin.verify import verify
from holdfast.persist.parts import part_store
from holdfast.persist.rows.key_filter import KeyFilter
from holdfast.persist.state.state import Part
from testbed.faults import Fault, Operation
from unit.persist.open_stores import SCHEMA, SHARD, Stores, contents

ROWS = 2000


class Opened:
    """Notes which objects are read."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def decide(self, operation: Operation) -> Fault:
        if operation.name in ("blob.get", "blob.get_start", "blob.open_input"):
            self.keys.update(operation.keys)
        return Fault.NONE


@pytest.fixture
def stores() -> Stores:
    """A shard whose rows 0 to 1999 are in one run of many parts, with row 1000 removed by a later append."""
    stores = Stores()
    writer = client(stores).writer(SHARD, SCHEMA, purpose="test")
    with writer.batch_builder() as builder:
        builder.add(pa.table({"k": range(ROWS), "v": [f"value {key}" for key in range(ROWS)]}))
        builder.compare_and_append(0, 1)
    gone = {"k": [1000], "v": ["value 1000"], "_time": pa.array([1], pa.uint64()), "_diff": [-1]}
    writer.compare_and_append(pa.table(gone), 1, 2)
    assert len(parts(stores)) > 12
    return stores


def client(stores: Stores, plan: Opened | None = None, **settings: object) -> PersistClient:
    return stores.open(plan, inline_max_bytes=0, part_target_bytes=4000, **settings)


def parts(stores: Stores) -> list[Part]:
    return [part for batch in stores.state().batches for part in batch.parts]


def parts_with(stores: Stores, keys: set[int]) -> set[str | None]:
    return {
        part.blob_key
        for part in parts(stores)
        for least, greatest in [(part.least, part.greatest)]
        if isinstance(least, int) and isinstance(greatest, int) and any(least <= k <= greatest for k in keys)
    }


def values(keys: set[int]) -> dict[tuple[int, str], int]:
    return {(key, f"value {key}"): 1 for key in keys if 0 <= key < ROWS and key != 1000}


@pytest.mark.parametrize("wanted", [{5}, {1000}, {1999, 3}, {7000}, set(range(995, 1005))])
@pytest.mark.parametrize("columns", [None, ["v"]])
def test_rows_of_some_keys_are_read_from_their_parts(
    stores: Stores, wanted: set[int], columns: list[str] | None
) -> None:
    opened = Opened()
    reader = client(stores, opened).reader(SHARD, purpose="test")
    snapshot = reader.snapshot(1).filtered(KeyFilter(SCHEMA, pa.table({"k": sorted(wanted)})))
    if columns is None:
        assert contents(snapshot.to_table()) == values(wanted)
    else:
        found = snapshot.narrowed(columns).to_table().column("v").to_pylist()
        assert sorted(found) == sorted(value for _, value in values(wanted))
    assert opened.keys & stores.parts() == parts_with(stores, wanted)


def test_a_range_is_read_from_its_parts(stores: Stores) -> None:
    opened = Opened()
    snapshot = client(stores, opened).reader(SHARD, purpose="test").snapshot(1)
    wanted = KeyRange.between(SCHEMA, 990, 1010)
    found = pa.Table.from_batches(snapshot.within(wanted), SCHEMA.arrow_diff)
    assert contents(found) == values({*range(990, 1010)})
    assert opened.keys & stores.parts() == parts_with(stores, {*range(990, 1010)})


def test_pieces_are_planned_without_a_look_at_parts(stores: Stores) -> None:
    opened = Opened()
    reader = client(stores, opened).reader(SHARD, purpose="test")
    pieces = reader.snapshot_parts(1, 2)
    assert not opened.keys & stores.parts()
    assert len(pieces) == 2
    sizes = [reader.snapshot_of(piece).to_table().num_rows for piece in pieces]
    assert sum(sizes) == ROWS - 1
    assert min(sizes) > ROWS / 4


def test_parts_that_were_written_without_limits_are_read(
    monkeypatch: pytest.MonkeyPatch, stores: Stores
) -> None:
    monkeypatch.setattr(part_store, "limits_of", lambda first, last: (None, None))
    writer = client(stores).writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(
        pa.table({"k": [1000], "v": ["new"], "_time": pa.array([2], pa.uint64()), "_diff": [1]}), 2, 3
    )
    assert [part.least for part in parts(stores)][-1] is None
    reader = client(stores).reader(SHARD, purpose="test")
    found = reader.snapshot(2).filtered(KeyFilter(SCHEMA, pa.table({"k": [1000]}))).to_table()
    assert contents(found) == {(1000, "new"): 1}


@pytest.mark.parametrize("off", [(0, -5), (5, 0)])
def test_wrong_limits_are_found(
    monkeypatch: pytest.MonkeyPatch, stores: Stores, off: tuple[int, int]
) -> None:
    """By those who read a part all the same."""
    monkeypatch.setattr(part_store, "limits_of", lambda first, last: (first + off[0], last + off[1]))
    other = client(stores)
    rows = {"k": range(ROWS, 2 * ROWS), "v": ["x"] * ROWS, "_time": pa.array([2] * ROWS, pa.uint64())}
    with other.writer(SHARD, SCHEMA, purpose="test").batch_builder() as builder:
        builder.add(pa.table({**rows, "_diff": [1] * ROWS}))
        builder.compare_and_append(2, 3)
    (finding, *_) = verify(stores.open(mode="read"), SHARD).findings
    assert "its limits in the state exclude a value of k that it has" in str(finding)
    snapshot = client(stores, audit_pushdown=True).reader(SHARD, purpose="test").snapshot(2)
    ranges = [KeyRange.between(SCHEMA, key, key + 5) for key in range(ROWS, 2 * ROWS, 5)]
    with pytest.raises(CorruptBlob, match="no wanted row, by the limits"):
        _ = [list(snapshot.within(each)) for each in ranges]


def test_an_audit_reads_no_later_rows_and_evaluates_no_removed_ones(stores: Stores) -> None:
    writer = client(stores).writer(SHARD, SCHEMA, purpose="test")
    later = {"k": [5000], "v": ["later"], "_time": pa.array([2], pa.uint64()), "_diff": [1]}
    writer.compare_and_append(pa.table(later), 2, 3)
    auditor = client(stores, audit_pushdown=True).reader(SHARD, purpose="test")
    wanted = KeyRange.between(SCHEMA, 10, 12)
    assert sum(rows.num_rows for rows in auditor.snapshot(1).within(wanted)) == 2


def test_pieces_of_runs_that_overlap_are_about_equal() -> None:
    """Limits of one part for each run say nothing of what is between them."""
    stores = Stores()
    writer = client(stores).writer(SHARD, SCHEMA, purpose="test")
    for time in range(24):
        keys = [(number * 7919 + time) % 10_007 for number in range(300)]
        times = pa.array([time] * 300, pa.uint64())
        rows = pa.table({"k": keys, "v": ["x"] * 300, "_time": times, "_diff": [1] * 300})
        writer.compare_and_append(rows, time, time + 1)
    reader = client(stores).reader(SHARD, purpose="test")
    sizes = [reader.snapshot_of(each).to_table().num_rows for each in reader.snapshot_parts(23, 3)]
    assert len(sizes) == 3
    assert max(sizes) < 2 * sum(sizes) / 3
