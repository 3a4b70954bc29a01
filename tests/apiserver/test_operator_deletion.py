"""The order of deletions, what they keep and what they delete. No deletion blocks another for ever."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from holdfast.collections import CollectionState

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]


def test_retain_keeps_everything_and_a_new_resource_finds_it(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    world.start()
    there = make_catalog()
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")
    before = world.status("storagecollection/flights")
    shard = world.status("catalog/demo")["shardId"]
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        writer = controller.writer(before["collectionId"], purpose="test")
        writer.append(pa.table({"id": [1, 2, 3], "note": ["a", "b", None]}), writer.upper(), 11)
    world.delete("storagecollection/flights", "catalog/demo")
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")
    after = world.status("storagecollection/flights")
    assert (after["collectionId"], after["upper"]) == (before["collectionId"], 11)
    assert world.status("catalog/demo")["shardId"] == shard
    assert world.status("catalog/demo")["epoch"] == 2


def test_delete_drops_the_collection_and_ends_the_catalog(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    world.start()
    there = make_catalog(deletionPolicy="Delete")
    world.apply(there, make_collection(deletionPolicy="Delete"))
    world.wait_ready("catalog/demo", "storagecollection/flights")
    url = world.volume(there["spec"]["organizationId"])
    collection_id = world.status("storagecollection/flights")["collectionId"]
    shard = world.status("catalog/demo")["shardId"]
    with world.controller(url) as controller:
        writer = controller.writer(collection_id, purpose="test")
        names = [str(uuid4()) for _ in range(9000)]
        writer.append(pa.table({"id": range(9000), "note": names}), writer.upper(), 11)
    blobs = Path(url.removeprefix("file://"), "blob")
    assert any(path.name.startswith("p") for path in blobs.glob("*/*/*"))
    world.delete("storagecollection/flights")
    assert not any(path.name.startswith("p") for path in blobs.glob("*/*/*")), "no blob outlives the resource"
    world.wait_for("catalog/demo", ".status.objectCounts.items", 0)
    with world.controller(url) as controller:
        assert controller.describe(collection_id).state is CollectionState.DROPPED
        assert controller.is_erased(collection_id)
    world.delete("catalog/demo")
    with world.store(url) as client:
        assert client.is_erased(shard)
    told = {event["involvedObject"]["kind"]: event["message"] for event in world.events("DataDeleted", 2)}
    assert told == {
        "StorageCollection": "collection holdfast.public.flights and its data are deleted",
        "Catalog": "the catalog and its data are deleted",
    }
    # The same organization can't be here again, and the resource says so.
    world.apply(there)
    message = world.wait_stalled("catalog/demo", "DataDeleted")
    assert "another organizationId" in message
    world.delete("catalog/demo")


def test_a_catalog_waits_for_its_collections(world: Any, make_catalog: Make, make_collection: Make) -> None:
    world.start("--steady-interval=600", "--unsteady-interval=600")
    world.apply(make_catalog(), make_collection(deletionPolicy="Delete"))
    world.wait_ready("catalog/demo", "storagecollection/flights")
    world.delete("catalog/demo", wait=False)
    reason = '.status.conditions[?(@.type=="Reconciling")].reason'
    world.wait_for("catalog/demo", reason, "WaitingForCollections")
    assert "flights" in world.condition("catalog/demo", "Reconciling")["message"]
    world.delete("storagecollection/flights")
    world.wait_gone("catalog/demo")


@pytest.mark.long
def test_a_doomed_collection_of_a_closed_catalog_is_still_dropped(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    operator = world.start()
    there = make_catalog()
    world.apply(there, make_collection(deletionPolicy="Delete"))
    world.wait_ready("catalog/demo", "storagecollection/flights")
    collection_id = world.status("storagecollection/flights")["collectionId"]
    operator.child.kill()
    world.delete("catalog/demo", "storagecollection/flights", wait=False)
    world.start()
    world.wait_gone("storagecollection/flights")
    world.wait_gone("catalog/demo")
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        assert controller.describe(collection_id).state is CollectionState.DROPPED


def test_what_never_became_ready_is_deleted_without_a_store(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    world.start()
    world.apply(
        make_catalog(storage={"url": "gopher://x/y"}, deletionPolicy="Delete"),
        make_collection(deletionPolicy="Delete"),
    )
    world.wait_stalled("catalog/demo", "UnsupportedStorage")
    world.wait_for(
        "storagecollection/flights", '.status.conditions[?(@.type=="Ready")].reason', "CatalogNotReady"
    )
    world.delete("storagecollection/flights", "catalog/demo")


def test_a_reader_holds_up_the_drop_until_it_is_gone(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    world.start()
    there = make_catalog()
    world.apply(there, make_collection(deletionPolicy="Delete"))
    world.wait_ready("catalog/demo", "storagecollection/flights")
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        collection_id = world.status("storagecollection/flights")["collectionId"]
        reader = controller.reader(collection_id, purpose="a report")
        world.delete("storagecollection/flights", wait=False)
        world.wait_for(
            "storagecollection/flights",
            '.status.conditions[?(@.type=="Reconciling")].reason',
            "CollectionInUse",
        )
        assert "a report" in world.condition("storagecollection/flights", "Reconciling")["message"]
        reader.close()
        world.wait_gone("storagecollection/flights")


@pytest.mark.long
def test_what_no_status_ever_told_is_dropped_all_the_same(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    """The operator dies before it writes a status, and the resources are deleted meanwhile."""
    operator = world.start()
    there = make_catalog(deletionPolicy="Delete")
    world.apply(there, make_collection(deletionPolicy="Delete"))
    world.wait_ready("catalog/demo", "storagecollection/flights")
    collection_id = world.status("storagecollection/flights")["collectionId"]
    shard = world.status("catalog/demo")["shardId"]
    operator.child.kill()
    operator.child.wait()
    for name, field in (("catalog/demo", "shardId"), ("storagecollection/flights", "collectionId")):
        patch = f'[{{"op": "remove", "path": "/status/{field}"}}]'
        world.kubectl("patch", name, "--subresource=status", "--type=json", "-p", patch)
    world.delete("catalog/demo", "storagecollection/flights", wait=False)
    world.start()
    world.wait_gone("storagecollection/flights")
    world.wait_gone("catalog/demo")
    url = world.volume(there["spec"]["organizationId"])
    with world.controller(url) as controller:
        assert controller.describe(collection_id).state is CollectionState.DROPPED
    with world.store(url) as client:
        assert client.inspect(shard).finalized
