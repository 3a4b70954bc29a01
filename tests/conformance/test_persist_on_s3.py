"""Persist on a real object store and SQLite: a new client reads what was written, and garbage is deleted."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import LocationMismatch
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.admin.accept import accept
from holdfast.persist.admin.verify import verify
from holdfast.persist.session import Mode
from holdfast.persist.stores import Location
from holdfast.persist.stores.s3 import PART_BYTES
from testbed.droppingproxy import DroppingProxy
from testbed.minio import Minio

pytestmark = pytest.mark.s3
SHARD = "s00000000-0000-4000-8000-000000000001"
SCHEMA = Schema.of({"k": "int64"}, {"v": "int64"})
SMALL_APPENDS = 20
CONFIG = PersistConfig(
    inline_max_bytes=0,
    rollup_every=8,
    compaction_fanin=4,
    gc_grace_s=0.0,
    maintenance="off",
    debug_validate=True,
)


def small(time: int) -> pa.Table:
    """Row -1 once more, and row `time`."""
    return pa.table({"k": [-1, time], "v": [0, time]})


def large() -> pa.Table:
    """Rows that no compression gets below the size of two parts of an upload."""
    count = 3 * PART_BYTES // 8
    values = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(os.urandom(8 * count))])
    return pa.table({"k": pa.array(range(1000, 1000 + count), pa.int64()), "v": values})


@pytest.mark.long
def test_appends_large_parts_compaction_and_garbage(minio: Minio, bucket: str, tmp_path: Path) -> None:
    def opened(mode: Mode = "write") -> PersistClient:
        return PersistClient.open(
            blob=f"s3://{bucket}/shards?endpoint={minio.endpoint}",
            consensus=f"sqlite://{tmp_path}/log.sqlite",
            mode=mode,
            config=CONFIG,
        )

    def objects() -> dict[str, str]:
        listed = minio.client.list_objects_v2(Bucket=bucket, Prefix="shards/").get("Contents", [])
        return {found["Key"].removeprefix("shards/"): found["ETag"] for found in listed}

    big = large()
    with opened() as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        for time in range(SMALL_APPENDS):
            writer.compare_and_append(small(time), time, time + 1)
        writer.compare_and_append(big, SMALL_APPENDS, SMALL_APPENDS + 1)
        written = objects()
        reader = client.reader(SHARD, purpose="test")
        reader.allow_compaction(SMALL_APPENDS)
        reader.close()
        client.maintain(SHARD)
        client.maintain(SHARD)
        state = client.session.machine(SHARD).refresh()

    left = objects()
    parts = {part.blob_key for batch in state.batches for part in batch.parts}
    rollups = {rollup.blob_key for rollup in state.rollups.values()}
    assert len(written) == SMALL_APPENDS + 2
    assert any("-" in tag for tag in written.values()), "no object went up in parts"
    assert {key for key in left if "/c" not in key} == {"location.json", *parts, *rollups}
    assert len(parts) < SMALL_APPENDS // 2
    assert state.garbage == {}
    with opened("read") as fresh:
        assert fresh.session.machine(SHARD).refresh().batches == state.batches
        found = fresh.reader(SHARD, purpose="test").snapshot(SMALL_APPENDS).to_table()
    assert found.num_rows == 1 + SMALL_APPENDS + big.num_rows
    few = found.filter(pa.compute.less(found["k"], 1000)).to_pylist()
    assert Counter({row["k"]: row["_diff"] for row in few}) == {
        -1: SMALL_APPENDS,
        **dict.fromkeys(range(SMALL_APPENDS), 1),
    }
    many = found.filter(pa.compute.greater_equal(found["k"], 1000)).sort_by("k")
    assert many["v"].combine_chunks().equals(big["v"].combine_chunks())


def test_an_append_whose_upload_lost_its_answer_is_committed_once(
    minio: Minio, bucket: str, tmp_path: Path
) -> None:
    with DroppingProxy(minio.port) as proxy:
        location = Location.open(
            blob=f"s3://{bucket}?endpoint={proxy.endpoint}", consensus=f"sqlite://{tmp_path}/log.sqlite"
        )
        with PersistClient(location, config=CONFIG) as client:
            writer = client.writer(SHARD, SCHEMA, purpose="test")
            for time in range(3):
                proxy.lose("PUT")
                writer.compare_and_append(small(time), time, time + 1)
            found = client.reader(SHARD, purpose="test").snapshot(2).to_table()
        assert proxy.dropped == 3
    assert {row["k"]: row["_diff"] for row in found.to_pylist()} == {-1: 3, 0: 1, 1: 1, 2: 1}
    objects = minio.client.list_objects_v2(Bucket=bucket)["Contents"]
    assert sorted(each["Key"].split("/")[-1][0] for each in objects) == ["l", "p", "p", "p", "v"]


def test_a_location_on_s3_alone(minio: Minio, bucket: str) -> None:
    url = f"s3://{bucket}/here?endpoint={minio.endpoint}"
    other = "s00000000-0000-4000-8000-000000000002"
    with PersistClient.open(url, config=CONFIG) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        for time in range(10):
            writer.compare_and_append(small(time), time, time + 1)
        client.multi_write(
            [
                writer.prepare_append(small(10), 10, 11),
                client.writer(other, SCHEMA, purpose="test").prepare_append(small(0), 0, 1),
            ]
        )
        reader = client.reader(SHARD, purpose="test")
        reader.allow_compaction(10)
        reader.close()
        client.maintain(SHARD)
        location_id = client.location_id

    with PersistClient.open(url, mode="read", config=CONFIG) as fresh:
        assert fresh.location_id == location_id
        assert fresh.shards() == [SHARD, other]
        found = fresh.reader(SHARD, purpose="test").snapshot(10).to_table().to_pylist()
        assert fresh.recent_upper(other) == 1
    assert {row["k"]: row["_diff"] for row in found} == {-1: 11, **dict.fromkeys(range(11), 1)}
    names = [each["Key"] for each in minio.client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert {"/".join(name.split("/")[:2]) for name in names} == {"here/blob", "here/consensus"}
    with pytest.raises(LocationMismatch):
        PersistClient.open(
            blob=f"s3://{bucket}/there?endpoint={minio.endpoint}",
            consensus=f"s3://{bucket}/here/consensus?endpoint={minio.endpoint}",
        )


def test_folders_that_the_console_makes_stop_nobody(minio: Minio, bucket: str) -> None:
    url = f"s3://{bucket}/place?endpoint={minio.endpoint}"
    config = replace(CONFIG, maintenance="inline", debug_validate=False)
    for name in ("place/", "place/blob/", "place/blob/lines/", f"place/blob/{SHARD}/"):
        minio.client.put_object(Bucket=bucket, Key=name, Body=b"")
    with PersistClient.open(url, config=config) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        for time in range(12):
            writer.compare_and_append(small(time), time, time + 1)
        assert client.session.machine(SHARD).state.gc_seqno > 0
        assert verify(client, SHARD).findings == ()
        accept(client.session.machine(SHARD))
