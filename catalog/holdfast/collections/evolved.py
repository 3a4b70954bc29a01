"""Rows of a collection that evolves: whatever schema they were read under, seen through a later one.

A shard's snapshot and listen have the schema that their process knew when they began, and shards of one
rendition may differ in that. The collection's record is never behind any of them: who reads it afterwards has
a schema that all of them lead to.
"""

from typing import Any, TypeVar

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.persist import Schema

R = TypeVar("R", pa.Table, pa.RecordBatch)


def seen_through(rows: R, schema: Schema) -> R:
    """Updates of an earlier schema as updates of `schema`. Raises as `fitted`."""
    return fitted(rows, schema.arrow_updates)


def fitted(rows: R, wanted: pa.Schema) -> R:
    """Rows of an earlier schema as those of a later one: nulls in new columns, values in wider types.

    Raises `HoldfastError` for rows of a later one: their values would be lost, and what takes such a row away
    would not be that row.
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
