"""The Iceberg table that a collection is written to: how it is opened, and which columns it needs.

- Columns are matched by name. Changes of the collection's columns since the last snapshot change the table's
  schema, in the same commit as the rows. A change that the table can't make is refused before any row is
  written.
- Each column gets a type that holds all its values. `uint64` becomes decimal(20,0), a smaller unsigned
  integer becomes the next wider signed one. Moments and times of day become microseconds, and a moment with
  a zone becomes timestamptz, which has the same moments in UTC.
- A column that the collection has renamed is renamed, and keeps its field id. A column that the collection
  has dropped is dropped, and a new one with its name gets another field id. Before, the table's column has
  the stored name, or is the one that the table's property `holdfast.renamed` names, because an earlier export
  renamed it.
- Other columns of the table that the collection doesn't have stay, and are null.
- The comment of a column becomes the doc of the table's column. Without a comment, the doc stays as it is.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyiceberg import types as t
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table, Transaction

from holdfast.collections.record.column_names import PLAIN_NAMES, ColumnNames
from holdfast.collections.record.comments import NO_COMMENTS, Comments
from holdfast.errors import BadInput, HoldfastError, StoreUnreachable
from holdfast.persist.rows.schema import Column, Schema
from holdfast.tables.iceberg.target import IcebergTarget
from holdfast.text import without_passwords

_RENAMED: Final = "holdfast.renamed"
"""The property of a table with the ids of the columns that were renamed, by their stored names, as JSON."""

_TYPES: Final[Mapping[pa.DataType, t.PrimitiveType]] = {
    pa.bool_(): t.BooleanType(),
    pa.int8(): t.IntegerType(),
    pa.int16(): t.IntegerType(),
    pa.int32(): t.IntegerType(),
    pa.int64(): t.LongType(),
    pa.uint8(): t.IntegerType(),
    pa.uint16(): t.IntegerType(),
    pa.uint32(): t.LongType(),
    pa.uint64(): t.DecimalType(20, 0),
    pa.float32(): t.FloatType(),
    pa.float64(): t.DoubleType(),
    pa.string(): t.StringType(),
    pa.binary(): t.BinaryType(),
    pa.date32(): t.DateType(),
}
# By name, because some are defined in packages that only pyiceberg needs.
_WRONG: Final = {
    "ArgumentError",
    "InvalidSchema",
    "InvalidURL",
    "MissingSchema",
    "NoSuchModuleError",
    "NoSuchPropertyException",
    "NotInstalledError",
    "ValueError",
}
"""The errors for invalid properties of a catalog, raised before anything is sent to it."""


def iceberg_type(column: Column) -> t.PrimitiveType:
    """The Iceberg type that can hold every value of a column. Raises `BadInput` if there is none."""
    arrow = column.arrow.type
    if pa.types.is_decimal128(arrow):
        return t.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_timestamp(arrow) and arrow.unit != "ns":
        return t.TimestampType() if arrow.tz is None else t.TimestamptzType()
    if pa.types.is_time(arrow) and arrow.unit != "ns":
        return t.TimeType()
    try:
        return _TYPES[arrow]
    except KeyError:
        raise BadInput(
            f"column {column.name!r}: Iceberg has no type for {column.type}",
            hint="write it to Parquet, which has this type",
        ) from None


def open_catalog(target: IcebergTarget) -> Catalog:
    """Open the catalog, including the environment's properties. Raises `BadInput` and `StoreUnreachable`."""
    try:
        return load_catalog(target.catalog, **target.properties)
    except Exception as error:
        raise unusable(error, f"the Iceberg catalog {target.catalog}") from error


def make_table(
    catalog: Catalog, target: IcebergTarget, schema: Schema, comments: Comments = NO_COMMENTS
) -> Table:
    """Open the table, or create it if it doesn't exist. Raises `BadInput` and `StoreUnreachable`."""
    wanted = IcebergSchema(
        *(
            t.NestedField(
                number,
                column.name,
                iceberg_type(column),
                required=not column.nullable,
                doc=comments.get(column.name),
            )
            for number, column in enumerate(schema.columns, 1)
        )
    )
    try:
        if catalog.table_exists(target.table):
            return load_table(catalog, target)
        catalog.create_namespace_if_not_exists(target.table.rpartition(".")[0])
        return catalog.create_table_if_not_exists(target.table, wanted)
    except HoldfastError:
        raise
    except Exception as error:
        raise unusable(error, f"the Iceberg table {target}") from error


