"""Sources of StorageCollections: real drivers feed them, the operator starts and stops these."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from apiserver.test_operator_hydration import is_driver, kill_driver
from holdfast.ingest import ingest_source
from holdfast.persist import PersistClient, Schema
from testbed.errors import KubectlError
from testbed.kafka import USER
from testbed.kafka import Kafka as Broker
from testbed.sparkfaces import APACHE, KUBEFLOW, PODS, Face
from unit.ingest.kafkatopic import KafkaTopic
from unit.ingest.snapshots import taken as snapshot_taken

pytestmark = [pytest.mark.kube, pytest.mark.spark]

Make = Callable[..., dict[str, Any]]
FLIGHTS = "storagecollection/flights"
STALLED = '.status.conditions[?(@.type=="SourceStalled")]'


def source(folder: Path, **fields: Any) -> dict[str, Any]:
    return {
        "files": {"path": str(folder), "pattern": "*.jsonl"},
        "format": {"json": {}},
        "run": {"interval": "200ms", "progressInterval": "1s"},
        **fields,
    }


def put(folder: Path, name: str, *lines: object) -> None:
    """Put a file with JSON objects, or with lines that are none, into the folder at once."""
    folder.mkdir(exist_ok=True)
    text = "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines)
    (folder / f".{name}").write_text(text)
    (folder / f".{name}").rename(folder / f"{name}.jsonl")


def contents(world: Any, organization: str) -> Counter[tuple[int, str | None]]:
    with world.controller(world.volume(organization)) as controller:
        id_ = world.status(FLIGHTS)["collectionId"]
        with controller.reader(id_, purpose="look") as reader:
            rows = reader.snapshot().to_table().to_pylist()
    return Counter({(row["id"], row["note"]): row["_diff"] for row in rows})


def applications(world: Any) -> Mapping[str, dict[str, Any]]:
    return {app["metadata"]["name"]: app for app in world.objects.list("sparkapplications")}


def states(world: Any) -> list[str]:
    found = (app.get("status", {}).get("applicationState", {}) for app in applications(world).values())
    return [each.get("state", "") for each in found]


@pytest.mark.long
def test_files_flow_in_through_bad_records_a_kill_and_a_change(
    world: Any, drivers: Path, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    world.start("--storage-shared")
    inbox, there = tmp_path / "in", make_catalog()
    put(inbox, "1", {"id": 1, "note": "a"}, {"id": 2, "note": None})
    wanted = make_collection(source=source(inbox), deletionPolicy="Delete")
    world.apply(there, wanted)
    organization = there["spec"]["organizationId"]
    world.wait_for(FLIGHTS, ".status.source.messages", 2)
    assert contents(world, organization) == {(1, "a"): 1, (2, None): 1}
    world.wait_for(FLIGHTS, f"{STALLED}.status", "False")
    assert world.condition(FLIGHTS, "ErrorsCollected")["status"] == "False"
    assert world.condition(FLIGHTS, "Ready")["status"] == "True"

    # A bad record stops nothing, and is told.
    put(inbox, "2", {"id": 3, "note": "c"}, "no json")
    world.wait_for(FLIGHTS, ".status.source.errors", 1)
    assert contents(world, organization)[3, "c"] == 1
    assert "1 bad record stands" in world.condition(FLIGHTS, "ErrorsCollected")["message"]
    shown = world.status(FLIGHTS)["source"]
    assert (shown["job"]["attempt"], shown["job"]["state"]) == (1, "Running")
    assert [each["partition"].rsplit("/", 1)[-1] for each in shown["partitions"]] == ["1.jsonl", "2.jsonl"]

    # A driver that is killed is followed by another attempt, which repeats nothing.
    kill_driver(shown["job"]["application"])
    world.wait_for(FLIGHTS, ".status.source.job.attempt", 2)
    put(inbox, "3", {"id": 4, "note": "d"})
    world.wait_for(FLIGHTS, ".status.source.messages", 5)
    assert contents(world, organization).total() == 4

    # A suspended source has no driver. Afterwards it goes on from where it was.
    wanted["spec"]["source"]["run"]["suspend"] = True
    world.apply(wanted)
    world.wait_for(FLIGHTS, f"{STALLED}.reason", "Suspended")
    world.settle(lambda: not any(is_live(name) for name in applications(world)), lambda: str(states(world)))
    put(inbox, "4", {"id": 5, "note": "e"})
    wanted["spec"]["source"]["run"] = {"interval": "100ms", "progressInterval": "1s"}
    world.apply(wanted)
    world.wait_for(FLIGHTS, ".status.source.messages", 6)
    assert contents(world, organization).total() == 5
    assert contents(world, organization)[5, "e"] == 1

    # Another number of shards: the new rendition takes over, and is fed on.
    wanted["spec"]["rendition"] = {"shards": 3}
    world.apply(wanted)
    world.wait_for(FLIGHTS, ".status.shards", 3)
    put(inbox, "5", {"id": 6, "note": "f"})
    world.wait_for(FLIGHTS, ".status.source.messages", 7)
    assert contents(world, organization).total() == 6
    assert contents(world, organization)[6, "f"] == 1

    # The deletion ends the driver.
    world.delete(FLIGHTS)
    world.settle(lambda: not applications(world), lambda: str(states(world)))
    (event,) = world.events("DataDeleted")
    assert "flights" in event["message"]


def is_live(application: str) -> bool:
    """Whether a driver of the application runs."""
    processes = (each for each in Path("/proc").iterdir() if each.name.isdigit())
    return any(is_driver(each, application) for each in processes)


@pytest.mark.kafka
@pytest.mark.long
def test_a_deleted_collection_leaves_no_consumer_group(
    world: Any, drivers: Path, make_catalog: Make, make_collection: Make, kafka: Broker
) -> None:
    world.start("--storage-shared")
    topic = KafkaTopic(kafka, 2)
    topic.send({"id": 1, "note": "a"}, {"id": 2, "note": "b"})
    topic.send({"id": 1, "note": "c"}, partition=1)
    block = {name: each for name, each in topic.block().items() if name != "group"}
    run = {"interval": "200ms", "progressInterval": "1s"}
    fed = {"kafka": block, "format": {"json": {}}, "run": run}
    there = make_catalog()
    world.apply(there, make_collection(source=fed, deletionPolicy="Delete"))
    world.wait_for(FLIGHTS, ".status.source.messages", 3)
    assert contents(world, there["spec"]["organizationId"]) == {(1, "a"): 1, (2, "b"): 1, (1, "c"): 1}
    partitions = world.status(FLIGHTS)["source"]["partitions"]
    assert [(each["partition"], each["position"]) for each in partitions] == [("0", 2), ("1", 1)]
    group = f"holdfast-{world.status(FLIGHTS)['collectionId']}"
    world.settle(lambda: group in kafka.groups(), lambda: str(kafka.groups()))
    world.delete(FLIGHTS)
    assert group not in kafka.groups()
    assert not world.objects.list("events", fieldSelector="reason=SourceLeft")


@pytest.mark.long
def test_another_envelope_is_read_beside_and_takes_over(
    world: Any, drivers: Path, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    world.start("--storage-shared")
    inbox, there = tmp_path / "in", make_catalog()
    put(inbox, "1", {"id": 1, "note": "a"}, {"id": 1, "note": "b"})
    wanted = make_collection(source=source(inbox), handover={"policy": "Manual"})
    world.apply(there, wanted)
    organization = there["spec"]["organizationId"]
    world.wait_for(FLIGHTS, ".status.source.messages", 2)
    assert contents(world, organization) == {(1, "a"): 1, (1, "b"): 1}
    wanted["spec"]["source"]["envelope"] = "Upsert"
    world.apply(wanted)
    world.wait_for(FLIGHTS, ".status.nextRendition", "spec-2")
    # Both are fed, until the new one takes over.
    phase = '.status.renditions[?(@.id=="spec-2")].phase'
    world.wait_for(FLIGHTS, phase, "CaughtUp")
    put(inbox, "2", {"id": 1, "note": "c"})
    world.wait_for(FLIGHTS, ".status.source.messages", 3)
    assert contents(world, organization).total() == 3
    jobs = [each.get("job") for each in world.status(FLIGHTS)["renditions"]]
    assert [each["state"] for each in jobs if each] == ["Running"]
    wanted["spec"]["handover"] = {"policy": "WhenCaughtUp"}
    world.apply(wanted)
    world.wait_for(FLIGHTS, ".status.activeRendition", "spec-2")
    world.wait_ready(FLIGHTS)
    put(inbox, "3", {"id": 2, "note": "d"})
    world.wait_for(FLIGHTS, ".status.source.messages", 4)
    assert contents(world, organization) == {(1, "c"): 1, (2, "d"): 1}
    world.wait_for(FLIGHTS, f"{STALLED}.status", "False")


@pytest.mark.long
def test_a_restored_collection_is_fed_on_from_its_snapshot(
    world: Any, drivers: Path, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    inbox, there, volume = tmp_path / "in", make_catalog(), tmp_path / "volume" / world.namespace
    put(inbox, "1", {"id": 1, "note": "a"}, "no json")
    schema = Schema.of(key={"id": "int64"}, value={"note": "string?"})
    ingest_source(f"file://{tmp_path}/other", "orders", source(inbox), schema=schema, once=True)
    with PersistClient.open(f"file://{tmp_path}/other") as client:
        snapshot_taken(client, volume / "monday")
    put(inbox, "2", {"id": 2, "note": "b"})
    world.start("--storage-shared")
    # A new collection begins with the snapshot. Until it is there, nothing is read.
    missing, first = (volume / "tuesday").as_uri(), (volume / "monday").as_uri()
    wanted = make_collection(source=source(inbox), restoreFrom={"snapshot": missing})
    world.apply(there, wanted)
    world.wait_stalled(FLIGHTS, "RestoreFailed")
    condition = world.condition(FLIGHTS, "SourceStalled")
    assert (condition["status"], condition["reason"]) == ("Unknown", "Restoring")
    assert not applications(world)
    world.apply(wanted | {"spec": wanted["spec"] | {"restoreFrom": {"snapshot": first}}})
    world.wait_for(FLIGHTS, ".status.restore.snapshot", first)
    world.wait_for(FLIGHTS, ".status.source.messages", 3)
    organization = there["spec"]["organizationId"]
    assert contents(world, organization) == {(1, "a"): 1, (2, "b"): 1}
    assert world.status(FLIGHTS)["source"]["errors"] == 1
    # A running job goes on with what is restored. What was read after the snapshot is read again.
    shutil.copytree(volume / "monday", volume / "tuesday")
    attempt = world.status(FLIGHTS)["source"]["job"]["attempt"]
    world.apply(wanted)
    world.wait_for(FLIGHTS, ".status.restore.snapshot", missing)
    put(inbox, "3", {"id": 3, "note": "c"})
    world.wait_for(FLIGHTS, ".status.source.messages", 4)
    assert contents(world, organization) == {(1, "a"): 1, (2, "b"): 1, (3, "c"): 1}
    assert world.status(FLIGHTS)["source"]["job"]["attempt"] == attempt


@pytest.mark.kafka
@pytest.mark.parametrize("face", [KUBEFLOW, APACHE, PODS], ids=("kubeflow", "apache", "job"))
@pytest.mark.long
def test_credentials_are_files_from_a_secret_of_the_same_namespace(
    world: Any, drivers: Path, make_catalog: Make, make_collection: Make, kafka: Broker, face: Face
) -> None:
    adapter = {KUBEFLOW: "kubeflow", APACHE: "apache", PODS: "job"}[face]
    operator = world.start("--storage-shared", f"--spark-adapter={adapter}")
    topic, there = KafkaTopic(kafka), make_catalog()
    topic.send({"id": 1, "note": "a"})
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    named = {"bootstrapServers": kafka.sasl_servers, "security": sasl, "secretRef": {"name": "kafka"}}
    run = {"interval": "200ms", "progressInterval": "1s"}
    fed = {"kafka": topic.block(**named), "format": {"json": {}}, "run": run}
    world.apply(there, make_collection(source=fed, spark={"serviceAccount": "default"}))
    world.wait_for(FLIGHTS, f"{STALLED}.reason", "SecretNotFound")
    message = world.condition(FLIGHTS, "SourceStalled")["message"]
    assert message.endswith(
        "Secret 'kafka' is not in this namespace; create it with username and password, or correct"
        " spec.source.kafka.secretRef"
    )
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kafka"}}
    world.apply(secret | {"stringData": {"username": USER}})
    world.settle(
        lambda: "Secret 'kafka' has no key password" in world.condition(FLIGHTS, "SourceStalled")["message"],
        lambda: str(world.status(FLIGHTS)),
    )
    kind = {KUBEFLOW: "sparkapplications", APACHE: "sparkapplications.spark.apache.org", PODS: "jobs"}[face]
    assert not world.objects.list(kind)
    if face is KUBEFLOW:
        # A wrong password: the next attempt reads it as it is by then, whatever runs Spark.
        world.apply(secret | {"stringData": {"username": USER, "password": "not-the-password"}})
        world.settle(
            lambda: "does not accept this client" in world.condition(FLIGHTS, "SourceStalled")["message"],
            lambda: str(world.status(FLIGHTS)),
        )
    world.apply(secret | {"stringData": {"username": USER, "password": kafka.password}})
    world.wait_for(FLIGHTS, ".status.source.messages", 1)
    assert contents(world, there["spec"]["organizationId"]) == {(1, "a"): 1}
    for shown in ("storagecollections", "events", "pods", kind):
        assert kafka.password not in json.dumps(world.objects.list(shown))
    assert kafka.password not in operator.log.read_text()
    assert not any(kafka.password in each.read_text() for each in drivers.rglob("driver.log"))


def test_a_secret_of_another_namespace_can_not_be_named(
    world: Any, make_collection: Make, tmp_path: Path
) -> None:
    named = {"path": "s3://bucket/in", "secretRef": {"name": "keys", "namespace": "other"}}
    with pytest.raises(KubectlError, match='unknown field "namespace"'):
        world.apply(make_collection(source=source(tmp_path, files=named)))


@pytest.mark.parametrize(
    ("face", "adapter", "kind"),
    [(APACHE, "apache", "sparkapplications.spark.apache.org"), (PODS, "job", "jobs")],
    ids=("apache", "job"),
)
@pytest.mark.long
def test_a_schedule_reads_up_to_the_end_whatever_runs_spark(
    world: Any,
    drivers: Path,
    make_catalog: Make,
    make_collection: Make,
    tmp_path: Path,
    adapter: str,
    kind: str,
) -> None:
    world.start("--storage-shared", f"--spark-adapter={adapter}")
    inbox, there = tmp_path / "in", make_catalog()
    put(inbox, "1", {"id": 1, "note": "a"})
    runs = {"mode": "Scheduled", "cron": {"schedule": "* * * * *"}}
    wanted = make_collection(source=source(inbox, run=runs), spark={"serviceAccount": "default"})
    world.apply(there, wanted)
    done = '.status.conditions[?(@.type=="ScheduledIngestionCompleted")].reason'
    world.wait_for(FLIGHTS, done, "IngestionScheduled")
    # The first minute may be almost over, and a driver takes a while to start.
    world.settle(
        lambda: world.status(FLIGHTS).get("source", {}).get("messages") == 1,
        lambda: str(world.status(FLIGHTS)),
    )
    world.wait_for(FLIGHTS, done, "IngestionSucceeded")
    assert any("1 messages" in event["message"] for event in world.events("IngestionSucceeded"))
    assert world.status(FLIGHTS)["sourceSchedule"]["job"]["state"] == "Done"
    assert contents(world, there["spec"]["organizationId"]) == {(1, "a"): 1}
    owners = {each["metadata"]["ownerReferences"][0]["name"] for each in world.objects.list(kind)}
    assert owners == {"flights"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kafka": {"bootstrapServers": "k:9092", "topic": "t"}}, "give one of kafka, files"),
        ({"format": None}, "give a format"),
        ({"format": {"json": {}, "raw": {}}}, "give one of json, csv"),
        ({"run": {"mode": "Scheduled"}}, "cron belongs to mode Scheduled"),
        (
            {"kafka": {"bootstrapServers": "k:9092", "topic": "t", "transactions": "x"}},
            "kafka.transactions needs envelope Debezium",
        ),
    ],
)
def test_a_source_that_makes_no_sense_is_refused(
    module_world: Any, make_collection: Make, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    block = {name: each for name, each in (source(tmp_path) | change).items() if each is not None}
    with pytest.raises(KubectlError, match=message):
        module_world.objects.make(make_collection(source=block))


def test_what_only_the_parser_knows_stalls_and_makes_nothing(
    world: Any, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    world.start("--storage-shared")
    block = source(tmp_path, run={"interval": "200ms"}) | {
        "files": None,
        "kafka": {"bootstrapServers": "k:9092", "topic": "t", "start": "Tomorrow"},
    }
    wanted = make_collection(source={name: each for name, each in block.items() if each is not None})
    world.apply(make_catalog(), wanted)
    message = world.wait_stalled(FLIGHTS, "InvalidSpec")
    assert "spec.source.kafka.start is 'Tomorrow', expected one of Earliest, Latest" in message
    assert "collectionId" not in world.status(FLIGHTS)
    # The collection doesn't exist yet, so everything can be corrected.
    wanted["spec"]["source"] |= {"include": {"key": "nope"}, "format": {"raw": {}}, "envelope": "Upsert"}
    wanted["spec"]["source"]["kafka"]["start"] = "Latest"
    world.apply(wanted)
    world.settle(
        lambda: "needs a column 'nope'" in world.condition(FLIGHTS, "Stalled")["message"],
        lambda: str(world.status(FLIGHTS)),
    )
    assert "collectionId" not in world.status(FLIGHTS)
    # But it doesn't become another source, whatever the status says.
    for change, reason in (
        ({"kafka": {"topic": "other"}}, "kafka.topic: .*it identifies the source and is immutable"),
        ({"kafka": None, "files": {"path": "/in"}}, "the kind of the source is immutable"),
        (None, "source can't be added or removed"),
    ):
        with pytest.raises(KubectlError, match=reason):
            world.patch(FLIGHTS, json.dumps({"spec": {"source": change}}))
    wanted["spec"]["source"]["kafka"]["security"] = {"sasl.password": "hunter2"}
    with pytest.raises(KubectlError, match="put secrets into a Secret"):
        world.apply(wanted)
