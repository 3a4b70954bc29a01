"""The changes that you can make to a table, and the updates that they become given the existing rows.

- Writers keep keys unique: an append deletes the existing rows of the keys that it writes. Storage itself
  does not enforce unique keys.
- A change that replaces rows is computed from the contents just before the append. If another writer was
  faster, the append fails and the change is computed again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections.record.column_names import is_alias, removes
from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.persist.checks import check_columns
from holdfast.persist.rows import arrow_rows
from holdfast.persist.rows.canonical import to_polars
from holdfast.persist.rows.casts import column_of, shown
from holdfast.persist.rows.consolidate import consolidate_updates, negated
from holdfast.persist.rows.evolution import fitted
from holdfast.persist.rows.fold import shown_row
from holdfast.persist.rows.key_filter import among, marked
from holdfast.persist.rows.schema import DIFF, TIME
from holdfast.persist.rows.stored import logical_rows
from holdfast.polars_forks import polars_works
from holdfast.tables.filters import ChosenBy, Where, evaluated, filter_of
from holdfast.tables.moments import Moment, milliseconds
from holdfast.tables.rows import (
    KeysLike,
    TableLike,
    check_counts,
    column_names,
    keys_of,
    repeated,
    updates_of,
)

_MATCHED: Final = ("update", "keep", "delete")
_MISSING: Final = ("insert", "ignore")
_TIME_FIELD: Final = pa.field(TIME, pa.uint64(), nullable=False)


@dataclass(frozen=True, slots=True)
class ChangedSince:
    """The difference between the existing rows and those at a time."""

    time: int


Chosen: TypeAlias = pa.Table | ChosenBy | ChangedSince | None
"""Existing rows: those with these keys, those that a condition chooses, what changed, or all of them."""

Existing = Callable[[Chosen], pa.Table]
"""Returns existing rows, with `_diff`."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a write: its time, and the updates of each table (None: no updates)."""

    time: int
    updates: tuple[pa.Table | None, ...]

    @property
    def removed(self) -> int:
        """The number of rows that the write removed, with those that it replaced."""
        return -sum(diff for diff in self._diffs() if diff < 0)

    @property
    def added(self) -> int:
        """The number of rows that the write added, with those that replace others."""
        return sum(diff for diff in self._diffs() if diff > 0)

    def _diffs(self) -> Iterator[int]:
        for each in self.updates:
            if each is not None:
                yield from each.column(DIFF).to_pylist()


class Change(ABC):
    """A change of one table. `prepare` checks it before anything is read or written.

    `what` is the word for it in the history of the table.
    """

    what: ClassVar[str]

    @abstractmethod
    def prepare(self, table: str, schema: Schema) -> "PreparedChange":
        """Return the change for a table with this name and schema. Raises `BadInput` if it doesn't fit."""


class PreparedChange(ABC):
    """A change whose rows are checked. `reads` is True if it needs the existing rows."""

    reads: bool = True
    given: pa.RecordBatch | None = None
    """The rows to append as they were given, perhaps with negative counts."""

    @abstractmethod
    def updates(self, existing: Existing, schema: Schema, time: int) -> pa.Table | None:
        """The updates, all at `time`, in `schema`, that of the existing rows. None for no updates."""


@dataclass(frozen=True, eq=False, slots=True)
class Append(Change):
    """Add rows, without reading existing ones. A column `_diff` is a row's count; -1 removes it once."""

    what: ClassVar[str] = "append"
    rows: TableLike

    def prepare(self, table: str, schema: Schema) -> PreparedChange:  # noqa: ARG002
        """See `Change`."""
        return _Appended(updates_of(schema, self.rows))


@dataclass(frozen=True, eq=False, slots=True)
class GroupedAppends(Change):
    """Several appends that are committed together, in their order."""

    what: ClassVar[str] = Append.what
    members: Sequence[Change]

    def prepare(self, table: str, schema: Schema) -> PreparedChange:
        """See `Change`."""
        prepared = (each.prepare(table, schema).given for each in self.members)
        return _Appended(pa.concat_batches([rows for rows in prepared if rows is not None]))


