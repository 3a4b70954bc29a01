"""Guards an open SQLite database in WAL mode: its three files must stay the same, and its pages undamaged.

- A database consists of three files: the main file, `-wal` and `-shm`. A process keeps them open. If somebody
  removes or replaces one of them, the process continues with the old file, and the next process that opens
  the database makes a new one. Both commit, and neither sees the other's commits. SQLite does not notice
  this. So a store compares the device and inode of all three files before each call, and again after each
  commit.
- SQLite removes `-wal` and `-shm` only when the last connection closes. While a store has a connection that
  has read once, nobody may remove them.
- Somebody may write an older copy over the main file, for example with `cp`, which keeps the inode. The page
  caches of open connections and the WAL hide the copy, and a commit mixes both. Only checkpoints write to the
  main file. So if its size or time has changed since the last call, and no commit of this store changed it, a
  store drops its page caches and checks the pages before the next call. It checks files of up to
  `CHECK_AT_OPEN_BYTES`. Once 0.2 s are spent, it does so for at most a twentieth of the time. It does not
  find a copy with the size and time of the file, a copy that is written during a call, a copy between
  checkpoints of other processes that follow each other so fast that the time is spent, or a mixture without
  a contradiction. If nothing is left in the WAL, the copy is a sound database with an older state. The stores
  find that by what they know of the history.
- Pages have no checksums. A flipped bit in an index can hide rows, and no query fails. `integrity_check`
  compares each index with its table, and finds it. `quick_check` does not.
"""

import os
import re
import sqlite3
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast.errors import (
    CorruptBlob,
    Determinate,
    HoldfastError,
    Indeterminate,
    StorageError,
    StoreUnreachable,
)

CHECK_AT_OPEN_BYTES: Final = 4 << 20
"""A database of up to this size is checked when it is opened. Upkeep checks larger ones."""

DAMAGED_HINT: Final = (
    "stop all processes that use it and restore it from a backup; without a backup of a consensus file,"
    " move it aside and run 'holdfast persist recover'"
)
REPLACED_HINT: Final = "stop the processes that use it, restore the right file, and start the processes again"

_Identity = tuple[int, int] | None
"""The inode and device of a file; None if there is no file."""
_stat: Final = os.stat  # on the append path, where making a Path costs more than the call
_Contents = tuple[int, int]
_LOOK_SHARE: Final = 20
_LOOK_AHEAD_S: Final = 4.0
_PIECE_BYTES: Final = 1 << 20
_IO_ERROR: Final = re.compile(r"error code[= ](\d+)")


class OpenElsewhere(StoreUnreachable):
    """This process has a database open by another path, from which it was moved.

    `store` is how errors call the open one.
    """

    def __init__(self, description: str, store: str, path: str) -> None:
        self.store: Final = store
        super().__init__(
            f"{description} is open in this process as {path}, which was moved, removed or replaced",
            hint="close what uses it there, and try again",
        )
        self.for_good()


