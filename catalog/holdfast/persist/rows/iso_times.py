"""Reads moments and times of day from ISO 8601 text, to the nanosecond, finer than Python's own types."""

import re
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LONG_FRACTION: Final = re.compile(r"[.,]\d{6}(\d+)(?:Z|[+-]\d{2}(?::?\d{2})?)?")
NS_PER: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Nanoseconds in each unit."""


def moment_ns(text: str, zone: tzinfo | None) -> int:
    """Return the nanoseconds from 1970 to a moment. None: the text has no zone, and neither has the result.

    A text without a zone is in `zone`. Raises `ValueError` and `TypeError` for any other text.
    """
    found = datetime.fromisoformat(text)
    if zone is None and found.tzinfo is not None:
        raise ValueError("it has a time zone")
    if found.tzinfo is None:
        found = found.replace(tzinfo=zone or UTC)
    return (found - _EPOCH) // _MICROSECOND * 1_000 + _beyond_microseconds(text)


def time_ns(text: str) -> int:
    """Return the nanoseconds from midnight to a time of day. Raises `ValueError` and `TypeError`."""
    found = time.fromisoformat(text)
    if found.tzinfo is not None:
        raise ValueError("it has a time zone")
    seconds = (found.hour * 60 + found.minute) * 60 + found.second
    return (seconds * 1_000_000 + found.microsecond) * 1_000 + _beyond_microseconds(text)


def _beyond_microseconds(text: str) -> int:
    """The nanoseconds in the digits that Python ignores. Raises `ValueError` if there are more digits."""
    match = _LONG_FRACTION.search(text)
    if match is None:
        return 0
    digits = match[1].rstrip("0")
    if len(digits) > 3:
        raise ValueError("it is finer than nanoseconds")
    return int(digits.ljust(3, "0"))
