"""A table: a collection as people use it.

- What is written is durable and visible when the call returns, at the time that it answers.
- A table keeps one reader for its reads, whose hold follows the latest contents: how far back others can read
  is decided by the collection's retention, not by who has the table open.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from holdfast.collections import (
    CollectionInfo,
    CollectionReader,
    CollectionWriter,
    Position,
    StorageController,
)
from holdfast.collections.changes import net_changes
from holdfast.errors import AsOfNotYetAvailable, BadInput, NotWritable
from holdfast.forks import OwnerProcess
from holdfast.persist import PersistClient, Schema
from holdfast.persist.checks import check_columns
from holdfast.tables.changes import Append, Delete, Update, Upsert
from holdfast.tables.committing import commit
from holdfast.tables.existing import rows_of
from holdfast.tables.moments import Moment, milliseconds
from holdfast.tables.reading import Reading
from holdfast.tables.rows import repeated
from holdfast.tables.tail import Tail

if TYPE_CHECKING:
    import pandas as pd

_PURPOSE = "table"


class Table:
    """A table over time, which any number of threads and processes may use. Made by `holdfast.table`.

    Times are milliseconds since the epoch; where one is asked for, a `datetime`, a `date` and ISO 8601 text
    do too. Rows are an Arrow table or batch, a data frame (pandas, Polars), a list of dicts or a dict of
    lists. Every method but `close` raises `CollectionNotFound` once the table was dropped, and
    `StorageError` where the stores fail.
    """

    def __init__(
        self,
        client: PersistClient,
        controller: StorageController,
        info: CollectionInfo,
        *,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._owner = OwnerProcess()
        self.client = client
        self.info = info
        self.writing = threading.RLock()
        self._controller = controller
        self._on_close = on_close
        self._reading = Reading(client, lambda: controller.reader(info.collection_id, purpose=_PURPOSE))
        self._writer: CollectionWriter | None = None
        self._position: Position | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.info.name

    @property
    def schema(self) -> pa.Schema:
        """Its columns as of now, those of the key first."""
        return self._described().schema.arrow

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns; none where it has no key."""
        return self.info.schema.key_names

    @property
    def collection_schema(self) -> Schema:
        """Its columns as the storage has them."""
        return self.info.schema

    @property
    def comments(self) -> dict[str, str]:
        """The comments of its columns as of now, by the names of those that have one."""
        return dict(self._described().comments)

    @property
    def since(self) -> int:
        """The earliest time that can be read, as of now."""
        return self._reading.run(lambda reader: reader.since())

    @property
    def upper(self) -> int:
        """The first time that is not complete, as of now: the latest that can be read is the one before."""
        return self._reading.run(lambda reader: reader.upper())

    def append(self, rows: object) -> int:
        """Add rows; answers the time from which on they are seen. Returns when they are durable.

        A column `_diff` tells how often to add a row; -1 takes it away. Keys are not looked at: what keeps
        them unique is `upsert`. Raises `BadInput` naming what doesn't fit, and nothing happened;
        `Indeterminate` where it could not be found out whether it happened.
        """
        return commit({self: Append(rows)}).time

    def upsert(self, rows: object) -> int:
        """Put rows in the place of those that have their keys, in one step. Answers and raises as `append`.

        Of several writers of one key the last one's row stays. `update` is for rows that depend on what was
        there. Raises `BadInput` where a key comes twice, or the table has none.
        """
        return commit({self: Upsert(rows)}).time

    def delete(self, keys: object) -> int:
        """Take away the rows of these keys, in one step. Answers and raises as `append`.

        `keys` are values of the key column, tuples where there are several, or rows with the key columns.
        """
        return commit({self: Delete(keys)}).time

    def update(self, keys: object, function: Callable[[pa.Table], object]) -> int:
        """Replace the rows of these keys (None: all) by what `function` makes of them, in one step.

        Nothing that others write is lost: `function` gets the rows as they are, and where somebody was
        faster it gets them again. Answers and raises as `append`; keys as in `delete`.
        """
        return commit({self: Update(keys, function)}).time

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
            schema, changes = net_changes(reader, self._described, first, last)
            return changes.select(schema.arrow_diff.names)

        return self._reading.run(differing)

    def tail(self, as_of: Moment | None = None, *, snapshot: bool = False) -> Tail:
        """What changes after a time (None: from now on), as it comes, without end.

        With `snapshot` the rows at that time come first, as changes. See `Tail`. Raises as `read`.
        """
        self._check_open()
        time = None if as_of is None else milliseconds(as_of)
        reader = self._controller.reader(self.info.collection_id, purpose=f"{_PURPOSE} tail")
        return Tail.begin(reader, time, snapshot=snapshot, holds=self.client.mode == "write")

    def comment(self, comments: Mapping[str, str | None]) -> None:
        """Give columns comments, or with None take them away; those of others stay.

        Raises `BadInput` for a column that is not there, and for a text of more than 1024 characters or with
        control characters but newline and tab.
        """
        self.check_writable()
        self._controller.comment_columns(self.info.collection_id, comments)

    def close(self) -> None:
        """Give up what it holds. What was written stays. In a forked child it does nothing."""
        if not self._closed and self._owner.is_here:
            self._closed = True
            self._reading.close()
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Table {self.name} ({self.info.schema})>"

    def check_writable(self) -> None:
        """Raise unless this table can be written."""
        self._check_open()
        if self.client.mode == "read":
            raise NotWritable(f"table {self.name} was opened for reading", hint='open it without mode="read"')

    def writer(self) -> CollectionWriter:
        """Its writer; with `writing` held, as the next three."""
        self._check_open()
        if self._writer is None:
            self._writer = self._controller.writer(self.info.collection_id, purpose=_PURPOSE)
        return self._writer

    def position(self) -> Position:
        """Where its next append begins, as far as is known."""
        if self._position is None:
            self._position = self.writer().position()
        return self._position

    def moved(self, position: Position) -> None:
        """Note where its next append begins."""
        self._position = position

    def forget(self, *, writer: bool) -> None:
        """Forget where its next append begins, and with `writer` what it writes by."""
        self._position = None
        if writer:
            self._writer = None

    def existing(self, upper: int, keys: pa.Table | None) -> pa.Table:
        """The rows just before `upper`, with `_diff`, that have these keys (None: all)."""
        if upper == 0:
            return self.writer().schema.arrow_diff.empty_table()
        return self._reading.run(
            lambda reader: rows_of(self.client, reader, self._described, upper - 1, keys)
        )

    def renew(self) -> bool:
        """Write by the newest schema from now on; whether it is another than before."""
        before = self.writer().schema
        self.info = self._described()
        if self.info.schema == before:
            return False
        self.forget(writer=True)
        return True

    def _described(self) -> CollectionInfo:
        return self._controller.describe(self.info.collection_id)

    def _contents(self, as_of: Moment | None, columns: Sequence[str] | None) -> pa.Table:
        """The rows with `_diff`, once it is known that they have these columns."""
        time = None if as_of is None else milliseconds(as_of)

        def contents(reader: CollectionReader) -> pa.Table:
            try:
                snapshot = reader.snapshot(time)
            except AsOfNotYetAvailable as error:
                check_columns(reader.schema, columns)
                if time is None and error.upper == 0:
                    return reader.schema.arrow_diff.empty_table()
                raise
            check_columns(snapshot.schema, columns)
            return snapshot.to_table()

        return self._reading.run(contents)

    def _check_open(self) -> None:
        if not self._owner.is_here:
            self._owner.check(f"table {self.name}")
        if self._closed:
            raise BadInput(f"table {self.name} is closed", hint="open it again with holdfast.table")
