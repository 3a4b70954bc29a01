"""The file of a stash in SQLite: its tables, how it is created, and the check that a file is a stash.

`application_id` marks the file as a stash, and `user_version` is the version of its layout. The file is
created complete or not at all, even if another process creates it at the same time.

Layout 2 has a record with digests of all rows, see `sqlite_record`. The names in `collections` are for
people, and no read uses them. A file of layout 1 has no digests, so a flipped bit in it can give a wrong
result. The first transaction that writes to it makes it a file of layout 2, which clients that know only
layout 1 refuse. Such a client may still have the file open. It fails too, because the tables `sinces` and
`uppers` are gone.
"""

import os
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast.errors import BadInput, NoLocation, UnusablePath
from holdfast.folders import check_usable, open_error
from holdfast.sqlite_guard import check_pages, check_schema, damaged
from holdfast.stash.sqlite_record import NONSENSE, StashRecord, digest_of
from holdfast.stash.stash import check_layout

APPLICATION_ID: Final = 0x48465354  # "HFST"
LAYOUT_VERSION: Final = 2
"""The version of the tables in a file. This version and all earlier ones, from 1, can be read."""

_DATA: Final = """CREATE TABLE data (collection_id INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
      time INTEGER NOT NULL, diff INTEGER NOT NULL"""
_COLLECTIONS: Final = "CREATE TABLE collections (id INTEGER PRIMARY KEY, name TEXT NOT NULL)"
_INDEXES: Final = (
    "CREATE INDEX data_by_key ON data (collection_id, key)",
    "CREATE INDEX data_retractions ON data (time) WHERE diff < 0",
)
_CREATE_RECORD: Final = "CREATE TABLE record (contents BLOB NOT NULL)"
_CREATE: Final = (f"{_DATA})", *_INDEXES, _COLLECTIONS, _CREATE_RECORD)
_LAYOUT_1: Final = (
    f"{_DATA})",
    *_INDEXES,
    "CREATE INDEX data_by_time ON data (time)",
    _COLLECTIONS,
    "CREATE TABLE sinces (since INTEGER NOT NULL)",
    "CREATE TABLE uppers (upper INTEGER NOT NULL)",
    "CREATE TABLE holds (name TEXT PRIMARY KEY, time INTEGER NOT NULL)",
)
# Some files of layout 1 have a checksum in each row, and a second form of the other values. The checksum of a
# row is NULL if a client without checksums wrote it.
_LAYOUT_1_WITH_CHECKSUMS: Final = (
    f"{_DATA}, checksum INTEGER)",
    *_LAYOUT_1[1:4],
    """CREATE TABLE collections (id INTEGER PRIMARY KEY, name TEXT NOT NULL,
      copy TEXT AS (id || ' ' || name) STORED, CHECK (copy IS id || ' ' || name))""",
    """CREATE TABLE sinces (since INTEGER NOT NULL,
      copy INTEGER AS (~since) STORED, CHECK (copy IS ~since))""",
    """CREATE TABLE uppers (upper INTEGER NOT NULL,
      copy INTEGER AS (~upper) STORED, CHECK (copy IS ~upper))""",
    """CREATE TABLE holds (name TEXT PRIMARY KEY, time INTEGER NOT NULL,
      copy INTEGER AS (~time) STORED, CHECK (copy IS ~time))""",
)
# Some files of layout 1 have this index in place of checksums. The others like it are gone with their tables.
_GONE: Final = (
    "DROP INDEX data_by_time",
    "DROP INDEX IF EXISTS data_copy",
    "DROP TABLE sinces",
    "DROP TABLE uppers",
    "DROP TABLE holds",
    "DROP TABLE collections",
)
TABLES: Final = frozenset({"collections", "data"})
_LISTING: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
_HAS_CHECKSUMS: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE sql = ?)"
_EVERY_ROW: Final = "SELECT collection_id, key, value, diff, time, {} FROM data"
_RECORD: Final = "SELECT contents FROM record"
_FRONTIERS: Final = """SELECT since, upper, (SELECT json_group_object(name, time) FROM holds)
  FROM sinces, uppers"""


