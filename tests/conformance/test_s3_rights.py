"""Users of an S3 service who lack a right: each call fails at once, and the message names the right."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import Determinate, StorageError, StoreUnreachable
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.stores.s3 import PART_BYTES, S3Blob
from holdfast.persist.stores.s3_objects import S3Objects
from holdfast.persist.stores.s3_place import S3Place
from testbed.minio import Minio

pytestmark = pytest.mark.s3

SHARD = "s00000000-0000-4000-8000-000000000001"
SCHEMA = Schema.of({"k": "int64"}, {"v": "int64"})
RIGHTS = ("s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject")
DEADLINE_S = 60.0
AT_ONCE_S = 20.0
"""Far below the deadline, and far above what a loaded machine needs."""
CONFIG = PersistConfig(
    inline_max_bytes=0, rollup_every=4, gc_grace_s=0.0, retry_deadline_s=DEADLINE_S, debug_validate=True
)
Use = Callable[[S3Place], object]


@contextmanager
def user(minio: Minio, bucket: str, rights: Sequence[str]) -> Iterator[None]:
    """Use the bucket as somebody who has only these rights, with credentials that expire."""
    import boto3

    sts = boto3.session.Session().client(
        "sts",
        endpoint_url=minio.endpoint,
        region_name="us-east-1",
        aws_access_key_id=minio.access_key,
        aws_secret_access_key=minio.secret_key,
    )
    allowed = {
        "Effect": "Allow",
        "Action": [*rights, "s3:AbortMultipartUpload"],
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
    }
    given = sts.assume_role(
        RoleArn="arn:xxx:xxx:xxx:xxxx",
        RoleSessionName="test",
        Policy=json.dumps({"Version": "2012-10-17", "Statement": [allowed]}),
    )["Credentials"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", given["AccessKeyId"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", given["SecretAccessKey"])
        patch.setenv("AWS_SESSION_TOKEN", given["SessionToken"])
        yield


def without(*lacking: str) -> list[str]:
    return [right for right in RIGHTS if right not in lacking]


@pytest.fixture
def place(minio: Minio, bucket: str) -> S3Place:
    minio.client.put_object(Bucket=bucket, Key="there", Body=b"1")
    return S3Place(bucket=bucket, endpoint=minio.endpoint)


def of_blob(act: Callable[[S3Blob], object]) -> Use:
    def use(place: S3Place) -> object:
        with closing(S3Blob(place)) as blob:
            return act(blob)

    return use


def of_objects(act: Callable[[S3Objects], object]) -> Use:
    def use(place: S3Place) -> object:
        with closing(S3Objects(place)) as objects:
            return act(objects)

    return use


USES: dict[str, tuple[str, Use]] = {
    "open": ("s3:ListBucket", of_blob(lambda blob: None)),
    "get": ("s3:GetObject", of_blob(lambda blob: blob.get("there"))),
    "put": ("s3:PutObject", of_blob(lambda blob: blob.put("new", b"1"))),
    "put in parts": ("s3:PutObject", of_blob(lambda blob: blob.put("new", bytes(2 * PART_BYTES + 1)))),
    "delete": ("s3:DeleteObject", of_blob(lambda blob: blob.delete("there"))),
    "get of a log": ("s3:GetObject", of_objects(lambda objects: objects.get("there"))),
    "create": ("s3:PutObject", of_objects(lambda objects: objects.create("new", b"1"))),
    "delete of a log": ("s3:DeleteObject", of_objects(lambda objects: objects.delete(["there"]))),
}


@pytest.mark.parametrize(("right", "use"), USES.values(), ids=USES)
def test_a_refusal_names_bucket_and_right_and_is_lasting(
    minio: Minio, bucket: str, place: S3Place, right: str, use: Use
) -> None:
    with user(minio, bucket, RIGHTS):
        use(place)
    minio.client.put_object(Bucket=bucket, Key="there", Body=b"1")
    minio.client.delete_object(Bucket=bucket, Key="new")
    with user(minio, bucket, without(right)), pytest.raises(StorageError) as caught:
        use(place)
    error = caught.value
    assert isinstance(error, Determinate | StoreUnreachable)
    assert right in str(error)
    assert bucket in str(error)
    assert "\n" not in str(error)
    assert isinstance(error, StoreUnreachable) or error.lasting
    left = [found["Key"] for found in minio.client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert left == ["there"]


def opened(place: S3Place, consensus: str, **options: object) -> PersistClient:
    blob = f"s3://{place.bucket}/data?endpoint={place.endpoint}"
    return PersistClient.open(blob=blob, consensus=consensus, config=CONFIG, **options)  # type: ignore[arg-type]


def append(client: PersistClient, time_: int) -> None:
    rows = pa.table({"k": [time_], "v": [time_]})
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows, time_, time_ + 1)


@pytest.fixture(params=["sqlite", "s3"])
def consensus(request: pytest.FixtureRequest, place: S3Place, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/log.sqlite"
    return f"s3://{place.bucket}/log?endpoint={place.endpoint}"


def test_an_append_without_the_right_to_put_fails_at_once(
    minio: Minio, bucket: str, place: S3Place, consensus: str
) -> None:
    with opened(place, consensus) as client:
        append(client, 0)
    with user(minio, bucket, without("s3:PutObject")):
        began = time.monotonic()
        with opened(place, consensus) as client, pytest.raises(Determinate, match="s3:PutObject"):
            append(client, 1)
        assert time.monotonic() - began < AT_ONCE_S
    with opened(place, consensus, mode="read") as client:
        assert client.reader(SHARD, purpose="test").snapshot(0).to_table().num_rows == 1
