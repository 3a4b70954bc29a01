"""The operator's places on real servers: a dump in S3, a stash in Postgres with a Secret's credentials."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from holdfast.catalog import OpenMode, persist_catalog
from holdfast.catalog.objects.registry import ITEMS
from holdfast.catalog.stores.stash import StashStore
from holdfast.errors import StoreUnreachable
from holdfast.persist import PersistClient, Schema
from holdfast_operator.catalogs.facts import Opening, RestoreFailed, ShadowFacts
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.catalogs.opening import durable_state
from holdfast_operator.collections import store
from holdfast_operator.collections.facts import ItemName
from holdfast_operator.collections.steps import EnsureItem
from holdfast_operator.places.credentials import Credentials
from holdfast_operator.places.storage import DumpSource, StashLocation, Storage
from testbed.minio import Minio
from testbed.postgres import USER, PostgresServer

ORGANIZATION = "11111111-2222-3333-4444-555555555555"
OTHER = "99999999-2222-3333-4444-555555555555"
LARGE = 64 << 20


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    storage = Storage(url=(tmp_path / "store").as_uri())
    return Opening(storage, ORGANIZATION, 0, "default", (), "me", "operator for Catalog ns/demo")


@pytest.mark.s3
def test_a_dump_in_s3_is_restored(opening: Opening, minio: Minio, bucket: str, tmp_path: Path) -> None:
    with PersistClient.open((tmp_path / "source").as_uri()) as client:
        closed = persist_catalog(client, OTHER)
        with closed.open(OpenMode.WRITABLE, holder="test", purpose="source") as source:
            source.ensure_item("holdfast", "public", "flights")
        dump = closed.dump()
    minio.client.put_object(Bucket=bucket, Key="daily/the dump.json", Body=dump.encode())

    def restored_from(name: str) -> Opening:
        url = f"s3://{bucket}/daily/{quote(name)}?endpoint={minio.endpoint}&region=us-east-1"
        return replace(opening, restore=DumpSource(url))

    with pytest.raises(RestoreFailed, match=r"has no object missing\.json"):
        OpenCatalog.open(restored_from("missing.json"))
    assert not (tmp_path / "store").exists()
    opened = OpenCatalog.open(restored_from("the dump.json"))
    assert dict(opened.confirm().object_counts)["items"] == 1
    opened.close()


@pytest.mark.s3
@pytest.mark.parametrize("content", [b"\0", b" "], ids=["zeros", "blanks"])
def test_an_object_of_any_size_is_not_read_into_memory(
    opening: Opening, minio: Minio, bucket: str, tmp_path: Path, content: bytes
) -> None:
    minio.client.put_object(Bucket=bucket, Key="large", Body=content * LARGE)
    url = f"s3://{bucket}/large?endpoint={minio.endpoint}&region=us-east-1"
    tracemalloc.start()
    try:
        with pytest.raises(RestoreFailed, match=r"this is not a dump: expected '\{'"):
            OpenCatalog.open(replace(opening, restore=DumpSource(url)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < LARGE / 2
    assert not (tmp_path / "store").exists()


@pytest.mark.s3
def test_a_location_in_s3_takes_the_credentials_of_its_secret(
    opening: Opening, minio: Minio, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-operators-own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-own")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "planted-token")
    own = {"AWS_ACCESS_KEY_ID": minio.access_key, "AWS_SECRET_ACCESS_KEY": minio.secret_key}
    end = f"?endpoint={minio.endpoint}&region=us-east-1"
    for storage in (
        Storage(url=f"s3://{bucket}/whole{end}"),
        Storage(blob=f"s3://{bucket}/blob{end}", consensus=f"s3://{bucket}/log{end}"),
    ):
        mine = replace(opening, storage=storage)
        OpenCatalog.open(mine, Credentials(storage=own)).close()
        assert durable_state(mine, Credentials(storage=own)).epoch == 1
        with pytest.raises(StoreUnreachable) as error:
            OpenCatalog.open(mine)
        assert "planted" not in str(error.value)


@pytest.mark.postgres
@pytest.mark.parametrize("wrong", [False, True])
def test_a_stash_in_postgres_takes_the_credentials_of_its_secret(
    opening: Opening, postgres: PostgresServer, wrong: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with postgres.database() as name:
        url = f"postgresql://127.0.0.1:{postgres.port}/{name}"
        credentials = {"user": USER, "password": "planted-wrong-one" if wrong else postgres.password}
        shadowed = replace(opening, stash=StashLocation(url, schema="shop"), shadow=True)
        if wrong:
            with pytest.raises(StoreUnreachable, match=r"127\.0\.0\.1") as error:
                OpenCatalog.open(shadowed, Credentials(stash=credentials))
            assert credentials["password"] not in caplog.text + str(error.value)
            return
        catalog = OpenCatalog.open(shadowed, Credentials(stash=credentials))
        store.take(
            catalog,
            EnsureItem(
                ItemName("holdfast", "public", "flights"), Schema.of(key={"id": "int64"}, value={}), 1
            ),
        )
        assert catalog.confirm().shadow == ShadowFacts()
        catalog.close()
        stash = StashStore(f"{postgres.url(name)}?schema=shop", read_only=True)
        assert sum(row.kind == ITEMS.kind for row in stash.rows(stash.upper() - 1)) == 1
        stash.close()
        assert credentials["password"] not in caplog.text
