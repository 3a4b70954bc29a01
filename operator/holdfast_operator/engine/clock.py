"""The clocks of the operator: one for waiting, one for what users see. Tests bring their own."""

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the runtime knows of time."""

    def monotonic(self) -> float:
        """Seconds that only grow."""
        ...

    def wall(self) -> datetime:
        """The time of day, UTC."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """Return when `event` is set or `seconds` have gone."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    def wall(self) -> datetime:
        """The time of day, UTC."""
        return datetime.now(UTC)

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """Return when `event` is set or `seconds` have gone."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)


class BootClock(SystemClock):
    """Those clocks, but the seconds count while the machine sleeps too: for what others wait for."""

    def monotonic(self) -> float:
        """Seconds that only grow, also where the machine is suspended and its system can tell."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if clock is None else time.clock_gettime(clock)
