"""Finds the position of a condition's JSON value among the values of a column.

A number has its exact value, like a literal in Spark SQL: 2.5 lies between two integers, and 300 lies after
all 8-bit integers. For a column of floats, a number is rounded to the nearest float64, and a float32 is
compared as a float64. NaN is the greatest number. Text may stand for a number: "1.50", "nan".
"""

import math
import re
from collections.abc import Callable
from datetime import date, tzinfo
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.persist.rows.iso_times import NS_PER, moment_ns, time_ns

_NUMBER: Final = re.compile(
    r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?|nan", re.ASCII | re.IGNORECASE
)
_DOWN: Final = Context(prec=38, rounding=ROUND_FLOOR)


def floor(value: Any, type_: pa.DataType, zone: tzinfo) -> tuple[pa.Scalar, bool]:
    """The greatest value of a type that is not greater than `value`, and whether it is equal to `value`.

    The result is null if all values of the type are greater. Only a number or a time can lie between two
    values of a type. A timestamp without a zone is in `zone` if the type is in UTC. Raises `ValueError`,
    `TypeError`, `ArithmeticError` or `ArrowException` for a value that can't be compared with the type.
    """
    if pa.types.is_integer(type_):
        bounds = np.iinfo(type_.to_pandas_dtype())
        least, greatest = Decimal(int(bounds.min)), Decimal(int(bounds.max))
        found, equal = _floor(_number(value), least, greatest, math.floor)
    elif pa.types.is_decimal(type_):
        unit = Decimal((0, (1,), -type_.scale))
        greatest = Decimal((0, (9,) * type_.precision, -type_.scale))
        found, equal = _floor(
            _number(value),
            greatest.copy_negate(),
            greatest,
            lambda number: number.quantize(unit, context=_DOWN),
        )
    elif pa.types.is_floating(type_):
        found, equal = _float_floor(_number(value), type_)
    elif pa.types.is_timestamp(type_):
        found, equal = _count(moment_ns(value, zone if type_.tz else None), type_.unit, -(2**63), 2**63 - 1)
    elif pa.types.is_time(type_):
        found, equal = _count(time_ns(value), type_.unit, 0, 2**63 - 1)
    else:
        found, equal = _typed(value, type_), True
    return pa.scalar(found, type_), equal


def _number(value: Any) -> Decimal:
    if isinstance(value, bool):
        raise TypeError
    text = str(value)
    if not _NUMBER.fullmatch(text):
        raise ValueError
    return Decimal(text)


def _floor(
    number: Decimal, least: Decimal, greatest: Decimal, rounded: Callable[[Decimal], Any]
) -> tuple[Any, bool]:
    if number.is_nan() or number > greatest:
        return greatest, False
    if number < least:
        return None, False
    found = rounded(number)
    return found, found == number


def _float_floor(number: Decimal, type_: pa.DataType) -> tuple[float, bool]:
    # Negative zero is stored as zero.
    nearest = float(number) + 0.0
    if math.isinf(nearest) and number.is_finite():
        raise ValueError
    found = pa.scalar(nearest, type_).as_py()
    if found > nearest:
        return float(np.nextafter(np.float32(found), np.float32("-inf"))), False
    return found, found == nearest or math.isnan(nearest)


def _count(ns: int, unit: str, least: int, greatest: int) -> tuple[int | None, bool]:
    """A number of nanoseconds in whole units from `least` to `greatest`, and whether it is exact."""
    found, rest = divmod(ns, NS_PER[unit])
    if found < least:
        return None, False
    return min(found, greatest), not rest and found <= greatest


def _typed(value: Any, type_: pa.DataType) -> Any:
    if value is None or isinstance(value, bool) != pa.types.is_boolean(type_):
        raise TypeError
    if pa.types.is_date(type_):
        return date.fromisoformat(value)
    if pa.types.is_binary(type_):
        return bytes.fromhex(value)
    return value
