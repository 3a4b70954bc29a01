"""Wrong or missing stores give a one-line error and change nothing. Later they work again."""

import uuid
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from holdfast.errors import (
    Determinate,
    HoldfastError,
    LocationMismatch,
    StorageError,
    StoreUnreachable,
)
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.stores import Blob, Consensus, Location, Put
from holdfast.persist.stores.url import open_stores
from testbed.minio import Minio
from testbed.postgres import PostgresServer

SHARD = "s00000000-0000-4000-8000-000000000001"
SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})
MARKS = {"s3": pytest.mark.s3, "postgres": pytest.mark.postgres}
PAIRS = [
    pytest.param(blob, log, id=f"{blob}-{log}", marks=[MARKS[kind] for kind in {blob, log} & MARKS.keys()])
    for blob, log in product(["file", "s3", "memory"], ["sqlite", "postgres", "s3", "memory"])
]


class Urls:
    """The URLs of new places, of each kind."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self._folder = folder
        self._request = request

    def blob(self, kind: str, name: str) -> str:
        match kind:
            case "file":
                return f"file://{self._folder}/{name}"
            case "s3":
                return self._s3(f"blob-{name}")
        return f"memory://{self._folder}/{name}"

    def log(self, kind: str, name: str) -> str:
        match kind:
            case "sqlite":
                return f"sqlite://{self._folder}/{name}.sqlite"
            case "postgres":
                url: str = self._request.getfixturevalue("postgres_url")
                return f"{url}?schema={name}"
            case "s3":
                return self._s3(f"log-{name}")
        return f"memory://{self._folder}/{name}"

    def _s3(self, prefix: str) -> str:
        minio: Minio = self._request.getfixturevalue("minio")
        return f"s3://{self._request.getfixturevalue('bucket')}/{prefix}?endpoint={minio.endpoint}"


@pytest.fixture
def urls(tmp_path: Path, request: pytest.FixtureRequest) -> Urls:
    return Urls(tmp_path, request)


def holdings(blob: Blob, consensus: Consensus) -> tuple[dict[str, bytes | None], dict[str, object]]:
    """All that two stores hold."""
    keys = consensus.list_keys()
    blobs = {meta.key: blob.get(meta.key) for meta in blob.list("")}
    return blobs, {key: consensus.scan(key, 0, 1000) for key in keys}


@pytest.mark.parametrize(("blob", "log"), PAIRS)
def test_a_wrong_pair_is_refused_and_nothing_changes(urls: Urls, blob: str, log: str) -> None:
    pairs = [(urls.blob(blob, name), urls.log(log, name)) for name in ("one", "two")]
    places = [Location.open(blob=of_blob, consensus=of_log) for of_blob, of_log in pairs]
    for place in places:
        place.blob.put(f"{SHARD}/w/p", b"part")
        assert place.consensus.compare_and_set([Put(SHARD, 1, b"diff")])
    before = [holdings(place.blob, place.consensus) for place in places]
    wrong = [
        (pairs[0][0], pairs[1][1]),
        (pairs[0][0], urls.log(log, "new")),
        (urls.blob(blob, "new"), pairs[0][1]),
    ]

    for of_blob, of_log in wrong:
        with pytest.raises(LocationMismatch) as caught:
            Location.open(blob=of_blob, consensus=of_log)
        assert "\n" not in str(caught.value)
        assert caught.value.hint
        assert caught.value.exit_code == 2

    assert [holdings(place.blob, place.consensus) for place in places] == before
    new = open_stores(
        None, blob=urls.blob(blob, "new"), consensus=urls.log(log, "new"), create=True, read_only=False
    )
    assert holdings(*new) == ({}, {})
    for store in (*new, *(store for place in places for store in (place.blob, place.consensus))):
        store.close()


@pytest.mark.s3
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong-secret"}, "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "wrong-secret"}, "InvalidAccessKeyId"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "the credentials are incomplete"),
    ],
    ids=str,
)
def test_wrong_credentials_open_no_log(
    minio: Minio, bucket: str, monkeypatch: pytest.MonkeyPatch, change: dict[str, str | None], says: str
) -> None:
    for name, value in change.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)

    with pytest.raises(StoreUnreachable) as caught:
        PersistClient.open(f"s3://{bucket}/here?endpoint={minio.endpoint}")

    shown = f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
    assert "wrong-secret" not in shown
    assert minio.secret_key not in shown
    assert "Contents" not in minio.client.list_objects_v2(Bucket=bucket)


@pytest.mark.s3
def test_a_missing_bucket_or_log_is_told_and_not_made(minio: Minio, bucket: str) -> None:
    name = f"test-{uuid.uuid4().hex}"

    with pytest.raises(StoreUnreachable, match=f"there is no S3 bucket {name}") as caught:
        PersistClient.open(f"s3://{name}/here?endpoint={minio.endpoint}")
    assert "create the bucket" in caught.value.hint
    with pytest.raises(StoreUnreachable, match="there is no consensus log in S3 bucket") as caught:
        PersistClient.open(f"s3://{bucket}/here?endpoint={minio.endpoint}", mode="read")
    assert "check the URL" in caught.value.hint

    assert name not in {found["Name"] for found in minio.client.list_buckets()["Buckets"]}
    assert "Contents" not in minio.client.list_objects_v2(Bucket=bucket)


@pytest.mark.s3
def test_a_bucket_that_goes_is_an_error_and_no_empty_log(minio: Minio, bucket: str) -> None:
    location = Location.open(f"s3://{bucket}?endpoint={minio.endpoint}")
    listed = minio.client.list_objects_v2(Bucket=bucket)["Contents"]
    minio.client.delete_objects(
        Bucket=bucket, Delete={"Objects": [{"Key": found["Key"]} for found in listed]}
    )
    with pytest.raises(Determinate, match="was removed or replaced"):
        location.consensus.heads(["a"])
    minio.client.delete_bucket(Bucket=bucket)

    with pytest.raises(Determinate, match="NoSuchBucket"):
        location.consensus.heads(["a"])
    with pytest.raises(Determinate, match="NoSuchBucket"):
        location.consensus.compare_and_set([Put("a", 1, b"x")])
    location.close()


class Server:
    """A server that a test stops, and the URLs of a location on it."""

    def __init__(self, server: Minio | PostgresServer, folder: Path) -> None:
        self.server = server
        if isinstance(server, Minio):
            self.urls = {"url": f"s3://{server.make_bucket()}?endpoint={server.endpoint}"}
            self.secret = server.secret_key
        else:
            self.urls = {"blob": f"file://{folder}/blob", "consensus": server.url()}
            self.secret = server.password

    def start(self) -> None:
        if isinstance(self.server, Minio):
            self.server.serve()
        else:
            self.server.resume()


@pytest.fixture(
    params=[
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.long]),
    ]
)
def own(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    if request.param == "postgres":
        with PostgresServer.start() as server:
            yield Server(server, tmp_path)
        return
    with Minio.start(tmp_path / "minio") as minio:
        for name, value in minio.credentials.items():
            monkeypatch.setenv(name, value)
        yield Server(minio, tmp_path)


def test_a_client_outlives_a_server_that_was_away(own: Server) -> None:
    """All calls fail clearly meanwhile; then the same handles go on, and what was acknowledged is there."""
    config = PersistConfig(maintenance="off", retry_deadline_s=0.1)
    with PersistClient.open(**own.urls, config=config) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        for time in range(3):
            writer.compare_and_append([{"k": time, "v": ""}], time, time + 1)
        reader = client.reader(SHARD, purpose="test")
        own.server.kill()
        for act in (
            lambda: writer.compare_and_append([{"k": 3, "v": ""}], 3, 4),
            lambda: client.recent_upper(SHARD),
            client.shards,
            lambda: client.maintain(SHARD),
            lambda: PersistClient.open(**own.urls, config=config),
        ):
            with pytest.raises(HoldfastError) as caught:
                act()
            shown = f"{caught.value} {caught.value.hint}"
            assert isinstance(caught.value, StorageError)
            assert "\n" not in str(caught.value)
            assert own.secret not in shown
        own.start()

        upper = client.recent_upper(SHARD)
        assert upper == 3
        writer.compare_and_append([{"k": 3, "v": ""}], 3, 4)
        rows = reader.snapshot(3).to_table().to_pylist()
    assert {row["k"]: row["_diff"] for row in rows} == dict.fromkeys(range(4), 1)
