"""What `Table.alter` and `holdfast collection alter` make of the columns of a table."""

from collections.abc import Mapping
from typing import Final

from holdfast.errors import BadInput, CodecMismatch
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.evolution import evolution_fault, widens
from holdfast.persist.rows.schema import Column, Schema

_HINT: Final = (
    "a type can only become wider, such as int32 to int64, or allow nulls;"
    " for another one, add a column, or copy the rows to a new table"
)


def altered(name: str, schema: Schema, add: Mapping[str, str], types: Mapping[str, str]) -> Schema:
    """The schema with new columns, and with other types of existing ones. `name` is that of the table.

    Raises `BadInput` for a column that exists already, is unknown or must allow nulls, and `CodecMismatch`
    for a type that can't follow the current one.
    """
    for given in (add, types):
        if not isinstance(given, Mapping):
            raise BadInput(f"{name}: give a dict of columns and their types, not {shown(given)}")
    for column, type_ in add.items():
        if column in schema.names:
            raise BadInput(f"{name} already has a column '{column}'", hint="change its type instead")
        if isinstance(type_, str) and not type_.endswith("?"):
            raise BadInput(
                f"column '{column}' must be nullable: existing rows have no value in it",
                hint=f"give it the type '{type_}?'",
            )
    for column in types:
        if column not in schema.names:
            raise BadInput(f"{name} has no column '{column}' ({', '.join(schema.names)})")
    key, value = (
        {each.name: types.get(each.name, each) for each in columns} for columns in (schema.key, schema.value)
    )
    new = Schema.of(key=key, value={**value, **add}, codec=schema.codec)
    if fault := _fault(schema, new):
        raise CodecMismatch(f"{name}: {fault}", hint=_HINT)
    return new


def _fault(schema: Schema, new: Schema) -> str:
    """Why a table can't have the new columns, or ""."""
    for was, now in zip(schema.key, new.key, strict=True):
        if was != now:
            return f"column {was.name!r} can't become {_shown(now)}: a key column keeps its type"
    for was, now in zip(schema.value, new.value, strict=False):
        if was.nullable and not now.nullable:
            return f"column {was.name!r} can't become {now.type}: it may have nulls, so write {now.type}?"
        if was.type != now.type and not widens(was, now):
            return f"column {was.name!r} can't become {now.type}: not every {was.type} fits into it"
    return evolution_fault(schema, new)


def _shown(column: Column) -> str:
    return f"{column.type}{'?' if column.nullable else ''}"
