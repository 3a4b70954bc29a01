# ruff: noqa: D102 - the trait documents its methods
"""Consensus in one SQLite file, for the threads and processes of one host. Don't use a network file system.

Invariants:

- There is one table (key, seqno, data) with a row per entry. A compare-and-set is one INSERT statement that
  contains its own conditions, outside any explicit transaction. SQLite takes the write lock before it reads a
  head, and no interrupt can leave a transaction open.
- The journal mode is WAL with synchronous=FULL, so a commit is on disk when it is reported. Reads use a
  separate connection and never wait for a writer's flush.
- The reading connection is closed last, and it can't delete the WAL. So `-wal` and `-shm` stay in place, and
  a client that opens the file for reading makes no file.
- If a process is stopped (SIGSTOP, a debugger, a frozen container) while it holds the write lock, it stops
  all writers of the file. Each of them waits `busy_timeout_s` and raises `Determinate`. Readers continue.
  Only the stopped process can release the lock, so it must be continued or killed. A write holds the lock for
  one statement.
- The device and inode of the three files are compared before each call and after each write; see
  `sqlite_guard`. A file of up to 4 MB is checked for damage when it is opened. Once damage was found, every
  call raises an error.
- No connection is used on both sides of a fork. A child opens its own.
- Nothing else in the process may open and close the database file while a store is open. That would drop the
  POSIX locks that SQLite holds on it.
"""

import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from holdfast.errors import (
    BadInput,
    CorruptBlob,
    Determinate,
    HoldfastError,
    Indeterminate,
    NoLocation,
    NotWritable,
    StorageError,
    StoreUnreachable,
    UnusablePath,
)
from holdfast.folders import check_usable, make_folder, open_error
from holdfast.persist.stores.formats import check_format
from holdfast.persist.stores.sqlite_turns import FolderTurns
from holdfast.persist.stores.sqlite_watch import CommitPoller
from holdfast.persist.stores.traits import (
    MAX_SEQNO,
    NOTHING_KNOWN,
    Consensus,
    Digest,
    Entry,
    Expect,
    Head,
    LogRow,
    Put,
    check_commands,
    check_key,
    check_scan,
)
from holdfast.persist.stores.watch import Watch, Watches
from holdfast.sqlite_busy import LOCKED_HINT, BusyPatience
from holdfast.sqlite_guard import (
    CHECK_AT_OPEN_BYTES,
    DAMAGED_HINT,
    FOREIGN,
    OpenFiles,
    check_pages,
    check_schema,
    damaged,
    diagnose,
    is_damage,
    primary_code,
    size_of,
)
from holdfast.sqlite_wal import check_wal

T = TypeVar("T")

APPLICATION_ID = 0x48464353  # "HFCS"
FORMAT_VERSION = 1

# A table with rowids: for entries of about one page it writes fewer pages than a table clustered by its key.
_CREATE = """CREATE TABLE consensus (
  key TEXT NOT NULL, seqno INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (key, seqno))"""
_HEADS = """SELECT c.key, c.seqno, c.data, length(known.data), coalesce(substr(known.data, 9, 4), x'')
  FROM json_each(?) AS wanted CROSS JOIN consensus AS c
  LEFT JOIN consensus AS known ON known.key = wanted.key AND known.seqno = wanted.value
  WHERE c.key = wanted.key AND c.seqno = (SELECT max(seqno) FROM consensus WHERE key = wanted.key)"""
# The same as `_HEADS`, for one key.
_HEAD = """SELECT c.key, c.seqno, c.data, length(known.data), coalesce(substr(known.data, 9, 4), x'')
  FROM consensus AS c LEFT JOIN consensus AS known ON known.key = ?1 AND known.seqno = ?2
  WHERE c.key = ?1 ORDER BY c.seqno DESC LIMIT 1"""
_SEQNOS = """SELECT wanted.value, coalesce((SELECT max(seqno) FROM consensus WHERE key = wanted.value), 0)
  FROM json_each(?) AS wanted"""
_SCAN = "SELECT seqno, data FROM consensus WHERE key = ? AND seqno >= ? ORDER BY seqno LIMIT ?"
_DIGESTS = """SELECT seqno, length(data), coalesce(substr(data, 9, 4), x'') FROM consensus
  WHERE key = ? AND seqno >= ? ORDER BY seqno LIMIT ?"""
