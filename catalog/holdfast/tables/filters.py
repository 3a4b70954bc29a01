"""What a user gives as `where`: a pyarrow expression, or lists of (column, operator, value).

- An expression means what it means in `pyarrow.Table.filter`. A row is chosen if the expression is true, and
  not if it is false or null. NaN equals nothing, not even itself.
- The conditions of a list mean what they mean in Spark (`holdfast.collections.conditions`), except that the
  value for a float32 column is rounded to float32, as in DuckDB. So 0.1 finds the rows that were written as
  0.1. A row is chosen if all conditions of the list hold, or, of a list of lists, those of one list.
- A filter depends on the values of one row only, so it chooses equal rows alike.
"""

import functools
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections.conditions import Condition, condition, mask_of, may_hold
from holdfast.errors import BadInput
from holdfast.persist.checks import check_columns
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.row_filter import ColumnBounds, ConditionFailed, PartBounds, RowFilter
from holdfast.persist.rows.schema import Column, Schema
from holdfast.persist.rows.stored import logical_array, logical_rows

if TYPE_CHECKING:
    from pyarrow import dataset

Conditions: TypeAlias = Sequence[tuple[str, str, Any]]
"""Conditions on columns, all of which hold."""

Where: TypeAlias = Union[pc.Expression, Conditions, Sequence[Conditions]]  # noqa: UP007 - no types at run time
"""A condition on rows. Of a list of lists, the conditions of one list hold."""


@dataclass(frozen=True, eq=False, slots=True)
class ChosenBy:
    """The rows for which a condition holds."""

    where: Where


_FORM: Final = (
    'such as pc.field("id") == 3, or [("id", ">=", 10), ("name", "in", ["a", "b"])],'
    ' or [[("id", "=", 3)], [("name", "like", "a%")]] for one or the other'
)
_NO_VALUE: Final = (
    "the condition has no value for one of the rows; replace what it can't use, such as"
    ' pc.if_else(pc.field("n") == 0, pc.scalar(None), pc.field("n"))'
)
_MASK: Final = "mask"
_PLACE: Final = "FieldPath("
_RANDOM: Final = "random("
_UNKNOWN: Final = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ")
# Few enough blocks, and few enough pieces in each.
_BLOCK: Final = 16
_NAN: Final = re.compile(r"\bnan\b")


def filter_of(where: Where, schema: Schema) -> RowFilter:
    """The filter of rows with this schema. Raises `BadInput` if the condition doesn't fit the schema."""
    if isinstance(where, pc.Expression):
        return _ExpressionFilter(where, schema)
    if isinstance(where, str | bytes) or not isinstance(where, Sequence):
        raise BadInput(f"where: {shown(where)} is not a condition", hint=_FORM)
    alternatives = where if where and all(_is_list(each) for each in where) else [where]
    return _ConditionsFilter([_conditions(each, schema) for each in alternatives], schema)


def _is_list(given: Any) -> bool:
    """Whether this is a list of conditions, and not a condition."""
    return isinstance(given, Sequence) and len(given) > 0 and isinstance(given[0], list | tuple)


def _conditions(given: Sequence[Any], schema: Schema) -> tuple[Condition, ...]:
    found = []
    for each in given:
        if isinstance(each, str) or not isinstance(each, Sequence) or len(each) != 3 or _is_list(each):
            raise BadInput(f"where: {shown(each)} is not a condition", hint=_FORM)
        column, operator, value = each
        if not isinstance(column, str):
            raise BadInput(f"where: {shown(each)} is not a condition", hint=_FORM)
        check_columns(schema, [column])
        field = schema.arrow.field(column)
        _check_zones(value, field)
        plain = _plain(value)
        if pa.types.is_float32(field.type):
            plain = [*map(_nearest, plain)] if isinstance(plain, list) else _nearest(plain)
        found.append(condition(column, operator, plain, schema, named="where", form=_FORM))
    return tuple(found)


