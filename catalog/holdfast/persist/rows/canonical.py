"""Converts updates from callers to the one form that is stored, and defines its total order.

Invariants:

- A prepared batch has exactly the columns of `Schema.arrow_updates`, in that order, with those types.
- A cast never loses anything (`holdfast.persist.rows.casts`). A value that does not fit raises `BadInput`,
  which names the column.
- Floats are canonical: there is one NaN, and no negative zero. So equal values have equal bytes, and bytes
  can be hashed, grouped and compared.
- The total order is (key columns, value columns, `_time`), each column ascending: nulls first, false < true,
  numbers by value with NaN last, string and binary by their bytes.
- An update with `_diff` 0 has no effect and is dropped.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import CLOSED, BadInput
from holdfast.persist.rows import arrow_rows
from holdfast.persist.rows.casts import cast_column, column_of
from holdfast.persist.rows.column_types import TYPE_NAMES, arrow_type, stored_type
from holdfast.persist.rows.schema import DIFF, TIME, Column, Schema
from holdfast.persist.rows.stored import stored_array
from holdfast.persist.rows.values import (
    FEW_ROWS,
    R,
    Rows,
    count_type,
    few_numbers,
    ordered_bits,
    values_of,
)
from holdfast.polars_forks import polars_works

if TYPE_CHECKING:
    import polars as pl

_UINT64 = pa.uint64()
_INT64 = pa.int64()
# `pa.array` imports pandas if it is installed, which takes half a second. So no module calls it on import.
_ONES = pa.Array.from_buffers(_INT64, 1024, [None, pa.py_buffer(np.ones(1024, np.int64))])
_STORED_AS_GIVEN = frozenset(TYPE_NAMES) - {"float32", "float64", "string"}
# With fewer rows than this, the fixed cost of a Polars query outweighs its speed.
SMALL_ROWS = 512


def prepare_updates(schema: Schema, updates: object, *, default_time: int) -> pa.RecordBatch:
    """Return the updates as they are stored, unsorted. For None, return an empty batch.

    `updates` is a table, a record batch, a data frame (pandas, Polars, anything with the Arrow stream
    interface) or a list of dicts. It has the schema's columns in any order, an optional `_time` (default:
    `default_time`) and an optional `_diff` (default: +1). A nullable column that is missing is null. Python
    floats in dicts are rounded to float32 if the column has that type. An Arrow float64 column is not
    rounded.

    Raises `BadInput`, which names the column, if a column without nulls is missing, or if a column is
    unknown or given twice, has a null although it is not nullable, is of another kind, or has a value that
    the column's type can't represent.
    """
    if updates is None:
        return empty_updates(schema)
    return _prepared(schema, _rows(schema, updates), default_time)


def prepare_between(
    schema: Schema, updates: object, lower: int, upper: int
) -> tuple[pa.RecordBatch, tuple[int, int] | None]:
    """Return `prepare_updates` of `updates`, with the default time `lower`, and their `time_bounds`.

    Raises `BadInput` as `prepare_updates` does, and if a time is not in `[lower, upper)`.
    """
    rows = _rows(schema, updates)
    batch = _prepared(schema, rows, lower)
    if TIME in rows.schema.names or not batch.num_rows:
        return batch, check_times(batch, lower, upper)
    check_bounds((lower, lower), lower, upper)
    return batch, (lower, lower)


def _prepared(schema: Schema, rows: Rows, default_time: int) -> pa.RecordBatch:
    count = rows.num_rows
    given = rows.schema.names
    where = {name: index for index, name in enumerate(given)}
    if len(where) != len(given):
        twice = next(name for name in given if given.count(name) > 1)
        raise BadInput(f"column {twice!r} is given twice")
    arrays = []
    for column in schema.columns:
        index = where.pop(column.name, None)
        if index is not None:
            arrays.append(_convert(column, rows.column(index)))
        elif column.nullable:
            arrays.append(pa.nulls(count, stored_type(arrow_type(column.type))))
        else:
            raise BadInput(f"column {column.name!r} is missing (given: {', '.join(given)})")
    time, diff = where.pop(TIME, None), where.pop(DIFF, None)
    if where:
        raise BadInput(f"column {next(iter(where))!r} is not in the schema ({', '.join(schema.names)})")

    arrays.append(
        _default_time(default_time, count) if time is None else _integers(TIME, rows.column(time), _UINT64)
    )
    if diff is None:
        arrays.append(_ONES[:count] if count <= len(_ONES) else pa.array(np.ones(count, np.int64)))
        return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_updates)
    diffs = _integers(DIFF, rows.column(diff), _INT64)
    arrays.append(diffs)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_updates)
    nonzero = values_of(diffs) != 0
    return batch if nonzero.all() else batch.filter(pa.array(nonzero))


def empty_updates(schema: Schema) -> pa.RecordBatch:
    """Return a batch without updates."""
    arrays = [pa.array([], field.type) for field in schema.arrow_updates]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_updates)


def time_bounds(batch: Rows) -> tuple[int, int] | None:
    """Return the least and the greatest `_time` of updates, both inclusive; None if there are no updates."""
    if batch.num_rows == 0:
        return None
    array = _one_array(batch.column(TIME))
    if len(array) <= FEW_ROWS:
        few = few_numbers(array, "Q")
        return min(few), max(few)
    times = values_of(array)
    return int(times[times.argmin()]), int(times[times.argmax()])


def check_times(batch: Rows, lower: int, upper: int) -> tuple[int, int] | None:
    """Return the `time_bounds` of updates. Raises `BadInput` unless all times are in `[lower, upper)`."""
    bounds = time_bounds(batch)
    if bounds:
        check_bounds(bounds, lower, upper)
    return bounds


def check_bounds(bounds: tuple[int, int], lower: int, upper: int) -> None:
    """Raise `BadInput` unless the least and the greatest time of updates are in `[lower, upper)`."""
    least, greatest = bounds
    if not (lower <= least and greatest < upper):
        wrong = least if least < lower else greatest
        raise BadInput(f"an update is at time {wrong}: expected times in [{lower}, {upper})")


def sort_updates(schema: Schema, table: R) -> R:
    """Sort the updates by (key, value, `_time`). The columns must be in canonical form."""
    names = [*schema.names, TIME]
    if table.num_rows <= 1:
        return table
    if table.num_rows <= SMALL_ROWS:
        return table.take(pa.array(_order_small(table, names)))
    if table.num_rows > arrow_rows.FEW_ROWS and polars_works():
        # Polars sorts NaN last, and binary by its bytes.
        frame = to_polars(table).sort(names, nulls_last=False)
        result = from_polars(frame, table.schema)
    else:
        rows = _wide(table)
        order = arrow_rows.in_order(rows, names)
        if (order[1:] > order[:-1]).all():
            return table
        result = arrow_rows.taken(rows, order, table.schema)
    if isinstance(table, pa.Table):
        return result
    return pa.RecordBatch.from_arrays([_one_array(c) for c in result.columns], schema=table.schema)


def total_order(schema: Schema, table: Rows) -> npt.NDArray[np.integer[Any]]:
    """Return the indexes of the rows in the total order."""
    names = [*schema.names, TIME]
    if table.num_rows <= SMALL_ROWS:
        return np.array(_order_small(table, names), np.int64)
    if table.num_rows <= arrow_rows.FEW_ROWS or not polars_works():
        return arrow_rows.in_order(_wide(table), names)
    import polars as pl

    frame = to_polars(table)
    return frame.select(pl.arg_sort_by(names, nulls_last=False)).to_series().to_numpy()


def to_polars(rows: Rows) -> "pl.DataFrame":
    """Return the rows as a frame of Polars."""
    import polars as pl

    return pl.DataFrame(pl.from_arrow(rows))


def from_polars(frame: "pl.DataFrame", schema: pa.Schema) -> pa.Table:
    """Return the frame as a table of the schema. One chunk holds at most 2 GiB of text."""
    try:
        return frame.to_arrow().cast(schema)
    except pa.ArrowInvalid:
        if frame.height <= 1:
            raise
    half = frame.height // 2
    return pa.concat_tables([from_polars(frame[:half], schema), from_polars(frame[half:], schema)])


def _wide(rows: Rows) -> pa.RecordBatch:
    return arrow_rows.wide(rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows]))


def python_values(array: pa.Array) -> list[Any]:
    """Return Python objects with the order and equality of the values; None for null."""
    type_ = array.type
    if pa.types.is_floating(type_):
        array = ordered_bits(array)
    elif pa.types.is_temporal(type_):
        # Python's dates end with the year 9999.
        array = array.view(count_type(type_))
    # Python orders text by code point, which is the order of its UTF-8 bytes.
    return list(array.to_pylist())


def _order_small(table: Rows, names: list[str]) -> list[int]:
    columns = []
    for name in names:
        array = _one_array(table.column(name))
        values = python_values(array)
        columns.append([(v is not None, v) for v in values] if array.null_count else values)
    if len(columns) == 1:
        return sorted(range(table.num_rows), key=columns[0].__getitem__)
    rows = list(zip(*columns, strict=True))
    return sorted(range(table.num_rows), key=rows.__getitem__)


def _default_time(time: int, rows: int) -> pa.Array:
    if not 0 <= time < CLOSED:
        if rows:
            raise BadInput(f"no update can have the time {time}: times are from 0 to 2**64 - 1")
        time = 0
    times = np.full(rows, time, np.uint64) if rows > FEW_ROWS else time.to_bytes(8, "little") * rows
    return pa.Array.from_buffers(_UINT64, rows, [None, pa.py_buffer(times)])


def _one_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    return array


def _one_column(name: str, array: pa.Array | pa.ChunkedArray) -> pa.Array:
    one = _one_array(array)
    if isinstance(one, pa.ChunkedArray):
        raise BadInput(
            f"column {name!r} has more than 2 GiB in one append", hint="append it in smaller pieces"
        )
    return one


def _has_nulls(name: str, rows: int) -> BadInput:
    count = "1 row has a null" if rows == 1 else f"{rows} rows have a null"
    return BadInput(f"column {name!r} is not nullable, but {count}")


def _convert(column: Column, given: pa.Array | pa.ChunkedArray) -> pa.Array:
    want = arrow_type(column.type)
    if given.type != want and not pa.types.is_nested(want):
        given = cast_column(column.name, given, want)
    array = _one_column(column.name, given) if isinstance(given, pa.ChunkedArray) else given
    if array.null_count and not column.nullable:
        raise _has_nulls(column.name, array.null_count)
    return array if column.type in _STORED_AS_GIVEN else stored_array(column.name, array, want)


def _integers(name: str, given: pa.Array | pa.ChunkedArray, want: pa.DataType) -> pa.Array:
    if given.type != want:
        if not pa.types.is_integer(given.type):
            raise BadInput(f"column {name!r} must be {want}, not {given.type}")
        given = cast_column(name, given, want)
    if given.null_count:
        raise _has_nulls(name, given.null_count)
    return _one_column(name, given)


def _rows(schema: Schema, updates: object) -> Rows:
    match updates:
        case pa.RecordBatch():
            return updates
        case pa.Table():
            # A small append is mostly fixed cost, which is lower for a batch than for a table.
            batches = updates.to_batches()
            return batches[0] if len(batches) == 1 else updates
        case list() | tuple():
            return _from_dicts(schema, updates)
        case _ if hasattr(updates, "__arrow_c_stream__"):
            return pa.table(updates)
    raise BadInput(f"updates must be a table or a list of dicts, not {type(updates).__name__}")


def _from_dicts(schema: Schema, rows: Sequence[Any]) -> pa.RecordBatch:
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise BadInput(f"updates must be a table or a list of dicts, not a list of {type(row).__name__}")
        names.update(dict.fromkeys(row))
    types = {column.name: column for column in schema.columns}
    arrays, fields = [], []
    for name in (*names, *(n for n in schema.names if n not in names)):
        if name in types:
            want = arrow_type(types[name].type)
        elif name in (TIME, DIFF):
            want = _UINT64 if name == TIME else _INT64
        else:
            raise BadInput(f"column {name!r} is not in the schema ({', '.join(schema.names)})")
        default = 1 if name == DIFF else None
        arrays.append(column_of(name, [row.get(name, default) for row in rows], want))
        fields.append(pa.field(name, want))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
