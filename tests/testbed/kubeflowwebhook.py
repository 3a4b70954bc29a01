"""The real admission webhook of the Kubeflow Spark operator, as a process beside an API server.

Invariants
- The definitions of the resources and the configurations of the webhooks are those of its chart. Only the
  address differs: a URL on this machine instead of a Service, which needs a node.
- The program makes its own certificate, which is valid for `localhost`, and writes the authority into the
  configurations, as in a cluster.
- With `failurePolicy: Fail`, an application is created only if the webhook admits it.
"""

import json
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from testbed import build, helm
from testbed.errors import KubectlError
from testbed.kube import ControlPlane, wait_until
from testbed.postgres import free_port
from testbed.process import Child

Json = dict[str, Any]

_CHART: Final = build.SPARK_OPERATOR.path.with_name("spark-operator-chart")
_NAMESPACE: Final = "spark-operator"
_LOOPBACK: Final = "127.0.0.1"
_KINDS: Final = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_VALUES: Final = {"webhook": {"enable": True, "failurePolicy": "Fail"}, "spark": {"jobNamespaces": [""]}}
_MISNAMED: Final[Json] = {
    "apiVersion": "sparkoperator.k8s.io/v1beta2",
    "kind": "SparkApplication",
    "metadata": {"name": "1", "namespace": "default"},
    "spec": {
        "type": "Python",
        "mode": "cluster",
        "sparkVersion": "4.0.0",
        "mainApplicationFile": "local:///nothing.py",
        "driver": {},
        "executor": {},
    },
}
"""An application whose name is the only thing wrong with it."""


class KubeflowWebhook:
    """The running webhook; as a context manager it is stopped at the end, but its configurations stay."""

    def __init__(self, cluster: ControlPlane, folder: Path) -> None:
        """Start it, building it first if it is missing, and wait until the API server asks it.

        The folder is for its log and its certificate. Raises `Unavailable` if it can't be built, and
        `ControlPlaneError` if it doesn't come up.
        """
        build.ensure((build.SPARK_OPERATOR,))
        port, health = free_port(_LOOPBACK), free_port(_LOOPBACK)
        self.cluster = cluster
        configurations = _configurations(port)
        cluster.kubectl("create", "namespace", _NAMESPACE)
        # The definitions are too large for the annotation that `kubectl apply` writes.
        cluster.kubectl("create", "-f", _CHART / "crds")
        crds = [f"crd/{path.stem.split('_')[1]}.sparkoperator.k8s.io" for path in (_CHART / "crds").iterdir()]
        cluster.wait_established(*crds)
        mutating, validating = (each["metadata"]["name"] for each in configurations)
        self._child = Child(
            "spark-operator-webhook",
            [
                build.SPARK_OPERATOR.path,
                *("webhook", "start"),
                f"--kubeconfig={cluster.kubeconfig}",
                f"--webhook-port={port}",
                f"--webhook-cert-dir={folder / 'serving-certs'}",
                f"--webhook-secret-namespace={_NAMESPACE}",
                f"--mutating-webhook-name={mutating}",
                f"--validating-webhook-name={validating}",
                f"--health-probe-bind-address={_LOOPBACK}:{health}",
            ],
            log=folder / "spark-operator-webhook.log",
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        )
        try:
            wait_until(
                "the webhook of the Spark operator was ready",
                lambda: _is_ready(f"http://{_LOOPBACK}:{health}/readyz"),
                (self._child,),
            )
            cluster.apply(*configurations)
            wait_until("the API server asked it", self._refuses, (self._child,))
        except BaseException:
            self.stop()
            raise

    def asked(self) -> set[str]:
        """The names of the applications that the API server asked it to admit."""
        lines = (json.loads(line) for line in self._child.log.read_text().splitlines() if line[:1] == "{")
        creates = (line for line in lines if line["msg"] == "Validating SparkApplication create")
        return {line["SparkApplication"]["name"] for line in creates}

    def stop(self) -> None:
        self._child.stop()

    def _refuses(self) -> bool:
        """Whether the API server knows the configurations, trusts the webhook, and passes its refusal on."""
        try:
            self.cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(_MISNAMED))
        except KubectlError as error:
            return "invalid SparkApplication name" in str(error)
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _configurations(port: int) -> list[Json]:
    """The configurations of the chart, the mutating one first, with the address of a process."""
    flags = ["--namespace", _NAMESPACE, "--kube-version", helm.KUBE_VERSION]
    text = helm.run("template", "spark-operator", _CHART, *flags, values=_VALUES)
    objects = [document for document in yaml.safe_load_all(text) if document]
    found = [helm.find(objects, kind) for kind in _KINDS]
    for each in found:
        for hook in each["webhooks"]:
            service = hook["clientConfig"].pop("service")
            hook["clientConfig"]["url"] = f"https://localhost:{port}{service['path']}"
    return found


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
