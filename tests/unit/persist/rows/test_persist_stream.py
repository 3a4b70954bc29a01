"""A snapshot as a stream equals `consolidate_at`, in order, whatever happens to parts."""

import weakref
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import AsOfTooEarly, BadInput, CorruptBlob, DiffOverflow
from holdfast.persist import PersistClient, Schema, Snapshot
from holdfast.persist.parts.runs import At, merged
from holdfast.persist.rows.canonical import sort_updates
from holdfast.persist.rows.consolidate import consolidate_at
from holdfast.persist.rows.merge import merge_runs
from holdfast.persist.rows.spill import Spill
from testbed.faults import Fault, Operation
from unit.persist.open_stores import SCHEMA, SHARD, Stores, rows
from unit.persist.rows import strategies

BLOBS = {"inline_max_bytes": 0}
LAST = 2**64 - 1
HUGE = 2**63 - 1


def contents_of(updates: pa.RecordBatch) -> pa.RecordBatch:
    return updates.drop_columns(["_time"])


def merge(schema: Schema, runs: Sequence[Sequence[pa.RecordBatch]]) -> pa.Table:
    batches = list(merge_runs(schema.names, map(iter, runs)))
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches, batches[0].schema if batches else schema.arrow_diff)


def cut(rows: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
    return [rows.slice(start, size) for start in range(0, rows.num_rows, size)]


@st.composite
def runs(draw: st.DrawFn) -> tuple[Schema, list[pa.RecordBatch]]:
    schema = draw(strategies.schemas())
    return schema, draw(st.lists(strategies.batches(schema), max_size=5))


@settings(max_examples=50)
@given(given=runs(), size=st.integers(1, 8))
def test_a_merge_is_the_contents_in_order(given: tuple[Schema, list[pa.RecordBatch]], size: int) -> None:
    schema, batches = given
    found = merge(schema, [cut(contents_of(sort_updates(schema, batch)), size) for batch in batches])
    assert strategies.contents(schema, found) == strategies.contents(
        schema, consolidate_at(schema, batches, LAST)
    )
    keys = strategies.comparable(schema, found)
    assert all(before < after for before, after in pairwise(keys))
    assert 0 not in found.column("_diff").to_pylist()


@given(given=runs(), size=st.integers(1, 8))
@pytest.mark.long
def test_a_merge_through_files_is_the_same(given: tuple[Schema, list[pa.RecordBatch]], size: int) -> None:
    schema, batches = given
    cuts = [cut(contents_of(sort_updates(schema, batch)), size) for batch in batches * 3]
    expected = merge(schema, cuts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("holdfast.persist.rows.merge.MERGE_BYTES", 0)
        patched.setattr("holdfast.persist.rows.merge._FAN_IN", 2)
        found = merge(schema, cuts)
    assert strategies.comparable(schema, found) == strategies.comparable(schema, expected)
    assert found.column("_diff").to_pylist() == expected.column("_diff").to_pylist()


def batch(*updates: tuple[int, str, int]) -> pa.RecordBatch:
    keys, values, diffs = zip(*updates, strict=True)
    return pa.record_batch([pa.array(keys), pa.array(values), pa.array(diffs)], ["k", "v", "_diff"])


@pytest.mark.parametrize("size", [1, 2, 9])
def test_a_sum_may_pass_beyond_int64_and_come_back(size: int) -> None:
    run = batch((1, "a", HUGE), (1, "a", HUGE), (1, "a", -HUGE), (1, "a", -1), (2, "b", 1))
    assert merge(SCHEMA, [cut(run, size)]).to_pylist() == [
        {"k": 1, "v": "a", "_diff": HUGE - 1},
        {"k": 2, "v": "b", "_diff": 1},
    ]


@pytest.mark.parametrize("size", [1, 9])
def test_a_sum_beyond_int64_is_refused(size: int) -> None:
    with pytest.raises(DiffOverflow, match=r"row \(.*=.*\).* does not fit int64"):
        merge(SCHEMA, [cut(batch((1, "a", HUGE), (1, "a", 1), (2, "b", 1)), size)])


def test_a_merge_holds_few_batches_of_each_run() -> None:
    taken = [0, 0]

    def run(which: int) -> Iterator[pa.RecordBatch]:
        for start in range(0, 1000, 10):
            taken[which] += 10
            yield batch(*((2 * key + which, "x", 1) for key in range(start, start + 10)))

    given = 0
    for merged_rows in merge_runs(SCHEMA.names, [run(0), run(1)]):
        given += merged_rows.num_rows
        assert sum(taken) - given <= 2 * 2 * 10 + 20
    assert given == 2000


def test_a_sum_may_pass_beyond_int64_in_a_file_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.persist.rows.merge.MERGE_BYTES", 0)
    diffs = [HUGE] * 6 + [-HUGE] * 5
    assert merge(SCHEMA, [[batch((1, "a", diff))] for diff in diffs]).to_pylist() == [
        {"k": 1, "v": "a", "_diff": HUGE}
    ]
    with pytest.raises(DiffOverflow, match=r"row \(.*=.*\).* does not fit int64"):
        merge(SCHEMA, [[batch((1, "a", diff))] for diff in [HUGE] * 6 + [-HUGE] * 4])


class Kept:
    """Runs whose batches are counted while somebody has them."""

    def __init__(self) -> None:
        self.alive = self.most = self.open = self.most_open = 0

    def run(self, which: int, count: int) -> Iterator[pa.RecordBatch]:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        for key in range(count):
            data = np.frombuffer(bytes([which]) * (256 * 1024), np.uint8)
            value = pa.Array.from_buffers(
                pa.binary(), 1, [None, pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data)]
            )
            self.alive += 1
            self.most = max(self.most, self.alive)
            weakref.finalize(data, self._gone)
            columns = [pa.array([100 * key + which]), value, pa.array([1])]
            del data, value
            yield pa.record_batch(columns, ["k", "v", "_diff"])
        self.open -= 1

    def _gone(self) -> None:
        self.alive -= 1


def test_the_batches_in_memory_do_not_follow_the_number_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.persist.rows.merge.MERGE_BYTES", 6 * 256 * 1024)
    kept, beats, found = Kept(), [], list[int]()
    runs = [kept.run(which, 5) for which in range(60)]
    for merged_rows in merge_runs(SCHEMA.names, runs, lambda: beats.append(1)):
        found += merged_rows.column("k").to_pylist()
    assert found == [100 * key + which for key in range(5) for which in range(60)]
    assert kept.most <= 10
    assert len(beats) > 50


def test_the_files_of_a_merge_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.persist.rows.merge.MERGE_BYTES", 0)
    files: list[Any] = []

    class Noted(Spill):
        def __init__(self, batches: Any) -> None:
            super().__init__(batches)
            files.append(self._file)

    monkeypatch.setattr("holdfast.persist.rows.merge.Spill", Noted)
    runs = [iter(cut(batch(*((9 * key + which, "x", 1) for key in range(5))), 2)) for which in range(9)]
    found = merge_runs(SCHEMA.names, runs)
    next(found)
    assert files
    assert not all(file.closed for file in files)
    found.close()  # type: ignore[attr-defined]
    assert all(file.closed for file in files)


def many(client: PersistClient, appends: int = 4, count: int = 3000) -> list[tuple[int, str]]:
    """Appends of many rows in small parts; the rows."""
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    upper = client.recent_upper(SHARD)
    times = range(upper, upper + appends)
    for time in times:
        writer.compare_and_append(rows(*range(time, time + 10 * count, 10)), time, time + 1)
    return sorted((key, "x") for time in times for key in range(time, time + 10 * count, 10))


SMALL = {**BLOBS, "part_target_bytes": 20_000}


def listed(batches: Iterator[pa.RecordBatch] | Snapshot) -> list[tuple[int, str]]:
    found = [row for batch in batches for row in batch.to_pylist()]
    assert all(row["_diff"] == 1 for row in found)
    return [(row["k"], row["v"]) for row in found]


def test_a_snapshot_comes_in_order_from_blobs_and_inline_parts(stores: Stores) -> None:
    expected = many(stores.open(**SMALL))
    writer = stores.open().writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(9, 5, 7), 4, 5)
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    assert listed(reader.snapshot(3)) == expected
    assert listed(reader.snapshot(4)) == sorted([*expected, (5, "x"), (7, "x"), (9, "x")])
    assert sum(b.num_rows for b in reader.snapshot(0)) == 3000


