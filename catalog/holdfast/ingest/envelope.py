"""Envelopes: how decoded records change the output. Pure.

- NONE: each record adds a row.
- UPSERT: each record replaces the row with its key, and a message without a value deletes it. If a step has
  several records for a key, the greatest (timestamp, partition, position) wins. Within a partition, the
  timestamps never go back. What the output contains before the step is the state.
- DEBEZIUM: each message is a change event of Debezium. It replaces or deletes rows by their keys, as UPSERT
  does. One that truncates the table deletes all rows of earlier steps and of lesser records of this step.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import polars as pl
import pyarrow as pa

from holdfast.persist import Schema
from holdfast.persist.rows.canonical import to_polars
from holdfast.persist.rows.schema import DIFF

ORDER: Final = ("_timestamp", "_partition", "_position")
"""Columns that order the records of a step."""
DELETES: Final = "_deletes"


class Envelope(Enum):
    """How records change the output."""

    NONE = "None"
    UPSERT = "Upsert"
    DEBEZIUM = "Debezium"

    @property
    def is_keyed(self) -> bool:
        """Whether records replace rows by their keys."""
        return self is not Envelope.NONE


@dataclass
class UpsertState:
    """The rows of the output before a step, in memory."""

    schema: Schema
    rows: pl.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self.rows = to_polars(self.schema.arrow.empty_table())

    def load(self, contents: pa.Table) -> None:
        """Begin with these contents."""
        self.rows = to_polars(contents.select(self.schema.arrow.names))

    def changes(self, records: pa.Table, *, clears: bool = False) -> tuple[pa.Table, pl.DataFrame]:
        """The updates that the records of a step make, and the rows after the step.

        `records` has the schema's columns, those of `ORDER`, and `DELETES`. If the step `clears`, its records
        are all there is after it.
        """
        keys = list(self.schema.key_names)
        names = self.schema.arrow.names
        last = to_polars(records).sort(list(ORDER)).unique(subset=keys, keep="last", maintain_order=True)
        new = last.filter(~pl.col(DELETES)).select(names)
        on = [pl.col(each) for each in keys]
        replaced = (
            self.rows if clears else self.rows.join(last.select(keys), on=on, how="semi", nulls_equal=True)
        )
        same = new.join(replaced, on=names, how="semi", nulls_equal=True)
        added = new.join(same.select(keys), on=on, how="anti", nulls_equal=True)
        removed = replaced.join(same.select(keys), on=on, how="anti", nulls_equal=True)
        after = self.rows.join(removed.select(keys), on=on, how="anti", nulls_equal=True)
        updates = pl.concat(
            [
                removed.with_columns(pl.lit(-1, pl.Int64).alias(DIFF)),
                added.with_columns(pl.lit(1, pl.Int64).alias(DIFF)),
            ]
        )
        return _table(updates, self.schema), pl.concat([after, added])


def later_than(records: pa.Table, order: tuple[int, str, int]) -> pa.Table:
    """The records of a step that are greater than this timestamp, partition and position."""
    timestamp, partition, position = order
    at, in_, offset = (pl.col(each) for each in ORDER)
    at = at.fill_null(-1)
    same = at == timestamp
    is_later = (
        (at > timestamp) | (same & (in_ > partition)) | (same & (in_ == partition) & (offset > position))
    )
    return records.filter(to_polars(records).select(is_later).to_series().to_arrow())


def _table(updates: pl.DataFrame, schema: Schema) -> pa.Table:
    return updates.to_arrow().cast(schema.arrow_diff)