_TRUNCATE = """DELETE FROM consensus WHERE key = ?1 AND seqno < ?2
  AND seqno < (SELECT max(seqno) FROM consensus WHERE key = ?1)
  AND (?3 IS NULL OR EXISTS (SELECT 1 FROM consensus WHERE key = ?1 AND seqno = ?3
    AND length(data) = ?4 AND coalesce(substr(data, 9, 4), x'') = ?5))"""
_RESTART = """INSERT INTO consensus(key, seqno, data) SELECT ?1, ?2, ?3
  WHERE coalesce((SELECT max(seqno) FROM consensus WHERE key = ?1), 0) < ?2"""
# Jumps from key to key along the index instead of reading every row.
_LIST_KEYS = """WITH RECURSIVE keys(key) AS (
    SELECT min(key) FROM consensus
    UNION ALL SELECT (SELECT min(c.key) FROM consensus AS c WHERE c.key > keys.key) FROM keys
    WHERE keys.key IS NOT NULL)
  SELECT key FROM keys WHERE key IS NOT NULL"""

# These errors occur before anything reaches the log. With SQLITE_FULL, the commit did not fit, so it is none.
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


_CACHE_KIB: Final = 256
"""The most pages that a connection keeps, in KiB. A log needs few: the path to its head. With SQLite's own
limit of 2 MB, a process with twenty locations would keep 80 MB."""
_HINTS: Final[dict[int | None, str]] = {
    sqlite3.SQLITE_FULL: "free some space",
    sqlite3.SQLITE_BUSY: LOCKED_HINT,
    sqlite3.SQLITE_LOCKED: LOCKED_HINT,
}


