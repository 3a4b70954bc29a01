"""A compaction in pieces by several processes equals the compaction of a single process."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.errors import HandleExpired
from holdfast.persist import CompactionPiece, CompactionTask, PersistClient, Schema
from holdfast.persist.admin.sweep import sweep
from holdfast.persist.handles.read import ReadHandle
from holdfast.persist.parts.part_store import read_updates
from holdfast.persist.rows.canonical import sort_updates
from holdfast.persist.state.state import Part
from unit.persist.open_stores import SHARD, Stores

BLOBS: dict[str, Any] = {"inline_max_bytes": 0, "part_target_bytes": 100}
SCHEMA = Schema.of({"k": "float64?"}, {"v": "int64"})
WIDER = Schema.of({"k": "float64?"}, {"v": "int64", "more": "string?"})
# Zeros of both signs are one key; nulls are first in the order and NaN is last.
KEYS = st.sampled_from([None, float("nan"), float("-inf"), -2.5, -0.0, 0.0, 1.0, 1.5, 2.0, 3.0])
UPDATE = st.tuples(KEYS, st.integers(0, 1), st.sampled_from([-1, 1, 1, 2]))
APPENDS = st.lists(st.lists(UPDATE, max_size=12), min_size=2, max_size=6)


def write(client: PersistClient, appends: list[list[tuple[float | None, int, int]]]) -> None:
    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        for time, updates in enumerate(appends):
            rows = [dict(zip(("k", "v", "_diff"), update, strict=True)) for update in updates]
            writer.compare_and_append(rows, time, time + 1)


def claimed(client: PersistClient, purpose: str = "job") -> CompactionTask:
    task = client.compactions.claim(SHARD, purpose=purpose, full=True)
    assert task is not None
    return task


def rows_of(client: PersistClient, parts: tuple[Part, ...]) -> pa.Table:
    machine = client.session.machine(SHARD)
    schema = machine.refresh().schema
    found = [read_updates(machine, schema, part, from_time=0) for part in parts]
    return pa.concat_tables([schema.arrow_updates.empty_table(), *found]).combine_chunks()


def merged(pieces: list[CompactionPiece], client: PersistClient) -> list[tuple[Part, ...]]:
    return [client.compactions.merge_piece(pickle.loads(pickle.dumps(piece))) for piece in pieces]


def some() -> list[list[tuple[float | None, int, int]]]:
    """Four appends of neighbouring keys that are worth three cuts."""
    return [[(float(key), time, 1) for key in range(4 * time, 4 * time + 6)] for time in range(4)]


@settings(max_examples=20)
@given(appends=APPENDS, most=st.integers(1, 5), since=st.integers(0, 6))
def test_the_pieces_one_after_the_other_are_the_whole(
    appends: list[list[tuple[float | None, int, int]]], most: int, since: int
) -> None:
    stores = Stores()
    client = stores.open(**BLOBS)
    write(client, appends)
    client.critical_since(SHARD, purpose="hold").downgrade(min(since, len(appends) - 1))
    task = client.compactions.claim(SHARD, purpose="job", full=True)
    assume(task is not None)
    assert task is not None
    pieces = client.compactions.pieces(task, most)
    assert 1 <= len(pieces) <= most
    whole = rows_of(client, client.compactions.merge(task))
    parts = tuple(part for piece in merged(pieces, stores.open(**BLOBS)) for part in piece)
    in_pieces = rows_of(client, parts)
    ordered = sort_updates(SCHEMA, in_pieces).to_pylist()
    # As text, in which NaN equals NaN and the zeros of both signs differ.
    assert repr(in_pieces.to_pylist()) == repr(whole.to_pylist()) == repr(ordered)
    reader = client.reader(SHARD, purpose="look")
    times = range(reader.since(), len(appends))
    before = [contents(reader, time) for time in times]
    assert client.compactions.install(task, parts)
    (batch,) = stores.state().batches
    assert [*batch.parts] == [*parts]
    assert [contents(reader, time) for time in times] == before


def contents(reader: ReadHandle, time: int) -> list[str]:
    return [repr(row) for batch in reader.snapshot(time) for row in batch.to_pylist()]


def test_cuts_are_made_where_rows_are(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    write(client, some())
    parts = merged(client.compactions.pieces(claimed(client), 4), client)
    assert all(sum(part.rows for part in piece) >= 4 for piece in parts)
    assert len(parts) == 4


def test_there_is_nothing_to_gain_from_one_batch_that_is_compacted_already(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    write(client, some())
    task = claimed(client)
    assert client.compactions.size(task).rows == 24
    assert client.compactions.claim(SHARD, purpose="other", full=True) is None
    assert client.compactions.claimants(SHARD) == ("job",)
    assert client.compactions.install(task, client.compactions.merge(task))
    assert client.compactions.claim(SHARD, purpose="other", full=True) is None
    assert client.compactions.claimants(SHARD) == ()


def test_who_is_replaced_installs_nothing_and_what_it_uploaded_goes(stores: Stores) -> None:
    zombie = stores.open(**BLOBS)
    write(zombie, some())
    task = claimed(zombie, "job attempt 1")
    left = [part for piece in merged(zombie.compactions.pieces(task, 4), zombie) for part in piece]
    successor = stores.open(**BLOBS)
    successor.compactions.end(SHARD, {"another job"})
    assert successor.compactions.claimants(SHARD) == ("job attempt 1",)
    successor.compactions.end(SHARD, {"job attempt 1"})
    second = claimed(successor, "job attempt 2")
    before = stores.state().batches
    assert not zombie.compactions.renew(task)
    renewal = zombie.compactions.renewal(task)
    stores.clock.sleep(1000)
    with pytest.raises(HandleExpired, match="not renewed"):
        renewal()
    stores.clock.sleep(25 * 3600)
    (swept,) = sweep(stores.open(gc_grace_s=3600.0, **BLOBS), delete=True)
    assert {orphan.key for orphan in swept.orphans} == {part.blob_key for part in left}
    assert not zombie.compactions.install(task, tuple(left))
    assert stores.state().batches == before
    assert successor.compactions.renew(second)


def test_a_piece_that_is_done_twice_counts_once_and_the_other_time_is_swept(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    write(client, some())
    task = claimed(client)
    pieces = client.compactions.pieces(task, 3)
    lost, kept = merged(pieces, client), merged(pieces, client)
    assert client.compactions.install(task, tuple(part for piece in kept for part in piece))
    stores.clock.sleep(25 * 3600)
    (swept,) = sweep(stores.open(gc_grace_s=3600.0, **BLOBS), delete=True)
    assert {orphan.key for orphan in swept.orphans} == {part.blob_key for piece in lost for part in piece}
    found = client.reader(SHARD, purpose="look").snapshot(3).to_table()
    assert sum(found["_diff"].to_pylist()) == 24


def test_pieces_keep_the_schema_that_they_were_planned_with(stores: Stores) -> None:
    """A worker that knows an older version, and the shard evolves once more while it works."""
    worker = stores.open(**BLOBS)
    write(worker, some())
    client = stores.open(**BLOBS)
    client.evolve(SHARD, WIDER)
    task = claimed(client)
    pieces = client.compactions.pieces(task, 2)
    client.evolve(SHARD, Schema.of({"k": "float64?"}, {"v": "int64", "more": "string?", "most": "bool?"}))
    parts = tuple(part for piece in merged(pieces, worker) for part in piece)
    assert {part.schema_id for part in parts} == {2}
    assert client.compactions.install(task, parts)
    found = client.reader(SHARD, purpose="look").snapshot(3).to_table()
    assert found.column_names == ["k", "v", "more", "most", "_diff"]
    assert found.num_rows == 24
