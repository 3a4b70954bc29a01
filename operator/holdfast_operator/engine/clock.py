"""The clocks of the operator: one for waiting, one for times that users see. Tests use their own."""

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The interface of a clock."""

    def monotonic(self) -> float:
        """Returns seconds that never decrease."""
        ...

    def wall(self) -> datetime:
        """Returns the time of day in UTC."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """Returns when `event` is set or `seconds` have passed."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Returns seconds that never decrease."""
        return time.monotonic()

    def wall(self) -> datetime:
        """Returns the time of day in UTC."""
        return datetime.now(UTC)

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """Returns when `event` is set or `seconds` have passed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)


class BootClock(SystemClock):
    """The machine's clocks, whose seconds also count while the machine sleeps. Used if others wait too."""

    def monotonic(self) -> float:
        """Returns seconds that never decrease, and that include suspension if the system supports this."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if clock is None else time.clock_gettime(clock)
