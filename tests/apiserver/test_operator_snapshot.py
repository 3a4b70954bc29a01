"""Snapshots by SparkApplications and Jobs: the operator trusts the record, and not the application."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from holdfast.collections import JobState
from holdfast.collections.record.jobs import hold_purpose
from holdfast.errors import Fenced
from testbed.errors import KubectlError
from testbed.sparkfaces import APACHE, PODS
from testbed.sparkoperator import ByAttempt, Misbehaviour

pytestmark = [pytest.mark.kube, pytest.mark.spark]

Make = Callable[..., dict[str, Any]]
READY = '.status.conditions[?(@.type=="Ready")].reason'


@pytest.fixture
def flags() -> tuple[str, ...]:
    """Further flags of the operator."""
    return ()


@pytest.fixture
def flights(world: Any, make_catalog: Make, make_collection: Make, flags: tuple[str, ...]) -> dict[str, Any]:
    """A collection that is complete up to 100: rows 0 to 9 at 50, rows 10 to 14 at 99."""
    world.start("--storage-shared", *flags)
    there, wanted = make_catalog(), make_collection()
    world.apply(there, wanted)
    world.wait_ready("catalog/demo", "storagecollection/flights")
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        writer = controller.writer(world.status("storagecollection/flights")["collectionId"], purpose="test")
        for first, last, at in ((0, 10, 50), (10, 15, 99)):
            ids = pa.array(range(first, last), pa.int64())
            times = pa.array([at] * (last - first), pa.uint64())
            table = pa.table({"id": ids, "note": pa.array(["x"] * (last - first)), "_time": times})
            writer.append(table, writer.upper(), at + 1)
    world.wait_for("storagecollection/flights", ".status.upper", 100)
    return wanted


def snapshot(name: str, destination: Path | None, collection: str = "flights", **spec: Any) -> dict[str, Any]:
    place = {} if destination is None else {"destination": destination.as_uri()}
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "CollectionSnapshot",
        "metadata": {"name": name},
        "spec": {"collectionRef": {"name": collection}, **place, **spec},
    }


def wait_for_reason(world: Any, name: str, reason: str) -> None:
    world.wait_for(f"collsnap/{name}", READY, reason)


def set_deadline(world: Any, flights: dict[str, Any], deadline: str) -> None:
    """Have the Spark jobs of the collection start within this time."""
    flights["spec"]["spark"] = {**flights["spec"].get("spark", {}), "startDeadline": deadline}
    world.apply(flights)


def ids_in(location: str) -> list[int]:
    """The ids of the rows in a snapshot."""
    files = sorted(Path(location.removeprefix("file://")).glob("**/*.parquet"))
    return sorted(each for file in files for each in pq.read_table(file, columns=["id"])["id"].to_pylist())


def contents(world: Any) -> list[dict[str, Any]]:
    """The rows of the collection, in order."""
    organization = world.status("catalog/demo")["organizationId"]
    with world.controller(world.volume(organization)) as controller:
        id_ = world.status("storagecollection/flights")["collectionId"]
        with controller.reader(id_, purpose="look") as reader:
            return reader.snapshot().to_table().sort_by("id").to_pylist()


def applications(world: Any, kind: str = "sparkapplications") -> dict[int, dict[str, Any]]:
    found = world.objects.list(kind)
    return {int(app["metadata"]["labels"]["holdfast.dev/attempt"]): app for app in found}


def test_the_name_of_a_collection_may_start_with_a_digit(
    world: Any, misbehave: ByAttempt, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    """The webhook of the Spark operator refuses an application whose name isn't a DNS-1035 label."""
    misbehave.by_attempt = {"1": Misbehaviour.HANG}
    world.start("--storage-shared")
    there = make_catalog("2024")
    wanted = make_collection("2024.flights", catalogRef={"name": "2024"})
    world.apply(there, wanted)
    world.wait_ready("storagecollection/2024.flights")
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        id_ = world.status("storagecollection/2024.flights")["collectionId"]
        writer = controller.writer(id_, purpose="test")
        writer.append(pa.table({"id": [1], "note": ["x"]}), writer.upper(), 11)
    world.apply(snapshot("2024.first", tmp_path / "out", "2024.flights"))
    wait_for_reason(world, "2024.first", "SnapshotRunning")
    world.settle(lambda: 1 in applications(world), lambda: str(world.events("SnapshotRunning")))
    assert applications(world)[1]["metadata"]["name"].startswith("c2024-first-snapshot-")


