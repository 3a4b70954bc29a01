"""A Catalog outlives the resources that need it, even if it is deleted right after their creation.

A proxy refuses the operator's write of the Catalog's finalizer. So each test runs before the Catalog has it.
"""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from holdfast.catalog import OpenMode, persist_catalog
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.migration_status import migration_status
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.one_store import stash_catalog
from holdfast_operator.api.names import FINALIZER
from testbed.faultyapi import FaultyApi

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
KEEP: Final = "/catalogs/demo?"
"""In the path of a write of the Catalog, not of its status."""
READY_REASON: Final = '.status.conditions[?(@.type=="Ready")].reason'


def finalizers(world: Any, what: str) -> list[str]:
    return list(world.get(what)["metadata"].get("finalizers", []))


def refuse(api: FaultyApi, code: int) -> None:
    api.refuse(f"PATCH /apis/holdfast.dev/v1alpha1/namespaces/{{}}{KEEP}", str(code))


def migration(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "CatalogMigration",
        "metadata": {"name": name},
        "spec": {"catalogRef": {"name": "demo"}, "target": "Persist", **spec},
    }


class Linked:
    """A Catalog with a stash, which the operator has open, and can't put its finalizer on."""

    def __init__(self, world: Any, api: FaultyApi, make_catalog: Make) -> None:
        self.world = world
        self.request = f"PATCH /apis/holdfast.dev/v1alpha1/namespaces/{world.namespace}{KEEP}"
        world.start(through=api.cluster(world.folder))
        self.stash = {"url": f"sqlite://{world.folder}/stash.sqlite"}
        self.there = make_catalog(backend="Stash", stash=self.stash)
        self.organization = self.there["spec"]["organizationId"]
        world.apply(self.there)
        world.wait_ready("catalog/demo")
        assert finalizers(world, "catalog/demo") == []

    def closed(self) -> LinkedCatalog:
        client = self.world.store(self.world.volume(self.organization))
        return linked_catalog(stash_catalog(self.stash["url"]), persist_catalog(client, self.organization))


@pytest.fixture
def linked(world: Any, api: FaultyApi, make_catalog: Make) -> Linked:
    return Linked(world, api, make_catalog)


def wait_refused(world: Any, api: FaultyApi, code: str, times: int = 2) -> None:
    before = api.faults[code]
    world.settle(lambda: api.faults[code] >= before + times, lambda: f"nothing is refused: {api.faults}")


@pytest.mark.long
def test_a_migration_shows_and_does_nothing_before_its_catalog_is_kept(
    world: Any, api: FaultyApi, linked: Linked
) -> None:
    with BackendMigration(
        linked.closed(), migration_id="begun", target=Backend.PERSIST, timeout_s=3600, holder="dead"
    ) as move:
        for _ in range(5):
            assert move.advance() is not None
    api.refuse(linked.request, "503")
    world.apply(migration("begun", migrationId="begun", suspend=True))
    world.settle(lambda: FINALIZER in finalizers(world, "catmig/begun"), lambda: "it has no finalizer")
    wait_refused(world, api, "503")
    assert "phase" not in world.get("catmig/begun").get("status", {})
    api.refuse(linked.request)
    world.wait_for("catmig/begun", ".status.phase", "Suspended")
    assert FINALIZER in finalizers(world, "catalog/demo")
    world.delete("catalog/demo", wait=False)
    world.wait_for("catalog/demo", READY_REASON, "WaitingForMigrations")
    world.delete("catmig/begun")
    world.wait_gone("catalog/demo")
    assert migration_status(linked.closed()).running is None


@pytest.mark.long
def test_a_migration_does_not_begin_where_its_catalog_goes_first(
    world: Any, api: FaultyApi, linked: Linked
) -> None:
    api.refuse(linked.request, "503")
    world.apply(migration("move"))
    wait_refused(world, api, "503")
    world.delete("catalog/demo")
    assert "create it" in world.wait_stalled("catmig/move", "CatalogNotFound")
    found = migration_status(linked.closed())
    assert (found.truth, found.running, found.records) == (Backend.STASH, None, {})
    world.delete("catmig/move")


