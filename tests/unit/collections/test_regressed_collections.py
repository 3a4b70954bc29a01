"""If the consensus store goes back in time, the error names the collection and the location."""

import pytest

from holdfast.catalog import catalog_shard_id, persist_catalog
from holdfast.collections import CollectionSpec, StorageController
from holdfast.errors import LogRegressed
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.stores import Location, MemoryConsensus
from unit.persist.open_stores import SCHEMA, Stores

ORG = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def stores() -> Stores:
    return Stores()


def go_back(consensus: MemoryConsensus, shard: str) -> None:
    del consensus._logs[shard][-1:]


def test_the_error_names_the_collection_whose_shard_went_back(stores: Stores) -> None:
    client = stores.open()
    controller = StorageController(client, who="test")
    controller.create_collection(CollectionSpec("c1", "orders", Schema.of({"id": "int64"})))
    controller.writer("c1", purpose="test").append([{"id": 1}], 0, 10)
    reader = controller.reader("c1", purpose="test")
    (shard,) = controller.describe("c1").holding.shards
    client.recent_upper(shard)
    go_back(stores.consensus, shard)
    with pytest.raises(LogRegressed, match=rf"the log of {shard} \(collection orders\) in memory"):
        reader.snapshot(9).to_table()


def test_the_error_names_the_records_of_collections_and_a_catalog(stores: Stores) -> None:
    client = stores.open()
    controller = StorageController(client, who="test")
    for number in range(2):
        controller.create_collection(CollectionSpec(f"c{number}", f"n{number}", Schema.of({"id": "int64"})))
    go_back(stores.consensus, controller.shard_id)
    with pytest.raises(LogRegressed, match=r"\(the records of all collections\)"):
        controller.list_collections()
    client = stores.open()
    shard = catalog_shard_id(ORG)
    persist_catalog(client, ORG)
    with client.writer(shard, SCHEMA, purpose="test") as writer:
        writer.compare_and_append([], 0, 1)
        writer.compare_and_append([], 1, 2)
    go_back(stores.consensus, shard)
    with pytest.raises(LogRegressed, match=rf"\(the catalog of organization {ORG}\)"):
        client.recent_upper(shard)


def test_the_command_in_the_hint_can_be_copied(stores: Stores) -> None:
    opened = stores.open().location
    named = Location(opened.blob, opened.consensus, opened.location_id, "file:///b --consensus sqlite:///c")
    client = PersistClient(named, config=PersistConfig(maintenance="off"))
    shard = client.new_shard_id()
    with client.writer(shard, SCHEMA, purpose="test") as writer:
        writer.compare_and_append([], 0, 1)
        writer.compare_and_append([], 1, 2)
    go_back(stores.consensus, shard)
    with pytest.raises(LogRegressed) as raised:
        client.recent_upper(shard)
    command = "run: holdfast persist recover file:///b --consensus sqlite:///c --accept"
    assert raised.value.hint.endswith(command)
    assert raised.value.__notes__[0].endswith(command)
    assert "nothing is deleted until you choose" in raised.value.hint
