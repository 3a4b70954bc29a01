"""The state of an open table: its reader, its writer, and the position of its next append.

A process that ends without closing its tables releases their holds at its end, if it ends normally. A forked
child releases none: they belong to its parent. Otherwise a hold ends with its lease.
"""

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from holdfast.collections import (
    CollectionInfo,
    CollectionReader,
    CollectionWriter,
    Position,
    StorageController,
)
from holdfast.collections.complete_times import LEAST_MS, at_or_before
from holdfast.collections.read_seals import check_follow, complete
from holdfast.collections.retention import retention_since
from holdfast.errors import (
    CLOSED,
    AsOfNotYetAvailable,
    BadInput,
    HoldfastError,
    NotWritable,
    StorageError,
)
from holdfast.forks import ForkLock, OwnerProcess
from holdfast.persist import PersistClient
from holdfast.persist.checks import check_columns
from holdfast.persist.looks import one_look
from holdfast.persist.rows.stored import logical_rows
from holdfast.tables.changes import Chosen
from holdfast.tables.existing import rows_of
from holdfast.tables.group_commit import appends_of
from holdfast.tables.moments import Moment, milliseconds
from holdfast.tables.reading import Reading
from holdfast.tables.tail import Tail
from holdfast.text import naming, with_date

PURPOSE = "table"
LEASE_S: Final = 60.0
"""The lease of a table's reader, in seconds. A process that was killed holds the table so long."""
_RETAIN_S: Final = 60.0
_CONTENDED: Final = 16
"""The writes without another process's in between after which a table is no longer contended."""
log = logging.getLogger(__name__)
_readers: Final[weakref.WeakSet[CollectionReader]] = weakref.WeakSet()
"""Readers of this process that may not be closed."""
_tables: Final[weakref.WeakSet["OpenTable"]] = weakref.WeakSet()
"""Tables that this process has open, also those that were closed but have a tail or an unfinished scan."""
_lock: Final = ForkLock()


def leased_reader(controller: StorageController, collection_id: str, purpose: str) -> CollectionReader:
    """Open a reader. Its hold ends when it is closed, at the normal end of the process, or with its lease."""
    reader = controller.reader(collection_id, purpose=purpose, lease_s=LEASE_S)
    _readers.add(reader)
    return reader


def users_here(client: PersistClient, collection_id: str) -> tuple[str, ...]:
    """What reads a collection in this process through this client, as text.

    Tables that are open, and not read now, release their holds.
    """
    with _lock:
        tables = [each for each in _tables if each.client is client]
    found = [each for table in tables if table.info.collection_id == collection_id for each in table.users()]
    return tuple(dict.fromkeys(found))


