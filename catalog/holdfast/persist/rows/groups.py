"""The bounds of the row groups of a Parquet part, from its footer: bounds of the first column and of `_time`.

Invariants:

- Every row of a group is within its bounds in the total order. A bound that the statistics do not determine
  is None. Parquet's statistics skip nulls and NaN. A null makes `low` null (first in the order). If there may
  be NaN (last in the order), `high` is None.
- Bounds only save work. They are in the file that they describe, so its checksum covers them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import CLOSED
from holdfast.persist.rows.canonical import python_values
from holdfast.persist.rows.evolution import upgraded_key
from holdfast.persist.rows.order import NULL, Key, KeyRange
from holdfast.persist.rows.part import KEY_HAS_NAN, group_weight
from holdfast.persist.rows.schema import Column, Schema
from holdfast.persist.rows.values import canonical_floats, count_type


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """One row group: its number of rows, and the bounds of their first column and of their times."""

    rows: int
    low: Key | None
    high: Key | None
    earliest: int
    latest: int = CLOSED
    weight: float = 1
    """The size of the group relative to a usual row group."""

    def may_meet(self, wanted: KeyRange, earliest: int, latest: int) -> bool:
        """Whether the group can have rows of the range at times from `earliest` to `latest`."""
        return self.earliest <= latest and earliest <= self.latest and wanted.may_meet(self.low, self.high)


def bounds_through(schema: Schema, own: Schema, metadata: pq.FileMetaData) -> list[GroupBounds]:
    """Return the bounds of each row group of a part that was written under `own`, as rows of `schema`."""
    found = group_bounds(own, metadata)
    if own == schema:
        return found
    return [
        replace(group, low=upgraded_key(group.low, own, schema), high=upgraded_key(group.high, own, schema))
        for group in found
    ]


def group_bounds(schema: Schema, metadata: pq.FileMetaData) -> list[GroupBounds]:
    """Return the bounds of each row group of a part of the schema."""
    column = schema.columns[0]
    nan = groups_with_nan(column, metadata)
    time = len(schema.columns)
    found = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        times = group.column(time).statistics
        known = times is not None and times.has_min_max
        earliest, latest = (times.min, times.max) if known else (0, CLOSED)
        low, high = _bounds(column, group.column(0).statistics, group.num_rows)
        if nan is None or index in nan:
            high = None
        weight = group_weight(group.total_byte_size, group.num_rows, group.num_columns)
        found.append(GroupBounds(group.num_rows, low, high, earliest, latest, weight))
    return found


def groups_with_nan(column: Column, metadata: pq.FileMetaData) -> Sequence[int] | None:
    """Return the row groups that have NaN in the column; None if that is unknown."""
    if not column.type.startswith("float"):
        return ()
    listed = (metadata.metadata or {}).get(KEY_HAS_NAN)
    if listed is None:
        return None
    groups: list[int] = json.loads(listed).get(column.name, [])
    return groups


def _bounds(column: Column, found: pq.Statistics | None, rows: int) -> tuple[Key | None, Key | None]:
    if found is None or not found.has_null_count:
        return None, None
    if found.null_count == rows:
        return NULL, NULL
    if not found.has_min_max:
        return NULL if found.null_count else None, None
    low, high = _ordered(column, found)
    return NULL if found.null_count else low, high


def _ordered(column: Column, found: pq.Statistics) -> tuple[Key, Key]:
    low, high = python_values(extremes(column, found))
    return ((True, low),), ((True, high),)


def extremes(column: Column, found: pq.Statistics) -> pa.Array:
    """The least and the greatest value of a column, except nulls and NaN. The statistics must have them."""
    type_ = column.stored.type
    if pa.types.is_temporal(type_):
        # As counts, because Python's dates end with the year 9999.
        return pa.array([found.min_raw, found.max_raw], count_type(type_)).view(type_)
    values = pa.array([found.min, found.max], type_)
    # Parquet writes the least zero as -0.0, which canonical rows never have.
    return canonical_floats(values) if pa.types.is_floating(type_) else values
