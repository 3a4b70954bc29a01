"""The cluster as the plugin sees it: `kubectl` as a child process, JSON in and out, errors by meaning.

Invariants
- An error is one line of what, and a hint of what to do; no message holds what was sent.
- Secrets are never asked for.
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
"""What kubectl's library logs beside the error, a line for each try."""
_UNREACHABLE: Final = ("was refused", "Unable to connect", "i/o timeout", "no such host")
_INSTALL: Final = "helm install holdfast-crds charts/holdfast-crds, or kubectl apply -k crds"


class Failed(HoldfastError):
    """The cluster can't be asked, or refuses."""

    exit_code = 2


class NoSuchObject(BadInput):
    """There is no such object."""


class NoCrds(Failed):
    """The cluster doesn't know such resources."""

    hint = _INSTALL


class NotPermitted(Failed):
    """The user may not do this."""

    hint = "ask for a role that allows it; 'kubectl auth can-i --list' tells what yours does"


class Unreachable(Failed):
    """Nobody answers."""

    hint = "look at --context, --kubeconfig and $KUBECONFIG; 'kubectl cluster-info' asks the same server"


@dataclass(frozen=True)
class Cluster:
    """A cluster and a namespace of it, as kubectl's own options name them."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    everywhere: bool = False
    """All namespaces."""

    def get(self, kind: Kind, name: str) -> Json:
        """One of our objects. Raises `NoSuchObject`."""
        try:
            return self._json("get", type_of(kind), name, *self.where(), "-o", "json")
        except NoSuchObject:
            there = f"namespace {self.namespace}" if self.namespace else "this namespace"
            raise NoSuchObject(
                f"there is no {kind.value} {name!r} in {there}",
                hint="'kubectl holdfast status' tells what is there",
            ) from None

    def all(self, what: str, *flags: str) -> list[Json]:
        """The objects of one type, or of several (`a,b`)."""
        there = ("-A",) if self.everywhere else self.where()
        return list(self._json("get", what, *there, *flags, "-o", "json")["items"])

    def ours(self) -> list[Json]:
        """All of our objects."""
        return self.all(",".join(type_of(kind) for kind in Kind))

    def patch(self, kind: Kind, name: str, change: Json) -> Json:
        """Merge into one of our objects; as it is then."""
        body = json.dumps(change)
        return self._json(
            "patch", type_of(kind), name, *self.where(), "--type=merge", "-p", body, "-o", "json"
        )

    def create(self, body: Json) -> Json:
        """Make an object; as it is then."""
        return self._json("create", *self.where(), "-f", "-", "-o", "json", stdin=json.dumps(body))

    def text(self, *arguments: str) -> str:
        """What kubectl prints."""
        return self._run(arguments)

    def answer(self, *arguments: str) -> Json:
        """What kubectl prints as JSON."""
        return self._json(*arguments)

    def where(self) -> tuple[str, ...]:
        """The flags that name the namespace."""
        return ("-n", self.namespace) if self.namespace else ()

    def _json(self, *arguments: str, stdin: str | None = None) -> Json:
        return dict(json.loads(self._run(arguments, stdin)))

    def _run(self, arguments: Sequence[str], stdin: str | None = None) -> str:
        command = shutil.which(os.environ.get("KUBECTL", "kubectl"))
        if command is None:
            raise Failed(
                "kubectl is not on PATH", hint="the plugin asks the cluster by it; $KUBECTL may name it"
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
            raise Unreachable(f"the cluster has not answered for {_SECONDS:.0f} s") from None
        if done.returncode != 0:
            raise failure(done.stderr)
        return done.stdout


def type_of(kind: Kind) -> str:
    """The full name of a kind for kubectl."""
    return f"{kind.plural}.{GROUP}"


def failure(told: str) -> HoldfastError:
    """What an error of kubectl means."""
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
    return Failed(text.removeprefix("error: ") or "kubectl failed and said nothing")