def compacted(stores: Stores) -> tuple[PersistClient, list[tuple[int, str]]]:
    """A shard with one run of many parts, and its rows at time 3."""
    client = stores.open(compaction_fanin=2, **SMALL)
    expected = many(client)
    client.maintain(SHARD)
    ((run,),) = [batch.runs for batch in stores.state().batches]
    assert len(run) > 10
    return client, expected


def test_a_stream_goes_on_where_it_was_when_its_parts_went(stores: Stores) -> None:
    client, expected = compacted(stores)
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    planned, stream, before = reader.snapshot(3), iter(reader.snapshot(3)), stores.parts()
    first = next(stream)
    many(client)
    client.maintain(SHARD)
    assert not stores.parts() & before
    assert 0 < first.num_rows < len(expected) / 4
    assert listed(iter([first, *stream])) == expected
    assert listed(planned) == expected


def test_a_stream_whose_time_went_says_so(stores: Stores) -> None:
    client, _ = compacted(stores)
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    stream = iter(reader.snapshot(3))
    next(stream)
    many(client)
    client.critical_since(SHARD, purpose="retention").downgrade(4)
    client.maintain(SHARD)
    with pytest.raises(AsOfTooEarly):
        list(stream)


def test_a_stream_of_a_lost_part_says_so(stores: Stores) -> None:
    compacted(stores)
    stream = iter(stores.open(mode="read").reader(SHARD, purpose="test").snapshot(3))
    next(stream)
    lost = str([*stores.state().batches[-1].parts][-1].blob_key)
    stores.blob.delete(lost)
    with pytest.raises(CorruptBlob, match=lost):
        list(stream)


