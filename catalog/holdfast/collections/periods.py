"""How much history a table keeps, as users give it: `"7d"`, a `timedelta`, or `"forever"`."""

import re
from datetime import timedelta
from typing import Final, TypeAlias

from holdfast.errors import CLOSED, BadInput
from holdfast.persist.rows.casts import shown

Period: TypeAlias = str | timedelta
"""A length of history: see `period_ms`."""

FOREVER: Final = "forever"
NEW_TABLE: Final = "7d"
"""What a new table keeps by default."""

_TEXT: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def period_ms(given: object) -> int | None:
    """Convert a period to milliseconds, or "forever" to None. Raises `BadInput` for anything else.

    The units of a text are ms, s, m (minutes), h and d, such as "90m", as in a StorageCollection.
    """
    if given == FOREVER:
        return None
    if isinstance(given, timedelta) and timedelta(0) <= given:
        return given // timedelta(milliseconds=1)
    found = _TEXT.fullmatch(given) if isinstance(given, str) else None
    if found is None or (period := int(found[1]) * _UNITS[found[2]]) >= CLOSED:
        raise BadInput(f"{shown(given)} is not a length of history", hint="such as 7d, 12h, 90m, or forever")
    return period


def shown_period(retain_ms: int | None) -> str:
    """A period as text that `period_ms` converts back."""
    if retain_ms is None:
        return FOREVER
    unit = next(unit for unit, length in _UNITS.items() if retain_ms % length == 0)
    return f"{retain_ms // _UNITS[unit]}{unit}"
