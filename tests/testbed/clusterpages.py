"""The cluster for documentation pages that need one: an API server with an operator, and stores.

The cluster has no nodes. One operator process here stands for the pods of every release, and `HookRunner`
runs the pods of hooks. If a page applies a file from `crds/`, it gets a copy with the addresses of running
servers.

Invariants
- Each page has a namespace of its own. Nothing of it is left when the next page begins.
- If a page starts an operator itself, no other operator watches its namespace.
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed import build, commandserver, docpages, helm
from testbed.children import plain_path
from testbed.errors import KubectlError
from testbed.helm import CHARTS
from testbed.hooks import HookRunner
from testbed.kube import ControlPlane
from testbed.minio import Minio
from testbed.objects import Objects
from testbed.operatorprocess import OperatorProcess
from testbed.pageruns import PageRun
from testbed.postgres import USER, PostgresServer

SYSTEM: Final = "holdfast"
RELEASE: Final = "holdfast-operator"
OWN: Final = "default"
"""The namespace of a page that starts an operator."""
_KINDS: Final = ("collectionsnapshots", "catalogmigrations", "storagecollections", "catalogs")
_HOOKED: Final = ("helm test", "helm uninstall")
"""Commands that wait for pods of hooks."""
_VOLUME: Final = "/var/lib/holdfast"
_STARTER: Final = """#!/bin/bash
# Starts an operator in the background, where a reader has a terminal for it, and ends when it serves.
run=({python} -m holdfast_operator "$@")
test "${{1-}}" = run || exec "${{run[@]}}"
log=$(mktemp "$HOME/operator-XXXXXX")
"${{run[@]}}" --listen=127.0.0.1:0 >"$log" 2>&1 </dev/null &
echo $! >"$HOME/operator-pid"
for _ in {{1..1200}}; do
  ! grep -q "health and metrics on" "$log" || exit 0
  kill -0 $! 2>/dev/null || break
  sleep 0.1
done
cat "$log"
exit 1
"""

_STOPPER: Final = """#!/bin/bash
# Ends an operator and waits for its end, as Ctrl-C does in a reader's terminal.
pid=$(cat "$HOME/operator-pid")
kill "$pid"
for _ in {1..600}; do
  state=$(ps -o state= -p "$pid")
  [[ -n $state && $state != Z* ]] || exit 0
  sleep 0.1
done
exit 1
"""
_REMOVES: Final = "rm -r /tmp/holdfast"
"""A page removes the operator's folder. Its text says to stop the operator first."""


@dataclass(frozen=True)
class PagesCluster:
    """The cluster, and how pages find what is on it."""

    plane: ControlPlane
    operator: OperatorProcess
    environment: Mapping[str, str]
    places: Mapping[str, str]

    @contextlib.contextmanager
    def page(self, page: str, folder: Path) -> Iterator[PageRun]:
        """A run of a page in a namespace of its own."""
        config = folder / "kubeconfig"
        config.touch(mode=0o600)
        config.write_text(self.plane.kubeconfig.read_text())
        name = namespace(page)
        self.plane.kubectl(
            "config", "set-context", "--current", f"--namespace={name}", f"--kubeconfig={config}"
        )
        environment = {**self.environment, "KUBECONFIG": str(config), "HOME": str(folder)}
        with contextlib.ExitStack() as stack:
            objects = stack.enter_context(Objects(self.plane, name))
            own_folder = {f"{_VOLUME}/{OWN}/": f"{self.places[_VOLUME]}/{name}/"}
            stops = {_REMOVES: f"stop-operator && rm -r {folder}/tmp/holdfast"}
            places = {**self.places, **own_folder, **stops}
            run = stack.enter_context(PageRun(folder, environment=environment, places=places))
            stack.callback(_remove_ours, objects)
            samples = shutil.copytree(docpages.ROOT / "crds", folder / "crds")
            for sample in samples.rglob("*.yaml"):
                sample.write_text(run.here(sample.read_text()))
            (folder / "charts").symlink_to(CHARTS)
            if any(hooked in block.text for block in docpages.to_run(page) for hooked in _HOOKED):
                service = f"http://{RELEASE}.{SYSTEM}.svc:8080"
                replacing = {service: self.operator.address()}
                stack.enter_context(HookRunner(self.plane, SYSTEM, replacing=replacing))
            yield run