class SqliteConsensus(Consensus):
    """The logs in the SQLite file `path`. With `create`, the file and its folder are made.

    `busy_timeout_s` is how many seconds a call waits for a writer of another process. Raises `UnusablePath`
    if this process can have no file at the path, `StoreUnreachable` if the file is missing or can't be
    opened, `CorruptBlob` if it is not a consensus file, and `VersionTooNew` or `Deprecated` if it has another
    format. With `read_only` no file is made and no data is written.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        create: bool = True,
        read_only: bool = False,
        busy_timeout_s: float = 30.0,
    ) -> None:
        self._path: Final = Path(path)
        self._files: Final = OpenFiles(self._path, self.description)
        self._read_only: Final = read_only
        self._busy_timeout_s: Final = busy_timeout_s
        self._write_lock: Final = threading.Lock()
        self._read_lock: Final = threading.Lock()
        self._closed = False
        # What damage was found. Not the error: its traceback would keep connections open.
        self._damage: str | None = None
        self._turns = FolderTurns(self._path.parent)
        self._watches: Final = Watches()
        self._poller: Final = CommitPoller(self._path, self._watches, self._data_version, self._seqnos)
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        # How many reading connections were opened.
        self._readers = 0
        # The `foreign_writes` at which the writer and the reader last dropped their page caches.
        self._writer_saw = self._reader_saw = 0
        create = create and not read_only
        try:
            if create:
                check_usable(self._path.parent)
                make_folder(self._path.parent)
            exists = _check_usable_file(self._path, write=not read_only)
        except OSError as error:
            verb = "make" if create else "read"
            raise open_error(
                f"can't {verb} folder {self._path.parent}", error, missing_is_bad=create
            ) from error
        if not exists and not create:
            raise NoLocation(
                f"consensus file {self._path} does not exist",
                hint="check the path; the file is made with the location",
            )
        self._files.check_beside()
        try:
            check_wal(self._path)
            if not read_only:
                self._writer = self._open_writer(create=create)
            self._reader = self._open_reader()
            self._files.begin(self._reader)
            if size_of(self._path) <= CHECK_AT_OPEN_BYTES:
                self.check_integrity()
        except BaseException:
            self._close_connections()
            raise
        _live.add(self)

    @property
    def description(self) -> str:
        return f"consensus file {self._path}"

    @property
    def path(self) -> Path:
        """The main file of the database."""
        return self._path

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        for key in keys:
            check_key(key)
        if len(keys) == 1:
            rows = self._read(_HEAD, (keys[0], known.get(keys[0], 0)))
        else:
            wanted = json.dumps({key: known.get(key, 0) for key in keys}, ensure_ascii=False)
            rows = self._read(_HEADS, (wanted,))
        return {
            key: Head(*self._entry(key, seqno, data), None if size is None else Digest(size, crc))
            for key, seqno, data, size, crc in rows
        }

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        check_scan(key, limit)
        if from_seqno > MAX_SEQNO:
            return []
        rows = self._read(_SCAN, (key, max(0, from_seqno), min(limit, MAX_SEQNO)))
        return [self._entry(key, seqno, data) for seqno, data in rows]

    def digests(self, key: str, from_seqno: int, limit: int) -> list[tuple[int, Digest]]:
        check_scan(key, limit)
        rows = self._read(_DIGESTS, (key, max(0, min(from_seqno, MAX_SEQNO)), min(limit, MAX_SEQNO)))
        return [(seqno, Digest(size, crc)) for seqno, size, crc in rows]

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        check_commands(puts, expect)
        values: list[object] = []
        for put in puts:
            values += put[:3]
        wanted = [(put.key, put.seqno - 1, put.after) for put in puts]
        for key, head, digest in (*wanted, *expect):
            values += (key, head, *(digest or (None, None)))
        done = self._write(_insert(len(puts), len(puts) + len(expect)), values) == len(puts)
        if done:
            self._watches.ring(put.key for put in puts)
        return done

    def turn(self, keys: Sequence[str]) -> AbstractContextManager[None]:  # noqa: ARG002 - one for all keys
        return self._turns.turn()

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        check_key(key)
        row = (None, None, None) if known is None else (known.seqno, *known.digest)
        return self._write(_TRUNCATE, (key, max(0, min(seqno, MAX_SEQNO)), *row))

    def check_restart(self) -> None:
        pass

    def restart(self, key: str, seqno: int, data: bytes) -> bool:
        check_commands([Put(key, seqno, data)], ())
        # Two steps. After a crash between them, the next upkeep truncates the old entries.
        if not self._write(_RESTART, (key, seqno, bytes(data))):
            return False
        self.truncate(key, seqno)
        return True

    def list_keys(self) -> list[str]:
        return [key for (key,) in self._read(_LIST_KEYS, ())]

    def _entry(self, key: str, seqno: object, data: object) -> Entry:
        """Return a row as an entry, after checking its types: a SQLite column can hold any type."""
        if not isinstance(seqno, int) or not isinstance(data, bytes):
            types = f"{type(seqno).__name__} and {type(data).__name__}"
            raise CorruptBlob(f"{key} log {seqno}", f"a number and bytes in {self._path}", types)
        return Entry(seqno, data)

    def watch(self, key: str) -> Watch:
        watch = self._watches.add(check_key(key))
        self._poller.start()
        return watch

    def mark(self) -> Hashable:
        # The version counts only for one connection. It changes with the commits of all others, so with those
        # of our writer too. `foreign_writes` also changes if somebody copies a file over the main file.
        return self._data_version(), self._readers, self._files.foreign_writes

    def _data_version(self) -> int:
        ((version,),) = self._read("PRAGMA data_version", ())
        return int(version)

    def _seqnos(self, keys: Sequence[str]) -> dict[str, int]:
        return dict(self._read(_SEQNOS, (json.dumps(list(keys), ensure_ascii=False),)))

    def close(self) -> None:
        with self._write_lock, self._read_lock:
            self._closed = True
            self._close_connections()
        self._turns.close()
        self._poller.close()

    def _read(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._read_lock:
            self._check_open()
            if self._reader is None:
                self._reader = self._open_reader()
                self._check_open()
            try:
                if self._reader_saw != self._files.foreign_writes:
                    self._reader_saw = self._drop_cache(self._reader)
                return self._reader.execute(statement, values).fetchall()
            except FOREIGN as error:
                raise self._translate(error, Determinate) from error
            except OverflowError as error:
                raise BadInput(f"a number is outside int64, and can't be in {self.description}") from error

    def _write(self, statement: str, values: Sequence[object]) -> int:
        """Run one statement as one transaction. Return how many rows it changed."""
        if self._read_only:
            raise NotWritable(f"can't write to {self.description}: it was opened for reading only")
        with self._write_lock:
            self._check_open()
            if self._writer is None:
                self._writer = self._open_writer(create=False)
                self._check_open()
            execute = self._writer.execute
            try:
                if self._writer_saw != self._files.foreign_writes:
                    self._writer_saw = self._drop_cache(self._writer)
                changed: int = self._retry_while_busy(lambda: execute(statement, values).rowcount)
            except FOREIGN as error:
                failure = self._translate(error, Indeterminate)
                if isinstance(failure, StorageError):
                    # `_retry_while_busy` has waited already, so don't retry for as long again.
                    failure.lasting = primary_code(error) == sqlite3.SQLITE_BUSY
                raise failure from error
            except OverflowError as error:
                raise BadInput(f"a number is outside int64, and can't be in {self.description}") from error
            # If the file was removed meanwhile, nobody who opens the database later sees the commit.
            self._files.check_commit()
            return changed

    def check_integrity(self) -> None:
        if self._closed:
            raise Determinate.closed(self.description)
        try:
            # A separate connection: other calls continue, and it does not see pages that they have cached.
            with closing(self._open_reader()) as connection:
                self._files.check()
                with self._files.checking():
                    check_pages(connection, self._path)
        except CorruptBlob as error:
            self._damage = error.actual
            raise
        except FOREIGN as error:
            raise self._translate(error, Determinate) from error

    def _check_open(self) -> None:
        if self._closed:
            raise Determinate.closed(self.description)
        if self._damage is not None:
            raise damaged(self._path, self._damage)
        self._files.check()
        if self._files.is_due():
            self.check_integrity()

    def _drop_cache(self, connection: sqlite3.Connection) -> int:
        """Make a connection read the main file again, because another process wrote to it."""
        foreign = self._files.foreign_writes
        connection.execute("PRAGMA shrink_memory")
        return foreign

    def _open_writer(self, *, create: bool) -> sqlite3.Connection:
        def prepare(connection: sqlite3.Connection) -> None:
            _prepare(connection, create=create)
            _begin(connection, self._path)

        return self._open(
            "rwc" if create else "rw",
            lambda connection: self._retry_while_busy(lambda: prepare(connection)),
            timeout_s=0,  # `_retry_while_busy` does the waiting
        )

    def _open_reader(self) -> sqlite3.Connection:
        self._readers += 1
        return self._open(
            "ro", lambda connection: _begin(connection, self._path), timeout_s=self._busy_timeout_s
        )

    def _open(
        self, mode: str, prepare: Callable[[sqlite3.Connection], None], *, timeout_s: float
    ) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                f"file:{quote(str(self._path))}?mode={mode}",
                uri=True,
                timeout=timeout_s,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise self._translate(error, StoreUnreachable) from error
        with ExitStack() as undo:
            undo.callback(connection.close)
            try:
                prepare(connection)
            except FOREIGN as error:
                raise self._translate(error, StoreUnreachable) from error
            undo.pop_all()
        return connection

    def _retry_while_busy(self, action: Callable[[], T]) -> T:
        """Do `action`, and repeat it while another process holds the write lock, until the time is over.

        SQLite's own waiting backs off to 100 ms. With many writers, those that have waited longest come last,
        by seconds. Short random waits keep the waiting times of the writers within a factor of two of each
        other.
        """
        patience: BusyPatience | None = None
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                patience = patience or BusyPatience(self._busy_timeout_s)
                if primary_code(error) != sqlite3.SQLITE_BUSY or not patience.wait():
                    raise

    def _close_connections(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None and self._damage is not None:
            writer.close()  # The contents of the WAL must not be mixed into a damaged file.
        elif writer is not None:
            with suppress(sqlite3.Error):  # the WAL is durable, and the next open reads it
                # An empty WAL can't be replayed over a file that somebody restores next to it later.
                writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            writer.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        self._files.close()

    def _translate(self, error: Exception, otherwise: type[HoldfastError]) -> HoldfastError:
        code = primary_code(error)
        if code == sqlite3.SQLITE_NOTADB:
            return CorruptBlob(str(self._path), "a consensus file", str(error), hint=DAMAGED_HINT)
        if is_damage(error):
            found = diagnose(self._path, self.description, otherwise, error)
            self._damage = found.actual if isinstance(found, CorruptBlob) else self._damage
            return found
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            message = f"{self.description} was locked by another process for {self._busy_timeout_s:g} s"
        else:
            message = f"{self.description}: {error}"
        kind = Determinate if otherwise is Indeterminate and code in _NOT_DONE else otherwise
        return kind(message, hint=_HINTS.get(code, ""))

    def pause(self) -> None:
        """Wait for the calls in progress and block new ones, because this process is about to fork."""
        self._write_lock.acquire()
        self._read_lock.acquire()

    def resume(self, *, in_child: bool) -> None:
        """End a pause. The child leaves the parent's connections alone, and opens new ones when needed."""
        if in_child:
            _abandoned.append((self._writer, self._reader))
            self._writer = self._reader = None
            self._poller.renew()
            self._turns.close()
            self._turns = FolderTurns(self._path.parent)
        self._read_lock.release()
        self._write_lock.release()


