"""Waits for the write lock of a SQLite file that another process holds."""

import random
import time
from typing import Final

LOCKED_HINT: Final = (
    "find the process that has the file open, for example with 'fuser'; if it is stopped, continue or end"
    " it: until then nobody can write to the file"
)
_LONGEST_WAIT_S: Final = 0.001
_LONGEST_STEP_S: Final = 0.1


class BusyPatience:
    """Short random waits of at most `seconds` in all.

    The time for which this process itself is stopped does not count. So at most 0.1 s count between two
    attempts.
    """

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._seen_s = time.monotonic()

    def wait(self) -> bool:
        """Wait before the next attempt. Return False if the time is over."""
        now = time.monotonic()
        self._left_s -= min(now - self._seen_s, _LONGEST_STEP_S)
        self._seen_s = now
        if self._left_s < 0:
            return False
        time.sleep(random.uniform(0.0001, _LONGEST_WAIT_S))  # noqa: S311 - jitter is no secret
        return True
