"""The operator reads from memory what its watches show. A watch that is late or blind misleads it in nothing.

The operator connects through a proxy, which counts reads and delays or refuses watches.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from testbed.children import patched
from testbed.faultyapi import FaultyApi
from testbed.kube import ControlPlane
from testbed.sparkoperator import Misbehaviour, SparkOperatorStandIn, install_crd

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
IMPATIENT = """
from holdfast_operator.engine import watches

watches._RESPONSE_SECONDS = watches._STEADY_SECONDS = 1.0
"""
"""Finds sooner that a watch doesn't work, and that it works again."""
REASON = '.status.conditions[?(@.type=="Ready")].reason'


@pytest.fixture
def hanging(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[None]:
    """Drivers that never start."""
    install_crd(control_plane)
    with SparkOperatorStandIn(
        control_plane.kubeconfig,
        namespace=namespace,
        log_dir=tmp_path / "spark",
        misbehave=lambda _: Misbehaviour.HANG,
    ):
        yield


def gets(api: FaultyApi) -> int:
    return api.reads["get storagecollections"] + api.reads["get catalogs"]


def test_objects_are_read_once_until_they_are_ready_and_never_at_rest(
    world: Any, api: FaultyApi, make_catalog: Make, make_collection: Make
) -> None:
    names = [f"flights-{number}" for number in range(8)]
    operator = world.start(through=api.cluster(world.folder))
    world.apply(make_catalog())
    world.wait_ready("catalog/demo")
    world.events("Available")
    before = api.writes.copy()
    world.apply(*(make_collection(name) for name in names))
    world.wait_ready(*(f"coll/{name}" for name in names))
    assert api.reads["get storagecollections"] <= 2 * len(names), dict(api.reads)
    # The last Event comes after the status.
    world.events("Available", len(names) + 1)
    assert {what: number for what, number in (api.writes - before).items() if "catalogs" not in what} == {
        "PATCH storagecollections/status": len(names),
        "POST events": len(names),
    }

    def rests() -> bool:
        before = gets(api)
        operator.wait_for_looks(4)
        return gets(api) == before

    world.settle(rests, lambda: str(dict(api.reads)))


def test_a_schedule_lists_its_snapshots_only_before_it_changes_them(
    world: Any, api: FaultyApi, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    environment = patched(tmp_path / "impatient", IMPATIENT)
    operator = world.start("--spark-adapter=none", through=api.cluster(world.folder), environment=environment)
    schedule = {"schedule": "@yearly", "destination": (tmp_path / "out").as_uri(), "keepLast": 1}
    world.apply(make_catalog(), make_collection(snapshotSchedule=schedule))
    world.wait_ready("coll/flights")

    def due(time: str) -> None:
        shown = {"nextScheduleTime": time, "lastScheduleTime": None}
        world.kubectl(
            *("patch", "coll/flights", "--subresource=status", "--type=merge"),
            *("-p", json.dumps({"status": {"snapshotSchedule": shown}})),
        )

    def is_told(reason: str) -> None:
        condition = '.status.conditions[?(@.type=="ScheduledSnapshotCompleted")]'
        world.wait_for("coll/flights", f"{condition}.reason", reason)

    due("2020-01-01T00:00:00Z")
    world.settle(lambda: world.objects.list("collsnap") != [], lambda: "no run has started")
    is_told("SnapshotFailed")
    assert api.writes["POST collectionsnapshots"] == 1

    def look(number: int) -> None:
        """Have the operator reconcile the collection."""
        before = operator.metric("holdfast_reconciles_total")
        world.patch("coll/flights", f'{{"metadata":{{"annotations":{{"example.com/look":"{number}"}}}}}}')
        world.settle(lambda: operator.metric("holdfast_reconciles_total") > before, lambda: "it has not")

    look(0)
    lists = api.reads["list collectionsnapshots"]
    for number in range(1, 5):
        look(number)
    assert api.reads["list collectionsnapshots"] == lists
    # Without a watch they are listed each time, and what nobody has reported is found.
    api.refuse("collectionsnapshots?watch=true", "drop")
    api.cut()
    (one,) = world.objects.list("collsnap")
    world.delete(f"collsnap/{one['metadata']['name']}")
    look(5)
    is_told("SnapshotScheduled")
    api.refuse("collectionsnapshots?watch=true")


@pytest.mark.long
@pytest.mark.spark
def test_a_late_watch_launches_no_second_job_and_repeats_no_step(
    world: Any, api: FaultyApi, hanging: None, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    api.late(1.5)
    operator = world.start("--storage-shared", through=api.cluster(world.folder))
    there, wanted = make_catalog(), make_collection()
    world.apply(there, wanted)
    world.wait_ready("catalog/demo", "coll/flights")
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        writer = controller.writer(world.status("coll/flights")["collectionId"], purpose="test")
        writer.append(pa.table({"id": [1], "note": ["x"]}), writer.upper(), 11)
    world.apply(
        {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "CollectionSnapshot",
            "metadata": {"name": "one"},
            "spec": {"collectionRef": {"name": "flights"}, "destination": (tmp_path / "out").as_uri()},
        }
    )
    world.wait_for("collsnap/one", REASON, "SnapshotRunning")
    for number in range(6):
        for name in ("coll/flights", "collsnap/one"):
            world.patch(name, f'{{"metadata":{{"annotations":{{"example.com/n":"{number}"}}}}}}')
    operator.wait_for_looks(6)
    assert api.writes["POST sparkapplications"] == 1
    assert api.writes["DELETE sparkapplications"] == 0
    assert world.status("collsnap/one")["job"]["attempt"] == 1
    # Running jobs are followed by a watch.
    assert api.reads["watch sparkapplications"] >= 1
    lists = api.reads["list sparkapplications"]
    operator.wait_for_looks(4)
    assert api.reads["list sparkapplications"] <= lists + 1
    # The collection became ready once.
    assert len(world.events("Available", 2)) == 2
    (made,) = world.objects.list("sparkapplications")
    # Its end is noticed by the watch.
    world.objects.delete(f"sparkapplications/{made['metadata']['name']}")
    world.wait_for("collsnap/one", REASON, "SnapshotRetrying")
    # Without a watch they are listed each time.
    api.refuse("sparkapplications?watch=true", "drop")
    api.cut()
    lists = api.reads["list sparkapplications"]
    world.settle(lambda: api.reads["list sparkapplications"] > lists + 2, lambda: str(dict(api.reads)))


@pytest.mark.long
def test_what_no_watch_reports_is_found_by_a_resync(
    world: Any, api: FaultyApi, make_catalog: Make, make_collection: Make
) -> None:
    operator = world.start("--resync-interval=1", through=api.cluster(world.folder))
    world.apply(make_catalog(), make_collection("goes"), make_collection("stays"))
    world.wait_ready("catalog/demo", "coll/goes", "coll/stays")
    world.settle(lambda: 'upper{name="goes"' in operator.get("/metrics"), lambda: "it has no metrics")
    api.refuse("storagecollections?watch=true", "drop")
    api.cut()
    world.delete("coll/goes", wait=False)
    world.patch("coll/stays", '{"spec":{"suspend":true}}')
    world.settle(lambda: 'upper{name="goes"' not in operator.get("/metrics"), lambda: "it is still there")
    world.wait_for("coll/stays", '.status.conditions[?(@.type=="Ready")].reason', "Suspended")
    # It goes on, also for a kind without objects.
    before = api.reads["list catalogmigrations"]
    world.settle(lambda: api.reads["list catalogmigrations"] > before + 2, lambda: str(dict(api.reads)))
    assert not [line for line in operator.lines() if "exception" in line]
    api.refuse("storagecollections?watch=true")


@pytest.mark.long
def test_nothing_is_known_while_a_watch_is_down(
    world: Any, api: FaultyApi, make_collection: Make, tmp_path: Path
) -> None:
    """Whether its requests fail, or have no response. All other requests work."""
    environment = patched(tmp_path / "impatient", IMPATIENT)
    operator = world.start(through=api.cluster(world.folder), environment=environment)
    # It is looked at again and again.
    world.apply(make_collection("lonely", catalogRef={"name": "nobody"}))
    world.wait_stalled("coll/lonely", "CatalogNotFound")

    def count(part: str) -> int:
        return sum(part in line["message"] for line in operator.lines())

    def rests() -> bool:
        before = api.reads["get storagecollections"]
        operator.wait_for_looks(4)
        return api.reads["get storagecollections"] == before

    for times, (begin, end) in enumerate(
        [
            (lambda: api.refuse("?watch=true", "drop"), lambda: api.refuse("?watch=true")),
            (api.stall, lambda: api.stall(stalled=False)),
        ]
    ):
        world.settle(rests, lambda: str(dict(api.reads)))
        begin()
        api.cut()
        world.settle(lambda now=times: count("no watch works for") > now, operator.log.read_text)
        assert operator.metric("holdfast_watches_down") > 0
        before = api.reads["get storagecollections"]
        world.settle(
            lambda now=before: api.reads["get storagecollections"] > now + 2, lambda: str(dict(api.reads))
        )
        end()
        world.settle(lambda now=times: count("all watches work again") > now, operator.log.read_text)
        assert operator.metric("holdfast_watches_down") == 0


@pytest.mark.long
def test_a_standby_knows_all_objects_before_it_leads(
    world: Any, api: FaultyApi, make_catalog: Make, make_collection: Make
) -> None:
    names = [f"flights-{number}" for number in range(4)]
    leader = world.start("--lease")
    world.apply(make_catalog(), *(make_collection(name) for name in names))
    world.wait_ready("catalog/demo", *(f"coll/{name}" for name in names))
    world.start("--lease", through=api.cluster(world.folder))
    world.settle(lambda: api.reads["watch storagecollections"] > 0, lambda: str(dict(api.reads)))
    # A standby also sees what is created while it waits.
    world.apply(make_collection("late"))
    world.wait_ready("coll/late")
    assert api.writes.total() == 0
    leader.child.stop()
    world.wait_for("catalog/demo", ".status.epoch", 2)
    world.operators[-1].wait_for_looks(6)
    assert api.reads["get storagecollections"] == 0, dict(api.reads)
