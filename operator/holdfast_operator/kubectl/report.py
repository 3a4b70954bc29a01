"""`kubectl holdfast report`: a support bundle with the state of Holdfast in a cluster, without secrets.

Invariants
- No Secret is requested. Everything is gathered and redacted (see `redaction`) before the first byte is
  written.
- The index lists what could not be gathered, and why. The report never fails because of it.
- The file gets its name when it is complete.
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click

from holdfast.cli.files import regular_target, replacing
from holdfast.errors import BadInput, HoldfastError
from holdfast_operator.api.names import (
    FIELD_MANAGER,
    GROUP,
    LABEL_JOB,
    LABEL_MANAGED_BY,
    MANAGED_BY,
    OPERATORS,
    Kind,
)
from holdfast_operator.kubectl.cluster import Cluster, type_of
from holdfast_operator.kubectl.options import cluster_options
from holdfast_operator.kubectl.redaction import Redactor
from holdfast_operator.kubectl.status_command import overview

Json = dict[str, Any]

_CHART: Final = "holdfast-operator"
_CRDS: Final = "app.kubernetes.io/name=holdfast"
_JOBS: Final = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_JOB}"
_METRICS_PORT: Final = 8080
_TOP: Final = "holdfast-report"
_WIDTH: Final = 140


@dataclass
class Bundle:
    """The gathered contents by file name, and the reasons for missing files."""

    files: dict[str, Any] = field(default_factory=dict)
    """Texts, or objects that become JSON."""
    missing: dict[str, str] = field(default_factory=dict)

    def get(self, name: str, ask: Callable[[], Any]) -> Any:
        """Calls `ask`, and stores and returns the result. Returns None if it fails."""
        try:
            found = ask()
        except HoldfastError as error:
            self.missing[name] = " ".join(str(error).split())
            return None
        self.files[name] = found
        return found


@click.command()
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File to write. The default is holdfast-report-TIME.tar.gz.",
)
@click.option(
    "--lines",
    metavar="N",
    type=click.IntRange(min=1),
    default=5000,
    show_default=True,
    help="Number of last lines of each log.",
)
@click.option(
    "--operator-namespace", metavar="NAME", help="Namespace of the operator. By default, it is searched for."
)
@cluster_options(everywhere=True)
def report(cluster: Cluster, output: Path | None, lines: int, operator_namespace: str | None) -> None:
    """Write a support bundle without secrets.

    The bundle contains Holdfast's resources in the namespace (or in all namespaces) with their Events and
    ConfigMaps, the operator's Deployment, pods, logs, Lease and metrics, the pods of Spark jobs and their
    logs, the CRDs, and versions. No Secret is read, and everything that looks like a secret is replaced by
    ***. Check the bundle before you share it.
    """
    now = datetime.now(UTC)
    file = output or Path(f"{_TOP}-{now:%Y%m%d-%H%M%S}.tar.gz")
    target = regular_target(file)
    if target is None:
        raise BadInput("can't write the bundle: -o must name a regular file")
    bundle = redacted(gather(cluster, lines, operator_namespace, now))
    content = packed(bundle, now)
    try:
        with replacing(target) as stream:
            stream.write(content)
    except OSError as error:
        raise BadInput(f"can't write {file}: {error.strerror or error}") from error
    click.echo(f"{file}: {len(bundle.files)} files, {len(content):,} bytes")
    for name, why in bundle.missing.items():
        click.echo(f"  without {name}: {why}", err=True)


def gather(cluster: Cluster, lines: int, operator_namespace: str | None, now: datetime) -> Bundle:
    """Gathers the whole bundle, not yet redacted."""
    bundle = Bundle()
    bodies: list[Json] = []
    for kind in Kind:
        bodies += bundle.get(f"resources/{kind.plural}.json", partial(cluster.all, type_of(kind))) or []
    bundle.files["status.txt"] = "\n".join([*overview(bodies, now, _WIDTH, everywhere=True), ""])
    bundle.get("events.json", lambda: [each for each in cluster.all("events") if _is_ours(each)])
    bundle.get(
        "connections.json", lambda: cluster.all("configmaps", "-l", f"{LABEL_MANAGED_BY}={MANAGED_BY}")
    )
    bundle.get("crds.json", lambda: [_crd(each) for each in cluster.all("crds", "-l", _CRDS)])
    bundle.get("versions.json", lambda: _versions(cluster))
    _operator(cluster, bundle, lines, operator_namespace)
    for pod in bundle.get("jobs/pods.json", lambda: cluster.all("pods", "-l", _JOBS)) or ():
        _log(cluster, bundle, pod, f"jobs/{pod['metadata']['namespace']}", lines)
    return bundle


def _operator(cluster: Cluster, bundle: Bundle, lines: int, namespace: str | None) -> None:
    where = ("-n", namespace) if namespace else ("-A",)

    def deployments() -> list[Json]:
        found = cluster.answer("get", "deployments", *where, "-l", OPERATORS, "-o", "json")["items"]
        return [each for each in found if _is_chart(each)]

    found = bundle.get("operator/deployments.json", deployments)
    if found == []:
        bundle.missing["the operator"] = (
            "no Deployment of its chart found; name its namespace with --operator-namespace"
        )
    for each in found or ():
        there, name = each["metadata"]["namespace"], each["metadata"]["name"]
        _lease(cluster, bundle, there, name)
        instance = each["metadata"]["labels"].get("app.kubernetes.io/instance", name)
        selector = f"{OPERATORS},app.kubernetes.io/instance={instance}"
        _pods(cluster, bundle, there, selector, lines)


def _lease(cluster: Cluster, bundle: Bundle, namespace: str, name: str) -> None:
    def ask() -> Json:
        return cluster.answer("get", "lease", name, "-n", namespace, "-o", "json")

    bundle.get(f"operator/{namespace}/{name}/lease.json", ask)


def _pods(cluster: Cluster, bundle: Bundle, namespace: str, selector: str, lines: int) -> None:
    def ask() -> list[Json]:
        return list(cluster.answer("get", "pods", "-n", namespace, "-l", selector, "-o", "json")["items"])

    for pod in bundle.get(f"operator/{namespace}/pods.json", ask) or ():
        _pod(cluster, bundle, pod, f"operator/{namespace}", lines)


def _pod(cluster: Cluster, bundle: Bundle, pod: Json, folder: str, lines: int) -> None:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]

    def metrics() -> str:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}:{_METRICS_PORT}/proxy/metrics"
        return cluster.text("get", "--raw", path)

    _log(cluster, bundle, pod, folder, lines)
    bundle.get(f"{folder}/{name}/metrics.txt", metrics)


def _log(cluster: Cluster, bundle: Bundle, pod: Json, folder: str, lines: int) -> None:
    """Gathers the log of a pod, and the log from before its container restarted."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]

    def log(*more: str) -> str:
        flags = ("-n", namespace, "--all-containers", "--timestamps", f"--tail={lines}")
        return cluster.text("logs", name, *flags, *more)

    bundle.get(f"{folder}/{name}/log.txt", log)
    if any(each.get("restartCount") for each in pod.get("status", {}).get("containerStatuses", ())):
        bundle.get(f"{folder}/{name}/log-before.txt", lambda: log("--previous"))


