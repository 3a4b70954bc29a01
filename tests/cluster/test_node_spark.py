"""Spark on a real node: collections are hydrated by pods of our image, of which some are killed.

All on one release, whose tests follow one another.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from cluster.release import Installed, release, until
from holdfast.storage import JobRecord, JobState, job_id
from testbed.errors import KubectlError
from testbed.images import PYTHON, SPARK
from testbed.node import NodeCluster

pytestmark = [pytest.mark.node, pytest.mark.helm, pytest.mark.s3, pytest.mark.postgres]

Json = dict[str, Any]

FLIGHTS: Final = "storagecollection/flights"
TEMPLATE: Final[Json] = {
    "image": SPARK,
    "imagePullPolicy": "Never",
    "envSecretRef": {"name": "stores"},
    "driver": {"memory": "512m"},
    "executor": {"memory": "512m"},
    "sparkConf": {"spark.kubernetes.driver.request.cores": "200m", "spark.ui.enabled": "false"},
}
KILLS_ALL: Final = "import os, signal; os.kill(-1, signal.SIGKILL)"


@pytest.fixture(scope="module")
def installed(node: NodeCluster) -> Iterator[Installed]:
    with release(node, spark={"adapter": "job", "serviceAccount": {"create": True}}) as there:
        yield there


def reshard(installed: Installed, shards: int, **template: Any) -> None:
    """Ask for a rendition with so many shards, which Spark fills."""
    hydration = {"minimumBytes": 0, "spark": TEMPLATE | template}
    change = {"spec": {"hydration": hydration, "rendition": {"shards": shards}}}
    installed.kubectl("patch", FLIGHTS, "--type=merge", f"--patch={json.dumps(change)}")


def hydration(installed: Installed, rendition: str) -> tuple[JobRecord, int]:
    """The record of the job that filled a rendition, and how many shards the collection then has."""
    with installed.controller() as controller:
        record = controller.job(job_id(installed.flights, "hydrate", rendition))
        assert record is not None
        return record, len(controller.describe(installed.flights).holding.shards)


def pods(installed: Installed, attempt: int, **labels: str) -> list[Json]:
    """The pods of an attempt, the oldest first."""
    wanted = {"holdfast.dev/collection": "flights", "holdfast.dev/attempt": str(attempt), **labels}
    selector = ",".join(f"{name}={value}" for name, value in wanted.items())
    return list(installed.get("pods", "-l", selector, "--sort-by=.metadata.creationTimestamp")["items"])


def exit_code(pod: Json) -> int | None:
    """With what a pod's container ended; None as long as it hasn't."""
    (container,) = pod["status"]["containerStatuses"]
    ended = container["state"].get("terminated")
    return None if ended is None else int(ended["exitCode"])


def wait_at_work(installed: Installed, attempt: int, **labels: str) -> str:
    """Wait until the driver of an attempt has begun its work; returns the name of its pod."""

    def begun() -> bool:
        for pod in pods(installed, attempt, **labels):
            try:
                return "tasks into" in installed.kubectl("logs", pod["metadata"]["name"])
            except KubectlError:
                continue  # its container is being made
        return False

    until(begun, f"the driver of attempt {attempt} is at work")
    return str(pods(installed, attempt, **labels)[0]["metadata"]["name"])


def test_a_plain_job_hydrates_a_rendition_though_its_driver_is_killed(installed: Installed) -> None:
    installed.append(*range(2000))
    before = installed.rows()
    reshard(installed, 3)
    killed = wait_at_work(installed, 1)
    installed.kubectl("exec", killed, "--", PYTHON, "-c", KILLS_ALL)
    installed.append(2000, 2001)
    until(lambda: installed.get(FLIGHTS)["status"].get("activeRendition") == "spec-2", "it takes over")
    installed.append(2002)

    assert installed.rows() == sorted([*before, *((each, f"row {each}") for each in (2000, 2001, 2002))])
    record, shards = hydration(installed, "spec-2")
    assert (record.state, record.attempt, shards) == (JobState.DONE, 2, 3)
    until(
        lambda: [exit_code(pods(installed, attempt)[0]) for attempt in (1, 2)] == [137, 0], "both have ended"
    )
    assert {each["spec"]["serviceAccountName"] for each in pods(installed, 2)} == {"holdfast-spark"}
    messages = [each["message"] for each in installed.get("events")["items"]]
    assert any("exit code 137" in message for message in messages)
