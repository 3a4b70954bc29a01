"""A quota or a policy of the cluster denies what the operator asks for: it names it, waits, and goes on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from apiserver.test_operator_snapshot import snapshot
from testbed.faultyapi import FaultyApi
from testbed.kube import ControlPlane
from testbed.sparkfaces import KUBEFLOW
from testbed.sparkoperator import install_crd

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
ADMISSION = "admissionregistration.k8s.io/v1"
APPLICATIONS = "count/sparkapplications.sparkoperator.k8s.io"


@pytest.fixture
def policy(control_plane: ControlPlane, namespace: str) -> Iterator[str]:
    """A policy of the cluster that denies finalizers on the Catalogs of the namespace."""
    name = f"no-finalizers-{namespace}"
    rule = {"apiGroups": ["holdfast.dev"], "apiVersions": ["*"], "operations": ["UPDATE"]}
    made = {
        "apiVersion": ADMISSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{**rule, "resources": ["catalogs"]}]},
            "validations": [
                {"expression": "!has(object.metadata.finalizers)", "message": "ask the platform team"}
            ],
        },
    }
    bound = {
        "apiVersion": ADMISSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
            },
        },
    }
    control_plane.apply(made, bound)
    yield name
    control_plane.kubectl(
        "delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name, "--ignore-not-found"
    )


def append_a_row(world: Any, catalog: dict[str, Any], collection: str = "coll/flights") -> None:
    with world.controller(world.volume(catalog["spec"]["organizationId"])) as controller:
        writer = controller.writer(world.status(collection)["collectionId"], purpose="test")
        writer.append(pa.table({"id": [1], "note": ["x"]}), writer.upper(), 11)


def quota(**hard: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full"},
        "spec": {"hard": hard},
    }


def rests(world: Any, operator: Any) -> bool:
    """Whether nothing is written, though the operator looks again."""
    before = world.versions()
    operator.wait_for_looks(3)
    return bool(world.versions() == before)


@pytest.mark.long
def test_a_policy_and_a_quota_are_named_waited_for_and_cost_no_attempt(
    world: Any,
    control_plane: ControlPlane,
    policy: str,
    make_catalog: Make,
    make_collection: Make,
    tmp_path: Path,
) -> None:
    install_crd(control_plane, KUBEFLOW)
    there = make_catalog(deletionPolicy="Delete")
    operator = world.start("--storage-shared")
    world.apply(there)
    message = world.wait_stalled("catalog/demo", "Forbidden")
    assert f"ValidatingAdmissionPolicy '{policy}'" in message
    assert "denied request: ask the platform team; the operator retries by itself" in message
    assert "role" not in message
    control_plane.kubectl("delete", "validatingadmissionpolicybinding", policy)
    world.apply(make_collection())
    world.wait_ready("catalog/demo", "coll/flights")

    world.apply(quota(**{APPLICATIONS: "0"}))
    append_a_row(world, there)
    world.apply(snapshot("first", tmp_path / "out"))

    def said() -> str:
        conditions = world.get("collsnap/first").get("status", {}).get("conditions", [])
        return " ".join(each["message"] for each in conditions)

    world.settle(lambda: "denies its application for now" in said(), said)
    assert "quota: full" in said()
    world.settle(lambda: rests(world, operator), lambda: str(world.versions()))
    assert world.objects.list("sparkapplications") == []
    world.delete("resourcequotas/full")
    # The next one asks at once, and not after a pause.
    world.stop()
    second = world.start("--storage-shared")
    world.settle(lambda: bool(world.objects.list("sparkapplications")), said)
    (made,) = world.objects.list("sparkapplications")
    assert made["metadata"]["labels"]["holdfast.dev/attempt"] == "1"
    assert second.child.poll() is None


@pytest.mark.long
def test_an_application_that_the_api_server_fails_to_create_is_shown_until_it_is_created(
    world: Any, api: FaultyApi, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    there = make_catalog()
    world.start("--storage-shared", "--spark-adapter=job", through=api.cluster(world.folder))
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", "coll/flights")
    append_a_row(world, there)
    api.refuse("POST /apis/batch/v1", "500")
    world.apply(snapshot("first", tmp_path / "out"))
    message = world.wait_stalled("collsnap/first", "LaunchFailed")
    assert "its application can't be created: POST /apis/batch/v1/namespaces/" in message
    assert "500" in message
    (event,) = world.events("LaunchFailed")
    assert (event["type"], event["message"]) == ("Warning", message)
    assert world.objects.list("jobs") == []
    api.refuse("POST /apis/batch/v1")
    world.wait_for("collsnap/first", '.status.conditions[?(@.type=="Ready")].reason', "SnapshotRunning")
    assert world.condition("collsnap/first", "Stalled")["status"] == "False"
    assert world.status("collsnap/first")["job"]["attempt"] == 1


@pytest.mark.long
def test_a_quota_that_refuses_the_pod_of_a_job_is_named_and_the_next_attempt_gets_its_pod(
    world: Any, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    """The pods of a Job are made by Kubernetes, which shows only in Events of the Job that it can't."""
    there = make_catalog()
    operator = world.start("--storage-shared", "--spark-adapter=job")
    world.apply(quota(pods="0"), there, make_collection(spark={"serviceAccount": "default"}))
    world.wait_ready("catalog/demo", "coll/flights")
    world.wait_for("resourcequotas/full", ".status.hard.pods", "0")
    append_a_row(world, there)
    world.apply(snapshot("first", tmp_path / "out", spark={"startDeadline": "5s", "maxAttempts": 2}))
    # A second one may follow, when the driver has ended.
    event, *_ = world.events("SnapshotRetrying")
    refused = "its pod is refused: exceeded quota: full, requested: pods=1, limited: pods=0"
    assert f"its driver did not start within 5 s (startDeadline): {refused}" in event["message"]
    # Counted once, though the collection knows of the job too.
    assert 'holdfast_spark_jobs_total{kind="snapshot",step="failed"} 1.0\n' in operator.get("/metrics")
    world.delete("resourcequotas/full")
    world.settle(lambda: bool(world.objects.list("pods")), lambda: str(world.get("collsnap/first")))
    (pod,) = world.objects.list("pods")
    assert pod["metadata"]["labels"]["holdfast.dev/attempt"] == "2"
