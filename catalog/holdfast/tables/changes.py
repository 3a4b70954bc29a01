"""The changes that you can make to a table, and the updates that they become given the existing rows.

- Writers keep keys unique: an append deletes the existing rows of the keys that it writes. Storage itself
  does not enforce unique keys.
- A change that replaces rows is computed from the contents just before the append. If another writer was
  faster, the append fails and the change is computed again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.persist.rows import arrow_rows
from holdfast.persist.rows.consolidate import consolidate_updates, negated
from holdfast.persist.rows.evolution import fitted
from holdfast.persist.rows.fold import shown_row
from holdfast.persist.rows.schema import TIME
from holdfast.polars_forks import polars_works
from holdfast.tables.rows import keys_of, repeated, updates_of

Existing = Callable[[pa.Table | None], pa.Table]
"""Returns the existing rows for these keys, with `_diff`. For None, returns all rows."""


class Change(ABC):
    """A change of one table. `prepare` checks it before anything is read or written."""

    @abstractmethod
    def prepare(self, table: str, schema: Schema) -> "PreparedChange":
        """Return the change for a table with this name and schema. Raises `BadInput` if it doesn't fit."""


class PreparedChange(ABC):
    """A change whose rows are checked. `reads` is True if it needs the existing rows."""

    reads: bool = True

    @abstractmethod
    def updates(self, existing: Existing, schema: Schema, time: int) -> pa.Table | None:
        """The updates, all at `time`, in `schema`, that of the existing rows. None for no updates."""


@dataclass(frozen=True, eq=False, slots=True)
class Append(Change):
    """Add rows, without reading existing ones. A column `_diff` is a row's count; -1 removes it once."""

    rows: object

    def prepare(self, table: str, schema: Schema) -> PreparedChange:  # noqa: ARG002
        """See `Change`."""
        return _Appended(updates_of(schema, self.rows))


@dataclass(frozen=True, eq=False, slots=True)
class Upsert(Change):
    """Replace the rows that have the same keys."""

    rows: object

    def prepare(self, table: str, schema: Schema) -> PreparedChange:
        """See `Change`."""
        _needs_key(table, schema, "upsert")
        rows = pa.Table.from_batches([updates_of(schema, self.rows, counted=False)])
        keys = rows.select(schema.key_names)
        _check_unique(table, keys, "an upsert")
        return _Replaced(keys, lambda _there, _schema: rows)


@dataclass(frozen=True, eq=False, slots=True)
class Delete(Change):
    """Delete all rows that have these keys."""

    keys: object

    def prepare(self, table: str, schema: Schema) -> PreparedChange:
        """See `Change`."""
        _needs_key(table, schema, "delete")
        return _Replaced(distinct_keys(schema, self.keys), lambda _there, _schema: None)


@dataclass(frozen=True, eq=False, slots=True)
class Update(Change):
    """Replace the rows with these keys (None: all rows) by the result of `function`.

    `function` takes an Arrow table of the existing rows, and returns rows in any form with the same keys. It
    is called again if another writer was faster, so it must have no side effects.
    """

    keys: object
    function: Callable[[pa.Table], object]

    def prepare(self, table: str, schema: Schema) -> PreparedChange:
        """See `Change`."""
        _needs_key(table, schema, "update")
        keys = None if self.keys is None else distinct_keys(schema, self.keys)

        def made(existing: pa.Table, now: Schema) -> pa.Table:
            rows = pa.Table.from_batches([updates_of(now, self.function(repeated(existing)), counted=False)])
            given = rows.select(schema.key_names)
            _check_unique(table, given, "an update")
            if keys is not None:
                others = np.flatnonzero(~_among(given, keys))
                if len(others):
                    raise BadInput(
                        f"table {table}: the function of an update returned a row of"
                        f" {_key(given, others[0])}, which is not among the given keys"
                    )
            return rows

        return _Replaced(keys, made)


class _Appended(PreparedChange):
    reads = False

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    def updates(self, existing: Existing, schema: Schema, time: int) -> pa.Table | None:  # noqa: ARG002
        if not self._rows.num_rows:
            return None
        return fitted(_at(pa.Table.from_batches([self._rows]), time), schema.arrow_updates)


class _Replaced(PreparedChange):
    def __init__(self, keys: pa.Table | None, made: Callable[[pa.Table, Schema], pa.Table | None]) -> None:
        self._keys = keys
        self._made = made

    def updates(self, existing: Existing, schema: Schema, time: int) -> pa.Table | None:
        there = existing(self._keys)
        rows = self._made(there, schema)
        given = [each for each in (negated(there), rows) if each is not None]
        tables = [fitted(_at(each, time), schema.arrow_updates) for each in given]
        # A row that doesn't change is deleted and inserted, which cancels out: nothing is written for it.
        updates = consolidate_updates(schema, tables, time)
        return updates if updates.num_rows else None


def distinct_keys(schema: Schema, keys: object) -> pa.Table:
    """Like `keys_of`, but each key once."""
    given = keys_of(schema, keys)
    return given.filter(pa.array(_is_first(given)))


def matching(rows: pa.RecordBatch, keys: pa.Table) -> pa.RecordBatch:
    """The rows that have one of these keys."""
    return rows.filter(pa.array(_among(pa.Table.from_batches([rows]).select(keys.column_names), keys)))


def _at(rows: pa.Table, time: int) -> pa.Table:
    times = pa.repeat(pa.scalar(time, pa.uint64()), rows.num_rows)
    if TIME in rows.column_names:
        return rows.set_column(rows.schema.get_field_index(TIME), TIME, times)
    return rows.append_column(TIME, times)


def _needs_key(table: str, schema: Schema, what: str) -> None:
    if not schema.key:
        raise BadInput(
            f"table {table} has no key columns, so you can't {what} rows",
            hint="append rows with a column _diff, where -1 removes a row",
        )


def _check_unique(table: str, keys: pa.Table, what: str) -> None:
    if len(again := np.flatnonzero(~_is_first(keys))):
        raise BadInput(
            f"table {table}: {what} has {_key(keys, again[0])} more than once",
            hint="keep one row for each key, or append the rows",
        )


def _is_first(keys: pa.Table) -> npt.NDArray[np.bool_]:
    """For each key, whether it is the first of the keys that are equal to it."""
    if not polars_works():
        first = arrow_rows.first_equal(arrow_rows.wide(keys), keys.column_names)
        return np.equal(first, np.arange(keys.num_rows))
    found = _frame(keys).with_row_index("_row").unique(keys.column_names, keep="first")
    return _mask(found, keys.num_rows)


def _among(rows: pa.Table, keys: pa.Table) -> npt.NDArray[np.bool_]:
    """For each row, which has the columns of the keys, whether it equals one of them."""
    names = keys.column_names
    if not polars_works():
        columns = [[*keys.column(name).chunks, *rows.column(name).chunks] for name in names]
        both = pa.table([pa.chunked_array(each) for each in columns], names)
        first = arrow_rows.first_equal(arrow_rows.wide(both), names)
        among: npt.NDArray[np.bool_] = first[keys.num_rows :] < keys.num_rows
        return among
    found = _frame(rows).with_row_index("_row").join(_frame(keys), on=names, how="semi", nulls_equal=True)
    return _mask(found, rows.num_rows)


def _mask(found: pl.DataFrame, rows: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(rows, np.bool_)
    mask[found["_row"].to_numpy()] = True
    return mask


def _key(rows: pa.Table, index: int) -> str:
    return f"key ({shown_row(rows.column_names, rows, index)})"


def _frame(rows: pa.Table) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(rows))
