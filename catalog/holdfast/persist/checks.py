"""Checks of the arguments that callers pass. Invalid arguments raise `BadInput` at once.

All handles use these checks. So an argument means the same everywhere, and is refused in the same words.
"""

import operator
from collections.abc import Sequence
from typing import Any, Final, SupportsIndex

from holdfast.errors import CLOSED, BadInput
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.order import KeyRange
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.state import WriteMode

MOST_PURPOSE_CHARACTERS: Final = 1024
"""Every version of a shard contains the purposes that are registered with it, so they must stay small."""


def check_time(value: SupportsIndex, what: str = "as_of") -> int:
    """Return a time as an integer. Raises `BadInput` if it is invalid."""
    number = _integer(value)
    if number is None or not 0 <= number < CLOSED:
        raise BadInput(f"{what} {shown(value)} is not a time: expected 0 to 2^64 - 1")
    return number


def check_frontier(value: SupportsIndex, what: str = "since") -> int:
    """Return a frontier as an integer. Raises `BadInput` if it is invalid."""
    number = _integer(value)
    if number is None or not 0 <= number <= CLOSED:
        raise BadInput(f"{what} {shown(value)} is not a frontier: expected 0 to 2^64")
    return number


def check_forward(expected_upper: SupportsIndex, new_upper: SupportsIndex) -> tuple[int, int]:
    """Return both frontiers as integers. Raises `BadInput` unless the upper moves forward."""
    expected = check_frontier(expected_upper, "expected_upper")
    new = check_frontier(new_upper, "new_upper")
    if expected >= new:
        raise BadInput(f"an append must move the upper forward, not from {expected} to {new}")
    return expected, new


def check_purpose(value: str, *, empty: bool = False) -> str:
    """Return a purpose. Raises `BadInput` if it is blank, not a valid text, or too long."""
    if not is_text(value) or len(value) > MOST_PURPOSE_CHARACTERS or not (empty or value.strip()):
        raise BadInput(
            f"a purpose must be a string of 1 to {MOST_PURPOSE_CHARACTERS} characters, not {shown(value)}",
            hint="say in a few words what it is for, such as 'nightly report'",
        )
    return value


def check_schema(value: Schema) -> Schema:
    """Return a schema. Raises `BadInput` if it is not a `Schema`, or if a name in it has a null character."""
    if not isinstance(value, Schema):
        raise BadInput(
            f"a schema must be a holdfast.persist.Schema, not {shown(value)}",
            hint="make one with Schema.of(key={...}, value={...}) or Schema.from_arrow",
        )
    for name in value.names:
        if "\0" in name:
            raise BadInput(f"column name {name!r} has a null character", hint="choose another name")
    return value


def check_write_mode(value: WriteMode) -> WriteMode:
    """Return the mode of a writer. Raises `BadInput` if it is not a `WriteMode`."""
    if not isinstance(value, WriteMode):
        modes = " or ".join(f"WriteMode.{mode.name}" for mode in WriteMode)
        raise BadInput(f"the mode of a writer must be {modes}, not {shown(value)}")
    return value


def check_range(value: KeyRange) -> KeyRange:
    """Return a range of keys. Raises `BadInput` if it is not a `KeyRange`."""
    if not isinstance(value, KeyRange):
        raise BadInput(
            f"a range of keys must be a KeyRange, not {shown(value)}",
            hint="make one with KeyRange.between(schema, lower, upper)",
        )
    return value


def check_columns(schema: Schema, columns: Sequence[str] | None) -> None:
    """Raise `BadInput` if a column is not in the schema, or is given twice."""
    if columns is None:
        return
    if not isinstance(columns, Sequence) or isinstance(columns, str | bytes):
        raise BadInput(f"columns must be a list of names, not {shown(columns)}")
    for index, name in enumerate(columns):
        if name not in schema.names:
            raise BadInput(f"column {name!r} is not in the schema ({', '.join(schema.names)})")
        if name in columns[:index]:
            raise BadInput(f"column {name!r} is given twice")


def _integer(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def is_text(value: Any) -> bool:
    """Whether a value is a string that can be encoded in UTF-8."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)
