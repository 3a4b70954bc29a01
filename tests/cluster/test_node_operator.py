"""The operator's chart on a real node: two pods of our image, of which one acts, on S3 and Postgres."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from holdfast.persist import PersistClient, PersistConfig
from holdfast.storage import StorageController
from testbed import helm
from testbed.helm import CHARTS
from testbed.images import OPERATOR
from testbed.minio import Minio
from testbed.node import NodeCluster
from testbed.postgres import USER, PostgresServer

pytestmark = [pytest.mark.node, pytest.mark.helm, pytest.mark.s3, pytest.mark.postgres]

Json = dict[str, Any]

RELEASE = "holdfast-operator"
SYSTEM = "holdfast"
PATIENCE_S = 180.0


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        threading.Event().wait(0.1)


class Installed:
    """The release, and the stores that its pods share with this machine."""

    def __init__(self, node: NodeCluster, minio: Minio, postgres: PostgresServer, database: str) -> None:
        self.node = node
        self.organization = str(uuid.uuid4())
        self._consensus = f"postgresql://{postgres.address}:{postgres.port}/{database}"
        self._blob = f"s3://{minio.make_bucket()}/durable?endpoint={minio.endpoint}&region=us-east-1"
        self.secret = {**minio.credentials, "PGUSER": USER, "PGPASSWORD": postgres.password}

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.node.plane.kubectl("-n", SYSTEM, *arguments, stdin=stdin)

    def get(self, *what: str) -> Json:
        return dict(json.loads(self.kubectl("get", *what, "-o", "json")))

    def apply(self, *objects: Json) -> None:
        self.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )

    def catalog(self) -> Json:
        storage = {"blob": self._blob, "consensus": self._consensus}
        return {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "Catalog",
            "metadata": {"name": "demo"},
            "spec": {"organizationId": self.organization, "storage": storage},
        }

    def collection(self, name: str) -> Json:
        return {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "StorageCollection",
            "metadata": {"name": name},
            "spec": {
                "catalogRef": {"name": "demo"},
                "columns": [{"name": "id", "type": "int64"}, {"name": "note", "type": "string"}],
                "key": ["id"],
            },
        }

    def wait_ready(self, *what: str) -> None:
        for each in what:
            self.kubectl("wait", "--for=condition=Ready", each, f"--timeout={PATIENCE_S:.0f}s")

    def leader(self) -> str:
        """The name of the pod that has the Lease."""
        return str(self.get(f"lease/{RELEASE}")["spec"].get("holderIdentity") or "")

    def pods(self) -> dict[str, Json]:
        """The pods of the operator that are not being ended, by name."""
        found = self.get("pods", "-l", "app.kubernetes.io/component=operator")["items"]
        return {
            each["metadata"]["name"]: each for each in found if "deletionTimestamp" not in each["metadata"]
        }

    def store(self) -> PersistClient:
        """A client of the location, as an application on this machine has one."""
        return PersistClient.open(
            blob=self._blob, consensus=self._consensus, config=PersistConfig(maintenance="off")
        )


@pytest.fixture(scope="module")
def installed(node: NodeCluster) -> Iterator[Installed]:
    with (
        Minio.start(address=node.address) as minio,
        PostgresServer.start(durable=False, address=node.address) as postgres,
        postgres.database() as database,
    ):
        there = Installed(node, minio, postgres, database)
        node.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": SYSTEM, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
            }
        )
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "stores"}}
        there.apply({**secret, "stringData": there.secret})
        repository, tag = OPERATOR.rsplit(":", 1)
        values = {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "replicas": 2,
            "storage": {"embedded": {"enabled": False}},
            "credentialsSecret": "stores",
            "extraArgs": ["--unsteady-interval=0.5", "--steady-interval=2"],
        }
        flags = ["--namespace", SYSTEM, "--wait", f"--timeout={PATIENCE_S:.0f}s"]
        helm.run("install", "holdfast-crds", CHARTS / "holdfast-crds", *flags, cluster=node.plane)
        helm.run("install", RELEASE, CHARTS / RELEASE, *flags, values=values, cluster=node.plane)
        try:
            there.apply(there.catalog(), there.collection("flights"))
            there.wait_ready("catalog/demo", "storagecollection/flights")
            yield there
        finally:
            print(there.kubectl("get", "pods,catalogs,storagecollections,leases"))
            for pod in there.pods():
                print(f"--- {pod}\n{there.kubectl('logs', pod, '--tail=40')}")


def test_what_is_written_on_this_machine_shows_in_the_cluster(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in installed.secret.items():
        monkeypatch.setenv(name, value)
    found = installed.get("storagecollection/flights")["status"]["collectionId"]
    with installed.store() as client:
        writer = StorageController(client).writer(found, purpose="test")
        table = pa.table({"id": pa.array([1, 2], pa.int64()), "note": ["a", "b"]})
        at = writer.upper()
        writer.append(table, at, at + 7)
    path = "storagecollection/flights"
    until(lambda: int(installed.get(path)["status"]["upper"]) >= at + 7, "the status has the upper")


def test_the_release_passes_its_own_test(installed: Installed) -> None:
    told = helm.run("test", RELEASE, "--namespace", SYSTEM, "--timeout=180s", cluster=installed.node.plane)
    assert "Phase:          Succeeded" in told


def test_a_standby_acts_when_the_leader_is_killed(
    installed: Installed, record_property: Callable[[str, object], None]
) -> None:
    until(lambda: len(installed.pods()) == 2 and installed.leader() in installed.pods(), "two, one leads")
    killed = installed.leader()
    begun = time.monotonic()
    installed.kubectl("delete", "pod", killed, "--grace-period=0", "--force")
    installed.apply(installed.collection("after-the-kill"))
    installed.wait_ready("storagecollection/after-the-kill")
    record_property("standby acted after seconds", round(time.monotonic() - begun, 1))
    print(f"the standby acted after {time.monotonic() - begun:.1f} s")
    assert installed.leader() not in {"", killed}


def test_a_leader_that_was_frozen_ends_cleanly_and_leaves_what_its_successor_did(
    installed: Installed, record_property: Callable[[str, object], None]
) -> None:
    until(lambda: len(installed.pods()) == 2 and installed.leader() in installed.pods(), "two, one leads")
    frozen = installed.leader()
    uid = installed.pods()[frozen]["metadata"]["uid"]
    begun = time.monotonic()
    installed.node.freeze(uid)
    try:
        until(lambda: installed.leader() != frozen, "another leads")
        record_property("standby led after seconds", round(time.monotonic() - begun, 1))
        print(f"the standby led after {time.monotonic() - begun:.1f} s")
    finally:
        installed.node.thaw(uid)
    installed.apply(installed.collection("after-the-freeze"))
    installed.wait_ready("storagecollection/after-the-freeze")

    def ended() -> Json:
        (status,) = installed.get(f"pod/{frozen}")["status"]["containerStatuses"]
        return dict(status.get("lastState", {}).get("terminated", {}))

    until(lambda: bool(ended()), "the frozen one has ended")
    assert ended()["exitCode"] == 0
    assert installed.leader() != frozen
    installed.wait_ready("catalog/demo", "storagecollection/flights")