def _is_ours(event: Json) -> bool:
    about = str(event.get("involvedObject", {}).get("apiVersion", ""))
    return about.startswith(f"{GROUP}/") or event.get("source", {}).get("component") == FIELD_MANAGER


def _is_chart(deployment: Json) -> bool:
    labels = deployment["metadata"].get("labels", {})
    chart = str(labels.get("helm.sh/chart", ""))
    return chart.startswith(_CHART) or labels.get("app.kubernetes.io/name") == _CHART


def _crd(body: Json) -> Json:
    """Returns a CRD without its schema, which its version determines."""
    return {
        "metadata": body["metadata"],
        "versions": [
            {name: each.get(name) for name in ("name", "served", "storage")}
            for each in body["spec"]["versions"]
        ],
        "status": body.get("status"),
    }


def _versions(cluster: Cluster) -> Json:
    ours = {name: version(name) for name in ("holdfast", "holdfast-operator", "click")}
    return {"plugin": ours, "kubectl": cluster.answer("version", "-o", "json")}


def redacted(bundle: Bundle) -> Bundle:
    """Returns the bundle without secrets. Reads all of it first, to find the secrets."""
    redactor = Redactor()
    for each in (*bundle.files.values(), *bundle.missing.values()):
        redactor.learn(each)
    return Bundle(
        {
            name: redactor.text(content) if isinstance(content, str) else redactor.tree(content)
            for name, content in bundle.files.items()
        },
        {name: redactor.text(why) for name, why in bundle.missing.items()},
    )


def packed(bundle: Bundle, now: datetime) -> bytes:
    """Returns the bytes of the .tar.gz file. The index comes first."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in (("index.txt", "\n".join([*_index(bundle, now), ""])), *bundle.files.items()):
            text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False)
            data = text.encode()
            entry = tarfile.TarInfo(f"{_TOP}/{name}")
            entry.size, entry.mtime = len(data), int(now.timestamp())
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _index(bundle: Bundle, now: datetime) -> Iterator[str]:
    yield f"Support bundle of Holdfast, {now:%Y-%m-%d %H:%M:%S} UTC"
    yield ""
    yield "No Secret was read. Everything that looks like a secret is replaced by ***."
    yield ""
    yield "Contents:"
    for name, content in bundle.files.items():
        count = f"{len(content)} objects" if isinstance(content, list) else ""
        if isinstance(content, str):
            count = f"{len(content.splitlines())} lines"
        yield f"  {name:<60} {count}".rstrip()
    yield ""
    if not bundle.missing:
        yield "Nothing is missing."
        return
    yield "Missing:"
    for name, why in bundle.missing.items():
        yield f"  {name}: {why}"
