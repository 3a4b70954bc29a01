"""Nested values as JSON text, for columns of type string."""

import base64
import datetime as dt
import decimal
import json
import math
from collections.abc import Callable
from typing import Any, Final


def as_json(value: Any) -> str:
    """A value as JSON text. JSON has no form for bytes, which are base64, and for times and decimals."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(_finite(value))


_encode: Final[Callable[[Any], str]] = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=lambda value: _plain(value)
).encode


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    raise TypeError(f"a value of type {type(value).__name__}")


def _finite(value: Any) -> Any:
    """The value with text in the place of numbers that JSON doesn't have."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    return value
