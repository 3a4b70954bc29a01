"""A Kubernetes API server for tests and the demo: etcd, kube-apiserver, kube-controller-manager, no nodes.

Invariants
- `$KUBECONFIG` names the cluster to use, if it is set. The test bed never starts, stops or configures that
  cluster. It reads and writes no other kubeconfig of the machine.
- A cluster from `start` keeps all its files in one folder and listens on 127.0.0.1 only. If a node must reach
  it, the API server listens on one other address instead.
- `start` returns when the API server is ready and the `default` namespace accepts objects. If it raises, it
  leaves no process. `stop` ends the controllers first, then the API server, then etcd.
"""

import base64
import contextlib
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from testbed import build, pki
from testbed.errors import ControlPlaneError, KubectlError
from testbed.process import Child

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_BOOT_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05
_ATTEMPTS: Final = 3
"""Boots to try when somebody takes a port between our choosing it and the server's binding it."""
_LOOPBACK: Final = "127.0.0.1"
_SERVICE_ADDRESS: Final = "10.96.0.1"
_SERVICE_NAMES: Final = (
    *("kubernetes", "kubernetes.default", "kubernetes.default.svc"),
    "kubernetes.default.svc.cluster.local",
)
_TAKEN: Final = "address already in use"


class ControlPlane:
    """A cluster to talk to; as a context manager it is stopped at the end if it is ours."""

    def __init__(
        self,
        *,
        kubeconfig: Path,
        server: str,
        folder: Path | None = None,
        temporary: bool = False,
        children: Sequence[Child] = (),
        users: Mapping[str, Path] | None = None,
    ) -> None:
        """Use `start` or `from_environment`."""
        self.kubeconfig = kubeconfig
        self.server = server
        self.folder = folder
        """Files and logs of the processes; None where the cluster isn't ours."""
        self.users = dict(users or {})
        """The kubeconfigs of the users that `start` was given."""
        self._temporary = temporary
        self._children = list(children)

    @classmethod
    def from_environment(cls) -> Self:
        """The cluster of `$KUBECONFIG` if that is set, else a fresh one.

        Raises `ControlPlaneError` where `$KUBECONFIG` is not one readable file; else as `start`.
        """
        named = os.environ.get("KUBECONFIG")
        if not named:
            return cls.start()
        kubeconfig = Path(named)
        if not kubeconfig.is_file():
            raise ControlPlaneError(f"KUBECONFIG={named} is not one readable file: name one, or unset it")
        build.ensure(() if shutil.which("kubectl") else (build.KUBECTL,))
        cluster = cls(kubeconfig=kubeconfig, server="")
        cluster.server = cluster.kubectl(
            "config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"
        )
        return cluster

    @classmethod
    def start(
        cls,
        *,
        folder: Path | None = None,
        apiserver_flags: Sequence[str] = (),
        address: str = _LOOPBACK,
        users: Mapping[str, str] | None = None,
    ) -> Self:
        """Boot a control plane, building its binaries first where they are missing.

        Clients and pods reach the API server at `address`; `users` are further ones, each with its group.

        Its files go to `folder`, which stays, or to a temporary one, which goes with it (but stays where the
        boot fails, for the logs). It dies with the calling thread.
        Raises `Unavailable` where the binaries can't be had, `ControlPlaneError` where they don't come up.
        """
        build.ensure()
        for attempt in range(1, _ATTEMPTS + 1):
            place = Path(tempfile.mkdtemp(prefix="holdfast-testbed-")) if folder is None else folder
            place.mkdir(parents=True, exist_ok=True)
            try:
                return cls._boot(
                    place,
                    temporary=folder is None,
                    apiserver_flags=apiserver_flags,
                    address=address,
                    users=users or {},
                )
            except ControlPlaneError as error:
                if _TAKEN not in str(error) or attempt == _ATTEMPTS:
                    raise
            shutil.rmtree(place, ignore_errors=True)
        raise AssertionError("unreachable")

    @classmethod
    def _boot(
        cls,
        folder: Path,
        *,
        temporary: bool,
        apiserver_flags: Sequence[str],
        address: str,
        users: Mapping[str, str],
    ) -> Self:
        etcd_port, port = _free_ports(_LOOPBACK, address)
        server = f"https://{address}:{port}"
        keys = pki.create(
            folder,
            names=("localhost", *_SERVICE_NAMES),
            addresses=(address, _SERVICE_ADDRESS),
        )
        admin, controllers = secrets.token_hex(16), secrets.token_hex(16)
        others = {user: secrets.token_hex(16) for user in users}
        tokens = _private(
            folder / "tokens.csv",
            f'{admin},admin,admin,"system:masters"\n'
            f"{controllers},system:kube-controller-manager,system:kube-controller-manager\n"
            + "".join(f'{token},{user},{user},"{users[user]}"\n' for user, token in others.items()),
        )
        kubeconfig = _kubeconfig(folder / "kubeconfig", server, keys.ca, "admin", admin)
        plane = cls(
            kubeconfig=kubeconfig,
            server=server,
            folder=folder,
            temporary=temporary,
            users={
                user: _kubeconfig(
                    folder / f"{user.replace(':', '-')}.kubeconfig", server, keys.ca, user, token
                )
                for user, token in others.items()
            },
        )
        try:
            etcd = plane._run(build.ETCD, _etcd_flags(folder, etcd_port))
            apiserver = plane._run(
                build.APISERVER,
                [*_apiserver_flags(folder, keys, tokens, etcd_port, address, port), *apiserver_flags],
            )
            get = _getter(server, keys.ca, admin)
            wait_until("the control plane was ready", lambda: get("/readyz") is not None, (etcd, apiserver))
            config = _kubeconfig(
                folder / "controllers.kubeconfig", server, keys.ca, "controllers", controllers
            )
            manager = plane._run(build.CONTROLLERS, _controllers_flags(config, keys))
            wait_until(
                "the control plane was serving the namespace 'default'",
                lambda: get("/api/v1/namespaces/default/serviceaccounts/default") is not None,
                (etcd, apiserver, manager),
            )
        except BaseException:
            # Whatever stopped us (an interrupt too), the processes must not stay; the logs must.
            plane._temporary = False
            plane.stop()
            raise
        return plane

    def _run(self, tool: build.Tool, flags: Sequence[str]) -> Child:
        assert self.folder is not None
        child = Child(
            tool.name,
            [tool.path, *flags],
            log=self.folder / f"{tool.name}.log",
            # Nothing of the caller's settings (proxies, ETCD_* variables) may reach the servers.
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder)},
            cwd=self.folder,
            # An API server with open watches doesn't end by itself, and it holds nothing worth a wait.
            grace=2.0 if tool is build.APISERVER else 10.0,
        )
        self._children.append(child)
        return child

    @property
    def ours(self) -> bool:
        """Whether `start` booted it, so that nobody else uses it."""
        return self.folder is not None

    def wait_established(self, *definitions: str) -> None:
        """Wait until objects of these CRDs can be made. They are named as for `kubectl wait`."""
        # Before anybody has written a status, `--for=condition` is an error.
        for what in ("jsonpath={.status.conditions}", "condition=Established"):
            self.kubectl("wait", f"--for={what}", *definitions, "--timeout=60s")

    def kubectl(self, *arguments: str | Path, stdin: str | None = None, timeout: float = 120.0) -> str:
        """Run kubectl against this cluster and return its standard output; raises `KubectlError`."""
        done = subprocess.run(
            [build.kubectl(), *(os.fspath(each) for each in arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=self.environment(os.environ),
        )
        if done.returncode != 0:
            raise KubectlError(done.stderr.strip(), done.returncode)
        return done.stdout

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """`env` with what a client process needs to reach this cluster."""
        ours = {**env, "KUBECONFIG": str(self.kubeconfig)}
        if self.folder is not None:
            # Discovery answers of a server that is soon gone don't belong in the user's home.
            ours["KUBECACHEDIR"] = str(self.folder / "kubectl-cache")
        return ours

    def api(self) -> "ApiClient":
        """A new client of this cluster."""
        # Only here: its import takes longer than many a whole test run.
        from kubernetes.config import new_client_from_config

        return new_client_from_config(config_file=str(self.kubeconfig))  # type: ignore[no-untyped-call,no-any-return]

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """`kubectl apply` these objects."""
        self.kubectl(
            "apply",
            "-f",
            "-",
            stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects]}),
        )

    def stop(self) -> None:
        """Stop what `start` booted and remove its temporary folder; another's cluster is left alone."""
        while self._children:
            self._children[-1].stop()
            self._children.pop()
        if self._temporary and self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _etcd_flags(folder: Path, port: int) -> list[str]:
    client = f"http://127.0.0.1:{port}"
    return [
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        "--listen-peer-urls=http://127.0.0.1:0",
        "--log-level=warn",
    ]


