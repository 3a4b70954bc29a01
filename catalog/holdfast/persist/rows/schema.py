"""The columns of a shard: names, types, nullability, and their Arrow form.

Invariants:

- A schema has at least one column. Key and value columns share one name space. Names that begin with `_`
  belong to Holdfast (`_time`, `_diff`). No name is a pattern to the query engine that sorts and merges.
- A type has exactly one text form (`holdfast.persist.rows.column_types`). So equal schemas are equal values
  and have equal bytes.
- The rows that shards take and return have the stored types (`Schema.arrow_updates`, `arrow_diff`). What
  people see has the types of the columns (`Schema.arrow`). For most types they are the same.
"""

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.persist.rows.column_types import (
    ALL_TYPES,
    arrow_type,
    check_zone,
    stored_type,
)
from holdfast.persist.rows.column_types import (
    type_name as type_name,
)

TIME = "_time"
DIFF = "_diff"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type (`holdfast.persist.rows.column_types`), and whether it can be null."""

    name: str
    type: str
    nullable: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise BadInput("the name of a column must not be empty")
        if any("\ud800" <= each <= "\udfff" for each in self.name):
            raise BadInput(f"column name {self.name!r} can't be encoded in UTF-8")
        if self.name.startswith("_"):
            raise BadInput(
                f"column name {self.name!r} is refused: names that begin with '_' belong to Holdfast"
            )
        if self.name == "*" or (self.name.startswith("^") and self.name.endswith("$")):
            raise BadInput(
                f"column name {self.name!r} is refused: '*' stands for all columns, and names that begin with"
                " '^' and end with '$' are patterns",
                hint="choose another name",
            )
        try:
            normal = type_name(arrow_type(self.type))
        except BadInput as error:
            raise BadInput(f"column {self.name!r}: {error}", hint=error.hint) from None
        if normal != self.type:
            object.__setattr__(self, "type", normal)

    @property
    def arrow(self) -> pa.Field:
        """The Arrow field of the column, as people see it."""
        return pa.field(self.name, arrow_type(self.type), self.nullable)

    @property
    def stored(self) -> pa.Field:
        """The Arrow field in which the values are stored."""
        return pa.field(self.name, stored_type(arrow_type(self.type)), self.nullable)

    @property
    def is_plain(self) -> bool:
        """Whether values are stored as people see them."""
        return bool(self.arrow.type == self.stored.type)

    def __str__(self) -> str:
        return f"{self.name} {self.type}{'?' if self.nullable else ''}"


@dataclass(frozen=True)
class Schema:
    """The key and value columns of a shard, in order, and the user codec that made them, if any.

    `codec` is `(name, version)` of a codec that maps any type to `key: binary, value: binary`. A schema
    without value columns is a multiset of keys. Raises `BadInput` if a column is given twice, or if there are
    no columns.
    """

    key: tuple[Column, ...]
    value: tuple[Column, ...] = ()
    codec: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        # A list would make the schema unhashable.
        object.__setattr__(self, "key", tuple(self.key))
        object.__setattr__(self, "value", tuple(self.value))
        if not self.columns:
            raise BadInput("a schema needs at least one column")
        for column in self.key:
            if pa.types.is_nested(column.arrow.type):
                raise BadInput(
                    f"key column {column.name!r} is {column.type}: keys can't be nested",
                    hint="make it a value column, or choose a key of simple types",
                )
        seen: set[str] = set()
        for column in self.columns:
            if column.name in seen:
                raise BadInput(f"column {column.name!r} is given twice: key and value share one name space")
            seen.add(column.name)

    @classmethod
    def of(
        cls,
        key: Mapping[str, Column | str],
        value: Mapping[str, Column | str] | None = None,
        *,
        codec: tuple[str, int] | None = None,
    ) -> "Schema":
        """Make a schema from `{name: type}`. `"T?"` is a nullable T. A value may also be a `Column`."""
        return cls(_columns(key), _columns(value or {}), codec)

    @classmethod
    def from_arrow(
        cls, schema: pa.Schema, key: Sequence[str], *, codec: tuple[str, int] | None = None
    ) -> "Schema":
        """Make a schema with the fields of an Arrow schema. The fields `key`, in that order, are the key.

        Raises `BadInput`, which names the column, if its type is not supported or `key` has an unknown name.
        """
        fields = {field.name: field for field in schema}
        if missing := [name for name in key if name not in fields]:
            raise BadInput(f"key column {missing[0]!r} is not in the schema ({', '.join(schema.names)})")
        if len(fields) != len(schema):
            raise BadInput(f"a column is given twice in ({', '.join(schema.names)})")
        values = [name for name in schema.names if name not in set(key)]
        return cls(
            tuple(_from_field(fields[name]) for name in key),
            tuple(_from_field(fields[name]) for name in values),
            codec,
        )

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """Key columns, then value columns."""
        return (*self.key, *self.value)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of `columns`."""
        return tuple(column.name for column in self.columns)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.names[: len(self.key)]

    @property
    def value_names(self) -> tuple[str, ...]:
        """The names of the value columns."""
        return self.names[len(self.key) :]

    @functools.cached_property
    def as_json(self) -> str:
        """The schema as the footer of a part contains it: canonical JSON."""
        value: dict[str, Any] = {
            "key": [_column_json(column) for column in self.key],
            "value": [_column_json(column) for column in self.value],
        }
        if self.codec is not None:
            value["codec"] = list(self.codec)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    @functools.cached_property
    def arrow(self) -> pa.Schema:
        """Key and value columns as an Arrow schema: what a caller sees without time and diff."""
        return pa.schema([column.arrow for column in self.columns])

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether all values are stored as people see them."""
        return all(column.is_plain for column in self.columns)

    @functools.cached_property
    def arrow_diff(self) -> pa.Schema:
        """The stored columns and `_diff`: the schema of consolidated contents."""
        return pa.schema(
            [*(column.stored for column in self.columns), pa.field(DIFF, pa.int64(), nullable=False)]
        )

    @functools.cached_property
    def arrow_updates(self) -> pa.Schema:
        """The stored columns, `_time` (uint64) and `_diff` (int64): the schema of stored updates."""
        return pa.schema(
            [
                *(column.stored for column in self.columns),
                pa.field(TIME, pa.uint64(), nullable=False),
                pa.field(DIFF, pa.int64(), nullable=False),
            ]
        )

    @functools.cached_property
    def stream_begin(self) -> bytes:
        """The first bytes of an Arrow IPC stream of updates, which encode `arrow_updates`."""
        return bytes(self.arrow_updates.serialize().to_pybytes())

    def narrowed(self, names: Collection[str]) -> "Schema":
        """The schema with only those of its columns that have one of these names, maybe without any."""
        key, value = (
            tuple(column for column in columns if column.name in names) for columns in (self.key, self.value)
        )
        if not key and not value:
            return _WITHOUT_COLUMNS
        return self if len(key) + len(value) == len(self.columns) else Schema(key, value)

    def __str__(self) -> str:
        text = f"key ({', '.join(map(str, self.key))}), value ({', '.join(map(str, self.value))})"
        return f"{text}, codec {self.codec[0]} v{self.codec[1]}" if self.codec else text


class _WithoutColumns(Schema):
    """The schema of rows that only have counts. No shard has it."""

    def __post_init__(self) -> None:
        pass


_WITHOUT_COLUMNS: Final = _WithoutColumns(())

_shared: WeakValueDictionary[object, Schema] = WeakValueDictionary()
# Keyed by its contents and not by the schema, because a key that is the schema would keep it for ever.


def shared(schema: Schema) -> Schema:
    """Return one object for all equal schemas: a thousand shards need it once, with its Arrow form."""
    return _shared.setdefault((schema.key, schema.value, schema.codec), schema)


def _columns(given: Mapping[str, Column | str]) -> tuple[Column, ...]:
    return tuple(_column(name, what) for name, what in given.items())


def _column(name: str, what: Column | str) -> Column:
    if isinstance(what, Column):
        if what.name != name:
            raise BadInput(f"column {name!r} is given as a column named {what.name!r}")
        return what
    if not isinstance(what, str):
        raise BadInput(
            f"column {name!r}: a type is a string or a Column, not {type(what).__name__}",
            hint=ALL_TYPES,
        )
    return _known(Column(name, what.removesuffix("?"), nullable=what.endswith("?")))


def _known(column: Column) -> Column:
    """The column. Raises `BadInput` if its time zone is not known."""
    try:
        check_zone(column.arrow.type)
    except BadInput as error:
        raise BadInput(f"column {column.name!r}: {error}", hint=error.hint) from None
    return column


def _from_field(field: pa.Field) -> Column:
    try:
        type_ = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        return _known(Column(field.name, type_name(type_), nullable=field.nullable))
    except BadInput as error:
        message = str(error)
        if not message.startswith("column "):
            message = f"column {field.name!r}: {message}"
        raise BadInput(message, hint=error.hint) from None


def _column_json(column: Column) -> dict[str, Any]:
    return {"name": column.name, "type": column.type, "nullable": column.nullable}
