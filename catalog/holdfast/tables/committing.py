"""Commits changes of one table or several at one time, in one multi-write: all of them or none.

- The time is the wall clock, or the greatest upper if that is later. Afterwards each table's upper is at
  least the next time.
- If a table has moved since its position was read, the multi-write fails and changes nothing in any table.
  It is tried again at the positions that its refusal showed, with its reads, but with the same prepared rows.
  Each retry means that another writer succeeded, so the retries end.
- Plain appends of several threads of this process are committed together: `holdfast.tables.group_commit`.
- A change that replaces rows reads just before its position, in the rendition that gets the append. A
  handover after that read makes the append fail.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Final

import pyarrow as pa

from holdfast.collections import CollectionInfo, Position
from holdfast.collections.record.column_names import check_removals, removes
from holdfast.collections.writer import ColumnsChanged
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    HandleExpired,
    HoldfastError,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.persist import Prepared
from holdfast.persist.looks import one_look
from holdfast.persist.rows.evolution import evolution_fault, fitted
from holdfast.tables.changes import (
    Append,
    Change,
    Chosen,
    Committed,
    GroupedAppends,
    PreparedChange,
    Revert,
    appended,
    is_groupable,
)
from holdfast.tables.group_commit import Member
from holdfast.tables.opened import OpenTable
from holdfast.tables.rows import TableLike
from holdfast.text import naming

_EXPIRIES: Final = 3
_thread: Final = threading.local()
"""`commits` is True while this thread commits."""


def commit(changes: Mapping[OpenTable, Change]) -> Committed:
    """Commit the changes of several tables at one time. Raises like `write`."""
    tables = list(changes)
    _check_together(tables)
    for table, change in changes.items():
        if isinstance(change, Revert):
            table.complete(change.as_of)
    infos = [table.info for table in tables]
    prepared = [_prepared(table, changes[table]) for table in tables]
    # An update's function may append to tables too. It can't wait for a group that waits for its thread.
    if len(tables) == 1 and is_groupable(prepared[0]) and not getattr(_thread, "commits", False):
        return _commit_in_group(tables[0], changes[tables[0]], prepared[0], infos[0])
    return _commit(changes, prepared, infos)


def _commit_in_group(
    table: OpenTable, change: Change, prepared: PreparedChange, info: CollectionInfo
) -> Committed:
    assert prepared.given is not None

    def together(rows: pa.RecordBatch, changes: Sequence[Change]) -> Committed:
        group = change if len(changes) == 1 else GroupedAppends(changes)
        return _commit({table: group}, [appended(rows)], [info])

    def alone() -> Committed:
        return _commit({table: change}, [prepared], [info])

    member = Member(table.writing, change, prepared.given, info.schema, info.names, together, alone)
    done, start = table.appends.commit(member)
    (updates,) = done.updates
    if updates is not None:
        updates = updates.slice(start, member.rows.num_rows) if member.rows.num_rows else None
    return Committed(done.time, (updates,))


def _commit(
    changes: Mapping[OpenTable, Change], prepared: list[PreparedChange], infos: Sequence[CollectionInfo]
) -> Committed:
    """Commit changes that were prepared with the tables' records `infos`."""
    tables = list(changes)
    purposes = [table.controller.purpose_of(changes[table].what) for table in tables]
    with ExitStack() as stack:
        # Always in the same order, so that two writes of the same tables can't deadlock.
        for table in sorted(tables, key=lambda table: table.info.collection_id):
            stack.enter_context(table.writing)
        stack.callback(setattr, _thread, "commits", getattr(_thread, "commits", False))
        _thread.commits = True
        if any(table.info is not info for table, info in zip(tables, infos, strict=True)):
            # Another thread has seen other columns since.
            prepared = [_prepared(table, changes[table]) for table in tables]
        expired = 0
        is_current = False
        while True:
            try:
                with _turn(tables, prepared):
                    return _try(tables, prepared, purposes)
            except (UpperMismatch, ShardFinalized):
                # Whether rows may be removed by their values depends on the columns that were dropped since.
                removed = any(map(_removes, prepared))
                if removed or not _follow(tables):
                    _forget(tables, writers=removed)
            except (ColumnsChanged, _EvolvedError):
                # The rows were prepared with columns from before, which may have other names now.
                _forget(tables, writers=True)
                for table in tables:
                    table.info = table.describe()
                prepared = [_prepared(table, changes[table]) for table in tables]
            except _RefusedError as refused:
                # Rows from before what others wrote since may refuse a change that fits the latest ones.
                _forget(tables, writers=True)
                if is_current:
                    raise refused.error from refused.error.__cause__
                is_current = True
            except (HandleExpired, AsOfTooEarly):
                # Nothing has happened yet. Either the lease of a writer was lost, an earlier append is
                # undecided, or the since has passed the known position because others wrote.
                _forget(tables, writers=True)
                expired += 1
                if expired == _EXPIRIES:
                    raise
            except BaseException:
                _forget(tables, writers=True)
                raise


def _try(
    tables: Sequence[OpenTable], changes: Sequence[PreparedChange], purposes: Sequence[str]
) -> Committed:
    """Commit the changes at the known positions of the tables."""
    positions = _positions(tables, changes)
    client = tables[0].client
    time = max(client.now_ms(), *(position.upper for position in positions))
    updates = [
        _updates(table, change, position.upper, time)
        for table, change, position in zip(tables, changes, positions, strict=True)
    ]
    with ExitStack() as undo:
        appends = []
        for table, each, position, purpose in zip(tables, updates, positions, purposes, strict=True):
            # The time is no user's choice: it is the clock's, or the next one of a table that is ahead.
            append = table.writer().prepare(
                each, position, time + 1, far_ahead=True, prepared=True, hidden=True, purpose=purpose
            )
            undo.callback(_abandon, append.steps)
            appends.append(append)
        client.multi_write([step for append in appends for step in append.steps])
        undo.pop_all()
    for table, append in zip(tables, appends, strict=True):
        table.moved(append.after)
        table.apply_retention(time + 1)
    return Committed(time, tuple(updates))


