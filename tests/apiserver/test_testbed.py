"""The stand-in of the Spark operator behaves well, and misbehaves only as a test asks."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient, CustomObjectsApi
from kubernetes.watch import Watch

from testbed.kube import ControlPlane
from testbed.process import ended
from testbed.sparkoperator import (
    GROUP,
    MISBEHAVE,
    PLURAL,
    VERSION,
    Misbehaviour,
    SparkOperatorStandIn,
    install_crd,
)

pytestmark = pytest.mark.kube

COUNTING = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
rows = spark.range(1000, numPartitions=2).filter("id % 2 = 0").count()
with Path(sys.argv[1]).open("a") as out:
    out.write(f"{rows} {os.environ.get('GREETING')} {spark.conf.get('spark.app.name')} {os.getpid()}\\n")
spark.stop()
sys.exit(int(sys.argv[2]))
"""


BRIEF = """
import os, sys
from pathlib import Path
with Path(sys.argv[1]).open("a") as out:
    out.write(f"done {os.getpid()}\\n")
sys.exit(int(sys.argv[2]))
"""
"""A driver as it is submitted, with its JVM, but without a session: what its end makes of its application."""


ENDLESS = """
import os, signal, sys
from pathlib import Path
Path(sys.argv[1]).write_text(f"{os.getpid()} {os.getppid()}")
while True:
    signal.pause()
"""


def application(name: str, script: Path, *arguments: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "annotations": more.pop("annotations", {})}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "SparkApplication",
        "metadata": metadata,
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": "4.3.0",
            "mainApplicationFile": f"local://{script}",
            "arguments": list(arguments),
            "restartPolicy": {"type": "Never"},
            "driver": {"cores": 1, "memory": "512m"},
            "executor": {"instances": 1, "cores": 1, "memory": "512m"},
        }
        | more,
    }


