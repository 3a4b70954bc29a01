"""The batch builder: any number of updates, in any order, becomes one append or nothing."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput, Determinate, Indeterminate, UpperMismatch
from holdfast.persist import Schema
from holdfast.persist.rows.consolidate import consolidate_at
from testbed.faults import Fault, Operation, ScriptedPlan
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, contents, rows, updates
from unit.persist.rows import strategies

LAST = 2**64 - 1
BLOBS = {"inline_max_bytes": 0}
SMALL = {**BLOBS, "part_target_bytes": 20_000}
# Chunks of 1250 bytes: some dozens of rows.
TINY = 10_000


@pytest.fixture(params=[True, False], ids=["threads", "alone"])
def threads(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def shuffled(count: int) -> Iterator[pa.Table]:
    """Keys 0 to count - 1 in no order, in pieces."""
    for start in range(0, count, 100):
        yield rows(*(key * 7919 % count for key in range(start, min(count, start + 100))))


def uploads(operation: Operation) -> bool:
    return operation.name == "blob.put" and "/w" in operation.keys[0]


@pytest.mark.long
def test_any_order_becomes_one_sorted_run(stores: Stores, threads: bool) -> None:
    client = stores.open(builder_threads=threads, **SMALL)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    with writer.batch_builder(memory_bytes=TINY) as builder:
        builder.add(shuffled(5000))
        builder.compare_and_append(0, 10)
    (batch,) = stores.state().batches
    (run,) = batch.runs
    assert len(run) > 3
    assert sum(part.rows for part in run) == 5000
    assert (batch.lower, batch.upper) == (0, 10)
    assert {part.blob_key for part in run} == stores.parts()
    # A stream refuses parts of a run that don't follow each other.
    found = [
        row["k"] for piece in client.reader(SHARD, purpose="test").snapshot(0) for row in piece.to_pylist()
    ]
    assert found == list(range(5000))


@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.long
def test_what_was_added_is_what_was_given(data: st.DataObject) -> None:
    schema = data.draw(strategies.schemas())
    batches = data.draw(st.lists(strategies.batches(schema), max_size=6))
    client = Stores().open(
        builder_threads=False,
        part_target_bytes=data.draw(st.sampled_from([1, 200, 10**6])),
        inline_max_bytes=data.draw(st.sampled_from([0, 10**6])),
    )
    writer = client.writer(SHARD, schema, purpose="test")
    with writer.batch_builder(memory_bytes=data.draw(st.sampled_from([1, 500, 10**6]))) as builder:
        for batch in batches:
            builder.add(batch)
        builder.compare_and_append(0, 2**64)
    as_of = data.draw(st.integers(0, 6) | st.just(LAST))
    snapshot = client.reader(SHARD, purpose="test").snapshot(as_of)
    expected = strategies.contents(schema, consolidate_at(schema, batches, as_of))
    assert strategies.contents(schema, snapshot.to_table()) == expected
    streamed = pa.Table.from_batches(snapshot, schema.arrow_diff)
    assert strategies.contents(schema, streamed) == expected
    keys = strategies.comparable(schema, streamed)
    assert keys == sorted(set(keys))


@pytest.mark.parametrize(
    "given",
    [
        rows(3, 1, 2),
        rows(3, 1, 2).to_batches()[0],
        pl.DataFrame({"k": [3, 1, 2], "v": ["x"] * 3}),
        [{"k": key, "v": "x"} for key in (3, 1, 2)],
        [rows(3), rows(1, 2)],
        iter([rows(3), [rows(1)], [{"k": 2, "v": "x"}], None]),
        pa.RecordBatchReader.from_batches(rows(1).schema, [rows(3, 1, 2).to_batches()[0]]),
    ],
    ids=["table", "batch", "frame", "dicts", "tables", "iterator", "reader"],
)
def test_what_can_be_added(stores: Stores, given: Any) -> None:
    client = stores.open()
    with client.writer(SHARD, SCHEMA, purpose="test").batch_builder() as builder:
        builder.add(given)
        builder.compare_and_append(4 - 4, 9)
    found = client.reader(SHARD, purpose="test").snapshot(0).to_table()
    assert contents(found) == {(1, "x"): 1, (2, "x"): 1, (3, "x"): 1}


def test_little_is_inline_and_nothing_only_moves_the_upper(stores: Stores) -> None:
    client = stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    with writer.batch_builder() as builder:
        builder.add(rows(2, 1))
        builder.add(updates([(1, "x", 0, 1)]).drop_columns("_time"))
        builder.compare_and_append(0, 1)
    with writer.batch_builder() as builder:
        builder.compare_and_append(1, 5)
    (batch,) = stores.state().batches
    assert (batch.rows, batch.upper, stores.parts()) == (2, 5, set())
    found = client.reader(SHARD, purpose="test").snapshot(4).to_table()
    assert contents(found) == {(1, "x"): 2, (2, "x"): 1}


def test_updates_keep_their_times_and_cancel(stores: Stores) -> None:
    client = stores.open(**SMALL)
    with client.writer(SHARD, SCHEMA, purpose="test").batch_builder(memory_bytes=1) as builder:
        builder.add(
            updates([(1, "a", 3, 1), (2, "b", 5, 1), (1, "a", 4, -1), (9, "z", 3, 1), (9, "z", 3, -1)])
        )
        builder.compare_and_append(3 - 3, 6)
    reader = client.reader(SHARD, purpose="test")
    assert [contents(reader.snapshot(time).to_table()) for time in (2, 3, 4, 5)] == [
        {},
        {(1, "a"): 1},
        {},
        {(2, "b"): 1},
    ]
    assert stores.state().batches[0].rows == 3


@pytest.mark.parametrize("times", [(2, 10), (4, 8)])
def test_a_time_outside_of_the_append_is_refused_before_anything_is_uploaded(
    stores: Stores, times: tuple[int, int]
) -> None:
    client = stores.open(**SMALL)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    with writer.batch_builder(memory_bytes=TINY) as builder:
        builder.add(updates([(key, "x", 3 + key % 5 * 2 - key % 2, 1) for key in range(500)]))
        with pytest.raises(BadInput, match=rf"an update is at time \d+: expected times in \[{times[0]}, "):
            builder.prepare_append(*times)
        assert stores.stored() == ({}, {}) or stores.parts() == set()
        builder.prepare_append(2, 12)
    assert stores.parts() == set()


def test_some_with_times_and_some_without_are_refused(stores: Stores) -> None:
    with stores.open().writer(SHARD, SCHEMA, purpose="test").batch_builder() as builder:
        builder.add(rows(1))
        with pytest.raises(BadInput, match="some updates have a _time and some have none"):
            builder.add(updates([(2, "b", 5, 1)]))
        # What came before the wrong one is in, so it is not clear what the batch would be.
        with pytest.raises(BadInput, match="failed to add some updates"):
            builder.compare_and_append(0, 9)
    assert stores.state().upper == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": 1, "v": "x"}, "not dict"),
        ("text", "not str"),
        (7, "not int"),
        ([rows(1), 7], "not int"),
        ([rows(1), rows(1).rename_columns(["k", "w"])], "column 'v' is missing"),
    ],
)
def test_bad_updates_are_refused(stores: Stores, given: Any, message: str) -> None:
    with stores.open().writer(SHARD, SCHEMA, purpose="test").batch_builder() as builder:
        with pytest.raises(BadInput, match=message):
            builder.add(given)
        with pytest.raises(BadInput, match="failed to add"):
            builder.prepare_append(0, 1)


def test_another_upper_is_noticed_before_the_upload_and_the_builder_goes_on(
    stores: Stores, threads: bool
) -> None:
    calls = ScriptedPlan({}, matches=uploads)
    client = stores.open(calls, builder_threads=threads, **SMALL)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    stores.open().writer(SHARD, SCHEMA, purpose="other").compare_and_append(rows(-1), 0, 4)
    with writer.batch_builder(memory_bytes=TINY) as builder:
        builder.add(shuffled(2000))
        with pytest.raises(UpperMismatch, match="is 4, expected 0"):
            builder.compare_and_append(0, 5)
        assert calls.seen == 0
        builder.compare_and_append(4, 5)
        with pytest.raises(BadInput, match="has appended what was added"):
            builder.compare_and_append(5, 6)
    found = client.reader(SHARD, purpose="test").snapshot(4).to_table()
    assert sorted(found.column("k").to_pylist()) == list(range(-1, 2000))


def test_a_rejected_append_can_be_prepared_again(stores: Stores) -> None:
    client = stores.open(**SMALL)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    with writer.batch_builder(memory_bytes=TINY) as builder:
        builder.add(shuffled(2000))
        early = builder.prepare_append(0, 5)
        writer.seal(3)
        with pytest.raises(UpperMismatch):
            client.multi_write([early])
        assert stores.parts() == set()
        again = builder.prepare_append(3, 5)
        client.multi_write([again])
    assert client.reader(SHARD, purpose="test").snapshot(4).to_table().num_rows == 2000
    assert len(stores.parts()) == len(again.uploaded)


def test_a_builder_that_is_given_up_leaves_nothing(stores: Stores, threads: bool) -> None:
    client = stores.open(builder_threads=threads, **SMALL)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    with writer.batch_builder(memory_bytes=TINY) as builder:
        builder.add(shuffled(2000))
        prepared = builder.prepare_append(0, 5)
        assert len(stores.parts()) > 1
    assert stores.parts() == set()
    with pytest.raises(BadInput, match="its uploads are deleted"):
        client.multi_write([prepared])
    with pytest.raises(BadInput, match="is closed"):
        builder.add(rows(1))
    assert stores.state().upper == 0


def test_what_was_committed_stays_when_the_builder_closes(stores: Stores) -> None:
    client = stores.open(**SMALL)
    steps = []
    one = client.writer(SHARD, SCHEMA, purpose="test").batch_builder(memory_bytes=TINY)
    two = client.writer(OTHER, SCHEMA, purpose="test").batch_builder(memory_bytes=TINY)
    with one, two:
        for builder in (one, two):
            builder.add(shuffled(1000))
            steps.append(builder.prepare_append(0, 1))
        client.multi_write(steps)
    for shard in (SHARD, OTHER):
        assert client.reader(shard, purpose="test").snapshot(0).to_table().num_rows == 1000


def test_an_append_of_unknown_outcome_keeps_its_parts(stores: Stores) -> None:
    def commits(operation: Operation) -> bool:
        return operation.name.startswith("consensus") and armed

    armed = False
    plan = ScriptedPlan(
        {0: Fault.INDETERMINATE_AFTER, **dict.fromkeys(range(1, 1000), Fault.DETERMINATE)}, matches=commits
    )
    client = stores.open(plan, **SMALL)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    with writer.batch_builder(memory_bytes=TINY) as builder:
        builder.add(shuffled(2000))
        prepared = builder.prepare_append(0, 5)
        armed = True
        with pytest.raises(Indeterminate):
            client.multi_write([prepared])
    armed = False
    found = stores.open().reader(SHARD, purpose="test").snapshot(4).to_table()
    assert found.num_rows == 2000


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.long
def test_an_upload_that_fails_leaves_nothing_and_can_be_done_again(
    stores: Stores, threads: bool, failing: int
) -> None:
    plan = ScriptedPlan({failing: Fault.DETERMINATE}, matches=uploads)
    small = {**SMALL, "part_target_bytes": 5_000}
    client = stores.open(plan, retry_deadline_s=0.0, builder_threads=threads, **small)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    with writer.batch_builder(memory_bytes=TINY) as builder:
        builder.add(shuffled(1500))
        with pytest.raises(Determinate):
            builder.compare_and_append(0, 5)
        assert stores.parts() == set()
        builder.compare_and_append(0, 5)
    assert len(stores.parts()) > 3
    assert client.reader(SHARD, purpose="test").snapshot(4).to_table().num_rows == 1500


def open_temporary_files() -> int:
    """Files of this process without a name."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    return sum(target.endswith("(deleted)") for target in links)


