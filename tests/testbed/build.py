"""Builds the binaries of the test bed from Go modules, once for each version and machine.

Invariants
- The `go.mod` in the folder of a tool below `tools/` sets the versions, and its `go.sum` the contents.
- A binary gets its final name when it is complete: the build writes it elsewhere and renames it. A lock on
  the cache folder lets only one process build at a time, so a second process finds the finished binary.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed import go
from testbed.cache import cache_folder
from testbed.errors import Unavailable
from testbed.process import Child

MODULE: Final = Path(__file__).parent / "tools" / "kubernetes"
COREDNS_MODULE: Final = Path(__file__).parent / "tools" / "coredns"
MINIO_MODULE: Final = Path(__file__).parent / "tools" / "minio"
HELM_MODULE: Final = Path(__file__).parent / "tools" / "helm"
CRANE_MODULE: Final = Path(__file__).parent / "tools" / "crane"
SPARK_OPERATOR_MODULE: Final = Path(__file__).parent / "tools" / "sparkoperator"
KUBERNETES_VERSION: Final = "v1.36.3"
ETCD_VERSION: Final = "v3.6.8"
COREDNS_VERSION: Final = "v1.15.0"
MINIO_VERSION: Final = "v0.0.0-20260212201848-7aac2a2c5b7c"
HELM_VERSION: Final = "v3.22.0"
CRANE_VERSION: Final = "v0.20.6"
SPARK_OPERATOR_VERSION: Final = "v2.5.2"
_BEAT: Final = 30.0
"""Seconds between two lines of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One binary: its name, its Go package, its version, and how long it takes from nothing on 2 cores.

    `module` is the folder of the go.mod that pins it; `beside` is a folder of the package's own module that
    goes with the binary.
    """

    name: str
    package: str
    version: str
    takes: str
    module: Path = MODULE
    beside: str = ""

    @property
    def path(self) -> Path:
        """Where the built binary is, or will be."""
        return cache_folder() / f"{self.name}-{self.version}" / self.name


ETCD: Final = Tool(
    name="etcd", package="go.etcd.io/etcd/server/v3", version=ETCD_VERSION, takes="about a minute"
)
APISERVER: Final = Tool(
    name="kube-apiserver",
    package="k8s.io/kubernetes/cmd/kube-apiserver",
    version=KUBERNETES_VERSION,
    takes="about 4 minutes",
)
CONTROLLERS: Final = Tool(
    name="kube-controller-manager",
    package="k8s.io/kubernetes/cmd/kube-controller-manager",
    version=KUBERNETES_VERSION,
    takes="about a minute",
)
KUBECTL: Final = Tool(
    name="kubectl",
    package="k8s.io/kubernetes/cmd/kubectl",
    version=KUBERNETES_VERSION,
    takes="about a minute",
)
SCHEDULER: Final = Tool(
    name="kube-scheduler",
    package="k8s.io/kubernetes/cmd/kube-scheduler",
    version=KUBERNETES_VERSION,
    takes="about a minute",
)
KUBELET: Final = Tool(
    name="kubelet",
    package="k8s.io/kubernetes/cmd/kubelet",
    version=KUBERNETES_VERSION,
    takes="about 2 minutes",
)
PROXY: Final = Tool(
    name="kube-proxy",
    package="k8s.io/kubernetes/cmd/kube-proxy",
    version=KUBERNETES_VERSION,
    takes="about a minute",
)
COREDNS: Final = Tool(
    name="coredns",
    package=".",
    version=COREDNS_VERSION,
    takes="about a minute",
    module=COREDNS_MODULE,
)
SPARK_OPERATOR: Final = Tool(
    name="spark-operator",
    package="github.com/kubeflow/spark-operator/v2/cmd/operator",
    version=SPARK_OPERATOR_VERSION,
    takes="about a minute",
    module=SPARK_OPERATOR_MODULE,
    beside="charts/spark-operator-chart",
)
NODE: Final = (SCHEDULER, KUBELET, PROXY, COREDNS, SPARK_OPERATOR)
"""What a node, and what runs on it, takes beside `needed`."""
MINIO: Final = Tool(
    name="minio",
    package="github.com/minio/minio",
    version=MINIO_VERSION,
    takes="about 3 minutes",
    module=MINIO_MODULE,
)
HELM: Final = Tool(
    name="helm",
    package="helm.sh/helm/v3/cmd/helm",
    version=HELM_VERSION,
    takes="about a minute",
    module=HELM_MODULE,
)

CRANE: Final = Tool(
    name="crane",
    package="github.com/google/go-containerregistry/cmd/crane",
    version=CRANE_VERSION,
    takes="about a minute",
    module=CRANE_MODULE,
)


def needed() -> tuple[Tool, ...]:
    """The binaries that a control plane takes on this machine; kubectl only where there is none."""
    return (ETCD, APISERVER, CONTROLLERS) + (() if shutil.which("kubectl") else (KUBECTL,))


def unbuilt(tools: Sequence[Tool] | None = None) -> tuple[Tool, ...]:
    """What of these (default: `needed`) isn't in the cache folder yet."""
    wanted = needed() if tools is None else tools
    return tuple(tool for tool in wanted if not tool.path.exists())


