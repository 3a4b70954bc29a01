"""Reads the audit log of an API server: who requested what, and the response.

Invariants
- The log contains a request when the server has responded, and a watch when it begins. So a reader sees every
  request that has a response.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_POLICY: Final = "audit-policy.json"
_LOG: Final = "audit.log"
READS: Final = frozenset({"get", "list", "watch"})


@dataclass(frozen=True, slots=True, order=True)
class Asked:
    """A kind of request, as a role grants it; `resource` has the subresource after a slash."""

    group: str
    resource: str
    verb: str


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a user."""

    asked: Asked
    namespace: str
    name: str
    code: int


def flags(folder: Path, *, reads: bool = True) -> list[str]:
    """What an API server is started with to write its log into `folder`; without `reads` only of changes."""
    folder.mkdir(parents=True, exist_ok=True)
    left_out = [] if reads else [{"level": "None", "verbs": sorted(READS)}]
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [*left_out, {"level": "Metadata"}],
    }
    (folder / _POLICY).write_text(json.dumps(policy))
    return [
        f"--audit-policy-file={folder / _POLICY}",
        f"--audit-log-path={folder / _LOG}",
        "--audit-log-mode=blocking",
    ]


def changes(folder: Path, namespace: str) -> Iterator[tuple[str, Asked]]:
    """Each change of an object in a namespace, in order, and who made it. Not those of Leases."""
    for line in (folder / _LOG).read_text().split("\n")[:-1]:
        event = json.loads(line)
        about = event.get("objectRef") or {}
        if about.get("namespace") == namespace and event["verb"] not in READS:
            asked = _asked(event)
            if asked.resource != "leases":
                yield event["user"].get("username", ""), asked


def requests(folder: Path, user: str) -> list[Request]:
    """What a user asked for so far about resources."""
    found = []
    # The last line may be half written.
    for line in (folder / _LOG).read_text().split("\n")[:-1]:
        event = json.loads(line)
        about = event.get("objectRef")
        # A request that wasn't let in has no user name.
        if about is None or event["user"].get("username") != user or "resource" not in about:
            continue
        code = event.get("responseStatus", {}).get("code", 0)
        found.append(Request(_asked(event), about.get("namespace", ""), about.get("name", ""), code))
    return found


def _asked(event: Mapping[str, Any]) -> Asked:
    about = event["objectRef"]
    sub = f"/{about['subresource']}" if about.get("subresource") else ""
    return Asked(about.get("apiGroup", ""), about["resource"] + sub, event["verb"])
