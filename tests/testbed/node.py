"""A Kubernetes cluster with one real node that runs pods: containerd, kubelet, kube-proxy, scheduler, DNS.

Invariants
- The node lives in a sandbox (`testbed.sandbox`). The machine sees only its processes, a pair of interfaces
  and a control group. A machine has at most one such cluster at a time.
- A run removes what a killed run left, and nothing else.
- `stop` ends users before what they use: kubelet, proxy, DNS, all pods with containerd, scheduler, control
  plane.
"""

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from testbed import build, cgroups, containerd, debian, images, pki, sandbox
from testbed.errors import Unavailable
from testbed.kube import ControlPlane, wait_until
from testbed.process import Child
from testbed.sandbox import BRIDGE, INSIDE, Sandbox

NAME: Final = "node"
_PACKAGES: Final = (
    *("containerd", "runc", "containernetworking-plugins", "iptables", "iproute2"),
    *("buildah", "mmdebstrap"),
)
_PROGRAMS: Final = ("containerd", "ctr", "runc", "iptables", "ip", "buildah", "mmdebstrap")
_LOCK: Final = Path("/run/holdfast-node.lock")
_KUBELET: Final = "system:node:node"
_PROXY: Final = "system:kube-proxy"
_SCHEDULER: Final = "system:kube-scheduler"
_USERS: Final = {_KUBELET: "system:masters", _PROXY: _PROXY, _SCHEDULER: _SCHEDULER}


