"""A Spark job re-shards a StorageCollection during reads and writes, on a real API server."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from apiserver.livewriting import Writing, counted, load
from holdfast.collections import JobState, StorageController, job_id

pytestmark = [pytest.mark.kube, pytest.mark.spark]

Make = Callable[..., dict[str, Any]]
FLIGHTS = "storagecollection/flights"
JOB = '.status.renditions[?(@.id=="spec-2")].job'
LOADED = 5000


def kill_at_work(world: Any, logs: Path, application: str) -> None:
    """Kill the driver of an application, as a node that dies would, when it has begun its work."""
    deadline = time.monotonic() + 120
    while not any("tasks into" in log.read_text() for log in logs.glob(f"*/{application}-*/driver.log")):
        assert time.monotonic() < deadline, "the driver doesn't begin"
        threading.Event().wait(0.05)
    kill_driver(application)


def kill_driver(application: str) -> None:
    """Kill the driver of an application, which runs."""
    (driver,) = (
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and is_driver(process, application)
    )
    os.kill(driver, signal.SIGKILL)


def is_driver(process: Path, application: str) -> bool:
    """Whether it is the Python of a driver, which the Java that it belongs to has started."""
    try:
        command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    entry = any(each.endswith("_driver_entry.py") for each in command[:3])
    return entry and "python" in command[0] and any(f"/{application}-" in each for each in command)


def applications(world: Any) -> Mapping[int, dict[str, Any]]:
    found = world.objects.list("sparkapplications")
    return {int(app["metadata"]["labels"]["holdfast.dev/attempt"]): app for app in found}


@pytest.mark.long
def test_a_collection_is_resharded_by_spark_though_a_driver_is_killed(
    world: Any, drivers: Path, make_catalog: Make, make_collection: Make
) -> None:
    there = make_catalog()
    world.start("--storage-shared")
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", FLIGHTS)
    collection = world.status(FLIGHTS)["collectionId"]
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        reshard(world, controller, collection, drivers)


def reshard(world: Any, controller: StorageController, collection: str, drivers: Path) -> None:
    writer = controller.writer(collection, purpose="application")
    load(writer, LOADED)
    reader = controller.reader(collection, purpose="follower")
    heard = counted(reader.snapshot(9).to_table())
    listen = reader.listen(9)

    def hear() -> None:
        for event in listen.next():
            if hasattr(event, "table"):
                heard.update(counted(event.table))

    with Writing(writer, pace_s=0.2).running() as writing:
        hydration = {"minimumBytes": 0, "spark": {"startDeadline": "110s"}}
        world.patch(FLIGHTS, json.dumps({"spec": {"hydration": hydration, "rendition": {"shards": 3}}}))
        world.wait_for(FLIGHTS, f"{JOB}.attempt", 1)
        world.wait_for(FLIGHTS, f"{JOB}.state", "Running")
        (application,) = applications(world).values()
        kill_at_work(world, drivers, application["metadata"]["name"])
        world.wait_for(FLIGHTS, f"{JOB}.attempt", 2)
        world.wait_for(FLIGHTS, ".status.activeRendition", "spec-2")
        handover = world.status(FLIGHTS)["handover"]
        while listen.frontier <= handover["at"] + 20:
            hear()
    upper = writer.upper()
    while listen.frontier < upper:
        hear()
    expected = Counter({(number, "before"): 1 for number in range(LOADED)}) + writing.written
    assert +heard == expected
    assert counted(reader.snapshot().to_table()) == expected

    record = controller.job(job_id(collection, "hydrate", "spec-2"))
    assert record is not None
    assert (record.state, record.attempt) == (JobState.DONE, 2)
    assert record.result["rows"] >= LOADED
    assert len(controller.describe(collection).holding.shards) == 3
    assert sorted(applications(world)) == [1, 2]
    world.events("Hydrated")
    world.events("HandedOver")
    assert world.condition(FLIGHTS, "Ready")["reason"] in {"RetiringRendition", "HydratingRendition"}