def _nearest(value: Any) -> Any:
    """The float32 that is nearest to a number. A number outside of their range, and what is none, stay."""
    if isinstance(value, bool):
        return value
    try:
        found = pa.scalar(float(value), pa.float32()).as_py()
    except (TypeError, ValueError, OverflowError):
        return value
    return found if math.isfinite(found) else value


def _check_zones(value: Any, field: pa.Field) -> None:
    """Raise `BadInput` for a `datetime` without a zone if the column has one, as in rows."""
    if isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _check_zones(each, field)
    elif isinstance(value, datetime) and value.tzinfo is None and getattr(field.type, "tz", None):
        raise BadInput(
            f"where: column {field.name!r} does not fit {field.type}: {shown(value)}: it has no time zone",
            hint="give it its zone, such as .replace(tzinfo=timezone.utc), or .astimezone() for a local time",
        )


def _plain(value: Any) -> Any:
    """A value in the form of JSON, which conditions use."""
    match value:
        case list() | tuple() | set() | frozenset():
            return [_plain(each) for each in value]
        case bytes():
            return value.hex()
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return value


class _ConditionsFilter:
    """Chooses a row if all conditions of one of the alternatives hold."""

    def __init__(self, alternatives: Sequence[tuple[Condition, ...]], schema: Schema) -> None:
        self.schema = schema
        self._alternatives = alternatives

    @property
    def columns(self) -> Sequence[str]:
        return list(dict.fromkeys(each.column for one in self._alternatives for each in one))

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        if not all(self._alternatives):
            return pa.repeat(pa.scalar(True), rows.num_rows)
        return functools.reduce(pc.or_, [mask_of(rows, each) for each in self._alternatives])

    def groups(self, bounds: PartBounds) -> Sequence[int]:
        # A group is excluded only if each of the alternatives excludes it.
        return sorted({index for each in self._alternatives for index in self._groups(each, bounds)})

    def _groups(self, conditions: Sequence[Condition], bounds: PartBounds) -> Sequence[int]:
        found: Sequence[int] = range(bounds.groups)
        for each in conditions:
            column = self.schema.columns[self.schema.names.index(each.column)]
            if column not in bounds.derived:
                bounds.derived[column] = bounds.of(column)
            known = bounds.derived[column]
            found = [index for index in found if may_hold(each, known[index])]
        return found


class _ExpressionFilter:
    def __init__(self, expression: pc.Expression, schema: Schema) -> None:
        self.schema = schema
        self._expression = expression
        text = str(expression)
        # A superset is enough: bounds of other columns only cost time.
        self._columns = tuple(column for column in schema.columns if column.name in text)
        self._has_places = _PLACE in text
        # Arrow concludes from "f <= 1.5" that "not f < nan" is false, but it is true.
        self._has_nan = _NAN.search(text) is not None
        if _RANDOM in text:
            raise BadInput("where: a random condition would keep a row and lose its retraction")
        mask = evaluated(expression, schema.arrow.empty_table(), what="where")
        if not (pa.types.is_boolean(mask.type) or pa.types.is_null(mask.type)):
            raise BadInput(f"where: the expression is {mask.type}, not true or false", hint=_FORM)

    @property
    def columns(self) -> Sequence[str]:
        # A field may be given by its place among all columns.
        return self.schema.names if self._has_places else [column.name for column in self._columns]

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        there = [name for name in self.schema.names if name in rows.schema.names]
        seen = logical_rows(pa.Table.from_batches([rows]).select(there), self.schema)
        try:
            found = _evaluated(self._expression, seen).combine_chunks()
        except pa.ArrowMemoryError:
            raise
        except pa.ArrowException as error:
            # It is a value of a row: whether the expression fits the columns was found out before.
            failed = BadInput(f"where: {str(error).splitlines()[0]}", hint=_NO_VALUE)
            raise ConditionFailed(failed) from None
        # A condition may be of the type of null. Each step would copy the mask.
        mask = found if pa.types.is_boolean(found.type) else found.cast(pa.bool_())
        return mask.fill_null(False) if mask.null_count else mask

    def groups(self, bounds: PartBounds) -> Sequence[int]:
        if self._has_nan or not self._columns:
            return range(bounds.groups)
        key = self.schema, self._columns
        if key not in bounds.derived:
            bounds.derived[key] = _pieces(self.schema, self._columns, bounds)
        pieces: dataset.FileSystemDataset = bounds.derived[key]
        return sorted(int(piece.path) for piece in pieces.get_fragments(filter=self._expression))


