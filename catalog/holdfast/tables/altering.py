"""What `Table.alter` and `holdfast collection alter` make of the columns of a table."""

from collections.abc import Mapping

from holdfast.errors import BadInput
from holdfast.persist.rows.evolution import check_evolution
from holdfast.persist.rows.schema import Schema


def altered(name: str, schema: Schema, add: Mapping[str, str], types: Mapping[str, str]) -> Schema:
    """The schema with new columns, and with other types of existing ones. `name` is that of the table.

    Raises `BadInput` for a column that exists already, is unknown or must allow nulls, and `CodecMismatch`
    for a type that can't follow the current one.
    """
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
    check_evolution(schema, new)
    return new
