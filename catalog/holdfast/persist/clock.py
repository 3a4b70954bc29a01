"""The clock that persist reads. Transitions don't read it. Tests and simulations replace it."""

import time


class Clock:
    """The real clock."""

    def wall_ms(self) -> int:
        """Return the milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        time.sleep(seconds)
