"""The process that writers are forked from, and one life of a writer as the test sees it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from crash.writer import Order

_TESTS = Path(__file__).parents[1]


class Nursery:
    """Forks writers; as a context manager it and they end together. Orders may come from any thread."""

    def __init__(self, folder: Path) -> None:
        """Journals go to `folder`; the writers have the environment of now."""
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "crash.writer"],
            env=os.environ | {"PYTHONPATH": f"{_TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def bear(self, order: Order) -> "Life":
        """Start a writer."""
        journal = self._folder / order.journal
        os.mkfifo(journal)
        assert self._process.stdin is not None
        line = json.dumps(asdict(order) | {"journal": str(journal)}) + "\n"
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return Life(journal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)


class Life:
    """One writer from birth to end, by its journal."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal.open()  # waits until the writer opens it too
        self.lines: list[str] = []
        self.pid = int(self._read()["born"])

    def notes(self) -> Iterator[dict[str, Any]]:
        """What it says, as it comes, until its end."""
        while (note := self._read()) is not None:
            yield note

    def kill(self) -> None:
        """End it at once, and read what it had said. Raises `AssertionError` if it had failed before."""
        os.kill(self.pid, signal.SIGKILL)
        for _ in self.notes():
            pass
        self.check()

    def check(self) -> None:
        """Raise `AssertionError` if the writer met an error that no writer should meet."""
        failed = [line for line in self.lines[-1:] if '"failed"' in line]
        assert not failed, f"a writer failed: {json.loads(failed[0])['where']}"

    @property
    def ended_well(self) -> bool:
        """Whether it did all that it was ordered."""
        return bool(self.lines) and json.loads(self.lines[-1]) == {"end": True}

    def _read(self) -> Any:
        line = self._journal.readline()
        if not line.endswith("\n"):
            return None
        self.lines.append(line)
        return json.loads(line)
