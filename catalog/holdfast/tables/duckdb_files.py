"""Serves the parts of tables to DuckDB as files, so that it decodes Parquet itself, with all of its threads.

- A part is read in this way only if its rows are the contents as they are (`holdfast.persist.parts.whole`),
  and if DuckDB reads every column under the same type as it gets from Arrow.
- DuckDB gets verified bytes only. It passes only the text of an error on, so the error is kept, and raised
  instead.
- A part has the same name in all queries, one after the other, so DuckDB can keep its footer. Queries that
  run at the same time use different names for it: each has its own errors.
- To read, a thread of DuckDB moves the position of a file first. Several threads use one file at a time. So
  each thread has a position of its own. A read is refused if its thread did not move the position before it.
- A file that is served is open. All of them together are about half of the files that the process may open.
  If a query would need more, DuckDB gets batches of Arrow instead.
- Ctrl-C may interrupt any line of the main thread. So a file that nobody serves any more has no name.
"""

import hashlib
import os
import resource
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fsspec import AbstractFileSystem

from holdfast.errors import BadInput
from holdfast.forks import ForkLock
from holdfast.persist.parts.whole import VerifiedFile
from holdfast.tables.duckdb_extra import quoted

if TYPE_CHECKING:
    import duckdb

PROTOCOL: Final = "holdfast"
Reading: TypeAlias = Callable[[], AbstractContextManager[None]]
"""What each read of a file runs in: it checks whether reads are allowed, and keeps the error."""


class PartFiles(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The files that queries read. Thread-safe. Nothing can be written or listed."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self._files: weakref.WeakValueDictionary[str, Served] = weakref.WeakValueDictionary()
        # The names that `serving` gave since `forget_names`, with the size of each footer.
        self._named: dict[str, int] = {}
        self._lock = ForkLock()

    @contextmanager
    def serving(self, files: Sequence[VerifiedFile], reading: Reading) -> Iterator[list[str]]:
        """Yield names under which DuckDB can read the files while the block runs."""
        served = [Served(file, reading) for file in files]
        try:
            paths = self.serve(served)
            with self._lock:
                self._named.update(zip(paths, (file.footer_bytes for file in files), strict=True))
            yield paths
        finally:
            self.end(served)

    def serve(self, served: "Sequence[Served]") -> list[str]:
        """Return names under which DuckDB can read files, until `end` or until they are collected."""
        with self._lock:
            for each in served:
                each.name = self._free_name(each.file)
                self._files[each.name] = each
        return [f"{PROTOCOL}://{each.name}" for each in served]

    @property
    def room(self) -> int:
        """About how many files more may be open. Each one that is served is."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (sys.maxsize if most == resource.RLIM_INFINITY else most // 2) - len(self._files)

    def _free_name(self, file: VerifiedFile) -> str:
        """A name that no file has now. DuckDB knows the footer of a part by its name, if it has read it."""
        part = hashlib.blake2b(f"{_SECRET} {file.identity}".encode(), digest_size=16).hexdigest()
        name = next(name for turn in count() if (name := f"{part}-{turn}") not in self._files)
        return name

    @property
    def named_bytes(self) -> int:
        """About what a database keeps of the footers that `serving` named since `forget_names`."""
        with self._lock:
            return sum(self._named.values())

    def forget_names(self) -> None:
        """Note that DuckDB keeps no footers any more."""
        with self._lock:
            self._named.clear()

    def end(self, served: "Sequence[Served]") -> None:
        """Forget files."""
        for each in served:
            # After an interrupt, it may have no name, or a name that another file got.
            if self._files.get(each.name) is each:
                self._files.pop(each.name, None)

    def open(self, path: str, mode: str = "rb", **_: Any) -> "_Input":
        """Open a file for reading."""
        if mode != "rb":
            raise PermissionError(f"{path} can only be read")
        served = self._served(path)
        # DuckDB may have all that it reads in a cache of its own.
        with served.reading():
            return _Input(served.file, served.reading)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """What DuckDB asks of a file."""
        return {"name": _name(path), "size": self._served(path).file.size, "type": "file"}

    def exists(self, path: str, **_: Any) -> bool:
        """Whether a query may read the file now."""
        return _name(path) in self._files

    def glob(self, path: str, **_: Any) -> list[str]:
        """The name itself: there are no patterns."""
        return [_name(path)] if self.exists(path) else []

    def modified(self, path: str) -> datetime:  # noqa: ARG002
        """Files never change."""
        return datetime(2000, 1, 1, tzinfo=UTC)

    def _served(self, path: str) -> "Served":
        try:
            return self._files[_name(path)]
        except KeyError:
            raise FileNotFoundError(path) from None


class Served:
    """A file that is served, and its name."""

    def __init__(self, file: VerifiedFile, reading: Reading) -> None:
        self.file: Final = file
        self.reading: Final = reading
        self.name = ""


# No query can guess the names.
_SECRET: Final = uuid.uuid4().hex
_lock: Final = ForkLock()
served: Final = PartFiles()
"""The files that queries of this process read, in any database of DuckDB."""


def _name(path: str) -> str:
    return path.removeprefix(f"{PROTOCOL}://")


class _Input:
    """A file as DuckDB reads it."""

    def __init__(self, file: VerifiedFile, reading: Reading) -> None:
        self._file = file
        self._reading = reading
        self._places: dict[int, int] = {}

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._file.size}[whence]
        self._places[threading.get_ident()] = start + offset
        return start + offset

    def tell(self) -> int:
        return self._places.get(threading.get_ident(), 0)

    def read(self, size: int = -1) -> bytes:
        with self._reading():
            place = self._places.pop(threading.get_ident(), None)
            if place is None:
                raise BadInput("sql: a query can't read the files of a table by itself")
            return self._file.read_at(place, self._file.size - place if size < 0 else size)

    def close(self) -> None:
        """Do nothing: the file belongs to the query."""


def serve_to(connection: "duckdb.DuckDBPyConnection") -> None:
    """Let a connection, and all others of its database, read the files that are served."""
    with _lock:
        if not connection.filesystem_is_registered(PROTOCOL):
            connection.register_filesystem(served)


def select_of(paths: Sequence[str], columns: Sequence[tuple[str, str]]) -> str:
    """A query of columns of Parquet files: (name in the files, name)."""
    shown = ", ".join(f"{quoted(stored)} AS {quoted(name)}" for stored, name in columns)
    listed = ", ".join(f"'{path}'" for path in paths)
    options = "filename = false, hive_partitioning = false, union_by_name = false, binary_as_string = false"
    return f"SELECT {shown} FROM read_parquet([{listed}], {options})"  # noqa: S608
