"""What is to be done to a table, and which updates that is, given what is there.

- A key is unique because its writers keep it so: they take away what is there for the keys that they write,
  in the same append. The storage beneath knows no unique keys.
- What replaces rows is decided from the contents just before the append, and only then committed; where
  somebody was faster it is decided again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from holdfast.collections.evolved import fitted
from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.persist.rows import arrowrows
from holdfast.persist.rows.consolidate import consolidate_updates, negated
from holdfast.persist.rows.fold import shown_row
from holdfast.persist.rows.schema import TIME
from holdfast.polarsforks import polars_works
from holdfast.tables.rows import keys_of, repeated, updates_of

Existing = Callable[[pa.Table | None], pa.Table]
"""The rows, with `_diff`, that are there for these keys; for None all."""


class Change(ABC):
    """What is to be done to one table; `prepare` checks it, before anything is read or written."""

    @abstractmethod
    def prepare(self, table: str, schema: Schema) -> "PreparedChange":
        """The change for a table of this name and schema. Raises `BadInput` where it does not fit."""


class PreparedChange(ABC):
    """A change whose rows were checked. `reads` tells whether it needs what is there."""

    reads: bool = True

    @abstractmethod
    def updates(self, existing: Existing, schema: Schema, time: int) -> pa.Table | None:
        """The updates, all at `time`, in `schema`, which is that of what is there; None for none."""


@dataclass(frozen=True, eq=False, slots=True)
class Append(Change):
    """Add rows, whatever is there. With a column `_diff` a row counts so often; -1 takes it away."""

    rows: object

    def prepare(self, table: str, schema: Schema) -> PreparedChange:  # noqa: ARG002
        """See `Change`."""
        return _Appended(updates_of(schema, self.rows))


@dataclass(frozen=True, eq=False, slots=True)
class Upsert(Change):
    """Put rows in the place of those that have the same keys."""

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
    """Take away all rows that have these keys."""

    keys: object

    def prepare(self, table: str, schema: Schema) -> PreparedChange:
        """See `Change`."""
        _needs_key(table, schema, "delete")
        return _Replaced(distinct_keys(schema, self.keys), lambda _there, _schema: None)


@dataclass(frozen=True, eq=False, slots=True)
class Update(Change):
    """Replace the rows of these keys (None: all rows) by what `function` makes of them.

    It gets an Arrow table of them and answers rows in any form, of these keys. It is called again where
    another writer was faster, so it must do nothing else.
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
                        f"table {table}: the function of an update answered a row of"
                        f" {_key(given, others[0])}, which it was not asked for"
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
        # A row that stays as it is goes and comes: nothing is written for it.
        updates = consolidate_updates(schema, tables, time)
        return updates if updates.num_rows else None


def distinct_keys(schema: Schema, keys: object) -> pa.Table:
    """As `keys_of`, each key once."""
    given = keys_of(schema, keys)
    return given.filter(pa.array(_is_first(given)))


def matching(rows: pa.RecordBatch, keys: pa.Table) -> pa.RecordBatch:
    """Those of the rows that have one of these keys."""
    return rows.filter(pa.array(_among(pa.Table.from_batches([rows]).select(keys.column_names), keys)))


def _at(rows: pa.Table, time: int) -> pa.Table:
    times = pa.repeat(pa.scalar(time, pa.uint64()), rows.num_rows)
    if TIME in rows.column_names:
        return rows.set_column(rows.schema.get_field_index(TIME), TIME, times)
    return rows.append_column(TIME, times)


def _needs_key(table: str, schema: Schema, what: str) -> None:
    if not schema.key:
        raise BadInput(
            f"table {table} has no key, so there is nothing to {what} by",
            hint="append rows with a column _diff, where -1 takes a row away",
        )


def _check_unique(table: str, keys: pa.Table, what: str) -> None:
    if len(again := np.flatnonzero(~_is_first(keys))):
        raise BadInput(
            f"table {table}: {what} has {_key(keys, again[0])} more than once",
            hint="keep one row for each key, or append them",
        )


def _is_first(keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each key is the first of those that equal it."""
    if not polars_works():
        first = arrowrows.first_equal(arrowrows.wide(keys), keys.column_names)
        return np.equal(first, np.arange(keys.num_rows))
    found = _frame(keys).with_row_index("_row").unique(keys.column_names, keep="first")
    return _mask(found, keys.num_rows)


def _among(rows: pa.Table, keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each row, of the columns of the keys, equals one of them."""
    names = keys.column_names
    if not polars_works():
        columns = [[*keys.column(name).chunks, *rows.column(name).chunks] for name in names]
        both = pa.table([pa.chunked_array(each) for each in columns], names)
        first = arrowrows.first_equal(arrowrows.wide(both), names)
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
