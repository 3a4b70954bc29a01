"""An Observed catalog: a database process writes it through the library, and the operator shows it."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.catalog import OpenMode, persist_catalog
from holdfast.collections import CollectionSpec, StorageController
from holdfast.persist import Schema

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
SCHEMA = Schema.of(key={"id": "int64"}, value={"note": "string?"})


def test_beside_a_database_process(world: Any, make_catalog: Make, make_collection: Make) -> None:
    world.start()
    made = make_catalog(access="Observed")
    organization = made["spec"]["organizationId"]
    world.apply(made, make_collection())
    reconciling = '.status.conditions[?(@.type=="Reconciling")]'
    world.wait_for("catalog/demo", f"{reconciling}.reason", "AwaitingWriter")
    assert world.condition("catalog/demo", "Reconciling")["status"] == "True"
    assert not (world.folder / "volume").exists()
    # The database process is told where.
    config = world.status("catalog/demo")["connection"]["configMap"]
    url = world.get(f"configmaps/{config}")["data"]["HOLDFAST_URL"]

    with world.store(url) as client:
        database = persist_catalog(client, organization).open(
            OpenMode.WRITABLE, deploy_generation=3, holder="database 7", purpose="serving"
        )
        world.wait_ready("catalog/demo")
        status = world.status("catalog/demo")
        assert (status["epoch"], status["deployGeneration"]) == (1, 3)
        assert status["holder"] == "database 7, serving"
        assert status["objectCounts"]["items"] == 0

        message = world.wait_stalled("storagecollection/flights", "CatalogObserved")
        assert 'ensure_item("holdfast", "public", "flights")' in message
        item = database.ensure_item("holdfast", "public", "flights")
        world.wait_for("catalog/demo", ".status.objectCounts.items", 1)
        id_ = str(uuid.uuid5(uuid.UUID(organization), item))
        with StorageController(client, guard=database.fence_guard) as controller:
            spec = CollectionSpec(id_, "holdfast.public.flights", SCHEMA, shards=2)
            controller.create_collection(spec)
            world.wait_ready("storagecollection/flights")
            assert world.status("storagecollection/flights")["collectionId"] == id_

            # Nobody was fenced, nothing was written, and nothing is when both resources go.
            world.patch("storagecollection/flights", '{"spec":{"deletionPolicy":"Delete"}}')
            upper = database.upper
            world.delete("storagecollection/flights", "catalog/demo")
            database.confirm_leadership()
            assert (database.upper, database.fence_token().epoch) == (upper, 1)
            assert not controller.describe(id_).dropped
    assert [e["involvedObject"]["name"] for e in world.events("DeletionIncomplete")] == ["flights"]


def test_a_catalog_changes_hands(world: Any, make_catalog: Make) -> None:
    world.start()
    made = make_catalog()
    world.apply(made)
    world.wait_ready("catalog/demo")
    made["spec"]["access"] = "Observed"
    world.apply(made)
    holder = world.status("catalog/demo")["holder"]
    assert holder.startswith("holdfast-operator")
    world.wait_for("catalog/demo", ".status.observedGeneration", 2)
    with world.store(world.volume(made["spec"]["organizationId"])) as client:
        persist_catalog(client, made["spec"]["organizationId"]).open(
            OpenMode.WRITABLE, holder="a database", purpose="serving"
        )
    world.wait_for("catalog/demo", ".status.epoch", 2)
    assert world.status("catalog/demo")["holder"] == "a database, serving"
    made["spec"]["access"] = "Managed"
    world.apply(made)
    world.wait_for("catalog/demo", ".status.epoch", 3)
    (operator,) = world.operators
    assert operator.child.poll() is None