def _apiserver_flags(
    folder: Path, keys: pki.Pki, tokens: Path, etcd_port: int, address: str, port: int
) -> list[str]:
    # Endpoints of the `kubernetes` Service may not be loopback; without nodes nobody goes there.
    nobody = ["--advertise-address=10.244.0.1", "--endpoint-reconciler-type=none"]
    return [
        f"--etcd-servers=http://{_LOOPBACK}:{etcd_port}",
        f"--bind-address={address}",
        f"--secure-port={port}",
        *(nobody if address == _LOOPBACK else [f"--advertise-address={address}"]),
        f"--kubelet-client-certificate={keys.client_certificate}",
        f"--kubelet-client-key={keys.client_key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--cert-dir={folder}",
        f"--tls-cert-file={keys.server_certificate}",
        f"--tls-private-key-file={keys.server_key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={keys.service_account_public_key}",
        f"--service-account-signing-key-file={keys.service_account_key}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged",
        "--profiling=false",
    ]


def _controllers_flags(kubeconfig: Path, keys: pki.Pki) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        f"--root-ca-file={keys.ca}",
        f"--service-account-private-key-file={keys.service_account_key}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--profiling=false",
    ]


def _kubeconfig(path: Path, server: str, ca: Path, user: str, token: str) -> Path:
    """A kubeconfig that holds all it needs (JSON is YAML)."""
    authority = ca.read_bytes()
    return _private(
        path,
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "testbed",
                        "cluster": {"server": server, "certificate-authority-data": _base64(authority)},
                    }
                ],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
                "current-context": "testbed",
            },
            indent=2,
        ),
    )


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _free_ports(*addresses: str) -> list[int]:
    """Distinct free ports, one on each of these addresses: all are held until the last is found."""
    with contextlib.ExitStack() as held:
        sockets = [(held.enter_context(socket.socket()), address) for address in addresses]
        for each, address in sockets:
            each.bind((address, 0))
        return [each.getsockname()[1] for each, _ in sockets]


def _getter(server: str, ca: Path, token: str) -> Callable[[str], bytes | None]:
    """GET of a path: the body of a 200 answer, None for anything else."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(ca))),
    )

    def get(path: str) -> bytes | None:
        request = urllib.request.Request(server + path, headers={"Authorization": f"Bearer {token}"})
        try:
            with opener.open(request, timeout=5.0) as answer:
                return bytes(answer.read())
        except OSError:  # refused, timed out, or an HTTPError
            return None

    return get


def wait_until(what: str, holds: Callable[[], bool], children: Sequence[Child]) -> None:
    """Poll until `holds`; raises `ControlPlaneError` when a child ends before or the time is up.

    `what` is the end of a sentence: "the control plane was ready".
    """
    deadline = time.monotonic() + _BOOT_SECONDS
    while not holds():
        for child in children:
            code = child.poll()
            if code is not None:
                raise ControlPlaneError(
                    f"{child.name} ended with code {code} before {what}; "
                    f"its log is {child.log} and ends with:\n{child.tail(5)}"
                )
        if time.monotonic() > deadline:
            raise ControlPlaneError(
                f"{_BOOT_SECONDS:.0f} s went by before {what}; logs in {children[0].log.parent}"
            )
        time.sleep(_POLL_SECONDS)
