"""Positions in the total order: the key of a row as a Python value, and ranges of rows.

Invariants:

- A `Key` has one `(is not null, value)` pair per column, in the order of the schema. Keys of one schema
  compare as their rows do in the total order of (key, value). The values are those of `python_values`: floats
  are integers with the same order, and dates and times are counts of their units.
- A shorter key stands for all rows that begin with it. A `KeyRange` contains the rows at or after `lower`,
  before `upper`, and after `after`. Each limit is compared over its own length.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.persist.rows.canonical import python_values
from holdfast.persist.rows.casts import column_of
from holdfast.persist.rows.schema import Column, Schema
from holdfast.persist.rows.stored import stored_array
from holdfast.persist.rows.values import Rows, count_type, ordered_bits, values_of

Key: TypeAlias = tuple[tuple[bool, Any], ...]

NULL: Key = ((False, None),)
# With this few values, looking at some of them one by one is faster than NumPy's calls.
_FEW = 8


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows between two positions. None means no limit."""

    lower: Key | None = None
    upper: Key | None = None
    after: Key | None = None

    @staticmethod
    def between(schema: Schema, lower: object = None, upper: object = None) -> "KeyRange":
        """Return the rows at or after `lower` and before `upper` in the total order. None means no limit.

        A limit is a value of the first column, or a tuple of values of the first columns. A value in a tuple
        may be None for null. Nulls are first in the order, and NaN is last.

        Raises:
            BadInput: a value does not have its column's type.
        """
        return KeyRange(_limit(schema, lower), _limit(schema, upper))

    def beyond(self, key: Key) -> "KeyRange":
        """Return the rest of the range after the row `key`."""
        return replace(self, after=key)

    def may_meet(self, low: Key | None, high: Key | None) -> bool:
        """Whether rows whose first column is from `low` to `high` (None: unknown) can be in the range."""
        if high is not None:
            for limit in (self.lower, self.after):
                if limit is not None and high < limit[:1]:
                    return False
        return low is None or self.upper is None or low < self.upper

    def slice(self, names: Sequence[str], rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of the range. `rows` are in the total order of `names`."""
        start, end = 0, rows.num_rows
        if self.lower is not None:
            start = rows_before(names, rows, self.lower)
        if self.after is not None:
            start = max(start, rows_up_to(names, rows, self.after))
        if self.upper is not None:
            end = rows_before(names, rows, self.upper)
        return rows.slice(start, max(0, end - start))


EVERYTHING = KeyRange()


def following(value: Any) -> Any:
    """Return the next value of a column after a value of `python_values`; None if it can't be expressed."""
    match value:
        case bool():
            return None
        case int():
            return value + 1
        case str():
            return value + "\0"
        case bytes():
            return value + b"\0"
        case _:
            return None


def _limit(schema: Schema, given: object) -> Key | None:
    if given is None:
        return None
    values = given if isinstance(given, tuple) else (given,)
    if not values:
        raise BadInput("a limit of a range has no value", hint="use None for no limit")
    if len(values) > len(schema.columns):
        raise BadInput(f"a limit has {len(values)} values, but the schema has {len(schema.columns)} columns")
    return tuple(_place(column, value) for column, value in zip(schema.columns, values, strict=False))


def _place(column: Column, value: object) -> tuple[bool, Any]:
    array = column_of(column.name, [value], column.arrow.type)
    array = stored_array(column.name, array, column.arrow.type)
    (found,) = python_values(array)
    return found is not None, found


class RowKey:
    """The key of one row over the columns `names`. It reads values only as far as a comparison needs them.

    It compares with keys of the same columns. It reads hardly anything of wide rows and of long values.
    """

    __slots__ = ("_known", "_names", "_row")

    def __init__(self, names: Sequence[str], rows: pa.RecordBatch, index: int) -> None:
        self._names = names
        self._row = rows.slice(index, 1)
        self._known: list[tuple[bool, Any]] = []

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> tuple[bool, Any]:
        while len(self._known) <= index:
            (value,) = python_values(self._row.column(self._names[len(self._known)]))
            self._known.append((value is not None, value))
        return self._known[index]

    def key(self) -> Key:
        """Return the whole key."""
        return tuple(self[index] for index in range(len(self)))

    def __lt__(self, other: "RowKey") -> bool:
        return self._compare(other) < 0

    def __le__(self, other: "RowKey") -> bool:
        return self._compare(other) <= 0

    def _compare(self, other: "RowKey") -> int:
        if other is self:
            return 0
        for index in range(len(self)):
            mine, theirs = self[index], other[index]
            if mine != theirs:
                return -1 if mine < theirs else 1
        return 0


def key_at(names: Sequence[str], rows: Rows, index: int) -> Key:
    """Return the key of one row over the columns `names`."""
    row = rows.slice(index, 1)
    values = (python_values(_one(row.column(name)))[0] for name in names)
    return tuple((value is not None, value) for value in values)


def rows_before(names: Sequence[str], rows: pa.RecordBatch, key: Key | RowKey) -> int:
    """Return how many of the ordered rows are before `key`."""
    return _alike(names, rows, key)[0]


def rows_up_to(names: Sequence[str], rows: pa.RecordBatch, key: Key | RowKey) -> int:
    """Return how many of the ordered rows are before or at `key`."""
    return _alike(names, rows, key)[1]


def numbers(column: pa.Array) -> npt.NDArray[Any] | None:
    """Return integers in the order of the column's values; None if it has nulls or no numbers."""
    type_ = column.type
    if column.null_count:
        return None
    if pa.types.is_floating(type_):
        column = ordered_bits(column)
    elif pa.types.is_temporal(type_):
        column = column.view(count_type(type_))
    elif not pa.types.is_integer(type_):
        return None
    return values_of(column)


def _alike(names: Sequence[str], rows: pa.RecordBatch, key: Key | RowKey) -> tuple[int, int]:
    """Return the range of ordered rows that are equal to `key`, found column by column."""
    start, end = 0, rows.num_rows
    for index, name in enumerate(names[: len(key)]):
        if start == end:
            break
        start, end = _alike_in(rows.column(name), start, end, key[index])
    return start, end


def _alike_in(column: pa.Array, start: int, end: int, wanted: tuple[bool, Any]) -> tuple[int, int]:
    """Return which ordered values of a column, from `start` to `end`, are equal to `wanted`."""
    if end - start > _FEW and wanted[0] and (values := numbers(column)) is not None:
        value, limits = wanted[1], np.iinfo(values.dtype)
        if isinstance(value, int) and limits.min <= value <= limits.max:
            exact, within = values.dtype.type(value), values[start:end]
            first, last = np.searchsorted(within, exact), np.searchsorted(within, exact, "right")
            return start + int(first), start + int(last)

    def at(index: int) -> tuple[bool, Any]:
        (value,) = python_values(column.slice(index, 1))
        return value is not None, value

    first = bisect_left(range(end), wanted, start, key=at)
    if first == end or at(first) != wanted:
        return first, first
    if end - first == 1:
        return first, end
    return first, bisect_right(range(end), wanted, first, key=at)


def _one(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
