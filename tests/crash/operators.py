"""The operator as a process that is killed: from its start to SIGKILL, at a place that its log shows.

Invariants
- The process gets only what it needs from our environment: the API server's address, and the stores'
  credentials.
- It is killed at a place that the log shows: the last numbered step that began or ended.
"""

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.children import plain_path
from testbed.kube import ControlPlane
from testbed.process import Child

_POLL_S: Final = 0.002
_PATIENCE_S: Final = 180.0
_STEP: Final = re.compile(r": (begins|did) step (\d)\.")


@dataclass(frozen=True)
class Mark:
    """A line of the log about a numbered step: what it says of it, `begins` or `did`."""

    word: str
    number: int

    def __str__(self) -> str:
        return f"{self.word} step {self.number}"


class OperatorLife:
    """One `holdfast-operator run`, which looks after one namespace."""

    def __init__(
        self, cluster: ControlPlane, namespace: str, folder: Path, number: int, credentials: Mapping[str, str]
    ) -> None:
        self._log = folder / f"operator-{number}.log"
        self._read = 0
        self.child = Child(
            f"operator-{number}",
            [
                *(sys.executable, "-m", "holdfast_operator", "run", f"--namespace={namespace}"),
                *("--listen=127.0.0.1:0", "--unsteady-interval=0.2", "--steady-interval=0.5"),
            ],
            log=self._log,
            env=cluster.environment(
                {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": plain_path(), **credentials}
            ),
        )

    def messages(self) -> list[str]:
        """What it has logged on this page; a line that was cut off by its death counts for nothing."""
        lines = self._log.read_bytes()[self._read :].decode().split("\n")[:-1]
        return [json.loads(line)["message"] for line in lines if line.startswith("{")]

    def turn_the_page(self) -> None:
        """Leave out from now on what it has logged until now."""
        self._read = self._log.stat().st_size

    def said(self, part: str) -> bool:
        """Whether some line has this in it."""
        return any(part in message for message in self.messages())

    def wait_until(self, holds: Callable[[], bool], what: str, *, poll_s: float = 0.1) -> None:
        """Wait for something that this operator is to bring about."""
        deadline = time.monotonic() + _PATIENCE_S
        while not holds():
            assert self.child.poll() is None, f"the operator ended by itself before {what}:\n{self.tail()}"
            assert time.monotonic() < deadline, f"still not {what}; the operator says:\n{self.tail()}"
            threading.Event().wait(poll_s)

    def wait_until_it_says(self, *parts: str) -> None:
        """Wait until a line has one of these in it."""
        texts = [part.encode() for part in parts]
        seen = b""

        with self._log.open("rb") as log:
            log.seek(self._read)

            def said() -> bool:
                nonlocal seen
                seen += log.read()
                return any(text in seen for text in texts)

            self.wait_until(said, f"saying {' or '.join(parts)}", poll_s=_POLL_S)

    def marks(self, migration_id: str) -> Iterator[Mark | None]:
        """The numbered steps that it logged, in order; None where a step failed, so that it began anew."""
        for message in self.messages():
            if migration_id not in message:
                continue
            if (found := _STEP.search(message)) is not None:
                yield Mark(found[1], int(found[2]))
            elif "the step failed" in message:
                yield None

    def kill(self) -> None:
        """End it at once."""
        self.child.kill()

    def tail(self) -> str:
        """The end of its log."""
        return self.child.tail(12)


def check_steps(marks: Iterator[Mark | None]) -> None:
    """Raise `AssertionError` unless the steps were taken from the first on, none left out."""
    begun = done = 0
    for mark in marks:
        if mark is None:
            begun = done = 0
        elif mark.word == "begins":
            assert mark.number == done + 1, f"step {mark.number} was begun after step {done}"
            begun = mark.number
        else:
            assert mark.number == begun, f"step {mark.number} was done, and step {begun} was begun"
            done = mark.number
