"""Restore drills where both stores are one bucket: the log of objects is lost, or an older copy is back."""

from collections import Counter

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.errors import HandleExpired, HoldfastError, Indeterminate
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.admin.verify import verify
from testbed.minio import Minio

pytestmark = pytest.mark.s3
SHARD = "s00000000-0000-4000-8000-000000000001"
SCHEMA = Schema.of({"k": "int64"})
CONFIG = PersistConfig(maintenance="inline", debug_validate=True, retain_for_s=1e6)


@pytest.fixture
def url(minio: Minio, bucket: str) -> str:
    return f"s3://{bucket}/place?endpoint={minio.endpoint}"


def write(client: PersistClient, first: int, count: int) -> None:
    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        for time in range(first, first + count):
            writer.compare_and_append(pa.table({"k": [time]}), time, time + 1)


def recover(url: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["persist", "recover", url, *options])


def check(url: str, upper: int) -> None:
    with PersistClient.open(url, config=CONFIG) as client:
        assert client.recent_upper(SHARD) == upper
        found = client.reader(SHARD, purpose="check").snapshot(upper - 1).to_table()
        assert Counter(found["k"].to_pylist()) == Counter(range(upper))
        assert verify(client, SHARD).findings == ()
        write(client, upper, 3)
    with PersistClient.open(url, mode="read") as client:
        assert client.recent_upper(SHARD) == upper + 3


def test_a_log_of_objects_that_is_lost(url: str, minio: Minio, bucket: str) -> None:
    with PersistClient.open(url, config=CONFIG) as client:
        write(client, 0, 12)
    s3 = minio.client
    lost = [each["Key"] for each in s3.list_objects_v2(Bucket=bucket, Prefix="place/consensus")["Contents"]]
    for key in lost:
        s3.delete_object(Bucket=bucket, Key=key)
    dry = recover(url)
    assert dry.exit_code == 1, dry.output
    assert "nothing was written" in dry.stderr
    done = recover(url, "--yes")
    assert (done.exit_code, done.stdout) == (1, dry.stdout), done.output
    check(url, 12)


def test_an_older_copy_of_a_log_of_objects(url: str, minio: Minio, bucket: str) -> None:
    s3 = minio.client
    with PersistClient.open(url, config=CONFIG) as client:
        write(client, 0, 6)
    keys = [each["Key"] for each in s3.list_objects_v2(Bucket=bucket, Prefix="place/consensus")["Contents"]]
    copy = {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}
    with PersistClient.open(url, config=CONFIG) as client:
        write(client, 6, 6)
    zombie = PersistClient.open(url, config=CONFIG)
    assert zombie.recent_upper(SHARD) == 12
    for each in s3.list_objects_v2(Bucket=bucket, Prefix="place/consensus")["Contents"]:
        s3.delete_object(Bucket=bucket, Key=each["Key"])
    for key, data in copy.items():
        s3.put_object(Bucket=bucket, Key=key, Body=data)
    done = recover(url, "--yes")
    assert done.exit_code == 1, done.output
    with pytest.raises(HoldfastError):
        zombie.recent_upper(SHARD)
    zombie.location.close()
    check(url, 12)


def test_a_process_that_knows_the_log_from_before_is_told(url: str) -> None:
    with PersistClient.open(url, config=CONFIG) as client:
        write(client, 0, 6)
    zombie = PersistClient.open(url, config=CONFIG)
    writer = zombie.writer(SHARD, SCHEMA, purpose="zombie")
    writer.compare_and_append(pa.table({"k": [6]}), 6, 7)
    assert recover(url, "--yes", "--restored").exit_code == 1
    # Its object is put, and nobody takes it for the log.
    with pytest.raises(Indeterminate):
        writer.compare_and_append(pa.table({"k": [7]}), 7, 8)
    with pytest.raises(HandleExpired, match="recovered from its rollups"):
        zombie.recent_upper(SHARD)
    zombie.location.close()
    check(url, 7)
