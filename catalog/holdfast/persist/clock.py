"""The clock that persist reads. Transitions don't read it. Tests and simulations replace it."""

import time


class Clock:
    """The real clock. Thread-safe, and so must be the one that you give in its place."""

    def wall_ms(self) -> int:
        """Return the milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        time.sleep(seconds)


class TimeLeft:
    """The rest of the time to try something.

    The time for which the process was stopped does not count, but a process can't measure it. So a wait
    counts no more than its planned length, and one attempt counts at most half of the time. After an attempt
    in which the process was stopped, there is still time for others. A store that hangs for longer than that
    is tried twice.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._longest_s = seconds / 2
        self._left_s = seconds
        self._seen_s = clock.monotonic()

    def after_attempt(self) -> float:
        """Count the attempt that ended now. Return the remaining seconds."""
        now = self._clock.monotonic()
        self._left_s -= min(now - self._seen_s, self._longest_s)
        self._seen_s = now
        return self._left_s

    def wait(self, seconds: float) -> None:
        """Wait, and count the wait."""
        self._clock.sleep(seconds)
        now = self._clock.monotonic()
        self._left_s -= min(now - self._seen_s, seconds)
        self._seen_s = now
