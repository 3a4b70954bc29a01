"""Child processes that never outlive the test bed.

Invariants
- A child has a session of its own. Ctrl-C on the terminal reaches only this process, which stops its children
  in order.
- A child dies with the thread that started it, however the thread ends (see `_tether`). Start a child from a
  thread that stays.
- `stop` leaves no process of the child's group.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_TETHER = Path(__file__).with_name("_tether.py")


def tethered(
    command: Sequence[str | Path], death_signal: signal.Signals = signal.SIGKILL
) -> list[str | Path]:
    """What runs a command that gets a signal when the thread that starts it ends; start it from here."""
    return [sys.executable, "-I", "-S", _TETHER, str(int(death_signal)), str(os.getpid()), *command]


class Child:
    """One running command and the file that holds its output."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
        grace: float = 10.0,
    ) -> None:
        """Start `command`.

        `env` is its whole environment (ours if None), `death_signal` what our end sends it, `grace` the
        seconds that `stop` gives it.
        """
        self.name = name
        self.log = log
        self._grace = grace
        self._swept = False
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                [os.fspath(part) for part in tethered(command, death_signal)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def poll(self) -> int | None:
        """The exit code as a container runtime would tell it (128 + signal), or None while it runs."""
        code = self._popen.poll()
        return code if code is None or code >= 0 else 128 - code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; `subprocess.TimeoutExpired` after `timeout` seconds."""
        code = self._popen.wait(timeout)
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        """End the whole process group at once."""
        # Once only: later the number of a group that is gone may be another's.
        if not self._swept:
            self._signal(signal.SIGKILL)
            self._popen.wait()
            self._swept = True

    def stop(self) -> None:
        """Ask it to end, insist after its grace, and take what is left of its group with it."""
        if self._popen.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(self._grace)
        self.kill()

    def tail(self, lines: int = 20) -> str:
        """The last lines of its output."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)


def ended(handle: int, seconds: float = 60.0) -> bool:
    """Whether the process behind a pidfd ends in time; closes the handle."""
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)
