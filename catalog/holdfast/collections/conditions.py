"""Conditions on columns, as a list of (column, operator, value). A row is chosen if all of them hold.

The list has the form of pyarrow's `filters`. Conditions mean the same as in Spark's `filter`: comparing with
null is never true, NaN equals itself and is the greatest number, and a number is compared by value even with
a column that can't hold it. As in SQL, `not in` and `not like` don't hold for null. In the pattern of `like`,
`%` stands for any text and `_` for one character. A condition on the first column also limits what is read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections.literals import floor
from holdfast.errors import BadInput
from holdfast.persist import SnapshotPart
from holdfast.persist.rows.canonical import python_values, to_polars
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.order import following
from holdfast.persist.rows.row_filter import ColumnBounds
from holdfast.persist.rows.schema import Schema
from holdfast.persist.rows.values import canonical_floats, ordered_bits
from holdfast.polars_forks import polars_works

if TYPE_CHECKING:
    import polars as pl

OPERATORS: Final = ("=", "!=", "<", "<=", ">", ">=", "in", "not in", "like", "not like", "is", "is not")
_SYNONYMS: Final = {"==": "=", "<>": "!="}
_LISTS: Final = ("in", "not in")
_PATTERNS: Final = ("like", "not like")
_WILDCARD: Final = re.compile("[%_]")
# A longer one could be too large a regular expression.
_LONGEST_PATTERN: Final = 1000


@dataclass(frozen=True)
class Condition:
    """A condition on one column.

    `values` have the stored type of the column. There is one value, or any number of values for the operators
    `in` and `not in`. A condition without values never holds.
    """

    column: str
    operator: str
    values: pa.Array


def condition(
    column: str, operator: Any, value: Any, schema: Schema, zone: tzinfo = UTC, *, named: str, form: str
) -> Condition:
    """The condition for a column of a schema.

    A timestamp without a zone is in the zone of its column, or in `zone` if the column is in UTC. Errors
    begin with `named`, and their hint is `form`. Raises `BadInput` for a condition that doesn't fit.
    """
    operator = _SYNONYMS.get(str(operator), operator)
    if operator not in OPERATORS:
        raise BadInput(
            f"{named}: {operator!r} is not an operator; the operators are {', '.join(OPERATORS)}", hint=form
        )
    if operator in ("is", "is not"):
        if value is not None:
            raise BadInput(f"{named}: '{operator}' can be used only with null, not with {value!r}")
        return Condition(column, operator, pa.nulls(1))
    values = value if operator in _LISTS else [value]
    if not isinstance(values, list) or not values:
        raise BadInput(f"{named}: '{operator}' needs a list of values, not {value!r}", hint=form)
    if operator in _LISTS and any(each is None for each in values):
        raise BadInput(
            f"{named}: a list of values for '{operator}' has null, which equals nothing",
            hint="leave it out, and use 'is' or 'is not' null",
        )
    of = schema.columns[schema.names.index(column)]
    if pa.types.is_nested(of.arrow.type):
        raise BadInput(
            f"{named}: column {column!r} is {of.type}: only 'is' and 'is not' null can be asked of it",
            hint="use a pyarrow expression, or filter the rows that you read",
        )
    if (own := getattr(of.arrow.type, "tz", None)) not in (None, "UTC"):
        zone = pa.lib.string_to_tzinfo(own)
    type_ = of.stored.type
    if operator in _PATTERNS:
        return Condition(column, operator, pa.array([_pattern(column, value, type_, named)], type_))
    floors = [_floor(column, each, type_, zone, named) for each in values]
    equals = [found for found, equal in floors if equal]
    if operator == "not in" and not equals:
        return Condition(column, "is not", pa.nulls(1))
    if operator in _LISTS or equals:
        return Condition(column, operator, pa.array(equals, type_))
    return _between(column, operator, floors[0][0])


def kept(batch: pa.RecordBatch, wanted: Sequence[Condition]) -> pa.RecordBatch:
    """The rows for which all conditions hold."""
    return batch.filter(mask_of(batch, wanted)) if wanted and batch.num_rows else batch


def mask_of(batch: pa.RecordBatch, wanted: Sequence[Condition]) -> pa.Array:
    """For each row, whether all conditions hold. There must be at least one condition."""
    names = list(dict.fromkeys(each.column for each in wanted))
    if not polars_works():
        masks = [_mask(each, batch.column(each.column)) for each in wanted]
        return reduce(pc.and_, [mask.fill_null(False) for mask in masks])

    frame = to_polars(batch.select(names))
    return frame.select(reduce(and_, map(_expression, wanted)).fill_null(False)).to_series().to_arrow()


def may_hold(condition: Condition, bounds: ColumnBounds) -> bool:
    """Whether the condition can hold for a row of a group with these bounds of its column."""
    if condition.operator == "is":
        return bounds.has_nulls
    if not bounds.has_values or not len(condition.values):
        return False
    if condition.operator == "is not" or bounds.values is None:
        return True
    low, high = python_values(bounds.values)
    values = python_values(condition.values)
    match condition.operator:
        case "!=":
            return not low == high == values[0]
        case "<":
            return bool(low < values[0])
        case "<=":
            return bool(low <= values[0])
        case ">":
            return bool(high > values[0])
        case ">=":
            return bool(high >= values[0])
        case "not in":
            return not (low == high and low in values)
        case "like":
            prefix = _prefix(values[0])
            return bool(low[: len(prefix)] <= prefix <= high)
        case "not like":
            return True
        case _:
            return any(low <= value <= high for value in values)


def narrowed(part: SnapshotPart, wanted: Sequence[Condition], schema: Schema) -> SnapshotPart | None:
    """The piece without the rows that conditions on the first column exclude. None if nothing remains."""
    lower, upper = part.lower, part.upper
    for condition in wanted:
        if not len(condition.values):
            return None
        if condition.column == schema.names[0]:
            least, end = _limits(condition)
            lower = least if lower is None or (least is not None and least > lower) else lower
            upper = end if upper is None or (end is not None and end < upper) else upper
    if lower is not None and upper is not None and lower >= upper:
        return None
    return replace(part, lower=lower, upper=upper)


def _floor(column: str, value: Any, type_: pa.DataType, zone: tzinfo, named: str) -> tuple[pa.Scalar, bool]:
    try:
        return floor(value, type_, zone)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        told = f"{value!s:.60}" if isinstance(value, Decimal) else shown(value)
        raise BadInput(f"{named}: {told} is not a value of column {column!r} ({type_})") from None


def _pattern(column: str, value: Any, type_: pa.DataType, named: str) -> str:
    if not (pa.types.is_string(type_) or pa.types.is_large_string(type_)):
        raise BadInput(
            f"{named}: column {column!r} is {type_}: 'like' can be used only for text",
            hint="compare it with < and >",
        )
    if not isinstance(value, str):
        raise BadInput(f"{named}: 'like' needs a pattern, not {shown(value)}", hint="such as 'pear%'")
    if "\\" in value:
        raise BadInput(
            f"{named}: the pattern {shown(value)} has a backslash, which has no one meaning in SQL",
            hint="compare with '=', or use SQL, or a pyarrow expression such as pc.match_substring",
        )
    if len(value) > _LONGEST_PATTERN:
        raise BadInput(f"{named}: a pattern has at most {_LONGEST_PATTERN} characters, not {len(value)}")
    return value


def _prefix(pattern: str) -> str:
    """The text with which all texts begin that a pattern matches."""
    return _WILDCARD.split(pattern, maxsplit=1)[0]


def _regex(pattern: str) -> str:
    """The pattern as a regular expression, which Polars and Arrow read alike."""
    parts = {"%": ".*", "_": "."}
    # Both of them read every character by its number, and not every one after a backslash.
    plain = (
        parts.get(each) or (each if each.isalnum() or not each.isascii() else f"\\x{{{ord(each):x}}}")
        for each in pattern
    )
    return rf"(?s)\A{''.join(plain)}\z"


def _between(column: str, operator: str, found: pa.Scalar) -> Condition:
    """The condition for a number between `found` (null: before all) and the column's next value."""
    match operator:
        case "<" | "<=" if found.is_valid:
            return Condition(column, "<=", pa.array([found]))
        case ">" | ">=" if found.is_valid:
            return Condition(column, ">", pa.array([found]))
        case ">" | ">=" | "!=":
            return Condition(column, "is not", pa.nulls(1))
        case _:
            return Condition(column, "in", pa.array([], found.type))


