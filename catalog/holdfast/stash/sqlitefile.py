"""The file of a stash in SQLite: whether it is one, its tables, and how it is made.

`application_id` and `user_version` show what it is and which layout it has. It is made whole or not at all,
also if another process makes it at the same time.

Each value, count, frontier and time of a hold has a second copy, in an index that no query uses. SQLite
maintains it, also for a client that doesn't know of it, and `integrity_check` compares it with its table: so
a flipped bit in either is found. A file that an earlier client made gets these indexes at its next open for
writing.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast.errors import BadInput, NoLocation, UnusablePath
from holdfast.folders import check_usable, open_error
from holdfast.sqliteguard import check_schema
from holdfast.stash.stash import LAYOUT_VERSION, check_layout

APPLICATION_ID: Final = 0x48465354  # "HFST"

_CREATE: Final = (
    "CREATE TABLE collections (id INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    """CREATE TABLE data (collection_id INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
      time INTEGER NOT NULL, diff INTEGER NOT NULL)""",
    "CREATE INDEX data_by_time ON data (time)",
    "CREATE INDEX data_by_key ON data (collection_id, key)",
    "CREATE INDEX data_retractions ON data (time) WHERE diff < 0",
    "CREATE TABLE sinces (since INTEGER NOT NULL)",
    "INSERT INTO sinces VALUES (0)",
    "CREATE TABLE uppers (upper INTEGER NOT NULL)",
    "INSERT INTO uppers VALUES (0)",
    "CREATE TABLE holds (name TEXT PRIMARY KEY, time INTEGER NOT NULL)",
)
_COPIES: Final = {
    # By time, so that an append writes at the end. The condition always holds, but SQLite doesn't know it,
    # and so no query reads this index in place of a smaller one.
    "data_copy": "CREATE INDEX data_copy ON data (time, diff, value) WHERE length(value) >= 0",
    "sinces_copy": "CREATE INDEX sinces_copy ON sinces (since)",
    "uppers_copy": "CREATE INDEX uppers_copy ON uppers (upper)",
    "holds_copy": "CREATE INDEX holds_copy ON holds (time)",
    "collections_copy": "CREATE INDEX collections_copy ON collections (name)",
}
TABLES: Final = frozenset({"collections", "data", "sinces", "uppers", "holds"})
_LISTING: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
_INDEXES: Final = "SELECT name FROM sqlite_schema WHERE type = 'index'"


def connect(path: Path, mode: str, *, timeout_s: float) -> sqlite3.Connection:
    """A connection in autocommit mode, which waits for other processes for so long."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )


def make_file(path: Path) -> None:
    """Make the tables where the file is empty or missing; whole or not at all, whoever else does."""
    with closing(connect(path, "rwc", timeout_s=0)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute(_LISTING).fetchall() or _number(connection, "PRAGMA application_id"):
            return
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        if not connection.execute(_LISTING).fetchall():  # else another process was faster
            for statement in (*_CREATE, *_COPIES.values()):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")
        connection.execute("COMMIT")


def lacks_copies(connection: sqlite3.Connection) -> bool:
    """Whether an earlier client made the file, and its values have no second copy."""
    return not _COPIES.keys() <= {str(name) for (name,) in connection.execute(_INDEXES)}


def add_copies(connection: sqlite3.Connection) -> None:
    """Make the second copies that are missing. Takes the write lock for about 10 ms per MB."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        there = {str(name) for (name,) in connection.execute(_INDEXES)}
        for name, statement in _COPIES.items():
            if name not in there:
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_is_stash(connection: sqlite3.Connection, path: Path) -> None:
    """Raise what `open_stash` does for a file that is empty, of something else, or of another version."""
    connection.execute("BEGIN")  # its mark and its tables at one instant, whoever makes it meanwhile
    application = _number(connection, "PRAGMA application_id")
    version = _number(connection, "PRAGMA user_version")
    tables = [str(name) for (name,) in connection.execute(_LISTING)]
    if application == APPLICATION_ID and version == LAYOUT_VERSION:
        check_schema(connection, path, _CREATE)
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
    """Whether there is a file; `UnusablePath` for anything else, or one that this process may not use."""
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
