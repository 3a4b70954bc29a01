"""Restore drills with both stores in one bucket: the log is lost, or an older copy is restored."""

import shlex
from collections import Counter

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.errors import BadInput, CorruptBlob, HandleExpired, HoldfastError, Indeterminate, LogRegressed
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


@pytest.mark.long
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


@pytest.mark.long
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


def log_objects(minio: Minio, bucket: str) -> list[str]:
    listed = minio.client.list_objects_v2(Bucket=bucket, Prefix="place/consensus/log/")
    return [each["Key"] for each in listed["Contents"]]


@pytest.mark.long
def test_a_client_whose_newest_objects_are_gone_ends(url: str, minio: Minio, bucket: str) -> None:
    config = PersistConfig(maintenance="off", retry_deadline_s=5.0)
    client = PersistClient.open(url, config=config)
    write(client, 0, 8)
    before = log_objects(minio, bucket)
    write(client, 8, 2)
    for key in {*log_objects(minio, bucket)} - {*before}:
        minio.client.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(LogRegressed, match="now has nothing in its place"):
        client.recent_upper(SHARD)
    with pytest.raises(LogRegressed):
        write(client, 10, 1)
    assert log_objects(minio, bucket) == before
    client.location.close()
    verified = CliRunner().invoke(main, ["persist", "verify", url])
    assert verified.exit_code == 1, verified.output
    assert "went back to an older state" in verified.stdout
    told = recover(url)
    assert isinstance(told.exception, SystemExit | BadInput)
    assert "may have two histories" in told.output + str(told.exception)
    accepted = recover(url, "--accept", "--yes")
    assert accepted.exit_code == 0, accepted.output
    check(url, 8)


@pytest.mark.long
def test_a_gap_in_a_log_of_objects(url: str, minio: Minio, bucket: str) -> None:
    """An append over a gap is not acknowledged; recovery goes on from before the gap, and says so."""
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        write(client, 0, 5)
        late = client.writer(SHARD, SCHEMA, purpose="late")
        late.compare_and_append(pa.table({"k": [5]}), 5, 6)
        keys = log_objects(minio, bucket)
        for key in keys[-2:]:
            minio.client.delete_object(Bucket=bucket, Key=key)
        with pytest.raises(Indeterminate, match="nothing in its place"):
            late.compare_and_append(pa.table({"k": [6]}), 6, 7)
        with pytest.raises(LogRegressed):
            client.recent_upper(SHARD)
        client.location.close()
    for mode in ("read", "write"):
        with pytest.raises(CorruptBlob, match="the log goes on to") as caught:
            PersistClient.open(url, mode=mode)  # type: ignore[arg-type]
        assert caught.value.hint.endswith(f"run: holdfast persist recover {shlex.quote(url)}")
    verified = CliRunner().invoke(main, ["persist", "verify", url])
    assert verified.exit_code != 0
    assert isinstance(verified.exception, CorruptBlob) or "the log goes on to" in verified.output
    listed = log_objects(minio, bucket)
    dry = recover(url)
    assert dry.exit_code == 1, dry.output
    assert "the log breaks off" in dry.stderr
    assert "follow a gap and are lost" in dry.stdout
    assert log_objects(minio, bucket) == listed
    done = recover(url, "--yes")
    assert (done.exit_code, done.stdout) == (1, dry.stdout), done.output
    check(url, 4)
