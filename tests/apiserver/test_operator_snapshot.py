"""Snapshots by SparkApplications and Jobs: the operator trusts the record, and not the application."""

import json
from collections.abc import Callable, Iterator, Mapping
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
from testbed.kube import ControlPlane
from testbed.sparkfaces import APACHE, PODS, Face
from testbed.sparkoperator import Misbehaviour, SparkOperatorStandIn, install_crd

pytestmark = [pytest.mark.kube, pytest.mark.spark]

Make = Callable[..., dict[str, Any]]
REASON = '.status.conditions[?(@.type=="SnapshotCompleted")].reason'


class Plan:
    """What the stand-in does to each attempt."""

    def __init__(self) -> None:
        self.by_attempt: dict[str, Misbehaviour] = {}

    def __call__(self, application: Mapping[str, Any]) -> Misbehaviour | None:
        return self.by_attempt.get(application["metadata"]["labels"]["holdfast.dev/attempt"])


@pytest.fixture
def misbehave(control_plane: ControlPlane, namespace: str, tmp_path: Path, face: Face) -> Iterator[Plan]:
    """A running stand-in of what runs Spark, which behaves unless told."""
    if face is not PODS:
        install_crd(control_plane, face)
    plan = Plan()
    standin = SparkOperatorStandIn(
        control_plane.kubeconfig, namespace=namespace, log_dir=tmp_path / "spark", misbehave=plan, face=face
    )
    standin.start()
    try:
        yield plan
    finally:
        standin.stop()


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


def ask(world: Any, wanted: dict[str, Any], destination: Path, request: str, **fields: Any) -> None:
    wanted["spec"]["snapshot"] = {"requestId": request, "destination": destination.as_uri(), **fields}
    world.apply(wanted)


def wait_for_reason(world: Any, reason: str) -> None:
    world.wait_for("storagecollection/flights", REASON, reason)


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
    world: Any, misbehave: Plan, make_catalog: Make, make_collection: Make, tmp_path: Path
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
    wanted["spec"]["snapshot"] = {"requestId": "first", "destination": (tmp_path / "out").as_uri()}
    world.apply(wanted)
    world.wait_for("storagecollection/2024.flights", REASON, "SnapshotRunning")
    world.settle(lambda: 1 in applications(world), lambda: str(world.events("SnapshotRunning")))
    assert applications(world)[1]["metadata"]["name"].startswith("c2024-flights-snapshot-")