@pytest.mark.long
def test_a_snapshot_survives_hangs_lies_a_vanished_driver_and_two_at_once(
    world: Any, misbehave: ByAttempt, flights: dict[str, Any], tmp_path: Path
) -> None:
    misbehave.by_attempt = {"1": Misbehaviour.HANG, "2": Misbehaviour.LIE, "3": Misbehaviour.TWICE}
    set_deadline(world, flights, "5s")
    world.apply(snapshot("first", tmp_path / "out", asOf=60))
    wait_for_reason(world, "first", "SnapshotRetrying")
    # A real driver may take longer than that on a busy machine.
    set_deadline(world, flights, "110s")
    world.wait_ready("collsnap/first")
    status = world.status("collsnap/first")
    assert (status["asOf"], status["rows"], status["job"]["attempt"]) == (60, 10, 3)
    assert status["job"]["state"] == "Done"
    assert ids_in(status["location"]) == list(range(10))
    # The one that hung is gone; those that ended are left to look at.
    assert sorted(applications(world)) == [2, 3]
    (third,) = (app for number, app in applications(world).items() if number == 3)
    assert third["metadata"]["ownerReferences"][0]["name"] == "first"
    reasons = [event["message"] for event in world.events("SnapshotRetrying")]
    assert any("did not start within 5 s" in message for message in reasons)
    assert any("without committing" in message for message in reasons)
    world.wait_for("coll/flights", ".status.lastSnapshot.name", "first")

    # A lie about failure changes nothing.
    misbehave.by_attempt = {"1": Misbehaviour.VANISH, "2": Misbehaviour.LIE_FAILED}
    (tmp_path / "lake").mkdir()
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/lake/catalog.db",
        "warehouse": (tmp_path / "lake").as_uri(),
    }
    table = {"catalog": "shop", "table": "sales.flights", "properties": properties}
    world.apply(snapshot("second", None, iceberg=table))
    world.wait_ready("collsnap/second")
    last = world.status("collsnap/second")
    assert (last["asOf"], last["rows"], last["job"]["attempt"]) == (99, 15, 2)
    there = load_catalog("shop", **properties).load_table("sales.flights")
    assert sorted(there.scan().to_arrow()["id"].to_pylist()) == list(range(15))
    assert (last["table"], last["icebergSnapshotId"]) == (
        "shop.sales.flights",
        str(there.metadata.current_snapshot_id),
    )


