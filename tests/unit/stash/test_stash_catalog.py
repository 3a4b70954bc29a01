"""What only a catalog in a stash does: where its rows are, what keeps the past, what it cannot do."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, IdKind, Object, OpenMode, stash_catalog
from holdfast.catalog.objects.registry import OBJECT_TYPES, SETTINGS, Kind
from holdfast.catalog.stores import stash as stash_store
from holdfast.catalog.stores.stash import StashStore
from holdfast.errors import AsOfTooEarly, BadInput, CorruptBlob, NoLocation, NotWritable, Uninitialized
from holdfast.stash import Stash, StashUpdate, open_stash

HOLDER = {"holder": "me", "purpose": "a test of the catalog"}


@pytest.fixture
def catalog(stash_url: str) -> Iterator[Catalog]:
    with stash_catalog(stash_url).open(OpenMode.WRITABLE, **HOLDER) as catalog:
        yield catalog


@pytest.fixture
def stash(stash_url: str, catalog: Catalog) -> Iterator[Stash]:
    """What the catalog is in, opened beside it."""
    with open_stash(stash_url) as stash:
        yield stash


def set_a(catalog: Catalog, value: int) -> None:
    key = pb.SettingKey(name="a")
    catalog.set_objects(SETTINGS, [Object(key, pb.SettingValue(value=str(value)))])


def rows_of_data(url: str) -> int:
    """How many rows the table of updates has, consolidated or not."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite://"))) as file:
            ((count,),) = file.execute("SELECT count(*) FROM data")
    else:
        with psycopg.connect(url) as server:
            ((count,),) = server.execute("SELECT count(*) FROM holdfast_stash.data")
    return int(count)


def test_who_only_looks_makes_nothing(stash_url: str) -> None:
    catalog = stash_catalog(stash_url)
    assert not catalog.is_initialized()
    assert (catalog.epoch(), catalog.deploy_generation(), catalog.config("user_version")) == (None,) * 3
    for look in (catalog.check_open, catalog.dump, lambda: catalog.open(OpenMode.READ_ONLY)):
        with pytest.raises(Uninitialized):
            look()
    with catalog.open(OpenMode.SAVEPOINT) as savepoint:
        savepoint.allocate_ids(IdKind.USER_ITEM)
        assert savepoint.object_counts()["fence_token"] == 1
    with pytest.raises(NotWritable):
        stash_catalog(stash_url, read_only=True).open(OpenMode.WRITABLE, **HOLDER)
    with pytest.raises(NoLocation):
        open_stash(stash_url)


def test_rows_are_in_the_collection_of_their_kind(catalog: Catalog, stash: Stash, stash_url: str) -> None:
    sizes = stash.sizes(0)
    assert {OBJECT_TYPES[Kind(id_)].name: count for id_, count in sizes.items()} == {
        name: count for name, count in catalog.object_counts().items() if count
    }
    (token,) = stash.rows(0, [Kind.FENCE_TOKEN])
    assert token.key == pb.FenceTokenKey().SerializeToString(deterministic=True)
    assert pb.FenceTokenValue.FromString(token.value).holder == "me"
    with closing(StashStore(stash_url)) as store:
        rows = list(store.rows(0))
        batches = list(store.batches(0, but=(Kind.SCHEMA, Kind.AUDIT_LOG)))
    keys = [key for batch in batches for key in batch["key"].to_pylist()]
    assert sorted(keys) == sorted(row.key for row in rows if row.kind not in (Kind.SCHEMA, Kind.AUDIT_LOG))
    assert len(keys) < len(rows) == sum(sizes.values())


def test_a_row_that_is_there_twice_is_told(catalog: Catalog, stash: Stash, stash_url: str) -> None:
    (token,) = stash.rows(0, [Kind.FENCE_TOKEN])
    stash.append([token], 1)
    with pytest.raises(CorruptBlob, match="several times") as raised:
        stash_catalog(stash_url).epoch()
    assert "persist verify" not in raised.value.hint


def test_a_damaged_preamble_sends_nobody_to_persist(catalog: Catalog, stash: Stash, stash_url: str) -> None:
    (token,) = stash.rows(0, [Kind.FENCE_TOKEN])
    stash.append([token._replace(value=pb.FenceTokenValue(holder="other").SerializeToString())], 1)
    with pytest.raises(CorruptBlob, match="one fence token, found two") as raised:
        stash_catalog(stash_url).epoch()
    assert "persist" not in raised.value.hint
    assert "restore the store of the catalog" in raised.value.hint
    stash.append([token._replace(diff=-1), token._replace(value=b"\xff")], 2)
    with pytest.raises(CorruptBlob) as raised:
        stash_catalog(stash_url).epoch()
    assert "persist" not in raised.value.hint


def test_a_record_that_is_gone_sends_nobody_to_persist(tmp_path: Path) -> None:
    with open_stash(f"sqlite://{tmp_path}/stash", create=True) as stash:
        with closing(sqlite3.connect(tmp_path / "stash")) as connection:
            connection.execute("DELETE FROM record")
            connection.commit()
        for _ in range(2):
            with pytest.raises(CorruptBlob) as raised:
                stash.frontiers()
            assert "persist verify" not in raised.value.hint
            assert "backup" in raised.value.hint


def test_the_last_versions_stay_readable(
    catalog: Catalog, stash_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stash_store, "RETAIN_VERSIONS", 10)
    monkeypatch.setattr(stash_store, "RETENTION_STEP", 4)
    subscription = catalog.subscribe()
    for value in range(40):
        set_a(catalog, value)
    assert catalog.upper - 14 < catalog.since <= catalog.upper - 10
    for as_of in (catalog.since, catalog.upper - 1):
        assert '"value": "' + str(as_of - 1) in catalog.dump(as_of)
    with pytest.raises(AsOfTooEarly):
        catalog.dump(catalog.since - 1)
    with pytest.raises(AsOfTooEarly):
        subscription.next(60)
    subscription.close()
    # What is out of reach isn't kept either: each change that still is one has two rows.
    assert rows_of_data(stash_url) <= sum(catalog.object_counts().values()) + 2 * 14


def test_a_subscriber_is_told_each_change_once_and_in_order(catalog: Catalog) -> None:
    with closing(catalog.subscribe()) as subscription, ThreadPoolExecutor(1) as pool:
        assert subscription.next(0) == []
        told = pool.submit(subscription.next)
        for value in range(120):
            set_a(catalog, value)
        found = told.result(60)
        while not any(change.object.value.value == "119" for change in found):
            more = subscription.next(60)
            assert more
            found += more
    added = [change.object.value.value for change in found if change.diff == 1]
    assert added == [str(value) for value in range(120)]
    assert [change.time for change in found] == sorted(change.time for change in found)
    assert {change.collection for change in found} == {SETTINGS}


def test_a_stash_guards_no_writes_on_persist(catalog: Catalog) -> None:
    with pytest.raises(BadInput, match="in a stash") as raised:
        catalog.fence_guard()
    assert "\n" not in str(raised.value)
    set_a(catalog, 1)


def test_a_kind_of_a_newer_version_is_an_error(catalog: Catalog, stash: Stash) -> None:
    stash.append([StashUpdate(999, b"k", b"v", 1)], 1)
    with pytest.raises(CorruptBlob, match="tag 03e7"):
        catalog.sync()
