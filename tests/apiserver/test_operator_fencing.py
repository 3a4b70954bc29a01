"""Which operator writes to a catalog: fights end, and a generation is tried before it takes over."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog import Catalog, OpenMode, persist_catalog

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
LONG = "x" * 2000
REOPEN = "holdfast.dev/reopen"


def take(client: Any, organization: str) -> Catalog:
    """Another process takes the catalog over."""
    closed = persist_catalog(client, organization)
    return closed.open(OpenMode.WRITABLE, holder="nightly-job", purpose="a load of its own")


def ended(operator: Any) -> None:
    assert operator.child.wait(timeout=60) == 0
    assert operator.said("another operator has taken over")


@pytest.mark.long
def test_a_catalog_that_another_process_keeps_taking_is_left_to_it(world: Any, make_catalog: Make) -> None:
    there = make_catalog()
    organization = there["spec"]["organizationId"]
    world.apply(there, make_catalog("other"))
    with world.store(world.volume(organization)) as client:
        for number in range(3):
            operator = world.start()
            world.wait_for("catalog/demo", ".status.epoch", 2 * number + 1)
            mine = take(client, organization)
            ended(operator)
        assert len(world.status("catalog/demo")["fencedBy"]) == 3
        operator = world.start()
        message = world.wait_stalled("catalog/demo", "FencedByOther")
        assert "nightly-job, a load of its own (epoch 6)" in message
        # The others are served, and the one is let alone.
        world.wait_for("catalog/other", ".status.epoch", 4)
        world.wait_ready("catalog/other")
        operator.wait_for_looks(4)
        mine.confirm_leadership()
        assert {e["involvedObject"]["name"] for e in world.events("FencedByOther")} == {"demo"}
        mine.close()
    world.kubectl("annotate", "catalog/demo", f"{REOPEN}=1")
    world.wait_for("catalog/demo", ".status.epoch", 7)
    world.wait_ready("catalog/demo")
    assert "fencedBy" not in world.status("catalog/demo")
    assert operator.child.poll() is None


@pytest.mark.long
def test_two_operators_that_fight_come_to_rest(world: Any, make_catalog: Make, make_collection: Make) -> None:
    world.apply(make_catalog(), make_collection())
    running = world.start()
    world.wait_for("catalog/demo", ".status.epoch", 1)
    for epoch in (2, 3, 4):
        # What a supervisor does: the one that ended is started again.
        successor = world.start()
        ended(running)
        world.wait_for("catalog/demo", ".status.fencedBy[-1:].epoch", epoch)
        running = successor
    world.wait_stalled("catalog/demo", "FencedByOther")
    again = world.start()
    reason = '.status.conditions[?(@.type=="Ready")].reason'
    world.wait_for("storagecollection/flights", reason, "CatalogNotReady")
    again.wait_until_it_says("started; watching")
    for operator in (running, again):
        operator.wait_for_looks(4)
    at_rest = [world.get(what)["metadata"]["resourceVersion"] for what in ("catalog/demo", "coll/flights")]
    for operator in (running, again):
        operator.wait_for_looks(6)
        assert operator.child.poll() is None
    after = [world.get(what)["metadata"]["resourceVersion"] for what in ("catalog/demo", "coll/flights")]
    assert after == at_rest
    # One is taken away, and the spec is touched: the other goes on.
    again.child.kill()
    world.patch("catalog/demo", '{"spec":{"deployGeneration":1}}')
    world.wait_for("catalog/demo", ".status.epoch", 5)
    world.wait_ready("catalog/demo", "storagecollection/flights")


@pytest.mark.long
def test_a_generation_that_can_not_open_leaves_the_running_one_in_charge(
    world: Any, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    operator = world.start()
    large = {f"setting_{number}": LONG for number in range(60)}
    there = make_catalog(bootstrap={"systemConfigurations": large})
    world.apply(there)
    world.wait_ready("catalog/demo")
    # The contents lie in blobs; without them what is in memory can go on, but nobody can read them anew.
    blobs = Path(world.volume(there["spec"]["organizationId"]).removeprefix("file://")) / "blob"
    parts = [path for path in blobs.rglob("*") if path.is_file() and path.name != "location.json"]
    assert parts
    away = tmp_path / "away"
    away.mkdir()
    for number, path in enumerate(parts):
        path.rename(away / str(number))
    world.patch("catalog/demo", '{"spec":{"deployGeneration":3}}')
    message = world.wait_stalled("catalog/demo", "PreflightFailed")
    assert "deploy generation 3 can't open the catalog" in message
    assert "generation 0 continues" in message
    # The running one still writes.
    world.apply(make_collection())
    world.wait_ready("storagecollection/flights")
    assert [world.status("catalog/demo")[field] for field in ("epoch", "deployGeneration")] == [1, 0]
    for number, path in enumerate(parts):
        (away / str(number)).rename(path)
    world.wait_for("catalog/demo", ".status.deployGeneration", 3)
    world.wait_ready("catalog/demo")
    assert world.status("catalog/demo")["epoch"] == 2
    assert operator.child.poll() is None
    # Lower than the durable one: a resource that forgot.
    world.delete("storagecollection/flights", "catalog/demo")
    there["spec"]["deployGeneration"] = 2
    world.apply(there)
    world.wait_stalled("catalog/demo", "DeployGenerationTooLow")
