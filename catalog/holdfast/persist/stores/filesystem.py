"""The calls of the file blob to the operating system, one method each.

Power may fail between any two calls. Written data is certainly on disk once `flush` or `flush_folder` has
returned. Before that, all of it, a part or nothing may be on disk. Tests replace `FileSystem` by a model that
loses power.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from holdfast.folders import flush_folder


class Status(NamedTuple):
    """The properties of a file that are known without reading it."""

    is_file: bool
    size_bytes: int
    modified_ms: int


class FileSystem:
    """The real file system. All methods raise `OSError` as the system does."""

    def create(self, path: Path) -> int:
        """Make a new, empty file and open it for `write`. Return its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Append the beginning of `data`. Return how many bytes were written."""
        return os.write(descriptor, data)

    def flush(self, descriptor: int) -> None:
        """Make written data durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        os.close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, and replace any file with the new name."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove the name of a file."""
        path.unlink()

    def make_folder(self, folder: Path) -> None:
        """Make a folder if it does not exist."""
        folder.mkdir(exist_ok=True)

    def flush_folder(self, folder: Path) -> None:
        """Make the entries of a folder durable."""
        flush_folder(folder)

    def read(self, path: Path, most: int = -1) -> bytes:
        """Read all bytes of a file, or this many from its start."""
        with path.open("rb") as file:
            # A read allocates all that it asks for.
            return file.read(min(most, os.fstat(file.fileno()).st_size))

    def open_input(self, path: Path) -> pa.NativeFile:
        """Open a file for random access. It is not mapped, because mapped pages count as process memory."""
        return pa.OSFile(str(path), "r")

    def status(self, path: Path) -> Status:
        """Return the properties of a file or folder."""
        found = path.stat()
        return Status(stat.S_ISREG(found.st_mode), found.st_size, found.st_mtime_ns // 1_000_000)

    def scan(self, folder: Path) -> list[tuple[str, bool]]:
        """Return the names in a folder, in no order, and whether each is a folder."""
        with os.scandir(folder) as found:
            return [(entry.name, entry.is_dir()) for entry in found]

    def is_readable_folder(self, folder: Path) -> bool:
        """Whether there is a folder that this process can read."""
        return folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
