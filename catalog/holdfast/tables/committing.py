"""Committing changes of one table or several, at one time, by one multi-write: all of them or none.

- The time is the wall clock's, or the greatest upper where that is later; each table is complete up to just
  after it then.
- Where a table has moved since its position was found, nothing happened in any: all of it is tried again from
  what is there now, reads and all. Somebody else has written then, so it comes to an end.
- What replaces rows reads just before its position, in the rendition that gets the append; a handover after
  that makes the append fail.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections import Position
from holdfast.collections.evolved import fitted
from holdfast.errors import AsOfTooEarly, BadInput, HandleExpired, ShardFinalized, UpperMismatch
from holdfast.persist import Prepared
from holdfast.persist.rows.schema import DIFF
from holdfast.tables.changes import Append, Change, PreparedChange
from holdfast.tables.opened import OpenTable

_EXPIRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Committed:
    """What a write did: at which time, and how many rows it took away from each of its tables."""

    time: int
    taken: tuple[int, ...]


def commit(changes: Mapping[OpenTable, Change]) -> Committed:
    """Commit the changes of several tables in one step. Raises as `write`."""
    tables = list(changes)
    _check_together(tables)
    prepared = [changes[table].prepare(table.name, table.info.schema) for table in tables]
    with ExitStack() as stack:
        # In one order whoever writes: two writes of the same tables don't wait for each other for ever.
        for table in sorted(tables, key=lambda table: table.info.collection_id):
            stack.enter_context(table.writing)
        expired = 0
        while True:
            try:
                return _try(tables, prepared)
            except (UpperMismatch, ShardFinalized, _EvolvedError):
                _forget(tables)
            except (HandleExpired, AsOfTooEarly):
                # Before anything happened: a writer's lease was lost, or an earlier append is undecided; or
                # since has passed the position that was known, which others have left behind.
                _forget(tables, writers=True)
                expired += 1
                if expired == _EXPIRIES:
                    raise
            except BaseException:
                _forget(tables, writers=True)
                raise


def _try(tables: Sequence[OpenTable], changes: Sequence[PreparedChange]) -> Committed:
    """The changes, committed from where the tables are known to be."""
    positions = [
        _readable(table, table.position()) if change.reads else table.position()
        for table, change in zip(tables, changes, strict=True)
    ]
    client = tables[0].client
    time = max(client.now_ms(), *(position.upper for position in positions))
    updates = [
        change.updates(partial(_existing, table, position.upper), table.writer().schema, time)
        for table, change, position in zip(tables, changes, positions, strict=True)
    ]
    with ExitStack() as undo:
        appends = []
        for table, each, position in zip(tables, updates, positions, strict=True):
            append = table.writer().prepare(each, position, time + 1)
            undo.callback(_abandon, append.steps)
            appends.append(append)
        client.multi_write([step for append in appends for step in append.steps])
        undo.pop_all()
    for table, append in zip(tables, appends, strict=True):
        table.moved(append.after)
    return Committed(time, tuple(map(_taken, updates)))


def _taken(updates: pa.Table | None) -> int:
    """How many rows go, and don't come again as they were."""
    if updates is None:
        return 0
    diffs = updates[DIFF]
    return -(pc.sum(diffs.filter(pc.less(diffs, 0))).as_py() or 0)


class _EvolvedError(Exception):
    """A table has a later schema than its writer knows: it has a new writer now."""


def _existing(table: OpenTable, upper: int, keys: pa.Table | None) -> pa.Table:
    """The rows just before `upper` that have these keys, in the schema of the table's writer."""
    there = table.existing(upper, keys)
    schema = table.writer().schema
    if there.schema.equals(schema.arrow_diff):
        return there
    # Rows that were taken away in an earlier schema than they came in would stay.
    if table.renew():
        raise _EvolvedError
    return fitted(there, schema.arrow_diff)


def _readable(table: OpenTable, position: Position) -> Position:
    """A position just before which the rendition that gets the append is the collection.

    At the time of a handover it begins with contents of its own, which the one before it need not have had.
    """
    if position.upper > position.held_from or position.upper == 0:
        return position
    append = table.writer().prepare(None, position, position.upper + 1)
    table.client.multi_write(append.steps)
    table.moved(append.after)
    return append.after


def _check_together(tables: Sequence[OpenTable]) -> None:
    if not tables:
        raise BadInput("a write of no tables", hint="give at least one")
    for table in tables:
        table.check_writable()
        if table.client.location_id != tables[0].client.location_id:
            raise BadInput(
                f"tables {tables[0].name} and {table.name} are of different locations: they can't be written"
                " together",
                hint="write each by itself, or keep them in one location",
            )
    ids = [table.info.collection_id for table in tables]
    for table in tables:
        if ids.count(table.info.collection_id) > 1:
            raise BadInput(f"table {table.name} is given twice", hint="put its rows together")


def as_change(given: object) -> Change:
    """Rows alone are to be appended."""
    return given if isinstance(given, Change) else Append(given)


def _forget(tables: Sequence[OpenTable], *, writers: bool = False) -> None:
    for table in tables:
        table.forget(writer=writers)


def _abandon(steps: Sequence[Prepared]) -> None:
    for step in steps:
        step.abandon()
