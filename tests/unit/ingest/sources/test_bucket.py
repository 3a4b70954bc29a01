"""Objects of an S3 bucket are read once, as they were when they were bound. The server is a real MinIO."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import boto3
import pytest

import holdfast
from holdfast.collections import StorageController
from holdfast.collections.snapshots.manifest import verify_snapshot
from holdfast.errors import BadInput, Determinate, SourceChanged, SourceStalled, StoreUnreachable
from holdfast.ingest import ingest_source
from holdfast.ingest.kept import errors, offsets
from holdfast.ingest.source import Binding, Piece
from holdfast.ingest.sources import files
from holdfast.ingest.sources.bucket import Bucket
from holdfast.ingest.spec import parse
from holdfast.ingest.waits import Waits
from holdfast.persist import PersistClient, Schema
from holdfast.persist.stores.s3_place import S3Place
from testbed.minio import Minio
from unit.ingest.snapshots import taken

pytestmark = pytest.mark.s3

SCHEMA = Schema.of({"id": "int64"}, {"name": "string?"})


class Objects:
    """What users of the bucket do."""

    def __init__(self, minio: Minio, bucket: str) -> None:
        self.place = S3Place(bucket=bucket, prefix="in/orders", endpoint=minio.endpoint)
        self._client = boto3.client("s3", endpoint_url=minio.endpoint, region_name="us-east-1")

    def put(self, name: str, contents: bytes) -> None:
        self._client.put_object(Bucket=self.place.bucket, Key=f"in/orders/{name}", Body=contents)

    def put_beside(self, contents: bytes) -> None:
        self._client.put_object(Bucket=self.place.bucket, Key="in/orders2", Body=contents)

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self.place.bucket, Key=f"in/orders/{name}")

    def source(self, pattern: str = "*", **changed: Any) -> Bucket:
        return Bucket(self.place, pattern, Waits(), whole=False, on_changed="error", **changed)

    def fed(self, path: Path, **files: Any) -> Counter[tuple[Any, ...]]:
        block = {"files": {"path": self.place.url, **files}, "format": {"json": {}}}
        ingest_source(f"file://{path}/store", "orders", block, schema=SCHEMA, once=True)
        with holdfast.table(f"file://{path}/store", "orders") as table:
            return Counter(tuple(row.values()) for row in table.read().to_pylist())


@pytest.fixture
def objects(minio: Minio, bucket: str) -> Objects:
    return Objects(minio, bucket)


def test_it_finds_the_objects_below_its_prefix_and_no_unfinished_ones(objects: Objects) -> None:
    for name in ("b", "sub/a", "c.json", ".x", "_y", "z.tmp", "_hidden/file", "folder/"):
        objects.put(name, b"x")
    objects.put_beside(b"x")
    assert sorted(each.partition for each in objects.source().probe({})) == ["b", "c.json", "sub/a"]
    assert [each.partition for each in objects.source("*.json").probe({})] == ["c.json"]


def test_it_finds_all_objects_of_a_listing_with_several_pages(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:02}" for number in range(7)]
    for name in names:
        objects.put(name, b"x")
    source = objects.source()
    page = source._session.page
    asked = []

    def short(prefix: str, *, after: str) -> dict[str, Any]:
        asked.append(after)
        return page(prefix, after=after, most=3)

    monkeypatch.setattr(source._session, "page", short)
    assert sorted(each.partition for each in source.probe({})) == names
    assert asked == ["", "in/orders/02", "in/orders/05"]


def test_an_object_is_read_as_it_was_listed_or_not_at_all(objects: Objects) -> None:
    objects.put("a", b'{"id":1}\n')
    source = objects.source()
    (wanted,) = source.probe({})
    objects.put("a", b'{"id":2}\n')
    with pytest.raises(SourceChanged, match="was written anew"):
        list(source.read(wanted))
    (again,) = source.probe({})
    pieces: list[Piece] = list(source.read(again))
    assert [piece.messages["value"].to_pylist() for piece in pieces] == [[b'{"id":2}']]
    objects.delete("a")
    with pytest.raises(SourceChanged, match="is gone"):
        list(source.read(again))


def test_a_bucket_feeds_a_collection_once(objects: Objects, tmp_path: Path) -> None:
    objects.put("a", b'{"id":1}\n{"id":2}\nnonsense\n')
    assert objects.fed(tmp_path) == Counter({(1, None): 1, (2, None): 1})
    assert objects.fed(tmp_path) == Counter({(1, None): 1, (2, None): 1})
    objects.delete("a")
    objects.put("b", b'{"id":3}\n')
    assert objects.fed(tmp_path) == Counter({(1, None): 1, (2, None): 1, (3, None): 1})
    objects.put("b", b'{"id":4}\n')
    assert objects.fed(tmp_path) == Counter({(1, None): 1, (2, None): 1, (3, None): 1})


def test_what_came_after_a_snapshot_in_a_bucket_is_read_again_or_missed(
    objects: Objects, tmp_path: Path
) -> None:
    objects.put("a", b'{"id":1}\nnonsense\n')
    objects.fed(tmp_path)
    url = S3Place(bucket=objects.place.bucket, prefix="snapshot", endpoint=objects.place.endpoint).url
    with PersistClient.open(f"file://{tmp_path}/store") as client:
        source = taken(client, url)
        verify_snapshot(url)
        objects.put("b", b'{"id":2}\n')
        objects.delete("a")
        objects.fed(tmp_path)
        StorageController(client).restore_collection("orders", source)
        assert objects.fed(tmp_path) == Counter({(1, None): 1, (2, None): 1})
        for change in (lambda: objects.put("b", b'{"id":3}\n'), lambda: objects.delete("b")):
            StorageController(client).restore_collection("orders", source)
            change()
            with pytest.raises(SourceStalled, match="messages 0 to 8 of partition b are gone"):
                objects.fed(tmp_path)


def test_what_can_not_be_reached_is_one_clear_line(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = S3Place(bucket="no-such-bucket", endpoint=objects.place.endpoint)
    with pytest.raises(StoreUnreachable, match="there is no S3 bucket no-such-bucket"):
        Bucket(missing, "*", Waits(), whole=False, on_changed="error")
    source = objects.source()
    objects.put("a", b"x")
    (wanted,) = source.probe({})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(
        StoreUnreachable, match="can't be opened: the response is SignatureDoesNotMatch"
    ) as opened:
        objects.fed(tmp_path)
    source.close()
    with pytest.raises(Determinate, match="can't get object a in s3://") as read:
        list(source.read(wanted))
    # A source needs no right to write.
    for error in (opened.value, read.value):
        assert error.hint.endswith("credentials of a user who may list and get objects there")


def test_the_credentials_come_from_a_secret(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minio: Minio
) -> None:
    objects.put("a", b'{"id": 1, "name": "Ada"}\n')
    # Those of the environment belong to the collection's own storage.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    monkeypatch.setenv("HOLDFAST_SECRETS", str(tmp_path))
    (tmp_path / "bucket").mkdir()
    for name, value in minio.credentials.items():
        (tmp_path / "bucket" / name).write_text(value)
    assert objects.fed(tmp_path, secretRef={"name": "bucket"}) == {(1, "Ada"): 1}
    (tmp_path / "bucket/AWS_SECRET_ACCESS_KEY").unlink()
    with pytest.raises(BadInput, match=r"has no key AWS_SECRET_ACCESS_KEY, which source\.files"):
        objects.fed(tmp_path, secretRef={"name": "bucket"})


def test_without_a_secret_the_keys_of_the_collections_own_stores_count(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minio: Minio
) -> None:
    objects.put("a", b'{"id": 1, "name": "Ada"}\n')
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "another")
        (tmp_path / name).write_text(minio.credentials[name])
    monkeypatch.setenv("HOLDFAST_STORE_KEYS", str(tmp_path))
    assert objects.fed(tmp_path) == {(1, "Ada"): 1}


def test_a_path_is_a_folder_or_an_s3_url() -> None:
    with pytest.raises(BadInput, match=r"source\.files\.path must be the path of a folder, or s3://bucket"):
        parse({"files": {"path": "https://bucket/orders"}, "format": {"json": {}}})
    with pytest.raises(BadInput, match="needs 3 to 63 lower-case letters"):
        parse({"files": {"path": "s3://B/orders"}, "format": {"json": {}}})


def test_lexical_objects_are_listed_after_the_last_one(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_LISTED", 2)
    for number in (1, 2, 4):
        objects.put(f"{number}.json", json.dumps({"id": number}).encode())
    assert sorted(id_ for id_, _ in objects.fed(tmp_path, order="Lexical")) == [1, 2, 4]
    source = objects.source(lexical=True)
    bound = {f"{number}.json": Binding(1) for number in (1, 2, 4)}
    asked: list[str] = []
    page = source._session.page

    def noted(base: str, after: str) -> dict[str, Any]:
        asked.append(after)
        return page(base, after=after)

    monkeypatch.setattr(source._session, "page", noted)
    assert source.probe(bound) == []
    objects.put("5.json", b'{"id": 5}')
    assert [each.partition for each in source.probe(bound)] == ["5.json"]
    # The first listing looks for what was missed. Later ones begin after the last object.
    # New objects are listed twice.
    assert asked == ["", "in/orders/4.json", "in/orders/4.json"]
    objects.put("3.json", b'{"id": 3}')
    with pytest.raises(SourceStalled, match=r"file 3.json in s3://.* comes before 4.json, which was read"):
        objects.fed(tmp_path, order="Lexical")


ODD = [
    "100%.json",
    "%41+b c.json",
    "new\nline.json",
    "tab\t.json",
    "\x1b[31m.json",
    "\u00fc\U0001f600.json",
    "a?b=c&d#e.json",
    "quote'\"<&;,.json",
    "back\\slash.json",
    "sub/a b/c+d.json",
]


@pytest.mark.parametrize("order", ["Modified", "Lexical"])
def test_a_key_with_any_characters_is_a_name(objects: Objects, tmp_path: Path, order: str) -> None:
    schema = Schema.of({"id": "int64"}, {"name": "string?"})
    for number, name in enumerate(ODD):
        objects.put(name, f'{{"id": {number}}}\nbad\n'.encode())
    block = {
        "files": {"path": objects.place.url, "order": order},
        "format": {"json": {}},
        "include": {"partition": "name"},
    }

    def feed() -> dict[str, int]:
        ingest_source(f"file://{tmp_path}/store", "orders", block, schema=schema, once=True)
        with holdfast.table(f"file://{tmp_path}/store", "orders") as table:
            return {row["name"]: row["id"] for row in table.read().to_pylist()}

    found = {name: number for number, name in enumerate(ODD)}
    # Once more, after a listing that begins with an odd name.
    assert feed() == feed() == found
    with PersistClient.open(f"file://{tmp_path}/store") as client:
        for kept in (offsets, errors):
            bound = kept(StorageController(client), "orders")[1]["partition"].to_pylist()
            assert sorted(bound) == sorted(ODD)
    last = f"{max(ODD)}\n2"
    objects.put(last, b'{"id": 99}')
    assert feed() == {**found, last: 99}


@pytest.mark.parametrize("lexical", [False, True])
def test_a_key_that_ends_with_a_slash_is_no_file(objects: Objects, lexical: bool) -> None:
    objects.put("", b"")
    objects.put("a/", b"")
    objects.put("a/inner", b"x")
    objects.put("b/", b"contents")
    objects.put("empty", b"")
    said: list[str] = []
    source = Bucket(objects.place, "*", Waits(said.append), whole=False, on_changed="error", lexical=lexical)
    for _ in range(2):
        found = {each.partition: each.end for each in source.probe({})}
        assert found == {"a/inner": 1, "empty": 0}
    assert said == [f"left out in {objects.place.url}: b/ (a key that ends with /)"]
    if lexical:
        # One that sorts before the last object is not late.
        assert not objects.source(lexical=True).probe({"a/inner": Binding(1), "empty": Binding(0)})


@pytest.mark.parametrize("lexical", [False, True])
def test_an_empty_object_is_bound_once_and_has_no_rows(
    objects: Objects, tmp_path: Path, lexical: bool
) -> None:
    order = {"order": "Lexical"} if lexical else {}
    objects.put("a", b"")
    objects.put("b", b'{"id":1}')
    for _ in range(2):
        assert objects.fed(tmp_path, **order) == {(1, None): 1}
    with PersistClient.open(f"file://{tmp_path}/store") as client:
        bound = offsets(StorageController(client), "orders")[1].to_pylist()
        assert {each["partition"]: (each["position"], each["total"]) for each in bound} == {
            "a": (0, 0),
            "b": (8, 1),
        }
        assert errors(StorageController(client), "orders")[1].num_rows == 0
