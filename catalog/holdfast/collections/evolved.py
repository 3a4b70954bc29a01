"""Rows of a collection that evolves: converts rows from the schema that they were read in to a later one.

The snapshot or listen of a shard has the schema that its process knew when it began, and shards of one
rendition may differ in that. The collection's record is never behind any of them. If you read the record
after the rows, its schema is theirs or a later one.
"""

from typing import Any, TypeVar

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.persist import Schema

R = TypeVar("R", pa.Table, pa.RecordBatch)


def seen_through(rows: R, schema: Schema) -> R:
    """Updates of an earlier schema as updates of `schema`. Raises like `fitted`."""
    return fitted(rows, schema.arrow_updates)


def fitted(rows: R, wanted: pa.Schema) -> R:
    """Convert rows of an earlier schema to a later one: nulls in new columns, values in wider types.

    Raises `HoldfastError` for rows of a later schema. Their extra values would be lost, and a deletion of
    such a row would not match it.
    """
    if rows.schema.equals(wanted):
        return rows
    there = set(rows.schema.names)
    if later := there.difference(wanted.names):
        raise HoldfastError(f"rows have columns of a later schema: {', '.join(sorted(later))}")
    columns: list[Any] = [
        rows.column(field.name).cast(field.type)
        if field.name in there
        else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return type(rows).from_arrays(columns, schema=wanted)