def flip(data: bytes, position: int) -> bytes:
    damaged = bytearray(data)
    damaged[position // 8] ^= 1 << position % 8
    return bytes(damaged)


def test_a_damaged_part_is_never_streamed(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(*range(50)), 0, 1)
    (key,) = stores.parts()
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    cuts = reader.snapshot_parts(0)
    data = stores.blob.get(key)
    assert data is not None
    damaged = [flip(data, bit) for bit in range(0, len(data) * 8, 23)]
    damaged += [data[:length] for length in range(0, len(data), 29)] + [data + b"\0"]
    for bad in damaged:
        stores.blob.put(key, bad)
        with pytest.raises(CorruptBlob, match=key):
            list(reader.snapshot(0))
        with pytest.raises(CorruptBlob, match=key):
            client.read_snapshot_part(cuts[0]).to_table()
    stores.blob.put(key, data)
    assert len(listed(reader.snapshot(0))) == 50


def test_parts_of_a_run_that_do_not_follow_each_other_are_refused(stores: Stores) -> None:
    client, expected = compacted(stores)
    machine = client.session.machine(SHARD)
    ((run,),) = [batch.runs for batch in machine.state.batches]
    assert sum(piece.num_rows for piece in merged(machine, SCHEMA, [run], At(3))) == len(expected)
    with pytest.raises(CorruptBlob, match="sorts before the previous one"):
        list(merged(machine, SCHEMA, [run[::-1]], At(3)))


def test_only_some_columns(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1, 2, 1), 0, 1)
    reader = client.reader(SHARD, purpose="test")
    for found in (
        reader.snapshot(0, columns=["v"]).to_table(),
        pa.Table.from_batches(reader.snapshot(0, columns=["v"])),
    ):
        assert found.column_names == ["v", "_diff"]
        assert sum(found.column("_diff").to_pylist()) == 3
    for bad in (["w"], ["v", "v"], ["_time"]):
        with pytest.raises(BadInput, match=bad[0]):
            reader.snapshot(0, columns=bad)


def test_a_large_append_is_one_sorted_run(stores: Stores) -> None:
    client = stores.open(**SMALL)
    expected = many(client, appends=1)
    ((run,),) = [batch.runs for batch in stores.state().batches]
    assert len(run) > 3
    stream = iter(client.reader(SHARD, purpose="test").snapshot(0))
    first = next(stream)
    assert listed(iter([first, *stream])) == expected


