"""Converts rows and keys from the forms that users have, such as data frames, and expands counts to rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, Union

import numpy as np
import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.persist.checks import check_columns
from holdfast.persist.rows.canonical import prepare_updates
from holdfast.persist.rows.casts import column_of, shown
from holdfast.persist.rows.constants import are_ones
from holdfast.persist.rows.fold import shown_row
from holdfast.persist.rows.schema import DIFF, TIME, Column

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    import polars as pl


class ArrowStream(Protocol):
    """Rows of any library that exports them as an Arrow stream, such as a relation of DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream."""


TableLike: TypeAlias = Union[
    pa.Table,
    pa.RecordBatch,
    "pd.DataFrame",
    "pl.DataFrame",
    "npt.NDArray[Any]",
    ArrowStream,
    Sequence[Mapping[str, Any]],
    Mapping[str, Iterable[Any]],
]
"""Rows: an Arrow table or batch, a data frame (pandas or Polars), a list of dicts, or a dict of lists.

Also what exports an Arrow stream, such as a relation of DuckDB, and a structured array of NumPy. The levels
of the index of a pandas frame that have names are columns. A frame or a dict without a row needs only names
of columns of the table.
"""

KeysLike: TypeAlias = Union[TableLike, Iterable[Any]]  # noqa: UP007 - as above
"""Keys: values of the key column, tuples if there are several, or rows that have the key columns."""

_PIECE_ROWS: Final = 64 * 1024
_MANY: Final = 1 << 32
_MOST: Final = 10**12
_FORMS: Final = "an Arrow table or batch, a data frame, a list of dicts, or a dict of lists"
_HINTS: Final = {
    "LazyFrame": "collect() makes a data frame of it",
    "Series": "to_frame() makes a data frame of it, with one column of its name",
    "ndarray": "give a dict of arrays, one for each column",
}
"""What to do with an object that isn't rows, by the name of its type."""


def updates_of(schema: Schema, rows: TableLike, *, counted: bool = True) -> pa.RecordBatch:
    """The rows as updates of the schema at time 0. With `counted`, they keep their `_diff` if they have one.

    Raises `BadInput` and names the first value that doesn't fit.
    """
    given = _arrow(schema, rows)
    own = [TIME] if counted else [TIME, DIFF]
    names = _names(given)
    for name in own:
        if name in names:
            raise BadInput(f"column {name!r} can't be given: the table sets it", hint=f"leave out {name}")
    if _is_empty(rows, given):
        check_columns(schema, [name for name in names if name != DIFF])
        given = []
    rows = prepare_updates(schema, given, default_time=0)
    check_diffs(rows)
    return rows


def check_diffs(updates: pa.RecordBatch | pa.Table) -> None:
    """Raise `BadInput` if an update adds or removes a row very many times. The updates fit their schema.

    The counts of a row add up, and a sum that doesn't fit int64 can't be read. With this bound it takes nine
    million writes of one row to get there.
    """
    if DIFF not in updates.schema.names:
        return
    diffs = updates.column(DIFF).cast(pa.int64()).to_numpy()
    if not len(diffs) or (diffs.max() <= _MOST and diffs.min() >= -_MOST):
        return
    index = np.flatnonzero((diffs > _MOST) | (diffs < -_MOST))[0]
    names = [name for name in updates.schema.names if name not in (TIME, DIFF)]
    raise BadInput(
        f"the row ({shown_row(names, updates, index)}) has _diff {diffs[index]}:"
        f" one write adds or removes a row at most {_MOST:,} times"
    )


def column_names(schema: Schema, rows: TableLike) -> set[str]:
    """The names of the columns that all of the rows have.

    Raises `BadInput` if the rows are in no known form, or if only some of them have a column.
    """
    given = _arrow(schema, rows)
    names = set(_names(given))
    if isinstance(given, list | tuple):
        for index, row in enumerate(given):
            if lacking := sorted(names.difference(row)):
                raise BadInput(
                    f"row {index} has no column {lacking[0]!r}, but another row has it",
                    hint="give the same columns in all rows, or merge them apart",
                )
    return names


