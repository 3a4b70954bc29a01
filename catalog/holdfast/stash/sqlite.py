# ruff: noqa: D102 - the base class documents its methods
"""A stash in one SQLite file, for the threads and processes of one host. Don't use a network file system.

The tables are those of a stash in Postgres, except `stash`. See `sqlitefile`.

Why it is safe
- A commit begins with BEGIN IMMEDIATE. It takes the file's only write lock before it reads the upper, and
  keeps it until COMMIT. So each upper gets one commit.
- The file uses a WAL and synchronous=FULL. A commit is on disk when it returns, and an incomplete commit is
  gone after the next open. A read takes frontiers and rows from one snapshot, and waits for no writer.
- In one transaction, a consolidation deletes rows and inserts their sum, at times that no commit can write
  any more.
- Each stream has its own connection. A read-only connection is opened first and closed last. It can't delete
  the WAL, so a process that only reads creates no file.
- Device and inode of the three files are compared before each call and after each commit (see
  `sqliteguard`). A file of up to 4 MB is checked for damage at each open, and a larger one when it is
  consolidated. Everything in a stash is stored twice or has a checksum (see `sqlitefile`), and a read checks
  the rows that it returns. After damage was found, every call raises.
- No connection is used on both sides of a fork. In a child every call raises.
- A commit that another process has seen can be lost only together with the file, and the comparison of device
  and inode finds that. So no other commit can get the same upper, and calls need not compare the history.
"""

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.errors import (
    CorruptBlob,
    Determinate,
    DiffOverflow,
    HoldfastError,
    Indeterminate,
    NoLocation,
    NotWritable,
    StorageError,
    StoreUnreachable,
    UpperMismatch,
)
from holdfast.folders import make_folder, open_error
from holdfast.sqlitebusy import LOCKED_HINT, BusyPatience
from holdfast.sqliteguard import (
    CHECK_AT_OPEN_BYTES,
    FOREIGN,
    OpenFiles,
    check_pages,
    damaged,
    diagnose,
    is_damage,
    primary_code,
    size_of,
)
from holdfast.sqlitewal import check_wal
from holdfast.stash.sqlitefile import (
    Connection,
    add_checksums,
    check_is_stash,
    check_rows,
    check_usable_file,
    checksum_of,
    connect,
    is_sound,
    make_file,
)
from holdfast.stash.stash import (
    CONSOLIDATION_ROWS,
    INT64,
    KnownPast,
    Stash,
    StashFrontiers,
    StashUpdate,
    check_as_of,
    check_commit_time,
    check_held,
    check_lower,
    check_reached,
    check_since,
    check_sole,
    in_batches,
    in_statements,
    name_of,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

BUSY_TIMEOUT_S: Final = 30.0
"""How long a call waits for a writer of another process, in seconds."""
_MOST_LOG_BYTES: Final = 64 << 20
_CHECK_EVERY_S: Final = 3600.0
"""How often a consolidation looks for damaged pages, in seconds."""

_FRONTIERS: Final = "SELECT since, upper, ~sinces.copy, ~uppers.copy FROM sinces, uppers"
_PUT: Final = "INSERT INTO data (collection_id, key, value, time, diff, checksum) VALUES (?, ?, ?, ?, ?, ?)"
_NAME: Final = "INSERT OR IGNORE INTO collections (id, name) VALUES (?, ?)"
_MOVE_UPPER: Final = "UPDATE uppers SET upper = ?"
_MOVE_SINCE: Final = "UPDATE sinces SET since = max(since, ?)"
_HOLD: Final = "INSERT OR REPLACE INTO holds VALUES (?, ?)"
_HOLDS: Final = "SELECT name, time, ~copy FROM holds"
_RELEASE: Final = "DELETE FROM holds WHERE name = ?"
_COLLECTIONS: Final = "SELECT id, copy IS id || ' ' || name FROM collections"
# The index returns the updates of a key one after the other. A sort would keep all rows in memory.
_ROWS: Final = """SELECT collection_id, key, value, diff, time, checksum FROM data
  WHERE collection_id = ? AND time <= ? ORDER BY key"""
_BEFORE: Final = """SELECT collection_id, key, value, diff, time, checksum FROM data
  WHERE collection_id = ? AND time < ? ORDER BY key"""
_SIZES: Final = "SELECT collection_id, key, value, diff, time, checksum FROM data WHERE time <= ?"
# For the same reason, values are not sorted but looked up. The LIMIT separates the two steps.
_CHANGES: Final = """SELECT d.time, d.collection_id, d.key, d.value, d.diff, d.time, checksum
  FROM (SELECT rowid AS id FROM data WHERE time >= ? AND time < ? ORDER BY time, collection_id, key LIMIT -1)
  CROSS JOIN data AS d ON d.rowid = id"""
_RETRACTIONS: Final = """SELECT collection_id, key, value, diff FROM data
  WHERE diff < 0 AND time <= ? ORDER BY time"""
_COPIES: Final = """SELECT rowid, collection_id, key, value, diff, time, checksum FROM data
  WHERE collection_id = ? AND key = ? AND value = ? AND time <= ?"""
_DELETE: Final = "DELETE FROM data WHERE rowid = ?"
_EARLIER: Final = {
    _FRONTIERS: "SELECT since, upper, since, upper FROM sinces, uppers",
    _HOLDS: "SELECT name, time, time FROM holds",
    _COLLECTIONS: "SELECT id, 1 FROM collections",
} | {each: each.replace("checksum", "NULL") for each in (_ROWS, _BEFORE, _SIZES, _CHANGES)}
"""The statements for a file that has no checksums yet."""

# Errors that SQLite raises before a commit is in the WAL. This includes SQLITE_FULL: a commit whose last
# frame does not fit is not in the WAL.
_NOT_DONE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
    }
)