@dataclass(frozen=True, eq=False, slots=True)
class Upsert(Change):
    """Replace the rows that have the same keys."""

    what: ClassVar[str] = "upsert"
    rows: TableLike

    def prepare(self, table: str, schema: Schema) -> PreparedChange:
        """See `Change`."""
        _needs_key(table, schema, "upsert")
        rows = pa.Table.from_batches([updates_of(schema, self.rows, counted=False)])
        keys = rows.select(schema.key_names)
        check_unique(table, keys, "an upsert")
        return _Replaced(keys, lambda _there, _schema: rows)


@dataclass(frozen=True, eq=False, slots=True)
class Delete(Change):
    """Delete all rows that have these keys, or all rows for which `where` holds (as in `Table.scan`)."""

    what: ClassVar[str] = "delete"
    keys: KeysLike | None = None
    where: Where | None = None

    def prepare(self, table: str, schema: Schema) -> PreparedChange:
        """See `Change`."""
        if (self.keys is None) == (self.where is None):
            hint = "to delete all rows, give where=[]"
            raise BadInput(f"table {table}: a delete needs either keys or where", hint=hint)
        if self.where is not None:
            filter_of(self.where, schema)
            return _Replaced(ChosenBy(self.where), lambda _there, _schema: None)
        _needs_key(table, schema, "delete", "delete them by a condition: delete(where=...)")
        assert self.keys is not None
        return _Replaced(distinct_keys(schema, self.keys), lambda _there, _schema: None)


@dataclass(frozen=True, eq=False, slots=True)
class Update(Change):
    """Replace the rows with these keys (None: all rows) by the result of `function`.

    `function` takes an Arrow table of the existing rows, and returns rows in any form with the same keys. It
    is called again if another writer was faster, so it must have no side effects.
    """

    what: ClassVar[str] = "update"
    keys: KeysLike | None
    function: Callable[[pa.Table], TableLike]

    def prepare(self, table: str, schema: Schema) -> PreparedChange:
        """See `Change`."""
        _needs_key(table, schema, "update")
        if not callable(self.function):
            raise BadInput(
                f"table {table}: the function of an update must take rows and return rows,"
                f" not be {shown(self.function)}"
            )
        keys = None if self.keys is None else distinct_keys(schema, self.keys)

        def made(existing: pa.Table, now: Schema) -> pa.Table:
            seen = logical_rows(existing, now)
            seen = seen.select([name for name in seen.column_names if not is_alias(name)])
            rows = pa.Table.from_batches([updates_of(now, self.function(repeated(seen)), counted=False)])
            given = rows.select(schema.key_names)
            check_unique(table, given, "an update")
            if keys is not None:
                others = np.flatnonzero(~among(given, keys))
                if len(others):
                    raise BadInput(
                        f"table {table}: the function of an update returned a row of"
                        f" {_key(given, others[0])}, which is not among the given keys"
                    )
            return rows

        return _Replaced(keys, made)


@dataclass(frozen=True, eq=False, slots=True)
class SetValues(Change):
    """Set columns of the rows for which `where` holds (`[]`: all). The values are as in `Table.update`."""

    what: ClassVar[str] = "update"
    where: Where
    values: Mapping[str, object]

    def prepare(self, table: str, schema: Schema) -> PreparedChange:
        """See `Change`."""
        if not isinstance(self.values, Mapping) or not self.values:
            raise BadInput(
                f"table {table}: set must be a dict of columns and values, not {shown(self.values)}"
            )
        check_columns(schema, list(self.values))
        if keys := [name for name in self.values if name in schema.key_names]:
            raise BadInput(
                f"table {table}: key column {keys[0]!r} can't be set",
                hint="delete the rows, and append them with other keys",
            )
        filter_of(self.where, schema)
        # A value that doesn't fit is refused even if there are no rows.
        self._made(schema.arrow_diff.empty_table(), schema)
        return _Replaced(ChosenBy(self.where), self._made)

    def _made(self, existing: pa.Table, schema: Schema) -> pa.Table:
        check_counts(existing)
        rows = existing = logical_rows(existing, schema)
        seen = existing.select([name for name in schema.names if not is_alias(name)])
        for name, value in self.values.items():
            type_ = schema.arrow.field(name).type
            if isinstance(value, pc.Expression):
                made = evaluated(value, seen, what=f"set: column {name!r}")
            else:
                one = column_of(name, [value], type_)
                made = one.take(pa.array(np.zeros(rows.num_rows, np.int64)))
                if value is None and not schema.arrow.field(name).nullable:
                    raise BadInput(f"set: column {name!r} can't be null")
            rows = rows.set_column(rows.schema.get_field_index(name), name, made)
        return pa.Table.from_batches([updates_of(schema, rows)])


