"""An open table as the library has it: its reader, its writer, and where its next append begins."""

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

PURPOSE = "table"


class OpenTable:
    """What a `Table` works with. `writing` guards its writer and its position."""

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
        """As of the last time that it was described."""
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
        """The collection as of now."""
        return self.controller.describe(self.info.collection_id)

    def check_open(self) -> None:
        """Raise `BadInput` once the table is closed, `UsedAfterFork` in another process."""
        if not self._owner.is_here:
            self._owner.check(f"table {self.name}")
        if self._closed:
            raise BadInput(f"table {self.name} is closed", hint="open it again with holdfast.table")

    def check_writable(self) -> None:
        """Raise unless this table can be written."""
        self.check_open()
        if self.client.mode == "read":
            raise NotWritable(f"table {self.name} was opened for reading", hint='open it without mode="read"')

    def writer(self) -> CollectionWriter:
        """Its writer."""
        self.check_open()
        if self._writer is None:
            self._writer = self.controller.writer(self.info.collection_id, purpose=PURPOSE)
        return self._writer

    def position(self) -> Position:
        """Where its next append begins, as far as this process knows."""
        if self._position is None:
            self._position = self.writer().position()
        return self._position

    def moved(self, position: Position) -> None:
        """Note where its next append begins."""
        self._position = position

    def forget(self, *, writer: bool) -> None:
        """Forget where its next append begins, and with `writer` its writer too."""
        self._position = None
        if writer:
            self._writer = None

    def existing(self, upper: int, keys: pa.Table | None) -> pa.Table:
        """The rows just before `upper`, with `_diff`, that have these keys (None: all)."""
        if upper == 0:
            return self.writer().schema.arrow_diff.empty_table()
        return self.reading.run(lambda reader: rows_of(self.client, reader, self.describe, upper - 1, keys))

    def renew(self) -> bool:
        """Write by the newest schema from now on; False if that is the one it had."""
        before = self.writer().schema
        self.info = self.describe()
        if self.info.schema == before:
            return False
        self.forget(writer=True)
        return True

    def contents(self, time: int | None, columns: Sequence[str] | None) -> pa.Table:
        """The rows with `_diff` at a time (None: the latest), once the columns are known to exist."""

        def read(reader: CollectionReader) -> pa.Table:
            try:
                snapshot = reader.snapshot(time)
            except AsOfNotYetAvailable as error:
                check_columns(reader.schema, columns)
                if time is None and error.upper == 0:
                    return reader.schema.arrow_diff.empty_table()
                raise
            check_columns(snapshot.schema, columns)
            return snapshot.to_table()

        return self.reading.run(read)

    def close(self) -> None:
        """Give up what it holds. In a forked child it does nothing."""
        if not self._closed and self._owner.is_here:
            self._closed = True
            self.reading.close()
            self._on_close()
