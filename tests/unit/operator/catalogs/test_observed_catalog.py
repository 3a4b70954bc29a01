"""The operator observes a catalog that another process writes: on real stores, without a write."""

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import (
    CATALOG_VERSION,
    MIN_VERSION,
    Catalog,
    OpenMode,
    catalog_shard_id,
    persist_catalog,
)
from holdfast.catalog.objects.codec import RowUpdate, encode
from holdfast.catalog.objects.registry import CONFIGS, ROLES
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.collections import CollectionSpec, StorageController
from holdfast.errors import NoLocation
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast_operator.catalogs.facts import NothingThere, NotReadable, Opening
from holdfast_operator.catalogs.observed_catalog import ObservedCatalog
from holdfast_operator.collections import store
from holdfast_operator.collections.facts import ItemName, NoSuchSchema
from holdfast_operator.places.storage import Storage
from testbed.oldcatalogs import rows_of

ORGANIZATION = "11111111-2222-3333-4444-555555555555"
NAME = ItemName("holdfast", "public", "flights")
SCHEMA = Schema.of(key={"id": "int64"}, value={})


class Place:
    """A location with a database process, and observers."""

    def __init__(self, folder: Path, stack: ExitStack, url: str = "") -> None:
        self.folder = folder
        self.url = url or folder.as_uri()
        self._stack = stack
        self.opening = Opening(
            Storage(url=self.url), ORGANIZATION, 0, "default", (), "me", "test", observed=True
        )

    def writer(self) -> tuple[PersistClient, Catalog]:
        config = PersistConfig(maintenance="off")
        client = self._stack.enter_context(PersistClient.open(self.url, config=config))
        catalog = persist_catalog(client, ORGANIZATION).open(
            OpenMode.WRITABLE, deploy_generation=2, holder="a database", purpose="serving"
        )
        return client, catalog

    def observe(self) -> ObservedCatalog:
        found = ObservedCatalog.open(self.opening)
        self._stack.callback(found.close)
        return found

    def bytes(self) -> str:
        """A digest of all that is stored."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.name.endswith("-shm"):
                digest.update(str(path).encode() + path.read_bytes())
        return digest.hexdigest()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path / "store", stack)


def test_before_the_first_writer_there_is_nothing_and_nothing_is_made(place: Place) -> None:
    with pytest.raises(NothingThere) as nothing:
        place.observe()
    assert isinstance(nothing.value.__cause__, NoLocation)
    assert not place.folder.exists()
    with PersistClient.open(place.folder.as_uri()), pytest.raises(NothingThere, match=ORGANIZATION):
        place.observe()


def test_it_shows_what_the_writer_commits_and_whose_token_it_is(place: Place) -> None:
    _, catalog = place.writer()
    seen = place.observe()
    facts = seen.confirm()
    assert (facts.epoch, facts.deploy_generation, facts.catalog_version) == (1, 2, CATALOG_VERSION)
    assert facts.holder == "a database, serving"
    assert dict(facts.object_counts)["items"] == 0
    catalog.ensure_item(*str(NAME).split("."))
    after = seen.confirm()
    assert (after.upper, dict(after.object_counts)["items"]) == (catalog.upper, 1)
    _, successor = place.writer()
    assert (seen.confirm().epoch, successor.fence_token().epoch) == (2, 2)
    successor.confirm_leadership()


def test_it_writes_nothing(place: Place) -> None:
    client, catalog = place.writer()
    item = catalog.ensure_item(*str(NAME).split("."))
    before, upper = place.bytes(), catalog.upper
    seen = place.observe()
    assert store.look(seen, NAME).item_id == item
    seen.confirm()
    assert client.inspect(catalog_shard_id(ORGANIZATION)).upper == upper
    seen.close()
    assert place.bytes() == before


def test_it_finds_collections_that_the_writer_made(place: Place) -> None:
    client, catalog = place.writer()
    seen = place.observe()
    assert store.look(seen, NAME).item_id is None
    with pytest.raises(NoSuchSchema, match="nowhere"):
        store.look(seen, ItemName("nowhere", "public", "flights"))
    catalog.ensure_item(*str(NAME).split("."))
    look = store.look(seen, NAME)
    assert (look.item_id, look.facts) == ("u1", None)
    assert look.collection_id is not None
    controller = StorageController(client, guard=catalog.fence_guard)
    controller.create_collection(CollectionSpec(look.collection_id, str(NAME), SCHEMA))
    facts = store.look(seen, NAME).facts
    assert facts is not None
    assert (facts.schema, facts.upper) == (SCHEMA, 0)


def test_it_follows_a_writer_that_has_let_the_past_go(tmp_path: Path) -> None:
    with ExitStack() as stack:
        # In memory, for the many commits.
        follow(Place(tmp_path, stack, f"memory://{uuid.uuid4()}"))


def follow(place: Place) -> None:
    _, catalog = place.writer()
    seen = place.observe()
    seen.confirm()
    key, value = pb.RoleKey(id=pb.RoleId(user=9)), pb.RoleValue(name="r")
    for number in range(1200):
        value.name = f"r{number}"
        with catalog.transaction() as tx:
            tx.set(ROLES, key, value)
            catalog.commit_transaction(tx)
    facts = seen.confirm()
    assert facts.since > 0
    assert (facts.upper, dict(facts.object_counts)["roles"]) == (catalog.upper, 2)


def set_version(client: PersistClient, version: int, now: int) -> None:
    """Pretend that the catalog has another version of the format: only what is readable at any is read."""
    shard = CatalogShard(client, catalog_shard_id(ORGANIZATION), purpose="test")
    key = pb.ConfigKey(key="user_version")
    old, new = (encode(CONFIGS, key, pb.ConfigValue(value=each)) for each in (now, version))
    shard.append([RowUpdate(old, -1), RowUpdate(new, 1)], shard.upper())
    shard.close()


@pytest.mark.parametrize("version", [CATALOG_VERSION - 1, CATALOG_VERSION + 1, 1])
def test_at_another_version_it_shows_the_token_and_the_version(place: Place, version: int) -> None:
    client, catalog = place.writer()
    catalog.close()
    seen = place.observe()
    assert seen.confirm().object_counts
    set_version(client, version, CATALOG_VERSION)
    facts = seen.confirm()
    assert (facts.catalog_version, facts.epoch, facts.object_counts) == (version, 1, ())
    assert place.observe().confirm() == facts
    with pytest.raises(NotReadable, match=str(version)):
        store.look(seen, NAME)
    set_version(client, CATALOG_VERSION, version)
    assert seen.confirm().object_counts


@pytest.mark.parametrize("version", [MIN_VERSION, CATALOG_VERSION - 1])
def test_a_catalog_that_an_older_holdfast_left_is_shown_until_its_database_upgrades_it(
    place: Place, version: int
) -> None:
    with PersistClient.open(place.url, config=PersistConfig(maintenance="off")) as client:
        closed = persist_catalog(client, ORGANIZATION)
        closed.load(
            rows_of(version, items=3), deploy_generation=2, holder="an old database", purpose="serving"
        )
        before = place.bytes()
        seen = place.observe()
        facts = seen.confirm()
        assert (facts.catalog_version, facts.deploy_generation) == (version, 2)
        assert facts.holder == "an old database, serving"
        assert place.bytes() == before
        _, catalog = place.writer()
        after = seen.confirm()
        assert (after.catalog_version, after.upper) == (CATALOG_VERSION, catalog.upper)
        assert dict(after.object_counts)["items"] == 3