def evaluated(expression: pc.Expression, rows: pa.Table, *, what: str) -> pa.ChunkedArray:
    """The value of an expression for each row. Raises `BadInput`, which names `what`, if it doesn't fit."""
    try:
        return _evaluated(expression, rows)
    except (pa.ArrowException, TypeError) as error:
        names = ", ".join(rows.column_names)
        if found := _UNKNOWN.match(str(error)):
            raise BadInput(f"{what}: column {found[1]!r} is not in the schema ({names})") from None
        raise BadInput(
            f"{what}: {str(error).splitlines()[0]}", hint=f"the columns are {names}; {_FORM}"
        ) from None


def _evaluated(expression: pc.Expression, rows: pa.Table) -> pa.ChunkedArray:
    from pyarrow import acero

    plan = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(rows)),
        acero.Declaration("project", acero.ProjectNodeOptions([expression], [_MASK])),
    ]
    # One thread keeps the order of the rows.
    return acero.Declaration.from_sequence(plan).to_table(use_threads=False)[_MASK]


def _pieces(schema: Schema, columns: Sequence[Column], bounds: PartBounds) -> "dataset.FileSystemDataset":
    """A data set with one piece per row group, which promises its bounds. The pieces are never opened.

    Arrow finds the pieces that an expression excludes: the same code prunes the files of its data sets. Each
    piece first promises the bounds of its block of pieces, and Arrow excludes the pieces of a block at once.
    """
    from pyarrow import dataset, fs

    nowhere, form = fs.LocalFileSystem(), dataset.ParquetFileFormat()
    known = {column: bounds.of(column) for column in columns}
    pieces = []
    for start in range(0, bounds.groups, _BLOCK):
        end = min(start + _BLOCK, bounds.groups)
        of_all = [_promise(column, _joined(each[start:end])) for column, each in known.items()]
        for index in range(start, end):
            own = [_promise(column, each[index]) for column, each in known.items()]
            promise = functools.reduce(operator.and_, [*of_all, *own])
            pieces.append(form.make_fragment(str(index), filesystem=nowhere, partition_expression=promise))
    return dataset.FileSystemDataset(pieces, schema.arrow, form, nowhere)


def _joined(bounds: Sequence[ColumnBounds]) -> ColumnBounds:
    """The bounds of a column in several row groups together."""
    has_nulls = any(each.has_nulls for each in bounds)
    known = [each for each in bounds if each.has_values]
    if not known:
        return bounds[0]
    values = [each.values for each in known if each.values is not None]
    if len(values) < len(known):
        return ColumnBounds(None, has_nulls)
    limits = pc.min_max(pa.concat_arrays(values))
    return ColumnBounds(pa.array([limits["min"], limits["max"]], values[0].type), has_nulls)


def _promise(of: Column, bounds: ColumnBounds) -> pc.Expression:
    column = pc.field(of.name)
    if not bounds.has_values:
        return column.is_null()
    if bounds.values is None or pa.types.is_nested(of.arrow.type):
        # Not even that it has no nulls: for Arrow, `is_null(nan_is_null=True)` would then never be true.
        return pc.scalar(True)
    least, greatest = logical_array(of.name, bounds.values, of.arrow.type)
    low, high = column >= least, column <= greatest
    if bounds.has_nulls:
        # Arrow understands each of the two, but not one "or" around both.
        return (low | column.is_null()) & (high | column.is_null())
    return low & high
