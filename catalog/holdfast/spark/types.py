"""The columns of a collection as columns of Spark.

- `uint64` becomes decimal(20,0), a smaller unsigned integer the next wider signed one: no value changes.
- Timestamps without a zone become TIMESTAMP_NTZ, those with a zone TIMESTAMP. Spark has no nanoseconds and no
  times of day. Nested columns are refused.
- Every column is declared nullable: Spark compares the nullability of a batch with that of the schema
  strictly, and a collection's `not null` would only buy a way to fail.
"""

import shlex
from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from holdfast.collections.record.comments import NO_COMMENTS, Comments, comment_of
from holdfast.errors import BadInput
from holdfast.persist.rows.casts import becomes
from holdfast.persist.rows.schema import DIFF, TIME, Schema
from holdfast.spark.options import check_columns, no_column

_SPARK_TYPES: dict[pa.DataType, t.DataType] = {
    pa.bool_(): t.BooleanType(),
    pa.int8(): t.ByteType(),
    pa.int16(): t.ShortType(),
    pa.int32(): t.IntegerType(),
    pa.int64(): t.LongType(),
    pa.uint8(): t.ShortType(),
    pa.uint16(): t.IntegerType(),
    pa.uint32(): t.LongType(),
    pa.uint64(): t.DecimalType(20, 0),
    pa.float32(): t.FloatType(),
    pa.float64(): t.DoubleType(),
    pa.string(): t.StringType(),
    pa.binary(): t.BinaryType(),
    pa.date32(): t.DateType(),
}


def spark_type(arrow: pa.DataType) -> t.DataType:
    """Return the Spark type for values of `arrow`. Raises `BadInput` for types that collections lack."""
    if pa.types.is_decimal128(arrow):
        return t.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_timestamp(arrow) and arrow.unit != "ns":
        return t.TimestampType() if arrow.tz else t.TimestampNTZType()
    try:
        return _SPARK_TYPES[arrow]
    except KeyError:
        hint = 'leave the column out: name the others in the option "columns"'
        raise BadInput(f"Spark has no type for a column of type {arrow}", hint=hint) from None


def spark_schema(
    schema: Schema,
    columns: Sequence[str] | None = None,
    comments: Comments = NO_COMMENTS,
    *,
    changes: bool = False,
    as_of: int | None = None,
) -> t.StructType:
    """The schema of a DataFrame over `columns` (all, in the collection's order, if None).

    Of changes with `_time` and `_diff` behind them, as 64-bit integers. Comments are where Spark
    looks for them. `as_of` is in the metadata of each column, if it is given.
    """
    told = {} if as_of is None else {"asOf": as_of}
    arrow = schema.arrow
    names = arrow.names if columns is None else columns
    fields = [
        t.StructField(
            name,
            spark_type(arrow.field(name).type),
            metadata=(comment_of(name, comments) or {}) | told or None,
        )
        for name in names
    ]
    if changes:
        fields += [t.StructField(name, t.LongType()) for name in (TIME, DIFF)]
    return t.StructType(fields)


def batch_schema(struct: t.StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires of the batches of a reader with the schema `struct`."""
    return to_arrow_schema(struct, timezone="UTC")


def check_fits(wanted: t.StructType, collection: str, schema: Schema, *, changes: bool = False) -> None:
    """Raise `BadInput` unless a user's schema selects columns of the collection with their own types."""
    have = {field.name: field.dataType for field in spark_schema(schema, changes=changes)}
    check_columns(wanted.fieldNames(), collection, list(have))
    for field in wanted:
        if field.dataType != have[field.name]:
            raise BadInput(
                f"column {field.name!r} is {have[field.name].simpleString()} in Spark, "
                f"not {field.dataType.simpleString()}: read it as it is and cast it"
            )


def check_writes(given: t.StructType, collection: str, schema: Schema, *, counted: bool) -> None:
    """Refuse rows with the columns `given` that can't be written to a collection, whatever their values are.

    Columns that may be null may be missing. With `counted` rows may have a `_diff`. Raises `BadInput` naming
    the column.
    """
    wanted = schema.arrow
    have = given.fieldNames()
    if len(set(have)) < len(have):
        raise BadInput(f"column {next(name for name in have if have.count(name) > 1)!r} appears twice")
    for field in given:
        if field.name == TIME:
            raise BadInput(
                f"column {TIME!r} can't be written: all rows of a write have one time",
                hint='drop it; option "at" chooses the time',
            )
        if field.name == DIFF:
            if not counted:
                raise BadInput(f"column {DIFF!r} can't be used with mode overwrite, only with append")
            type_: pa.DataType = pa.int64()
        elif field.name in wanted.names:
            type_ = wanted.field(field.name).type
        else:
            add = shlex.quote(f"{field.name}:TYPE?")
            raise no_column(
                collection,
                field.name,
                wanted.names,
                hint="leave the column out, or first run: holdfast collection alter"
                f" {shlex.quote(collection)} --add {add}",
            )
        if not _may_become(field.dataType, type_):
            raise BadInput(
                f"column {field.name!r} is {field.dataType.simpleString()}, which can't be converted"
                f" to {type_} without loss: cast it"
            )
    for field in wanted:
        if field.name not in have and not field.nullable:
            raise BadInput(f"column {field.name!r} is missing; there are {', '.join(have)}")


def _may_become(given: t.DataType, wanted: pa.DataType) -> bool:
    try:
        return becomes(to_arrow_type(given, timezone="UTC"), wanted)
    except PySparkException:
        return False
