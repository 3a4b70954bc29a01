"""One append of any number of updates to a collection, in any order, with bounded memory.

- Updates go to the shards of the rendition that is current when they arrive, each shard's to its own batch
  builder. If another rendition has taken over by the time of the append, the updates are read back and spread
  again.
- Until the append commits, on all shards in one commit, only temporary files without names exist, and parts
  that no version names. If the process is killed, readers see nothing of it.
- Uploads serve every later try whose upper is not past the times of the updates. So other writers with few
  rows don't make a long upload start again.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, Self

import pyarrow as pa

from holdfast.collections.record.column_names import ColumnNames, check_removals
from holdfast.collections.routing import split_rows
from holdfast.collections.sharded_append import Position, PreparedAppend, Route
from holdfast.errors import BadInput
from holdfast.forks import OwnerProcess
from holdfast.persist import BatchBuilder, Prepared, Schema
from holdfast.persist.rows.canonical import check_bounds, prepare_updates, time_bounds
from holdfast.persist.rows.evolution import upgraded
from holdfast.persist.rows.schema import TIME

_PIECE_ROWS: Final = 64 * 1024

Complete = Callable[[Sequence[Prepared], Route, int], PreparedAppend]
"""Adds to the appends of the shards what else an append to a route up to a new upper needs."""


class BulkAppend:
    """Collects updates for one append. Not thread-safe. `CollectionWriter.bulk` creates it.

    Use it in a `with` block, and commit inside the block: its end deletes uploads that were not committed.
    `rows` is the number of updates added. `times` is their first and last time, or None if they have no
    times.
    """

    def __init__(
        self, schema: Schema, names: ColumnNames, route: Route, complete: Complete, *, memory_bytes: int
    ) -> None:
        self._owner = OwnerProcess()
        self.rows = 0
        self.times: tuple[int, int] | None = None
        self._schema = schema
        self._names = names
        self._stored = names.stored_schema(schema)
        self._complete = complete
        self._memory_bytes = memory_bytes
        self._whole = True
        self._timed: bool | None = None
        self._building = _Building(route, memory_bytes)
        self._times_prepared: tuple[int | None, int] | None = None
        self._appends: list[Prepared] = []

    def add(self, updates: object) -> None:
        """Add updates, in any order: a table, a record batch, a data frame, or a list of dicts.

        Either all updates have a `_time`, or none has and all get the time of the append. Raises `BadInput`
        if they don't fit, and `Determinate` if there is no room for a temporary file. After an error some of
        the updates may already be added, so this append can't be used any more.
        """
        self._check_whole()
        # False until all of the updates are added.
        self._whole = False
        if isinstance(updates, pa.Table):
            for batch in updates.to_batches(_PIECE_ROWS):
                self._add(batch)
        else:
            self._add(updates)
        self._whole = True

    def prepare(self, position: Position, new_upper: int, *, time: int | None = None) -> PreparedAppend:
        """Prepare the append of all added updates, like `CollectionWriter.prepare`. Don't abandon its steps.

        `time` is the time of updates that have none. Default: the position's upper. After a multi-write that
        failed, call this again with a new position. Raises `BadInput` if a time is not in
        `[position.upper, new_upper)`.
        """
        self._check_whole()
        route = position.route
        if route.rendition.id != self._building.route.rendition.id:
            self._spread(route)
        if not self._timed and time is None:
            time = position.upper
        first, last = self.times or (time, time)
        if self.rows and first is not None and last is not None:
            check_bounds((first, last), position.upper, new_upper)
        if self._times_prepared != (time, new_upper) or not all(each.usable for each in self._appends):
            self.renew()
            for builder in self._building.builders:
                append = builder.prepare_append(position.upper, new_upper, time=time)
                self._appends.append(append.keep())
            self._times_prepared = time, new_upper
        for append in self._appends:
            append.expect(position.upper)
        return self._complete(self._appends, route, new_upper)

    def renew(self) -> None:
        """Delete the uploads. The next try uploads again."""
        appends, self._appends, self._times_prepared = self._appends, [], None
        for append in appends:
            append.abandon()

    def close(self) -> None:
        """Delete uploads that were not committed, and the temporary files."""
        self._building.close()

    def _check_whole(self) -> None:
        self._owner.check("this bulk append")
        if not self._whole:
            raise BadInput(
                "this bulk append failed while it added updates, and can't be used any more",
                hint="nothing was written; begin another bulk append, and add all updates again",
            )

    def _add(self, updates: object) -> None:
        batch = prepare_updates(self._schema, updates, default_time=0)
        check_removals(batch, self._names)
        timed = _has_times(updates)
        if self._timed not in (None, timed):
            raise BadInput(f"some updates have a {TIME} and some don't", hint="give each one a time, or none")
        self._timed = timed
        bounds = time_bounds(batch)
        if bounds is None:
            return
        if timed:
            first, last = self.times or bounds
            self.times = min(first, bounds[0]), max(last, bounds[1])
        self.rows += batch.num_rows
        stored = upgraded(self._names.stored_rows(batch), self._stored, self._building.route.schema)
        self._building.add(stored, timed=timed)

    def _spread(self, route: Route) -> None:
        """Move all added updates to the shards of another rendition."""
        self.renew()
        self._whole = False
        before, self._building = self._building, _Building(route, self._memory_bytes)
        try:
            for builder in before.builders:
                for batch in builder.updates():
                    rows = upgraded(batch, before.route.schema, route.schema)
                    self._building.add(rows, timed=bool(self._timed))
        finally:
            before.close()
        self._whole = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Building:
    """A batch builder for each shard of a rendition."""

    def __init__(self, route: Route, memory_bytes: int) -> None:
        self.route = route
        share = max(1, memory_bytes // len(route.shards))
        with ExitStack() as stack:
            self.builders: list[BatchBuilder] = [
                stack.enter_context(shard.batch_builder(memory_bytes=share)) for shard in route.shards
            ]
            self._stack = stack.pop_all()

    def add(self, batch: pa.RecordBatch, *, timed: bool) -> None:
        """Add prepared updates to the builders of their shards."""
        for builder, part in zip(self.builders, split_rows(self.route.rendition, batch), strict=True):
            if part.num_rows:
                builder.add(part if timed else part.drop_columns([TIME]))

    def close(self) -> None:
        self._stack.close()


def _has_times(updates: object) -> bool:
    if isinstance(updates, pa.RecordBatch):
        return TIME in updates.schema.names
    if isinstance(updates, list | tuple):
        return any(TIME in row for row in updates)
    return TIME in getattr(updates, "columns", ())
