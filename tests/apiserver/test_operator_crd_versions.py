"""CRDs that are installed after the operator, and CRDs and operators of another version.

They have a control plane of their own.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import yaml

from apiserver.test_operator_snapshot import READY, snapshot
from holdfast_operator.api.names import API_VERSION, FINALIZER, Kind
from testbed import audit, docpages
from testbed.audit import Asked
from testbed.children import plain_path
from testbed.earlier import unpacked
from testbed.errors import KubectlError, Unavailable
from testbed.kube import ControlPlane
from testbed.objects import Objects
from testbed.operatorprocess import OperatorProcess
from testbed.pages import blocks
from testbed.require import Tier, required
from testbed.sparkoperator import APACHE, Misbehaviour, SparkOperatorStandIn, install_crd

pytestmark = pytest.mark.kube

CRDS = Path(__file__).parents[2] / "crds"
FROZEN = Path(__file__).parents[1] / "unit" / "operator" / "api" / "frozen"
"""The CRDs of the last release: see `test_shape.py`."""
COLLECTIONS = "holdfast.dev_storagecollections.yaml"
NAMESPACE = "versions"
EARLIER: Final = "04ffbe683e16fbe2ab8e70c92497b8990a550aa9"
"""The commit that froze the CRDs first. Once there is a release, it is that of the last one."""
BEFORE, UPGRADED, BACK = "before", "upgraded", "back"
"""The users of the API server that the operators of an upgrade and a rollback are."""
LEASE: Final = (
    "--storage-shared",
    "--lease",
    "--lease-duration=3",
    "--lease-renew-deadline=2",
    "--lease-retry-period=0.5",
)
Make = Callable[..., dict[str, Any]]
Conditions = frozenset[tuple[str, str, str]]
"""Type, status and message of each."""


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def plane(log_folder: Path) -> Iterator[ControlPlane]:
    """A control plane without our CRDs, which writes down what it is asked for."""
    users = dict.fromkeys((BEFORE, UPGRADED, BACK), "system:masters")
    with ControlPlane.start(apiserver_flags=audit.flags(log_folder), users=users) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def control_plane(plane: ControlPlane) -> ControlPlane:
    """The one of `world`."""
    return plane


@pytest.fixture
def earlier(tmp_path: Path) -> dict[str, str]:
    """The environment of an operator of an earlier commit."""
    try:
        path = plain_path(*unpacked(EARLIER, tmp_path / "earlier"))
    except Unavailable as error:
        if Tier.KUBE in required(os.environ):
            raise
        pytest.skip(str(error))
    program = [sys.executable, "-c", "import holdfast_operator; print(holdfast_operator.__file__)"]
    imported = subprocess.run(program, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert imported.stdout.startswith(str(tmp_path))
    return {"PYTHONPATH": path}


@pytest.fixture(scope="module")
def objects(plane: ControlPlane) -> Iterator[Objects]:
    with Objects(plane, NAMESPACE) as there:
        there.make_namespace()
        yield there


@pytest.fixture(scope="module")
def operator(
    plane: ControlPlane, objects: Objects, tmp_path_factory: pytest.TempPathFactory, make_catalog: Make
) -> Iterator[OperatorProcess]:
    """Started before the CRDs are there; then there is a Catalog that is ready."""
    flags = ("--unsteady-interval=0.2", "--steady-interval=0.5", "--resync-interval=5")
    process = OperatorProcess(plane, NAMESPACE, tmp_path_factory.mktemp("operator"), 1, *flags)
    try:
        process.wait_until_it_says("install its CRDs")
        # All but one of them: as good as none.
        for file in sorted(CRDS.glob("holdfast.dev_*.yaml")):
            if file.name != COLLECTIONS:
                install(plane, yaml.safe_load(file.read_text()))
        missing = "there is no CRD of storagecollections.holdfast.dev"
        process.wait_until_it_says(missing)
        assert process.child.poll() is None
        with pytest.raises(urllib.error.HTTPError, match="503") as unready:
            process.get("/readyz")
        assert missing in unready.value.read().decode()
        install(plane, yaml.safe_load((CRDS / COLLECTIONS).read_text()))
        plane.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=json.dumps(make_catalog()))
        objects.wait_until("catalog/demo", "Ready")
        yield process
    finally:
        process.child.kill()
        print(f"--- {process.log.name}\n{process.child.tail(40)}")


def install(plane: ControlPlane, crd: dict[str, Any]) -> None:
    plane.apply(crd)
    name = crd["metadata"]["name"]
    # Before anybody has written a status, `--for=condition` is an error.
    plane.kubectl("wait", "--for=jsonpath={.status.conditions}", f"crd/{name}", "--timeout=60s")
    plane.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")


def definitions(folder: Path) -> list[dict[str, Any]]:
    return [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("holdfast.dev_*.yaml"))]


def make(plane: ControlPlane, body: dict[str, Any]) -> None:
    """Make an object as soon as the API server takes it: a changed CRD isn't served at once."""
    deadline = time.monotonic() + 60
    while True:
        try:
            plane.kubectl(
                *("-n", NAMESPACE, "create", "--validate=strict", "-f", "-"), stdin=json.dumps(body)
            )
            return
        except KubectlError:
            if time.monotonic() > deadline:
                raise
        threading.Event().wait(0.1)


