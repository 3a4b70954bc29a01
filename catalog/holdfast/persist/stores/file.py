# ruff: noqa: D102 - the trait documents its methods
"""Objects as files of a local file system: key `a/b` is file `a/b` below one folder.

Invariants:

- A file with the name of a key is complete and durable. `put` writes the bytes to a temporary file, flushes
  it, renames it to the key, and flushes the folder before it returns. A crash leaves at most a file below
  `.tmp`, which no key can name and no listing shows.
- A folder's own entry is durable before `put` reports anything in it. Folders are never removed. Otherwise,
  if another process removed a folder and made it again, power loss could delete it together with a put.
"""

import errno
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from holdfast.errors import (
    BadInput,
    Determinate,
    Indeterminate,
    NoLocation,
    NotWritable,
    StorageError,
    UnusablePath,
)
from holdfast.folders import check_usable, make_folder, open_error, reason
from holdfast.persist.stores.filesystem import FileSystem
from holdfast.persist.stores.traits import Blob, BlobMeta, check_key, check_prefix, is_key

TEMPORARY_FOLDER = ".tmp"
# This is longer than any put takes. An older file was left by a crash.
_ABANDONED_AFTER_S = 24 * 3600


class FileBlob(Blob):
    """The objects below `folder`. With `create`, the folder is made if it is missing.

    Raises `UnusablePath` if the path is not a folder, or this process may not use it. Raises
    `StoreUnreachable` if the folder is missing or fails. With `read_only`, nothing is made or written, and
    writes raise `NotWritable`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        create: bool = True,
        read_only: bool = False,
        files: FileSystem | None = None,
    ) -> None:
        self._folder: Final = Path(folder)
        self._files: Final = files or FileSystem()
        self._temporary: Final = self._folder / TEMPORARY_FOLDER
        self._read_only: Final = read_only
        # Folders whose own entry in the parent folder is known to be durable.
        self._durable: Final[set[str]] = set()
        try:
            if not read_only:
                if create:
                    check_usable(self._folder)
                    make_folder(self._folder)
                self._files.make_folder(self._temporary)
                self._drop_abandoned()
            readable = self._files.is_readable_folder(self._folder)
        except OSError as error:
            verb = "read" if read_only else "write to"
            raise open_error(
                f"can't {verb} blob folder {self._folder}", error, missing_is_bad=create and not read_only
            ) from error
        if not readable and os.path.lexists(self._folder):
            raise UnusablePath(f"blob folder {self._folder} is not a folder that this process can read")
        if not readable:
            raise NoLocation(
                f"blob folder {self._folder} does not exist",
                hint="check the path; the folder is made with the location",
            )

    @property
    def description(self) -> str:
        return f"blob folder {self._folder}"

    def clock_ms(self) -> int | None:
        if self._read_only:
            return None
        probe = self._temporary / uuid.uuid4().hex
        try:
            # The time that the file system gives a file. On a network file system it is the server's time.
            self._files.close(self._files.create(probe))
            try:
                return self._files.status(probe).modified_ms
            finally:
                self._files.unlink(probe)
        except OSError as error:
            raise Determinate(f"can't read the clock of {self.description}: {reason(error)}") from error

    def get(self, key: str) -> bytes | None:
        return self.get_start(key, -1)

    def get_start(self, key: str, most: int) -> bytes | None:
        path = self._path(key)
        try:
            return self._files.read(path, most)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise Determinate(f"can't read {path}: {reason(error)}") from error

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:  # noqa: ARG002 - reads in place
        path = self._path(key)
        try:
            return self._files.open_input(path) if self._files.status(path).is_file else None
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise Determinate(f"can't open {path}: {reason(error)}") from error

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.put_pieces(key, (data,))

    def put_pieces(self, key: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Like `put`, for data that comes in pieces. If `pieces` raises an error, nothing is put."""
        path = self._path(key)
        self._check_writable()
        temporary = self._temporary / uuid.uuid4().hex
        kind: type[StorageError] = Determinate
        try:
            self._write_durably(temporary, pieces)
            self._make_durable_folder(path.parent)
            kind = Indeterminate
            self._files.replace(temporary, path)
            self._files.flush_folder(path.parent)
        except OSError as error:
            if error.errno in _NAME_TAKEN:
                raise BadInput(
                    f"storage key {key!r} is a folder of another key, or lies below one"
                ) from error
            raise _write_error(path, error, kind) from error
        finally:
            # A disk may refuse this too. The error of the put matters more, and the file is deleted later.
            with suppress(OSError):
                self._files.unlink(temporary)

    def delete(self, key: str) -> bool:
        path = self._path(key)
        self._check_writable()
        try:
            self._files.unlink(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return False
        except OSError as error:
            certain = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
            raise _write_error(path, error, Determinate if certain else Indeterminate) from error
        return True

    def list(self, prefix: str) -> Iterator[BlobMeta]:
        base, _, rest = check_prefix(prefix).rpartition("/")
        return self._walk(base + "/" if base else "", rest)

    def _walk(self, base: str, name_prefix: str) -> Iterator[BlobMeta]:
        """Yield the objects in folder `base` ("" or ending in "/") whose first name has this prefix."""
        try:
            entries = [
                (name, is_folder)
                for name, is_folder in self._files.scan(self._folder / base)
                if name.startswith(name_prefix) and not name.startswith(".")
            ]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise Determinate(f"can't list {self._folder / base}: {reason(error)}") from error
        # A folder sorts by its name followed by "/", as it occurs in keys.
        for name, is_folder in sorted((name + "/" * is_folder, is_folder) for name, is_folder in entries):
            if is_folder:
                yield from self._walk(base + name, "")
                continue
            try:
                status = self._files.status(self._folder / base / name)
            except FileNotFoundError:
                continue  # deleted since the folder was read
            except OSError as error:
                raise Determinate(f"can't list {self._folder / base}: {reason(error)}") from error
            if status.is_file and is_key(base + name):
                yield BlobMeta(base + name, status.size_bytes, status.modified_ms)

    def _path(self, key: str) -> Path:
        return self._folder / check_key(key)

    def _check_writable(self) -> None:
        if self._read_only:
            raise NotWritable(f"can't write to {self.description}: it was opened for reading only")

    def _make_durable_folder(self, folder: Path) -> None:
        """Make `folder` and its parents durable. Another process may have made them without flushing them."""
        # As a string: one per shard stays in memory, and a Path is many times as large.
        if str(folder) in self._durable or folder == self._folder:
            return
        self._make_durable_folder(folder.parent)
        self._files.make_folder(folder)
        self._files.flush_folder(folder.parent)
        self._durable.add(str(folder))

    def _write_durably(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        descriptor = self._files.create(path)
        try:
            for piece in pieces:
                data, written = memoryview(piece).cast("B"), 0
                while written < len(data):
                    written += self._files.write(descriptor, data[written:])
            self._files.flush(descriptor)
        finally:
            self._files.close(descriptor)

    def _drop_abandoned(self) -> None:
        oldest_ms = (time.time() - _ABANDONED_AFTER_S) * 1000
        for name, _ in self._files.scan(self._temporary):
            path = self._temporary / name
            try:
                if self._files.status(path).modified_ms < oldest_ms:
                    self._files.unlink(path)
            except FileNotFoundError:
                continue  # another process drops them too


# The errors of a rename, or of making a folder, that mean that another kind of file has the name.
_NAME_TAKEN: Final = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST})


def _write_error(path: Path, error: OSError, kind: type[StorageError]) -> StorageError:
    hint = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return kind(f"can't write {path}: {reason(error)}", hint=hint)
