"""Processes that hand a collection over to another rendition, and are killed at one of their durable steps.

The program forks a process for each order (a line of JSON on its standard input), and prints how it ended:
the number of the signal, or 0. Step `n` is the n-th write to a store.
"""

import json
import os
import signal
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from holdfast.collections import StorageController
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.stores import Location
from testbed.faults import Fault, FaultPlan, FaultyBlob, FaultyConsensus, Operation

ANY_LAG = 1 << 40
CONFIG = PersistConfig(maintenance="off", gc_grace_s=0.0, inline_max_bytes=64)


class Killing(FaultPlan):
    """Kills this process before its write of this number, which is right after the one before it."""

    def __init__(self, step: int) -> None:
        self._left = step

    def decide(self, operation: Operation) -> Fault:
        if operation.writes:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
        return Fault.NONE


def hand_over(blob: str, consensus: str, collection: str, step: int) -> None:
    """All steps from a new rendition to the end of the handover."""
    place = Location.open(blob=blob, consensus=consensus)
    plan = Killing(step)
    location = Location(
        FaultyBlob(place.blob, plan), FaultyConsensus(place.consensus, plan), place.location_id
    )
    with PersistClient(location, config=CONFIG) as client:
        renditions = StorageController(client).renditions
        renditions.create(collection, shards=3, rendition_id="r2")
        renditions.catch_up(collection, "r2")
        renditions.hand_over(collection, "r2", max_lag_ms=ANY_LAG)


class Handing:
    """The program, as a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def is_killed(self, **order: Any) -> bool:
        """Carry out an order; whether the process came to the step that it was to be killed at."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        assert code in (0, -signal.SIGKILL), f"the process ended with code {code}"
        return code != 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=30)


def main() -> None:
    """Carry out the orders."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                hand_over(**json.loads(line))
            except BaseException:  # noqa: BLE001 - the parent sees the code
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
