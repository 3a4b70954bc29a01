"""Runs the pods of a chart's hooks on a cluster without nodes, as a kubelet does.

Invariants
- The one container of a pod is a process here. It has the arguments of the pod and the token of its account.
  Its exit code becomes the phase of the pod, which Helm and the Job controller read.
- Other pods stay Pending.
"""

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from testbed.children import plain_path
from testbed.kube import ControlPlane

Json = dict[str, Any]

_COMPONENTS: Final = "app.kubernetes.io/component in (predelete, test)"
_POLL_S: Final = 0.2
_SECONDS: Final = 240


def account_kubeconfig(cluster: ControlPlane, namespace: str, account: str, folder: Path) -> Path:
    """A kubeconfig with a token of a ServiceAccount, and nothing else."""
    config = json.loads(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", account, "-n", namespace).strip()
    config["users"][0]["user"] = {"token": token}
    path = folder / f"{namespace}-{account}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return path


class HookRunner:
    """Runs the pods of hooks of one namespace while the context lasts."""

    def __init__(
        self, cluster: ControlPlane, namespace: str, *, replacing: Mapping[str, str] | None = None
    ) -> None:
        """`replacing`: parts of arguments that mean something else here, such as the address of a Service."""
        self.outputs: dict[str, str] = {}
        """What a hook said at last, by the name of its Job or pod."""
        self._cluster = cluster
        self._namespace = namespace
        self._replacing = dict(replacing or {})
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="hooks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _serve(self) -> None:
        done: set[str] = set()
        try:
            while not self._stopping.wait(_POLL_S):
                found = json.loads(self._kubectl("get", "pods", "-l", _COMPONENTS, "-o", "json"))
                for pod in found["items"]:
                    uid = pod["metadata"]["uid"]
                    if uid not in done and pod["status"]["phase"] == "Pending":
                        done.add(uid)
                        self._run(pod)
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits
            self._failure = error

    def _run(self, pod: Json) -> None:
        (container,) = pod["spec"]["containers"]
        arguments = list(container["args"])
        for old, new in self._replacing.items():
            arguments = [argument.replace(old, new) for argument in arguments]
        with tempfile.TemporaryDirectory(prefix="holdfast-hook-") as home:
            env = {"PATH": "/usr/bin:/bin", "HOME": home, "PYTHONPATH": plain_path()}
            if pod["spec"].get("automountServiceAccountToken", True):
                account = pod["spec"]["serviceAccountName"]
                kubeconfig = account_kubeconfig(self._cluster, self._namespace, account, Path(home))
                env["KUBECONFIG"] = str(kubeconfig)
            done = subprocess.run(
                [sys.executable, "-m", "holdfast_operator.container", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_SECONDS,
                check=False,
                env=env,
            )
        name = pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name", pod["metadata"]["name"])
        self.outputs[name] = done.stdout
        phase = "Failed" if done.returncode else "Succeeded"
        patch = json.dumps({"status": {"phase": phase}})
        what = f"pod/{pod['metadata']['name']}"
        self._kubectl("patch", what, "--subresource=status", "--type=merge", "-p", patch)

    def _kubectl(self, *arguments: str) -> str:
        return self._cluster.kubectl("-n", self._namespace, *arguments)
