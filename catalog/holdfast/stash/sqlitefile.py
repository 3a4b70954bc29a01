"""The file of a stash in SQLite: whether it is one, its tables, and how it is made.

`application_id` and `user_version` tell what it is and which layout it has. It is made whole or not at all,
whoever else makes it at the same time.
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
TABLES: Final = frozenset({"collections", "data", "sinces", "uppers", "holds"})
_LISTING: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"


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
            for statement in _CREATE:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")
        connection.execute("COMMIT")


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