@dataclass(frozen=True, eq=False, slots=True)
class Merge(Change):
    """Compare rows by key with the existing ones. See `Table.merge` for `matched` and `missing`."""

    what: ClassVar[str] = "merge"
    rows: TableLike
    matched: str = "update"
    missing: str = "insert"

    def prepare(self, table: str, schema: Schema) -> PreparedChange:
        """See `Change`."""
        _needs_key(table, schema, "merge")
        for name, value, known in (("matched", self.matched, _MATCHED), ("missing", self.missing, _MISSING)):
            if value not in known:
                raise BadInput(f"table {table}: {name} must be one of {', '.join(known)}, not {shown(value)}")
        names = column_names(schema, self.rows)
        check_columns(schema, sorted(names.difference((TIME, DIFF)), key=str))
        others = [column for column in schema.value if column.name not in names]
        part = Schema(schema.key, tuple(each for each in schema.value if each.name in names))
        rows = pa.Table.from_batches([updates_of(part, self.rows, counted=False)])
        needed = [each.name for each in others if not each.nullable]
        keys = rows.select(schema.key_names)
        check_unique(table, keys, "a merge")

        def made(existing: pa.Table, now: Schema) -> pa.Table:
            is_there = pa.array(among(keys, existing.select(keys.column_names)))
            pieces = []
            if self.matched == "keep":
                pieces.append(existing)
            elif self.matched == "update" and not others and part.names == now.names:
                pieces.append(rows.filter(is_there))
            elif self.matched == "update":
                check_counts(existing)
                check_unique(table, existing.select(keys.column_names), "a merge of some columns")
                pieces.append(_overlaid(existing, rows, keys))
            if self.missing == "insert":
                new = rows.filter(pc.invert(is_there))
                if needed and new.num_rows:
                    raise BadInput(
                        f"table {table}: column {needed[0]!r} is missing, and the row of"
                        f" {_key(new.select(keys.column_names), 0)} is new and needs it",
                        hint=f"give {needed[0]}, or missing='ignore' to change only rows that exist",
                    )
                pieces.append(new)
            wanted = now.arrow_diff
            return pa.concat_tables([wanted.empty_table(), *(_with_columns(each, wanted) for each in pieces)])

        return _Replaced(keys, made)


@dataclass(frozen=True, eq=False, slots=True)
class Revert(Change):
    """Make the rows those of an earlier time. See `Table.revert`."""

    what: ClassVar[str] = "revert"
    as_of: Moment

    def prepare(self, table: str, schema: Schema) -> PreparedChange:  # noqa: ARG002
        """See `Change`."""
        return _Replaced(ChangedSince(milliseconds(self.as_of)), lambda _there, _schema: None)


class _Appended(PreparedChange):
    reads = False

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.given = self._rows = rows

    def updates(self, existing: Existing, schema: Schema, time: int) -> pa.Table | None:  # noqa: ARG002
        if not self._rows.num_rows:
            return None
        updates = fitted(_at(pa.Table.from_batches([self._rows]), time), schema.arrow_updates)
        if not removes(self._rows):
            return updates
        # What cancels out is no change, neither now nor after a compaction.
        updates = consolidate_updates(schema, [updates], time)
        return updates if updates.num_rows else None


def appended(rows: pa.RecordBatch) -> PreparedChange:
    """The append of rows that were checked."""
    return _Appended(rows)


def is_groupable(change: PreparedChange) -> bool:
    """Whether the change may be committed together with others: it only adds rows."""
    return isinstance(change, _Appended) and change.given is not None and not removes(change.given)