def _expression(condition: Condition) -> "pl.Expr":
    import polars as pl

    column = pl.col(condition.column)
    values = pl.lit(pl.Series(pl.from_arrow(condition.values)))
    value = values.first()
    match condition.operator:
        case "=":
            return column == value
        case "!=":
            return column != value
        case "<":
            return column < value
        case "<=":
            return column <= value
        case ">":
            return column > value
        case ">=":
            return column >= value
        case "in":
            return column.is_in(values.implode())
        case "not in":
            return ~column.is_in(values.implode())
        case "like":
            return column.str.contains(_regex(condition.values[0].as_py()))
        case "not like":
            return ~column.str.contains(_regex(condition.values[0].as_py()))
        case "is":
            return column.is_null()
        case _:
            return column.is_not_null()


def _mask(condition: Condition, column: pa.Array) -> pa.Array:
    """Like `_expression`, computed by Arrow. A null may stand for false."""
    values = condition.values
    if pa.types.is_floating(column.type) and not pa.types.is_null(values.type):
        column, values = (ordered_bits(canonical_floats(each)) for each in (column, values))
    match condition.operator:
        case "=":
            return pc.equal(column, values[0])
        case "!=":
            return pc.not_equal(column, values[0])
        case "<":
            return pc.less(column, values[0])
        case "<=":
            return pc.less_equal(column, values[0])
        case ">":
            return pc.greater(column, values[0])
        case ">=":
            return pc.greater_equal(column, values[0])
        case "in":
            return pc.is_in(column, value_set=values.drop_null())
        case "not in":
            return pc.and_(column.is_valid(), pc.invert(pc.is_in(column, value_set=values.drop_null())))
        case "like":
            return pc.match_substring_regex(column, _regex(values[0].as_py()))
        case "not like":
            return pc.invert(pc.match_substring_regex(column, _regex(values[0].as_py())))
        case "is":
            return column.is_null()
        case _:
            return column.is_valid()


def _limits(condition: Condition) -> tuple[Any, Any]:
    """The range of the first column, in its order, that contains all rows for which the condition holds."""
    if condition.operator in ("is", "is not", "!=", "not in", "not like"):
        return None, None
    values = sorted(python_values(condition.values))
    if condition.operator == "like":
        return _prefix(values[0]), None
    least, greatest = values[0], values[-1]
    match condition.operator:
        case "<":
            return None, greatest
        case "<=":
            return None, following(greatest)
        case ">" | ">=":
            return least, None
        case _:
            return least, following(greatest)