@one_look()
def _positions(tables: Sequence[OpenTable], changes: Sequence[PreparedChange]) -> list[Position]:
    """The positions of the tables. Their writers have the columns with which the changes were prepared."""
    for table in tables:
        _check_columns(table)
    return [
        _readable(table, table.position()) if change.reads else table.position()
        for table, change in zip(tables, changes, strict=True)
    ]


def _prepared(table: OpenTable, change: Change) -> PreparedChange:
    known = table.info
    try:
        return _prepared_as_known(table, change)
    except BadInput as error:
        # Another process may have added or renamed columns since.
        table.info = table.describe()
        if table.info.schema == known.schema:
            raise _with_new_name(table, error) from None
    try:
        return _prepared_as_known(table, change)
    except BadInput as error:
        raise _with_new_name(table, error) from None


def _prepared_as_known(table: OpenTable, change: Change) -> PreparedChange:
    with naming(f"table {table.name}"):
        prepared = change.prepare(table.name, table.info.schema)
        if prepared.given is not None:
            check_removals(prepared.given, table.info.names)
        return prepared


def _with_new_name(table: OpenTable, error: BadInput) -> BadInput:
    """The error, with a hint if it is about a name that a column of the table no longer has."""
    for each in table.info.names.hidden:
        if each.shown_as not in table.info.schema.names and f"column {each.shown_as!r}" in str(error):
            return BadInput(str(error), hint=f"column {each.shown_as!r} was dropped")
    for old, new in table.info.names.renamed:
        if old not in table.info.schema.names and f"column {old!r}" in str(error):
            return BadInput(str(error), hint=f"column {old!r} is called {new!r} now")
    return error


def _check_columns(table: OpenTable) -> None:
    """Raise `_EvolvedError` unless the writer of a table has the columns with which changes were prepared."""
    known, writer = table.info, table.writer().info
    if writer.names != known.names or (
        writer.schema is not known.schema and evolution_fault(known.schema, writer.schema)
    ):
        raise _EvolvedError


def _updates(table: OpenTable, change: PreparedChange, upper: int, time: int) -> pa.Table | None:
    try:
        with naming(f"table {table.name}"):
            return change.updates(partial(_existing, table, upper), table.writer().full_schema, time)
    except BadInput as error:
        raise _RefusedError(error) from None
    except (HoldfastError, _EvolvedError):
        raise
    except Exception as error:  # noqa: BLE001 - the function of an update may raise any error
        raise _RefusedError(error) from None


class _RefusedError(Exception):
    """A change can't be made from the rows that were read, which may be earlier than the latest ones."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _EvolvedError(Exception):
    """A table has a later schema than its writer knew. It has a new writer now."""


def _existing(table: OpenTable, upper: int, keys: Chosen) -> pa.Table:
    """The rows just before `upper` that have these keys, in the schema of the table's writer."""
    there = table.existing(upper, keys)
    schema = table.writer().full_schema
    if there.schema.equals(schema.arrow_diff):
        return there
    # A deletion in an earlier schema than the row's own would not cancel the row.
    if table.renew():
        raise _EvolvedError
    return fitted(there, schema.arrow_diff)


def _readable(table: OpenTable, position: Position) -> Position:
    """A position such that the rendition that gets the append is current just before it.

    At the time of a handover the new rendition starts with its own contents, and the one before it may have
    different ones. So the contents just before that time can't be read from the new rendition.
    """
    if position.upper > position.held_from or position.upper == 0:
        return position
    append = table.writer().prepare(None, position, position.upper + 1)
    table.client.multi_write(append.steps)
    table.moved(append.after)
    return append.after


def _check_together(tables: Sequence[OpenTable]) -> None:
    if not tables:
        raise BadInput("a write needs at least one table", hint="give a dict of tables and rows")
    for table in tables:
        table.check_writable()
        if table.client.location_id != tables[0].client.location_id:
            raise BadInput(
                f"tables {tables[0].name} and {table.name} are in different locations, so one write"
                " can't change both",
                hint="write each table by itself, or keep both in one location",
            )
    ids = [table.info.collection_id for table in tables]
    for table in tables:
        if ids.count(table.info.collection_id) > 1:
            raise BadInput(
                f"write() got table {table.name} more than once",
                hint="pass each table once, with all its rows",
            )


def as_change(given: TableLike | Change) -> Change:
    """The change itself, or an `Append` if plain rows are given."""
    return given if isinstance(given, Change) else Append(given)


def _removes(change: PreparedChange) -> bool:
    return change.given is not None and removes(change.given)


def _turn(tables: Sequence[OpenTable], changes: Sequence[PreparedChange]) -> AbstractContextManager[None]:
    """A turn to write, if one table has lost races lately, and the write needs neither reads nor uploads."""
    if len(tables) > 1 or not tables[0].is_contended or changes[0].given is None:
        return nullcontext()
    small = tables[0].client.config.inline_max_bytes // 2
    return tables[0].turn() if changes[0].given.nbytes <= small else nullcontext()


def _follow(tables: Sequence[OpenTable]) -> bool:
    """After a lost race, continue at the positions that it showed. Return whether any table has moved."""
    moved = [table.follow() for table in tables]
    return any(moved)


def _forget(tables: Sequence[OpenTable], *, writers: bool = False) -> None:
    for table in tables:
        table.forget(writer=writers)


def _abandon(steps: Sequence[Prepared]) -> None:
    for step in steps:
        step.abandon()
