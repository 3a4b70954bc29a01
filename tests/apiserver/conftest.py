"""The operator as users run it: a process of its own that watches the API server of the test bed."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog import FenceToken, catalog_shard_id
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.collections import StorageController
from holdfast.persist import PersistClient, PersistConfig
from testbed.errors import KubectlError
from testbed.faultyapi import FaultyApi
from testbed.kube import ControlPlane
from testbed.objects import Objects, new_namespace
from testbed.operatorprocess import OperatorProcess
from testbed.sparkfaces import KUBEFLOW, PODS, Face
from testbed.sparkoperator import ByAttempt, SparkOperatorStandIn, install_crd

CRDS = Path(__file__).parents[2] / "crds"
KINDS = ("collectionsnapshots", "catalogmigrations", "storagecollections", "catalogs")
FROM_GIT = {"example.com/from-git": "yes"}
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
QUICK = ("--unsteady-interval=0.2", "--steady-interval=0.5")


class World:
    """One namespace with its operators, and the durable state behind it."""

    def __init__(self, cluster: ControlPlane, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.objects = Objects(cluster, namespace)
        self.operators: list[OperatorProcess] = []

    def start(
        self,
        *flags: str,
        through: ControlPlane | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> OperatorProcess:
        """Start another operator, which sees the cluster as it is `through` something before it."""
        number = len(self.operators) + 1
        cluster = through or self.cluster
        operator = OperatorProcess(
            cluster, self.namespace, self.folder, number, *QUICK, *flags, environment=environment
        )
        self.operators.append(operator)
        return operator

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def apply(self, *objects: dict[str, Any], flags: tuple[str, ...] = ()) -> None:
        """Apply objects, each with an annotation of somebody else."""
        for each in objects:
            each["metadata"]["annotations"] = {**FROM_GIT, **(each["metadata"].get("annotations") or {})}
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", *flags, "-f", "-", stdin=items)

    def get(self, what: str) -> dict[str, Any]:
        return self.objects.get(what)

    def status(self, what: str) -> dict[str, Any]:
        return dict(self.get(what)["status"])

    def patch(self, what: str, change: str) -> None:
        """Merge some JSON into an object."""
        self.objects.patch(what, json.loads(change))

    def delete(self, *what: str, wait: bool = True) -> None:
        self.objects.delete(*what, wait=wait)

    def wait_ready(self, *what: str) -> None:
        for each in what:
            self.objects.wait_until(each, "Ready")

    def wait_for(self, what: str, path: str, value: object) -> None:
        self.objects.wait_for(what, path, value)

    def wait_stalled(self, what: str, reason: str) -> str:
        """Wait for Stalled with this reason; its message."""
        condition = '.status.conditions[?(@.type=="Stalled")]'
        self.wait_for(what, f"{condition}.reason", reason)
        self.wait_for(what, f"{condition}.status", "True")
        return str(self.condition(what, "Stalled")["message"])

    def wait_gone(self, what: str) -> None:
        self.objects.wait_gone(what)

    def settle(self, holds: Callable[[], bool], told: Callable[[], str]) -> None:
        """Wait until it is so; `told` says how it is instead."""
        deadline = time.monotonic() + 120
        while not holds():
            assert time.monotonic() < deadline, told()
            threading.Event().wait(0.1)

    def versions(self) -> dict[str, str]:
        """Which version each of our objects has."""
        return {
            f"{kind}/{body['metadata']['name']}": body["metadata"]["resourceVersion"]
            for kind in KINDS
            for body in self.objects.list(kind)
        }

    def condition(self, what: str, type_: str) -> dict[str, Any]:
        (found,) = (each for each in self.status(what)["conditions"] if each["type"] == type_)
        return dict(found)

    def events(self, reason: str, number: int = 1) -> list[dict[str, Any]]:
        """The Events of a reason, once there are this many: they come after the status that they tell of."""
        deadline = time.monotonic() + 60
        while len(found := self.objects.list("events", fieldSelector=f"reason={reason}")) < number:
            assert time.monotonic() < deadline, f"{reason} is told {len(found)} times, not {number}"
            threading.Event().wait(0.05)
        return found

    def volume(self, organization: str) -> str:
        """The URL of a catalog that names no storage."""
        return (self.folder / "volume" / self.namespace / organization).as_uri()

    def store(self, url: str) -> PersistClient:
        """A second client of a location, as an application has one."""
        return PersistClient.open(url, config=PersistConfig(maintenance="off"))

    def controller(self, url: str) -> StorageController:
        return StorageController(self.store(url))

    def go_back(self, client: PersistClient, organization: str, epoch: int) -> None:
        """What a restore of an older copy does to the fence token of a catalog."""
        store = CatalogShard(client, catalog_shard_id(organization), purpose="test")
        seen = read_preamble(store, store.upper())
        store.append(seen.fence(FenceToken(0, epoch, "older", "copy")), seen.upper)
        store.close()

    def stop(self) -> None:
        for operator in self.operators:
            operator.child.kill()

    def check_annotations(self) -> None:
        """No operator has removed or changed an annotation that was applied, because it may be in Git."""
        for kind in KINDS:
            for each in self.objects.list(kind):
                found = each["metadata"].get("annotations") or {}
                applied = (
                    json.loads(found.get(LAST_APPLIED, "{}")).get("metadata", {}).get("annotations") or {}
                )
                assert applied.items() <= found.items(), f"{kind}/{each['metadata']['name']}"

    def close(self) -> None:
        """Stop the operators, and let go of what nobody finalizes any more: it would keep the namespace."""
        self.stop()
        for kind in KINDS:
            for each in self.objects.list(kind):
                # One that is being deleted goes with its finalizer, perhaps before it is asked for.
                with suppress(KubectlError):
                    self.patch(f"{kind}/{each['metadata']['name']}", '{"metadata":{"finalizers":null}}')
        self.objects.close()


def catalog(name: str = "demo", /, **spec: Any) -> dict[str, Any]:
    """A Catalog of an organization of its own."""
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Catalog",
        "metadata": {"name": name},
        "spec": {"organizationId": str(uuid.uuid4()), **spec},
    }


def collection(name: str = "flights", /, **spec: Any) -> dict[str, Any]:
    """A StorageCollection of the Catalog `demo`."""
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "StorageCollection",
        "metadata": {"name": name},
        "spec": {
            "catalogRef": {"name": "demo"},
            "columns": [
                {"name": "id", "type": "int64"},
                {"name": "note", "type": "string", "nullable": True},
            ],
            "key": ["id"],
            "rendition": {"shards": 2},
            **spec,
        },
    }


_SERVING: set[Path] = set()
"""The clusters that have our CRDs."""


@pytest.fixture(scope="module")
def crds(control_plane: ControlPlane) -> None:
    if control_plane.kubeconfig in _SERVING:
        return
    control_plane.kubectl("apply", "-k", CRDS)
    control_plane.wait_established("crd", "-l", "app.kubernetes.io/name=holdfast")
    _SERVING.add(control_plane.kubeconfig)


@contextmanager
def world_in(control_plane: ControlPlane, namespace: str, folder: Path) -> Iterator[World]:
    there = World(control_plane, namespace, folder)
    try:
        yield there
        there.check_annotations()
    finally:
        there.close()
        for operator in there.operators:
            print(f"--- {operator.log.name}\n{operator.child.tail(40)}")


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str, crds: None, tmp_path: Path) -> Iterator[World]:
    """A namespace without an operator yet."""
    with world_in(control_plane, namespace, tmp_path) as there:
        yield there


@pytest.fixture
def api(world: World) -> Iterator[FaultyApi]:
    """The way of the operator to the API server: without faults until one is asked for."""
    with FaultyApi(world.cluster, seed=0, rate=0.0) as api:
        yield api
        world.stop()


@pytest.fixture(scope="module")
def module_world(
    control_plane: ControlPlane, crds: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A namespace that all tests of a module share."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    folder = tmp_path_factory.mktemp("module")
    with new_namespace(control_plane, name), world_in(control_plane, name, folder) as there:
        yield there


@pytest.fixture
def neighbour(world: World, control_plane: ControlPlane) -> Iterator[World]:
    """Another namespace of the same world; its operators are those of `world`."""
    name = f"{world.namespace}-next"
    with new_namespace(control_plane, name), world_in(control_plane, name, world.folder) as there:
        yield there
        world.stop()


@pytest.fixture(scope="session")
def make_catalog() -> Callable[..., dict[str, Any]]:
    return catalog


@pytest.fixture(scope="session")
def make_collection() -> Callable[..., dict[str, Any]]:
    return collection


@pytest.fixture
def face() -> Face:
    """What runs Spark."""
    return KUBEFLOW


@pytest.fixture
def misbehave(control_plane: ControlPlane, namespace: str, tmp_path: Path, face: Face) -> Iterator[ByAttempt]:
    """A running stand-in of what runs Spark, which behaves unless a test says otherwise."""
    if face is not PODS:
        install_crd(control_plane, face)
    plan = ByAttempt()
    with SparkOperatorStandIn(
        control_plane.kubeconfig, namespace=namespace, log_dir=tmp_path / "spark", misbehave=plan, face=face
    ):
        yield plan


@pytest.fixture
def drivers(control_plane: ControlPlane, namespace: str, tmp_path: Path, face: Face) -> Iterator[Path]:
    """A running stand-in of what runs Spark; the folder with the logs of its drivers."""
    if face is not PODS:
        install_crd(control_plane, face)
    logs = tmp_path / "spark"
    with SparkOperatorStandIn(control_plane.kubeconfig, namespace=namespace, log_dir=logs, face=face):
        yield logs
