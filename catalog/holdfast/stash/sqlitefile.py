"""The file of a stash in SQLite: its tables, how it is created, and the check that a file is a stash.

`application_id` marks the file as a stash, and `user_version` is the version of its layout. The file is
created complete or not at all, even if another process creates it at the same time.

SQLite has no checksums, so the tables contain their own:
- Each row of `data` has a checksum. The client that inserts the row computes it. A row from an earlier
  client, which writes no checksums, has NULL. It gets its checksum when a client that may write looks for
  damage.
- Each row of the other tables has a second form of its values in the column `copy`. SQLite computes it for
  every client. `integrity_check` compares it, because the table has a CHECK constraint for it.
- Everything else is also in an index, which `integrity_check` compares with its table.

A file from an earlier client gets all of this at its next open for writing.
"""

import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import google_crc32c

from holdfast.errors import BadInput, NoLocation, UnusablePath
from holdfast.folders import check_usable, open_error
from holdfast.sqliteguard import check_schema, damaged
from holdfast.stash.stash import LAYOUT_VERSION, check_layout

APPLICATION_ID: Final = 0x48465354  # "HFST"

_DATA: Final = """CREATE TABLE data (collection_id INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
      time INTEGER NOT NULL, diff INTEGER NOT NULL"""
_INDEXES: Final = (
    "CREATE INDEX data_by_time ON data (time)",
    "CREATE INDEX data_by_key ON data (collection_id, key)",
    "CREATE INDEX data_retractions ON data (time) WHERE diff < 0",
)
_ADD_CHECKSUM: Final = "ALTER TABLE data ADD COLUMN checksum INTEGER"
_SMALL_TABLES: Final = {
    "collections": """CREATE TABLE collections (id INTEGER PRIMARY KEY, name TEXT NOT NULL,
      copy TEXT AS (id || ' ' || name) STORED, CHECK (copy IS id || ' ' || name))""",
    "sinces": """CREATE TABLE sinces (since INTEGER NOT NULL,
      copy INTEGER AS (~since) STORED, CHECK (copy IS ~since))""",
    "uppers": """CREATE TABLE uppers (upper INTEGER NOT NULL,
      copy INTEGER AS (~upper) STORED, CHECK (copy IS ~upper))""",
    "holds": """CREATE TABLE holds (name TEXT PRIMARY KEY, time INTEGER NOT NULL,
      copy INTEGER AS (~time) STORED, CHECK (copy IS ~time))""",
}
# The same text as after `_ADD_CHECKSUM`.
_CREATE_DATA: Final = f"{_DATA}, checksum INTEGER)"
_CREATE: Final = (_CREATE_DATA, *_INDEXES, *_SMALL_TABLES.values())
_FIRST_ROWS: Final = ("INSERT INTO sinces VALUES (0)", "INSERT INTO uppers VALUES (0)")
_CREATED_EARLIER: Final = (
    f"{_DATA})",
    *_INDEXES,
    "CREATE TABLE collections (id INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    "CREATE TABLE sinces (since INTEGER NOT NULL)",
    "CREATE TABLE uppers (upper INTEGER NOT NULL)",
    "CREATE TABLE holds (name TEXT PRIMARY KEY, time INTEGER NOT NULL)",
)
# Indexes that some files have in place of checksums.
_COPIES: Final = ("data_copy", "sinces_copy", "uppers_copy", "holds_copy", "collections_copy")
TABLES: Final = frozenset({"collections", "data", "sinces", "uppers", "holds"})
_LISTING: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
_ADD_CHECKSUMS: Final = """UPDATE data SET checksum = checksum_of(collection_id, key, value, diff, time)
  WHERE checksum IS NULL"""
_HAS_CHECKSUMS: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE sql = ?)"
_EVERY_ROW: Final = "SELECT collection_id, key, value, diff, time, checksum FROM data"
_ROW_TYPES: Final = (int, bytes, bytes, int, int)
"""Collection, key, value, diff and time: in SQLite any value may be in any column."""
_numbers: Final = struct.Struct("<qqqq").pack
_crc32c: Final[Callable[[bytes], int]] = google_crc32c.value


class Connection(sqlite3.Connection):
    """A connection to the file of a stash."""

    has_checksums = False
    """Whether the file had checksums at the last `check_is_stash`. A file never loses them."""


