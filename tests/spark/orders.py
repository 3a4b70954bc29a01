"""A collection that Spark writes: its rows, what is there of them, and what was uploaded."""

from collections import Counter
from typing import Any

import pyarrow as pa

from holdfast.collections import StorageController
from holdfast.errors import AsOfNotYetAvailable
from holdfast.persist import Schema
from holdfast.persist.ids import BLOB_NAME
from holdfast.spark import planned_write
from holdfast.spark.planned_write import WritePlan
from holdfast.spark.write_options import parse_write_options

SCHEMA = Schema.of(key={"id": "uint64"}, value={"name": "string?", "x": "float64"})


def rows_of(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": None if i % 7 == 0 else f"o{i}", "x": float(i)} for i in range(first, last)]


def batch_of(first: int, last: int) -> pa.RecordBatch:
    """What Spark would give to a task."""
    return pa.RecordBatch.from_pylist(rows_of(first, last), SCHEMA.arrow)


def contents(controller: StorageController, collection: str, as_of: int | None = None) -> Counter[int]:
    """How often each id is there; the other columns are as `rows_of` has them."""
    with controller.reader(collection, purpose="look") as reader:
        try:
            table = reader.snapshot(as_of).to_table()
        except AsOfNotYetAvailable:
            return Counter()
    found = table.to_pylist()
    wanted = {row["id"]: row for row in rows_of(0, 1 + max((row["id"] for row in found), default=0))}
    assert all(wanted[row["id"]] == {name: row[name] for name in SCHEMA.names} for row in found)
    return Counter({row["id"]: row["_diff"] for row in found})


def once(first: int, last: int) -> Counter[int]:
    return Counter(range(first, last))


def planned(url: str, collection: str, *, replaces: bool = False, **options: str) -> WritePlan:
    given = parse_write_options({"url": url, "collection": collection, **options})
    return planned_write.plan(given, lambda *_: None, replaces=replaces)


def blobs(controller: StorageController, collection: str) -> set[str]:
    """The keys of all that was uploaded for the collection and is not waiting to be deleted."""
    client = controller.client
    found = set()
    for shard in controller.describe(collection).data_shards:
        garbage = client.session.machine(shard).refresh().garbage
        for meta in client.location.blob.list(shard):
            parsed = BLOB_NAME.fullmatch(meta.key)
            if parsed is not None and parsed["writer"] and meta.key not in garbage:
                found.add(meta.key)
    return found