_WHAT: Final = "this stash"


class SqliteStash(Stash):
    """The stash in the file `path`. If `create` is set, creates a missing file and its folder.

    See `open_stash`.
    """

    def __init__(
        self,
        path: Path,
        *,
        create: bool,
        read_only: bool,
        names: Mapping[int, str],
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        super().__init__()
        self._path: Final = path
        self._files: Final = OpenFiles(path, self.description)
        self._read_only: Final = read_only
        self._names: Final = names
        self._busy_timeout_s: Final = busy_timeout_s
        self._lock = threading.Lock()
        self._closed = False
        self._damage: CorruptBlob | None = None
        # Whether every row had a checksum at the last check. A large file is not checked at the open.
        self._all_checked = True
        # The collections with a name in the file.
        self._named: set[int] = set()
        self._next_check_s = 0.0
        # The `foreign_writes` at which the writer last dropped its page cache.
        self._writer_saw = 0
        self._writer: Connection | None = None
        self._keeper: Connection | None = None
        if not check_usable_file(path, create=create, write=not read_only) and not create:
            raise NoLocation(
                f"there is no stash {path}",
                hint="check the path; it is made by the first process that opens it for writing",
            )
        self._files.check_beside()
        try:
            check_wal(path)
            if create:
                make_folder(path.parent)
                with self._translated(StoreUnreachable):
                    self._again_while_busy(lambda: make_file(path))
            self._keeper = self._open("ro")
            self._files.begin(self._keeper)
            if size_of(path) <= CHECK_AT_OPEN_BYTES:
                self._check_integrity()
            if not read_only:
                self._add_checksums(self._keeper.has_checksums)
        except OSError as error:
            self._close_connections()
            raise open_error(f"can't make {path}", error, missing_is_bad=True) from error
        except BaseException:
            self._close_connections()
            raise
        _live.add(self)

    @property
    def description(self) -> str:
        return f"stash {self._path}"

    def frontiers(self, *, history: KnownPast | None = None) -> StashFrontiers:  # noqa: ARG002 - see above
        with self._snapshot() as connection:
            return self._frontiers(connection)

    def append(
        self,
        updates: Iterable[StashUpdate],
        at: int,
        *,
        sole: StashUpdate | None = None,
        upper: int | None = None,
        history: KnownPast | None = None,  # noqa: ARG002 - see above
    ) -> None:
        after = check_commit_time(at, upper)
        with self._transaction() as connection:
            found = self._frontiers(connection).upper
            if found != at:
                raise UpperMismatch(at, found, shard_id=f"the {self.description}")
            self._check_sole(connection, sole, at)
            used: set[int] = set()
            for batch in in_statements(updates, self._names):
                connection.executemany(
                    _PUT,
                    (
                        (id_, key, value, at, diff, checksum_of(id_, key, value, diff, at))
                        for id_, key, value, diff in batch
                    ),
                )
                used.update([id_ for id_, _, _, _ in batch])
            named = self._named
            new = used - named
            if new:
                connection.executemany(_NAME, [(id_, name_of(id_, self._names)) for id_ in sorted(new)])
            connection.execute(_MOVE_UPPER, (after,))
        named |= new

    def rows(
        self,
        as_of: int,
        collections: Collection[int] = (),
        *,
        but: Collection[int] = (),
        history: KnownPast | None = None,  # noqa: ARG002 - see above
    ) -> Iterator[StashUpdate]:
        with self._snapshot() as connection:
            check_as_of(as_of, self._frontiers(connection))
            stored = collections or self._collections(connection)
            for id_ in sorted(set(stored) - set(but)):
                yield from map(StashUpdate._make, self._summed(_find(connection, _ROWS, (id_, as_of))))

    def sizes(self, as_of: int) -> dict[int, int]:
        with self._snapshot() as connection:
            check_as_of(as_of, self._frontiers(connection))
            sizes: dict[int, int] = {}
            for row in _find(connection, _SIZES, (as_of,)):
                self._check_row(row)
                sizes[row[0]] = sizes.get(row[0], 0) + row[3]
        if not all(size in INT64 for size in sizes.values()):
            raise self._overflow()
        return sizes

    def changes(
        self,
        lower: int,
        upper: int | None = None,
        *,
        sole: StashUpdate | None = None,
        history: KnownPast | None = None,  # noqa: ARG002 - see above
    ) -> Iterator[tuple[int, StashUpdate]]:
        with self._snapshot() as connection:
            frontiers = self._frontiers(connection)
            if sole is not None:
                check_reached(max(lower, upper or 0), frontiers, self.description)
            check_lower(lower, frontiers)
            self._check_sole(connection, sole, lower)
            until = frontiers.upper if upper is None else min(upper, frontiers.upper)
            for time_, *row in self._summed(_find(connection, _CHANGES, (min(lower, until), until))):
                yield time_, StashUpdate(*row)

    def _check_sole(self, connection: Connection, sole: StashUpdate | None, before: int) -> None:
        if sole is not None:
            found = _find(connection, _BEFORE, (sole.collection, before))
            check_sole((tuple(row) for row in self._summed(found)), sole, self.description)

    def _summed(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Sum the diffs of equal rows. Yields the columns up to the key, then value and diff.

        The last six columns of `rows` are the arguments of `is_sound`.
        """
        for key, updates in groupby(rows, lambda row: row[:-4]):
            self._owner.check(_WHAT)
            sums: dict[bytes, int] = {}
            for row in updates:
                self._check_row(row[-6:])
                sums[row[-4]] = sums.get(row[-4], 0) + row[-3]
            for value, diff in sums.items():
                if diff not in INT64:
                    raise self._overflow()
                if diff:
                    yield *key, value, diff

    def _check_row(self, row: tuple[Any, ...]) -> None:
        if not is_sound(*row):
            raise self._damaged("a row of data that is not as its checksum")

    def _damaged(self, found: str) -> CorruptBlob:
        """Record damage, so that each later call raises it too. Returns the error."""
        self._damage = damaged(self._path, found)
        return self._damage

    def _overflow(self) -> DiffOverflow:
        return DiffOverflow(f"one of the {self.description}")

    def allow_compaction(self, since: int) -> None:
        with self._transaction() as connection:
            check_since(since, self._frontiers(connection))
            held = self._holds(connection).values()
            connection.execute(_MOVE_SINCE, (min([since, *held]),))

    def hold(self, name: str, time: int) -> None:
        with self._transaction() as connection:
            check_held(time, self._frontiers(connection).since)
            connection.execute(_HOLD, (name, time))

    def holds(self) -> dict[str, int]:
        with self._snapshot() as connection:
            return self._holds(connection)

    def release(self, name: str) -> None:
        with self._transaction() as connection:
            connection.execute(_RELEASE, (name,))

    def consolidate(self, *, max_batches: int | None = None) -> bool:
        self._check_writable()
        if time.monotonic() >= self._next_check_s:
            self._check_integrity()
            self._add_checksums()
        for number, batch in enumerate(in_batches(self._retractions(), CONSOLIDATION_ROWS)):
            if number == max_batches:
                return False
            with self._transaction() as connection:
                since = self._frontiers(connection).since
                for row in batch:
                    self._consolidate(connection, row, since)
        return True

    def _consolidate(self, connection: Connection, row: StashUpdate, since: int) -> None:
        """Replace the copies of a row by one with their sum, or by none if it is 0."""
        copies = connection.execute(_COPIES, (*row[:3], since)).fetchall()
        for each in copies:
            self._check_row(each[1:])
        total = sum(diff for _, _, _, _, diff, _, _ in copies)
        if total not in INT64:
            return
        connection.executemany(_DELETE, [each[:1] for each in copies])
        if total:
            latest = max(time_ for _, _, _, _, _, time_, _ in copies)
            checksum = checksum_of(*row[:3], total, latest)
            connection.execute(_PUT, (*row[:3], latest, total, checksum))

    def _frontiers(self, connection: Connection) -> StashFrontiers:
        found = _find(connection, _FRONTIERS).fetchall()
        if len(found) != 1 or not all(isinstance(each, int) and each >= 0 for each in found[0][:2]):
            raise CorruptBlob("the frontiers of the stash", "one since and one upper", f"{len(found)} rows")
        if found[0][:2] != found[0][2:]:
            raise self._damaged("frontiers that are not as their copies")
        return StashFrontiers(*found[0][:2])

    def _holds(self, connection: Connection) -> dict[str, int]:
        found = _find(connection, _HOLDS).fetchall()
        if any(time_ != copy for _, time_, copy in found):
            raise self._damaged("a hold that is not as its copy")
        return {name: time_ for name, time_, _ in found}

    def _collections(self, connection: Connection) -> list[int]:
        found = _find(connection, _COLLECTIONS).fetchall()
        if not all(same for _, same in found):
            raise self._damaged("a collection that is not as its copy")
        return [id_ for id_, _ in found]

    def _retractions(self) -> Iterator[StashUpdate]:
        with self._snapshot() as connection:
            since = self._frontiers(connection).since
            yield from map(StashUpdate._make, connection.execute(_RETRACTIONS, (since,)))

    def close(self) -> None:
        if not self._owner.is_here:
            return
        with self._lock:
            self._closed = True
        self._close_connections()

    def _close_connections(self) -> None:
        with self._lock:
            writer, self._writer = self._writer, None
            keeper, self._keeper = self._keeper, None
        if writer is not None and self._damage is not None:
            writer.close()  # The WAL must not be written into a damaged file.
        elif writer is not None:
            with suppress(sqlite3.Error):  # The WAL is durable, and the next open reads it.
                writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            writer.close()
        if keeper is not None:
            keeper.close()
        self._files.close()

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """A new connection with a snapshot of the file as it is now."""
        self._check_open()
        connection = self._open("ro")
        try:
            with self._translated(Determinate):
                self._check_open()
                connection.execute("BEGIN")
                yield connection
        finally:
            if self._owner.is_here:
                connection.close()
            else:
                _abandoned.append(connection)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """The writing connection with the write lock. Commits after the block, or rolls back if it raises."""
        self._check_writable()
        with self._lock:
            self._check_open()
            if self._writer is None:
                self._writer = self._open_writer()
            connection = self._writer
            try:
                with self._translated(Determinate):
                    if self._writer_saw != self._files.foreign_writes:
                        # Another process wrote to the main file, so cached pages may be out of date.
                        self._writer_saw = self._files.foreign_writes
                        connection.execute("PRAGMA shrink_memory")
                        self._named = set()
                    self._again_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"))
                    yield connection
                with self._translated(Indeterminate):
                    connection.execute("COMMIT")
                # If the file was removed before the commit, nobody who opens the stash later sees the commit.
                self._files.check_commit()
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                if connection.in_transaction:
                    self._writer = None
                    connection.close()
                raise

    def _open_writer(self) -> Connection:
        """A writing connection. First adds the columns for checksums if the file has none."""
        connection = self._open("rw")
        with ExitStack() as undo:
            undo.callback(connection.close)
            self._check_open()
            if not connection.has_checksums:
                with self._translated(Determinate):
                    self._again_while_busy(lambda: add_checksums(connection))
            undo.pop_all()
        return connection

    def _check_writable(self) -> None:
        self._owner.check(_WHAT)
        if self._read_only:
            raise NotWritable(f"{self.description} was opened for reading only")

    def _check_integrity(self) -> None:
        """Look for damage on a new connection. If it finds any, this and later calls raise `CorruptBlob`."""
        self._next_check_s = time.monotonic() + _CHECK_EVERY_S
        try:
            with closing(self._open("ro")) as connection, self._translated(Determinate):
                self._check_open(look=False)
                with self._files.checking():
                    check_pages(connection, self._path)
                    self._all_checked = check_rows(connection, self._path)
        except CorruptBlob as error:
            self._damage = error
            raise

    def _add_checksums(self, has_checksums: bool = True) -> None:
        """Add checksums to rows of earlier clients. If the file is locked, the next open adds them."""
        if self._all_checked and has_checksums:
            return
        with self._translated(StoreUnreachable), closing(self._open("rw")) as connection:
            try:
                add_checksums(connection)
            except sqlite3.OperationalError as error:
                log.warning("%s has rows without a checksum: %s", self.description, error)
            else:
                self._all_checked = True

    def _check_open(self, *, look: bool = True) -> None:
        self._owner.check(_WHAT)
        if self._closed:
            raise Determinate(f"{self.description} is closed")
        if self._damage is not None:
            found = self._damage
            raise CorruptBlob(found.key, found.expected, found.actual, hint=found.hint)
        self._files.check(missing=StoreUnreachable)
        if look and self._files.is_due():
            self._check_integrity()

    def _open(self, mode: str) -> Connection:
        # Writers wait in `_again_while_busy`. A reader waits only while another process recovers the WAL.
        with self._translated(StoreUnreachable):
            connection = connect(self._path, mode, timeout_s=0 if mode == "rw" else self._busy_timeout_s)
        with ExitStack() as undo:
            undo.callback(connection.close)
            with self._translated(StoreUnreachable):
                if mode == "rw":
                    connection.execute("PRAGMA synchronous = FULL")
                    connection.execute(f"PRAGMA journal_size_limit = {_MOST_LOG_BYTES}")
                check_is_stash(connection, self._path)
                if mode == "rw":
                    # Changes only a copy made by VACUUM INTO or from a dump. Other files already have a WAL.
                    connection.execute("PRAGMA journal_mode = WAL").fetchall()
            undo.pop_all()
        return connection

    def _again_while_busy(self, action: Callable[[], T]) -> T:
        """Retry `action` while another process holds the write lock, until the timeout."""
        patience = BusyPatience(self._busy_timeout_s)
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY or not patience.wait():
                    raise

    @contextmanager
    def _translated(self, kind: type[StorageError]) -> Iterator[None]:
        """Convert errors of SQLite: to `kind`, or to a more specific error if the code shows one."""
        try:
            yield
        except FOREIGN as error:
            raise self._failure(error, kind) from error

    def _failure(self, error: Exception, kind: type[StorageError]) -> HoldfastError:
        code = primary_code(error)
        if code != sqlite3.SQLITE_NOTADB and is_damage(error):
            found = diagnose(self._path, self.description, kind, error)
            self._damage = found if isinstance(found, CorruptBlob) else self._damage
            return found
        if code == sqlite3.SQLITE_NOTADB:
            return CorruptBlob(
                str(self._path),
                "the file of a stash",
                str(error),
                hint="check the path, or restore the file from a backup",
            )
        if str(error) == "integer overflow":
            return self._overflow()
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            message = f"{self.description} was locked by another process for {self._busy_timeout_s:g} s"
        else:
            message = f"{self.description}: {error}"
        kind = Determinate if kind is Indeterminate and code in _NOT_DONE else kind
        hints = {sqlite3.SQLITE_FULL: "free some space", sqlite3.SQLITE_BUSY: LOCKED_HINT}
        return kind(message, hint=hints.get(code or 0, ""))

    def abandon(self) -> None:
        """In the child of a fork: leave the parent's connections alone."""
        self._lock = threading.Lock()
        _abandoned.append((self._writer, self._keeper))
        self._writer = self._keeper = None


def _find(connection: Connection, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
    return connection.execute(statement if connection.has_checksums else _EARLIER[statement], values)


# A forked child keeps its inherited connections forever: closing them would release the parent's locks.
_live: Final[weakref.WeakSet[SqliteStash]] = weakref.WeakSet()
_abandoned: Final[list[Any]] = []


def _after_fork_in_child() -> None:
    for stash in list(_live):
        stash.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