@pytest.mark.long
def test_a_snapshot_survives_hangs_lies_a_vanished_driver_and_two_at_once(
    world: Any, misbehave: Plan, flights: dict[str, Any], tmp_path: Path
) -> None:
    misbehave.by_attempt = {"1": Misbehaviour.HANG, "2": Misbehaviour.LIE, "3": Misbehaviour.TWICE}
    ask(world, flights, tmp_path / "out", "first", asOf=60, spark={"startDeadline": "5s"})
    wait_for_reason(world, "SnapshotRetrying")
    # A real driver may take longer than that on a busy machine.
    ask(world, flights, tmp_path / "out", "first", asOf=60, spark={"startDeadline": "110s"})
    wait_for_reason(world, "SnapshotSucceeded")
    status = world.status("storagecollection/flights")
    last = status["lastSnapshot"]
    assert (last["requestId"], last["asOf"], last["rows"], last["attempt"]) == ("first", 60, 10, 3)
    assert status["snapshotJob"]["state"] == "Done"
    files = sorted(Path(last["destination"]).glob("**/*.parquet"))
    ids = [each for file in files for each in pq.read_table(file, columns=["id"])["id"].to_pylist()]
    assert sorted(ids) == list(range(10))
    # The one that hung is gone; those that ended are left to look at.
    assert sorted(applications(world)) == [2, 3]
    (third,) = (app for number, app in applications(world).items() if number == 3)
    assert third["metadata"]["ownerReferences"][0]["name"] == "flights"
    reasons = [event["message"] for event in world.events("SnapshotRetrying")]
    assert any("did not start within 5 s" in message for message in reasons)
    assert any("without committing" in message for message in reasons)
    assert world.condition("storagecollection/flights", "Ready")["status"] == "True"

    # The same request never runs twice, whatever becomes of the status; a lie about failure changes nothing.
    misbehave.by_attempt = {"1": Misbehaviour.VANISH, "2": Misbehaviour.LIE_FAILED}
    (tmp_path / "lake").mkdir()
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/lake/catalog.db",
        "warehouse": (tmp_path / "lake").as_uri(),
    }
    table = {"catalog": "shop", "table": "sales.flights", "properties": properties}
    flights["spec"]["snapshot"] = {"requestId": "second", "iceberg": table}
    world.apply(flights)
    world.wait_for("storagecollection/flights", ".status.lastSnapshot.requestId", "second")
    last = world.status("storagecollection/flights")["lastSnapshot"]
    assert (last["asOf"], last["rows"], last["attempt"]) == (99, 15, 2)
    there = load_catalog("shop", **properties).load_table("sales.flights")
    assert sorted(there.scan().to_arrow()["id"].to_pylist()) == list(range(15))
    assert (last["table"], last["snapshotId"]) == (
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
    world: Any, misbehave: Plan, flights: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    flights["spec"]["spark"] = {"serviceAccount": "default"}
    spark = {"startDeadline": "5s", "maxAttempts": 2}
    misbehave.by_attempt = {"1": Misbehaviour.HANG, "2": Misbehaviour.LIE}
    ask(world, flights, tmp_path / "out", "first", spark=spark)
    wait_for_reason(world, "SnapshotFailed")
    assert sorted(applications(world, kind)) == [2]
    reasons = [event["message"] for event in world.events("SnapshotRetrying")]
    assert any("did not start within 5 s" in message for message in reasons)
    message = world.condition("storagecollection/flights", "SnapshotCompleted")["message"]
    assert "failed 2 times" in message
    assert "without committing" in message
    assert not list((tmp_path / "out").glob("**/*.parquet"))

    misbehave.by_attempt = {"1": Misbehaviour.VANISH, "2": Misbehaviour.TWICE}
    ask(world, flights, tmp_path / "out", "second", spark={**spark, "startDeadline": "110s"})
    wait_for_reason(world, "SnapshotSucceeded")
    last = world.status("storagecollection/flights")["lastSnapshot"]
    assert (last["requestId"], last["asOf"], last["rows"], last["attempt"]) == ("second", 99, 15, 2)
    files = sorted(Path(last["destination"]).glob("**/*.parquet"))
    ids = [each for file in files for each in pq.read_table(file, columns=["id"])["id"].to_pylist()]
    assert sorted(ids) == list(range(15))
    assert world.condition("storagecollection/flights", "Ready")["status"] == "True"
    # Who made them is who they belong to: with the collection they go.
    owners = {app["metadata"]["ownerReferences"][0]["name"] for app in applications(world, kind).values()}
    assert owners == {"flights"}


def test_what_can_not_be_read_is_told_and_starts_nothing(
    world: Any, misbehave: Plan, flights: dict[str, Any], tmp_path: Path
) -> None:
    ask(world, flights, tmp_path / "out", "early", asOf=5000)
    wait_for_reason(world, "SnapshotNotReadable")
    message = world.condition("storagecollection/flights", "SnapshotCompleted")["message"]
    assert "the latest complete time is 99" in message
    assert applications(world) == {}
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_suspended_collection_has_no_driver_and_goes_on_with_its_snapshot_afterwards(
    world: Any, misbehave: Plan, flights: dict[str, Any], tmp_path: Path
) -> None:
    misbehave.by_attempt = {"1": Misbehaviour.HANG, "2": Misbehaviour.HANG}
    ask(world, flights, tmp_path / "out", "one", spark={"maxAttempts": 1})
    wait_for_reason(world, "SnapshotRunning")
    assert list(applications(world)) == [1]
    flights["spec"]["suspend"] = True
    world.apply(flights)
    world.wait_for("storagecollection/flights", ".status.snapshotJob.state", "Failed")
    assert world.condition("storagecollection/flights", "Ready")["reason"] == "Suspended"
    assert applications(world) == {}
    # That was no failure of the job, which may fail once only.
    flights["spec"]["suspend"] = False
    world.apply(flights)
    world.wait_for("storagecollection/flights", ".status.snapshotJob.attempt", 2)
    assert list(applications(world)) == [2]


@pytest.mark.long
def test_a_deletion_that_keeps_the_data_leaves_no_attempt_and_nothing_that_it_held(
    world: Any, misbehave: Plan, flights: dict[str, Any], tmp_path: Path
) -> None:
    """Also with its Catalog, by an operator that has not opened that yet; and the same resource goes on."""
    misbehave.by_attempt = {"1": Misbehaviour.HANG, "2": Misbehaviour.HANG}
    it, there = "storagecollection/flights", world.get("catalog/demo")
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:

        def held(attempt: int) -> str:
            """The running attempt holds the collection, as its driver has it."""
            world.wait_for(it, ".status.snapshotJob.attempt", attempt)
            world.wait_for(it, ".status.snapshotJob.state", "Running")
            job = world.status(it)["snapshotJob"]["jobId"]
            for shard in shards:
                controller.client.critical_since(shard, purpose=hold_purpose(job, attempt)).downgrade(60)
            return str(job)

        def ended(job: str, attempt: int) -> None:
            record = controller.job(job)
            assert (record.state, record.attempt, record.failures) == (JobState.FAILED, attempt, 0)
            assert record.error == "the StorageCollection is being deleted"
            for shard in shards:
                purposes = [hold.purpose for hold in controller.client.inspect(shard).holds]
                assert hold_purpose(job, attempt) not in purposes
            with pytest.raises(Fenced):
                controller.finish_job(job, attempt, {})

        ask(world, flights, tmp_path / "out", "one", asOf=60)
        info = controller.describe(world.status(it)["collectionId"])
        shards = (info.metadata_shard, *info.data_shards)
        job = held(1)
        world.delete(it)
        ended(job, 1)
        assert applications(world) == {}

        world.apply(flights)
        assert held(2) == job
        world.stop()
        world.delete("catalog/demo", it, wait=False)
        world.start("--storage-shared")
        world.wait_gone(it)
        world.wait_gone("catalog/demo")
        ended(job, 2)


@pytest.mark.long
def test_a_compaction_waits_for_a_snapshot_is_retried_and_leaves_the_contents_as_they_are(
    world: Any, misbehave: Plan, flights: dict[str, Any], tmp_path: Path
) -> None:
    it = "storagecollection/flights"
    reason = REASON.replace("Snapshot", "Compaction")
    misbehave.by_attempt = {"1": Misbehaviour.HANG}
    ask(world, flights, tmp_path / "out", "hangs")
    wait_for_reason(world, "SnapshotRunning")
    flights["spec"]["compaction"] = {"requestId": "one", "spark": {"startDeadline": "5s"}}
    world.apply(flights)
    world.wait_for(it, reason, "CompactionQueued")
    waits = world.condition(it, "CompactionCompleted")["message"]
    assert waits == "waiting for snapshot hangs to end"
    assert list(applications(world)) == [1]
    before = contents(world)
    assert len(before) == 15

    del flights["spec"]["snapshot"]
    world.apply(flights)
    world.wait_for(it, reason, "CompactionRetrying")
    flights["spec"]["compaction"]["spark"]["startDeadline"] = "110s"
    world.apply(flights)
    world.wait_for(it, reason, "CompactionSucceeded")
    status = world.status(it)
    last = status["lastCompaction"]
    assert (last["requestId"], last["attempt"], last["left"]) == ("one", 2, 0)
    # The other shard has one batch.
    assert (last["shards"], last["compacted"], last["batches"], last["rows"]) == (2, 1, 2, 13)
    assert status["compactionJob"]["state"] == "Done"
    assert contents(world) == before


@pytest.mark.long
def test_a_schedule_makes_up_for_the_latest_missed_run_and_runs_no_time_twice(
    world: Any, misbehave: Plan, flights: dict[str, Any], tmp_path: Path
) -> None:
    it = "storagecollection/flights"
    location = world.volume(world.get("catalog/demo")["spec"]["organizationId"])
    years = [datetime(year, 1, 1, tzinfo=UTC) for year in range(2000, 2021)]
    with world.controller(location) as controller:
        job = world.status(it)["collectionId"], "snapshot"
        for year in years:
            controller.record_job(*job, f"schedule:{shown(year)}", spec={}, result={}, effects=tuple)
    # Daily, and today's time is over.
    today = (datetime.now(UTC) - timedelta(minutes=2)).replace(second=0, microsecond=0)
    flights["spec"]["snapshotSchedule"] = {
        "schedule": f"{today.minute} {today.hour} * * *",
        "destination": (tmp_path / "out").as_uri(),
        "spark": {"startDeadline": "110s"},
    }
    world.apply(flights)
    reason = '.status.conditions[?(@.type=="ScheduledSnapshotCompleted")].reason'
    tomorrow = shown(today + timedelta(days=1))
    world.wait_for(it, ".status.snapshotSchedule.nextScheduleTime", tomorrow)
    assert world.status(it)["snapshotSchedule"]["missedRuns"] == 0
    assert applications(world) == {}

    # As it was shown when an operator last looked, three days ago.
    world.stop()
    before = {"nextScheduleTime": shown(today - timedelta(days=3))}
    show(world, {"snapshotSchedule": before})
    operator = world.start("--storage-shared")
    world.wait_for(it, ".status.snapshotSchedule.job.state", "Running")
    # What is asked for by hand meanwhile waits for its turn, and ends nothing.
    ask(world, flights, tmp_path / "out", "by-hand", asOf=5000)
    wait_for_reason(world, "SnapshotQueued")
    world.wait_for(it, reason, "SnapshotSucceeded")
    wait_for_reason(world, "SnapshotNotReadable")
    status = world.status(it)
    slot = f"schedule:{shown(today)}"
    run = status["snapshotSchedule"].pop("job")
    assert (run["requestId"], run["state"], run["attempt"], run["asOf"]) == (slot, "Done", 1, 99)
    assert status["snapshotSchedule"] == {
        "lastScheduleTime": shown(today),
        "nextScheduleTime": tomorrow,
        "missedRuns": 3,
    }
    assert [event["message"] for event in world.events("RunsMissed")] == ["3 scheduled runs were missed"]
    assert operator.metric("holdfast_missed_runs_total") == 3
    assert (status["lastSnapshot"]["requestId"], status["lastSnapshot"]["rows"]) == (slot, 15)
    assert len(list((tmp_path / "out").glob("**/_manifest.json"))) == 1

    # Whatever becomes of the status, the time of a run that is on record never comes again.
    world.stop()
    show(world, {"snapshotSchedule": {**before, "lastScheduleTime": None, "job": None}})
    last = world.start("--storage-shared")
    world.wait_for(it, ".status.snapshotSchedule.nextScheduleTime", tomorrow)
    versions = world.versions()
    last.wait_for_looks(4)
    assert world.versions() == versions
    assert world.status(it)["snapshotSchedule"]["job"]["attempt"] == 1
    # Of those before it only the last ones are left.
    with world.controller(location) as controller:
        slots = sorted(job.slot for job in controller.jobs() if job.kind == "snapshot")
    assert slots == [*(f"schedule:{shown(year)}" for year in years[-10:]), slot]


def shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def show(world: Any, status: Mapping[str, Any]) -> None:
    """Have a status say this."""
    change = json.dumps({"status": status})
    world.kubectl("patch", "coll/flights", "--subresource=status", "--type=merge", "-p", change)
