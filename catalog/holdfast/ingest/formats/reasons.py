"""Reasons of bad records in plain words: what is wrong with a value, and no number of a row of ours.

Arrow, Polars and Python write their errors for programmers. Arrow counts the rows of what it was given, which
is one record or a few, so "row 0" is not a position in the source.
"""

import re
from collections.abc import Callable
from typing import Final

TOO_WILD: Final = "a number has an exponent beyond all digits of its column"
_REASON_CHARS: Final = 500
_NOT_TEXT: Final = "it is not text in UTF-8 (a compressed file must be decompressed first)"


def _not_json(found: re.Match[str]) -> str:
    why = found[1]
    return f"it is not valid JSON: {why[:1].lower()}{why[1:]}"


_REWORDED: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        # JSON.
        (
            r"^JSON parse error: Column\(/(.*)\) changed from (\w+) to (\w+) in row \d+$",
            r"field '\1' has JSON's type \3, and its column takes \2",
        ),
        (r"^JSON parse error: Column\(/(.*)\) was specified twice in row \d+$", r"field '\1' occurs twice"),
        (
            r"^JSON parse error: The document is empty\.$",
            "it is not valid JSON: something follows the object",
        ),
        (r"^JSON parse error: (.*?)\.?( in row \d+)?$", _not_json),
        (
            r"^Invalid control character at: .*$",
            "it is not valid JSON: a text has a line break or another control character",
        ),
        (
            r"Failed to convert JSON to decimal\w+(\(.*\)): (.*) requires (?:scale|precision) \d+$",
            r"\2 has too many digits for type decimal128\1",
        ),
        (r"Failed to convert JSON to (.+?), couldn't parse: ?(.*)$", r"'\2' is not a value of type \1"),
        (r"invalid `?base64`? encoding found.*$", "a text is not valid base64"),
        # Casts.
        (
            r"Failed to parse string: '(.*)' as a scalar of type ([^:]+): expected a zone offset.*$",
            r"'\1' is not a value of type \2: it needs a time zone, such as 2026-01-31T12:00:00Z",
        ),
        (
            r"Failed to parse string: '(.*)' as a scalar of type ([^:]+)(: .*)?$",
            r"'\1' is not a value of type \2",
        ),
        (r"Failed to parse value: (.*)$", r"'\1' is not a value of its column's type"),
        (r"The string '(.*)' is not a valid (\w+) number", r"'\1' is not a value of type \2"),
        (r"Integer value (\S+) not in range: (\S+) to (\S+)$", r"\1 is not between \2 and \3"),
        (r"Float value (\S+) was truncated converting to (\w+)$", r"\1 does not fit type \2 exactly"),
        (r"Rescaling Decimal value would cause data loss", "a decimal has too many digits for the column"),
        (
            r"Decimal (?:value|type) .*?does not fit in(?:to)? precision (?:inferred .*: )?(\d+)$",
            r"a decimal has more digits than the column's \1",
        ),
        (
            r"Casting from (\S+) to (.+) would lose data: (\S+)$",
            r"a value of type \1 does not fit type \2 exactly",
        ),
        (
            r"Unsupported cast from (.+) to (.+?)(?: using function \w+|\s*\(.*)?$",
            r"type \1 can't become type \2",
        ),
        (
            r"Could not convert (.*) with type (\w+): tried to convert to (\w+)$",
            r"\1 is not a value of type \3",
        ),
        (r"Value (\S+) too large to fit in C integer type$", r"\1 is out of the range of the column's type"),
        (
            r"(?:Python int|PyLong is|Integer) too large (?:to convert to C|to fit|for) \w+$",
            "a number is out of the range of the column's type",
        ),
        (
            r"Expected bytes, got an? '(\w+)' object$",
            r"a value has Python's type \1, and the column takes text or bytes",
        ),
        # Text and files.
        (r"Invalid UTF8 payload$", _NOT_TEXT),
        (
            r"^In CSV column #\d+: Row #(\d+): CSV conversion error to string: invalid UTF8 data$",
            r"in row \1 (the header is row 1): " + _NOT_TEXT,
        ),
        (
            r"^(?:CSV parse error: )?Empty CSV file.*$",
            "it has no header that can be read: the file is empty, compressed or damaged",
        ),
        (r"^CSV parse error: ", "it is not valid CSV: "),
        (
            r"^(?:Could not open Parquet.*: )?Parquet (?:file size|magic bytes) .*$",
            "it is not a whole Parquet file",
        ),
    )
)


def plain_reason(error: Exception) -> str:
    """Return the reason that an error of a decoder gives, in plain words and on one line."""
    text = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        return _NOT_TEXT
    for pattern, words in _REWORDED:
        text, found = pattern.subn(words, text, count=1)
        if found:
            break
    return text[:_REASON_CHARS]