class NodeCluster:
    """A control plane, and a node on which its pods run; as a context manager it is stopped at the end."""

    def __init__(self, folder: Path) -> None:
        """Use `start`."""
        self.folder = folder
        self._ending = contextlib.ExitStack()
        self._booted = False
        self.plane: ControlPlane
        self.sandbox: Sandbox

    @classmethod
    def start(cls, pods: Path | None = None) -> Self:
        """Boot it, making first what is missing, and return when the node is ready for pods.

        `pods` are imported images, those of `testbed.images` if None. Waits for another cluster of this
        machine to end. It dies with the calling thread.
        Raises `Unavailable` or `ControlPlaneError`, and leaves no process then, but the logs.
        """
        build.ensure((*build.needed(), *build.NODE))
        with contextlib.ExitStack() as ending:
            imported = pods or ending.enter_context(images.held())
            ending.enter_context(_alone())
            cluster = cls(Path(tempfile.mkdtemp(prefix=cgroups.PREFIX)))
            ending.callback(cluster._remove_folder)
            cluster._boot(imported, ending)
            cluster._ending = ending.pop_all()
            cluster._booted = True
        return cluster

    @property
    def address(self) -> str:
        """The address at which pods, and this machine, reach servers of this machine that listen there."""
        return self.sandbox.outside

    def freeze(self, pod_uid: str) -> None:
        """Stop all processes of a pod where they are, as a machine that hangs does; `thaw` ends it."""
        cgroups.set_frozen(self.folder.name, pod_uid, frozen=True)

    def thaw(self, pod_uid: str) -> None:
        """Let the processes of a pod go on."""
        cgroups.set_frozen(self.folder.name, pod_uid, frozen=False)

    def kill(self, pod_uid: str, program: str) -> None:
        """End by SIGKILL what a pod runs with this in its command line, as the kernel out of memory does."""
        cgroups.kill(self.folder.name, pod_uid, program)

    def stop(self) -> None:
        """Stop all of it, and remove its files."""
        self._ending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _remove_folder(self) -> None:
        # After a boot that failed, somebody will want the logs.
        if self._booted:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _boot(self, imported: Path, ending: contextlib.ExitStack) -> None:
        folder = self.folder
        cgroups.create(folder.name)
        ending.callback(cgroups.remove, folder.name)
        self.sandbox = Sandbox.start(folder, shown=imported)
        ending.callback(self.sandbox.stop)
        self.plane = ControlPlane.start(folder=folder / "plane", address=self.sandbox.outside, users=_USERS)
        ending.callback(self.plane.stop)
        scheduler = self._outside(build.SCHEDULER, _scheduler_flags(self.plane))
        ending.callback(scheduler.stop)
        # What runs in the sandbox, pods too, is gone before the control plane goes.
        ending.callback(self.sandbox.stop)
        ending.callback(cgroups.thaw, folder.name)
        runtime = containerd.start(self.sandbox, imported)
        children = [scheduler, runtime]
        for tool, flags in (
            (build.COREDNS, self._dns()),
            (build.PROXY, self._proxy()),
            (build.KUBELET, self._kubelet()),
        ):
            children.append(self.sandbox.child(tool.name, [tool.path, *flags]))
            ending.callback(children[-1].stop)
        wait_until("the node was ready", self._ready, children)

    def _outside(self, tool: build.Tool, flags: list[str]) -> Child:
        return Child(
            tool.name,
            [tool.path, *flags],
            log=self.folder / f"{tool.name}.log",
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder)},
            cwd=self.folder,
        )

    def _ready(self) -> bool:
        found = json.loads(self.plane.kubectl("get", "nodes", "-o", "json"))["items"]
        return any(
            each["type"] == "Ready" and each["status"] == "True"
            for node in found
            for each in node["status"].get("conditions", ())
        )

    def _config(self, name: str, content: dict[str, Any]) -> Path:
        """Write a file, and return where it is for what runs in the sandbox."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=2))
        return INSIDE / name

    def _user(self, name: str) -> Path:
        return INSIDE / self.plane.users[name].relative_to(self.folder)

    def _kubelet(self) -> list[str]:
        network = {
            "cniVersion": "1.0.0",
            "name": "holdfast",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipMasq": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(INSIDE / "addresses"),
                        "ranges": [[{"subnet": "10.244.0.0/24", "gateway": BRIDGE}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
        self._config("cni/10-holdfast.conflist", network)
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.sandbox.inside,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(INSIDE / "plane" / pki.AUTHORITY)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{containerd.SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.folder.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            "clusterDNS": [BRIDGE],
            "clusterDomain": "cluster.local",
            "resolvConf": "/dev/null",
            "healthzPort": 0,
            "volumePluginDir": str(INSIDE / "volume-plugins"),
            # The disk of the machine is the machine's affair.
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
        }
        return [
            f"--config={self._config('kubelet.json', config)}",
            f"--kubeconfig={self._user(_KUBELET)}",
            f"--hostname-override={NAME}",
            f"--node-ip={self.sandbox.inside}",
            f"--root-dir={INSIDE / 'kubelet'}",
            f"--cert-dir={INSIDE / 'kubelet-certificates'}",
        ]

    def _proxy(self) -> list[str]:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "hostnameOverride": NAME,
            "clientConnection": {"kubeconfig": str(self._user(_PROXY))},
            "clusterCIDR": "10.244.0.0/16",
            "bindAddress": self.sandbox.inside,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            # The tables of connections are the whole kernel's.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
        return [f"--config={self._config('proxy.json', config)}"]

    def _dns(self) -> list[str]:
        (self.folder / "Corefile").write_text(
            f"""cluster.local in-addr.arpa {{
  bind {BRIDGE}
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {self._user(_KUBELET)}
  }}
}}
. {{
  bind {BRIDGE}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""
        )
        return [f"-conf={INSIDE / 'Corefile'}", "-dns.port=53"]


def _scheduler_flags(plane: ControlPlane) -> list[str]:
    config = plane.users[_SCHEDULER]
    return [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--leader-elect=false",
        "--profiling=false",
    ]


def impossible() -> str | None:
    """Why this machine can have no node, whatever is installed; None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a node needs root on Linux"
    lack = sandbox.missing() or cgroups.missing()
    if lack:
        return lack
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "the kernel has no overlay file system"
    absent = _absent()
    return (
        f"{absent}, and there is no apt-get to do it with" if absent and not shutil.which("apt-get") else None
    )


def missing() -> str | None:
    """What a node lacks on this machine and how to get it; None if one can be started."""
    return impossible() or _absent()


def _absent() -> str | None:
    absent = [program for program in _PROGRAMS if shutil.which(program) is None]
    if not absent and containerd.plugins():
        return None
    told = ", ".join([*absent, *([] if containerd.plugins() else ["CNI plugins"])])
    return f"{told} missing: install Debian's packages {' '.join(_PACKAGES)}"


def provide() -> None:
    """Install and build what a node takes; raises `Unavailable` where that fails."""
    lack = missing()
    if lack and not impossible():
        said = debian.install(_PACKAGES, installed=lambda: missing() is None)
        lack = f"{lack}; they could not be installed:\n{said}" if said else None
    if lack:
        raise Unavailable(lack)
    build.ensure((*build.needed(), *build.NODE))
    with images.held():
        pass


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Be the only one with a node on this machine; what others left that were killed is removed first."""
    with _LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another cluster with a node runs on this machine; waiting for its end ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for name in cgroups.left_over():
            cgroups.remove(name)
        for folder in Path(tempfile.gettempdir()).glob(f"{cgroups.PREFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)
        yield
