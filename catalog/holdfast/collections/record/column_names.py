"""The names of a collection's columns: what people call them, and what its shards call them.

- A shard stores each column under a name that never changes: the stored name. It is the name that the column
  got when it was added. No two columns of a collection have the same one.
- A rename changes only the record of the collection. The shards, their writers and their files stay as they
  are, and rows of any age have the new name.
- Whatever reads or writes shards uses the stored schema. Whatever people see or give has the schema of the
  collection. Rows change between the two with a `ColumnNames`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from holdfast.collections.record.comments import Comments
from holdfast.errors import BadInput
from holdfast.persist.rows.row_filter import ColumnBounds, PartBounds, RowFilter
from holdfast.persist.rows.schema import Column, Schema
from holdfast.persist.rows.values import R


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The columns whose name differs from their stored name, as (stored name, name). Picklable."""

    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether all columns have their stored names."""
        return not self.renamed

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
        """The names of columns, in the same order."""
        return tuple(map(self.shown, stored))

    def stored_schema(self, schema: Schema) -> Schema:
        """The schema of shards whose rows people see with this schema."""
        return schema if self.is_plain else _with_names(schema, self.stored_columns(schema.names))

    def shown_schema(self, stored: Schema) -> Schema:
        """The schema in which people see rows of this stored schema."""
        return stored if self.is_plain else _with_names(stored, self.shown_columns(stored.names))

    def stored_rows(self, rows: R) -> R:
        """Rows of the collection as rows of its shards."""
        return rows if self.is_plain else rows.rename_columns(list(self.stored_columns(rows.schema.names)))

    def shown_rows(self, rows: R) -> R:
        """Rows of shards as rows of the collection."""
        return rows if self.is_plain else rows.rename_columns(list(self.shown_columns(rows.schema.names)))

    def stored_filter(self, wanted: RowFilter) -> RowFilter:
        """A filter of rows of the collection as a filter of rows of its shards."""
        return wanted if self.is_plain else _StoredFilter(wanted, self)

    def with_new(self, before: Schema, after: Schema) -> "ColumnNames":
        """The names after columns were added. A column whose name another one stores gets a stored name of
        its own.
        """
        taken = set(self.stored_columns(before.names))
        renamed = list(self.renamed)
        for name in after.names[len(before.names) :]:
            stored, number = name, 2
            while stored in taken:
                stored, number = f"{name}.{number}", number + 1
            taken.add(stored)
            if stored != name:
                renamed.append((stored, name))
        return replace(self, renamed=tuple(renamed))

    def with_rename(self, old: str, new: str) -> "ColumnNames":
        """The names after a rename."""
        stored = self.stored(old)
        others = tuple(each for each in self.renamed if each[0] != stored)
        return replace(self, renamed=others if stored == new else (*others, (stored, new)))


PLAIN_NAMES: Final = ColumnNames()


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
    return _with_names(schema, tuple(new if name == old else name for name in schema.names))


def check_column(schema: Schema, name: str, where: str) -> None:
    """Raise `BadInput`, which begins with `where`, unless there is such a column."""
    if name not in schema.names:
        raise BadInput(f"{where} has no column {name!r} ({', '.join(schema.names)})")


def renamed_comments(comments: Comments, old: str, new: str) -> Comments:
    """The comments after a rename."""
    return {new if name == old else name: text for name, text in comments.items()}


def _with_names(schema: Schema, names: Sequence[str]) -> Schema:
    columns = tuple(replace(each, name=name) for each, name in zip(schema.columns, names, strict=True))
    keys = len(schema.key)
    return Schema(columns[:keys], columns[keys:], schema.codec)


class _StoredFilter:
    """A filter that sees the rows and the bounds of shards with the names of the collection."""

    def __init__(self, wanted: RowFilter, names: ColumnNames) -> None:
        self.schema = names.stored_schema(wanted.schema)
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
        self.groups = bounds.groups  # type: ignore[misc] # the same as those of the part
        self.derived = bounds.derived.setdefault(names, {})  # type: ignore[misc] # kept with the part
        self._bounds = bounds
        self._names = names

    def of(self, column: Column) -> list[ColumnBounds]:
        """See `PartBounds`."""
        return self._bounds.of(replace(column, name=self._names.stored(column.name)))
