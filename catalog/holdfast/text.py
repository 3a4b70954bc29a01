"""Texts for messages, statuses and tables: texts of others are made fit, and errors name their subject."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.errors import CLOSED, BadInput

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
# Two steps, each linear in the length of a text: up to the next @, and then the first user before it.
_UP_TO_AT: Final = re.compile(r"://[^@\s]*@?")
_PASSWORD: Final = re.compile(r"(://[^:/@\s]*):[^@\s]*@")


SECRET_OPTION: Final = re.compile(".*(password|secret).*|scram_(client|server)_key", re.IGNORECASE)
"""The options in a URL of libpq that are secrets."""


def cut(text: str, most: int) -> str:
    """Return `text` with at most `most` characters. A longer text is cut, and ends with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def one_line(text: str) -> str:
    """Return `text` on one line, so that a terminal shows it.

    Control characters are escaped. So are bytes in the name of a file that are not UTF-8.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    # Python has a surrogate in the place of a byte that is not UTF-8.
    is_byte = "\udc80" <= character <= "\udcff"
    return f"\\x{ord(character) - 0xDC00:02x}" if is_byte else repr(character)[1:-1]


def without_passwords(text: str) -> str:
    """Return `text` with `***` in the place of each password in a URL."""
    return _UP_TO_AT.sub(_without_password, text)


def _without_password(match: re.Match[str]) -> str:
    found = match[0]
    return _PASSWORD.sub(r"\1:***@", found, count=1) if found.endswith("@") else found


def count(number: int, what: str) -> str:
    """A number with its noun, in the plural unless it is 1."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def age(seconds: float) -> str:
    """A duration, in a unit that fits. If clocks disagree about it, it may be below 0, and is shown as 0."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def shown_time(time_ms: int) -> str:
    """A time as ISO 8601 in UTC, or as a number if it is too large for a date."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return str(time_ms)


def with_date(time_ms: int) -> str:
    """A time in milliseconds, followed by its date if it looks like one."""
    # Counters and the first second of 1970 are not dates.
    return str(time_ms) if time_ms < 1000 or time_ms >= CLOSED else f"{time_ms} ({shown_time(time_ms)})"


@contextmanager
def naming(what: str) -> Iterator[None]:
    """A `BadInput` of the block names `what` first, such as "table orders", unless it does so already."""
    try:
        yield
    except BadInput as error:
        if not str(error).startswith((f"{what}:", f"{what} ")):
            error.args = (f"{what}: {error}",)
        raise
