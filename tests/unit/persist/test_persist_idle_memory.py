"""A thousand idle shards are a thousand states in memory. They share what they have in common."""

import gc
import tracemalloc
from pathlib import Path

import pytest

from holdfast.persist import PersistClient, Schema
from holdfast.persist.rows.schema import shared
from holdfast.persist.state.codec import decode_state, encode_state
from holdfast.persist.state.state import NOTHING, ShardState

COLUMNS = {"name": "string", "note": "string?"}
MOST_BYTES = 2_000
"""Of one shard at rest; 1,600 when this was written, 2,600 before anything was shared."""


def a_schema() -> Schema:
    return Schema.of(key={"id": "int64"}, value=COLUMNS)


def states(folder: Path) -> list[ShardState]:
    """Those of two shards that are alike, of the process that made them."""
    with PersistClient.open(f"file://{folder}/store") as client:
        shards = [client.new_shard_id() for _ in range(2)]
        for shard in shards:
            client.multi_write(
                [
                    client.prepare_create(shard, a_schema(), purpose="test"),
                    client.prepare_critical(shard, purpose="test"),
                ]
            )
        return [client.session.machine(shard).state for shard in shards]


def test_shards_of_one_schema_have_one(tmp_path: Path) -> None:
    one, other = states(tmp_path)
    assert one.schema is other.schema
    assert decode_state(encode_state(one), "here").schema is one.schema
    assert shared(a_schema()) is one.schema
    assert shared(Schema.of(key={"id": "int64"}, value=COLUMNS, codec=("c", 1))) is not one.schema


def test_a_schema_that_nobody_has_any_more_is_forgotten() -> None:
    first = shared(Schema.of(key={"only_here": "int64"}, value={}))
    arrow = first.arrow
    del first
    gc.collect()
    again = Schema.of(key={"only_here": "int64"}, value={})
    assert shared(again) is again
    assert again.arrow == arrow


def test_tables_without_rows_are_one_that_nobody_can_change(tmp_path: Path) -> None:
    state, _ = states(tmp_path)
    decoded = decode_state(encode_state(state), "here")
    for each in (state, decoded):
        assert all(table is NOTHING for table in (each.garbage, each.claims, each.pending))
        with pytest.raises(TypeError):
            each.garbage["key"] = object()  # type: ignore[index]
    assert decoded == state


def test_a_shard_at_rest_takes_little_memory(tmp_path: Path) -> None:
    data = encode_state(states(tmp_path)[0])
    decode_state(data, "here")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [decode_state(data, "here") for _ in range(200)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    each = (after - before) / len(kept)
    assert each < MOST_BYTES, f"{each:.0f} bytes"