class _Replaced(PreparedChange):
    def __init__(self, chosen: Chosen, made: Callable[[pa.Table, Schema], pa.Table | None]) -> None:
        self._chosen = chosen
        self._made = made

    def updates(self, existing: Existing, schema: Schema, time: int) -> pa.Table | None:
        there = existing(self._chosen)
        rows = self._made(there, schema)
        given = [each for each in (negated(there), rows) if each is not None]
        tables = [fitted(_at(each, time), schema.arrow_updates) for each in given]
        # A row that doesn't change is deleted and inserted, which cancels out: nothing is written for it.
        updates = consolidate_updates(schema, tables, time)
        return updates if updates.num_rows else None


def distinct_keys(schema: Schema, keys: KeysLike) -> pa.Table:
    """Like `keys_of`, but each key once."""
    given = keys_of(schema, keys)
    return given.filter(pa.array(_is_first(given)))


def _overlaid(existing: pa.Table, rows: pa.Table, keys: pa.Table) -> pa.Table:
    """The existing rows with the values of the rows that have the same keys. Each key occurs once in both."""
    names = keys.column_names
    places = pa.array(_places(existing.select(names), keys))
    result = existing
    for name in rows.column_names:
        if name not in (*names, TIME):
            index = result.schema.get_field_index(name)
            result = result.set_column(index, name, rows.column(name).take(places))
    return result


def _with_columns(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The rows with exactly the wanted columns: nulls for those that they don't have."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.Table.from_arrays(columns, schema=wanted)


def _at(rows: pa.Table, time: int) -> pa.Table:
    times = pa.repeat(pa.scalar(time, pa.uint64()), rows.num_rows)
    if TIME in rows.column_names:
        return rows.set_column(rows.schema.get_field_index(TIME), _TIME_FIELD, times)
    return rows.append_column(_TIME_FIELD, times)


def _needs_key(
    table: str,
    schema: Schema,
    what: str,
    instead: str = "append rows with a column _diff, where -1 removes a row",
) -> None:
    if not schema.key:
        raise BadInput(
            f"table {table} has no key columns, so you can't {what} rows",
            hint=instead,
        )


def check_unique(table: str, keys: pa.Table, what: str, otherwise: str = "append the rows") -> None:
    """Raise `BadInput` if a key occurs twice. `what` has them, and `otherwise` is what else to do."""
    if keys.num_columns == 1 and len(keys.column(0).unique()) == keys.num_rows:
        return
    if len(again := np.flatnonzero(~_is_first(keys))):
        raise BadInput(
            f"table {table}: {what} has {_key(keys, again[0])} more than once",
            hint=f"keep one row for each key, or {otherwise}",
        )


def _is_first(keys: pa.Table) -> npt.NDArray[np.bool_]:
    """For each key, whether it is the first of the keys that are equal to it."""
    if not polars_works():
        first = arrow_rows.first_equal(arrow_rows.wide(keys), keys.column_names)
        return np.equal(first, np.arange(keys.num_rows))
    found = to_polars(keys).with_row_index("_row").unique(keys.column_names, keep="first")
    return marked(found, keys.num_rows)


def _places(rows: pa.Table, keys: pa.Table) -> npt.NDArray[np.integer[Any]]:
    """For each row, the index of its key among `keys`. All of them are there, and each once."""
    names = keys.column_names
    if keys.num_rows == 1:
        # Polars finds no match if a table of one row with NaN is joined with another one.
        return np.zeros(rows.num_rows, np.int64)
    if not polars_works():
        columns = [[*keys.column(name).chunks, *rows.column(name).chunks] for name in names]
        both = pa.table([pa.chunked_array(each) for each in columns], names)
        first: npt.NDArray[np.integer[Any]] = arrow_rows.first_equal(arrow_rows.wide(both), names)
        return first[keys.num_rows :]
    indexed = to_polars(keys).with_row_index("_row")
    joined = to_polars(rows).join(indexed, on=names, how="left", nulls_equal=True, maintain_order="left")
    return joined["_row"].to_numpy()


def _key(rows: pa.Table, index: int) -> str:
    return f"key ({shown_row(rows.column_names, rows, index)})"
