"""An append of many rows to many shards splits and sorts once, and encodes and uploads in parallel."""

from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.collections import CollectionSpec, StorageController
from holdfast.collections.record.spec import CollectionInfo
from holdfast.collections.routing import split_rows, split_sorted
from holdfast.errors import StorageError
from holdfast.persist import Schema
from holdfast.persist.rows.canonical import prepare_updates, sort_updates
from holdfast.persist.rows.part import decode_parquet
from holdfast.persist.rows.row_hash import shard_of
from testbed.faults import Fault, ScriptedPlan
from unit.collections.stores import SCHEMA, Stores

MANY = 5000
SHARDS = 8
SPEC = CollectionSpec("c1", "flights", SCHEMA, shards=SHARDS)
WIDE = Schema.of(key={"id": "int64?", "part": "float64"}, value={"name": "string?", "flag": "bool?"})


def rows(count: int, seed: int = 1) -> pa.Table:
    """Rows in no order, some of them twice."""
    ids = np.random.default_rng(seed).integers(-count, count, count)
    return pa.table({"id": ids, "name": np.char.add("name ", (ids % 977).astype(str))})


def wide_rows(count: int) -> pa.RecordBatch:
    """Updates with nulls and NaN in no order, of several times."""
    choose = np.random.default_rng(7)
    numbers = choose.integers(0, count // 4 + 1, count)
    parts = choose.choice([0.0, -1.5, np.nan, np.inf, 2.5], count)
    table = pa.table(
        {
            "id": pa.array(numbers, mask=numbers % 5 == 0),
            "part": parts,
            "name": pa.array(np.char.add("é", numbers.astype(str)).tolist(), mask=numbers % 7 == 0),
            "flag": pa.array(numbers % 2 == 0, mask=numbers % 3 == 0),
            "_time": choose.integers(3, 9, count).astype(np.uint64),
            "_diff": choose.choice([1, -1, 3], count),
        }
    )
    return prepare_updates(WIDE, table, default_time=3)


def made(stores: Stores) -> CollectionInfo:
    with stores.open() as client:
        return StorageController(client).create_collection(SPEC)


@pytest.mark.parametrize("count", [0, 1, 300, 3000])
@pytest.mark.parametrize("hash_columns", [("id",), ("name", "part")])
def test_each_shard_gets_its_rows_in_their_order(count: int, hash_columns: tuple[str, ...]) -> None:
    client = Stores().open()
    spec = CollectionSpec("c1", "wide", WIDE, shards=SHARDS, hash_columns=hash_columns)
    rendition = StorageController(client).create_collection(spec).holding
    updates = wide_rows(count)
    numbers = pa.array(shard_of(updates, hash_columns, SHARDS))
    wanted = [updates.filter(pc.equal(numbers, shard)) for shard in range(SHARDS)]
    found = split_rows(rendition, updates)
    # By text: no NaN equals another.
    assert [repr(each.to_pylist()) for each in found] == [repr(each.to_pylist()) for each in wanted]
    ordered = split_sorted(rendition, WIDE, updates)
    for each, rows_of_shard in zip(ordered, wanted, strict=True):
        each.validate(full=True)
        assert sorted(map(repr, each.to_pylist())) == sorted(map(repr, rows_of_shard.to_pylist()))
        in_order = sort_updates(WIDE, rows_of_shard)
        # Of updates that differ in nothing else any `_diff` may be first.
        assert repr(each.drop_columns("_diff").to_pylist()) == repr(
            in_order.drop_columns("_diff").to_pylist()
        )


def test_threads_make_the_parts_that_the_caller_makes_without_them() -> None:
    stored = []
    for builder_threads in (True, False):
        stores = Stores()
        info = made(stores)
        with stores.open(builder_threads=builder_threads, inline_max_bytes=1024) as client:
            writer = StorageController(client).writer("flights", purpose="test")
            writer.append(rows(MANY), 0, 10)
            writer.append(rows(MANY, 2), 10, 20)
            assert client.recent_uppers(info.data_shards) == dict.fromkeys(info.data_shards, 20)
        stored.append(parts(stores, info))
    with_threads, without = stored
    assert with_threads == without
    assert sorted(Counter(shard for shard, _ in with_threads).values()) == [2] * SHARDS
    tables = [decode_parquet(data, SCHEMA, key="a part") for _, data in with_threads]
    assert sum(table.num_rows for table in tables) == 2 * MANY
    for table in tables:
        assert table.equals(sort_updates(SCHEMA, table))


def parts(stores: Stores, info: CollectionInfo) -> list[tuple[int, bytes]]:
    """The bytes of all parts, each with the number of its shard."""
    found = []
    for number, shard in enumerate(info.data_shards):
        for meta in stores.blob.list(f"{shard}/w"):
            data = stores.blob.get(meta.key)
            assert data is not None
            found.append((number, data))
    return sorted(found)


@pytest.mark.parametrize("failing", [0, 3, SHARDS - 1])
@pytest.mark.parametrize("builder_threads", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_an_upload_that_fails_leaves_no_part_of_any_shard(
    failing: int, builder_threads: bool, at_once: bool
) -> None:
    stores = Stores()
    info = made(stores)
    # Whatever the order of the threads: all uploads from some one on fail, for longer than is tried.
    script = dict.fromkeys(range(failing, 10_000), Fault.DETERMINATE)
    plan = ScriptedPlan(script, matches=lambda operation: operation.name == "blob.put")
    with stores.open(plan, builder_threads=builder_threads, inline_max_bytes=1024) as client:
        writer = StorageController(client).writer("flights", purpose="test")
        tried = partial(writer.append, rows(MANY), 0, 10)
        prepared = partial(writer.prepare, rows(MANY), writer.position(), 10)
        with pytest.raises(StorageError):
            (tried if at_once else prepared)()
        assert plan.seen > failing
        assert parts(stores, info) == []
    with stores.open(inline_max_bytes=1024) as client:
        StorageController(client).writer("flights", purpose="test").append(rows(MANY), 0, 10)
    assert len(parts(stores, info)) == SHARDS