def keys_of(schema: Schema, keys: KeysLike) -> pa.Table:
    """The key columns of the given keys: rows in any form, or values (tuples if there are several key
    columns) in a list, a set, a series or an array.

    Other columns are ignored. Raises `BadInput` and names the first value that doesn't fit.
    """
    names = schema.key_names
    only = Schema(schema.key, ())
    keys = _listed(keys)
    if isinstance(keys, Sequence) and not isinstance(keys, str | bytes) and not _are_dicts(keys):
        keys = _columns_of(schema.key, keys)
    elif isinstance(keys, str | bytes | int | float):
        raise BadInput(f"keys must be a list, not {shown(keys)}", hint=f"give [{shown(keys)}]")
    given = _arrow(schema, keys, "keys")
    if _is_empty(keys, given):
        given = []
    if isinstance(given, list | tuple):
        given = [{name: value for name, value in row.items() if name in names} for row in given]
    else:
        given = given.select([name for name in given.schema.names if name in names])
    return pa.Table.from_batches([prepare_updates(only, given, default_time=0)]).select(names)


def repeated(contents: pa.Table) -> pa.Table:
    """Each row as often as its `_diff` says, without `_diff`. Raises `BadInput` for negative counts."""
    pieces = list(repeated_pieces(contents))
    return pa.concat_tables(pieces) if pieces else contents.slice(0, 0).drop_columns([DIFF])


def repeated_pieces(contents: pa.Table) -> Iterator[pa.Table]:
    """Like `repeated`, in pieces of bounded size even for large counts."""
    rows = contents.drop_columns([DIFF])
    if are_ones(contents[DIFF]):
        yield rows
        return
    check_counts(contents)
    counts = contents[DIFF].to_numpy()
    for start in range(0, len(counts), _PIECE_ROWS):
        block = counts[start : start + _PIECE_ROWS]
        if block.max() > _MANY:
            # The sum could overflow, so go row by row. That cost is small compared with so many copies.
            copies: Iterator[np.ndarray] = chain.from_iterable(map(_copies_of, range(len(block)), block))
        else:
            copies = _copies(np.cumsum(block))
        yield from (rows.take(pa.array(places + start)) for places in copies)


def check_counts(contents: pa.Table | pa.RecordBatch) -> None:
    """Raise `BadInput` if a count is negative. The contents may have only some columns."""
    counts = contents.column(DIFF).to_numpy()
    if (counts < 0).any():
        index = int((counts < 0).argmax())
        row = shown_row([name for name in contents.schema.names if name not in (TIME, DIFF)], contents, index)
        raise BadInput(
            f"the count of a row is {counts[index]}{f' ({row})' if row else ''}: a writer removed it without"
            " its being there",
            hint="to repair it, delete the row: Table.delete(where=...), or 'holdfast delete NAME --where"
            " CONDITIONS'. Table.counts() and 'holdfast read NAME --diff' show the counts of all rows",
        )


def _copies(ends: np.ndarray) -> Iterator[np.ndarray]:
    """For each copy, the index of its row, in pieces. `ends` are the cumulative counts of the rows."""
    total = int(ends[-1])
    for start in range(0, total, _PIECE_ROWS):
        copies = np.arange(start, min(start + _PIECE_ROWS, total))
        yield np.searchsorted(ends, copies, side="right")


def _copies_of(place: int, count: int) -> Iterator[np.ndarray]:
    for start in range(0, int(count), _PIECE_ROWS):
        yield np.full(min(_PIECE_ROWS, int(count) - start), place)


def _listed(keys: Any) -> Any:
    """The keys, as a list if they are a series, an array, a set or an iterator of values."""
    if isinstance(keys, Sequence | Mapping) or any(
        hasattr(type(keys), name) for name in ("columns", "schema")
    ):
        return keys
    if isinstance(keys, AbstractSet | Iterator):
        return list(keys)
    # Of NumPy, pandas and Arrow; of chunked arrays; of Polars.
    methods = [getattr(keys, name, None) for name in ("tolist", "to_pylist", "to_list")]
    return next((method() for method in methods if callable(method)), keys)


