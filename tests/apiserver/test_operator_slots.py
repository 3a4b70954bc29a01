"""Only jobs that the operator launched count against its limits, whatever else is in the cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apiserver.test_operator_denials import append_a_row
from apiserver.test_operator_snapshot import snapshot

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
LIMIT = ("--storage-shared", "--spark-adapter=job", "--spark-max-jobs=1")


def forged(number: int, owner: dict[str, Any]) -> dict[str, Any]:
    """A Job with the labels and the owner of one that the operator launched. It never ends."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"forged-{number}",
            "labels": {
                "app.kubernetes.io/managed-by": "holdfast-operator",
                "holdfast.dev/collection": owner["metadata"]["name"],
                "holdfast.dev/job-id": f"j{number}",
                "holdfast.dev/job-kind": "compact",
                "holdfast.dev/attempt": "1",
            },
            "ownerReferences": [
                {
                    "apiVersion": owner["apiVersion"],
                    "kind": owner["kind"],
                    "name": owner["metadata"]["name"],
                    "uid": owner["metadata"]["uid"],
                }
            ],
        },
        "spec": {
            "suspend": True,
            "template": {
                "spec": {"restartPolicy": "Never", "containers": [{"name": "x", "image": "none.invalid/x"}]}
            },
        },
    }


def test_forged_jobs_take_no_slot_and_real_ones_do_after_a_restart(
    world: Any, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    operator = world.start(*LIMIT)
    catalog = make_catalog()
    world.apply(catalog, make_collection())
    world.wait_ready("catalog/demo", "coll/flights")
    append_a_row(world, catalog)
    world.apply(*(forged(number, world.get("coll/flights")) for number in range(3)))
    world.apply(snapshot("one", tmp_path / "out"))
    reason = '.status.conditions[?(@.type=="Ready")].reason'
    world.wait_for("collsnap/one", reason, "SnapshotRunning")
    world.apply(snapshot("two", tmp_path / "out"), make_collection("trains"))
    world.wait_for("collsnap/two", reason, "SnapshotQueued")
    operator.child.kill()
    world.start(*LIMIT)
    world.wait_ready("coll/trains")
    append_a_row(world, catalog, "coll/trains")
    three = snapshot("three", tmp_path / "out")
    three["spec"]["collectionRef"]["name"] = "trains"
    world.apply(three)
    # Of the other collection, so that nothing but the limit holds it up.
    world.wait_for("collsnap/three", reason, "SnapshotQueued")
    world.settle(
        lambda: "--spark-max-jobs" in world.condition("collsnap/three", "Ready")["message"],
        lambda: str(world.get("collsnap/three").get("status")),
    )
    assert len([each for each in world.objects.list("jobs") if "forged" not in each["metadata"]["name"]]) == 1
