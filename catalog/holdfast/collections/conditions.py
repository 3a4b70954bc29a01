"""Conditions on columns, as a list of (column, operator, value). A row is chosen if all of them hold.

The list has the form of pyarrow's `filters`. Conditions mean the same as in Spark's `filter`: comparing with
null is never true, NaN equals itself and is the greatest number, and a number is compared by value even with
a column that can't hold it. A condition on the first column also limits what is read.
"""

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

OPERATORS: Final = ("=", "!=", "<", "<=", ">", ">=", "in", "is", "is not")
_SYNONYMS: Final = {"==": "=", "<>": "!="}


@dataclass(frozen=True)
class Condition:
    """A condition on one column.

    `values` have the stored type of the column. There is one value, or any number of values for the operator
    `in`. A condition without values never holds.
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
    values = value if operator == "in" else [value]
    if not isinstance(values, list) or not values:
        raise BadInput(f"{named}: 'in' needs a list of values, not {value!r}", hint=form)
    of = schema.columns[schema.names.index(column)]
    if pa.types.is_nested(of.arrow.type):
        raise BadInput(
            f"{named}: column {column!r} is {of.type}: only 'is' and 'is not' null can be asked of it",
            hint="use a pyarrow expression, or filter the rows that you read",
        )
    if (own := getattr(of.arrow.type, "tz", None)) not in (None, "UTC"):
        zone = pa.lib.string_to_tzinfo(own)
    type_ = of.stored.type
    floors = [_floor(column, each, type_, zone, named) for each in values]
    equals = [found for found, equal in floors if equal]
    if operator == "in" or equals:
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
        case "is":
            return column.is_null()
        case _:
            return column.is_not_null()


def _mask(condition: Condition, column: pa.Array) -> pa.Array:
    """Like `_expression`, computed by Arrow. A null may stand for false."""
    values = condition.values
    if pa.types.is_floating(column.type):
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
        case "is":
            return column.is_null()
        case _:
            return column.is_valid()


def _limits(condition: Condition) -> tuple[Any, Any]:
    """The range of the first column, in its order, that contains all rows for which the condition holds."""
    if condition.operator in ("is", "is not", "!="):
        return None, None
    values = sorted(python_values(condition.values))
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
