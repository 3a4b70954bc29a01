"""Runs the operator in a separate process, as a pod does, so that the demo can kill and freeze it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from testbed.kube import ControlPlane


class OperatorProcess:
    """One run of `holdfast-operator`, with its log in a file."""

    def __init__(self, cluster: ControlPlane, *, name: str, namespace: str, data: Path, logs: Path) -> None:
        self.name = name
        self.log = logs / f"operator-{name}.log"
        command = [sys.executable, "-m", "holdfast_operator", "run"]
        command += ["--namespace", namespace, "--data-dir", str(data), "--storage-shared"]
        command += ["--steady-interval", "5", "--listen", "127.0.0.1:0", "--log-format", "console"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=cluster.environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code: None while the process runs, negative if a signal ended it."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self, timeout: float) -> int | None:
        """Return the exit code, or None if the process still runs after `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """End the process, even if it is frozen."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            if self.wait(15) is None:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
