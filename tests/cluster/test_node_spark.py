"""Spark on a real node: pods of our image hydrate collections, and the tests kill some of them.

All tests use one release, one after another.
"""

import contextlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.release import SYSTEM, Installed, release, until
from holdfast.collections import JobRecord, JobState, job_id
from testbed import build, kubeflow
from testbed.errors import KubectlError
from testbed.images import PYTHON, SPARK
from testbed.node import NodeCluster
from testbed.policies import Enforcement

pytestmark = [pytest.mark.node, pytest.mark.helm, pytest.mark.s3, pytest.mark.postgres]

Json = dict[str, Any]

FLIGHTS: Final = "storagecollection/flights"
PLACE: Final[Json] = {"image": SPARK, "imagePullPolicy": "Never"}
OWN_KEYS: Final[Json] = {"spec": {"storage": {"credentialsSecretRef": {"name": "stores"}}}}
"""With them, the pods of jobs have the keys of the stores, in files and nowhere else."""
TEMPLATE: Final[Json] = {
    "driver": {"memory": "512Mi"},
    "executor": {"memory": "512Mi"},
    "sparkConf": {
        # Three executors, of which one is gone, a driver and the operators are to fit on two cores.
        "spark.kubernetes.driver.request.cores": "500m",
        "spark.kubernetes.executor.request.cores": "400m",
        "spark.ui.enabled": "false",
    },
}
BOTH_EXECUTORS: Final[Json] = {
    # By default the first executor begins after 30 s without the others, and may do all the tasks.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "1h",
}
EXECUTORS: Final = {"spark-role": "executor"}
KILLED: Final = 137
PASSWORD: Final = "hunter2-in-a-log"
DIES_TALKING: Final = f"""
import os, signal
with open("/proc/1/fd/1", "w") as log:
    log.write("can't reach postgresql://holdfast:{PASSWORD}@db/holdfast\\n")
os.kill(-1, signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def installed(node: NodeCluster) -> Iterator[Installed]:
    with release(node, spark={"serviceAccount": {"create": True}}) as there:
        there.kubectl("patch", "catalog/demo", "--type=merge", f"--patch={json.dumps(OWN_KEYS)}")
        there.wait_ready("catalog/demo", FLIGHTS)
        yield there


@pytest.fixture
def spark_operator(installed: Installed) -> Iterator[None]:
    """Kubeflow's, with what its chart doesn't let it do and Spark asks for."""
    kubeflow.install(installed.node)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "spark-policies"}
    account = {"kind": "ServiceAccount", "name": kubeflow.ACCOUNT, "namespace": kubeflow.NAMESPACE}
    rule = {
        "apiGroups": ["networking.k8s.io"],
        "resources": ["networkpolicies"],
        "verbs": ["create", "patch"],
    }
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "spark-policies"}}
    installed.apply(
        {**kind, "kind": "Role", "rules": [rule]},
        {**kind, "kind": "RoleBinding", "roleRef": role, "subjects": [account]},
    )
    yield
    kubeflow.remove(installed.node)


def reshard(installed: Installed, shards: int, **template: Any) -> None:
    """Ask for a rendition with so many shards, which Spark fills."""
    hydration = {"minimumBytes": 0, "spark": TEMPLATE | template}
    change = {"spec": {"spark": PLACE, "hydration": hydration, "rendition": {"shards": shards}}}
    installed.kubectl("patch", FLIGHTS, "--type=merge", f"--patch={json.dumps(change)}")


def wait_taken_over(installed: Installed, rendition: str, attempt: int) -> None:
    until(
        lambda: installed.get(FLIGHTS)["status"].get("activeRendition") == rendition,
        "it takes over",
        progress=lambda: progress(installed, rendition, attempt),
    )


def hydration(installed: Installed, rendition: str) -> tuple[JobRecord, int]:
    """The record of the job that filled a rendition, and how many shards the collection then has."""
    with installed.controller() as controller:
        record = controller.job(job_id(installed.flights, "hydrate", rendition))
        assert record is not None
        return record, len(controller.describe(installed.flights).holding.shards)


def pods(installed: Installed, rendition: str, attempt: int, **labels: str) -> list[Json]:
    """The pods of an attempt to fill a rendition, the oldest first."""
    job = job_id(installed.flights, "hydrate", rendition)
    wanted = {"holdfast.dev/job-id": job, "holdfast.dev/attempt": str(attempt), **labels}
    selector = ",".join(f"{name}={value}" for name, value in wanted.items())
    return list(installed.get("pods", "-l", selector, "--sort-by=.metadata.creationTimestamp")["items"])


def exit_code(pod: Json) -> int | None:
    """With what a pod's container ended; None as long as it hasn't."""
    (container,) = pod["status"]["containerStatuses"]
    ended = container["state"].get("terminated")
    return None if ended is None else int(ended["exitCode"])


def says(installed: Installed, pod: Json, words: str) -> bool:
    """Whether something is in the log of a pod."""
    try:
        return words in installed.kubectl("logs", pod["metadata"]["name"])
    except KubectlError:
        return False  # its container is being made


def progress(installed: Installed, rendition: str, attempt: int) -> list[tuple[str, str, int]]:
    """How far the pods of an attempt are: their phases, and how many lines they have logged."""
    found = []
    for pod in pods(installed, rendition, attempt):
        name = pod["metadata"]["name"]
        lines = []
        with contextlib.suppress(KubectlError):  # its container is being made
            lines = installed.kubectl("logs", name).splitlines()
        # A driver without executors logs that again and again.
        told = sum("has not accepted any resources" not in line for line in lines)
        found.append((name, str(pod["status"].get("phase")), told))
    return found


def test_a_plain_job_hydrates_a_rendition_though_its_driver_is_killed(installed: Installed) -> None:
    installed.append(*range(2000))
    before = installed.rows()
    reshard(installed, 3)
    until(
        lambda: any(says(installed, pod, "tasks into") for pod in pods(installed, "spec-2", 1)),
        "its driver is at work",
        progress=lambda: progress(installed, "spec-2", 1),
    )
    (killed,) = pods(installed, "spec-2", 1)
    name = killed["metadata"]["name"]
    # The command ends its container, which may take the command along. The exit code below is the proof.
    with contextlib.suppress(KubectlError):
        installed.kubectl("exec", name, "--", PYTHON, "-c", DIES_TALKING)
    installed.append(2000, 2001)
    wait_taken_over(installed, "spec-2", 2)
    installed.append(2002)

    assert installed.rows() == sorted([*before, *((each, f"row {each}") for each in (2000, 2001, 2002))])
    record, shards = hydration(installed, "spec-2")
    assert (record.state, record.attempt, shards) == (JobState.DONE, 2, 3)
    until(
        lambda: [exit_code(pods(installed, "spec-2", attempt)[0]) for attempt in (1, 2)] == [KILLED, 0],
        "both have ended",
    )
    (second,) = pods(installed, "spec-2", 2)
    assert second["spec"]["serviceAccountName"] == "holdfast-spark"
    messages = [each["message"] for each in installed.get("events")["items"]]
    assert any("exit code 137" in message for message in messages)


def test_a_support_bundle_has_what_drivers_said_without_secrets(installed: Installed, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    command = [sys.executable, "-m", "holdfast_operator.kubectl.main", "report", "-n", SYSTEM, "-o", bundle]
    path = f"{build.kubectl().parent}:/usr/bin:/bin"
    env = installed.node.plane.environment({**os.environ, "PATH": path})
    subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120)
    with tarfile.open(bundle) as archive:
        files = {each.name: archive.extractfile(each).read().decode() for each in archive.getmembers()}  # type: ignore[union-attr]
    logs = {
        attempt: files[f"holdfast-report/jobs/{SYSTEM}/{pod['metadata']['name']}/log.txt"]
        for attempt in (1, 2)
        for pod in pods(installed, "spec-2", attempt)
    }
    assert "can't reach postgresql://***@db/holdfast" in logs[1]
    assert "rows are staged, committing" in logs[2]
    secrets = [PASSWORD, *(installed.secret[name] for name in ("AWS_SECRET_ACCESS_KEY", "PGPASSWORD"))]
    assert [name for name, text in files.items() for secret in secrets if secret in text] == []


def test_kubeflows_operator_runs_executors_of_which_one_is_killed(
    installed: Installed, spark_operator: None
) -> None:
    before = installed.rows()
    node = installed.node

    def executors() -> dict[str, Json]:
        return {each["metadata"]["name"]: each for each in pods(installed, "spec-3", 1, **EXECUTORS)}

    def planned() -> bool:
        return any(says(installed, pod, "tasks into") for pod in pods(installed, "spec-3", 1))

    def at_work() -> bool:
        return len(executors()) == 2 and all(
            says(installed, pod, "Got assigned task") for pod in executors().values()
        )

    def goes_on() -> object:
        return progress(installed, "spec-3", 1)

    with Enforcement(node):
        conf = TEMPLATE["sparkConf"] | BOTH_EXECUTORS
        reshard(installed, 2, executor={"memory": "512Mi", "instances": 2}, sparkConf=conf)
        until(planned, "its driver has planned", progress=goes_on)
        # No task can end, however late we look.
        with installed.minio.hanging():
            until(at_work, "both executors have a task", progress=goes_on)
            first = executors()
            for pod in first.values():
                node.freeze(pod["metadata"]["uid"])
        killed = next(iter(first))
        try:
            installed.kubectl("delete", "pod", killed, "--grace-period=0", "--force", "--wait=false")
            until(lambda: len(executors().keys() - first.keys()) == 1, "it has a successor", progress=goes_on)
        finally:
            for pod in first.values():
                node.thaw(pod["metadata"]["uid"])
        installed.append(3000)
        wait_taken_over(installed, "spec-3", 1)
    assert installed.rows() == sorted([*before, (3000, "row 3000")])
    record, shards = hydration(installed, "spec-3")
    assert (record.state, record.attempt, shards) == (JobState.DONE, 1, 2)
    (application,) = installed.get("sparkapplications")["items"]
    assert application["metadata"]["labels"]["holdfast.dev/job-id"] == record.job_id
    until(
        lambda: (
            installed.get("sparkapplications")["items"][0]["status"]["applicationState"]["state"]
            == "COMPLETED"
        ),
        "its operator says so too",
    )
