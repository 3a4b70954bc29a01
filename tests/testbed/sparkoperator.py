"""Stands in for what runs Spark on a cluster: watches applications of one kind and runs their drivers here.

The kinds are in `sparkfaces`: SparkApplications of the Kubeflow and of the Apache operator, and the pods of
plain Jobs.

Invariants
- Every object passes through its states once (`sparkapplication`), with real Spark and without pods.
- A driver ends with its object and with its stand-in. If a new stand-in finds an application half-way, it
  reports that the driver is gone.
- It misbehaves only if a test asks for it (`Misbehaviour`), in ways that real operators do.
"""

import logging
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import urllib3
from kubernetes.client import ApiClient, ApiException
from kubernetes.config import new_client_from_config
from kubernetes.watch import Watch

from testbed.kube import ControlPlane
from testbed.sparkapplication import Application, Cluster, Misbehave
from testbed.sparkfaces import APACHE, KUBEFLOW, PODS, Face
from testbed.sparkstatus import GROUP, MISBEHAVE, PLURAL, VERSION, Misbehaviour, State, annotated

__all__ = [
    "APACHE",
    "CRD_FILE",
    "GROUP",
    "KUBEFLOW",
    "MISBEHAVE",
    "PLURAL",
    "PODS",
    "VERSION",
    "Misbehaviour",
    "SparkOperatorStandIn",
    "State",
    "annotated",
    "install_crd",
]

CRD_FILE: Final = Path(__file__).with_name("sparkapplication-crd.yaml")
APACHE_CRD_FILE: Final = Path(__file__).with_name("sparkapplication-apache-crd.yaml")
_RELIST_SECONDS: Final = 30
_RETRY_SECONDS: Final = 0.5
_JOIN_SECONDS: Final = 0.05

_log = logging.getLogger(__name__)


def install_crd(cluster: ControlPlane, face: Face = KUBEFLOW) -> None:
    """Apply the SparkApplication CRD of a Spark operator and wait until objects of it can be made."""
    cluster.kubectl("apply", "-f", APACHE_CRD_FILE if face is APACHE else CRD_FILE)
    cluster.wait_established(f"crd/{face.plural}.{face.group}")


class ByAttempt:
    """What the stand-in does to each attempt, which a test may change at any time."""

    def __init__(self) -> None:
        self.by_attempt: dict[str, Misbehaviour] = {}

    def __call__(self, application: Mapping[str, Any]) -> Misbehaviour | None:
        return self.by_attempt.get(application["metadata"]["labels"]["holdfast.dev/attempt"])


class SparkOperatorStandIn:
    """Serves the applications of one namespace, or of all, from `start` to `stop`."""

    def __init__(
        self,
        kubeconfig: Path,
        *,
        namespace: str | None = None,
        log_dir: Path | None = None,
        master: str = "local[2]",
        misbehave: Misbehave = annotated,
        face: Face = KUBEFLOW,
    ) -> None:
        """Serve with `master` as Spark's; `misbehave` decides per object. By default, the annotation decides.

        Logs and working folders of drivers are in `<log_dir>/<namespace>/<name>-<start of the uid>/`; without
        `log_dir`, in a temporary folder that goes with the stand-in.
        """
        self._namespace = namespace
        self._temporary = log_dir is None
        self.log_dir = Path(tempfile.mkdtemp(prefix="holdfast-spark-")) if log_dir is None else log_dir
        self._master = master
        self._misbehave = misbehave
        client: ApiClient = new_client_from_config(config_file=str(kubeconfig))  # type: ignore[no-untyped-call]
        self._face = face
        self._cluster = Cluster(client, face)
        self._watch = Watch()  # type: ignore[no-untyped-call]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="spark-operator", daemon=True)
        self._applications: dict[str, Application] = {}

    def start(self) -> Self:
        """Begin to serve; the CRD may come later."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End all drivers, leave the objects as they are, and return when nothing runs any more."""
        self._stopping.set()
        while self._thread.is_alive():
            # Again and again, for a request may be just about to begin.
            self._watch.stop()  # type: ignore[no-untyped-call]
            self._thread.join(_JOIN_SECONDS)
        for application in self._applications.values():
            application.cancel()
        for application in self._applications.values():
            application.join()
        self._cluster.close()
        if self._temporary:
            shutil.rmtree(self.log_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                version = self._list()
                for event in self._events(version):
                    if event is None:
                        break  # a line that was cut off: list again
                    self._observe(event["type"], event["raw_object"])
            except (ApiException, urllib3.exceptions.HTTPError) as error:
                # No CRD yet, a history too old, or a server that isn't there: list again.
                _log.debug("the watch of %s ended: %s", self._face.plural, error)
                self._stopping.wait(_RETRY_SECONDS)

    def _list(self) -> str:
        """Take note of all objects that there are, and of those that are gone; the version to watch from."""
        found = self._cluster.list(self._namespace)
        there = {each["metadata"]["uid"] for each in found["items"]}
        for uid in self._applications.keys() - there:
            self._applications.pop(uid).cancel()
        for each in found["items"]:
            self._observe("ADDED", each)
        return str(found["metadata"]["resourceVersion"])

    def _events(self, version: str) -> Iterator[dict[str, Any] | None]:
        listing, where = self._cluster.listing(self._namespace)
        events: Iterator[dict[str, Any] | None] = self._watch.stream(  # type: ignore[no-untyped-call]
            listing, *where, resource_version=version, timeout_seconds=_RELIST_SECONDS
        )
        return events

    def _observe(self, kind: str, found: Mapping[str, Any]) -> None:
        uid = found["metadata"]["uid"]
        if kind == "DELETED" or "deletionTimestamp" in found["metadata"]:
            gone = self._applications.pop(uid, None)
            if gone:
                gone.cancel()
        elif uid not in self._applications and not self._stopping.is_set():
            metadata = found["metadata"]
            application = Application(
                self._cluster,
                self._face,
                found,
                folder=self.log_dir / metadata["namespace"] / f"{metadata['name']}-{uid[:8]}",
                master=self._master,
                misbehave=self._misbehave,
            )
            self._applications[uid] = application
            application.start()
