"""Copies tables to other locations, with their history."""

import os
from collections.abc import Callable

from holdfast.collections import StorageController
from holdfast.collections.copying import CopiedTable, OnRows, copy_all, copy_collection
from holdfast.errors import BadInput, UnusablePath
from holdfast.persist import PersistClient
from holdfast.tables.listing import refuse_dropped
from holdfast.tables.opening import enter

Url = str | os.PathLike[str] | PersistClient


def _enter_source(url: Url, consensus: str | None) -> tuple[StorageController, Callable[[], None]]:
    """The location to copy from. If it can't be written, nothing holds its history meanwhile."""
    try:
        return enter(url, "write", consensus=consensus)
    except UnusablePath:
        return enter(url, "read", consensus=consensus)


def copy_table(
    url: Url,
    name: str,
    to: Url,
    *,
    new_name: str | None = None,
    consensus: str | None = None,
    to_consensus: str | None = None,
    on_rows: OnRows = lambda *_: None,
) -> CopiedTable:
    """Copy a table to another location, with its history, or bring its copy there up to date.

    With `new_name`, the copy has another name, and may be in the location of the table.

    `url` and `to` are locations, as for `holdfast.table`, and `to_consensus` is the consensus store of `to`.
    The copy has the columns, comments and retention of the table, and returns the same rows at each time from
    its `since` on and before its `upper`. The upper is that of the table when the copy began.

    A copy of a table that a source feeds also has the bindings and the bad records of all these times, in the
    commits of the rows. So `holdfast.ingest_source` may feed the copy from there on. The copy has its own id,
    and so its own consumer group and replication slot. Once it was fed, it is no copy any more: another run
    refuses it.

    Until it is complete and checked, the copy is called `<name>.copying`. If the copy is interrupted, call
    this again: it continues. If it was finished before, this appends the times that the copy lacks, and reads
    and compares these. If that is interrupted, call this again. Others may read the copy meanwhile. `on_rows`
    is called with what is done ("copying", "checking"), and the number of rows.

    Raises:
        CollectionNotFound: there is no such table.
        UniquenessViolation: the target has another table with this name.
        BadInput: the source has given up history that the copy still needs. Or the copy can't be brought up
            to date: it was fed from its source, others have written to it or altered it, or columns of the
            table were renamed or dropped. Or the table was restored, and its pipeline has not yet read again
            what it had before.
        CorruptBlob: the check found that the copy differs.
    """
    source, leave = _enter_source(url, consensus)
    try:
        info = source.describe(name)
        refuse_dropped(info)
        target, leave_target = enter(to, "write", create=True, consensus=to_consensus)
        try:
            is_here = source.client.location_id == target.client.location_id
            if is_here and new_name in (None, info.name):
                raise BadInput(
                    f"the target is the location of table {info.name!r} itself",
                    hint="give another location, or another name for the copy",
                )
            return copy_collection(source, target, info.collection_id, new_name or info.name, on_rows=on_rows)
        finally:
            leave_target()
    finally:
        leave()


def copy_tables(
    url: Url,
    to: Url,
    *,
    consensus: str | None = None,
    to_consensus: str | None = None,
    on_table: Callable[[CopiedTable], object] = lambda _: None,
    on_rows: OnRows = lambda *_: None,
    on_gone: Callable[[str], object] = lambda _: None,
) -> list[CopiedTable]:
    """Copy all tables of a location to another one, with their history, or bring the copies up to date.

    See `copy_table`. All copies have the uppers of one moment, which the target records. So a write of
    several tables is in all copies or in none. The next run copies tables that were created later. If it is
    interrupted, call this again. `on_table` is called with each finished copy, and `on_gone` with the id of a
    table that was dropped before its turn. Catalogs, and shards that are no tables, are not copied.

    Tables that `copy_table` refuses do not keep the others from being copied.

    Raises:
        CopiesRefused: some tables could not be copied. It says why, for each. All others were.
        BadInput: the target is the location itself.
    """
    source, leave = _enter_source(url, consensus)
    try:
        target, leave_target = enter(to, "write", create=True, consensus=to_consensus)
        try:
            return copy_all(source, target, on_table=on_table, on_rows=on_rows, on_gone=on_gone)
        finally:
            leave_target()
    finally:
        leave()
