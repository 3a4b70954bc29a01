"""CollectionSnapshots: one object is one snapshot, and a deletion does what its policy says."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.collections import JobState
from testbed.children import patched
from testbed.errors import KubectlError
from testbed.sparkoperator import ByAttempt, Misbehaviour
from testbed.wrongclock import clock_patch

pytestmark = [pytest.mark.kube, pytest.mark.spark]

Make = Callable[..., dict[str, Any]]
READY = '.status.conditions[?(@.type=="Ready")].reason'


@pytest.fixture
def flights(world: Any, make_catalog: Make, make_collection: Make) -> dict[str, Any]:
    """A collection that is complete up to 100: rows 0 to 9 at 50, rows 10 to 14 at 99."""
    world.start("--storage-shared")
    there, wanted = make_catalog(), make_collection()
    world.apply(there, wanted)
    world.wait_ready("catalog/demo", "coll/flights")
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        writer = controller.writer(world.status("coll/flights")["collectionId"], purpose="test")
        for first, last, at in ((0, 10, 50), (10, 15, 99)):
            ids = pa.array(range(first, last), pa.int64())
            times = pa.array([at] * (last - first), pa.uint64())
            table = pa.table({"id": ids, "note": pa.array(["x"] * (last - first)), "_time": times})
            writer.append(table, writer.upper(), at + 1)
    world.wait_for("coll/flights", ".status.upper", 100)
    return wanted


def snapshot(name: str, destination: Path | None, **spec: Any) -> dict[str, Any]:
    place = {} if destination is None else {"destination": destination.as_uri()}
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "CollectionSnapshot",
        "metadata": {"name": name},
        "spec": {"collectionRef": {"name": "flights"}, **place, **spec},
    }


def out(world: Any) -> Path:
    """A folder of the namespace, so that the operator may delete what is in it."""
    return Path(world.folder) / "volume" / world.namespace / "snapshots"


def applications(world: Any) -> dict[int, dict[str, Any]]:
    found = world.objects.list("sparkapplications")
    return {int(app["metadata"]["labels"]["holdfast.dev/attempt"]): app for app in found}


def records(world: Any) -> list[Any]:
    with world.controller(world.volume(world.status("catalog/demo")["organizationId"])) as controller:
        return [job for job in controller.jobs() if job.kind == "snapshot"]


@pytest.mark.long
def test_an_object_is_one_snapshot_and_its_deletion_deletes_the_files(
    world: Any, misbehave: ByAttempt, flights: dict[str, Any]
) -> None:
    one = snapshot("one", out(world), asOf=60, deletionPolicy="Delete")
    world.apply(one)
    world.wait_ready("collsnap/one")
    status = world.status("collsnap/one")
    assert (status["asOf"], status["rows"], status["job"]["attempt"]) == (60, 10, 1)
    assert status["sizeBytes"] > 0
    assert len(status["checksum"]) == 16
    assert status["startTime"] <= status["completionTime"]
    folder = Path(status["location"].removeprefix("file://"))
    ids = [each for file in folder.glob("*.parquet") for each in pq.read_table(file)["id"].to_pylist()]
    assert sorted(ids) == list(range(10))
    (app,) = applications(world).values()
    owner = app["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("CollectionSnapshot", "one")
    header, row = world.kubectl("get", "collsnap").splitlines()
    assert header.split()[:7] == ["NAME", "READY", "COLLECTION", "AS-OF", "ROWS", "BYTES", "AGE"]
    assert row.split()[:6] == ["one", "True", "flights", "60", "10", str(status["sizeBytes"])]

    # The same file again is nothing new, and the spec stays what it was.
    version = world.get("collsnap/one")["metadata"]["resourceVersion"]
    world.apply(one)
    assert world.get("collsnap/one")["metadata"]["resourceVersion"] == version
    for change in ({"asOf": 61}, {"destination": "file:///elsewhere"}, {"spark": {"maxAttempts": 2}}):
        with pytest.raises(KubectlError, match="only deletionPolicy can change"):
            world.patch("collsnap/one", json.dumps({"spec": change}))

    # Kept files stay; deleted ones are gone, with their record.
    world.apply(snapshot("two", out(world)))
    world.wait_ready("collsnap/two")
    two = world.status("collsnap/two")
    assert (two["asOf"], two["rows"]) == (99, 15)
    world.delete("collsnap/two")
    assert (Path(two["location"].removeprefix("file://")) / "_manifest.json").is_file()
    world.delete("collsnap/one")
    assert not folder.parent.exists()
    assert [event["message"] for event in world.events("DataDeleted")] == [
        f"the files in file://{folder.parent} are deleted"
    ]
    assert records(world) == []


@pytest.mark.long
def test_a_killed_operator_goes_on_with_the_snapshot_and_a_deletion_ends_it(
    world: Any, misbehave: ByAttempt, flights: dict[str, Any]
) -> None:
    misbehave.by_attempt = {"1": Misbehaviour.HANG}
    world.apply(snapshot("one", out(world)))
    world.wait_for("collsnap/one", ".status.job.state", "Running")
    assert world.status("collsnap/one")["asOf"] == 99
    world.stop()
    operator = world.start("--storage-shared")
    operator.wait_for_looks(2)
    # It is the same attempt, and the time stays.
    assert list(applications(world)) == [1]
    flights["spec"]["spark"] = {"startDeadline": "5s"}
    world.apply(flights)
    world.wait_for("collsnap/one", ".status.job.attempt", 2)
    flights["spec"]["spark"] = {"startDeadline": "110s"}
    world.apply(flights)
    world.wait_ready("collsnap/one")
    status = world.status("collsnap/one")
    assert (status["asOf"], status["rows"], status["job"]["attempt"] >= 2) == (99, 15, True)

    misbehave.by_attempt = {str(number): Misbehaviour.HANG for number in range(1, 9)}
    world.apply(snapshot("two", out(world), deletionPolicy="Delete"))
    world.wait_for("collsnap/two", ".status.job.state", "Running")
    world.delete("collsnap/two")
    assert all(app["metadata"]["ownerReferences"][0]["name"] == "one" for app in applications(world).values())
    (left,) = records(world)
    assert (left.state, left.spec["snapshot"]) == (JobState.DONE, "one")


def test_what_can_not_be_written_is_told_and_starts_nothing(
    world: Any, misbehave: ByAttempt, flights: dict[str, Any], tmp_path: Path
) -> None:
    other = snapshot("lost", tmp_path)
    other["spec"]["collectionRef"]["name"] = "missing"
    world.apply(
        other,
        snapshot("nowhere", None),
        snapshot("early", tmp_path / "out", asOf=5000),
        snapshot("forbidden", tmp_path / "out", deletionPolicy="Delete"),
    )
    assert "there is no StorageCollection 'missing'" in world.wait_stalled(
        "collsnap/lost", "CollectionNotFound"
    )
    assert "with spec.destination" in world.wait_stalled("collsnap/nowhere", "NoDestination")
    world.wait_stalled("collsnap/forbidden", "LocationNotAllowed")
    world.wait_for("collsnap/early", READY, "SnapshotNotReadable")
    message = world.condition("collsnap/early", "Reconciling")["message"]
    assert "the latest complete time is 99" in message
    assert applications(world) == {}
    table = snapshot("table", None, iceberg={"catalog": "shop", "table": "a.b"}, deletionPolicy="Delete")
    with pytest.raises(KubectlError, match="the operator deletes no rows"):
        world.apply(table)
    world.delete(*(f"collsnap/{name}" for name in ("lost", "nowhere", "early", "forbidden")))


def test_a_host_whose_clock_is_ahead_deletes_no_snapshot_and_starts_no_run_too_early(
    world: Any, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    ahead = clock_patch(400 * 24 * 3600, disk=True)
    operator = world.start("--spark-adapter=none", environment=patched(tmp_path / "clock", ahead))
    world.apply(make_catalog(), make_collection())
    world.wait_ready("catalog/demo", "coll/flights")
    now, moment = datetime.now(UTC), "%Y-%m-%dT%H:%M:%SZ"
    runs = {days: now - timedelta(days=days) for days in (40, 3, 2)}
    names = {days: f"flights-{run:%Y%m%d%H%M%S}" for days, run in runs.items()}
    for days, run in runs.items():
        at = f"{run:{moment}}"
        body = snapshot(names[days], out(world))
        body["metadata"] |= {
            "labels": {"holdfast.dev/schedule-of": "flights"},
            "annotations": {"holdfast.dev/scheduled-time": at},
        }
        world.apply(body)
        ready = {"type": "Ready", "status": "True", "reason": "Available", "message": "it is committed"}
        status = {
            "observedGeneration": 1,
            "completionTime": at,
            "location": f"{out(world).as_uri()}/{days}/attempt-1",
            "conditions": [{**ready, "lastTransitionTime": at, "observedGeneration": 1}],
        }
        world.kubectl(
            "patch",
            f"collsnap/{names[days]}",
            "--subresource=status",
            "--type=merge",
            f"--patch={json.dumps({'status': status})}",
        )
    schedule = {"schedule": "@yearly", "keepFor": "30d", "destination": out(world).as_uri()}
    world.patch("coll/flights", json.dumps({"spec": {"snapshotSchedule": schedule}}))
    world.wait_gone(f"collsnap/{names[40]}")
    upcoming = f"{datetime(now.year + 1, 1, 1, tzinfo=UTC):{moment}}"
    world.wait_for("coll/flights", ".status.snapshotSchedule.nextScheduleTime", upcoming)
    operator.wait_for_looks(2)
    left = {each["metadata"]["name"] for each in world.objects.list("collsnap")}
    assert left == {names[2], names[3]}


def test_a_status_that_somebody_wrote_deletes_no_files_of_another_snapshot(world: Any) -> None:
    """With the collection gone, nothing but the status says where the files are."""
    world.start("--spark-adapter=none")
    others = out(world) / "of-another-job" / "attempt-1" / "_manifest.json"
    others.parent.mkdir(parents=True)
    others.write_text("{}")
    world.apply(snapshot("forged", out(world), deletionPolicy="Delete"))
    world.wait_stalled("collsnap/forged", "CollectionNotFound")
    now = "2026-01-01T00:00:00Z"
    status = {
        "completionTime": now,
        "collectionId": "c1",
        "location": others.parent.as_uri(),
        "job": {"jobId": "of-another-job", "attempt": 1, "state": "Done"},
    }
    world.kubectl(
        *("patch", "collsnap/forged", "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": status})),
    )
    world.wait_ready("collsnap/forged")
    world.delete("collsnap/forged")
    assert others.exists()
    (event,) = world.events("DeletionIncomplete")
    assert "the record of where they are can't be read" in event["message"]