class Sequenced:
    """What was opened and put, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def decide(self, operation: Operation) -> Fault:
        if operation.name in ("blob.open_input", "blob.put"):
            self.seen.append(operation.name)
        return Fault.NONE


def test_a_compaction_writes_parts_while_it_reads(stores: Stores) -> None:
    client, expected = compacted(stores)
    expected += many(client)
    calls = Sequenced()
    stores.open(calls, compaction_fanin=2, rollup_every=1000, **SMALL).maintain(SHARD)
    (batch,) = stores.state().batches
    (run,) = batch.runs
    assert batch.level == 2
    assert {part.blob_key for part in run} == stores.parts()
    assert all(part.size_bytes < 2 * 20_000 for part in run)
    # The last merge is of two runs, whose parts are opened one by one.
    merge = calls.seen[-2 * len(run) :]
    last_open = len(merge) - merge[::-1].index("blob.open_input")
    assert merge[:last_open].count("blob.put") > len(run) / 2
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    assert listed(reader.snapshot(7)) == sorted(expected)


def test_a_compaction_that_fails_takes_its_parts_away(stores: Stores) -> None:
    client = stores.open(compaction_fanin=2, **SMALL)
    many(client)
    lost = str([*stores.state().batches[0].parts][-1].blob_key)
    data = stores.blob.get(lost)
    assert data is not None
    before = stores.parts()
    stores.blob.put(lost, flip(data, 100))
    with pytest.raises(CorruptBlob, match=lost):
        client.maintain(SHARD)
    assert stores.parts() == before


@settings(max_examples=25)
@given(given=runs(), since=st.integers(0, 5), as_of=st.integers(0, 5), target=st.sampled_from([1, 10**6]))
def test_a_compaction_changes_no_contents_from_since_on(
    given: tuple[Schema, list[pa.RecordBatch]], since: int, as_of: int, target: int
) -> None:
    schema, batches = given
    stores = Stores()
    small: dict[str, Any] = {**BLOBS, "part_target_bytes": target, "compaction_fanin": 2}
    client = stores.open(**small)
    writer = client.writer(SHARD, schema, purpose="test")
    times = [6 * n for n in range(len(batches) + 1)]
    for (lower, upper), updates in zip(pairwise(times), batches, strict=True):
        early = updates.filter(pc.less(updates["_time"], pa.scalar(6, pa.uint64())))
        moved = pc.add(early["_time"], pa.scalar(lower, pa.uint64()))
        index = early.schema.get_field_index("_time")
        writer.compare_and_append(early.set_column(index, "_time", moved), lower, upper)
    if not batches:
        writer.seal(6)
    upper = client.recent_upper(SHARD)
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    at = max(upper - 6 + max(since, as_of), 0)
    before = reader.snapshot(at).to_table()
    client.critical_since(SHARD, purpose="retention").downgrade(min(upper - 1, upper - 6 + since))
    client.maintain(SHARD)
    after = reader.snapshot(at)
    assert len(stores.state().batches) <= 1
    assert strategies.contents(schema, after.to_table()) == strategies.contents(schema, before)
    streamed = pa.Table.from_batches(after, schema.arrow_diff)
    assert strategies.contents(schema, streamed) == strategies.contents(schema, before)
    found = strategies.comparable(schema, streamed)
    assert found == sorted(set(found))


def test_less_memory_means_more_and_smaller_batches_of_the_same_rows(stores: Stores) -> None:
    many = 20_000
    with stores.open(**BLOBS) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        for time in range(2):
            table = pa.table({"k": range(time, 2 * many, 2), "v": ["v"] * many})
            writer.compare_and_append(table, time, time + 1)
        with client.reader(SHARD, purpose="test") as reader:
            whole = list(reader.snapshot(1))
            small = list(reader.snapshot(1, buffer_bytes=1))
    assert len(small) > 2 * len(whole)
    assert pa.Table.from_batches(small).equals(pa.Table.from_batches(whole))
    assert sum(batch.num_rows for batch in small) == 2 * many
