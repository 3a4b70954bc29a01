"""The names of a collection's columns: what people call them, and what its shards call them.

- A shard stores each column under a name that never changes: the stored name. It is the name that the column
  got when it was added. No two columns of a collection have the same one.
- A rename changes only the record of the collection. The shards, their writers and their files stay as they
  are, and rows of any age have the new name.
- A dropped column stays in the shards, where it is hidden. Reads at times before the drop show it. Rows that
  differ only in hidden columns stay different rows.
- Whatever reads or writes shards uses the stored schema. Whatever people see or give has the schema of the
  collection. Rows change between the two with a `ColumnNames`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from holdfast.collections.record.comments import Comments
from holdfast.errors import BadInput
from holdfast.persist.checks import check_schema
from holdfast.persist.rows.row_filter import ColumnBounds, PartBounds, RowFilter
from holdfast.persist.rows.schema import DIFF, TIME, Column, Schema
from holdfast.persist.rows.values import R, values_of


@dataclass(frozen=True, slots=True)
class HiddenColumn:
    """A dropped column. `index` is its place among all stored columns, and `shown_as` its last name.

    It is hidden at times from `hidden_from` on. It is nullable.
    """

    index: int
    column: Column
    shown_as: str
    hidden_from: int


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Which stored columns people see, and under which names. Picklable.

    `renamed` has the columns whose name differs from their stored name, as (stored name, name). `hidden` are
    the dropped columns, in their order. `covered` are stored names of columns that a read at an earlier time
    doesn't show, because a column that was dropped later has their name.
    """

    renamed: tuple[tuple[str, str], ...] = ()
    hidden: tuple[HiddenColumn, ...] = ()
    covered: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether all columns are shown, with their stored names."""
        return not (self.renamed or self.hidden or self.covered)

    @property
    def unseen(self) -> frozenset[str]:
        """The stored names of the columns that are not shown."""
        return frozenset((*(each.column.name for each in self.hidden), *self.covered))

    def with_hidden(self) -> "ColumnNames":
        """The same names, and the hidden columns are shown too, under names that nobody else uses."""
        aliases = tuple((each.column.name, _ALIAS + each.column.name) for each in self.hidden)
        return ColumnNames((*self.renamed, *aliases)) if aliases else self

    def at(self, time: int) -> "ColumnNames":
        """The names for a read at a time, which shows the columns that were dropped after it.

        A name then stands for the column that was dropped first after that time. Other columns with the name
        came later, so they had no values yet.
        """
        later = sorted((each for each in self.hidden if each.hidden_from > time), key=_hidden_from)
        if not later:
            return self
        first = {each.shown_as: each for each in reversed(later)}
        renamed = tuple(each for each in self.renamed if each[1] not in first)
        now = {name: self.stored(name) for name in first}
        covered = tuple(
            stored for name, stored in now.items() if self.shown(stored) == name and self._is_shown(stored)
        )
        again = tuple((h.column.name, name) for name, h in first.items() if h.column.name != name)
        hidden = tuple(each for each in self.hidden if each is not first.get(each.shown_as))
        return ColumnNames((*renamed, *again), hidden, covered)

    def _is_shown(self, stored: str) -> bool:
        return stored not in self.unseen

    def shown(self, stored: str) -> str:
        """The name of a column."""
        return dict(self.renamed).get(stored, stored)

    def stored(self, name: str) -> str:
        """The stored name of the column with this name."""
        return next((stored for stored, shown in self.renamed if shown == name), name)

    def stored_columns(self, names: Iterable[str]) -> tuple[str, ...]:
        """The stored names of columns, in the same order."""
        return tuple(map(self.stored, names))

    def shown_columns(self, stored: Iterable[str]) -> tuple[str, ...]:
        """The names of those of these columns that are shown, in the same order."""
        unseen = self.unseen
        return tuple(self.shown(each) for each in stored if each not in unseen)

    def stored_schema(self, schema: Schema) -> Schema:
        """The schema of shards whose rows people see with this schema."""
        if self.is_plain:
            return schema
        columns = list(_with_names(schema, self.stored_columns(schema.names)).columns)
        for each in self.hidden:
            columns.insert(each.index, each.column)
        return Schema(tuple(columns[: len(schema.key)]), tuple(columns[len(schema.key) :]), schema.codec)

    def shown_schema(self, stored: Schema) -> Schema:
        """The schema in which people see rows of this stored schema."""
        if self.is_plain:
            return stored
        value = tuple(each for each in stored.value if self._is_shown(each.name))
        shown = Schema(stored.key, value, stored.codec)
        return _with_names(shown, self.shown_columns(shown.names))

    def stored_rows(self, rows: R) -> R:
        """Rows of the collection as rows of its shards. Hidden columns are null."""
        if self.is_plain:
            return rows
        rows = rows.rename_columns(list(self.stored_columns(rows.schema.names)))
        for each in self.hidden:
            last = rows.num_columns - sum(name in rows.schema.names for name in (TIME, DIFF))
            nulls = pa.nulls(rows.num_rows, each.column.stored.type)
            rows = rows.add_column(min(each.index, last), each.column.stored, nulls)
        return rows

    def shown_rows(self, rows: R) -> R:
        """Rows of shards as rows of the collection."""
        if self.is_plain:
            return rows
        unseen = self.unseen
        if unseen:
            rows = rows.select([name for name in rows.schema.names if name not in unseen])
        return rows.rename_columns(list(self.shown_columns(rows.schema.names)))

    def stored_filter(self, wanted: RowFilter, stored: Schema) -> RowFilter:
        """A filter of rows of the collection as a filter of rows of its shards, which have this schema."""
        return wanted if self.is_plain else _StoredFilter(wanted, stored, self)

    def with_new(self, before: Schema, after: Schema) -> "ColumnNames":
        """The names after columns were added. A column whose name another one stores gets a stored name of
        its own.
        """
        taken = set(self.stored_schema(before).names)
        renamed = list(self.renamed)
        for name in after.names[len(before.names) :]:
            stored, number = name, 2
            while stored in taken:
                stored, number = f"{name}.{number}", number + 1
            taken.add(stored)
            if stored != name:
                renamed.append((stored, name))
        return replace(self, renamed=tuple(renamed))

    def with_drop(self, schema: Schema, name: str, time: int) -> "ColumnNames":
        """The names after a column of this schema was dropped at a time."""
        stored = self.stored_schema(schema)
        index = stored.names.index(self.stored(name))
        hidden = HiddenColumn(index, stored.columns[index], name, time)
        renamed = tuple(each for each in self.renamed if each[0] != hidden.column.name)
        return ColumnNames(renamed, tuple(sorted((*self.hidden, hidden), key=lambda each: each.index)))

    def dropped_as(self, name: str, since: int) -> HiddenColumn | None:
        """The dropped column that reads at some times from `since` on show under this name."""
        found = (each for each in self.hidden if each.shown_as == name and each.hidden_from > since)
        return min(found, key=_hidden_from, default=None)

    def with_rename(self, old: str, new: str) -> "ColumnNames":
        """The names after a rename."""
        stored = self.stored(old)
        others = tuple(each for each in self.renamed if each[0] != stored)
        return replace(self, renamed=others if stored == new else (*others, (stored, new)))


PLAIN_NAMES: Final = ColumnNames()
_ALIAS: Final = "\0dropped:"


def is_alias(name: str) -> bool:
    """Whether this is the name of a hidden column, as `ColumnNames.with_hidden` names it."""
    return name.startswith(_ALIAS)


def without_aliases(schema: Schema) -> Schema:
    """The schema without the hidden columns that `ColumnNames.with_hidden` shows."""
    return schema.narrowed([name for name in schema.names if not is_alias(name)])


def _hidden_from(column: HiddenColumn) -> int:
    return column.hidden_from


def renamed_schema(schema: Schema, old: str, new: str, where: str) -> Schema:
    """The schema with another name of a column. Raises `BadInput`, which begins with `where`, if it can't be.

    Also raises it for a schema with a codec, whose columns belong to the codec.
    """
    check_column(schema, old, where)
    if schema.codec is not None:
        raise BadInput(f"{where}: columns of codec {schema.codec[0]} can't be renamed")
    if new in schema.names and new != old:
        raise BadInput(f"{where} has a column {new!r} already", hint="choose another name")
    Column(new, "bool")
    return check_schema(_with_names(schema, tuple(new if name == old else name for name in schema.names)))


def check_column(schema: Schema, name: str, where: str) -> None:
    """Raise `BadInput`, which begins with `where`, unless there is such a column."""
    if name not in schema.names:
        raise BadInput(f"{where} has no column {name!r} ({', '.join(schema.names)})")


def removes(updates: pa.RecordBatch) -> bool:
    """Whether some of the updates remove rows."""
    return bool((values_of(updates.column(DIFF)) < 0).any())


def check_removals(updates: pa.RecordBatch, names: ColumnNames) -> None:
    """Raise `BadInput` if updates remove rows by their shown values alone, which may not be all of theirs."""
    if names.hidden and removes(updates):
        raise BadInput(
            "rows can't be removed by their values: they may also have values in dropped columns"
            f" ({', '.join(each.shown_as for each in names.hidden)})",
            hint="delete them by key, or by a condition: Table.delete",
        )


def renamed_comments(comments: Comments, old: str, new: str) -> Comments:
    """The comments after a rename."""
    return {new if name == old else name: text for name, text in comments.items()}


def _with_names(schema: Schema, names: Sequence[str]) -> Schema:
    columns = tuple(replace(each, name=name) for each, name in zip(schema.columns, names, strict=True))
    keys = len(schema.key)
    return Schema(columns[:keys], columns[keys:], schema.codec)


class _StoredFilter:
    """A filter that sees the rows and the bounds of shards with the names of the collection."""

    def __init__(self, wanted: RowFilter, stored: Schema, names: ColumnNames) -> None:
        self.schema = stored
        self._wanted = wanted
        self._names = names

    @property
    def columns(self) -> Sequence[str]:
        return self._names.stored_columns(self._wanted.columns)

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        return self._wanted.mask(self._names.shown_rows(rows))

    def groups(self, bounds: PartBounds) -> Sequence[int]:
        return self._wanted.groups(_ShownBounds(bounds, self._names))


class _ShownBounds(PartBounds):
    """The bounds of a part under the names of the collection. Other names derive other things from them."""

    def __init__(self, bounds: PartBounds, names: ColumnNames) -> None:
        self.groups = bounds.groups
        self.derived = bounds.derived.setdefault(names, {})
        self._bounds = bounds
        self._names = names

    def of(self, column: Column) -> list[ColumnBounds]:
        """See `PartBounds`."""
        return self._bounds.of(replace(column, name=self._names.stored(column.name)))