def kubectl() -> Path:
    """The kubectl to use: the machine's, else the built one."""
    found = shutil.which("kubectl")
    return Path(found) if found else KUBECTL.path


def ensure(tools: Sequence[Tool] | None = None) -> None:
    """Build what is missing of `tools` (default: `needed`), telling the progress on standard error.

    Raises `Unavailable` where there is no Go toolchain or a build fails.
    """
    wanted = needed() if tools is None else tuple(tools)
    if all(tool.path.exists() for tool in wanted):
        return
    with _lock():
        missing = [tool for tool in wanted if not tool.path.exists()]
        if missing:
            toolchain = go.provide()
            for tool in missing:
                _build(toolchain, tool)


def _build(toolchain: Path, tool: Tool) -> None:
    folder = tool.path.parent
    started = time.monotonic()
    _say(f"building {tool.name} {tool.version} ({tool.takes}, once) ...")
    for leftover in folder.parent.glob(f".{tool.name}-*"):
        shutil.rmtree(leftover)  # of a build that was killed: we hold the lock, so nobody is in it
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{tool.name}-") as scratch:
        result = Path(scratch) / folder.name
        command: list[str | Path] = [
            toolchain,
            *("build", "-trimpath", "-buildvcs=false"),
            *("-ldflags", f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"),
            *("-o", result / tool.name, tool.package),
        ]
        building = Child(
            tool.name, command, log=Path(scratch) / "log", env=_environment(os.environ), cwd=tool.module
        )
        try:
            while building.poll() is None:
                try:
                    building.wait(_BEAT)
                except subprocess.TimeoutExpired:
                    _say(f"  still building {tool.name}, {time.monotonic() - started:.0f} s")
        finally:
            building.kill()
        if building.wait() != 0:
            raise Unavailable(
                f"building {tool.name} {tool.version} failed; are the Go modules reachable "
                f"(see 'go env GOPROXY')? The last lines were:\n{building.tail(5)}"
            )
        if tool.beside:
            _copy(toolchain, tool, result / Path(tool.beside).name)
        result.rename(folder)
    _say(f"built {tool.name} {tool.version} in {time.monotonic() - started:.0f} s")


def _copy(toolchain: Path, tool: Tool, target: Path) -> None:
    """Copy what goes with a binary from its module, which the build has fetched."""
    asked: list[str | Path] = [toolchain, "list", "-f", "{{.Module.Dir}}", tool.package]
    environment = _environment(os.environ)
    told = subprocess.run(
        asked, env=environment, cwd=tool.module, capture_output=True, text=True, check=True
    ).stdout
    # Modules are read-only, folders too: whoever clears our cache folder can't, with those modes.
    shutil.copytree(Path(told.strip()) / tool.beside, target, copy_function=shutil.copyfile)
    for folder in (target, *(each for each in target.rglob("*") if each.is_dir())):
        folder.chmod(0o755)


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """What the build runs in: the caller's settings, minus those that would change what is built.

    The caller's own Go caches are used, since they may be warm; without a home folder, ours are.
    """
    ours = {key: value for key, value in env.items() if key not in {"GOFLAGS", "GOOS", "GOARCH", "GOROOT"}}
    ours |= {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    if not env.get("HOME"):
        ours["GOFLAGS"] += " -modcacherw"  # so that whoever clears our cache folder can
        ours.setdefault("GOPATH", str(cache_folder() / "gopath"))
        ours.setdefault("GOCACHE", str(cache_folder() / "gocache"))
    return ours


@contextmanager
def _lock() -> Iterator[None]:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process is building the test bed; waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
