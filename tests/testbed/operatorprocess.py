"""The operator as a process of its own, as in a pod, with its log, its metrics and its end."""

import json
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.children import plain_path
from testbed.kube import ControlPlane
from testbed.process import Child


class OperatorProcess:
    """`holdfast-operator run` in one namespace, with its log in a file."""

    def __init__(
        self,
        cluster: ControlPlane,
        namespace: str,
        folder: Path,
        number: int,
        *flags: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = folder / f"operator-{number}.log"
        self.child = Child(
            f"operator-{number}",
            [
                sys.executable,
                "-m",
                "holdfast_operator",
                "run",
                f"--namespace={namespace}",
                f"--data-dir={folder / 'volume'}",
                "--listen=127.0.0.1:0",
                *flags,
            ],
            log=self.log,
            env=cluster.environment(
                {
                    "PATH": "/usr/bin:/bin",
                    "HOME": str(folder),
                    "PYTHONPATH": plain_path(),
                    **(environment or {}),
                }
            ),
        )

    def lines(self) -> list[dict[str, Any]]:
        """The log so far."""
        if not self.log.exists():
            return []
        text = self.log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]

    def said(self, part: str) -> bool:
        return any(part in line["message"] for line in self.lines())

    def wait_until_it_says(self, part: str) -> None:
        """Wait until a line of its log has this in it."""
        deadline = time.monotonic() + 60
        while not self.said(part):
            assert time.monotonic() < deadline, f"it never says {part!r}"
            threading.Event().wait(0.05)

    def address(self) -> str:
        """Where its HTTP endpoint is, once it listens."""
        self.wait_until_it_says("health and metrics on")
        (line,) = (line for line in self.lines() if "health and metrics on" in line["message"])
        return str(line["message"].split()[-1])

    def get(self, path: str) -> str:
        """Return the response of its HTTP endpoint."""
        with urllib.request.urlopen(self.address() + path, timeout=10) as answer:
            return str(answer.read().decode())

    def metric(self, name: str) -> float:
        """The sum over all labels of a metric."""
        lines = (
            line for line in self.get("/metrics").splitlines() if line.startswith((name + "{", name + " "))
        )
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def wait_for_looks(self, number: int) -> None:
        """Wait until it has looked at its objects this many more times."""
        name = "holdfast_reconciles_total"
        enough, deadline = self.metric(name) + number, time.monotonic() + 60
        while self.metric(name) < enough:
            assert time.monotonic() < deadline, "it doesn't look at its objects any more"
            threading.Event().wait(0.05)
