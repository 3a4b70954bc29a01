"""The charts on a real API server: accepted, with just the rights that the operator needs, upgraded, removed.

The cluster has no nodes, so the test plays the pods. The operator runs with the arguments of its Deployment
and the token of its account, and so do the pods of hooks.
"""

import json
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helm.values import ALL_ON
from holdfast.collections import StorageController
from holdfast.persist import PersistClient, PersistConfig
from holdfast_operator.api.names import FINALIZER, MANAGED_BY, OPERATORS
from testbed import audit, helm, monitoring, spark
from testbed.audit import Asked
from testbed.children import plain_path
from testbed.errors import HelmError, KubectlError
from testbed.gitops import argo, flux, kstatus
from testbed.helm import CHARTS
from testbed.hooks import HookRunner, account_kubeconfig
from testbed.kube import ControlPlane
from testbed.objects import Objects
from testbed.process import Child
from testbed.sparkoperator import APACHE, KUBEFLOW, install_crd

pytestmark = [pytest.mark.helm, pytest.mark.kube]

Json = dict[str, Any]
Body = Callable[[], Json]

RELEASE = "holdfast-operator"
SYSTEM = "holdfast"
APPS = "apps"
KINDS = "collectionsnapshots,catalogmigrations,storagecollections,catalogs"
QUICK = ["--unsteady-interval=0.2", "--steady-interval=0.5"]
SPARK = {"jobs": None, "sparkapplications.spark.apache.org": APACHE, "sparkapplications": KUBEFLOW}
"""What runs Spark once a cluster has it, the first that is taken at last."""
DRIVER_ACCOUNT = "holdfast-spark"
DRIVER_ROLE = {
    "pods": {
        "create": "executors",
        "get": "the driver's own pod, which owns them",
        "list": "what became of executors, asked now and then",
        "watch": "what becomes of executors",
        "delete": "an executor that ended",
        "deletecollection": "all executors, at the end",
        "patch": "labels of executors that are let go of, or kept after their end",
    },
    "configmaps": {"create": "the settings of executors", "deletecollection": "them, at the end"},
    "persistentvolumeclaims": {
        "create": "volumes of executors, made on demand",
        "list": "those whose executor is gone, to be used again",
        "deletecollection": "all of them, at the end",
    },
    "services": {"deletecollection": "the one that executors found the driver by, at the end"},
}
"""What drivers may do in the core group, and what with."""
BY_A_SETTING = Asked("", "pods", "patch")
"""What a driver does only where sparkConf has deleteOnTermination=false."""
DRIVER = Path(__file__).with_name("waiting_driver.py")
DRIVER_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.instances": "1",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "1s",
    "spark.kubernetes.namespace": "drivers",
    "spark.kubernetes.driver.pod.name": "driver",
    "spark.kubernetes.container.image": "none",
    "spark.kubernetes.executor.podNamePrefix": "of-driver",
    "spark.kubernetes.allocation.batch.delay": "200ms",
    **{
        f"spark.kubernetes.executor.volumes.persistentVolumeClaim.data.{name}": value
        for name, value in {
            "mount.path": "/data",
            "options.claimName": "OnDemand",
            "options.storageClass": "none",
            "options.sizeLimit": "1Gi",
        }.items()
    },
}
THEIRS: Json = {"labels": {"team": "data"}, "annotations": {"note": "theirs"}}
"""What users write in the metadata of each resource, beside its name and namespace."""