@pytest.mark.long
def test_crds_may_be_installed_after_the_operator_which_says_once_that_they_are_missing(
    plane: ControlPlane, operator: OperatorProcess, objects: Objects, make_collection: Make
) -> None:
    make(plane, make_collection("flights"))
    objects.wait_until("coll/flights", "Ready")
    assert operator.get("/readyz") == "ok\n"
    said = [line["message"] for line in operator.lines()]
    waits = [text for text in said if "install its CRDs" in text]
    assert len(waits) > 1
    assert all(text != after for text, after in itertools.pairwise(waits))
    assert said.count("all resources are listed") == 1


@pytest.mark.long
def test_what_a_newer_crd_lets_people_ask_for_waits_for_a_newer_operator(
    plane: ControlPlane, operator: OperatorProcess, objects: Objects, make_collection: Make
) -> None:
    crd = yaml.safe_load((CRDS / COLLECTIONS).read_text())
    (version,) = crd["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["encryption"] = {"type": "object", "properties": {"keyId": {"type": "string"}}}
    spec["rendition"]["properties"]["codec"] = {"type": "string"}
    spec["deletionPolicy"]["enum"].append("Archive")
    plane.apply(crd)
    asked: dict[str, dict[str, Any]] = {
        "encrypted": {"encryption": {"keyId": "k1"}},
        "packed": {"rendition": {"shards": 1, "codec": "zstd"}},
        "archived": {"deletionPolicy": "Archive"},
    }
    for name, fields in asked.items():
        make(plane, make_collection(name, **fields))
    says = {
        "encrypted": "spec.encryption",
        "packed": "spec.rendition.codec",
        "archived": "spec.deletionPolicy",
    }
    stalled = '.status.conditions[?(@.type=="Stalled")].reason'
    for name, path in says.items():
        objects.wait_for(f"coll/{name}", stalled, "InvalidSpec")
        conditions = objects.get(f"coll/{name}")["status"]["conditions"]
        (message,) = {each["message"] for each in conditions if each["type"] == "Stalled"}
        assert message.startswith(path)
        assert "collectionId" not in objects.get(f"coll/{name}")["status"]
    # Nothing else stops, and what is asked for otherwise is done.
    make(plane, make_collection("late"))
    objects.wait_until("coll/late", "Ready")
    objects.patch("coll/packed", {"spec": {"rendition": {"codec": None}}})
    objects.wait_until("coll/packed", "Ready")
    # It can go, too.
    objects.delete("coll/encrypted")
    assert operator.child.poll() is None


@pytest.mark.long
def test_what_an_older_crd_does_not_know_of_a_status_is_left_out(
    plane: ControlPlane, operator: OperatorProcess, objects: Objects, make_collection: Make
) -> None:
    crd = yaml.safe_load((CRDS / "holdfast.dev_catalogs.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["holder"]
    plane.apply(crd)
    operator.wait_until_it_says("the CRD doesn't know all status fields (holder): upgrade the CRDs")
    # That is all: it isn't written at each look.
    before = operator.metric("holdfast_status_writes_total")
    operator.wait_for_looks(6)
    assert operator.metric("holdfast_status_writes_total") == before
    objects.wait_until("catalog/demo", "Ready")
    make(plane, make_collection("old"))
    objects.wait_until("coll/old", "Ready")


def manifests() -> list[dict[str, Any]]:
    """All objects of our kinds that the samples and the pages show in full, each once."""
    texts = [path.read_text() for path in sorted((CRDS / "samples").rglob("*.yaml"))]
    for page in docpages.pages():
        found = blocks(page, (docpages.ROOT / page).read_text())
        texts += [block.text for block in found if block.language == "yaml"]
    bodies = [body for text in texts if "holdfast.dev/" in text for body in yaml.safe_load_all(text)]
    ours = [
        body
        for body in bodies
        if body.get("apiVersion") == API_VERSION and "name" in body.get("metadata", {})
    ]
    return [each for number, each in enumerate(ours) if each not in ours[:number]]


@pytest.mark.long
def test_the_crds_of_the_last_release_take_the_objects_of_today_and_the_other_way_round(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    """What older CRDs don't know is left out: only a field that they know could be refused."""
    objects = manifests()
    assert {body["kind"] for body in objects} == set(Kind)
    assert len(objects) > 20
    asked = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    dry = ("create", "--dry-run=server", "--validate=warn", "-n", "default", "-o", "name", "-f", "-")
    for folder in (FROZEN, CRDS):
        plane.apply(*definitions(folder))
        # A changed CRD isn't served at once, so what it refuses is asked for once more.
        try:
            made = plane.kubectl(*dry, stdin=asked)
        except KubectlError:
            threading.Event().wait(5.0)
            made = plane.kubectl(*dry, stdin=asked)
        assert len(made.splitlines()) == len(objects)


class History:
    """What the statuses of a namespace show from now on."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._lists = [f"/apis/{API_VERSION}/namespaces/{namespace}/{kind.plural}" for kind in Kind]
        self._begin = self._get(self._lists)

    def _get(self, paths: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor() as threads:
            return list(threads.map(lambda path: self._plane.kubectl("get", "--raw", path), paths))

    def shown(self) -> dict[str, list[Conditions]]:
        """The conditions of each object, one after the other."""
        begins = [json.loads(text) for text in self._begin]
        versions = [begin["metadata"]["resourceVersion"] for begin in begins]
        query = "watch=true&timeoutSeconds=1&resourceVersion"
        events = self._get(
            [f"{path}?{query}={since}" for path, since in zip(self._lists, versions, strict=True)]
        )
        bodies = [body for begin in begins for body in begin["items"]]
        bodies += [json.loads(line)["object"] for text in events for line in text.splitlines()]
        shown: dict[str, list[Conditions]] = {}
        for body in bodies:
            conditions = body.get("status", {}).get("conditions", [])
            now = frozenset((each["type"], each["status"], each["message"]) for each in conditions)
            before = shown.setdefault(f"{body['kind']}/{body['metadata']['name']}", [])
            if before[-1:] != [now]:
                before.append(now)
        return shown


@pytest.mark.long
def test_an_upgrade_and_a_rollback_let_no_two_act_and_the_next_one_goes_on_with_the_jobs(
    plane: ControlPlane,
    operator: OperatorProcess,
    world: Any,
    earlier: dict[str, str],
    log_folder: Path,
    make_catalog: Make,
    make_collection: Make,
    tmp_path: Path,
) -> None:
    """The CRDs are as old as the first operator, and then as new as its successor, also after a rollback."""

    def start(user: str, environment: dict[str, str] | None = None) -> OperatorProcess:
        through = ControlPlane(kubeconfig=plane.users[user], server=plane.server)
        started: OperatorProcess = world.start(*LEASE, through=through, environment=environment)
        return started

    def rests() -> bool:
        were = world.versions()
        world.operators[-1].wait_for_looks(6)
        return bool(world.versions() == were)

    install_crd(plane)
    plane.apply(*definitions(FROZEN))
    driver = SparkOperatorStandIn(
        plane.kubeconfig,
        namespace=world.namespace,
        log_dir=tmp_path / "spark",
        misbehave=lambda _: Misbehaviour.HANG,
    )
    with driver:
        before = start(BEFORE, earlier)
        there = make_catalog()
        world.apply(there, make_collection())
        world.wait_ready("catalog/demo", "coll/flights")
        with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
            writer = controller.writer(world.status("coll/flights")["collectionId"], purpose="test")
            writer.append(pa.table({"id": [1], "note": ["x"]}), writer.upper(), 11)
        world.apply(snapshot("first", tmp_path / "out"))
        world.wait_for("collsnap/first", READY, "SnapshotRunning")
        world.objects.wait_for_any("collsnap/first", ".status.job.application")
        job = world.status("collsnap/first")["job"]
        plane.apply(*definitions(CRDS))
        upgraded = start(UPGRADED)
        upgraded.wait_until_it_says("standing by")
        history = History(plane, world.namespace)
        os.kill(before.child.pid, signal.SIGTERM)
        assert before.child.wait(timeout=60) == 0
        world.wait_for("catalog/demo", ".status.epoch", 2)
        world.settle(rests, lambda: str(world.versions()))
        assert world.status("collsnap/first")["job"] == job
        (app,) = world.objects.list("sparkapplications")
        assert app["metadata"]["name"] == job["application"]
        world.objects.delete(f"sparkapplications/{job['application']}")
        world.wait_for("collsnap/first", READY, "SnapshotRetrying")

        back = start(BACK, earlier)
        back.wait_until_it_says("standing by")
        upgraded.child.kill()
        world.wait_for("catalog/demo", ".status.epoch", 3)
        world.wait_for("collsnap/first", READY, "SnapshotRunning")
        world.settle(rests, lambda: str(world.versions()))
        last = world.status("collsnap/first")["job"]
        assert (last["jobId"], last["attempt"]) == (job["jobId"], 2)
    shown = history.shown()
    assert {what.partition("/")[0] for what in shown} == set(Kind) - {Kind.CATALOG_MIGRATION}
    # No status comes back. Only the epoch of the Catalog and the attempts of the job change.
    assert all(len(each) == len(set(each)) for each in shown.values()), shown
    assert len(shown["StorageCollection/flights"]) == 1
    ready = {each[:2] for now in shown["Catalog/demo"] for each in now if each[0] == "Ready"}
    assert ready == {("Ready", "True")}
    acted = [user for user, _ in audit.changes(log_folder, world.namespace) if user in plane.users]
    assert [user for user, _ in itertools.groupby(acted)] == [BEFORE, UPGRADED, BACK]
    world.stop()


@pytest.mark.long
def test_a_definition_that_is_deleted_keeps_no_catalog_from_going(
    plane: ControlPlane,
    operator: OperatorProcess,
    objects: Objects,
    make_catalog: Make,
    make_collection: Make,
) -> None:
    reason = '.status.conditions[?(@.type=="Reconciling")].reason'
    crd = yaml.safe_load((CRDS / COLLECTIONS).read_text())
    plane.apply(crd)
    make(plane, make_collection("last", deletionPolicy="Delete"))
    objects.wait_until("coll/last", "Ready")
    objects.wait_for("catalog/demo", ".metadata.finalizers", [FINALIZER])
    # What is only not served may still be there.
    hidden = json.loads(json.dumps(crd))
    hidden["spec"]["versions"][0]["served"] = False
    plane.apply(hidden)
    objects.delete("catalog/demo", wait=False)
    objects.wait_for("catalog/demo", reason, "DependentsUnknown")
    operator.wait_for_looks(2)
    waiting = objects.get("catalog/demo")
    assert waiting["metadata"]["finalizers"]
    # That has no end, and names none.
    assert "kubectl holdfast abandon" not in json.dumps(waiting["status"]["conditions"])
    plane.apply(crd)
    objects.wait_for("catalog/demo", reason, "WaitingForCollections")
    assert objects.get("coll/last")["metadata"]["finalizers"]
    # With the definition go its objects, each as it asks for, and then the Catalog.
    plane.kubectl("delete", "crd", "storagecollections.holdfast.dev", "--timeout=60s")
    objects.wait_gone("catalog/demo")
    operator.wait_until_it_says("the cluster has no CRD of storagecollections.holdfast.dev")
    # What is defined again is watched again.
    install(plane, crd)
    plane.apply(make_catalog() | {"metadata": {"name": "demo", "namespace": NAMESPACE}})
    make(plane, make_collection("again"))
    objects.wait_until("coll/again", "Ready")
    assert operator.child.poll() is None


@pytest.mark.long
def test_a_spark_operator_that_is_installed_later_is_watched(
    plane: ControlPlane, operator: OperatorProcess, log_folder: Path
) -> None:
    watch = Asked(APACHE.group, APACHE.plural, "watch")

    def watched() -> bool:
        return any(each.asked == watch for each in audit.requests(log_folder, "admin"))

    assert not watched()
    install_crd(plane, APACHE)
    deadline = time.monotonic() + 60
    while not watched():
        assert time.monotonic() < deadline
        threading.Event().wait(0.1)
    assert operator.child.poll() is None