@lru_cache(maxsize=256)
def _insert(puts: int, conditions: int) -> str:
    rows = ", ".join(["(?, ?, ?)"] * puts)
    heads = ", ".join(["(?, ?, ?, ?)"] * conditions)
    return f"""INSERT INTO consensus
      WITH puts(key, seqno, data) AS (VALUES {rows}), wanted(key, head, size, crc) AS (VALUES {heads})
      SELECT key, seqno, data FROM puts WHERE NOT EXISTS (
        SELECT 1 FROM wanted LEFT JOIN consensus AS c ON c.key = wanted.key
        AND c.seqno = (SELECT max(seqno) FROM consensus WHERE key = wanted.key)
        WHERE head <> coalesce(c.seqno, 0) OR (size IS NOT NULL AND
          (size IS NOT length(c.data) OR crc IS NOT coalesce(substr(c.data, 9, 4), x''))))"""  # noqa: S608 - only placeholders are pasted in


def _check_usable_file(path: Path, *, write: bool) -> bool:
    """Whether there is a file. Raises `UnusablePath` if it is not a file, or this process may not use it."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    if not path.is_file():
        raise UnusablePath(f"consensus file {path} is not a file", hint="choose another path")
    if not os.access(path, os.R_OK | (os.W_OK if write else 0)):
        verb = "writable" if write else "readable"
        raise UnusablePath(f"consensus file {path} is not {verb} for this process")
    if write:
        check_usable(path.parent)
    return True


def _prepare(connection: sqlite3.Connection, *, create: bool) -> None:
    """Set up the connection for writing. Make the table if the file is empty."""
    connection.execute("PRAGMA synchronous = FULL")
    if not create or _value(connection, "SELECT count(*) FROM sqlite_schema"):
        if _value(connection, "PRAGMA application_id") == APPLICATION_ID:
            # This does nothing, unless the file is a copy made by VACUUM INTO or from a dump.
            _value(connection, "PRAGMA journal_mode = WAL")
        return
    if _value(connection, "PRAGMA application_id"):
        return
    _value(connection, "PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not _value(connection, "SELECT count(*) FROM sqlite_schema"):  # else another process was faster
            connection.execute(_CREATE)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _begin(connection: sqlite3.Connection, path: Path) -> None:
    """Check the format of the file, and bound the memory of the connection."""
    _check_format(connection, path)
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # read its marks and its tables at one point in time
    try:
        application = _value(connection, "PRAGMA application_id")
        version = _value(connection, "PRAGMA user_version")
        tables = _value(connection, "SELECT count(*) FROM sqlite_schema")
        if application == APPLICATION_ID and version == FORMAT_VERSION:
            check_schema(connection, path, [_CREATE])
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if application == 0 and not tables:
        raise NoLocation(
            f"consensus file {path} is empty",
            hint="open it once with a client that writes, or check the path",
        )
    if application != APPLICATION_ID:
        raise CorruptBlob(str(path), "a consensus file", "a SQLite file of another application")
    check_format(version, FORMAT_VERSION, where=str(path))


def _value(connection: sqlite3.Connection, statement: str) -> int:
    with closing(connection.execute(statement)) as cursor:
        value = cursor.fetchone()[0]
    return value if isinstance(value, int) else 0


# Forking: hold the locks of every store during the fork, so that no call is in progress. In the child,
# abandon the connections. Closing them there would harm the parent, so a list keeps them alive.
_live: Final[weakref.WeakSet[SqliteConsensus]] = weakref.WeakSet()
_forking: Final[list[SqliteConsensus]] = []
_fork_lock: Final = threading.Lock()
_abandoned: Final[list[tuple[sqlite3.Connection | None, sqlite3.Connection | None]]] = []


def _before_fork() -> None:
    _fork_lock.acquire()  # another thread may fork at the same time
    _forking[:] = _live
    for store in _forking:
        store.pause()


def _after_fork(*, in_child: bool) -> None:
    while _forking:
        _forking.pop().resume(in_child=in_child)
    _fork_lock.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(in_child=False),
    after_in_child=lambda: _after_fork(in_child=True),
)