def load_table(catalog: Catalog, target: IcebergTarget) -> Table:
    """The table as it is now. Raises `BadInput` and `StoreUnreachable`."""
    try:
        table = catalog.load_table(target.table)
    except NoSuchTableError:
        raise BadInput(f"the Iceberg table {target} does not exist any more") from None
    except Exception as error:
        raise unusable(error, f"the Iceberg table {target}") from error
    if table.spec().fields:
        raise BadInput(
            f"the Iceberg table {target} is partitioned, but a snapshot is written without partitions",
            hint="name a table that isn't partitioned, or one that doesn't exist yet",
        )
    return table


def evolve(
    transaction: Transaction,
    target: IcebergTarget,
    schema: Schema,
    comments: Comments = NO_COMMENTS,
    names: ColumnNames = PLAIN_NAMES,
) -> IcebergSchema:
    """Give the table the columns of the collection. Returns the schema for data files, with column ids.

    `names` are those of the columns at the time of the rows.
    The change becomes durable with the transaction. Raises `BadInput` for a change that the table can't make.
    """
    renamed = [each for each in names.renamed if each[1] in schema.names]
    _drop(transaction, [each.column.name for each in names.hidden])
    _rename(transaction, renamed)
    there = {field.name: field for field in transaction.table_metadata.schema().fields}
    for field in there.values():
        if field.required and field.name not in schema.names:
            raise BadInput(
                f"the Iceberg table {target} requires column {field.name!r}, which the collection lacks",
                hint="make it optional, or name another table",
            )
    with transaction.update_schema() as update:
        for column in schema.columns:
            wanted, found = iceberg_type(column), there.get(column.name)
            comment = comments.get(column.name)
            if found is None:
                update.add_column(column.name, wanted, doc=comment)
                continue
            if not _holds(found.field_type, wanted):
                if not _holds(wanted, found.field_type):
                    raise BadInput(
                        f"column {column.name!r} is {found.field_type} in the Iceberg table {target}, and"
                        f" can't become {wanted}, the type for the collection's {column.type}",
                        hint="name another table",
                    )
                update.update_column(column.name, field_type=wanted)
            if found.required and column.nullable:
                update.update_column(column.name, required=False)
            if comment is not None and found.doc != comment:
                update.update_column(column.name, doc=comment)
    now = transaction.table_metadata.schema()
    ids = {stored: now.find_field(name).field_id for stored, name in renamed}
    if ids != _renamed_before(transaction):
        transaction.set_properties({_RENAMED: json.dumps(ids)})
    return now.select(*schema.names)


def _renamed_before(transaction: Transaction) -> Mapping[str, int]:
    found: Mapping[str, int] = json.loads(transaction.table_metadata.properties.get(_RENAMED, "{}"))
    return found


def _names_now(transaction: Transaction, stored: Sequence[str]) -> Mapping[str, str]:
    """The names that columns of the collection have in the table, by their stored names, as far as there."""
    fields = {field.field_id: field.name for field in transaction.table_metadata.schema().fields}
    before = _renamed_before(transaction)
    unnamed = {name for id_, name in fields.items() if id_ not in before.values()}
    found = {each: fields.get(before[each]) if each in before else each for each in stored}
    return {each: name for each, name in found.items() if name and (each in before or name in unnamed)}


def _drop(transaction: Transaction, dropped: Sequence[str]) -> None:
    """Drop the table's columns that the collection has dropped since the last export."""
    if transaction.table_metadata.current_snapshot_id is None:
        # A new table has no such column. One with its name is another one.
        return
    with transaction.update_schema() as update:
        for name in _names_now(transaction, dropped).values():
            update.delete_column(name)


def _rename(transaction: Transaction, renamed: Sequence[tuple[str, str]]) -> None:
    """Rename the table's columns that the collection has renamed since the last export."""
    taken = {field.name for field in transaction.table_metadata.schema().fields}
    old = _names_now(transaction, [stored for stored, _ in renamed])
    with transaction.update_schema() as update:
        for stored, name in renamed:
            if stored in old and name not in taken:
                update.rename_column(old[stored], name)


def unusable(error: Exception, what: str) -> BadInput | StoreUnreachable:
    """The error to raise for an error of a catalog: one line, without passwords.

    It is `BadInput` for wrong properties, and otherwise `StoreUnreachable`.
    """
    lines = str(error).strip().splitlines()
    name, said = type(error).__name__, without_passwords(lines[0]) if lines else ""
    message = f"{what} can't be used: {name}: {said}"
    if name in _WRONG:
        return BadInput(message, hint="correct the properties of the catalog, in the spec or the environment")
    return StoreUnreachable(message)


def _holds(field: t.IcebergType, values: t.IcebergType) -> bool:
    """Whether a column of type `field` can read `values` of another type unchanged."""
    match field, values:
        case (t.LongType(), t.IntegerType()) | (t.DoubleType(), t.FloatType()):
            return True
        case t.DecimalType(), t.DecimalType():
            return field.scale == values.scale and field.precision >= values.precision
        case _:
            return field == values
