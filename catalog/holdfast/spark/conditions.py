"""The option `where`: conditions as in `holdfast.collections.conditions`. As an option, it is JSON.

A timestamp without a zone, for a column in UTC, is in the session's time zone, which is the option
`timeZone`.
"""

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import Any

from holdfast.collections.conditions import Condition, condition
from holdfast.persist.rows.schema import Schema
from holdfast.spark.options import CONDITIONS_FORM, check_columns


def conditions(
    where: Sequence[tuple[str, str, Any]], collection: str, schema: Schema, zone: tzinfo = UTC
) -> tuple[Condition, ...]:
    """The conditions for a schema of a collection.

    Timestamps without a zone are in `zone` if their column is in UTC.

    Raises `BadInput` for a condition that doesn't fit the schema.
    """
    check_columns([column for column, _, _ in where], collection, schema.names)
    return tuple(
        condition(column, operator, value, schema, zone, named="option 'where'", form=CONDITIONS_FORM)
        for column, operator, value in where
    )
