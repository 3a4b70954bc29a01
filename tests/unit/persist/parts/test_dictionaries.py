"""Long values that repeat take few bytes in a part. A read of them takes no more memory than others do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist import PersistClient, Schema
from holdfast.persist.parts import dictionaries, runs, verified
from holdfast.persist.rows.part import encode_parquet
from holdfast.tables.filters import Where, filter_of
from testbed.children import plain_path
from unit.persist.open_stores import SHARD, Stores

ROOT = Path(__file__).parents[4]
MIB = 1024 * 1024
SCHEMA = Schema.of({"k": "int64"}, {"t": "string?", "b": "binary?", "n": "int32"})
ROWS = 30_000
WIDTH = 4000

pools: list[pa.MemoryPool] = []

values = st.none() | st.sampled_from(["", "a", "b" * 40, "c" * 3000])


def wide(rows: int) -> pa.Table:
    texts = pa.array([letter * WIDTH for letter in "abcde"])
    keys = pa.array(range(rows), pa.int64())
    places = pc.subtract(keys, pc.multiply(pc.divide(keys, 5), 5))
    return pa.table(
        {
            "k": keys,
            "t": texts.take(places),
            "b": pa.array([b"0", b"1"]).take(pc.min_element_wise(places, pa.scalar(1))),
            "n": places.cast(pa.int32()),
        }
    )


def filled(rows: int) -> PersistClient:
    client = Stores().open(inline_max_bytes=0)
    with client.writer(SHARD, SCHEMA, purpose="t") as writer:
        writer.compare_and_append(wide(rows), 0, 1)
    return client


def taken(client: PersistClient, columns: list[str] | None, where: Where | None) -> tuple[int, int]:
    """The rows of a read that keeps none of them, and the most memory that Arrow took for it."""
    snapshot = client.reader(SHARD, purpose="t").snapshot(0, columns=columns)
    if where is not None:
        snapshot = snapshot.filtered(filter_of(where, SCHEMA))
    before, counting = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pools.append(counting)
    pa.set_memory_pool(counting)
    rows = sum(batch.num_rows for batch in snapshot)
    pa.set_memory_pool(before)
    return rows, counting.max_memory()


def measure() -> None:
    """Print what some reads take. What they leave in memory must not outlive its pool."""
    client = filled(ROWS)
    reads = [(None, None), (None, [("t", ">", "b")]), (["t"], None), (["t"], [("n", "<", 3)])]
    print(json.dumps([taken(client, *each) for each in reads]), flush=True)
    os._exit(0)


def test_a_read_of_texts_that_repeat_takes_the_documented_memory() -> None:
    child = [sys.executable, "-c", f"from {__name__} import measure; measure()"]
    environment = {**os.environ, "PYTHONPATH": plain_path(ROOT / "catalog", ROOT / "tests")}
    done = subprocess.run(child, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert [rows for rows, _ in found] == [ROWS, ROWS * 4 // 5, ROWS, ROWS * 3 // 5]
    # All rows take 115 MiB. A batch has 16, there is a second one, and a merge has copies of both.
    assert max(most for _, most in found) < 120 * MIB


def test_a_batch_of_several_runs_has_the_share_of_a_run() -> None:
    machine = filled(6000).session.machine(SHARD)
    (batch,) = machine.state.batches
    (run,) = batch.runs
    opened = runs.open_runs(machine, SCHEMA, [run] * 8, runs.At(0))
    assert max(rows.nbytes for rows in opened[0]) <= 1.5 * runs.BUFFER_BYTES / 8


@settings(max_examples=50)
@given(rows=st.lists(st.tuples(values, values), min_size=1, max_size=60), most=st.integers(1, 5000))
def test_pieces_have_all_rows_and_few_bytes(rows: list[tuple[str | None, str | None]], most: int) -> None:
    plain = pa.RecordBatch.from_arrays(
        [
            pa.array(range(len(rows)), pa.int64()),
            pa.array([text for text, _ in rows], pa.string()),
            pa.array([None if data is None else data.encode() for _, data in rows], pa.binary()),
        ],
        schema=pa.schema([pa.field("k", pa.int64(), nullable=False), ("t", pa.string()), ("b", pa.binary())]),
    )
    coded = plain
    for name in ("t", "b"):
        place = plain.schema.get_field_index(name)
        coded = coded.set_column(place, name, plain.column(name).dictionary_encode())
    coded = pa.RecordBatch.from_arrays(
        coded.columns, schema=coded.schema.set(0, pa.field("k", pa.int64(), nullable=False))
    )
    assert dictionaries.decoded(coded).equals(plain)
    assert dictionaries.decoded(coded).schema.equals(plain.schema)
    pieces = list(dictionaries.decoded_pieces(coded, lambda _: most))
    assert pa.Table.from_batches(pieces).combine_chunks().to_batches()[0].equals(plain)
    assert all(
        piece.num_rows == 1 or dictionaries.decoded_bytes(piece) <= 1.5 * most + 32 * piece.num_rows
        for piece in pieces
    )


def test_rows_are_the_same_whatever_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Stores().open(inline_max_bytes=0)
    given = pa.table(
        {
            "k": pa.array(range(300), pa.int64()),
            "t": pa.array([[None, "x", "y" * 500][key % 3] for key in range(300)]),
            "b": pa.array([[b"", None, b"z" * 90][key % 3] for key in range(300)]),
            "n": pa.array([key % 7 for key in range(300)], pa.int32()),
        }
    )
    monkeypatch.setattr("holdfast.persist.rows.part.KEYED_GROUP_ROWS", 80)
    found.writer(SHARD, SCHEMA, purpose="t").compare_and_append(given, 0, 1)
    monkeypatch.setattr(verified, "_ROWS_BYTES", 1)
    monkeypatch.setattr(runs, "_LEAST_COLUMN_BYTES", 1)
    for most in (2000, 20_000, runs.BUFFER_BYTES):
        monkeypatch.setattr(runs, "BUFFER_BYTES", most)
        for columns in (None, ["k", "t"], ["b"]):
            for where in (None, pc.field("n") < 3, pc.field("t") == "x"):
                snapshot = found.reader(SHARD, purpose="t").snapshot(0, columns=columns)
                expected = given if where is None else given.filter(where)
                if where is not None:
                    snapshot = snapshot.filtered(filter_of(where, SCHEMA))
                names = SCHEMA.names if columns is None else columns
                rows = pa.Table.from_batches(snapshot).select(names)
                assert rows.combine_chunks().to_pydict() == expected.select(names).to_pydict()


def test_a_part_tells_which_columns_have_dictionaries() -> None:
    texts = pa.table(
        {
            "k": pa.array(range(100), pa.int64()),
            "t": pa.array([f"text {key}" for key in range(100)]),
            "b": pa.array([b"same"] * 100),
            "n": pa.array([1] * 100, pa.int32()),
            "_time": pa.array([0] * 100, pa.uint64()),
            "_diff": pa.array([1] * 100, pa.int64()),
        },
        schema=SCHEMA.arrow_updates,
    )
    metadata = pq.read_metadata(pa.BufferReader(encode_parquet(SCHEMA, 1, texts)))
    assert dictionaries.columns_with_dictionary(metadata, SCHEMA, SCHEMA.names) == ["b"]
    assert dictionaries.columns_with_dictionary(metadata, SCHEMA, ["k", "t"]) == []
