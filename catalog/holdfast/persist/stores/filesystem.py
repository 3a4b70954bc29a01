"""What the file blob asks of the operating system, each call as it is made.

Power may fail between any two of them: what was written is on disk once `flush` or `flush_folder` returned,
and perhaps, or in part, before. Tests put a model that loses power in the place of `FileSystem`.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from holdfast.folders import flush_folder


class Status(NamedTuple):
    """What is known of a file without reading it."""

    is_file: bool
    size_bytes: int
    modified_ms: int


class FileSystem:
    """The real one. All methods raise `OSError` as the system does."""

    def create(self, path: Path) -> int:
        """A new, empty file, open for `write`; its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Append the beginning of `data`; how many bytes."""
        return os.write(descriptor, data)

    def flush(self, descriptor: int) -> None:
        """Make what was written durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Forget the descriptor."""
        os.close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name, in the place of the file that had it."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        path.unlink()

    def make_folder(self, folder: Path) -> None:
        """Make a folder where there is none."""
        folder.mkdir(exist_ok=True)

    def flush_folder(self, folder: Path) -> None:
        """Make the entries of a folder durable."""
        flush_folder(folder)

    def read(self, path: Path, most: int = -1) -> bytes:
        """All bytes of a file, or so many from its start."""
        with path.open("rb") as file:
            return file.read(most)

    def open_input(self, path: Path) -> pa.NativeFile:
        """A file for random access. Not mapped: what was read of a map counts as the process's memory."""
        return pa.OSFile(str(path), "r")

    def status(self, path: Path) -> Status:
        """What is known of a file or folder."""
        found = path.stat()
        return Status(stat.S_ISREG(found.st_mode), found.st_size, found.st_mtime_ns // 1_000_000)

    def scan(self, folder: Path) -> list[tuple[str, bool]]:
        """The names in a folder, each with whether it is a folder, in no order."""
        with os.scandir(folder) as found:
            return [(entry.name, entry.is_dir()) for entry in found]

    def is_readable_folder(self, folder: Path) -> bool:
        """Whether there is a folder that this process can read."""
        return folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