class Connection(sqlite3.Connection):
    """A connection to the file of a stash."""

    layout = LAYOUT_VERSION
    """The layout of the file at the last `check_is_stash`."""


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
            for statement in _CREATE:
                connection.execute(statement)
            _insert(connection, StashRecord(0, 0, b"{}", {}, b""))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")
        connection.execute("COMMIT")


def read_record(connection: Connection, path: Path, known: StashRecord | None = None) -> StashRecord:
    """Read the record. Raises `CorruptBlob` unless there is one that is as its checksum.

    Returns `known` if it is the record in the file. A record made from a file of layout 1 has no sums.
    """
    earlier = connection.layout == 1
    rows = connection.execute(_FRONTIERS if earlier else _RECORD).fetchall()
    if known is not None and rows == [(known.contents,)]:
        return known
    try:
        if len(rows) == 1:
            record = _record_of_layout_1(*rows[0]) if earlier else StashRecord.parse(*rows[0])
            if record is not None and min(record.since, record.upper) >= 0:
                return record
    except NONSENSE:
        pass
    raise damaged(path, "no record of its frontiers that is as its checksum")


def _record_of_layout_1(since: int, upper: int, holds: str) -> StashRecord:
    return StashRecord(since, upper, holds.encode(), {}, b"")


def upgrade(connection: Connection, path: Path) -> None:
    """Make a file of layout 1 a file of layout 2. Takes the write lock for about 15 to 40 ms per MB.

    Raises `CorruptBlob` if the file is damaged.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _number(connection, "PRAGMA user_version") == 1:  # otherwise another process was faster
            check_pages(connection, path)
            _upgrade(connection, path)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _upgrade(connection: Connection, path: Path) -> None:
    has_checksums = _has_checksums(connection)
    record = read_record(connection, path)
    sums: defaultdict[int, int] = defaultdict(int)
    commits: defaultdict[int, int] = defaultdict(int)
    for *row, checksum in connection.execute(_EVERY_ROW.format("checksum" if has_checksums else "NULL")):
        try:
            digest = digest_of(*row)
        except NONSENSE:
            raise damaged(path, "a row of data with values of other types") from None
        if checksum not in (None, digest & 0xFFFFFFFF):
            raise damaged(path, "a row of data that is not as its checksum")
        sums[row[0]] += digest
        if row[-1] > record.since:
            commits[row[-1]] += digest
    names = connection.execute("SELECT id, name FROM collections").fetchall()
    for statement in (*_GONE, _COLLECTIONS, _CREATE_RECORD):
        connection.execute(statement)
    if has_checksums:
        connection.execute("ALTER TABLE data DROP COLUMN checksum")
    connection.executemany("INSERT INTO collections VALUES (?, ?)", names)
    _insert(connection, record.after_upgrade(sums, commits))
    connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")


def _insert(connection: Connection, record: StashRecord) -> None:
    connection.execute("INSERT INTO record VALUES (?)", (record.contents,))


def check_is_stash(connection: Connection, path: Path) -> None:
    """Raise like `open_stash` if the file is empty, isn't a stash, or has another version.

    Sets the `layout` of the connection. Call it in the transaction that uses the tables, because another
    process may create or upgrade the stash now.
    """
    application = _number(connection, "PRAGMA application_id")
    version = _number(connection, "PRAGMA user_version")
    tables = [str(name) for (name,) in connection.execute(_LISTING)]
    if application == 0 and not tables:
        raise NoLocation(
            f"there is no stash {path}: the file is empty",
            hint="it is made by the first process that opens it for writing",
        )
    if application == APPLICATION_ID:
        check_layout(version, LAYOUT_VERSION, f"the stash {path}")
        connection.layout = version
        if version == LAYOUT_VERSION:
            check_schema(connection, path, _CREATE)
        else:
            layout_1 = _LAYOUT_1_WITH_CHECKSUMS if _has_checksums(connection) else _LAYOUT_1
            check_schema(connection, path, layout_1)
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


def _has_checksums(connection: Connection) -> bool:
    """Whether the rows of a file of layout 1 have checksums."""
    return bool(_number(connection, _HAS_CHECKSUMS, _LAYOUT_1_WITH_CHECKSUMS[:1]))


def _number(connection: sqlite3.Connection, statement: str, values: tuple[str, ...] = ()) -> int:
    value = connection.execute(statement, values).fetchone()[0]
    return value if isinstance(value, int) else 0
