"""The operator on a real API server: create, crash, takeover, stop, and other managers."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest

from holdfast.catalog import CATALOG_VERSION
from holdfast_operator.api.names import FINALIZER

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
BAR = '.status.conditions[?(@.type=="Ready")].status'


def made_ready(world: Any, make_catalog: Make, make_collection: Make) -> dict[str, Any]:
    """A running operator with a catalog and a collection that are ready; the Catalog."""
    there = make_catalog()
    world.start()
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")
    return there


@pytest.fixture
def demo(world: Any, make_catalog: Make, make_collection: Make) -> dict[str, Any]:
    """A running operator of one test, which may end it."""
    return made_ready(world, make_catalog, make_collection)


@pytest.fixture(scope="module")
def lasting(module_world: Any, make_catalog: Make, make_collection: Make) -> tuple[Any, dict[str, Any]]:
    """One that several tests look at, each of which leaves it ready; with its world."""
    return module_world, made_ready(module_world, make_catalog, make_collection)


def write(world: Any, organization: str, rows: int, at: int) -> None:
    """Append to the collection as an application does: at [at, at + 1)."""
    with world.store(world.volume(organization)) as client:
        from holdfast.collections import StorageController

        controller = StorageController(client)
        found = world.status("storagecollection/flights")["collectionId"]
        writer = controller.writer(found, purpose="test")
        table = pa.table({"id": pa.array(range(rows), pa.int64()), "note": pa.array(["x"] * rows)})
        writer.append(table, writer.upper(), at + 1)


def test_a_catalog_and_its_collection_become_ready(lasting: tuple[Any, dict[str, Any]]) -> None:
    world, demo = lasting
    organization = demo["spec"]["organizationId"]
    table = world.kubectl("get", "catalogs,storagecollections").splitlines()
    heads = [line.split() for line in table if line.startswith("NAME")]
    assert heads == [
        ["NAME", "READY", "EPOCH", "TRUTH", "VERSION", "UPPER", "AGE", "REASON"],
        ["NAME", "READY", "CATALOG", "SINCE", "UPPER", "RENDITION", "SHARDS", "NEXT", "AGE", "REASON"],
    ]
    rows = [line.split() for line in table if line.startswith(("catalog.", "storagecollection."))]
    assert [rows[0][0], *rows[0][1:5]] == [
        "catalog.holdfast.dev/demo",
        "True",
        "1",
        "Persist",
        str(CATALOG_VERSION),
    ]
    assert rows[1][1:3] == ["True", "demo"]
    assert rows[1][5:7] == ["r1", "2"]

    status = world.status("catalog/demo")
    assert status["organizationId"] == organization
    assert status["objectCounts"]["databases"] == 1
    for what in ("catalog/demo", "storagecollection/flights"):
        body = world.get(what)
        # What keeps its data needs none.
        assert "finalizers" not in body["metadata"]
        assert set(body["metadata"]["annotations"]) == {
            "kubectl.kubernetes.io/last-applied-configuration",
            "example.com/from-git",
        }
        assert body["status"]["observedGeneration"] == body["metadata"]["generation"]
        assert {c["type"]: c["status"] for c in body["status"]["conditions"]} == {
            "Ready": "True",
            "Reconciling": "False",
            "Stalled": "False",
        }
    assert [e["involvedObject"]["name"] for e in world.events("CatalogOpened")] == ["demo"]
    assert sorted(e["involvedObject"]["name"] for e in world.events("Available", 2)) == ["demo", "flights"]


def test_what_an_application_writes_shows_in_the_status(lasting: tuple[Any, dict[str, Any]]) -> None:
    world, demo = lasting
    write(world, demo["spec"]["organizationId"], rows=10, at=1000)
    world.wait_for("storagecollection/flights", ".status.upper", 1001)
    (rendition,) = world.status("storagecollection/flights")["renditions"]
    assert (rendition["id"], rendition["rows"], rendition["upper"]) == ("r1", 10, 1001)


def test_at_rest_nothing_is_written(lasting: tuple[Any, dict[str, Any]]) -> None:
    world, _ = lasting
    (operator,) = world.operators
    world.wait_for("catalog/demo", ".status.objectCounts.items", 1)
    before = {
        what: world.get(what)["metadata"]["resourceVersion"]
        for what in ("catalog/demo", "storagecollection/flights")
    }
    writes = operator.metric("holdfast_status_writes_total")
    operator.wait_for_looks(6)
    assert operator.metric("holdfast_status_writes_total") == writes
    assert {what: world.get(what)["metadata"]["resourceVersion"] for what in before} == before


def test_killed_and_started_again_it_has_the_next_epoch_and_lost_nothing(
    world: Any, demo: dict[str, Any]
) -> None:
    organization = demo["spec"]["organizationId"]
    before = world.status("storagecollection/flights")
    write(world, organization, rows=7, at=500)
    world.operators[0].child.kill()
    write(world, organization, rows=3, at=600)
    world.start()
    world.wait_for("catalog/demo", ".status.epoch", 2)
    world.wait_for("storagecollection/flights", ".status.upper", 601)
    after = world.status("storagecollection/flights")
    assert [after[k] for k in ("collectionId", "itemId")] == [before[k] for k in ("collectionId", "itemId")]
    with world.store(world.volume(organization)) as client:
        from holdfast.collections import StorageController

        with StorageController(client).reader(after["collectionId"], purpose="test") as reader:
            assert reader.snapshot(600).to_table().num_rows == 7 + 3 - 3
    assert world.condition("catalog/demo", "Ready")["lastTransitionTime"]


def test_a_lost_status_is_made_again_from_the_store(lasting: tuple[Any, dict[str, Any]]) -> None:
    world, _ = lasting
    before = world.status("catalog/demo")
    world.kubectl(
        "patch",
        "catalog/demo",
        "--subresource=status",
        "--type=json",
        '-p=[{"op":"remove","path":"/status"}]',
    )
    world.wait_ready("catalog/demo")
    after = world.status("catalog/demo")
    assert {k: after[k] for k in ("epoch", "shardId", "upper")} == {
        k: before[k] for k in ("epoch", "shardId", "upper")
    }


def test_a_predecessor_that_wakes_up_is_fenced_and_ends_well(world: Any, demo: dict[str, Any]) -> None:
    (first,) = world.operators
    os.kill(first.child.pid, signal.SIGSTOP)
    second = world.start()
    world.wait_for("catalog/demo", ".status.epoch", 2)
    os.kill(first.child.pid, signal.SIGCONT)
    assert first.child.wait(timeout=60) == 0
    (line,) = (line for line in first.lines() if "another operator has taken over" in line["message"])
    assert "epoch 2 of generation 0" in line["message"]
    assert second.child.poll() is None
    world.wait_for("catalog/demo", ".status.epoch", 2)
    assert second.metric("holdfast_fenced_total") == 0


@pytest.mark.long
def test_sigterm_ends_it_well_and_the_next_one_goes_on(world: Any, demo: dict[str, Any]) -> None:
    (operator,) = world.operators
    os.kill(operator.child.pid, signal.SIGTERM)
    assert operator.child.wait(timeout=60) == 0
    assert operator.lines()[-1]["message"] == "stopped"
    world.start()
    world.wait_for("catalog/demo", ".status.epoch", 2)


def test_probes_and_metrics(lasting: tuple[Any, dict[str, Any]]) -> None:
    world, _ = lasting
    (operator,) = world.operators
    assert operator.get("/healthz") == "ok\n"
    assert operator.get("/readyz") == "ok\n"
    assert operator.metric("holdfast_catalog_epoch") == 1
    assert operator.metric("holdfast_status_writes_total") >= 2
    assert 'holdfast_store_calls_total{call="open",outcome="ok"} 1.0' in operator.get("/metrics")


def test_every_line_about_an_object_names_it(lasting: tuple[Any, dict[str, Any]]) -> None:
    world, _ = lasting
    (operator,) = world.operators
    (line,) = (line for line in operator.lines() if line["message"].startswith("opened for writing"))
    assert line["object"] == f"Catalog {world.namespace}/demo"


@pytest.mark.long
def test_it_does_not_fight_another_manager(world: Any, demo: dict[str, Any]) -> None:
    theirs = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Catalog",
        "metadata": {"name": "demo", "labels": {"team": "data"}, "annotations": {"note": "theirs"}},
        "spec": {
            "organizationId": demo["spec"]["organizationId"],
            "deletionPolicy": "Delete",
            "bootstrap": {"defaultCluster": "default"},
        },
    }
    manager = "--field-manager=gitops"
    world.apply(theirs, flags=("--server-side", manager, "--force-conflicts"))
    (operator,) = world.operators
    operator.wait_for_looks(6)
    body = world.get("catalog/demo")
    assert body["metadata"]["labels"] == {"team": "data"}
    assert body["spec"]["deletionPolicy"] == "Delete"
    managed = json.loads(world.kubectl("get", "catalog/demo", "-o", "json", "--show-managed-fields"))
    mine = [
        entry["fieldsV1"]
        for entry in managed["metadata"]["managedFields"]
        if entry["manager"] == "holdfast-operator"
    ]
    ours = {"f:finalizers": {".": {}, f'v:"{FINALIZER}"': {}}}
    assert sorted(mine, key=str) == [{"f:metadata": ours}, {"f:status": ANY}]
    # A second apply of the same has nothing to take back.
    generation = body["metadata"]["generation"]
    world.apply(theirs, flags=("--server-side", manager))
    assert world.get("catalog/demo")["metadata"]["generation"] == generation