class OpenFiles:
    """The files of the database `path`, as they are while its first connection is open.

    All connections of a process to one main file share one `-shm`, even if its name leads to another file by
    now. So if the files of an open store were removed, opening another store on the path would mix two
    histories. It is refused.
    """

    def __init__(self, path: Path, description: str) -> None:
        # SQLite follows links to the main file, and puts the other files next to it.
        beside = path.resolve()
        self._paths: Final = (str(path), f"{beside}-wal", f"{beside}-shm")
        self._description: Final = description
        self._known: tuple[_Identity, ...] = (None, None, None)
        self.foreign_writes = 0
        """How often the main file was written to by something else than the commits of this store."""
        self._contents: _Contents = (0, 0)
        self._sound = 0
        self._next_look_s = float("-inf")

    def check_beside(self) -> None:
        """Raise `StoreUnreachable` if this process has the file open in a store whose files were replaced.

        Also if they were moved here: `OpenElsewhere`.
        """
        try:
            main = self._look()[0]
        except OSError:
            return  # there is no file yet
        for each in list(_live):
            each._check_opening(main, self._paths[0], self._description)  # noqa: SLF001 - of the same class

    def _check_opening(self, main: _Identity, path: str, description: str) -> None:
        if self._known[0] != main:
            return
        try:
            self.check(StoreUnreachable)
        except StoreUnreachable as error:
            if path == self._paths[0]:
                raise
            raise OpenElsewhere(description, self._description, self._paths[0]) from error

    def begin(self, connection: sqlite3.Connection) -> None:
        """Remember the files as they are now. `connection` is the first connection, and has read once.

        Raises `StoreUnreachable` if they are not the files of the connection.
        """
        self._known = self._look()
        self._sound = self.foreign_writes
        in_wal_mode = connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        if in_wal_mode and None in self._known:
            raise self._replaced(StoreUnreachable, self._paths[1])
        self.check_beside()
        _live.add(self)

    def check(
        self, kind: type[StorageError] = Determinate, *, missing: type[StorageError] | None = None
    ) -> None:
        """Raise `kind` if a file was removed or replaced, and `missing` if the main file can't be reached."""
        main, log, index = self._paths
        try:
            found = _stat(main)
            self._note_contents(found)
            if (found[1:3], _stat(log)[1:3], _stat(index)[1:3]) == self._known:
                return
        except OSError:
            pass  # the check below examines each file
        try:
            files = self._look()
        except OSError as error:
            gone = isinstance(error, FileNotFoundError)
            failure = (missing or kind)(
                f"{self._description} can't be reached: {error.strerror}", hint=REPLACED_HINT if gone else ""
            )
            failure.lasting = gone
            raise failure from error
        for path, known, now in zip(self._paths, self._known, files, strict=True):
            # A database that is not in WAL mode has no such files until its first writer comes.
            if known is not None and known != now:
                raise self._replaced(kind, path)
        self._known = files

    def check_commit(self) -> None:
        """Raise `Indeterminate` like `check`, after a commit that may have written to the main file."""
        foreign = self.foreign_writes
        self.check(Indeterminate)
        self.foreign_writes = foreign

    def is_due(self) -> bool:
        """Whether the pages must be checked before they are used."""
        return (
            self.foreign_writes != self._sound
            and self._contents[0] <= CHECK_AT_OPEN_BYTES
            and time.monotonic() >= self._next_look_s
        )

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Wrap a check of the pages. If the block does not raise, the main file as it was before is sound."""
        checked, began_s = self.foreign_writes, time.monotonic()
        yield
        self._sound, ended_s = checked, time.monotonic()
        paid_s = max(self._next_look_s, ended_s - _LOOK_AHEAD_S)
        self._next_look_s = paid_s + _LOOK_SHARE * (ended_s - began_s)

    def close(self) -> None:
        """Forget the files, because no connection to them is open any more."""
        _live.discard(self)

    def _look(self) -> tuple[_Identity, ...]:
        main, log, index = self._paths
        found = _stat(main)
        self._note_contents(found)
        return found[1:3], _identity(log), _identity(index)

    def _note_contents(self, main: os.stat_result) -> None:
        contents = (main.st_size, main.st_mtime_ns)
        if contents != self._contents:
            self._contents = contents
            self.foreign_writes += 1

    def _replaced(self, kind: type[StorageError], path: str) -> StorageError:
        return kind(
            f"{self._description}: {path} was removed or replaced while it was open", hint=REPLACED_HINT
        ).for_good()


_live: Final[weakref.WeakSet[OpenFiles]] = weakref.WeakSet()


def _identity(path: str) -> _Identity:
    try:
        return _stat(path)[1:3]
    except FileNotFoundError:
        return None


def size_of(path: Path) -> int:
    """Return the total size of a database's main file and WAL in bytes."""
    return sum(each.stat().st_size for each in (path, Path(f"{path}-wal")) if each.exists())


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Read every page of a database, and compare its indexes with its tables. Takes about 1 ms of CPU per MB.

    Raises:
        CorruptBlob: a page is damaged.
        sqlite3.Error: the database can't be read now.
    """
    connection.text_factory = _decoded
    found = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    if found == "ok":
        return
    code = _IO_ERROR.search(found)
    if code is not None and int(code[1]) & 0xFF != sqlite3.SQLITE_CORRUPT:
        # The page can't be read, so it is unknown whether it is damaged.
        raise sqlite3.OperationalError(f"the integrity check can't read a page: {' '.join(found.split())}")
    raise damaged(path, " ".join(found.split())[:200])


def diagnose(path: Path, description: str, kind: type[HoldfastError], error: Exception) -> HoldfastError:
    """Check an error that reports damage. Return `CorruptBlob` if the database is damaged, else `kind`.

    SQLite also reports damage if a read failed with EIO. So this function reads the bytes again, and then the
    pages. A connection to the database must be open.
    """
    if primary_code(error) is None:
        return damaged(path, "text that is not Unicode")
    try:
        _read_through(path)
        with closing(_connect(path)) as connection:
            check_pages(connection, path)
    except CorruptBlob as found:
        return found
    except OSError as failure:
        return kind(f"{description} can't be read: {failure.strerror}", hint="check the disk and try again")
    except FOREIGN as again:
        return damaged(path, str(again)) if is_damage(again) else kind(f"{description}: {again}")
    return kind(f"{description}: {error}; an integrity check finds no damage", hint="try again")


def _read_through(path: Path) -> None:
    """Read all bytes of the database. Raises `OSError` if the disk fails."""
    descriptor = _descriptor_of(path)
    if descriptor is not None:
        at = 0
        while piece := os.pread(descriptor, _PIECE_BYTES, at):
            at += len(piece)
    with suppress(FileNotFoundError), Path(f"{path}-wal").open("rb") as log:
        while log.read(_PIECE_BYTES):
            pass


def _descriptor_of(path: Path) -> int | None:
    """Return a descriptor of SQLite for the main file: opening and closing another drops SQLite's locks."""
    wanted = path.stat()
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names of descriptors, not paths
        with suppress(OSError):
            found = os.fstat(int(name))
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return int(name)
    return None


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)


def check_schema(connection: sqlite3.Connection, path: Path, statements: Iterable[str]) -> None:
    """Raise `CorruptBlob` unless the database has the tables and indexes that `statements` make.

    It may have others too. One changed letter can give a column another meaning, and no query fails.
    """
    stored = {
        str(sql) for (sql,) in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
    }
    missing = next((made for made in statements if made.startswith("CREATE") and made not in stored), None)
    if missing is not None:
        raise damaged(path, f"no {' '.join(missing.split()[:3])} as Holdfast makes it")


def damaged(path: Path, found: str) -> CorruptBlob:
    """Return the error for a database with damaged pages."""
    return CorruptBlob(str(path), "a sound SQLite database", found, hint=DAMAGED_HINT)


def is_damage(error: Exception) -> bool:
    """Whether an error of the sqlite3 module means that the file is damaged or is not a database.

    The module raises `UnicodeDecodeError` if a message of SQLite quotes bytes of the file. It raises an
    `OperationalError` without a code for a text that is not Unicode.
    """
    if isinstance(error, UnicodeDecodeError):
        return True
    code = primary_code(error)
    if code is None:
        return str(error).startswith("Could not decode to UTF-8")
    return code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


def primary_code(error: Exception) -> int | None:
    """Return the primary code of a SQLite error, without its extension."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace")


FOREIGN: Final = (sqlite3.Error, UnicodeDecodeError)
"""The errors that the sqlite3 module raises for the contents of a file."""