@atexit.register
def _close_readers() -> None:
    for reader in list(_readers):
        try:
            reader.close()
        except StorageError:
            # The store can't be reached. Don't let the process wait for it once more: the leases end.
            return
        except Exception:
            log.debug("can't release the hold of a table that was not closed", exc_info=True)


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
        self.appends = appends_of(client, info.collection_id)
        self.reading = Reading(client, self._reader, lambda: self.name)
        self._owner = OwnerProcess()
        self._on_close = on_close
        self._writer: CollectionWriter | None = None
        self._position: Position | None = None
        self._closed = False
        self._retain_s = 0.0
        self._contention = 0
        # An upper that the table had. Uppers never go back, so times below it are complete.
        self._complete_below = 0
        self._tails: weakref.WeakSet[Tail] = weakref.WeakSet()
        with _lock:
            _tables.add(self)

    def _reader(self) -> CollectionReader:
        return leased_reader(self.controller, self.info.collection_id, PURPOSE)

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

    def tail(self, as_of: int | None, *, snapshot: bool) -> Tail:
        """Follow the changes after a time. See `Tail.begin`."""
        self.check_open()
        reader = leased_reader(self.controller, self.info.collection_id, f"{PURPOSE} tail")
        holds = self.client.mode == "write"
        tail = Tail.begin(reader, as_of, self.describe, snapshot=snapshot, holds=holds)
        with _lock:
            self._tails.add(tail)
        return tail

    def users(self) -> list[str]:
        """What still reads the table in this process, as text. Releases the hold if only that keeps it."""
        scans = [] if self.reading.release() else ["an unfinished scan, a relation or a query"]
        with _lock:
            tails = [tail for tail in self._tails if not tail.closed]
        return [*scans, *("a tail" for _ in tails)]

    def position(self) -> Position:
        """The position of the next append, as far as this process knows."""
        if self._position is None:
            self._position = self.writer().position()
        return self._position

    def moved(self, position: Position) -> None:
        """Set the position of the next append."""
        self._position = position

    def follow(self) -> bool:
        """After a lost race, read the position anew, with one look. Return whether it moved."""
        self._contention = _CONTENDED
        return self._moved_on()

    @property
    def is_contended(self) -> bool:
        """Whether other processes wrote between the last writes of this one."""
        return self._contention > 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until it is this process's turn to write, and read the position then.

        So it loses no race. See `Consensus.turn`.
        """
        shards = [shard.shard_id for shard in self.position().shards]
        with self.client.location.consensus.turn(shards):
            self._contention = _CONTENDED if self._moved_on() else self._contention - 1
            yield

    def _moved_on(self) -> bool:
        """Read the position and the record at one moment. Return whether the position moved.

        A change of columns moves the upper, too, and rows with the old columns must not follow it. So the
        position is forgotten then, and the next look for it refuses them.
        """
        if self._writer is None or self._position is None:
            return False
        info, _, _ = self.controller.read_together(self.info.collection_id)
        known = self._writer.known_position(self._position) if info.names == self._writer.info.names else None
        moved = known is None or known.upper > self._position.upper
        self._position = known
        return moved

    def forget(self, *, writer: bool) -> None:
        """Forget the position of the next append, and with `writer` also the writer."""
        self._position = None
        if writer:
            self._writer = None

    def apply_retention(self, upper: int) -> None:
        """After a write, give up history that need not be kept, if there is much of it and it is time.

        An error is logged: the write has succeeded.
        """
        now_s = self.client.clock.monotonic()
        if self.info.retain_ms is None or now_s < self._retain_s:
            return
        since = self.client.known_since(self.info.metadata_shard)
        if since is None or retention_since(self.info, since, upper) is None:
            return
        # Somebody else may hold the since, so don't try again with each write.
        self._retain_s = now_s + _RETAIN_S
        try:
            self.controller.apply_retention(self.info.collection_id)
        except HoldfastError as error:
            log.warning("can't apply the retention of table %s: %s", self.name, error)

    def existing(self, upper: int, keys: Chosen) -> pa.Table:
        """The rows with these keys (None: all) just before `upper`, with `_diff`."""
        if upper == 0:
            return self.writer().full_schema.arrow_diff.empty_table()
        names = self.writer().info.names.with_hidden()
        return self.reading.run(lambda reader: rows_of(reader, self.describe, upper - 1, keys, names))

    def renew(self) -> bool:
        """Use the newest schema for writing. Returns False if the writer already had it."""
        before = self.writer().info
        self.info = self.describe()
        if (self.info.schema, self.info.names) == (before.schema, before.names):
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
                # `complete` has let the time pass.
                if error.upper == 0:
                    return logical_rows(reader.schema.arrow_diff.empty_table(), reader.schema)
                raise
            with naming(f"table {self.name}"):
                check_columns(snapshot.schema, columns)
            if columns:
                snapshot = snapshot.narrowed(columns)
            return logical_rows(snapshot.to_table(), snapshot.schema)

        return self.reading.run(read)

    def complete(self, given: Moment | None, instead: str = "") -> int | None:
        """Convert a time to read at to milliseconds, and make sure that the table can be read then.

        `instead` is what else to do if it can't. Seals the table if that is needed and allowed. None stays
        None. Raises like `collections.complete_times.seal_first`.
        """
        if given is None:
            return None
        self.check_open()
        time = milliseconds(given)
        if time < LEAST_MS or time >= self._complete_below:
            what, usually = self._named(given)
            self._complete_below = self.reading.run(
                lambda reader: complete(self.controller, reader, time, what, instead or usually)
            )
        return time

    def time_for(self, given: Moment | None, *, or_earlier: bool) -> int | None:
        """Like `complete`. With `or_earlier`, the latest complete time at or before a time that isn't.

        A log message says so if that is an earlier one. It writes nothing then.
        """
        if given is None or not or_earlier or not self.reading.run(lambda reader: reader.upper()):
            return self.complete(given, f"give or_earlier=True, to read at table.latest_time({given!r})")
        time = self.latest_time(given)
        if time < (wanted := milliseconds(given)):
            log.info(
                "table %s is read as of %s, its latest complete time before %s",
                self.name,
                with_date(time),
                with_date(wanted),
            )
        return time

    def past(self, given: Moment) -> int:
        """Convert a time to follow changes from to milliseconds. Raises for a time in the future."""
        time = milliseconds(given)
        what, instead = self._named(given)
        self.reading.run(lambda reader: check_follow(self.client, reader, time, what, instead))
        return time

    @one_look()
    def latest_time(self, given: Moment | None) -> int:
        """The latest complete time (None), or the latest one at or before a time. See `Table.latest_time`."""
        upper, since = self.reading.run(lambda reader: (reader.upper(), reader.since()))
        if given is None and not upper:
            message = f"table {self.name} has no complete time: nothing has been written yet"
            raise AsOfNotYetAvailable(0, 0, message=message)
        time = CLOSED if given is None else milliseconds(given)
        return at_or_before(time, since, upper, f"table {self.name}")

    def _named(self, given: Moment) -> tuple[str, str]:
        """How errors about a time name the table, and the way to read at its latest complete time."""
        return f"table {self.name}", f"read at table.latest_time({given!r})"

    def close(self) -> None:
        """Close the table and release its hold. Does nothing in a forked child."""
        if not self._closed and self._owner.is_here:
            self._closed = True
            try:
                self.reading.close()
            finally:
                self._on_close()