@pytest.mark.long
def test_temporary_files_have_no_name_and_are_closed(
    stores: Stores, threads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = open_temporary_files()
    client = stores.open(builder_threads=threads, **SMALL)
    with client.writer(SHARD, SCHEMA, purpose="test").batch_builder(memory_bytes=TINY) as builder:
        # Hundreds of chunks: files are merged into longer ones.
        builder.add(shuffled(6_000))
        prepared = builder.prepare_append(0, 1)
        assert 1 < open_temporary_files() - before <= 70
        assert list(tmp_path.iterdir()) == []
        client.multi_write([prepared])
    assert open_temporary_files() == before
    assert client.reader(SHARD, purpose="test").snapshot(0).to_table().num_rows == 6_000


def test_no_room_for_temporary_files_is_said(
    stores: Stores, threads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    client = stores.open(builder_threads=threads, **SMALL)
    with client.writer(SHARD, SCHEMA, purpose="test").batch_builder(memory_bytes=TINY) as builder:
        with pytest.raises(Determinate, match=r"can't use a temporary file in .*missing"):
            builder.add(shuffled(2000))
        with pytest.raises(BadInput, match="failed to add"):
            builder.compare_and_append(0, 1)
    assert stores.state().upper == 0


def test_the_last_chunk_that_could_not_be_spilled_is_not_left_out(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With threads the failure comes after the `add` that gathered the chunk."""
    client = stores.open(**SMALL)
    with client.writer(SHARD, SCHEMA, purpose="test").batch_builder(memory_bytes=TINY) as builder:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        builder.add(rows(*range(60)))
        with pytest.raises(Determinate, match="temporary file"):
            builder.compare_and_append(0, 1)
        monkeypatch.undo()
        with pytest.raises(BadInput, match="failed to add"):
            builder.compare_and_append(0, 1)
    assert stores.state().upper == 0


def test_a_closed_or_read_only_writer_has_no_builder(stores: Stores) -> None:
    writer = stores.open().writer(SHARD, SCHEMA, purpose="test")
    with pytest.raises(BadInput, match="memory_bytes of a batch builder is 0"):
        writer.batch_builder(memory_bytes=0)
    writer.close()
    with pytest.raises(BadInput, match="closed"):
        writer.batch_builder()


@pytest.mark.parametrize("most", [None, 3, 50])
@pytest.mark.long
def test_key_ranges_cut_a_run_of_many_parts(stores: Stores, most: int | None) -> None:
    client = stores.open(audit_pushdown=True, **{**SMALL, "part_target_bytes": 5_000})
    schema = Schema.of({"k": "int64", "s": "string"}, {"f": "float64?"})
    with client.writer(SHARD, schema, purpose="test").batch_builder(memory_bytes=TINY) as builder:
        for start in range(0, 1500, 100):
            keys = [key * 7919 % 1500 // 3 for key in range(start, start + 100)]
            floats = [[None, float("nan"), -0.0, 0.0, 1.5][key % 5] for key in keys]
            builder.add(pa.table({"k": keys, "s": [str(key % 7) for key in keys], "f": floats}))
        builder.compare_and_append(0, 1)
    (run,) = stores.state().batches[0].runs
    assert len(run) > 3
    reader = client.reader(SHARD, purpose="test")
    parts = reader.snapshot_parts(0, most)
    assert 3 <= len(parts) <= (most or len(run))
    whole = reader.snapshot(0).to_table()
    found = pa.Table.from_batches(
        [piece for part in parts for piece in client.read_snapshot_part(part)], schema.arrow_diff
    )
    assert strategies.contents(schema, found) == strategies.contents(schema, whole)
    keys = strategies.comparable(schema, found)
    assert keys == sorted(set(keys))
