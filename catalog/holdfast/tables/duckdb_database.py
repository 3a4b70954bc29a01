"""The database of DuckDB in which all queries of a process run.

- To open a database takes DuckDB 25 ms of CPU time, and to open a connection of it less than 1 ms. So the
  queries share a database. Each of their connections sees only what it made itself: all of that is temporary.
- It keeps the decoded footers of parts that queries read, about `_FOOTER_BYTES`: see `duckdb_files`.
- A forked child opens a database of its own. It never closes the one of its parent: DuckDB would wait for
  threads that the child doesn't have.
"""

import ctypes
import os
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.extras import needs
from holdfast.forks import ForkLock

if TYPE_CHECKING:
    import duckdb

    from holdfast.tables.duckdb_files import PartFiles


_FOOTER_BYTES: Final = 64 * 1024 * 1024
"""The database is replaced by another one when it may keep more of the footers of parts."""
_lock = ForkLock()
_shared: "duckdb.DuckDBPyConnection | None" = None


def connection(*, own_database: bool = False) -> "duckdb.DuckDBPyConnection":
    """A connection for a query. With `own_database`, the query may make tables."""
    return _opened() if own_database else _database().cursor()


def part_files() -> "PartFiles":
    """The files of parts that connections of the shared database can read."""
    from holdfast.tables.duckdb_files import served

    return served


def _database() -> "duckdb.DuckDBPyConnection":
    global _shared
    with needs("sql", "holdfast.sql"):
        from holdfast.tables.duckdb_files import serve_to, served
    with _lock:
        if _shared is None or served.named_bytes > _FOOTER_BYTES:
            opened = _opened()
            serve_to(opened)
            # What is read again is in the page cache. Footers take long to decode.
            opened.execute("SET enable_external_file_cache = false; SET parquet_metadata_cache = true")
            served.forget_names()
            _shared = opened
        return _shared


def _opened() -> "duckdb.DuckDBPyConnection":
    import duckdb

    spill = Path(tempfile.gettempdir()) / f"holdfast-sql-{uuid.uuid4().hex}"
    opened = duckdb.connect(config={"python_enable_replacements": False, "temp_directory": str(spill)})
    opened.execute("SET GLOBAL TimeZone = 'UTC'")
    return opened


def _after_fork_in_child() -> None:
    global _shared
    if _shared is not None:
        # Nobody gives this reference back, so nothing closes the database.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_shared))
        _shared = None


os.register_at_fork(after_in_child=_after_fork_in_child)