@pytest.mark.parametrize("suspend", [False, True])
@pytest.mark.long
def test_a_doomed_collection_is_not_made_before_its_catalog_is_kept(
    world: Any, api: FaultyApi, linked: Linked, make_collection: Make, *, suspend: bool
) -> None:
    api.refuse(linked.request, "503")
    world.apply(make_collection(deletionPolicy="Delete", suspend=suspend))
    wait_refused(world, api, "503")
    assert finalizers(world, "coll/flights") == []
    assert "conditions" not in world.get("coll/flights").get("status", {})
    world.delete("catalog/demo")
    world.delete("coll/flights")
    with linked.closed().open(OpenMode.READ_ONLY) as found:
        assert found.object_counts()["items"] == 0


@pytest.mark.long
def test_a_right_that_lacks_is_shown_by_who_needs_it(
    world: Any, api: FaultyApi, linked: Linked, make_collection: Make
) -> None:
    api.refuse(linked.request, "403")
    world.apply(make_collection(deletionPolicy="Delete"), migration("move"))
    for what in ("coll/flights", "catmig/move"):
        message = world.wait_stalled(what, "Forbidden")
        assert "/catalogs/demo: 403" in message
    api.refuse(linked.request)
    world.wait_for("catmig/move", ".status.phase", "Completed")
    world.wait_ready("coll/flights", "catmig/move", "catalog/demo")
    # What needs it no more lets it go, and what still needs it doesn't.
    assert finalizers(world, "catmig/move") == []
    assert finalizers(world, "catalog/demo") == [FINALIZER]
    world.delete("coll/flights")
    world.settle(lambda: finalizers(world, "catalog/demo") == [], lambda: "the Catalog is still kept")


@pytest.mark.long
def test_a_catalog_of_the_same_name_is_kept_too(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    world.start()
    there = make_catalog()
    world.apply(there, make_collection(deletionPolicy="Delete"))
    world.wait_ready("catalog/demo", "coll/flights")
    first = world.get("catalog/demo")["metadata"]["uid"]
    world.delete("catalog/demo", wait=False)
    world.patch("catalog/demo", json.dumps({"metadata": {"finalizers": None}}))
    world.wait_gone("catalog/demo")
    world.apply(there)
    world.settle(lambda: finalizers(world, "catalog/demo") == [FINALIZER], lambda: "it isn't kept")
    assert world.get("catalog/demo")["metadata"]["uid"] != first
    world.delete("catalog/demo", wait=False)
    world.wait_for(
        "catalog/demo", '.status.conditions[?(@.type=="Reconciling")].reason', "WaitingForCollections"
    )
    world.delete("coll/flights")
    world.wait_gone("catalog/demo")


@pytest.mark.long
def test_a_catalog_that_is_only_looked_at_is_kept_too(
    world: Any, api: FaultyApi, make_catalog: Make, make_collection: Make
) -> None:
    world.start(through=api.cluster(world.folder))
    world.apply(make_catalog(access="Observed"))
    world.wait_for("catalog/demo", READY_REASON, "AwaitingWriter")
    request = f"PATCH /apis/holdfast.dev/v1alpha1/namespaces/{world.namespace}{KEEP}"
    api.refuse(request, "503")
    world.apply(make_collection(deletionPolicy="Delete"))
    wait_refused(world, api, "503")
    assert "conditions" not in world.get("coll/flights").get("status", {})
    api.refuse(request)
    world.wait_for("coll/flights", READY_REASON, "CatalogNotReady")
    assert finalizers(world, "catalog/demo") == [FINALIZER]
    world.delete("coll/flights", "catalog/demo")


@pytest.mark.long
@pytest.mark.parametrize("access", ["Managed", "Observed"])
def test_a_collection_that_becomes_doomed_never_waits_for_a_catalog_that_went_first(
    world: Any, api: FaultyApi, make_catalog: Make, make_collection: Make, access: str
) -> None:
    """Both are deleted right after the policy changed, before the Catalog has the finalizer."""
    world.start(through=api.cluster(world.folder))
    there = make_catalog()
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", "coll/flights")
    world.patch("catalog/demo", json.dumps({"spec": {"access": access}}))
    world.wait_for("catalog/demo", ".status.observedGeneration", 2 if access == "Observed" else 1)
    world.wait_ready("catalog/demo", "coll/flights")
    api.refuse(f"PATCH /apis/holdfast.dev/v1alpha1/namespaces/{world.namespace}{KEEP}", "503")
    world.patch("coll/flights", '{"spec":{"deletionPolicy":"Delete"}}')
    wait_refused(world, api, "503")
    world.delete("catalog/demo")
    world.delete("coll/flights")
    (event,) = world.events("DeletionIncomplete")
    assert event["involvedObject"]["name"] == "flights"
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        (kept,) = controller.list_collections()
        assert not kept.dropped
