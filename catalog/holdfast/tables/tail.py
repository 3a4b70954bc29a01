"""Follows a table: its changes as Arrow tables, and the time up to which they are complete."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Final, Self

import pyarrow as pa

from holdfast.collections import CollectionInfo, CollectionListen, CollectionReader
from holdfast.errors import CLOSED, BadInput
from holdfast.persist import Progress, Updates
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.schema import DIFF, TIME
from holdfast.persist.rows.stored import logical_rows

_FOLLOW_S: Final = 10.0


class Tail:
    """The changes of a table in the order of time, without end. Not thread-safe.

    Iteration waits for changes and yields them as Arrow tables with the columns of the table, `_time` (ms)
    and `_diff` (+1 for a row that was added, -1 for one that was removed). `progress` is the time up to
    which, exclusive, the changes are complete: later ones have that time or a greater one.
    """

    def __init__(
        self,
        reader: CollectionReader,
        listen: CollectionListen,
        describe: Callable[[], CollectionInfo],
        *,
        holds: bool,
    ) -> None:
        self._reader = reader
        self._schema = reader.schema
        self._describe = describe
        self._listen = listen
        self._holds = holds
        self._follow_s = time.monotonic() + _FOLLOW_S
        self._closed = False

    @classmethod
    def begin(
        cls,
        reader: CollectionReader,
        as_of: int | None,
        describe: Callable[[], CollectionInfo],
        *,
        snapshot: bool,
        holds: bool,
    ) -> "Tail":
        """Follow from `as_of` (None: the latest complete time). The tail takes over the reader.

        `describe` reads the collection's record.
        """
        try:
            if as_of is None:
                upper = reader.upper()
                # Before the first write there is no snapshot to show.
                as_of, snapshot = max(upper - 1, 0), snapshot and upper > 0
            listen = reader.subscribe(as_of) if snapshot else reader.listen(as_of)
            return cls(reader, listen, describe, holds=holds)
        except BaseException:
            reader.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def progress(self) -> int:
        """The time below which all changes have been returned."""
        return self._listen.frontier

    def next(self, timeout: float | None = None) -> pa.Table:
        """Return the next changes. Waits for them at most `timeout` seconds (None: without limit).

        Returns an empty table if the time runs out, or if only `progress` has moved.
        """
        # NaN is no length: the wait would have no end.
        if timeout is not None and (not isinstance(timeout, int | float) or math.isnan(timeout)):
            raise BadInput(f"timeout must be a number of seconds, or None, not {shown(timeout)}")
        updates = self._schema.arrow_updates.empty_table()
        for event in self._listen.next(timeout):
            match event:
                case Updates(table):
                    # The reader has read the record for the names of the columns.
                    updates, self._schema = table, self._reader.schema
                case Progress():
                    self._follow()
        return self._logical(updates)

    def __iter__(self) -> Iterator[pa.Table]:
        while not self._closed and self.progress < CLOSED:
            if (updates := self.next()).num_rows:
                yield updates

    def close(self) -> None:
        """Stop, and release the hold. In a forked child the hold stays: it belongs to the parent."""
        if not self._closed:
            self._closed = True
            self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _logical(self, updates: pa.Table) -> pa.Table:
        if not {*self._schema.names, TIME, DIFF}.issuperset(updates.column_names):
            self._schema = self._describe().schema
        return logical_rows(updates, self._schema)

    def _follow(self) -> None:
        """Move the hold past the changes that were returned."""
        if self._closed:
            return
        if self._holds and time.monotonic() >= self._follow_s and 0 < self.progress < CLOSED:
            self._reader.allow_compaction(self.progress - 1)
            self._follow_s = time.monotonic() + _FOLLOW_S
