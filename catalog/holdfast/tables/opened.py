"""The state of an open table: its reader, its writer, and the position of its next append."""

import threading
from collections.abc import Callable, Sequence

import pyarrow as pa

from holdfast.collections import (
    CollectionInfo,
    CollectionReader,
    CollectionWriter,
    Position,
    StorageController,
)
from holdfast.errors import AsOfNotYetAvailable, BadInput, NotWritable
from holdfast.forks import OwnerProcess
from holdfast.persist import PersistClient
from holdfast.persist.checks import check_columns
from holdfast.tables.existing import rows_of
from holdfast.tables.reading import Reading
from holdfast.text import naming

PURPOSE = "table"


class OpenTable:
    """The state of a `Table`. The lock `writing` guards its writer and its position."""

    def __init__(
        self,
        client: PersistClient,
        controller: StorageController,
        info: CollectionInfo,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = client
        self.controller = controller
        self.info = info
        """As of the last time that this process read the record."""
        self.writing = threading.RLock()
        self.reading = Reading(client, lambda: controller.reader(info.collection_id, purpose=PURPOSE))
        self._owner = OwnerProcess()
        self._on_close = on_close
        self._writer: CollectionWriter | None = None
        self._position: Position | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.info.name

    def describe(self) -> CollectionInfo:
        """Read the collection's record as of now."""
        return self.controller.describe(self.info.collection_id)

    def check_open(self) -> None:
        """Raise `BadInput` if the table is closed, or `UsedAfterFork` in a forked child."""
        if not self._owner.is_here:
            self._owner.check(f"table {self.name}")
        if self._closed:
            raise BadInput(f"table {self.name} is closed", hint="open it again with holdfast.table")

    def check_writable(self) -> None:
        """Raise `NotWritable` if the table was opened for reading, or as `check_open`."""
        self.check_open()
        if self.client.mode == "read":
            raise NotWritable(f"table {self.name} was opened for reading", hint='open it without mode="read"')

    def writer(self) -> CollectionWriter:
        """Return the writer. The first call opens it."""
        self.check_open()
        if self._writer is None:
            self._writer = self.controller.writer(self.info.collection_id, purpose=PURPOSE)
        return self._writer

    def position(self) -> Position:
        """The position of the next append, as far as this process knows."""
        if self._position is None:
            self._position = self.writer().position()
        return self._position

    def moved(self, position: Position) -> None:
        """Set the position of the next append."""
        self._position = position

    def forget(self, *, writer: bool) -> None:
        """Forget the position of the next append, and with `writer` also the writer."""
        self._position = None
        if writer:
            self._writer = None

    def existing(self, upper: int, keys: pa.Table | None) -> pa.Table:
        """The rows with these keys (None: all) just before `upper`, with `_diff`."""
        if upper == 0:
            return self.writer().schema.arrow_diff.empty_table()
        return self.reading.run(lambda reader: rows_of(self.client, reader, self.describe, upper - 1, keys))

    def renew(self) -> bool:
        """Use the newest schema for writing. Returns False if the writer already had it."""
        before = self.writer().schema
        self.info = self.describe()
        if self.info.schema == before:
            return False
        self.forget(writer=True)
        return True

    def contents(self, time: int | None, columns: Sequence[str] | None) -> pa.Table:
        """The rows at a time (None: the latest), with `_diff`. Raises `BadInput` for unknown columns."""

        def read(reader: CollectionReader) -> pa.Table:
            try:
                snapshot = reader.snapshot(time)
            except AsOfNotYetAvailable as error:
                with naming(f"table {self.name}"):
                    check_columns(reader.schema, columns)
                if time is None and error.upper == 0:
                    return reader.schema.arrow_diff.empty_table()
                raise
            with naming(f"table {self.name}"):
                check_columns(snapshot.schema, columns)
            return snapshot.to_table()

        return self.reading.run(read)

    def close(self) -> None:
        """Close the table and release its hold. Does nothing in a forked child."""
        if not self._closed and self._owner.is_here:
            self._closed = True
            self.reading.close()
            self._on_close()