def _arrow(schema: Schema, rows: Any, what: str = "rows") -> Any:
    """The rows in a form that `prepare_updates` accepts."""
    if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        return _with_dates(schema, _from_pandas(rows))
    if isinstance(rows, Mapping):
        return _from_lists(schema, rows)
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows
    if isinstance(rows, list | tuple):
        if not _are_dicts(rows):
            wrong = next(row for row in rows if not isinstance(row, Mapping))
            raise BadInput(f"{what} must be {_FORMS}, not a list that contains {shown(wrong)}")
        return rows
    if fields := getattr(getattr(rows, "dtype", None), "names", None):
        # A structured array of NumPy.
        return _from_lists(schema, {name: rows[name] for name in fields})
    name = type(rows).__name__
    hint = _HINTS.get(name, "")
    if not hint and hasattr(rows, "__arrow_c_stream__"):
        try:
            return pa.table(rows)
        except (pa.ArrowException, TypeError) as error:
            # A stream may also be one column without a name.
            hint = str(error).partition("\n")[0]
    elif isinstance(rows, Iterator):
        hint = f"give list({what}), or append the rows in pieces"
    raise BadInput(f"{what} must be {_FORMS}, not {name}", hint=hint)


def _from_pandas(frame: Any) -> pa.Table:
    """The columns of a frame of pandas, and the levels of its index that have names."""
    named = [level for level in frame.index.names if level is not None]
    if again := [level for level in named if level in frame.columns]:
        raise BadInput(
            f"column {again[0]!r} is also the name of a level of the frame's index",
            hint="give frame.reset_index(drop=True), or rename one of them",
        )
    if named:
        frame = frame.reset_index(named)
    # The index that is left has no name: it is no column.
    return pa.Table.from_pandas(frame, preserve_index=False)


def _with_dates(schema: Schema, rows: pa.Table) -> pa.Table:
    """Rows of pandas, which has no dates but midnights, with dates where the schema has them."""
    for column in schema.columns:
        index = rows.schema.get_field_index(column.name)
        if index < 0 or not pa.types.is_date32(column.arrow.type):
            continue
        given = rows.column(index)
        if pa.types.is_timestamp(given.type) and given.type.tz is None:
            dates = given.cast(pa.date32(), safe=False)
            if not dates.cast(given.type).equals(given):
                hint = "round the values, for example with .dt.normalize()"
                raise BadInput(f"column {column.name!r} is a date, and has times of day", hint=hint)
            rows = rows.set_column(index, column.name, dates)
    return rows


def _is_empty(rows: Any, given: Any) -> bool:
    """Whether these are rows without a row, in a form whose columns have no certain types then.

    `given` are the rows as `_arrow` returns them.
    """
    return isinstance(given, pa.Table) and not given.num_rows and rows is not given


def _names(given: Any) -> Iterable[str]:
    return given.schema.names if isinstance(given, pa.Table | pa.RecordBatch) else set().union(*given)


def _from_lists(schema: Schema, columns: Mapping[Any, Any]) -> pa.Table:
    known = {column.name: column.arrow.type for column in schema.columns} | {DIFF: pa.int64()}
    arrays = {}
    for name, values in columns.items():
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            hint = "for one row, give a list of one dict"
            raise BadInput(f"column {name!r} is {shown(values)}, not a list of values", hint=hint)
        if isinstance(values, list | tuple) and name in known:
            arrays[name] = column_of(name, values, known[name])
        else:
            try:
                arrays[name] = pa.array(values)
            except (pa.ArrowException, TypeError) as error:
                raise BadInput(f"column {name!r}: {str(error).partition(chr(10))[0]}") from None
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise BadInput(f"the columns have different numbers of values: {told}")
    return pa.table(arrays)


def _columns_of(key: tuple[Column, ...], values: Sequence[Any]) -> pa.Table:
    """Values of the key column, or tuples of the key columns' values, as a table."""
    if len(key) == 1:
        columns: list[list[Any]] = [
            [value[0] if isinstance(value, tuple) and len(value) == 1 else value for value in values]
        ]
    else:
        for value in values:
            if not isinstance(value, tuple | list) or len(value) != len(key):
                names = ", ".join(column.name for column in key)
                raise BadInput(f"a key must be a tuple of ({names}), not {shown(value)}")
        columns = [[value[index] for value in values] for index in range(len(key))]
    return pa.table(
        {
            column.name: column_of(column.name, given, column.arrow.type)
            for column, given in zip(key, columns, strict=True)
        }
    )


def _are_dicts(rows: Sequence[Any]) -> bool:
    return all(isinstance(row, Mapping) for row in rows)