class Release:
    """The operator's chart, installed, and the process that its Deployment describes."""

    def __init__(self, cluster: ControlPlane, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.operators: list[Child] = []
        cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": namespace,
                    "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
                },
            }
        )

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{RELEASE}"

    def helm(self, *arguments: str | Path, values: Json | None = None) -> str:
        return helm.run(*arguments, "--namespace", self.namespace, values=values, cluster=self.cluster)

    def install(self, values: Json) -> str:
        return self.helm("install", RELEASE, CHARTS / RELEASE, values=values)

    def get(self, *what: str) -> Json:
        return dict(json.loads(self.cluster.kubectl("get", "-n", self.namespace, *what, "-o", "json")))

    def deployment(self) -> Json:
        return self.get(f"deployment/{RELEASE}")

    def start(self) -> Child:
        """Run what the Deployment says, as its account."""
        (container,) = self.deployment()["spec"]["template"]["spec"]["containers"]
        places = {
            "--listen=0.0.0.0:8080": "--listen=127.0.0.1:0",
            "--data-dir=/var/lib/holdfast": f"--data-dir={self.folder / 'volume'}",
        }
        assert places.keys() <= set(container["args"])
        number = len(self.operators) + 1
        child = Child(
            f"operator-{number}",
            [
                *(sys.executable, "-m", "holdfast_operator.container"),
                *(places.get(argument, argument) for argument in container["args"]),
            ],
            log=self.folder / f"operator-{number}.log",
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.folder),
                "PYTHONPATH": plain_path(),
                "POD_NAME": f"{RELEASE}-{number}",
                "POD_NAMESPACE": self.namespace,
                "KUBECONFIG": str(account_kubeconfig(self.cluster, self.namespace, RELEASE, self.folder)),
            },
        )
        self.operators.append(child)
        return child

    def endpoint(self) -> str:
        """Where the newest operator answers."""
        log = self.operators[-1].log
        found: list[str] = []

        def listens() -> bool:
            found[:] = [line for line in log.read_text().splitlines() if "health and metrics on" in line]
            return bool(found)

        until(listens, "it listens")
        return str(json.loads(found[0])["message"].split()[-1])

    def close(self) -> None:
        for each in self.operators:
            each.stop()
            print(f"--- {each.log.name}\n{each.tail(40)}")


def until(holds: Callable[[], bool], what: str) -> None:
    for _ in range(1200):
        if holds():
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"never: {what}")


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def plane(log_folder: Path) -> Iterator[ControlPlane]:
    """A control plane of our own, which writes down what it is asked for."""
    with ControlPlane.start(apiserver_flags=audit.flags(log_folder)) as cluster:
        helm.run("install", "holdfast-crds", CHARTS / "holdfast-crds", cluster=cluster)
        yield cluster


