"""A table: a collection as people use it.

- What is written is durable and visible when the call returns, at the time that it answers.
- A table keeps one reader for its reads, whose hold follows the latest contents: how far back others can read
  is decided by the collection's retention, not by who has the table open.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from holdfast.collections import CollectionReader
from holdfast.collections.changes import net_changes
from holdfast.errors import AsOfNotYetAvailable, BadInput
from holdfast.persist import PersistClient
from holdfast.persist.rows.casts import shown
from holdfast.tables.changes import Append, Delete, Update, Upsert
from holdfast.tables.committing import as_change, commit
from holdfast.tables.moments import Moment, milliseconds
from holdfast.tables.opened import PURPOSE, OpenTable
from holdfast.tables.rows import repeated
from holdfast.tables.tail import Tail

if TYPE_CHECKING:
    import pandas as pd


class Table:
    """A table over time, which any number of threads and processes may use. Made by `holdfast.table`.

    Times are milliseconds since the epoch; where one is asked for, a `datetime`, a `date` and ISO 8601 text
    do too. Rows are an Arrow table or batch, a data frame (pandas, Polars), a list of dicts or a dict of
    lists. Every method but `close` raises `CollectionNotFound` once the table was dropped, and
    `StorageError` where the stores fail.
    """

    def __init__(self, opened: OpenTable) -> None:
        self._opened = opened

    @property
    def name(self) -> str:
        """Its name."""
        return self._opened.name

    @property
    def client(self) -> PersistClient:
        """The client of its location."""
        return self._opened.client

    @property
    def schema(self) -> pa.Schema:
        """Its columns as of now, those of the key first."""
        return self._opened.describe().schema.arrow

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns; none where it has no key."""
        return self._opened.info.schema.key_names

    @property
    def comments(self) -> dict[str, str]:
        """The comments of its columns as of now, by the names of those that have one."""
        return dict(self._opened.describe().comments)

    @property
    def since(self) -> int:
        """The earliest time that can be read, as of now."""
        return self._opened.reading.run(lambda reader: reader.since())

    @property
    def upper(self) -> int:
        """The first time that is not complete, as of now: the latest that can be read is the one before."""
        return self._opened.reading.run(lambda reader: reader.upper())

    def append(self, rows: object) -> int:
        """Add rows; answers the time from which on they are seen. Returns when they are durable.

        A column `_diff` tells how often to add a row; -1 takes it away. Keys are not looked at: what keeps
        them unique is `upsert`. Raises `BadInput` naming what doesn't fit, and nothing happened;
        `Indeterminate` where it could not be found out whether it happened.
        """
        return commit({self._opened: Append(rows)}).time

    def upsert(self, rows: object) -> int:
        """Put rows in the place of those that have their keys, in one step. Answers and raises as `append`.

        Of several writers of one key the last one's row stays. `update` is for rows that depend on what was
        there. Raises `BadInput` where a key comes twice, or the table has none.
        """
        return commit({self._opened: Upsert(rows)}).time

    def delete(self, keys: object) -> int:
        """Take away the rows of these keys, in one step. Answers and raises as `append`.

        `keys` are values of the key column, tuples where there are several, or rows with the key columns.
        """
        return commit({self._opened: Delete(keys)}).time

    def update(self, keys: object, function: Callable[[pa.Table], object]) -> int:
        """Replace the rows of these keys (None: all) by what `function` makes of them, in one step.

        Nothing that others write is lost: `function` gets the rows as they are, and where somebody was
        faster it gets them again. Answers and raises as `append`; keys as in `delete`.
        """
        return commit({self._opened: Update(keys, function)}).time

    def read(self, as_of: Moment | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows as of a time, or the latest, in no order; all columns, or these.

        Raises `AsOfTooEarly` where `as_of < since`, `AsOfNotYetAvailable` where `as_of >= upper`.
        """
        rows = repeated(self._contents(as_of, columns))
        return rows if columns is None else rows.select(list(columns))

    def counts(self, as_of: Moment | None = None) -> pa.Table:
        """As `read`, but each row once, with its number in `_diff`: negative where a writer erred."""
        return self._contents(as_of, None)

    def to_pandas(self, as_of: Moment | None = None, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        """As `read`, as a pandas data frame, sorted by the key."""
        rows = self.read(as_of, columns)
        by = [(name, "ascending") for name in self.key if name in rows.column_names]
        frame: pd.DataFrame = (rows.sort_by(by) if by else rows).to_pandas()
        return frame

    def diff(self, start: Moment, end: Moment | None = None) -> pa.Table:
        """What differs between two times (`end`: the latest): rows with `_diff`, what came and what went.

        Raises as `read`, `BadInput` where `end` is before `start`.
        """
        first = milliseconds(start)
        upper = self.upper
        last = upper - 1 if end is None else milliseconds(end)
        if end is None and last < first:
            raise AsOfNotYetAvailable(first, upper)

        def differing(reader: CollectionReader) -> pa.Table:
            schema, changes = net_changes(reader, self._opened.describe, first, last)
            return changes.select(schema.arrow_diff.names)

        return self._opened.reading.run(differing)

    def tail(self, as_of: Moment | None = None, *, snapshot: bool = False) -> Tail:
        """What changes after a time (None: from now on), as it comes, without end.

        With `snapshot` the rows at that time come first, as changes. See `Tail`. Raises as `read`.
        """
        self._opened.check_open()
        time = None if as_of is None else milliseconds(as_of)
        collection = self._opened.info.collection_id
        reader = self._opened.controller.reader(collection, purpose=f"{PURPOSE} tail")
        return Tail.begin(reader, time, snapshot=snapshot, holds=self.client.mode == "write")

    def comment(self, comments: Mapping[str, str | None]) -> None:
        """Give columns comments, or with None take them away; those of others stay.

        Raises `BadInput` for a column that is not there, and for a text of more than 1024 characters or with
        control characters but newline and tab.
        """
        self._opened.check_writable()
        self._opened.controller.comment_columns(self._opened.info.collection_id, comments)

    def close(self) -> None:
        """Give up what it holds. What was written stays. In a forked child it does nothing."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Table {self.name} ({self._opened.info.schema})>"

    def _contents(self, as_of: Moment | None, columns: Sequence[str] | None) -> pa.Table:
        return self._opened.contents(None if as_of is None else milliseconds(as_of), columns)


def write(changes: Mapping[Table, object]) -> int:
    """Change several tables of one location at one time, all or nothing; returns that time.

    For each table give rows to append, or an `Upsert`, `Delete` or `Update`. When this returns, all changes
    are durable, and a reader of any of the tables at the returned time or later sees them.

    Raises:
        BadInput: the tables are of different locations, a table is given twice, or rows don't fit. Nothing
            happened.
        Indeterminate: whether it happened could not be found out.
    """
    if not isinstance(changes, Mapping):
        raise BadInput("a write is a dict of tables and their rows, such as {orders: rows, lines: others}")
    for given in changes:
        if not isinstance(given, Table):
            raise BadInput(f"a write is to tables that holdfast.table opened, not to {shown(given)}")
    return commit({table._opened: as_change(each) for table, each in changes.items()}).time  # noqa: SLF001
