"""Spark tasks read a collection whose shards got another schema, before or after the plan."""

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.collections import CollectionSpec, StorageController
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.spark import scan
from holdfast.spark.batches import conform
from holdfast.spark.options import parse_options

SCHEMA = Schema.of({"k": "int64"}, {"v": "int32"})
LATER = Schema.of({"k": "int64"}, {"v": "int64?", "w": "string?"})


@pytest.mark.parametrize("inline", [0, 65536], ids=["blob", "inline"])
def test_tasks_give_the_columns_that_were_planned(tmp_path: Path, inline: int) -> None:
    url = tmp_path.as_uri()
    config = PersistConfig(maintenance="off", inline_max_bytes=inline, compaction_fanin=2, gc_grace_s=0.0)
    with PersistClient.open(url, config=config) as client, StorageController(client) as storage:
        info = storage.create_collection(CollectionSpec("c1", "orders", SCHEMA, shards=2))
        upper = storage.frontiers("c1").upper
        writer = storage.writer("c1", purpose="test")
        for half in (range(50), range(50, 100)):
            rows = pa.table({"k": list(half), "v": pa.array([7] * 50, pa.int32())})
            writer.append(rows, upper, upper + 1)
            upper += 1
        found = scan.find(parse_options({"url": url, "collection": "orders"}))
        before = scan.plan(found)
        client.multi_write([client.prepare_evolve(shard, LATER) for shard in info.data_shards])
        # Compaction rewrites what the tasks planned to read, under the new schema.
        for shard in info.data_shards:
            client.maintain(shard)
            assert {
                part.schema_id for b in client.session.machine(shard).state.batches for part in b.parts
            } == {2}
        for tasks, columns in ((before, SCHEMA.arrow_diff), (scan.plan(found), LATER.arrow_diff)):
            batches = [batch for task in tasks for batch in scan.read(task)]
            assert all(batch.schema.equals(columns) for batch in batches)
            table = pa.Table.from_batches([conform(batch, SCHEMA.arrow) for batch in batches])
            assert sorted(table.column("k").to_pylist()) == list(range(100))
            assert set(table.column("v").to_pylist()) == {7}
