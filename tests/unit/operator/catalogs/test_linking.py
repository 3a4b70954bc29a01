"""A catalog in two linked stores as the operator opens it."""

from pathlib import Path

import pytest

from holdfast.catalog import OpenMode, emergency_catalog
from holdfast.catalog.one_store import stash_catalog
from holdfast.errors import Fenced
from holdfast.persist import Schema
from holdfast_operator.catalogs.facts import Opening
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.collections import store
from holdfast_operator.collections.facts import ItemName
from holdfast_operator.collections.steps import CreateCollection, DropCollection
from holdfast_operator.places.storage import StashLocation, Storage

ORGANIZATION = "11111111-2222-3333-4444-555555555555"
NAME = ItemName("holdfast", "public", "flights")
SCHEMA = Schema.of(key={"id": "int64"}, value={})
COLLECTION = "00000000-0000-5000-8000-000000000001"


def test_who_opens_the_stash_in_an_emergency_shuts_out_writes_on_persist_too(tmp_path: Path) -> None:
    stash = StashLocation(f"sqlite://{tmp_path}/stash.sqlite")
    storage = Storage(url=(tmp_path / "store").as_uri())
    opening = Opening(storage, ORGANIZATION, 0, "default", (), "first", "test", stash=stash, backend="Stash")
    catalog = OpenCatalog.open(opening)
    # The token on persist was looked at, and is still that of the first.
    store.take(catalog, CreateCollection(COLLECTION, NAME, SCHEMA, 1))
    emergency = emergency_catalog(stash_catalog(stash.url))
    with (
        emergency.open(OpenMode.WRITABLE, holder="second", purpose="emergency"),
        pytest.raises(Fenced, match="second"),
    ):
        store.take(catalog, DropCollection(COLLECTION))
    catalog.close()
