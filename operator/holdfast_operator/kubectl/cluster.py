"""Access to the cluster: runs `kubectl` as a child process, with JSON in and out, and classifies its errors.

Invariants
- An error is one line that says what failed, with a hint. No message contains what was sent.
- Secrets are never requested.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import BadInput, HoldfastError
from holdfast_operator.api.names import GROUP, Kind

Json = dict[str, Any]

_SECONDS: Final = 120.0
_SERVER: Final = re.compile(r"^Error from server \((\w+)\): ?(.*)", re.DOTALL)
_NOT_SERVED: Final = ("doesn't have a resource type", "no matches for kind", "could not find the requested")
_LOGGED: Final = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d.*\n?", re.MULTILINE)
"""Lines that kubectl's library logs in addition to the error, one for each attempt."""
_UNREACHABLE: Final = ("was refused", "Unable to connect", "i/o timeout", "no such host")
_INSTALL: Final = "helm install holdfast-crds charts/holdfast-crds, or kubectl apply -k crds"


class Failed(HoldfastError):
    """A request to the cluster failed."""

    exit_code = 2


class NoSuchObject(BadInput):
    """The object doesn't exist."""


class NoCrds(Failed):
    """The cluster doesn't have the CRDs of Holdfast."""

    hint = _INSTALL


class NotPermitted(Failed):
    """The user's role does not allow the request."""

    hint = "ask for a role that allows it; 'kubectl auth can-i --list' shows what your role allows"


class Unreachable(Failed):
    """The API server doesn't respond."""

    hint = "check --context, --kubeconfig and $KUBECONFIG; 'kubectl cluster-info' contacts the same server"


@dataclass(frozen=True)
class Cluster:
    """A cluster and a namespace in it, with the same options as kubectl."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    everywhere: bool = False
    """Whether to use all namespaces."""

    def get(self, kind: Kind, name: str) -> Json:
        """Returns one Holdfast object. Raises `NoSuchObject`."""
        try:
            return self._json("get", type_of(kind), name, *self.where(), "-o", "json")
        except NoSuchObject:
            there = f"namespace {self.namespace}" if self.namespace else "this namespace"
            raise NoSuchObject(
                f"there is no {kind.value} {name!r} in {there}",
                hint="'kubectl holdfast status' shows what exists",
            ) from None

    def all(self, what: str, *flags: str) -> list[Json]:
        """Returns the objects of one type, or of several (`a,b`)."""
        there = ("-A",) if self.everywhere else self.where()
        return list(self._json("get", what, *there, *flags, "-o", "json")["items"])

    def ours(self) -> list[Json]:
        """Returns all Holdfast objects."""
        return self.all(",".join(type_of(kind) for kind in Kind))

    def patch(self, kind: Kind, name: str, change: Json) -> Json:
        """Applies a merge patch to one Holdfast object. Returns the changed object."""
        body = json.dumps(change)
        return self._json(
            "patch", type_of(kind), name, *self.where(), "--type=merge", "-p", body, "-o", "json"
        )

    def create(self, body: Json) -> Json:
        """Creates an object. Returns the created object."""
        return self._json("create", *self.where(), "-f", "-", "-o", "json", stdin=json.dumps(body))

    def text(self, *arguments: str) -> str:
        """Runs kubectl. Returns its output."""
        return self._run(arguments)

    def answer(self, *arguments: str) -> Json:
        """Runs kubectl. Returns its output, parsed as JSON."""
        return self._json(*arguments)

    def where(self) -> tuple[str, ...]:
        """Returns the flags that name the namespace."""
        return ("-n", self.namespace) if self.namespace else ()

    def _json(self, *arguments: str, stdin: str | None = None) -> Json:
        return dict(json.loads(self._run(arguments, stdin)))

    def _run(self, arguments: Sequence[str], stdin: str | None = None) -> str:
        command = shutil.which(os.environ.get("KUBECTL", "kubectl"))
        if command is None:
            raise Failed(
                "kubectl is not on PATH", hint="the plugin needs kubectl; $KUBECTL can name another command"
            )
        flags = [*(("--context", self.context) if self.context else ())]
        flags += ["--kubeconfig", self.kubeconfig] if self.kubeconfig else []
        try:
            done = subprocess.run(  # noqa: S603 - no shell: the arguments are what they are
                [command, *flags, *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(f"the cluster has not responded for {_SECONDS:.0f} s") from None
        if done.returncode != 0:
            raise failure(done.stderr)
        return done.stdout


def type_of(kind: Kind) -> str:
    """Returns the full name of a kind for kubectl."""
    return f"{kind.plural}.{GROUP}"


def failure(told: str) -> HoldfastError:
    """Returns the exception for kubectl's error output."""
    text = " ".join((_LOGGED.sub("", told) or told).split())
    if any(part in text for part in _NOT_SERVED):
        if GROUP in text or any(kind.plural in text or kind.value in text for kind in Kind):
            return NoCrds(f"this cluster has no resources of {GROUP}")
        return NoCrds(text.removeprefix("error: "), hint="")
    if match := _SERVER.match(text):
        reason, message = match.groups()
        match reason:
            case "NotFound":
                return NoSuchObject(message)
            case "Forbidden":
                return NotPermitted(message)
            case _:
                return Failed(message)
    if any(part in text for part in _UNREACHABLE):
        return Unreachable(text)
    return Failed(text.removeprefix("error: ") or "kubectl failed without a message")
