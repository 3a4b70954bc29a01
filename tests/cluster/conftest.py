"""Namespaces and pods on the node of the test bed."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from testbed.errors import KubectlError
from testbed.images import OPERATOR, PYTHON
from testbed.node import NodeCluster

PATIENCE_S = 120.0


class Place:
    """One namespace of the node's cluster."""

    def __init__(self, node: NodeCluster, namespace: str) -> None:
        self.node = node
        self.namespace = namespace

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.node.plane.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )

    def get(self, what: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", what, "-o", "json")))

    def run_python(self, name: str, script: str, **spec: Any) -> None:
        """Start a pod with a program of Python."""
        container = {
            "name": "main",
            "image": OPERATOR,
            "imagePullPolicy": "Never",
            "command": ["tini", "-s", "--", PYTHON, "-uc", script],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"restartPolicy": "Never", "containers": [container | spec.pop("container", {})], **spec},
        }
        self.apply(pod)

    def finish(self, name: str) -> tuple[str, str]:
        """Wait for the end of a pod: its phase, and what it printed."""
        deadline = time.monotonic() + PATIENCE_S
        while (phase := str(self.get(f"pod/{name}")["status"].get("phase"))) not in {"Succeeded", "Failed"}:
            assert time.monotonic() < deadline, (
                f"the pod {name} is {phase}:\n{self.kubectl('describe', 'pod', name)}"
            )
            threading.Event().wait(0.1)
        return phase, self.kubectl("logs", name)

    def wait_ready(self, pod: str) -> None:
        self.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", f"--timeout={PATIENCE_S:.0f}s")


@pytest.fixture
def place(node: NodeCluster) -> Iterator[Place]:
    """A namespace for one test; its deletion isn't waited for."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    there = Place(node, name)
    node.plane.kubectl("create", "namespace", name)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(KubectlError):
            there.get("serviceaccount/default")
            break
        assert time.monotonic() < deadline, "the namespace has no service account"
        threading.Event().wait(0.05)
    yield there
    node.plane.kubectl("delete", "namespace", name, "--wait=false")
