"""The difference of contents: the contents of some shards minus those of others, all at one time.

- If the updates of both sides fit in memory, they are consolidated at once. Rows that both sides have cancel
  out. Otherwise the sides are merged as streams, piece by piece, with bounded memory.
- In both cases each row comes once, in the total order, with the number of copies that one side has more than
  the other.
- The shards may have different schemas that follow each other. The rows have the newest one.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.persist.parts.snapshot import Snapshot
from holdfast.persist.rows.canonical import sort_updates
from holdfast.persist.rows.consolidate import Source, consolidate_at
from holdfast.persist.rows.evolution import newest, upgraded
from holdfast.persist.rows.fold import overflow
from holdfast.persist.rows.merge import merge_runs
from holdfast.persist.rows.order import EVERYTHING, KeyRange, key_at
from holdfast.persist.rows.schema import DIFF, TIME, Schema
from holdfast.persist.rows.values import values_of

IN_MEMORY_BYTES: Final = 256 * 1024 * 1024
"""The most stored bytes of both sides to read them at once. In memory they take several times as much."""

_LEAST_INT64: Final = -(2**63)


class Difference:
    """The contents `more` minus the contents `less`, as updates at the time `at`.

    All snapshots are of one time. Iterate over it to get tables with the columns of `schema`, `_time` and
    `_diff`. No table is empty. Another iteration continues after the last table that was yielded. It raises
    the errors of the snapshots.
    """

    def __init__(
        self,
        more: Sequence[Snapshot],
        less: Sequence[Snapshot],
        at: int,
        *,
        in_memory_bytes: int = IN_MEMORY_BYTES,
    ) -> None:
        self.schema = newest(snapshot.schema for snapshot in (*more, *less))
        self._more = tuple(more)
        self._less = tuple(less)
        self._at = at
        stored = sum(snapshot.stored_bytes() for snapshot in (*more, *less))
        self._streamed = stored > in_memory_bytes
        self._left: KeyRange | None = EVERYTHING

    def __iter__(self) -> Iterator[pa.Table]:
        return self._merged() if self._streamed else self._at_once()

    def _at_once(self) -> Iterator[pa.Table]:
        if self._left is None:
            return
        more, less = self._sources()
        contents = consolidate_at(self.schema, more, self._more[0].as_of, less)
        rows = sort_updates(self.schema, self._timed(contents))
        self._left = None
        if rows.num_rows:
            yield rows

    def _sources(self) -> tuple[list[Source], list[Source]]:
        """Return all updates of both sides, in one schema."""
        while True:
            schema = self.schema
            read = [snapshot.sources(schema) for snapshot in (*self._more, *self._less)]
            self.schema = newest([schema, *(found for found, _ in read)])
            if all(found == self.schema for found, _ in read):
                sides = read[: len(self._more)], read[len(self._more) :]
                more, less = ([source for _, sources in side for source in sources] for side in sides)
                return more, less

    def _merged(self) -> Iterator[pa.Table]:
        runs = [self._run(snapshot, negated=False) for snapshot in self._more]
        runs += [self._run(snapshot, negated=True) for snapshot in self._less]
        names = self.schema.names
        for merged in merge_runs([*names, TIME], runs):
            if self._left is None or not (rows := self._left.slice(names, merged)).num_rows:
                continue
            self._left = self._left.beyond(key_at(names, rows, rows.num_rows - 1))
            yield pa.Table.from_batches([rows], self.schema.arrow_updates)

    def _run(self, snapshot: Snapshot, *, negated: bool) -> Iterator[pa.RecordBatch]:
        """Yield the contents of a shard in order, as updates of the common schema."""
        for contents in snapshot:
            rows = self._timed(pa.Table.from_batches([contents]), snapshot.schema)
            for batch in upgraded(rows, snapshot.schema, self.schema).to_batches():
                yield self._negated(batch) if negated else batch

    def _negated(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        diffs = values_of(batch.column(DIFF))
        if (least := diffs == _LEAST_INT64).any():
            raise overflow(self.schema.names, batch, int(np.flatnonzero(least)[0]))
        return batch.set_column(batch.num_columns - 1, batch.schema.field(DIFF), pa.array(-diffs))

    def _timed(self, contents: pa.Table, schema: Schema | None = None) -> pa.Table:
        """Return contents as updates at the time of the difference."""
        schema = schema or self.schema
        times = pa.repeat(pa.scalar(self._at, pa.uint64()), contents.num_rows)
        columns = [*contents.columns[:-1], times, contents.columns[-1]]
        return pa.Table.from_arrays(columns, schema=schema.arrow_updates)
