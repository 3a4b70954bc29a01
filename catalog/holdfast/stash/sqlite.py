# ruff: noqa: D102 - the base class documents its methods
"""A stash in one SQLite file, for the threads and processes of one host. Don't use a network file system.

`sqlite_file` describes the tables.

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
  `sqlite_guard`). The pages of a file of up to 4 MB are checked at each open, and those of a larger one when
  it is consolidated.
- A read adds up the digests of the rows that it finds, and compares the sum with the record (see
  `sqlite_record`). So it finds hidden, repeated and changed rows, whichever index it uses. A stream may find
  them only at its end: what it returned is right once it ends without an error. An append compares the rows
  of `sole`. If damage hides rows from a consolidation or changes them, the next read finds other sums than
  in the record. After damage was found, every call raises.
- No connection is used on both sides of a fork. In a child every call raises.
- A commit that somebody has seen can be lost only together with the file. The comparison of device and inode
  finds another file. An older copy that is written over the open file keeps the inode. So each transaction
  compares the record that it reads with the last record that this store has read or written, and with the
  past that the caller knows: upper and since must not be lower, and the last commit must be the same. The
  record has the digests of the last commits. For an earlier commit the rows are read. Once they are
  consolidated, only upper and since can be compared.
"""

import os
import sqlite3
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from holdfast.errors import (
    CorruptBlob,
    Determinate,
    DiffOverflow,
    HoldfastError,
    Indeterminate,
    NoLocation,
    NotWritable,
    OtherHistory,
    StorageError,
    StoreUnreachable,
)
from holdfast.folders import make_folder, open_error
from holdfast.sqlite_busy import LOCKED_HINT, BusyPatience
from holdfast.sqlite_guard import (
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
from holdfast.sqlite_wal import check_wal
from holdfast.stash.sqlite_file import (
    LAYOUT_VERSION,
    Connection,
    check_is_stash,
    check_usable_file,
    connect,
    make_file,
    read_record,
    upgrade,
)
from holdfast.stash.sqlite_record import NONSENSE, CommitDigests, StashRecord, digest_of
from holdfast.stash.stash import (
    CONSOLIDATION_ROWS,
    INT64,
    KnownPast,
    Past,
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
    check_upper,
    in_batches,
    in_statements,
    name_of,
)

P = ParamSpec("P")
T = TypeVar("T")

BUSY_TIMEOUT_S: Final = 30.0
"""How long a call waits for a writer of another process, in seconds."""
_MOST_LOG_BYTES: Final = 64 << 20
_CHECK_EVERY_S: Final = 3600.0
"""How often a consolidation looks for damaged pages, in seconds."""

_PUT: Final = "INSERT INTO data (collection_id, key, value, time, diff) VALUES (?, ?, ?, ?, ?)"
_NAME: Final = "INSERT OR IGNORE INTO collections (id, name) VALUES (?, ?)"
_SET_RECORD: Final = "UPDATE record SET contents = ?"
_COLLECTIONS: Final = "SELECT id FROM collections"
# The index returns the updates of a key one after the other. A sort would keep all rows in memory.
_ROWS: Final = """SELECT collection_id, key, value, diff, time FROM data
  WHERE collection_id = ? ORDER BY key"""
_EVERY_ROW: Final = "SELECT collection_id, key, value, diff, time FROM data"
_LATEST: Final = "SELECT collection_id, key, value, diff, time, rowid FROM data ORDER BY rowid DESC"
# For the same reason, values are not sorted but looked up. The LIMIT separates the two steps.
_CHANGES: Final = """SELECT d.time, d.collection_id, d.key, d.value, d.diff, d.time
  FROM (SELECT rowid AS id FROM data WHERE rowid >= ? AND time >= ? AND time < ?
    ORDER BY time, collection_id, key LIMIT -1)
  CROSS JOIN data AS d ON d.rowid = id"""
_RETRACTIONS: Final = """SELECT collection_id, key, value, diff, time FROM data
  WHERE diff < 0 AND time <= ? ORDER BY time"""
_COPIES: Final = """SELECT rowid, collection_id, key, value, diff, time FROM data
  WHERE collection_id = ? AND key = ? AND value = ? AND time <= ?"""
_DELETE: Final = "DELETE FROM data WHERE rowid = ?"
_COMMITS: Final = "SELECT collection_id, key, value, diff, time FROM data WHERE time >= ? AND time < ?"

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
_OTHER_ROWS: Final = "other rows of data than its record has"


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
        self._description: Final = f"stash {path}"
        self._files: Final = OpenFiles(path, self._description)
        self._read_only: Final = read_only
        self._names: Final = names
        self._busy_timeout_s: Final = busy_timeout_s
        self._lock = threading.Lock()
        self._closed = False
        # What damage was found. Not the error: its traceback would keep connections open.
        self._damage: str | None = None
        # The record as the transaction of this store has written it.
        self._written: StashRecord | None = None
        # The latest committed record that this store has read or written.
        self._seen: StashRecord | None = None
        # The last past of a caller that was compared. What this store has seen since then continues it.
        self._compared: Past | None = None
        self._seen_lock = threading.Lock()
        # For a reader of changes that is far behind.
        self._digests: CommitDigests | None = None
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
                    self._again_while_busy(make_file, path)
            self._keeper = self._open("ro")
            self._keeper.execute("COMMIT")
            self._files.begin(self._keeper)
            if size_of(path) <= CHECK_AT_OPEN_BYTES:
                self._check_integrity()
        except OSError as error:
            self._close_connections()
            raise open_error(f"can't make {path}", error, missing_is_bad=True) from error
        except BaseException:
            self._close_connections()
            raise
        _live.add(self)

    @property
    def description(self) -> str:
        return self._description

    def frontiers(self, *, history: KnownPast | None = None) -> StashFrontiers:
        with self._snapshot() as (connection, record):
            self._compare(connection, record, history)
            return _frontiers(record)

    def append(
        self,
        updates: Iterable[StashUpdate],
        at: int,
        *,
        sole: StashUpdate | None = None,
        upper: int | None = None,
        history: KnownPast | None = None,
    ) -> None:
        after = check_commit_time(at, upper)
        with self._transaction() as (connection, record):
            check_upper(at, record.upper, self.description)
            self._compare(connection, record, history)
            self._check_sole(connection, record, sole, at)
            added: defaultdict[int, int] = defaultdict(int)
            for batch in in_statements(updates, self._names):
                for id_, key, value, diff in batch:
                    added[id_] += digest_of(id_, key, value, diff, at)
                connection.executemany(_PUT, [(id_, key, value, at, diff) for id_, key, value, diff in batch])
            named = self._named
            if new := added.keys() - named:
                connection.executemany(_NAME, [(id_, name_of(id_, self._names)) for id_ in sorted(new)])
            made = record.after_commit(at, after, added)
            self._set_record(connection, made)
        named |= new
        self._learn(made, history, after)

    def rows(
        self,
        as_of: int,
        collections: Collection[int] = (),
        *,
        but: Collection[int] = (),
        history: KnownPast | None = None,
    ) -> Iterator[StashUpdate]:
        with self._snapshot() as (connection, record):
            check_as_of(as_of, _frontiers(record))
            self._compare(connection, record, history)
            if history is not None and history.past is None:
                self._learn(record, history, as_of + 1)
            stored = collections or self._collections(connection, record)
            for id_ in sorted(set(stored) - set(but)):
                found = self._find(connection, record, id_)
                yield from map(StashUpdate._make, self._summed(row for row in found if row[-1] <= as_of))

    def sizes(self, as_of: int) -> dict[int, int]:
        sizes: defaultdict[int, int] = defaultdict(int)
        with self._snapshot() as (connection, record):
            check_as_of(as_of, _frontiers(record))
            for (id_, _, _, diff, time_), _ in self._every_row(connection, record):
                if time_ <= as_of:
                    sizes[id_] += diff
        if not all(size in INT64 for size in sizes.values()):
            raise self._overflow()
        return dict(sizes)

    def changes(
        self,
        lower: int,
        upper: int | None = None,
        *,
        sole: StashUpdate | None = None,
        history: KnownPast | None = None,
    ) -> Iterator[tuple[int, StashUpdate]]:
        with self._snapshot() as (connection, record):
            frontiers = _frontiers(record)
            if sole is not None:
                check_reached(max(lower, upper or 0), frontiers, self.description)
            check_lower(lower, frontiers)
            self._check_sole(connection, record, sole, lower)
            self._compare(connection, record, history)
            until = frontiers.upper if upper is None else min(upper, frontiers.upper)
            self._learn(record, history, until)
            first, expected = self._locate(connection, record, lower, until)
            found = connection.execute(_CHANGES, (first, min(lower, until), until))
            for time_, *row in self._summed(self._checked(found, expected)):
                yield time_, StashUpdate(*row)

    def _locate(
        self, connection: Connection, record: StashRecord, lower: int, until: int
    ) -> tuple[int, int | None]:
        """Find where the rows at times in `[lower, until)` begin, and the sum of their digests.

        Commits add rows at the end. So this reads the rows from the end until it has all rows from `lower`
        on, as the record shows.
        """
        if connection.layout < LAYOUT_VERSION:
            return 0, None
        recent = record.recent_since(lower)
        if recent is None:
            return 0, self._sum_behind(connection, record, lower, until)
        missing, first = sum(digest for _, digest in recent), INT64[-1]
        latest = connection.execute(_LATEST)
        while missing > 0 and (row := latest.fetchone()) is not None:
            digest = self._digest(row[:-1])
            if row[-2] >= lower:
                missing, first = missing - digest, row[-1]
        if missing:
            raise self._damaged(_OTHER_ROWS)
        return first, sum(digest for time_, digest in recent if time_ < until)

    def _sum_behind(self, connection: Connection, record: StashRecord, lower: int, until: int) -> int:
        """The sum of the digests of rows at times in `[lower, until)`, which the record no longer has.

        This reads all rows once, and keeps the digests of all commits from `lower` on. A reader that is far
        behind needs them for its next calls.
        """
        known = self._digests
        # A consolidation changes rows up to since.
        if known is None or lower < known.lower or until > known.upper or lower <= record.since:
            sums: defaultdict[int, int] = defaultdict(int)
            for row, digest in self._every_row(connection, record):
                if row[-1] >= lower:
                    sums[row[-1]] += digest
            known = self._digests = CommitDigests(lower, record.upper, sums)
        return known.sum_of(lower, until)

    def _check_sole(
        self, connection: Connection, record: StashRecord, sole: StashUpdate | None, before: int
    ) -> None:
        if sole is not None:
            found = self._find(connection, record, sole.collection)
            rows = self._summed(row for row in found if row[-1] < before)
            check_sole((tuple(row) for row in rows), sole, self.description)

    def _summed(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Sum the diffs of equal rows. Yields the columns up to the key, then value and diff.

        The last columns of `rows` are key, value, diff and time.
        """
        for key, updates in groupby(rows, lambda row: row[:-3]):
            self._owner.check(_WHAT)
            sums: dict[bytes, int] = {}
            for row in updates:
                sums[row[-3]] = sums.get(row[-3], 0) + row[-2]
            for value, diff in sums.items():
                if diff not in INT64:
                    raise self._overflow()
                if diff:
                    yield *key, value, diff

    def _find(
        self, connection: Connection, record: StashRecord, collection: int
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of a collection in order of their keys. Compares them with the record at the end."""
        expected = record.sums.get(collection, 0) if connection.layout == LAYOUT_VERSION else None
        return self._checked(connection.execute(_ROWS, (collection,)), expected)

    def _checked(self, rows: Iterable[tuple[Any, ...]], expected: int | None) -> Iterator[tuple[Any, ...]]:
        """Return the rows, and raise `CorruptBlob` at the end unless their digests add up to `expected`.

        The last columns of `rows` are the arguments of `digest_of`.
        """
        found = 0
        for row in rows:
            found += self._digest(row[-5:])
            yield row
        if expected not in (None, found):
            raise self._damaged(_OTHER_ROWS)

    def _every_row(
        self, connection: Connection, record: StashRecord
    ) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Return all rows with their digests. Compares them with the record at the end."""
        found: defaultdict[int, int] = defaultdict(int)
        for row in connection.execute(_EVERY_ROW):
            digest = self._digest(row)
            found[row[0]] += digest
            yield row, digest
        if connection.layout == LAYOUT_VERSION and found != record.sums:
            raise self._damaged(_OTHER_ROWS)

    def _digest(self, row: tuple[Any, ...]) -> int:
        try:
            return digest_of(*row)
        except NONSENSE:
            raise self._damaged("a row of data with values of other types") from None

    def _damaged(self, found: str) -> CorruptBlob:
        """Record damage, so that each later call raises it too. Returns the error."""
        self._damage = found
        return damaged(self._path, found)

    def _overflow(self) -> DiffOverflow:
        return DiffOverflow(f"one of the {self.description}")

    def allow_compaction(self, since: int) -> None:
        with self._transaction() as (connection, record):
            check_since(since, _frontiers(record))
            until = min([since, *record.holds.values()])
            self._set_record(connection, record.with_since(max(record.since, until)))

    def hold(self, name: str, time: int) -> None:
        with self._transaction() as (connection, record):
            check_held(time, record.since)
            self._set_record(connection, record.with_holds({**record.holds, name: time}))

    def holds(self) -> dict[str, int]:
        with self._snapshot() as (_, record):
            return record.holds

    def release(self, name: str) -> None:
        with self._transaction() as (connection, record):
            holds = record.holds
            if holds.pop(name, None) is not None:
                self._set_record(connection, record.with_holds(holds))

    def consolidate(self, *, max_batches: int | None = None) -> bool:
        self._check_writable()
        if time.monotonic() >= self._next_check_s:
            self._check_integrity(rows=True)
        for number, batch in enumerate(in_batches(self._retractions(), CONSOLIDATION_ROWS)):
            if number == max_batches:
                return False
            with self._transaction() as (connection, record):
                changed: defaultdict[int, int] = defaultdict(int)
                for row in batch:
                    changed[row.collection] += self._consolidate(connection, row, record.since)
                self._set_record(connection, record.after_consolidation(changed))
        return True

    def _consolidate(self, connection: Connection, row: StashUpdate, since: int) -> int:
        """Replace the copies of a row by one with their sum, or by none if it is 0.

        Returns by how much this changes the digest of the collection.
        """
        copies = connection.execute(_COPIES, (*row[:3], since)).fetchall()
        total = sum(diff for _, _, _, _, diff, _ in copies)
        if total not in INT64:
            return 0
        changed = -sum(self._digest(each[1:]) for each in copies)
        connection.executemany(_DELETE, [each[:1] for each in copies])
        if total:
            latest = max(time_ for _, _, _, _, _, time_ in copies)
            changed += digest_of(*row[:3], total, latest)
            connection.execute(_PUT, (*row[:3], latest, total))
        return changed

    def _record(self, connection: Connection, seen: StashRecord | None) -> StashRecord:
        """Read the record. Raises `OtherHistory` unless it continues `seen`, from before the transaction."""
        try:
            record = read_record(connection, self._path, seen)
        except CorruptBlob as error:
            self._damage = error.actual
            raise
        if record is not seen:
            if seen is not None:
                if record.upper < seen.upper or record.since < seen.since:
                    raise OtherHistory(self.description)
                self._check_past(connection, record, seen.past(seen.upper))
            self._see(record)
        return record

    def _see(self, record: StashRecord) -> None:
        """Remember a committed record, unless another thread has seen a later one."""
        with self._seen_lock:
            seen = self._seen
            if seen is None or (seen.upper, seen.since) <= (record.upper, record.since):
                self._seen = record

    def _check_past(self, connection: Connection, record: StashRecord, past: Past | None) -> None:
        """Raise `OtherHistory` if the stash does not continue `past`.

        Its last commit must be the same, and have no later one below its upper. A commit that is no longer in
        the record, and whose rows may be consolidated, is not compared.
        """
        if past is None:
            return
        if (found := record.past(past.upper)) is None and past.time > record.since:
            rows = connection.execute(_COMMITS, (past.time, past.upper))
            found = Past(past.upper, past.time, str(sum(map(self._digest, rows))))
        if record.upper < past.upper or (found is not None and found != past):
            raise OtherHistory(self.description)

    def _compare(self, connection: Connection, record: StashRecord, history: KnownPast | None) -> None:
        past = None if history is None else history.past
        if past != self._compared:
            self._check_past(connection, record, past)
            self._compared = past

    def _learn(self, record: StashRecord, history: KnownPast | None, upper: int) -> None:
        """Set `history` to the past up to `upper`, or to None if the record no longer has its last commit."""
        if history is not None:
            history.past = self._compared = record.past(upper)

    def _set_record(self, connection: Connection, record: StashRecord) -> None:
        connection.execute(_SET_RECORD, (record.contents,))
        self._written = record

    def _collections(self, connection: Connection, record: StashRecord) -> Iterable[int]:
        if connection.layout == LAYOUT_VERSION:
            return record.sums
        return [id_ for (id_,) in connection.execute(_COLLECTIONS)]

    def _retractions(self) -> Iterator[StashUpdate]:
        with self._snapshot() as (connection, record):
            found = self._checked(connection.execute(_RETRACTIONS, (record.since,)), None)
            yield from (StashUpdate._make(row[:-1]) for row in found)

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
    def _snapshot(self) -> Iterator[tuple[Connection, StashRecord]]:
        """A new connection, in a transaction with a snapshot of the file as it is now, and its record."""
        self._check_open()
        seen = self._seen
        connection = self._open("ro")
        try:
            with self._translated(Determinate):
                self._check_open()
                yield connection, self._record(connection, seen)
        finally:
            if self._owner.is_here:
                connection.close()
            else:
                _abandoned.append(connection)

    @contextmanager
    def _transaction(self) -> Iterator[tuple[Connection, StashRecord]]:
        """The writing connection with the write lock, and the record. Commits after the block.

        Rolls back if the block raises.
        """
        self._check_writable()
        with self._lock:
            self._check_open()
            if self._writer is None:
                self._writer = self._open_writer()
            connection = self._writer
            kind: type[StorageError] = Determinate
            try:
                if self._writer_saw != self._files.foreign_writes:
                    # Another process wrote to the main file, so cached pages may be out of date.
                    self._writer_saw = self._files.foreign_writes
                    connection.execute("PRAGMA shrink_memory")
                    self._named = set()
                self._written = None
                self._again_while_busy(connection.execute, "BEGIN IMMEDIATE")
                # Nobody else commits now. So what any thread has seen so far, the file must have.
                record = self._record(connection, self._seen)
                yield connection, record
                kind = Indeterminate
                connection.execute("COMMIT")
                # If the file was removed before the commit, nobody who opens the stash later sees the commit.
                self._files.check_commit()
                if self._written is not None:
                    self._see(self._written)
            except BaseException as error:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                if connection.in_transaction:
                    self._writer = None
                    connection.close()
                if isinstance(error, FOREIGN):
                    raise self._failure(error, kind) from error
                raise

    def _open_writer(self) -> Connection:
        """A writing connection. First upgrades the file if it has an earlier layout."""
        connection = self._open("rw")
        with ExitStack() as undo:
            undo.callback(connection.close)
            self._check_open()
            if connection.layout < LAYOUT_VERSION:
                with self._translated(Determinate), closing(self._open("rw")) as upgrading:
                    self._again_while_busy(upgrade, upgrading, self._path)
                connection.layout = LAYOUT_VERSION
            undo.pop_all()
        return connection

    def _check_writable(self) -> None:
        self._owner.check(_WHAT)
        if self._read_only:
            raise NotWritable(f"{self.description} was opened for reading only")

    def _check_integrity(self, *, rows: bool = False) -> None:
        """Look for damage on a new connection. If it finds any, this and later calls raise `CorruptBlob`."""
        self._next_check_s = time.monotonic() + _CHECK_EVERY_S
        seen = self._seen
        try:
            with closing(self._open("ro")) as connection, self._translated(Determinate):
                self._check_open(look=False)
                with self._files.checking():
                    check_pages(connection, self._path)
                    if rows:
                        deque(self._every_row(connection, self._record(connection, seen)), maxlen=0)
        except CorruptBlob as error:
            self._damage = error.actual
            raise

    def _check_open(self, *, look: bool = True) -> None:
        self._owner.check(_WHAT)
        if self._closed:
            raise Determinate.closed(self.description)
        if self._damage is not None:
            raise damaged(self._path, self._damage)
        self._files.check(missing=StoreUnreachable)
        if look and self._files.is_due():
            self._check_integrity()

    def _open(self, mode: str) -> Connection:
        """A new connection. If it only reads, it is in a transaction with a snapshot of the file."""
        # Writers wait in `_again_while_busy`. A reader waits only while another process recovers the WAL.
        with self._translated(StoreUnreachable):
            connection = connect(self._path, mode, timeout_s=0 if mode == "rw" else self._busy_timeout_s)
        with ExitStack() as undo:
            undo.callback(connection.close)
            with self._translated(StoreUnreachable):
                if mode == "rw":
                    # The file is busy while another process recovers the WAL, or closes its last connection.
                    self._again_while_busy(self._prepare_writer, connection)
                else:
                    connection.execute("BEGIN")
                    check_is_stash(connection, self._path)
            undo.pop_all()
        return connection

    def _prepare_writer(self, connection: Connection) -> None:
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA journal_size_limit = {_MOST_LOG_BYTES}")
            connection.execute("BEGIN")
            check_is_stash(connection, self._path)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        # Changes only a copy made by VACUUM INTO or from a dump. Other files already have a WAL.
        connection.execute("PRAGMA journal_mode = WAL").fetchall()

    def _again_while_busy(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Retry `action` while another process holds the write lock, until the timeout."""
        patience: BusyPatience | None = None
        while True:
            try:
                return action(*args, **kwargs)
            except sqlite3.OperationalError as error:
                patience = patience or BusyPatience(self._busy_timeout_s)
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
            self._damage = found.actual if isinstance(found, CorruptBlob) else self._damage
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


def _frontiers(record: StashRecord) -> StashFrontiers:
    return StashFrontiers(record.since, record.upper)


# A forked child keeps its inherited connections forever: closing them would release the parent's locks.
_live: Final[weakref.WeakSet[SqliteStash]] = weakref.WeakSet()
_abandoned: Final[list[Any]] = []


def _after_fork_in_child() -> None:
    for stash in list(_live):
        stash.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