def connect(path: Path, mode: str, *, timeout_s: float) -> Connection:
    """A connection in autocommit mode. It waits up to `timeout_s` for locks of other processes."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )


def make_file(path: Path) -> None:
    """Create the tables if the file is empty or missing: all or none, even if other processes do the same."""
    with closing(connect(path, "rwc", timeout_s=0)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute(_LISTING).fetchall() or _number(connection, "PRAGMA application_id"):
            return
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        if not connection.execute(_LISTING).fetchall():  # otherwise another process was faster
            for statement in (*_CREATE, *_FIRST_ROWS):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")
        connection.execute("COMMIT")


def checksum_of(collection: int, key: bytes, value: bytes, diff: int, time: int) -> int:
    """The CRC-32C of four little-endian 8-byte numbers, followed by key and value. See FORMAT.md."""
    return _crc32c(_numbers(collection, time, diff, len(key)) + key + value)


def is_sound(
    collection: object, key: object, value: object, diff: object, time: object, checksum: object
) -> bool:
    """Whether a row of `data` is undamaged. Without a checksum, only the types of its values are checked."""
    if checksum is None:
        return tuple(map(type, (collection, key, value, diff, time))) == _ROW_TYPES
    computed = _checksum_or_null(collection, key, value, diff, time)
    return computed is not None and checksum == computed


def _checksum_or_null(*row: Any) -> int | None:
    try:
        return checksum_of(*row)
    except (TypeError, struct.error):
        return None


def check_rows(connection: Connection, path: Path) -> bool:
    """Compare each row of `data` with its checksum. Returns whether all have one. Raises `CorruptBlob`."""
    if not connection.has_checksums:
        return False
    complete = True
    for row in connection.execute(_EVERY_ROW):
        if not is_sound(*row):
            raise damaged(path, "a row of data that is not as its checksum")
        complete = complete and row[-1] is not None
    return complete


def add_checksums(connection: Connection) -> None:
    """Add the checksums and copies that are missing. Takes the write lock for about 20 ms per MB."""
    connection.create_function("checksum_of", 5, _checksum_or_null, deterministic=True)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not _has_checksums(connection):
            for name in _COPIES:
                connection.execute(f"DROP INDEX IF EXISTS {name}")
            connection.execute(_ADD_CHECKSUM)
            for name, statement in _SMALL_TABLES.items():
                _make_anew(connection, name, statement)
        connection.execute(_ADD_CHECKSUMS)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.has_checksums = True


def _make_anew(connection: Connection, table: str, statement: str) -> None:
    """Create a table again with a stored computed column, which SQLite can't add to an existing table."""
    rows = connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608 - a name of ours
    connection.execute(f"DROP TABLE {table}")
    connection.execute(statement)
    for row in rows:
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608


def _has_checksums(connection: Connection) -> bool:
    return bool(connection.execute(_HAS_CHECKSUMS, (_CREATE_DATA,)).fetchone()[0])


def check_is_stash(connection: Connection, path: Path) -> None:
    """Raise like `open_stash` if the file is empty, isn't a stash, or has another version.

    Also sets `has_checksums` of the connection.
    """
    # Read mark and tables in one snapshot, because another process may create the stash now.
    connection.execute("BEGIN")
    application = _number(connection, "PRAGMA application_id")
    version = _number(connection, "PRAGMA user_version")
    tables = [str(name) for (name,) in connection.execute(_LISTING)]
    if application == APPLICATION_ID and version == LAYOUT_VERSION:
        connection.has_checksums = _has_checksums(connection)
        check_schema(connection, path, _CREATE if connection.has_checksums else _CREATED_EARLIER)
    connection.execute("COMMIT")
    if application == 0 and not tables:
        raise NoLocation(
            f"there is no stash {path}: the file is empty",
            hint="it is made by the first process that opens it for writing",
        )
    if application == APPLICATION_ID:
        check_layout(version, f"the stash {path}")
    if application != APPLICATION_ID or not set(tables) >= TABLES:
        raise BadInput(f"{path} is not a stash: it is a SQLite file of something else", hint="check the path")


def check_usable_file(path: Path, *, create: bool, write: bool) -> bool:
    """Whether the file exists. Raises `UnusablePath` if it isn't a file, or this process may not use it."""
    try:
        path.lstat()
    except FileNotFoundError:
        if create:
            check_usable(path.parent)
        return False
    except OSError as error:
        raise open_error(f"can't open {path}", error, missing_is_bad=create) from error
    if not path.is_file():
        raise UnusablePath(f"the stash {path} is not a file", hint="choose another path")
    if not os.access(path, os.R_OK | (os.W_OK if write else 0)):
        raise UnusablePath(f"the stash {path} is not {'writable' if write else 'readable'} for this process")
    if write:
        check_usable(path.parent)
    return True


def _number(connection: sqlite3.Connection, statement: str) -> int:
    value = connection.execute(statement).fetchone()[0]
    return value if isinstance(value, int) else 0
