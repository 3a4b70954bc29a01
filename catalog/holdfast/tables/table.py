"""A table: the simple interface to a collection.

- A write is durable and visible when its call returns, at the time that it returns.
- A table keeps one reader, and its hold follows the latest contents. How far back you can read depends on the
  collection's retention, not on who has the table open.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, Self, overload

import pyarrow as pa

from holdfast.collections import CollectionReader
from holdfast.collections.changes import net_changes
from holdfast.collections.complete_times import LEAST_MS
from holdfast.collections.frontiers import check_forward
from holdfast.collections.periods import Period, period_ms
from holdfast.collections.snapshots.manifest import SnapshotManifest
from holdfast.errors import BadInput
from holdfast.extras import needs
from holdfast.persist import PersistClient
from holdfast.persist.rows.canonical import to_polars
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.stored import logical_rows
from holdfast.tables.altering import altered
from holdfast.tables.changes import Append, Change, Delete, Merge, Revert, SetValues, Update, Upsert
from holdfast.tables.committing import as_change, commit
from holdfast.tables.duckdb_extra import import_duckdb
from holdfast.tables.export import export_to
from holdfast.tables.exported import Exported, check_format
from holdfast.tables.filters import Where
from holdfast.tables.history import history
from holdfast.tables.moments import Moment, dated, milliseconds
from holdfast.tables.opened import OpenTable
from holdfast.tables.rows import KeysLike, TableLike, repeated
from holdfast.tables.scan import check_limit, count, scan
from holdfast.tables.show import columns_shown, page
from holdfast.tables.tail import Tail
from holdfast.text import naming

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

_AS_OF: Final = b"as_of"


class Table:
    """A table over time. Thread-safe; any number of processes may use it too. `holdfast.table` opens it.

    Times are milliseconds since 1970. You can also give a time as a `datetime` with a zone, a `date` or ISO
    8601 text (`Moment`). Rows are an Arrow table or batch, a data frame (pandas or Polars), a list of dicts
    or a dict of lists (`TableLike`).
    Every method except `close` raises `CollectionNotFound` after the table was dropped, and `StorageError` if
    the stores fail.
    """

    def __init__(self, opened: OpenTable) -> None:
        self._opened = opened

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._opened.name

    @property
    def client(self) -> PersistClient:
        """The client of the table's location."""
        return self._opened.client

    @property
    def schema(self) -> pa.Schema:
        """The columns as of now, key columns first."""
        return self._opened.describe().schema.arrow

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns. Empty if the table has no key."""
        return self._opened.info.schema.key_names

    @property
    def comments(self) -> dict[str, str]:
        """The comments of the columns as of now, as a dict from column name to comment."""
        return dict(self._opened.describe().comments)

    @property
    def since(self) -> int:
        """The earliest time that you can read, as of now."""
        return self._opened.reading.run(lambda reader: reader.since())

    @property
    def upper(self) -> int:
        """The first time that is not complete, as of now. The latest time you can read is `upper - 1`."""
        return self._opened.reading.run(lambda reader: reader.upper())

    def latest_time(self, at: Moment | None = None) -> int:
        """The latest complete time, or with `at` the latest one at or before that time. Nothing is written.

        Read at the returned time if you want whatever is complete, and need to know the time that you get.
        Raises `AsOfTooEarly` if `at < since`, `AsOfNotYetAvailable` if nothing has been written yet, and
        `BadInput` for a number in another unit than milliseconds.
        """
        return self._opened.latest_time(at)

    def append(self, rows: TableLike) -> int:
        """Add rows. Returns the time at which they become visible, once they are durable.

        A column `_diff` is the number of times that a row is added; -1 removes it once. Keys are not checked:
        use `upsert` to keep them unique. Appends of several threads may be committed together, and then have
        the same time. Raises `BadInput` if rows don't fit, with nothing changed, and `Indeterminate` if it is
        unknown whether the rows were added.
        """
        return commit({self._opened: Append(rows)}).time

    def upsert(self, rows: TableLike) -> int:
        """Replace the rows that have the same keys, atomically. Returns and raises like `append`.

        If several writers upsert one key, the last row wins. Use `update` for rows that depend on the
        existing ones. Also raises `BadInput` if a key occurs twice, or if the table has no key.
        """
        return commit({self._opened: Upsert(rows)}).time

    def merge(
        self,
        rows: TableLike,
        *,
        matched: Literal["update", "keep", "delete"] = "update",
        missing: Literal["insert", "ignore"] = "insert",
    ) -> int:
        """Compare rows by key with the existing ones, and change the table, atomically.

        `matched` is for keys that the table has: "update" sets the given columns and leaves the others as
        they are, "keep" leaves the existing row, "delete" removes it. `missing` is for keys that it doesn't
        have: "insert" adds the row, with nulls in columns that aren't given, "ignore" doesn't.

        Returns and raises like `append`. Also raises `BadInput` if a key occurs twice, if the table has no
        key, and if an added row lacks a column that can't be null.
        """
        return commit({self._opened: Merge(rows, matched, missing)}).time

    def delete(self, keys: KeysLike | None = None, *, where: Where | None = None) -> int:
        """Delete the rows with these keys, or those that `where` chooses (as in `scan`), atomically.

        `keys` are values of the key column, tuples if there are several key columns, or rows that have the
        key columns. `where` needs no key columns. Returns and raises like `append`.
        """
        return commit({self._opened: Delete(keys, where)}).time

    def update(
        self,
        keys: KeysLike | None = None,
        function: Callable[[pa.Table], TableLike] | None = None,
        *,
        where: Where | None = None,
        set: Mapping[str, object] | None = None,  # noqa: A002 - the word of SQL
    ) -> int:
        """Replace the rows with these keys (None: all) by the result of `function`, atomically.

        Or give `set`, a dict of columns and values, for the rows that `where` chooses (as in `scan`; `[]`:
        all). A value may be a pyarrow expression of the row, such as `pc.field("count") + 1`.

        No other write is lost: if another writer was faster, the change is made again from the new rows.
        `function` takes the existing rows. Returns and raises like `append`. `keys` are as in `delete`.
        """
        if function is not None and where is None and set is None:
            return commit({self._opened: Update(keys, function)}).time
        if function is not None or set is None or where is None or keys is not None:
            example = 'update([1], function), or update(where=pc.field("id") == 1, set={"note": "a"})'
            raise BadInput(
                f"table {self.name}: an update needs either keys and a function, or where and set",
                hint=f"such as {example}; to set columns of all rows, give where=[]",
            )
        return commit({self._opened: SetValues(where, set)}).time

    def revert(self, as_of: Moment) -> int:
        """Make the rows those of an earlier time, atomically. Returns the time at which that is visible.

        This is a new write: you can still read all times before it, so you can also revert a revert. The
        columns stay as they are now. The difference between the two times must fit into memory. Raises like
        `diff` and `append`.
        """
        return commit({self._opened: Revert(as_of)}).time

    def read(
        self,
        as_of: Moment | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        limit: int | None = None,
        *,
        or_earlier: bool = False,
    ) -> pa.Table:
        """Return the rows as of a time, or the latest, in no order.

        `columns` selects some of the columns, `where` some of the rows, and `limit` at most so many of these,
        as in `scan`.

        You can read at every time from `since` on that is at least two minutes past. If nobody has written
        since then, the first such read completes the table up to a minute ago. Before its first write, a
        table is empty at all past times. Later times, and times that this table may not complete, raise
        `AsOfNotYetAvailable` with the latest complete time.

        With `or_earlier`, you get the rows of the latest complete time at or before `as_of`, and nothing is
        written. That time is in the schema of the rows (`rows.schema.metadata[b"as_of"]`), `latest_time`
        returns it, and a log message shows it if it is an earlier one.

        Raises `AsOfTooEarly` if `as_of < since`, and `BadInput` for a number in another unit than
        milliseconds, and for a `datetime` without a zone.
        """
        time = self._opened.time_for(as_of, or_earlier=or_earlier)
        metadata = _metadata(time, or_earlier=or_earlier)
        if where is not None or limit is not None:
            return self._scanned(time, columns, where, limit, metadata).read_all()
        with naming(f"table {self.name}"):
            rows = repeated(self._contents(time, columns))
        rows = rows if columns is None else rows.select(list(columns))
        return rows if metadata is None else rows.replace_schema_metadata(metadata)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        as_of: Moment | None = None,
        limit: int | None = None,
        *,
        or_earlier: bool = False,
    ) -> pa.RecordBatchReader:
        """Stream the rows as of a time, or the latest, with bounded memory. At most `limit` rows.

        `where` is a pyarrow expression (`pc.field("id") == 3`), or a list of (column, operator, value), such
        as `[("id", ">=", 10), ("name", "in", ["a", "b"])]`, all of which hold. Of a list of such lists, all
        conditions of one list hold. The operators are `=`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `not in`,
        `like`, `not like`, `is` and `is not`. A comparison with null never holds, as in SQL. Rows whose
        statistics exclude them are not read. What is read is verified.

        Memory is at most about 268,435,456 bytes (256 MiB), for any number of rows of up to 1 MiB. Until the
        reader is read to its end, closed or collected, the table keeps its hold. It is for one thread.
        `or_earlier` is as in `read`.

        Raises `BadInput` for an unknown column and for a condition that doesn't fit, and like `read`. Reading
        raises `BadInput` for negative counts, or if the table was closed.
        """
        time = self._opened.time_for(as_of, or_earlier=or_earlier)
        return self._scanned(time, columns, where, limit, _metadata(time, or_earlier=or_earlier))

    def counts(self, as_of: Moment | None = None, *, or_earlier: bool = False) -> pa.Table:
        """Like `read`, but each row once, with its count in `_diff`. A negative count is a writer's error."""
        time = self._opened.time_for(as_of, or_earlier=or_earlier)
        rows = self._contents(time, None)
        metadata = _metadata(time, or_earlier=or_earlier)
        return rows if metadata is None else rows.replace_schema_metadata(metadata)

    def to_pandas(
        self,
        as_of: Moment | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        limit: int | None = None,
        *,
        or_earlier: bool = False,
    ) -> "pd.DataFrame":
        """Like `read`, as a pandas data frame sorted by the key. Needs the extra `pandas`.

        With `or_earlier`, the time of the rows is in `frame.attrs["as_of"]`.
        """
        with needs("pandas", f"to_pandas of table {self.name}"):
            import pandas as pd
        rows = self.read(as_of, columns, where, limit, or_earlier=or_earlier)
        by = [(name, "ascending") for name in self.key if name in rows.column_names]
        frame: pd.DataFrame = (rows.sort_by(by) if by else rows).to_pandas()
        if rows.schema.metadata:
            frame.attrs["as_of"] = int(rows.schema.metadata[_AS_OF])
        return frame

    def to_polars(
        self,
        as_of: Moment | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        limit: int | None = None,
        *,
        or_earlier: bool = False,
    ) -> "pl.DataFrame":
        """Like `read`, as a Polars data frame sorted by the key. `where` is as in `scan`."""
        frame = to_polars(self.scan(columns, where, as_of, limit, or_earlier=or_earlier).read_all())
        by = [name for name in self.key if name in frame.columns]
        return frame.sort(by) if by else frame

    def to_duckdb(
        self,
        as_of: Moment | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        limit: int | None = None,
        *,
        or_earlier: bool = False,
        connection: "duckdb.DuckDBPyConnection | None" = None,
    ) -> "duckdb.DuckDBPyRelation":
        """The rows as of a time, or the latest, as a relation of DuckDB, which is lazy. Needs extra `sql`.

        Each query of the relation scans the table with bounded memory, at the one time. It reads only the
        rows that the conditions of the query may choose, as `scan` does. The relation belongs to
        `connection`, or to DuckDB's default connection. The table keeps its hold until the relation, and all
        that was made of it, is collected. `columns`, `where` and `limit` are as in `scan`, and `or_earlier`
        is as in `read`.

        DuckDB decodes the parts of a consolidated table on a local disk itself, with all of its threads, if
        there are at most 16. They stay open as long as the relation. Each read is compared with checksums
        of its blocks.

        Raises `BadInput` if DuckDB isn't installed, and like `scan`. DuckDB raises its own errors, with
        the text of ours.
        """
        check_limit(limit)
        time = self._opened.time_for(as_of, or_earlier=or_earlier)
        duckdb = import_duckdb(f"to_duckdb of table {self.name}")
        from holdfast.tables.dataset import TableDataset

        with dated(f"table {self.name}"):
            rows = TableDataset(self._opened, time, columns, where)
        if connection is None:
            connection = duckdb.default_connection()
        elif not isinstance(connection, duckdb.DuckDBPyConnection):
            raise BadInput(
                f"connection must be one of DuckDB, not {shown(connection)}", hint="such as duckdb.connect()"
            )
        relation = rows.relation(connection)
        return relation if limit is None else relation.limit(limit)

    def count(
        self, where: Where | None = None, as_of: Moment | None = None, *, or_earlier: bool = False
    ) -> int:
        """The number of rows, or of those that `where` chooses, with bounded memory.

        `or_earlier` is as in `read`. Raises like `scan`.
        """
        time = self._opened.time_for(as_of, or_earlier=or_earlier)
        with dated(f"table {self.name}"):
            return count(self._opened, time, where)

    def diff(self, start: Moment, end: Moment | None = None, *, or_earlier: bool = False) -> pa.Table:
        """Return the difference between two times (`end`: the latest), as rows with `_diff`.

        A positive `_diff` means that the row was added, a negative one that it was removed. With
        `or_earlier`, each time that isn't complete stands for the latest complete one before it. Raises like
        `read`, and `BadInput` if `end` is before `start`.
        """
        given = [milliseconds(start)] if end is None else [milliseconds(start), milliseconds(end)]
        if end is None and given[0] < LEAST_MS and not self.upper:
            # From the beginning up to now. There is no first time yet that could be complete.
            return self._no_changes()
        check_forward(given[0], given[-1])
        # The later time first: if that is complete, the other one needs no seal.
        times = {
            each: self._opened.time_for(each, or_earlier=or_earlier) for each in sorted(given, reverse=True)
        }
        if not (upper := self.upper):
            return self._no_changes()
        first, last = times[given[0]], times[given[-1]]
        assert first is not None
        until = upper - 1 if end is None or last is None else last

        def differing(reader: CollectionReader) -> pa.Table:
            schema, changes = net_changes(reader, self._opened.describe, first, until)
            return logical_rows(changes.select(schema.arrow_diff.names), schema)

        with dated(f"table {self.name}"):
            return self._opened.reading.run(differing)

    @overload
    def export(
        self, target: str | os.PathLike[str], as_of: Moment | None = None, *, format: Literal["parquet"] = ...
    ) -> SnapshotManifest: ...
    @overload
    def export(
        self,
        target: str | os.PathLike[str],
        as_of: Moment | None = None,
        *,
        format: Literal["iceberg", "delta"],
        properties: Mapping[str, str] | None = None,
    ) -> Exported: ...
    def export(
        self,
        target: str | os.PathLike[str],
        as_of: Moment | None = None,
        *,
        format: Literal["parquet", "iceberg", "delta"] = "parquet",  # noqa: A002 - the word of the command
        properties: Mapping[str, str] | None = None,
    ) -> SnapshotManifest | Exported:
        """Write the rows as of a time, or the latest, to Parquet files, an Iceberg or a Delta table.

        For "parquet", `target` is the path or the URL (`file://`, `s3://`) of a folder that doesn't exist.
        Returns its manifest, which shows the time (`as_of`), the number of `rows`, and a `checksum`. It is
        the last file: with it, the export is complete. If an export was killed, repeat it with its time to
        finish it. `holdfast collection restore --create` makes a table of it, in any location.

        For "delta", `target` is the path or the URL of a Delta table (extra `delta`). For "iceberg", it is
        `catalog.namespace.table`, and `properties` are those of the catalog, as for pyiceberg (extra
        `iceberg`). The export replaces the rows of an earlier export of this table, in one commit.

        If you repeat an export with the time of the first one, nothing is written. So each row is there once,
        also after a kill.

        Raises `BadInput` if the target has something else, or this table at a later time (for "parquet": at
        another one), or if nothing has been written to the table, and like `read`.
        """
        if not isinstance(target, str | os.PathLike):
            raise BadInput(f"the target of an export must be a path or a URL, not {shown(target)}")
        check_format(format)
        if properties is not None and format != "iceberg":
            raise BadInput(f"an export to {format} takes no properties")
        time = self._opened.complete(as_of)
        with dated(f"table {self.name}"):
            return export_to(self._opened, time, os.fspath(target), lambda _: None, format, properties or {})

    def tail(self, as_of: Moment | None = None, *, snapshot: bool = False) -> Tail:
        """Follow the changes after a time (None: from now on), without end. See `Tail`.

        With `snapshot`, the rows at that time come first, as changes. A tail never completes times by itself.
        Raises `AsOfNotYetAvailable` for a time in the future, and with `snapshot` for any time that is not
        complete. Otherwise raises like `read`.
        """
        self._opened.check_open()
        time = None if as_of is None else self._opened.past(as_of)
        with dated(f"table {self.name}"):
            return self._opened.tail(time, snapshot=snapshot)

    def history(self, limit: int = 1000) -> pa.Table:
        """Return who wrote what, and when: the last `limit` entries (up to 1,000,000), oldest first.

        The columns are `when` (the moment), `time` (the time of a write), `what` (append, upsert, delete,
        update, merge, load, revert, or a command such as "evolve collection" or "hand over"), `added` and
        `removed` (rows; an updated row counts in both), `who` (the program), `user`, `pid`, `host` and
        `detail` (the result of a command, as JSON). Earlier builds did not record the user and the process.

        The writes begin after `since`: earlier ones are merged. A write that changed no row is not shown.
        Commands are kept for 30 days. If it is not known who wrote rows, they are shown as a "write" without
        `who` and `when`. The rows that a restore changed are not counted. Raises `BadInput` for another
        limit.
        """
        return history(self._opened, limit)[1]

    def comment(self, comments: Mapping[str, str | None]) -> None:
        """Set comments of columns. None removes a comment, and columns that are not named keep theirs.

        Raises `BadInput` for a column that doesn't exist, and for a text with more than 1024 characters or
        with control characters other than newline and tab.
        """
        self._opened.check_writable()
        self._opened.controller.comment_columns(self._opened.info.collection_id, comments)

    @property
    def retention(self) -> timedelta | None:
        """How much history the table keeps before its latest complete time, as of now. None: all of it."""
        retain_ms = self._opened.describe().retain_ms
        return None if retain_ms is None else timedelta(milliseconds=retain_ms)

    def retain(self, period: Period) -> None:
        """Set how much history the table keeps before its latest complete time.

        `period` is a `timedelta`, text such as "7d", "12h" or "90m", or "forever". You can read at times of
        that period; writers, and `holdfast collection upkeep`, give up earlier ones. What was given up does
        not come back if you set a longer period. Raises `BadInput` for anything else.
        """
        retain_ms = period_ms(period)
        self._opened.check_writable()
        self._opened.info = self._opened.controller.retain(self._opened.info.collection_id, retain_ms)

    def rename(self, name: str) -> None:
        """Give the table another name. Other processes that have it open keep working.

        Raises `UniquenessViolation` if another table has the name, and `BadInput` for an invalid name.
        """
        self._opened.check_writable()
        self._opened.info = self._opened.controller.rename(self._opened.info.collection_id, name)

    def alter(self, *, add: Mapping[str, str] | None = None, types: Mapping[str, str] | None = None) -> None:
        """Add columns, such as `{"note": "string?"}`, or give existing columns wider types.

        New columns must allow nulls (`?`), and existing rows have null in them. A type may become wider or
        allow nulls; key columns keep theirs. Other processes that have the table open continue with the
        columns that they know.

        Raises `BadInput` for a column that exists already or doesn't exist, and `CodecMismatch` for a type
        that can't follow the current one.
        """
        if not add and not types:
            raise BadInput(f"table {self.name}: nothing to alter", hint="give add={...} or types={...}")
        self._opened.check_writable()
        collection = self._opened.info.collection_id
        schema = altered(self.name, self._opened.describe().schema, add or {}, types or {})
        self._opened.info = self._opened.controller.evolve_collection(collection, schema)
        with self._opened.writing:
            self._opened.forget(writer=True)

    def rename_column(self, old: str, new: str) -> None:
        """Give a column another name. No file is rewritten, and rows of earlier times have the new name too.

        Other processes that have the table open continue: they read with the new name, and must write with
        it. Raises `BadInput` if there is no column `old`, or if there is another column `new`.
        """
        for column in (old, new):
            if not isinstance(column, str):
                raise BadInput(f"table {self.name}: the name of a column must be text, not {shown(column)}")
        self._opened.check_writable()
        self._opened.info = self._opened.controller.rename_column(self._opened.info.collection_id, old, new)
        with self._opened.writing:
            self._opened.forget(writer=True)

    def drop_column(self, name: str) -> int:
        """Drop a column. Returns the first time at which the table doesn't have it.

        Reads at earlier times show it as before. Its values stay stored: rows that differ only in it stay
        different rows. A new column with its name is another column. Other processes that have the table open
        continue, and must write without it.

        Raises `BadInput` if there is no such column, if it is a key column, and if it decides which shard a
        row goes to, as all columns do in a table without a key.
        """
        self._opened.check_writable()
        info = self._opened.controller.drop_column(self._opened.info.collection_id, name)
        self._opened.info = info
        with self._opened.writing:
            self._opened.forget(writer=True)
        return max(each.hidden_from for each in info.names.hidden if each.shown_as == name)

    def close(self) -> None:
        """Close the table and release its hold. Its rows stay. Does nothing in a forked child."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of rows as of now. See `count`."""
        found = self.count()
        if found > sys.maxsize:
            raise BadInput(f"table {self.name} has too many rows for len: {found}", hint="call count()")
        return found

    def __bool__(self) -> bool:
        """True, also for an empty table: whether there is one must not cost a read."""
        return True

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Let other libraries read the table as an Arrow stream, as of now."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        schema = self._opened.info.schema
        return f"<Table {self.name}: {columns_shown(schema)}>"

    def _repr_html_(self) -> str:
        return page(self.name, columns_shown(self._opened.info.schema), lambda few: self.scan(limit=few))

    def _no_changes(self) -> pa.Table:
        """The difference of a table that nobody has written."""
        schema = self._opened.info.schema
        return logical_rows(schema.arrow_diff.empty_table(), schema)

    def _contents(self, time: int | None, columns: Sequence[str] | None) -> pa.Table:
        with dated(f"table {self.name}"):
            return self._opened.contents(time, columns)

    def _scanned(
        self,
        time: int | None,
        columns: Sequence[str] | None,
        where: Where | None,
        limit: int | None,
        metadata: Mapping[bytes, bytes] | None,
    ) -> pa.RecordBatchReader:
        with dated(f"table {self.name}"):
            return scan(self._opened, time, columns, where, limit, metadata)


def _metadata(time: int | None, *, or_earlier: bool) -> Mapping[bytes, bytes] | None:
    """The metadata with the time of the rows, for a read with `or_earlier`: it may be an earlier one."""
    return {_AS_OF: str(time).encode()} if or_earlier and time is not None else None


def write(changes: Mapping[Table, TableLike | Change]) -> int:
    """Change several tables of one location at one time, all of them or none. Returns that time.

    For each table give rows to append, or an `Upsert`, `Merge`, `Delete`, `Update`, `SetValues` or
    `Revert`. When this
    returns, all changes are durable, and a reader of any of the tables at the returned time or later sees
    them.

    Raises:
        BadInput: the tables are in different locations, a table is given twice, or rows don't fit. Nothing
            changed.
        Indeterminate: it is unknown whether the change happened.
    """
    if not isinstance(changes, Mapping):
        raise BadInput("write takes a dict of tables and their rows, such as {orders: rows, lines: others}")
    for given in changes:
        if not isinstance(given, Table):
            raise BadInput(f"write takes tables that holdfast.table opened, not {shown(given)}")
    return commit({table._opened: as_change(each) for table, each in changes.items()}).time  # noqa: SLF001