@pytest.fixture(scope="module")
def release(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    there = Release(plane, SYSTEM, tmp_path_factory.mktemp("release"))
    there.install({"storage": {"shared": True}, "extraArgs": QUICK})
    there.start()
    try:
        yield there
    finally:
        there.close()


@pytest.fixture(scope="module")
def objects(plane: ControlPlane) -> Iterator[Objects]:
    with Objects(plane, APPS) as there:
        there.make_namespace()
        yield there


def resource(kind: str, name: str, namespace: str = APPS, /, **spec: Any) -> Json:
    metadata = {"name": name, "namespace": namespace, **THEIRS}
    return {"apiVersion": "holdfast.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def seen(plane: ControlPlane, release: Release, objects: Objects, log_folder: Path) -> dict[str, Json]:
    """Resources as they were at several moments of a life with everything in it."""
    folder, moments = release.folder, {}
    organization = str(uuid.uuid4())
    demo = resource(
        "Catalog",
        "demo",
        organizationId=organization,
        storage={"url": (folder / "stores").as_uri(), "credentialsSecretRef": {"name": "stores"}},
    )
    columns = [{"name": "id", "type": "int64"}]
    flights = resource(
        "StorageCollection", "flights", catalogRef={"name": "demo"}, columns=columns, key=["id"]
    )
    plane.apply(demo, flights)
    stalled = '.status.conditions[?(@.type=="Stalled")].reason'
    objects.wait_for("catalog/demo", stalled, "SecretNotFound")
    moments["secret missing"] = objects.get("catalog/demo")
    plane.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "stores", "namespace": APPS}})
    objects.wait_until("catalog/demo", "Ready")
    objects.wait_until("coll/flights", "Ready")
    # What somebody changes of how the catalog is opened is made good.
    objects.patch("configmaps/demo-connection", {"data": {"HOLDFAST_ORGANIZATION_ID": "another"}})
    objects.wait_for("configmaps/demo-connection", ".data.HOLDFAST_ORGANIZATION_ID", organization)
    moments["ready"], moments["collection"] = objects.get("catalog/demo"), objects.get("coll/flights")

    # Twice, since an Event that is said again is counted up.
    ready = '.status.conditions[?(@.type=="Ready")].reason'
    for _ in range(2):
        objects.patch("coll/flights", {"spec": {"suspend": True}})
        objects.wait_for("coll/flights", ready, "Suspended")
        moments["suspended"] = objects.get("coll/flights")
        objects.patch("coll/flights", {"spec": {"suspend": False}})
        objects.wait_until("coll/flights", "Ready")
    until(
        lambda: any(event["count"] > 1 for event in objects.list("events", fieldSelector="reason=Suspended")),
        "an Event is counted up",
    )
    told = objects.list("events", fieldSelector="reason=Suspended")
    assert {each["reportingInstance"] for each in told} == {f"{RELEASE}-1"}

    with (
        PersistClient.open((folder / "stores").as_uri(), config=PersistConfig(maintenance="off")) as client,
        StorageController(client) as controller,
    ):
        writer = controller.writer(objects.get("coll/flights")["status"]["collectionId"], purpose="test")
        rows = {"id": pa.array([1], pa.int64()), "_time": pa.array([50], pa.uint64())}
        writer.append(pa.table(rows), writer.upper(), 100)
    scheduled = "flights-20190101000000"
    for number, (kind, face) in enumerate(SPARK.items()):
        if face is not None:
            install_crd(plane, face)
            watch = Asked(face.group, face.plural, "watch")
            until(lambda watch=watch: asked_for(watch, log_folder, release), f"{face.group} is watched")  # type: ignore[misc]
        name = scheduled if number == 0 else f"s{number}"
        taken = resource(
            "CollectionSnapshot",
            name,
            collectionRef={"name": "flights"},
            destination=(folder / "out").as_uri(),
            spark={"startDeadline": "5s", "maxAttempts": 1},
        )
        plane.apply(taken)
        objects.wait_for(f"collsnap/{name}", ready, "SnapshotRunning")
        moments["snapshot"] = objects.get(f"collsnap/{name}")
        # Nobody runs Spark here: the attempt is given up and its application deleted.
        objects.wait_for(f"collsnap/{name}", ready, "SnapshotFailed")
        until(lambda kind=kind: objects.list(kind) == [], f"of {kind} none is left")  # type: ignore[misc]

    # A schedule creates the snapshot of a run that is due, and deletes failed ones of earlier runs.
    marks = {
        "labels": {"holdfast.dev/schedule-of": "flights"},
        "annotations": {"holdfast.dev/scheduled-time": "2019-01-01T00:00:00Z"},
    }
    objects.patch(f"collsnap/{scheduled}", {"metadata": marks})
    schedule = {"schedule": "@yearly", "destination": (folder / "out").as_uri()}
    objects.patch("coll/flights", {"spec": {"snapshotSchedule": schedule}})
    objects.wait_for("coll/flights", ".status.snapshotSchedule.missedRuns", 0)
    due = json.dumps({"status": {"snapshotSchedule": {"nextScheduleTime": "2020-01-01T00:00:00Z"}}})
    plane.kubectl("-n", APPS, "patch", "coll/flights", "--subresource=status", "--type=merge", "-p", due)
    objects.wait_gone(f"collsnap/{scheduled}")
    objects.patch("coll/flights", {"spec": {"snapshotSchedule": None}})
    objects.delete(*(f"collsnap/{each['metadata']['name']}" for each in objects.list("collsnap")))

    plane.apply(resource("CatalogMigration", "move", catalogRef={"name": "demo"}, target="Persist"))
    objects.wait_for("catmig/move", stalled, "CatalogNotLinked")
    moments["migration"] = objects.get("catmig/move")
    other = resource("StorageCollection", "lost", catalogRef={"name": "nowhere"}, columns=columns, key=["id"])
    plane.apply(other)
    objects.wait_for("coll/lost", ready, "CatalogNotFound")
    moments["lost"] = objects.get("coll/lost")
    objects.delete("coll/lost")
    return moments


