"""What launches jobs, and what counts against the limits, whatever else is in the cluster."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apiserver.test_operator_denials import append_a_row
from apiserver.test_operator_snapshot import snapshot
from testbed.children import patched
from testbed.kube import ControlPlane
from testbed.sparkfaces import KUBEFLOW
from testbed.sparkoperator import install_crd

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
IMPATIENT = """
from datetime import timedelta

from holdfast_operator.sparkapps import choice

choice._NOTICED_WITHIN = timedelta(seconds=1)
"""
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


@pytest.mark.long
def test_definitions_whose_operator_is_gone_get_no_job_again_until_one_is_seen_to_work(
    world: Any, control_plane: ControlPlane, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    install_crd(control_plane, KUBEFLOW)
    environment = patched(tmp_path / "impatient", IMPATIENT)
    operator = world.start("--storage-shared", environment=environment)
    catalog = make_catalog()
    world.apply(catalog, make_collection(), make_collection("trains"))
    world.wait_ready("catalog/demo", "coll/flights", "coll/trains")
    for collection in ("coll/flights", "coll/trains"):
        append_a_row(world, catalog, collection)

    def said(name: str) -> str:
        conditions = world.get(f"collsnap/{name}").get("status", {}).get("conditions", [])
        return " ".join(each["message"] for each in conditions)

    def is_of_kubeflow(name: str) -> bool:
        """Whether that adapter launched the first attempt of a snapshot. The other CRD may be there too."""
        world.settle(lambda: "waits for its driver" in said(name), lambda: said(name))
        application = world.status(f"collsnap/{name}")["job"]["application"]
        found = world.objects.list("sparkapplications")
        return application in [each["metadata"]["name"] for each in found]

    first = snapshot("first", tmp_path / "out", spark={"startDeadline": "5s", "maxAttempts": 3})
    world.apply(first)
    assert is_of_kubeflow("first")
    world.settle(
        lambda: "adapter job launched it, because nobody noticed" in said("first"), lambda: said("first")
    )
    operator.child.kill()
    # It knows of it from the Job.
    world.start("--storage-shared", environment=environment)
    world.settle(lambda: "failed 3 times" in said("first"), lambda: said("first"))
    second = snapshot("second", tmp_path / "out", spark={"startDeadline": "5s", "maxAttempts": 1})
    world.apply(second)
    assert not is_of_kubeflow("second")
    somebodys = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "somebodys"},
        "spec": {
            "type": "Python",
            "mode": "cluster",
            "sparkVersion": "4.1.0",
            "mainApplicationFile": "local:///any.py",
            "driver": {},
            "executor": {},
        },
    }
    world.apply(somebodys)
    noticed = json.dumps({"status": {"applicationState": {"state": "COMPLETED"}, "driverInfo": {}}})
    world.kubectl(
        "patch",
        f"{KUBEFLOW.plural}.{KUBEFLOW.group}",
        "somebodys",
        "--subresource=status",
        "--type=merge",
        "-p",
        noticed,
    )
    third = snapshot("third", tmp_path / "out", spark={"startDeadline": "5s", "maxAttempts": 1})
    third["spec"]["collectionRef"]["name"] = "trains"
    world.apply(third)
    assert is_of_kubeflow("third")
