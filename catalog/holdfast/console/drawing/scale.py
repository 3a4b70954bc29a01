"""Where values lie on a drawing, and which of them get a label."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

WIDTH: Final = 960
"""The width of a drawing in its own units. Those with an axis of time have the same margins."""
NARROW: Final = 326
"""The width of the same drawing for a phone, where a unit is a pixel."""
LEFT: Final = 8
RIGHT: Final = 8
GUTTER: Final = 68
"""Where a drawing begins whose other axis has labels."""

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_STEPS: Final = (
    *(each * _SECOND for each in (1, 2, 5, 10, 15, 30)),
    *(each * _MINUTE for each in (1, 2, 5, 10, 15, 30)),
    *(each * _HOUR for each in (1, 2, 3, 6, 12)),
    *(each * _DAY for each in (1, 2, 7, 14, 30, 91, 182, 365, 1825, 3650)),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values in `[low, high]` to `[start, end]`. Values outside are moved to the nearest end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a value, to a tenth of a unit."""
        value = min(max(value, self.low), self.high)
        share = (value - self.low) / ((self.high - self.low) or 1)
        return round(self.start + share * (self.end - self.start), 1)


def time_scale(from_ms: int, to_ms: int, left: float = LEFT, width: int = WIDTH) -> Scale:
    """The scale of an axis of time over the whole width from `left` on."""
    return Scale(from_ms, max(to_ms, from_ms + 1), left, width - RIGHT)


def most_times(width: int) -> int:
    """How many labels an axis of time has at most."""
    return max(3, width // 120)


def time_ticks(from_ms: int, to_ms: int, most: int) -> list[tuple[int, str]]:
    """At most `most` round times within a range, with their labels in UTC."""
    span = max(to_ms - from_ms, 1)
    step = next((each for each in _STEPS if span / each <= most), _STEPS[-1])
    while span / step > most:
        step *= 2
    first = -(-from_ms // step) * step
    form = (
        "%H:%M:%S" if step < _MINUTE else "%H:%M" if step < _DAY else "%b %-d" if step < 365 * _DAY else "%Y"
    )
    return [(each, _label(each, form, step)) for each in range(first, to_ms + 1, step)]


def _label(time_ms: int, form: str, step: int) -> str:
    try:
        time = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    if step < _DAY and (time.hour, time.minute, time.second) == (0, 0, 0):
        # A new day within hours.
        form = "%b %-d"
    return time.strftime(form)


def number_ticks(low: int, high: int, most: int) -> list[tuple[int, str]]:
    """At most `most` round numbers within a range, with their labels."""
    span = max(high - low, 1)
    steps = (digit * 10**power for power in range(20) for digit in (1, 2, 5))
    step = next(each for each in steps if span / each <= most)
    first = -(-low // step) * step
    ticks = range(first, high + 1, step)
    return [(each, f"{each:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")) for each in ticks]
