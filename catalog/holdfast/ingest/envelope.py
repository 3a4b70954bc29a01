"""Envelopes: how decoded records change the output. Pure.

- NONE: each record adds a row.
- UPSERT: each record replaces the row with its key, and a message without a value deletes it. If a step has
  several records for a key, the greatest (timestamp, partition, position) wins. Within a partition, the
  timestamps never go back. What the output contains before the step is the state (`UpsertState`).
- DEBEZIUM: each message is a change event of Debezium. It replaces or deletes rows by their keys, as UPSERT
  does. One that truncates the table deletes all rows of earlier steps and of lesser records of this step.
"""

from collections.abc import Callable, Iterable
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


class UpsertState:
    """The rows of the output before a step: a copy in memory, or none if it would be too large.

    The copy has at most `most_bytes`. Without one, each step looks up the rows of its keys. Both ways make
    the same changes.
    """

    def __init__(self, schema: Schema, most_bytes: int) -> None:
        self.schema = schema
        self.rows: pl.DataFrame | None = to_polars(schema.arrow.empty_table())
        self._most_bytes = most_bytes

    def load(self, contents: Iterable[pa.RecordBatch]) -> None:
        """Begin with these contents, unless they or earlier ones were too large for a copy."""
        if self.rows is None:
            return
        names = self.schema.arrow.names
        parts, size = [to_polars(self.schema.arrow.empty_table())], 0
        for batch in contents:
            parts.append(to_polars(batch.select(names)))
            size += int(parts[-1].estimated_size())
            if size > self._most_bytes:
                self.rows = None
                return
        self.rows = pl.concat(parts)

    def changes(
        self, records: pa.Table, look_up: Callable[[pa.Table], pa.Table], *, clears: bool = False
    ) -> tuple[pa.Table, pl.DataFrame | None]:
        """The updates that the records of a step make, and the copy after the step, if it is small enough.

        `records` has the schema's columns, those of `ORDER`, and `DELETES`. If the step `clears`, its records
        are all there is after it. Without a copy, the updates then only add them. `look_up` returns the rows
        of the output that have some keys.
        """
        keys = list(self.schema.key_names)
        names = self.schema.arrow.names
        last = to_polars(records).sort(list(ORDER)).unique(subset=keys, keep="last", maintain_order=True)
        new = last.filter(~pl.col(DELETES)).select(names)
        on = [pl.col(each) for each in keys]
        if clears:
            replaced = new.clear() if self.rows is None else self.rows
        elif self.rows is None:
            replaced = to_polars(look_up(last.select(keys).to_arrow()).select(names))
        else:
            replaced = self.rows.join(last.select(keys), on=on, how="semi", nulls_equal=True)
        same = new.join(replaced, on=names, how="semi", nulls_equal=True)
        added = new.join(same.select(keys), on=on, how="anti", nulls_equal=True)
        removed = replaced.join(same.select(keys), on=on, how="anti", nulls_equal=True)
        updates = pl.concat(
            [
                removed.with_columns(pl.lit(-1, pl.Int64).alias(DIFF)),
                added.with_columns(pl.lit(1, pl.Int64).alias(DIFF)),
            ]
        )
        return _table(updates, self.schema), self._after(removed.select(keys), added, clears=clears)

    def _after(self, removed: pl.DataFrame, added: pl.DataFrame, *, clears: bool) -> pl.DataFrame | None:
        """The copy after a step that removes the rows of some keys and adds others."""
        if self.rows is None and not clears:
            return None
        before = added.clear() if self.rows is None else self.rows
        on = [pl.col(each) for each in removed.columns]
        after = pl.concat([before.join(removed, on=on, how="anti", nulls_equal=True), added])
        return after if after.estimated_size() <= self._most_bytes else None


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