def asked_for(what: Asked, log_folder: Path, release: Release) -> bool:
    return any(each.asked == what for each in audit.requests(log_folder, release.user))


def granted(cluster: ControlPlane, namespace: str, names: tuple[str, ...]) -> set[Asked]:
    """What roles of these names grant, in the cluster or in a namespace."""
    found = json.loads(cluster.kubectl("get", "clusterroles,roles", "-n", namespace, "-o", "json"))
    return {
        Asked(group, name, verb)
        for role in found["items"]
        if role["metadata"]["name"] in names
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for name in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.long
def test_the_operator_asks_for_all_that_its_role_grants_and_for_nothing_else(
    plane: ControlPlane, release: Release, seen: dict[str, Json], log_folder: Path
) -> None:
    names = (f"{SYSTEM}:{RELEASE}", f"{RELEASE}-lease")
    role = granted(plane, SYSTEM, names)
    assert len(role) > 20
    requests = audit.requests(log_folder, release.user)
    assert {each.asked for each in requests if each.code == 403} == set()
    # Every verb that were taken away would be missed by one of these, and every further one by none. But a
    # migration is read on its own only before a step of it, or if a watch missed a change.
    seldom = Asked("holdfast.dev", "catalogmigrations", "get")
    assert {each.asked for each in requests} | {seldom} == role
    # Beyond the namespace of the resources only what has no namespace, and the Lease.
    assert {each.asked.resource for each in requests if each.namespace == SYSTEM} == {"leases"}
    assert {each.name for each in requests if each.asked.resource == "secrets"} == {"stores"}


@pytest.mark.spark
@pytest.mark.long
def test_a_spark_driver_asks_for_all_that_its_role_grants_and_for_nothing_else(
    plane: ControlPlane, log_folder: Path, tmp_path: Path
) -> None:
    place = DRIVER_SETTINGS["spark.kubernetes.namespace"]
    values = {"watch": {"namespaces": [place]}, "spark": {"serviceAccount": {"create": True}}}
    chart = helm.template(RELEASE, values)
    with Objects(plane, place) as objects:
        objects.make_namespace()
        plane.apply(*(each for each in chart if each["metadata"]["name"] == DRIVER_ACCOUNT))
        role = granted(plane, place, (DRIVER_ACCOUNT,))
        assert role == {Asked("", what, verb) for what, verbs in DRIVER_ROLE.items() for verb in verbs}
        pod = {"serviceAccountName": DRIVER_ACCOUNT, "containers": [{"name": "spark", "image": "none"}]}
        driver = {"name": DRIVER_SETTINGS["spark.kubernetes.driver.pod.name"], "namespace": place}
        plane.apply({"apiVersion": "v1", "kind": "Pod", "metadata": driver, "spec": pod})
        child = Child(
            "driver",
            [
                *(sys.executable, DRIVER, f"k8s://{plane.server}"),
                *(f"{name}={value}" for name, value in DRIVER_SETTINGS.items()),
            ],
            log=tmp_path / "driver.log",
            env={
                **spark.environment(),
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "KUBECONFIG": str(account_kubeconfig(plane, place, DRIVER_ACCOUNT, tmp_path)),
            },
            cwd=tmp_path,
        )
        try:
            objects.wait_for("pods/of-driver-exec-1", ".status.phase", "Pending")
            # There is no kubelet, so its executor fails because we say so; the driver makes another.
            failed = {"status": {"phase": "Failed", "containerStatuses": []}}
            plane.kubectl(
                *("patch", "pod/of-driver-exec-1", "-n", place, "--subresource=status", "--type=merge"),
                *("-p", json.dumps(failed)),
            )
            objects.wait_gone("pods/of-driver-exec-1")
            objects.wait_for("pods/of-driver-exec-2", ".status.phase", "Pending")
            os.kill(child.pid, signal.SIGUSR1)
            assert child.wait(60) == 0
        finally:
            child.stop()
            print(child.tail(40))
    requests = audit.requests(log_folder, f"system:serviceaccount:{place}:{DRIVER_ACCOUNT}")
    assert {each.asked for each in requests if each.code == 403} == set()
    assert {each.asked for each in requests} == role - {BY_A_SETTING}


@pytest.mark.parametrize(
    ("moment", "by_argo", "by_flux"),
    [
        ("secret missing", "Degraded", "Failed"),
        ("ready", "Healthy", "Current"),
        ("collection", "Healthy", "Current"),
        ("suspended", "Suspended", "Current"),
        ("snapshot", "Progressing", "InProgress"),
        ("migration", "Degraded", "Failed"),
    ],
)
def test_gitops_tools_understand_live_resources(
    seen: dict[str, Json], moment: str, by_argo: str, by_flux: str
) -> None:
    found = seen[moment]
    assert (argo(found)[0], flux(found)) == (by_argo, by_flux)
    assert moment == "suspended" or kstatus(found) == by_flux


def test_nothing_of_resources_is_written_but_their_finalizer_and_status(seen: dict[str, Json]) -> None:
    of_the_server = {"uid", "creationTimestamp", "generation", "resourceVersion", "managedFields"}
    for moment, each in seen.items():
        metadata = each["metadata"]
        stands = {name: value for name, value in metadata.items() if name not in of_the_server}
        stands["annotations"].pop("kubectl.kubernetes.io/last-applied-configuration")
        expected = resource(each["kind"], metadata["name"])["metadata"]
        # One that keeps its data has a finalizer only while something needs it.
        finalizers = stands.pop("finalizers", [])
        needed = moment in {"snapshot", "migration"}
        assert finalizers == [FINALIZER] or (finalizers == [] and not needed), moment
        assert stands == expected, moment
        ours = [entry["fieldsV1"] for entry in metadata["managedFields"] if entry["manager"] == MANAGED_BY]
        assert {field for fields in ours for field in fields} <= {"f:metadata", "f:status"}, moment


def test_pods_are_admitted_where_only_restricted_ones_are(plane: ControlPlane, release: Release) -> None:
    def pods() -> list[Json]:
        return list(release.get("pods", "-l", OPERATORS)["items"])

    until(lambda: len(pods()) == 1, "the Deployment has its pod")
    assert pods()[0]["spec"]["serviceAccountName"] == RELEASE


def test_helm_test_finds_the_operator_ready(
    plane: ControlPlane, release: Release, seen: dict[str, Json]
) -> None:
    address = f"http://{RELEASE}.{SYSTEM}.svc:8080"
    with HookRunner(plane, SYSTEM, replacing={address: release.endpoint()}) as runner:
        told = release.helm("test", RELEASE, "--timeout", "120s")
    assert "Phase:          Succeeded" in told
    assert runner.outputs[f"{RELEASE}-test"].endswith("/readyz: ok\n")


def admit(plane: ControlPlane, objects: list[Json]) -> None:
    """Have the API server look at objects as it does before it keeps them. Raises `KubectlError`."""
    plane.kubectl(
        *("apply", "--dry-run=server", "--validate=strict", "-n", SYSTEM, "-f", "-"),
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
    )


@pytest.mark.long
def test_every_combination_is_valid_for_the_api_server(plane: ControlPlane, release: Release) -> None:
    monitoring.install_crds(plane)
    for values in (ALL_ON, {}):
        rendered = helm.template(RELEASE, values, name="other", namespace=SYSTEM)
        for each in rendered:
            if each["metadata"].get("namespace") in {"a", "b"}:
                each["metadata"]["namespace"] = SYSTEM
            if each["kind"] == "Pod":
                # A pod isn't admitted before its account is there.
                each["spec"]["serviceAccountName"] = "default"
        admit(plane, rendered)
    # What these kinds don't have, or not like that, is noticed.
    rendered = helm.template(RELEASE, ALL_ON, name="other", namespace=SYSTEM)
    monitor, rule = (helm.find(rendered, kind) for kind in ("ServiceMonitor", "PrometheusRule"))
    monitor["spec"]["endpoints"][0]["honourLabels"] = True
    with pytest.raises(KubectlError, match=r"unknown field .*honourLabels"):
        admit(plane, [monitor])
    rule["spec"]["groups"][0]["rules"][0]["for"] = "soon"
    with pytest.raises(KubectlError, match=r"rules\[0\].for"):
        admit(plane, [rule])


def settled(release: Release, objects: Objects) -> Json:
    """What an upgrade must not touch."""
    crds = json.loads(
        release.cluster.kubectl("get", "crd", "-l", "app.kubernetes.io/name=holdfast", "-o", "json")
    )
    found = [
        *(objects.get(what) for what in ("catalog/demo", "coll/flights", "catmig/move")),
        release.deployment(),
        release.get(f"pvc/{RELEASE}"),
        release.get(f"serviceaccount/{RELEASE}"),
        *crds["items"],
    ]
    return {
        f"{each['kind']}/{each['metadata']['name']}": (
            each["metadata"]["uid"],
            each["metadata"].get("generation"),
            each.get("spec"),
        )
        for each in found
    }


@pytest.mark.long
def test_upgrades_leave_live_resources_alone_and_uninstalling_nothing_stuck(
    plane: ControlPlane, release: Release, objects: Objects, seen: dict[str, Json]
) -> None:
    before = settled(release, objects)
    helm.run("upgrade", "holdfast-crds", CHARTS / "holdfast-crds", cluster=plane)
    release.helm("upgrade", RELEASE, CHARTS / RELEASE, "--reset-then-reuse-values")
    assert settled(release, objects) == before
    objects.wait_until("catalog/demo", "Ready")

    # Another setting is another pod: the next operator takes the catalog over.
    epoch = int(objects.get("catalog/demo")["status"]["epoch"])
    release.helm(
        "upgrade", RELEASE, CHARTS / RELEASE, "--reset-then-reuse-values", "--set", "log.level=debug"
    )
    changed = settled(release, objects)
    assert [name for name in before if changed[name] != before[name]] == [f"Deployment/{RELEASE}"]
    release.operators[-1].stop()
    release.start()
    until(lambda: int(objects.get("catalog/demo")["status"]["epoch"]) > epoch, "the next operator has it")
    objects.wait_until("catalog/demo", "Ready")

    with HookRunner(plane, SYSTEM) as runner:
        with pytest.raises(HelmError, match=r"BackoffLimitExceeded|job .* failed"):
            release.helm("uninstall", RELEASE, "--timeout", "120s")
        told = runner.outputs[f"{RELEASE}-predelete"]
        assert "2 resources have the finalizer holdfast.dev/operator" in told
        assert "CatalogMigration apps/move" in told
        assert f"kubectl delete {KINDS} --all --namespace {APPS}" in told
        # The operator is still there to do it.
        assert release.deployment()["metadata"].get("deletionTimestamp") is None
        plane.kubectl("delete", KINDS, "--all", "-n", APPS, "--timeout=120s")
        release.helm("uninstall", RELEASE, "--timeout", "120s")
        assert "you can uninstall the operator" in runner.outputs[f"{RELEASE}-predelete"]
    release.operators[-1].stop()
    left = json.loads(
        plane.kubectl(
            *("get", "deployments,services,roles,rolebindings,leases,pvc,jobs", "-n", SYSTEM),
            *("-o", "json"),
        )
    )
    kinds = {(each["kind"], each["metadata"]["name"]) for each in left["items"]}
    assert kinds - {("Lease", RELEASE)} == {("PersistentVolumeClaim", RELEASE)}
    helm.run("uninstall", "holdfast-crds", cluster=plane)
    crds = json.loads(plane.kubectl("get", "crd", "-l", "app.kubernetes.io/name=holdfast", "-o", "json"))
    assert len(crds["items"]) == 4
    assert not any("deletionTimestamp" in each["metadata"] for each in crds["items"])


@pytest.mark.long
def test_with_roles_in_a_namespace_the_operator_works_there_and_sees_no_other(
    plane: ControlPlane, release: Release, log_folder: Path, tmp_path: Path
) -> None:
    for each in release.operators:
        each.stop()
    there = Release(plane, "holdfast-team", tmp_path)
    with Objects(plane, "team") as team, Objects(plane, "elsewhere") as elsewhere:
        team.make_namespace()
        elsewhere.make_namespace()
        install_crd(plane)
        notes = there.install({"watch": {"namespaces": ["team"]}, "extraArgs": QUICK})
        commands = [line for line in notes.splitlines() if "kubectl" in line]
        assert [line.count("--namespace team") for line in commands] == [2, 1]
        plane.apply(resource("Catalog", "theirs", "elsewhere", organizationId=str(uuid.uuid4())))
        plane.apply(resource("Catalog", "ours", "team", organizationId=str(uuid.uuid4())))
        try:
            there.start()
            team.wait_until("catalog/ours", "Ready")
            watch = Asked("sparkoperator.k8s.io", "sparkapplications", "watch")
            # A Catalog that was listed may be ready before anything is watched.
            until(
                lambda: any(each.asked == watch for each in audit.requests(log_folder, there.user)),
                "the applications are watched",
            )
            requests = audit.requests(log_folder, there.user)
            assert {each.asked for each in requests if each.code == 403} == set()
            names = (f"{RELEASE}-lease", f"holdfast-team:{RELEASE}")
            role = granted(plane, "team", (RELEASE,)) | granted(plane, "holdfast-team", names)
            asked = {each.asked for each in requests}
            assert asked <= role
            assert {each.namespace for each in requests if each.code < 400} <= {"team", "holdfast-team"}
            assert "finalizers" not in elsewhere.get("catalog/theirs")["metadata"]
            team.delete("catalog/ours")
        finally:
            there.close()


@pytest.mark.long
def test_a_namespace_whose_role_and_secrets_went_first_is_deleted(
    plane: ControlPlane, release: Release, tmp_path: Path
) -> None:
    for each in release.operators:
        each.stop()
    there = Release(plane, "holdfast-ending", tmp_path)
    doomed, organization = str(uuid.uuid4()), str(uuid.uuid4())
    stash = {"url": f"sqlite://{tmp_path}/stash.sqlite", "credentialsSecretRef": {"name": "keys"}}
    columns = [{"name": "id", "type": "int64"}]
    with Objects(plane, "ending") as ending, Objects(plane, "staying") as staying:
        ending.make_namespace()
        staying.make_namespace()
        there.install({"watch": {"namespaces": ["ending", "staying"]}, "extraArgs": QUICK})
        place = {"name": "keys", "namespace": "ending"}
        plane.apply({"apiVersion": "v1", "kind": "Secret", "metadata": place, "stringData": {"user": "u"}})
        plane.apply(
            resource(
                *("Catalog", "doomed", "ending"), organizationId=doomed, stash=stash, deletionPolicy="Delete"
            ),
            resource(
                *("StorageCollection", "flights", "ending"),
                catalogRef={"name": "doomed"},
                columns=columns,
                key=["id"],
                deletionPolicy="Delete",
            ),
            resource("Catalog", "kept", "ending", organizationId=organization),
        )
        try:
            there.start()
            for each in ("catalog/doomed", "coll/flights", "catalog/kept"):
                ending.wait_until(each, "Ready")
            shard = ending.get("catalog/doomed")["status"]["shardId"]
            assert "finalizers" not in ending.get("catalog/kept")["metadata"]
            for what in (f"rolebinding/{RELEASE}", f"role/{RELEASE}", "secret/keys"):
                plane.kubectl("delete", what, "-n", "ending")
            plane.kubectl("delete", "namespace", "ending", "--timeout=100s")
            # The operator looks after the other namespaces as before.
            plane.apply(resource("Catalog", "other", "staying", organizationId=str(uuid.uuid4())))
            staying.wait_until("catalog/other", "Ready")
        finally:
            there.close()
    with PersistClient.open(
        (tmp_path / "volume" / "ending" / doomed).as_uri(), config=PersistConfig(maintenance="off")
    ) as client:
        assert client.inspect(shard).finalized
