"""Helm for tests: renders charts without a cluster, and installs them on a real API server.

Invariants
- Helm reads and writes nothing of the user's settings (repositories, plugins, caches).
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from testbed import build
from testbed.errors import HelmError
from testbed.kube import ControlPlane

Json = dict[str, Any]

CHARTS: Final = Path(__file__).parents[2] / "charts"
KUBE_VERSION: Final = build.KUBERNETES_VERSION.removeprefix("v")
_SECONDS: Final = 300.0


def template(
    chart: str,
    values: Mapping[str, Any] | None = None,
    *,
    name: str = "holdfast-operator",
    namespace: str = "holdfast",
) -> list[Json]:
    """The objects of a chart, hooks included. Raises `HelmError` where it refuses the values."""
    flags = ["--namespace", namespace, "--kube-version", KUBE_VERSION]
    text = run("template", name, CHARTS / chart, *flags, values=values)
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def run(
    *arguments: str | Path, values: Mapping[str, Any] | None = None, cluster: ControlPlane | None = None
) -> str:
    """One command; `values` are handed to it by a file. Raises `HelmError`."""
    with tempfile.TemporaryDirectory(prefix="holdfast-helm-") as home:
        command = [os.fspath(part) for part in (build.HELM.path, *arguments)]
        if values is not None:
            given = Path(home) / "values.yaml"
            given.write_text(yaml.safe_dump(dict(values)))
            command += ["--values", str(given)]
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "KUBECONFIG": os.devnull}
        if cluster is not None:
            env["KUBECONFIG"] = str(cluster.kubeconfig)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=env)
    if done.returncode != 0:
        raise HelmError(done.stderr.strip())
    return done.stdout


def find(objects: list[Json], kind: str, name: str | None = None) -> Json:
    """The one object of a kind (and name)."""
    (found,) = (each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"]))
    return found
