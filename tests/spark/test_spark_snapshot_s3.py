"""The snapshot job writes a complete snapshot to an S3 bucket, and only one attempt ever commits."""

import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow.fs import S3FileSystem
from pyspark.sql import SparkSession

from holdfast.collections import JobState, RestoreSource, StorageController
from holdfast.collections.snapshots.manifest import verify_snapshot
from holdfast.errors import CorruptBlob, Fenced, StoreUnreachable
from holdfast.persist import Schema
from holdfast.spark.jobs import snapshot
from holdfast.spark.jobs.folder import AttemptTaken, folder_of
from holdfast.spark.jobs.spec import SnapshotSpec
from spark.attempts import again, killed_at, record_of
from testbed.minio import Minio

pytestmark = [pytest.mark.spark, pytest.mark.s3]
Fill = Callable[..., str]
Order = Callable[..., SnapshotSpec]

SCHEMA = Schema.of(key={"id": "uint64"}, value={"name": "string?", "x": "float64"})


@pytest.fixture(scope="module")
def orders(fill: Fill) -> str:
    """100 orders at time 10, twice as many of the even ones at 20, in two shards."""
    rows = [{"id": i, "name": None if i % 7 == 0 else f"o{i}", "x": float(i)} for i in range(100)]
    return fill("orders", SCHEMA, {10: rows, 20: rows[::2]}, shards=2)


@pytest.fixture
def spark(spark: SparkSession, bucket: str, minio: Minio) -> Iterator[SparkSession]:
    """The session, whose executors have the credentials too."""
    environment = spark.sparkContext.environment
    environment.update(minio.credentials)
    yield spark
    for name in minio.credentials:
        del environment[name]


@pytest.fixture
def order(controller: StorageController, url: str, orders: str, minio: Minio, bucket: str) -> Order:
    """Starts a job on record and makes its spec."""

    def make(**change: Any) -> SnapshotSpec:
        record = controller.start_job(orders, "snapshot", str(uuid.uuid4()), spec={})
        given: dict[str, Any] = {
            "url": url,
            "collection": orders,
            "destination": f"s3://{bucket}/snapshots?endpoint={minio.endpoint}",
            "job_id": record.job_id,
            "attempt": record.attempt,
            "as_of": 20,
        }
        return SnapshotSpec(**{**given, **change})

    return make


def objects(minio: Minio, bucket: str) -> list[str]:
    found = minio.client.list_objects_v2(Bucket=bucket).get("Contents", ())
    return [each["Key"] for each in found]


def contents(controller: StorageController, collection: str, as_of: int | None = None) -> Counter[Any]:
    with controller.reader(collection, purpose="test") as reader:
        rows = reader.snapshot(as_of).to_table().to_pylist()
    return Counter({(row["id"], row["name"], row["x"]): row["_diff"] for row in rows})


@pytest.mark.long
def test_a_snapshot_in_a_bucket_is_whole_and_can_be_restored(
    spark: SparkSession, controller: StorageController, order: Order, fill: Fill, minio: Minio, bucket: str
) -> None:
    spec = order()
    said: list[str] = []
    snapshot.run(spec, say=said.append, spark=spark)
    record = record_of(controller, spec)
    folder = folder_of(spec.destination, spec.job_id, 1)
    assert (record.state, record.result["path"]) == (JobState.DONE, str(folder))
    assert record.result["manifest"] == str(folder.below("_manifest.json"))
    manifest = verify_snapshot(record.result["path"])
    assert (manifest.rows, len(manifest.files), record.result["rows"]) == (150, 2, 150)
    assert record.result["checksum"] == f"{manifest.checksum:016x}"
    credentials = minio.credentials
    others = S3FileSystem(
        access_key=credentials["AWS_ACCESS_KEY_ID"],
        secret_key=credentials["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=minio.endpoint,
    )
    below = f"{bucket}/snapshots/{spec.job_id}/attempt-1"
    assert pq.read_table(below, filesystem=others).num_rows == 150

    other = fill("orders again", SCHEMA, {3: [{"id": 7, "name": "old", "x": 0.0}]}, shards=3)
    controller.restore_collection(other, RestoreSource.open(record.result["path"]))
    assert contents(controller, other) == contents(controller, spec.collection, 20)
    assert contents(controller, other, 3) == Counter([(7, "old", 0.0)])


@pytest.mark.long
def test_damage_in_a_bucket_is_found(
    spark: SparkSession, controller: StorageController, order: Order, minio: Minio, bucket: str
) -> None:
    spec = order()
    snapshot.run(spec, say=str, spark=spark)
    path = record_of(controller, spec).result["path"]
    first, second = (name for name in objects(minio, bucket) if name.endswith(".parquet"))
    body = minio.client.get_object(Bucket=bucket, Key=first)["Body"].read()
    for damaged in (body[:-1], body[:40] + bytes([body[40] ^ 1]) + body[41:]):
        minio.client.put_object(Bucket=bucket, Key=first, Body=damaged)
        with pytest.raises(CorruptBlob, match=first.rpartition("/")[2]):
            verify_snapshot(path)
    minio.client.put_object(Bucket=bucket, Key=first, Body=body)
    verify_snapshot(path)
    minio.client.delete_object(Bucket=bucket, Key=second)
    with pytest.raises(CorruptBlob, match=second.rpartition("/")[2]):
        verify_snapshot(path)


@pytest.mark.long
def test_a_killed_attempt_leaves_nothing_that_the_next_one_does_not_clear(
    spark: SparkSession, controller: StorageController, order: Order, minio: Minio, bucket: str
) -> None:
    first = order()
    killed = killed_at(first, "are written, committing")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = objects(minio, bucket)
    assert any(name.endswith("attempt-1/_manifest.json") for name in left)
    with pytest.raises(AttemptTaken):
        snapshot.run(first, say=str, spark=spark)
    assert objects(minio, bucket) == left
    assert record_of(controller, first).state is JobState.RUNNING

    second = again(controller, first)
    snapshot.run(second, say=str, spark=spark)
    assert verify_snapshot(record_of(controller, second).result["path"]).rows == 150
    assert all("/attempt-2/" in name for name in objects(minio, bucket))


def test_an_attempt_that_was_replaced_meanwhile_is_fenced_and_takes_its_objects_away(
    spark: SparkSession, controller: StorageController, order: Order, minio: Minio, bucket: str
) -> None:
    zombie = order()
    successor: list[SnapshotSpec] = []

    def say(text: str) -> None:
        if "are written, committing" in text:
            assert objects(minio, bucket) != []
            successor.append(again(controller, zombie))

    with pytest.raises(Fenced, match="attempt 1"):
        snapshot.run(zombie, say=say, spark=spark)
    assert objects(minio, bucket) == []
    snapshot.run(successor[0], say=str, spark=spark)
    assert record_of(controller, zombie).state is JobState.DONE


def test_a_bucket_that_can_not_be_had_is_told_on_record(
    spark: SparkSession, controller: StorageController, order: Order, minio: Minio
) -> None:
    spec = order(destination=f"s3://no-such-bucket/x?endpoint={minio.endpoint}")
    with pytest.raises(StoreUnreachable):
        snapshot.run(spec, say=str, spark=spark)
    record = record_of(controller, spec)
    assert (record.state, record.error.partition(",")[0]) == (
        JobState.FAILED,
        "there is no S3 bucket no-such-bucket",
    )
    assert minio.secret_key not in record.error