def namespace(page: str) -> str:
    """The namespace of a page."""
    if any("holdfast-operator run" in block.text for block in docpages.to_run(page)):
        return OWN
    return f"page-{docpages.on(docpages.Where.CLUSTER).index(page)}"


@contextlib.contextmanager
def serving(minio: Minio, postgres: PostgresServer, folder: Path) -> Iterator[PagesCluster]:
    """A cluster with our CRDs, and an operator that serves the namespaces of all pages."""
    volume, tools = folder / "volume", folder / "bin"
    volume.mkdir()
    tools.mkdir()
    build.ensure((build.HELM,))
    (tools / "kubectl").symlink_to(build.kubectl())
    (tools / "helm").symlink_to(build.HELM.path)
    starter = tools / "holdfast-operator"
    starter.write_text(_STARTER.format(python=sys.executable))
    starter.chmod(0o755)
    stopper = tools / "stop-operator"
    stopper.write_text(_STOPPER)
    stopper.chmod(0o755)
    with ControlPlane.start() as plane, postgres.database() as database, contextlib.ExitStack() as stack:
        helm.run("install", "holdfast-crds", CHARTS / "holdfast-crds", cluster=plane)
        names = {namespace(page) for page in docpages.on(docpages.Where.CLUSTER)} - {OWN}
        _make_namespaces(plane, {*names, SYSTEM})
        stores = {**minio.credentials, "PGUSER": USER, "PGPASSWORD": postgres.password}
        operator = OperatorProcess(
            plane,
            *(SYSTEM, folder, 1, "--storage-shared", "--lease", f"--lease-namespace={SYSTEM}"),
            *("--lease-duration=60", "--lease-renew-deadline=50"),
            *("--unsteady-interval=0.2", "--steady-interval=0.5"),
            *(f"--namespace={name}" for name in sorted(names)),
            environment={**stores, "POD_NAME": "operator"},
        )
        stack.callback(lambda: print(f"--- {operator.log.name}\n{operator.child.tail(60)}"))
        stack.callback(operator.child.stop)
        environment = plane.environment(
            {
                "PATH": f"{tools}:{Path(sys.executable).parent}:/usr/bin:/bin",
                "PYTHONPATH": plain_path(str(docpages.ROOT / "tests")),
                "PASSWORD": postgres.password,
                # Where releases are that name no namespace: there is one of the CRDs, for all pages.
                "HELM_NAMESPACE": OWN,
                **stores,
            }
        )
        stack.enter_context(commandserver.serving(tools, environment))
        s3 = f"endpoint={minio.endpoint}&region=us-east-1"
        bucket = minio.make_bucket()
        places = {
            _VOLUME: str(volume),
            f"{_VOLUME}/": f"{volume}/",
            "s3://backups/demo/dump.json?region=eu-central-1": f"s3://{bucket}/dump.json?{s3}",
            "s3://backups/flights/2026-11-21?region=eu-central-1": f"s3://{bucket}/flights?{s3}",
            "s3://bucket/holdfast/default": f"s3://{bucket}/holdfast?{s3}",
            "s3://bucket/holdfast/{namespace}": f"s3://{bucket}/{{namespace}}?endpoint={minio.endpoint}",
            "postgresql://db.example/holdfast": f"postgresql://{postgres.address}:{postgres.port}/{database}",
            "user=holdfast ": f"user={USER} ",
        }
        yield PagesCluster(plane, operator, environment, places)


def _make_namespaces(plane: ControlPlane, names: set[str]) -> None:
    """Make namespaces, and wait until objects can be made in all of them."""
    plane.apply(
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in sorted(names))
    )
    for name in sorted(names):
        with Objects(plane, name) as objects:
            objects.wait_for("serviceaccount/default", ".metadata.name", "default")


def _remove_ours(objects: Objects) -> None:
    """Remove our resources; the operator that finalizes them may have ended with its page."""
    there = [f"{kind}/{each['metadata']['name']}" for kind in _KINDS for each in objects.list(kind)]
    objects.delete(*there, wait=False)
    for each in there:
        # One that the operator finalizes meanwhile is gone before it is asked for.
        with contextlib.suppress(KubectlError):
            objects.patch(each, {"metadata": {"finalizers": None}})
    for each in there:
        objects.wait_gone(each)
