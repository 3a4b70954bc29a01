"""Times as users give them: milliseconds since 1970, a datetime, or ISO 8601 text."""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, TypeAlias

from holdfast.collections.complete_times import incomplete, too_early
from holdfast.errors import CLOSED, AsOfNotYetAvailable, AsOfTooEarly, BadInput
from holdfast.persist.rows.casts import shown

Moment: TypeAlias = int | str | datetime | date
"""A time of a table: milliseconds since 1970, a `datetime` with a zone, a `date`, or ISO 8601 text.

A date, a text without a zone and a `numpy.datetime64` are in UTC. A `datetime` without a zone is refused: it
is usually a local time.
"""

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_HINT: Final = "such as 1735689600000, '2025-01-01', or '2025-01-01T12:00:00+01:00'"


def milliseconds(given: Any) -> int:
    """Convert a time that a user gives to milliseconds since 1970.

    Integers are milliseconds already, as text too. A `date`, a `numpy.datetime64` or ISO 8601 text without a
    zone is in UTC. Raises `BadInput` for a `datetime` without a zone, for anything else, and for times before
    1970 or from 2^64 on.
    """
    check_zone(given)
    try:
        found = _milliseconds(given)
    except (ValueError, OverflowError, TypeError):
        hint = (
            f"multiply seconds by 1000 and round: {given * 1000:.0f}" if isinstance(given, float) else _HINT
        )
        raise BadInput(
            f"{_short(given)} is neither a number of milliseconds since 1970 nor an ISO date", hint=hint
        ) from None
    if not 0 <= found < CLOSED:
        raise BadInput(
            f"time {_short(given)} is out of range",
            hint="times are milliseconds from 0 (1970-01-01) to 2^64 - 1",
        )
    return found


def check_zone(given: object) -> None:
    """Raise `BadInput` for a `datetime` without a zone. Most people mean a local time by it, and not UTC."""
    # The NaT of pandas, which equals nothing, has no such method.
    if not isinstance(given, datetime) or given != given or given.utcoffset() is not None:
        return
    # Only a timestamp of pandas has these methods, and it can't guess its zone.
    local, now = (
        ("tz_localize('Europe/Paris')", "pd.Timestamp.now('UTC')")
        if hasattr(given, "tz_localize")
        else ("astimezone()", "datetime.now(timezone.utc)")
    )
    raise BadInput(
        f"the time {given.isoformat(' ')} has no zone, so it can be local or UTC",
        hint=f"write {now} for the present, and .{local} to give a local time its zone",
    )


@contextmanager
def dated(what: str) -> Iterator[None]:
    """Errors of the block that refuse a time show its date, and name the table, as in "table orders"."""
    try:
        yield
    except AsOfNotYetAvailable as error:
        raise incomplete(error.as_of, error.upper, what) from None
    except AsOfTooEarly as error:
        if type(error) is not AsOfTooEarly:
            raise
        raise too_early(error.as_of, error.since, what) from None


def _milliseconds(given: Any) -> int:
    match given:
        case bool():
            raise TypeError
        case str():
            return (
                int(given)
                if given.removeprefix("-").isdecimal()
                else _since_epoch(datetime.fromisoformat(given))
            )
        case datetime():
            return _since_epoch(given)
        case date():
            return _since_epoch(datetime.combine(given, time(), UTC))
        case _ if type(given).__name__ == "datetime64":
            # NumPy's, which is in UTC.
            return int(given.astype("datetime64[ms]").astype("int64"))
        case _:
            return operator.index(given)


def _since_epoch(moment: datetime) -> int:
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1)


def _short(given: Any) -> str:
    text = given if isinstance(given, str) else shown(given)
    return f"'{text if len(text) <= 40 else f'{text[:40]}...'}'"