class Cluster:
    """SparkApplications of one namespace, and what became of them."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self.objects = CustomObjectsApi(client)
        self.namespace = namespace

    def create(self, found: dict[str, Any]) -> dict[str, Any]:
        made = self.objects.create_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, found)
        assert isinstance(made, dict)
        return made

    def until(self, made: dict[str, Any], last: str, seconds: int = 300) -> tuple[list[str], dict[str, Any]]:
        """The states of an object up to `last` ("DELETED" for its end), and its last status."""
        states: list[str] = []
        status: dict[str, Any] = {}
        for event in Watch().stream(  # type: ignore[no-untyped-call]
            self.objects.list_namespaced_custom_object,
            GROUP,
            VERSION,
            self.namespace,
            PLURAL,
            field_selector=f"metadata.name={made['metadata']['name']}",
            resource_version=made["metadata"]["resourceVersion"],
            timeout_seconds=seconds,
        ):
            if event["type"] == "DELETED":
                states.append("DELETED")
            else:
                status = event["raw_object"].get("status", {})
                state = status.get("applicationState", {}).get("state", "")
                if state not in states:
                    states.append(state)
            if states[-1] == last:
                return states, status
        raise AssertionError(f"no {last} in {seconds} s, only {states}: {status}")

    def status(self, name: str) -> dict[str, Any]:
        found = self.objects.get_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, name)
        assert isinstance(found, dict)
        status = found.get("status", {})
        assert isinstance(status, dict)
        return status


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str) -> Iterator[Cluster]:
    install_crd(control_plane)
    with control_plane.api() as client:
        yield Cluster(client, namespace)


@pytest.fixture
def stand_in(control_plane: ControlPlane, cluster: Cluster, tmp_path: Path) -> Iterator[SparkOperatorStandIn]:
    with SparkOperatorStandIn(
        control_plane.kubeconfig, namespace=cluster.namespace, log_dir=tmp_path / "drivers"
    ) as serving:
        yield serving


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "counting.py"
    path.write_text(COUNTING)
    return path


@pytest.fixture
def brief(tmp_path: Path) -> Path:
    path = tmp_path / "brief.py"
    path.write_text(BRIEF)
    return path


@pytest.mark.spark
@pytest.mark.long
def test_a_driver_runs_and_its_application_completes(
    cluster: Cluster,
    stand_in: SparkOperatorStandIn,
    control_plane: ControlPlane,
    script: Path,
    tmp_path: Path,
) -> None:
    control_plane.kubectl(
        "create", "secret", "generic", "greeting", "--from-literal=text=hello", "-n", cluster.namespace
    )
    source = {"secretKeyRef": {"name": "greeting", "key": "text"}}
    driver = {"memory": "512m", "env": [{"name": "GREETING", "valueFrom": source}]}
    out = tmp_path / "out"
    made = cluster.create(application("well", script, str(out), "0", driver=driver))
    states, status = cluster.until(made, "COMPLETED")
    assert states == ["", "SUBMITTED", "RUNNING", "SUCCEEDING", "COMPLETED"][-len(states) :]
    assert len(states) >= 4
    assert out.read_text().split()[:3] == ["500", "hello", "well"]
    assert status["driverInfo"] == {"podName": "well-driver"}
    assert status["executionAttempts"] == status["submissionAttempts"] == 1
    assert status["executorState"] == {"well-exec-1": "COMPLETED"}
    assert {"terminationTime", "sparkApplicationId", "submissionID", "lastSubmissionAttemptTime"} <= set(
        status
    )


@pytest.mark.spark
@pytest.mark.long
def test_the_exit_code_of_a_driver_is_told(
    cluster: Cluster, stand_in: SparkOperatorStandIn, brief: Path, tmp_path: Path
) -> None:
    made = cluster.create(application("badly", brief, str(tmp_path / "out"), "7"))
    states, status = cluster.until(made, "FAILED")
    assert states[-4:] == ["SUBMITTED", "RUNNING", "FAILING", "FAILED"]
    message = status["applicationState"]["errorMessage"]
    assert message == "driver container failed with ExitCode: 7, Reason: Error"


@pytest.mark.spark
@pytest.mark.long
def test_a_submission_that_fails_tells_why(
    cluster: Cluster, stand_in: SparkOperatorStandIn, script: Path, tmp_path: Path
) -> None:
    settings = {"spark.driver.memory": "lots"}
    found = application("unfit", script, str(tmp_path / "out"), "0", sparkConf=settings, driver={})
    states, status = cluster.until(cluster.create(found), "FAILED")
    assert states[-2:] == ["SUBMISSION_FAILED", "FAILED"]
    assert "lots" in status["applicationState"]["errorMessage"]
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
@pytest.mark.long
def test_deleting_the_object_ends_its_driver(
    cluster: Cluster, stand_in: SparkOperatorStandIn, tmp_path: Path
) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    started = tmp_path / "started"
    os.mkfifo(started)
    cluster.create(application("endless", script, str(started)))
    driver = os.pidfd_open(int(started.read_text().split()[0]))
    cluster.objects.delete_namespaced_custom_object(GROUP, VERSION, cluster.namespace, PLURAL, "endless")
    assert ended(driver), "the driver is still there"


@pytest.mark.spark
@pytest.mark.long
def test_no_driver_outlives_a_stand_in_that_is_killed(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    started = tmp_path / "started"
    os.mkfifo(started)
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "testbed", "spark-operator"),
            *("--namespace", cluster.namespace, "--log-dir", tmp_path / "drivers"),
        ],
        env={**control_plane.environment(os.environ), "PYTHONPATH": str(Path(__file__).parents[1])},
    ) as serving:
        cluster.create(application("endless", script, str(started)))
        driver, jvm = (os.pidfd_open(int(pid)) for pid in started.read_text().split())
        serving.kill()
    assert ended(jvm), "the JVM is still there"
    assert ended(driver), "the driver is still there"


@pytest.mark.long
def test_hang_stays_submitted_and_is_not_in_the_way(
    cluster: Cluster, stand_in: SparkOperatorStandIn, script: Path, tmp_path: Path
) -> None:
    stuck = cluster.create(
        application("stuck", script, str(tmp_path / "out"), "0", annotations={MISBEHAVE: Misbehaviour.HANG})
    )
    assert cluster.until(stuck, "SUBMITTED", 30)[0][-1] == "SUBMITTED"
    later = cluster.create(
        application("later", script, str(tmp_path / "out"), "0", annotations={MISBEHAVE: Misbehaviour.LIE})
    )
    cluster.until(later, "COMPLETED", 90)
    assert cluster.status("stuck")["applicationState"] == {"state": "SUBMITTED"}
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_lie_completes_without_a_driver(
    cluster: Cluster, stand_in: SparkOperatorStandIn, script: Path, tmp_path: Path
) -> None:
    made = cluster.create(
        application("liar", script, str(tmp_path / "out"), "0", annotations={MISBEHAVE: Misbehaviour.LIE})
    )
    states, _ = cluster.until(made, "COMPLETED", 90)
    assert states[-4:] == ["SUBMITTED", "RUNNING", "SUCCEEDING", "COMPLETED"]
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
@pytest.mark.long
def test_lie_failed_reports_a_failure_of_a_driver_that_did_its_work(
    cluster: Cluster, stand_in: SparkOperatorStandIn, brief: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    made = cluster.create(
        application("slander", brief, str(out), "0", annotations={MISBEHAVE: Misbehaviour.LIE_FAILED})
    )
    cluster.until(made, "FAILED")
    assert out.read_text().split()[0] == "done"


@pytest.mark.spark
@pytest.mark.long
def test_vanish_deletes_the_object_before_the_driver_does_anything(
    cluster: Cluster, stand_in: SparkOperatorStandIn, script: Path, tmp_path: Path
) -> None:
    made = cluster.create(
        application("ghost", script, str(tmp_path / "out"), "0", annotations={MISBEHAVE: Misbehaviour.VANISH})
    )
    states, _ = cluster.until(made, "DELETED")
    assert states[-3:] == ["SUBMITTED", "RUNNING", "DELETED"]
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
@pytest.mark.long
def test_twice_runs_two_drivers(
    cluster: Cluster, stand_in: SparkOperatorStandIn, brief: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    made = cluster.create(
        application("double", brief, str(out), "0", annotations={MISBEHAVE: Misbehaviour.TWICE})
    )
    cluster.until(made, "COMPLETED")
    lines = [line.split() for line in out.read_text().splitlines()]
    assert len({pid for *_, pid in lines}) == 2


def test_a_driver_waits_for_a_secret_that_is_missing(
    cluster: Cluster, stand_in: SparkOperatorStandIn, script: Path, tmp_path: Path
) -> None:
    source = {"secretKeyRef": {"name": "nowhere", "key": "text"}}
    driver = {"env": [{"name": "GREETING", "valueFrom": source}]}
    made = cluster.create(application("patient", script, str(tmp_path / "out"), "0", driver=driver))
    cluster.until(made, "SUBMITTED", 90)
    assert "errorMessage" not in cluster.status("patient")["applicationState"]


@pytest.mark.long
def test_an_unknown_misbehaviour_fails_its_application_only(
    cluster: Cluster, stand_in: SparkOperatorStandIn, script: Path, tmp_path: Path
) -> None:
    made = cluster.create(
        application("odd", script, str(tmp_path / "out"), "0", annotations={MISBEHAVE: "naughty"})
    )
    _, status = cluster.until(made, "FAILED", 90)
    assert "naughty" in status["applicationState"]["errorMessage"]
    good = cluster.create(
        application("even", script, str(tmp_path / "out"), "0", annotations={MISBEHAVE: Misbehaviour.LIE})
    )
    assert cluster.until(good, "COMPLETED", 90)


@pytest.mark.long
def test_an_ended_application_is_deleted_when_its_time_is_over(
    cluster: Cluster, stand_in: SparkOperatorStandIn, script: Path, tmp_path: Path
) -> None:
    made = cluster.create(
        application(
            *("brief", script, str(tmp_path / "out"), "0"),
            annotations={MISBEHAVE: Misbehaviour.LIE},
            timeToLiveSeconds=1,
        )
    )
    states, _ = cluster.until(made, "DELETED", 90)
    assert states[-2:] == ["COMPLETED", "DELETED"]


@pytest.mark.long
def test_a_stand_in_that_comes_back_finds_no_driver(
    cluster: Cluster, control_plane: ControlPlane, script: Path, tmp_path: Path
) -> None:
    before = {*threading.enumerate()}
    serving = SparkOperatorStandIn(control_plane.kubeconfig, namespace=cluster.namespace)
    with serving:
        made = cluster.create(
            application(
                "orphan", script, str(tmp_path / "out"), "0", annotations={MISBEHAVE: Misbehaviour.HANG}
            )
        )
        cluster.until(made, "SUBMITTED", 90)
    assert not serving.log_dir.exists()
    with SparkOperatorStandIn(control_plane.kubeconfig, namespace=cluster.namespace):
        _, status = cluster.until(made, "FAILED", 90)
    assert status["applicationState"]["errorMessage"] == "driver pod not found"
    begun = {*threading.enumerate()} - before
    assert not [thread for thread in begun if thread.name.startswith("spark-")]
