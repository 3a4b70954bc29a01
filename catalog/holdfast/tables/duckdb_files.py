"""Serves the parts of tables to DuckDB as files, so that it decodes Parquet itself, with all of its threads.

- A part is read in this way only if its rows are the contents as they are (`holdfast.persist.parts.whole`),
  and if DuckDB reads every column under the same type as it gets from Arrow.
- DuckDB gets verified bytes only. It passes only the text of an error on, so the error is kept, and raised
  instead.
- A part has the same name in all queries, one after the other, so DuckDB can keep its footer. Queries that
  run at the same time use different names for it: each has its own errors.
- To read, a thread of DuckDB moves the position of a file first. Several threads use one file at a time. So
  each thread has a position of its own. A read is refused if its thread did not move the position before it.
"""

import hashlib
import os
import threading
import uuid
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
        self._files: dict[str, tuple[VerifiedFile, Reading]] = {}
        # The names that `serving` gave since `forget_names`, with the size of each footer.
        self._named: dict[str, int] = {}
        self._lock = ForkLock()

    @contextmanager
    def serving(self, files: Sequence[VerifiedFile], reading: Reading) -> Iterator[list[str]]:
        """Yield names under which DuckDB can read the files while the block runs."""
        paths = self.serve(files, reading)
        with self._lock:
            self._named.update(zip(paths, (file.footer_bytes for file in files), strict=True))
        try:
            yield paths
        finally:
            self.end(paths)

    def serve(self, files: Sequence[VerifiedFile], reading: Reading) -> list[str]:
        """Return names under which DuckDB can read the files until `end` is called."""
        with self._lock:
            names = []
            for file in files:
                names.append(self._free_name(file))
                self._files[names[-1]] = file, reading
        return [f"{PROTOCOL}://{name}" for name in names]

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

    def end(self, paths: Sequence[str]) -> None:
        """Forget the files that have these names."""
        for path in paths:
            del self._files[_name(path)]

    def open(self, path: str, mode: str = "rb", **_: Any) -> "_Input":
        """Open a file for reading."""
        if mode != "rb":
            raise PermissionError(f"{path} can only be read")
        file, reading = self._file(path)
        # DuckDB may have all that it reads in a cache of its own.
        with reading():
            return _Input(file, reading)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """What DuckDB asks of a file."""
        return {"name": _name(path), "size": self._file(path)[0].size, "type": "file"}

    def exists(self, path: str, **_: Any) -> bool:
        """Whether a query may read the file now."""
        return _name(path) in self._files

    def glob(self, path: str, **_: Any) -> list[str]:
        """The name itself: there are no patterns."""
        return [_name(path)] if self.exists(path) else []

    def modified(self, path: str) -> datetime:  # noqa: ARG002
        """Files never change."""
        return datetime(2000, 1, 1, tzinfo=UTC)

    def _file(self, path: str) -> tuple[VerifiedFile, Reading]:
        try:
            return self._files[_name(path)]
        except KeyError:
            raise FileNotFoundError(path) from None


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
