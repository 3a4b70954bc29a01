"""Bad weather for operators that share a Lease: they die, freeze, lose connections, and see old states.

Invariants
- There are always two operators: one that has ended is started again, as a kubelet does.
- One is killed or frozen only while one of them acts.
- An operator that nobody killed ends only because it lost its Lease, with exit code 0.
- `calm` ends everything: no operator is frozen, and the API server is reached as usual.
- The thread that has started operators lives as long as they do, because they end with it.
"""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from testbed.faultyapi import FaultyApi
from testbed.operatorprocess import OperatorProcess

_KINDS: Final = ("freeze", "freeze", "cut", "cut", "cut", "late", "late", "kill")
_LONGEST_FREEZE_S: Final = 12.0
"""More than the renew deadline of the Lease."""
_LONGEST_PAUSE_S: Final = 10.0
_LONGEST_LATE_S: Final = 1.0


class Weather:
    """The weather of one seed; as a context manager it ends with the test."""

    def __init__(self, start: Callable[[], OperatorProcess], api: FaultyApi, seed: int) -> None:
        """Start two operators, and then the weather."""
        self._start = start
        self._api = api
        self._rng: Final = random.Random(seed)
        self._over: Final = threading.Event()
        self._calm: Final = threading.Event()
        self._end: Final = threading.Event()
        self._killed: Final[set[int]] = set()
        self.met: Counter[str] = Counter()
        """What happened how often. `lost` counts operators that lost their Lease."""
        self.wrong: list[str] = []
        """What should not have happened."""
        self.operators: list[OperatorProcess] = [start(), start()]
        self._thread: Final = threading.Thread(target=self._run, name="weather", daemon=True)
        self._thread.start()

    def calm(self) -> None:
        """End the weather. Two operators run then."""
        self._over.set()
        self._calm.wait()

    def _run(self) -> None:
        try:
            self._blow()
        finally:
            self._api.late(0.0)
            self._api.calm()
            self._calm.set()
        while not self._end.wait(0.5):
            self._restart()

    def _blow(self) -> None:
        while not self._over.wait(self._rng.random() * _LONGEST_PAUSE_S):
            self._restart()
            kind = self._rng.choice(_KINDS)
            operator = self._rng.choice(self.operators)
            if kind in {"freeze", "kill"} and not self._acts():
                # Otherwise nobody gets anywhere on a slow machine.
                continue
            self.met[kind] += 1
            match kind:
                case "freeze":
                    self._freeze(operator)
                case "cut":
                    self._api.cut()
                case "late":
                    self._api.late(self._rng.random() * _LONGEST_LATE_S)
                case _:
                    self._killed.add(operator.child.pid)
                    operator.child.kill()

    def _acts(self) -> bool:
        """Whether an operator runs that leads, or did so until a moment ago."""
        return any(each.child.poll() is None and each.said("started; watching") for each in self.operators)

    def _freeze(self, operator: OperatorProcess) -> None:
        # One that has ended can't freeze.
        with suppress(ProcessLookupError):
            os.kill(operator.child.pid, signal.SIGSTOP)
            try:
                self._over.wait(self._rng.random() * _LONGEST_FREEZE_S)
            finally:
                os.kill(operator.child.pid, signal.SIGCONT)

    def _restart(self) -> None:
        for number, operator in enumerate(self.operators):
            code = operator.child.poll()
            if code is None:
                continue
            if operator.child.pid not in self._killed:
                self.met["lost"] += 1
                if code != 0 or not operator.said("another operator may act"):
                    self.wrong.append(f"{operator.log.name} ended with {code}")
            self.operators[number] = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._end.set()
        self._thread.join()
