"""The operator reaches the same end behind a bad network to the API server as behind a good one.

The test creates, changes (one collection to another rendition) and deletes objects on the API server itself.
The operator connects through a proxy that drops, delays, repeats and refuses requests, and cuts watches.
`make faults` runs more seeds.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.collections import StorageController
from testbed.faultyapi import FaultyApi

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
OURS = ("catalogs", "storagecollections")
SEEDS = range(int(os.environ.get("HOLDFAST_FAULT_SEEDS", "1")))
RATE = 0.2
_OF_ONE_RUN = {"organizationId", "shardId", "collectionId", "itemId", "holder"}
"""What two runs of one story can't have in common."""


def tell(world: Any, make_catalog: Make, make_collection: Make) -> None:
    """The story; it waits for what it changes next."""
    world.apply(
        make_catalog(),
        make_catalog("other", deletionPolicy="Delete"),
        make_collection("flights"),
        make_collection("doomed", deletionPolicy="Delete"),
        make_collection("lonely", catalogRef={"name": "nobody"}),
    )
    world.wait_ready("catalog/demo", "catalog/other", "coll/flights", "coll/doomed")
    columns = [
        *world.get("coll/flights")["spec"]["columns"],
        {"name": "on", "type": "date32", "nullable": True},
    ]
    world.objects.patch("coll/flights", {"spec": {"columns": columns, "rendition": {"shards": 3}}})
    world.delete("coll/doomed", "catalog/other", wait=False)
    world.wait_gone("coll/doomed")
    world.wait_gone("catalog/other")
    world.wait_for("coll/flights", ".status.activeRendition", "spec-2")
    world.wait_ready("coll/flights")


def end_of(world: Any) -> dict[str, Any]:
    """All that is there, without what two runs can't have in common."""
    found = {}
    for kind in OURS:
        for body in world.objects.list(kind):
            metadata, status = body["metadata"], body.get("status", {})
            found[f"{kind}/{metadata['name']}"] = {
                "generation": metadata["generation"],
                "finalizers": metadata.get("finalizers"),
                "annotations": sorted(metadata.get("annotations", {})),
                "conditions": {
                    each["type"]: (each["status"], each["reason"], each["observedGeneration"])
                    for each in status.get("conditions", ())
                },
                "status": {
                    key: value
                    for key, value in status.items()
                    if key not in _OF_ONE_RUN and key != "conditions"
                },
            }
    return found


def run(world: Any, api: FaultyApi, make_catalog: Make, make_collection: Make) -> Any:
    """Tell the story; the operator, which then has quiet."""
    operator = world.start(through=api.cluster(world.folder))
    tell(world, make_catalog, make_collection)
    api.calm()
    return operator


@pytest.fixture(scope="module")
def undisturbed(module_world: Any, make_catalog: Make, make_collection: Make) -> tuple[dict[str, Any], int]:
    """How it ends where nothing goes wrong, and after how many writes."""
    with FaultyApi(module_world.cluster, seed=0, rate=0.0) as api:
        operator = run(module_world, api, make_catalog, make_collection)
        operator.wait_for_looks(10)
        end = end_of(module_world)
        module_world.stop()
        return end, api.writes.total()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.long
def test_a_bad_way_to_the_api_server_leads_to_the_same_end(
    seed: int,
    world: Any,
    undisturbed: tuple[dict[str, Any], int],
    make_catalog: Make,
    make_collection: Make,
) -> None:
    expected, writes = undisturbed
    with FaultyApi(world.cluster, seed=seed, rate=RATE) as api:
        operator = run(world, api, make_catalog, make_collection)
        world.settle(lambda: end_of(world) == expected, lambda: f"{end_of(world)}, not {expected}")
        print(
            f"seed {seed}: {api.faults.total()} faults ({dict(api.faults)}), {api.writes.total()} writes "
            f"({dict(api.writes)}), undisturbed {writes}"
        )
        assert api.faults.total() > 5, "hardly anything went wrong"

        def rests() -> bool:
            before = api.writes.total(), world.versions()
            operator.wait_for_looks(10)
            return (api.writes.total(), world.versions()) == before

        # An Event, or a ConfigMap, that was refused may come after the status.
        world.settle(rests, lambda: f"it doesn't rest after {dict(api.writes)}")
        assert api.writes.total() <= writes + api.faults.total()
        assert operator.child.poll() is None
        failed = [
            line for line in operator.lines() if line["logger"].startswith("holdfast") and "exception" in line
        ]
        assert failed == []
        world.stop()


@pytest.mark.long
def test_resources_that_are_not_served_for_a_while_are_neither_gone_nor_forgotten(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    there = make_catalog()
    with FaultyApi(world.cluster, seed=0, rate=0.0) as api:
        api.hide("/apis/holdfast.dev/")
        operator = world.start(through=api.cluster(world.folder))
        operator.wait_until_it_says("doesn't serve all of holdfast.dev/v1alpha1")
        # What kopf has no answer to ends its watches.
        api.meet("/catalogs?watch=true", "410")
        api.hide()
        world.apply(there, make_collection(deletionPolicy="Delete"))
        world.wait_ready("catalog/demo", "coll/flights")
        operator.wait_until_it_says("watching again")
        assert operator.metric("holdfast_informer_restarts_total") == 1
        world.apply(make_collection("late"))
        world.wait_ready("coll/late")
        collection = world.status("coll/flights")["collectionId"]
        api.hide("/apis/holdfast.dev/")
        failed = operator.metric("holdfast_reconciles_total")
        world.delete("coll/flights", wait=False)
        operator.wait_for_looks(6)
        assert operator.metric("holdfast_reconciles_total") > failed
        assert world.get("coll/flights")["metadata"]["finalizers"]
        api.hide()
        world.wait_gone("coll/flights")
        with world.store(world.volume(there["spec"]["organizationId"])) as client:
            assert StorageController(client).describe(collection).dropped
        world.stop()


@pytest.mark.long
def test_an_operator_that_starts_again_and_again_writes_little_each_time(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    names = [f"flights-{number}" for number in range(6)]
    with FaultyApi(world.cluster, seed=0, rate=0.0) as api:
        cluster = api.cluster(world.folder)
        world.start(through=cluster)
        world.apply(make_catalog(), *(make_collection(name) for name in names))
        world.wait_ready("catalog/demo", *(f"coll/{name}" for name in names))
        for epoch in (2, 3):
            world.operators[-1].child.kill()
            before, versions = api.writes.copy(), world.versions()
            operator = world.start(through=cluster)
            world.wait_for("catalog/demo", ".status.epoch", epoch)
            world.wait_ready("catalog/demo", *(f"coll/{name}" for name in names))
            operator.wait_for_looks(4)
            # Its epoch, and an Event that tells of it; nothing of what is as it was.
            assert api.writes - before == {"PATCH catalogs/status": 1, "POST events": 1}
            assert {what for what, now in world.versions().items() if now != versions[what]} == {
                "catalogs/demo"
            }
        world.stop()
