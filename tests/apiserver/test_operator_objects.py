"""The operator keeps the objects that a Catalog declares, and leaves all other objects alone."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, OpenMode, persist_catalog
from holdfast.catalog.objects.registry import AUDIT_LOG, CLUSTER_REPLICAS, DATABASES, ROLES, SCHEMAS

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
IN_STEP = '.status.conditions[?(@.type=="ObjectsInStep")]'
OBJECTS = {
    "databases": [{"name": "shop", "schemas": [{"name": "raw"}]}],
    "roles": [{"name": "analyst"}],
    "clusters": [{"name": "default", "size": "1", "replicas": 2}],
}


def names(catalog: Any, collection: Any) -> set[str]:
    return {row.value.name for row in catalog.objects(collection)}


def patch(world: Any, spec: str) -> None:
    world.patch("catalog/demo", f'{{"spec":{spec}}}')


def as_others(world: Any, made: dict[str, Any], work: Callable[[Catalog], None]) -> None:
    """Write to the catalog while the operator has let go of it."""
    patch(world, '{"suspend":true}')
    world.wait_for("catalog/demo", '.status.conditions[?(@.type=="Ready")].reason', "Suspended")
    organization = made["spec"]["organizationId"]
    with (
        world.store(world.volume(organization)) as client,
        persist_catalog(client, organization).open(
            OpenMode.WRITABLE, holder="a database", purpose="test"
        ) as catalog,
    ):
        work(catalog)
    patch(world, '{"suspend":false}')


def test_declared_objects_are_made_mended_and_dropped_again(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    world.start()
    made = make_catalog(objects=OBJECTS)
    # The collection's schema comes with the catalog's objects.
    world.apply(made, make_collection(database="shop", schema="raw"))
    world.wait_ready("catalog/demo", "storagecollection/flights")
    body = world.get("catalog/demo")
    in_step = world.condition("catalog/demo", "ObjectsInStep")
    assert (in_step["status"], in_step["observedGeneration"]) == ("True", body["metadata"]["generation"])
    assert (
        "created by others, so they stay if you remove them from the spec: cluster default"
        in in_step["message"]
    )
    counts = body["status"]["objectCounts"]
    assert (counts["databases"], counts["cluster_replicas"]) == (2, 2)

    def drift(catalog: Catalog) -> None:
        with catalog.transaction() as tx:
            role = tx.find(ROLES, pb.RoleValue(name="analyst"))
            assert role is not None
            tx.delete(ROLES, role.key)
            tx.insert(ROLES, pb.RoleKey(id=pb.RoleId(user=99)), pb.RoleValue(name="foreign"))
            catalog.commit_transaction(tx)

    as_others(world, made, drift)
    world.wait_for("catalog/demo", ".status.epoch", 3)
    patch(world, '{"objects":{"databases":[],"clusters":[]}}')
    world.wait_for("catalog/demo", f"{IN_STEP}.reason", "ObjectsKept")
    kept = world.condition("catalog/demo", "ObjectsInStep")
    assert "schema shop.raw (by item flights)" in kept["message"]
    assert world.condition("catalog/demo", "Ready")["status"] == "True"
    world.delete("storagecollection/flights")

    def drop_items(catalog: Catalog) -> None:
        assert names(catalog, ROLES) >= {"analyst", "foreign"}
        assert names(catalog, CLUSTER_REPLICAS) == {"r1"}
        catalog.drop_item("shop", "raw", "flights")

    as_others(world, made, drop_items)
    world.wait_for("catalog/demo", ".status.objectCounts.databases", 1)
    patch(world, '{"objects":null}')
    world.wait_for("catalog/demo", ".status.objectCounts.roles", 2)
    with world.store(world.volume(made["spec"]["organizationId"])) as client:
        left = persist_catalog(client, made["spec"]["organizationId"]).open(OpenMode.READ_ONLY)
        assert names(left, DATABASES) == {"holdfast"}
        assert names(left, ROLES) == {"holdfast_system", "foreign"}
        assert "raw" not in names(left, SCHEMAS)
        events = [row.value for row in left.stream(AUDIT_LOG) if row.value.user == "holdfast-operator"]
        assert {event.object_name for event in events} == {
            *("shop", "shop.raw", "analyst", "default", "default.r2"),
        }


@pytest.mark.long
def test_another_resource_for_the_same_catalog_knows_what_was_made(world: Any, make_catalog: Make) -> None:
    world.start()
    made = make_catalog(objects={"roles": [{"name": "analyst"}]})
    world.apply(made)
    world.wait_ready("catalog/demo")
    world.delete("catalog/demo")
    del made["spec"]["objects"]
    world.apply({**made, "metadata": {"name": "again"}})
    world.wait_ready("catalog/again")
    world.wait_for("catalog/again", ".status.objectCounts.roles", 1)
