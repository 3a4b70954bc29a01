"""The operator's chart on a real node, on S3 and Postgres: two pods of our image, one of which acts."""

import contextlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from holdfast.catalog import OpenMode, persist_catalog
from holdfast.collections import StorageController
from holdfast.persist import PersistClient, PersistConfig
from holdfast_operator.api.names import OPERATORS
from testbed import helm
from testbed.helm import CHARTS
from testbed.images import OPERATOR
from testbed.minio import Minio
from testbed.node import NodeCluster
from testbed.postgres import USER, PostgresServer

Json = dict[str, Any]

RELEASE: Final = "holdfast-operator"
SYSTEM: Final = "holdfast"
PATIENCE_S: Final = 180.0
_LONGEST_S: Final = 900.0
WAIT: Final = ("--wait", f"--timeout={PATIENCE_S:.0f}s")


_REPOSITORY, _TAG = OPERATOR.rsplit(":", 1)
VALUES: Final[Mapping[str, Any]] = {
    "image": {"repository": _REPOSITORY, "tag": _TAG, "pullPolicy": "Never"},
    "replicas": 2,
    "storage": {"embedded": {"enabled": False}, "letAllNamespacesUseOwnCredentialsAnywhere": True},
    "credentialsSecret": "stores",
    "extraArgs": ["--unsteady-interval=0.5", "--steady-interval=2"],
    "log": {"level": "debug"},
}


def until(holds: Callable[[], bool], what: str, *, progress: Callable[[], object] = lambda: None) -> None:
    """Wait until it is so; not longer than `PATIENCE_S` without progress, nor than `_LONGEST_S` with it.

    `progress` returns another value each time that something went on: a busy machine is slow, not stuck.
    """
    begin = time.monotonic()
    seen, deadline = progress(), begin + PATIENCE_S
    while not holds():
        if (now := time.monotonic()) >= deadline:
            before, seen = seen, progress()
            assert seen != before, f"never, and nothing goes on: {what}; {seen}"
            assert now - begin < _LONGEST_S, f"not in {_LONGEST_S:.0f} s: {what}; {seen}"
            deadline = now + PATIENCE_S
        threading.Event().wait(0.1)


class Installed:
    """The release, and the stores that its pods share with this machine."""

    def __init__(
        self,
        node: NodeCluster,
        minio: Minio,
        postgres: PostgresServer,
        database: str,
        values: Mapping[str, Any],
    ) -> None:
        self.node = node
        self.values = {**VALUES, **values}
        self.minio = minio
        self.postgres = postgres
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

    def lease(self) -> Json:
        """The Lease of the operators."""
        return self.get(f"lease/{RELEASE}")

    def leader(self) -> str:
        """The name of the pod that has the Lease."""
        return str(self.lease()["spec"].get("holderIdentity") or "")

    def container(self, pod: str) -> Json:
        """What the status of a pod says of its container."""
        (told,) = self.get(f"pod/{pod}")["status"]["containerStatuses"]
        return dict(told)

    def pods(self) -> dict[str, Json]:
        """The pods of the operator that are not being ended, by name."""
        found = self.get("pods", "-l", OPERATORS)["items"]
        return {
            each["metadata"]["name"]: each for each in found if "deletionTimestamp" not in each["metadata"]
        }

    def both_run(self) -> None:
        """Wait until there are two operators, ready, and one of them leads."""

        def ready(pod: Json) -> bool:
            conditions = pod["status"].get("conditions", ())
            return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

        def holds() -> bool:
            pods = self.pods()
            return len(pods) == 2 and all(map(ready, pods.values())) and self.leader() in pods

        until(holds, "two are ready, and one leads")

    def helm(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
        return helm.run(*arguments, "--namespace", SYSTEM, values=values, cluster=self.node.plane)

    def upgrade(self, **values: Any) -> None:
        """Have the release as it was installed, but for these values."""
        self.helm("upgrade", RELEASE, CHARTS / RELEASE, *WAIT, values=self.values | values)

    def set(self, **values: Any) -> None:
        """Change these values of the release, and wait for nothing."""
        self.helm("upgrade", RELEASE, CHARTS / RELEASE, "--reuse-values", values=values)

    def scale(self, number: int) -> None:
        """Have so many operators, whatever the release says, and no other pod of theirs."""
        self.kubectl("scale", f"deployment/{RELEASE}", f"--replicas={number}")
        until(lambda: len(self.get("pods", "-l", OPERATORS)["items"]) == number, f"there are {number}")

    def remove(self) -> None:
        """Have nothing of the release, nor of what was made with it."""
        for kind in ("storagecollections", "catalogs"):
            self.kubectl("delete", kind, "--all", f"--timeout={PATIENCE_S:.0f}s")
        for name in (RELEASE, "holdfast-crds"):
            self.helm("uninstall", name, "--ignore-not-found", *WAIT)

    def append(self, *ids: int) -> int:
        """Append rows to `flights` as an application on this machine does; returns the new upper."""
        with self.controller() as controller:
            writer = controller.writer(self.flights, purpose="test")
            at = writer.upper()
            rows = {"id": pa.array(ids, pa.int64()), "note": [f"row {each}" for each in ids]}
            writer.append(pa.table(rows), at, at + 7)
            return at + 7

    def rows(self) -> list[tuple[int, str]]:
        """The rows of `flights`."""
        with self.controller() as controller:
            table = controller.reader(self.flights, purpose="test").snapshot().to_table()
            return sorted(zip(table["id"].to_pylist(), table["note"].to_pylist(), strict=True))

    @property
    def flights(self) -> str:
        return str(self.get("storagecollection/flights")["status"]["collectionId"])

    def take(self) -> int:
        """Open the catalog for writing as another process does, which then ends; returns its epoch."""
        with self.client() as client:
            closed = persist_catalog(client, self.organization)
            closed.open(OpenMode.WRITABLE, holder="nightly-job", purpose="a load of its own").close()
            epoch = closed.epoch()
            assert epoch is not None
            return epoch

    @contextlib.contextmanager
    def controller(self) -> Iterator[StorageController]:
        """The collections of the location, as an application on this machine has them."""
        with self.client() as client, StorageController(client) as controller:
            yield controller

    @contextlib.contextmanager
    def client(self) -> Iterator[PersistClient]:
        """The location, as an application on this machine has it."""
        before = {name: os.environ.get(name) for name in self.secret}
        os.environ.update(self.secret)
        try:
            config = PersistConfig(maintenance="off")
            with PersistClient.open(blob=self._blob, consensus=self._consensus, config=config) as client:
                yield client
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@contextlib.contextmanager
def release(node: NodeCluster, **values: Any) -> Iterator[Installed]:
    """The charts installed, with a Catalog and a StorageCollection that are ready; in the end nothing is."""
    with (
        Minio.start(address=node.address) as minio,
        PostgresServer.start(durable=False, address=node.address) as postgres,
        postgres.database() as database,
    ):
        there = Installed(node, minio, postgres, database, values)
        node.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": SYSTEM, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
            }
        )
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "stores"}}
        there.apply({**secret, "stringData": there.secret})
        there.helm("install", "holdfast-crds", CHARTS / "holdfast-crds", *WAIT)
        there.helm("install", RELEASE, CHARTS / RELEASE, *WAIT, values=there.values)
        try:
            there.apply(there.catalog(), there.collection("flights"))
            there.wait_ready("catalog/demo", "storagecollection/flights")
            yield there
        finally:
            print(there.kubectl("get", "pods,catalogs,storagecollections,leases"))
            for pod in there.pods():
                print(f"--- {pod}\n{there.kubectl('logs', pod, '--tail=40')}")
            there.remove()