@pytest.mark.parametrize(
    ("face", "flags", "kind"),
    [
        (APACHE, ("--spark-adapter=apache",), "sparkapplications.spark.apache.org"),
        (PODS, ("--spark-adapter=job",), "jobs"),
    ],
    ids=("apache", "job"),
)
@pytest.mark.long
def test_whatever_runs_spark_hangs_lies_vanishes_and_runs_twice_and_the_record_decides(
    world: Any, misbehave: ByAttempt, flights: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    flights["spec"]["spark"] = {"serviceAccount": "default"}
    spark = {"startDeadline": "5s", "maxAttempts": 2}
    misbehave.by_attempt = {"1": Misbehaviour.HANG, "2": Misbehaviour.LIE}
    world.apply(flights, snapshot("first", tmp_path / "out", spark=spark))
    wait_for_reason(world, "first", "SnapshotFailed")
    assert sorted(applications(world, kind)) == [2]
    reasons = [event["message"] for event in world.events("SnapshotRetrying")]
    assert any("did not start within 5 s" in message for message in reasons)
    message = world.condition("collsnap/first", "Stalled")["message"]
    assert "failed 2 times" in message
    assert "without committing" in message
    assert not list((tmp_path / "out").glob("**/*.parquet"))

    misbehave.by_attempt = {"1": Misbehaviour.VANISH, "2": Misbehaviour.TWICE}
    world.apply(snapshot("second", tmp_path / "out", spark={**spark, "startDeadline": "110s"}))
    world.wait_ready("collsnap/second")
    last = world.status("collsnap/second")
    assert (last["asOf"], last["rows"], last["job"]["attempt"]) == (99, 15, 2)
    assert ids_in(last["location"]) == list(range(15))
    # Who made them is who they belong to: with the snapshots they go.
    owners = {app["metadata"]["ownerReferences"][0]["name"] for app in applications(world, kind).values()}
    assert owners <= {"first", "second"}


@pytest.mark.long
def test_a_suspended_collection_has_no_driver_and_goes_on_with_its_snapshot_afterwards(
    world: Any, misbehave: ByAttempt, flights: dict[str, Any], tmp_path: Path
) -> None:
    misbehave.by_attempt = {"1": Misbehaviour.HANG, "2": Misbehaviour.HANG}
    world.apply(snapshot("one", tmp_path / "out", spark={"maxAttempts": 1}))
    wait_for_reason(world, "one", "SnapshotRunning")
    assert list(applications(world)) == [1]
    flights["spec"]["suspend"] = True
    world.apply(flights)
    world.wait_for("collsnap/one", ".status.job.state", "Failed")
    assert "is suspended" in world.condition("collsnap/one", "Reconciling")["message"]
    world.settle(lambda: applications(world) == {}, lambda: str(applications(world)))
    # That was no failure of the job, which may fail once only.
    flights["spec"]["suspend"] = False
    world.apply(flights)
    world.wait_for("collsnap/one", ".status.job.attempt", 2)
    assert list(applications(world)) == [2]


@pytest.mark.long
def test_a_deletion_that_keeps_the_data_leaves_no_attempt_and_nothing_that_it_held(
    world: Any, misbehave: ByAttempt, flights: dict[str, Any], tmp_path: Path
) -> None:
    """And the same resources go on."""
    misbehave.by_attempt = {"1": Misbehaviour.HANG, "2": Misbehaviour.HANG}
    it, there = "coll/flights", world.get("catalog/demo")
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        world.apply(snapshot("one", tmp_path / "out", asOf=60))
        world.wait_for("collsnap/one", ".status.job.state", "Running")
        info = controller.describe(world.status(it)["collectionId"])
        job = world.status("collsnap/one")["job"]["jobId"]
        world.delete(it)
        record = controller.job(job)
        assert (record.state, record.attempt, record.failures) == (JobState.FAILED, 1, 0)
        for shard in (info.metadata_shard, *info.data_shards):
            purposes = [hold.purpose for hold in controller.client.inspect(shard).holds]
            assert hold_purpose(job, 1) not in purposes
        with pytest.raises(Fenced):
            controller.finish_job(job, 1, {})
        world.wait_stalled("collsnap/one", "CollectionNotFound")
        assert applications(world) == {}

        world.apply(flights)
        world.wait_for("collsnap/one", ".status.job.attempt", 2)
        assert world.status("collsnap/one")["job"]["jobId"] == job


@pytest.mark.long
def test_a_compaction_waits_for_a_snapshot_is_retried_and_leaves_the_contents_as_they_are(
    world: Any, misbehave: ByAttempt, flights: dict[str, Any], tmp_path: Path
) -> None:
    it = "storagecollection/flights"
    reason = READY.replace("Ready", "CompactionCompleted")
    misbehave.by_attempt = {"1": Misbehaviour.HANG}
    world.apply(snapshot("hangs", tmp_path / "out"))
    wait_for_reason(world, "hangs", "SnapshotRunning")
    set_deadline(world, flights, "90s")
    world.kubectl("annotate", "coll/flights", "holdfast.dev/compact=one")
    world.wait_for(it, reason, "CompactionQueued")
    waits = world.condition(it, "CompactionCompleted")["message"]
    assert waits == "waiting for snapshot hangs to end"
    assert list(applications(world)) == [1]
    before = contents(world)
    assert len(before) == 15

    world.delete("collsnap/hangs")
    set_deadline(world, flights, "5s")
    world.wait_for(it, reason, "CompactionRetrying")
    set_deadline(world, flights, "110s")
    world.wait_for(it, reason, "CompactionSucceeded")
    status = world.status(it)
    last = status["lastCompaction"]
    assert (last["requestId"], last["attempt"], last["left"]) == ("one", 2, 0)
    # The other shard has one batch.
    assert (last["shards"], last["compacted"], last["batches"], last["rows"]) == (2, 1, 2, 13)
    assert status["compactionJob"]["state"] == "Done"
    assert contents(world) == before


@pytest.mark.long
def test_a_schedule_makes_up_for_the_latest_missed_run_and_keeps_the_last_two(
    world: Any, misbehave: ByAttempt, flights: dict[str, Any]
) -> None:
    it = "coll/flights"
    out = Path(world.folder) / "volume" / world.namespace / "snapshots"
    # Daily, and today's time is over.
    today = (datetime.now(UTC) - timedelta(minutes=2)).replace(second=0, microsecond=0)
    flights["spec"]["snapshotSchedule"] = {
        "schedule": f"{today.minute} {today.hour} * * *",
        "destination": out.as_uri(),
        "keepLast": 2,
        "deletionPolicy": "Delete",
        "spark": {"startDeadline": "110s"},
    }
    world.apply(flights)
    reason = '.status.conditions[?(@.type=="ScheduledSnapshotCompleted")].reason'
    tomorrow = shown(today + timedelta(days=1))
    world.wait_for(it, ".status.snapshotSchedule.nextScheduleTime", tomorrow)
    assert world.status(it)["snapshotSchedule"]["missedRuns"] == 0
    assert world.objects.list("collsnap") == []

    # As it was shown when an operator last looked, three days ago.
    before = {"nextScheduleTime": shown(today - timedelta(days=3))}
    world.stop()
    show(world, {"snapshotSchedule": before})
    operator = world.start("--storage-shared")
    world.wait_for(it, reason, "SnapshotSucceeded")
    (first,) = world.objects.list("collsnap")
    name = f"flights-{today:%Y%m%d%H%M%S}"
    assert first["metadata"]["name"] == name
    assert (first["status"]["rows"], first["spec"]["deletionPolicy"]) == (15, "Delete")
    world.wait_for(it, ".status.lastSnapshot.name", name)
    assert world.status(it)["snapshotSchedule"] == {
        "lastScheduleTime": shown(today),
        "nextScheduleTime": tomorrow,
        "missedRuns": 3,
        "lastSnapshot": name,
    }
    assert [event["message"] for event in world.events("RunsMissed")] == ["3 scheduled runs were missed"]
    assert operator.metric("holdfast_missed_runs_total") == 3

    # A run whose object exists is never due again, even if the status is lost.
    world.stop()
    show(world, {"snapshotSchedule": {**before, "lastScheduleTime": None}})
    last = world.start("--storage-shared")
    world.wait_for(it, ".status.snapshotSchedule.nextScheduleTime", tomorrow)
    last.wait_for_looks(2)
    assert [each["metadata"]["name"] for each in world.objects.list("collsnap")] == [name]

    # Two earlier ones make three. The oldest goes with its files; one that nobody scheduled stays.
    world.apply(*(earlier(first, today - timedelta(days=days)) for days in (2, 1)), snapshot("by-hand", out))
    for days in (1, 2):
        world.settle(
            lambda days=days: (
                len(world.objects.list("collsnap")) == 3
                and all(
                    each["metadata"]["name"] != named(today, 2) for each in world.objects.list("collsnap")
                )
            ),
            lambda: str([each["metadata"]["name"] for each in world.objects.list("collsnap")]),
        )
    world.wait_ready("collsnap/by-hand", f"collsnap/{named(today, 1)}", f"collsnap/{name}")
    assert len(list(out.glob("**/_manifest.json"))) == 3


def named(today: datetime, days: int) -> str:
    return f"flights-{today - timedelta(days=days):%Y%m%d%H%M%S}"


def earlier(body: dict[str, Any], time: datetime) -> dict[str, Any]:
    """What the schedule made at an earlier time."""
    labels = body["metadata"]["labels"]
    return {
        **{name: body[name] for name in ("apiVersion", "kind", "spec")},
        "metadata": {
            "name": f"flights-{time:%Y%m%d%H%M%S}",
            "labels": labels,
            "annotations": {"holdfast.dev/scheduled-time": shown(time)},
        },
    }


@pytest.mark.long
def test_a_restore_refers_to_a_snapshot_and_waits_until_it_is_ready(
    world: Any, misbehave: ByAttempt, flights: dict[str, Any], make_collection: Make
) -> None:
    out = Path(world.folder) / "volume" / world.namespace / "snapshots"
    copy = make_collection("copy", restoreFrom={"snapshotRef": {"name": "one"}})
    world.apply(copy)
    message = world.wait_stalled("coll/copy", "SnapshotNotReady")
    assert "there is no CollectionSnapshot 'one'" in message
    misbehave.by_attempt = {"1": Misbehaviour.HANG}
    set_deadline(world, flights, "90s")
    world.apply(snapshot("one", out, asOf=60, deletionPolicy="Delete"))
    wait_for_reason(world, "one", "SnapshotRunning")
    world.settle(
        lambda: "'one' is not Ready" in world.condition("coll/copy", "Stalled")["message"],
        lambda: str(world.condition("coll/copy", "Stalled")),
    )
    set_deadline(world, flights, "5s")
    world.wait_for("collsnap/one", ".status.job.attempt", 2)
    set_deadline(world, flights, "110s")
    world.wait_ready("collsnap/one", "coll/copy")
    restored = world.status("coll/copy")["restore"]
    assert restored["snapshot"] == "CollectionSnapshot one"
    with world.controller(world.volume(world.status("catalog/demo")["organizationId"])) as controller:
        id_ = world.status("coll/copy")["collectionId"]

        def rows() -> list[int]:
            with controller.reader(id_, purpose="look") as reader:
                return sorted(reader.snapshot().to_table()["id"].to_pylist())

        assert rows() == list(range(10))
        # It is restored once, even if the snapshot is deleted and another one gets its name.
        world.delete("collsnap/one")
        misbehave.by_attempt = {}
        world.apply(snapshot("one", out))
        world.wait_ready("collsnap/one")
        world.patch("coll/copy", '{"spec":{"maxBytes":"1Gi"}}')
        world.wait_ready("coll/copy")
        assert rows() == list(range(10))
    for both in ({"snapshot": "file:///x", "snapshotRef": {"name": "one"}}, {}):
        with pytest.raises(KubectlError, match="give either snapshot or snapshotRef"):
            world.apply(make_collection("wrong", restoreFrom=both))


def shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def show(world: Any, status: Mapping[str, Any]) -> None:
    """Have a status say this."""
    change = json.dumps({"status": status})
    world.kubectl("patch", "coll/flights", "--subresource=status", "--type=merge", "-p", change)
