# ruff: noqa: D102 - the base class documents its methods
"""Where snapshots are stored: folders of a file system, and prefixes of an S3 bucket. Needs no Spark.

- A folder is a value that you can send to another process. Each call opens what it needs and closes it.
- A file appears complete and durable under its name, or not at all.
- `str` of a folder is its name as `folder_at` takes it, and contains no secret.
"""

import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

from holdfast.errors import BadInput, StorageError
from holdfast.folders import flush_folder, make_folder

_MOST_READ: Final = 64 << 20


class OpenFile(NamedTuple):
    """A file for random access, and its size in bytes."""

    file: IO[bytes]
    size: int


class SnapshotFolder(ABC):
    """A folder. Its methods raise `StorageError` if a store fails, and `OSError` if a file system does."""

    @abstractmethod
    def below(self, name: str) -> Self:
        """The folder or file with this name in it."""

    @abstractmethod
    def claim(self) -> bool:
        """Create it, durably. Returns False if another process already did."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Create a file durably, unless there is one. Returns whether this call created it."""

    @abstractmethod
    def folders(self) -> list[str]:
        """The names of the folders in it."""

    def read(self, name: str) -> bytes | None:
        """All bytes of a file, or None if there is none. Raises `BadInput` for a file of more than 64 MiB."""
        try:
            with self.open(name) as (file, size):
                if size > _MOST_READ:
                    raise BadInput(
                        f"{self.below(name)} has {size:,} bytes, but at most {_MOST_READ:,} can be read"
                        " at once",
                        hint="check that the folder is a snapshot of Holdfast",
                    )
                return file.read(size)
        except FileNotFoundError:
            return None

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[OpenFile]:
        """Open a file for the block. Raises `FileNotFoundError`."""

    @abstractmethod
    def writing(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a new file for the block.

        It appears at the end of the block, or not at all if the block raises.
        """

    @abstractmethod
    def keep_only(self, names: Collection[str]) -> None:
        """Remove all other files in it, including unfinished ones."""

    @abstractmethod
    def remove(self) -> None:
        """Remove it with its contents. Does nothing if it doesn't exist."""

    def discard(self) -> None:
        """Remove it with its contents, as far as possible. Errors are ignored."""
        with suppress(OSError, StorageError):
            self.remove()


@dataclass(frozen=True, slots=True)
class LocalFolder(SnapshotFolder):
    """A folder of a file system."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def below(self, name: str) -> Self:
        return type(self)(self.path / name)

    def claim(self) -> bool:
        make_folder(self.path.parent)
        try:
            self.path.mkdir()
        except FileExistsError:
            return False
        # An attempt that was killed may have created the folder above without flushing it.
        for parent in self.path.parents[:2]:
            flush_folder(parent)
        return True

    def create(self, name: str, data: bytes) -> bool:
        unfinished = self.path / f"_{name}.{uuid.uuid4().hex}"
        try:
            with unfinished.open("wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            try:
                # Unlike a rename, a link never replaces a file.
                (self.path / name).hardlink_to(unfinished)
            except FileExistsError:
                return False
        finally:
            unfinished.unlink(missing_ok=True)
        flush_folder(self.path)
        return True

    def folders(self) -> list[str]:
        return [each.name for each in self.path.iterdir() if each.is_dir()]

    @contextmanager
    def open(self, name: str) -> Iterator[OpenFile]:
        with (self.path / name).open("rb") as file:
            yield OpenFile(file, os.fstat(file.fileno()).st_size)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        # Spark and other readers of a folder skip names that begin with an underscore.
        unfinished = self.path / f"_{name}"
        try:
            with unfinished.open("wb") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            unfinished.rename(self.path / name)
        finally:
            unfinished.unlink(missing_ok=True)
        flush_folder(self.path)

    def keep_only(self, names: Collection[str]) -> None:
        for each in self.path.iterdir():
            if each.name not in names:
                each.unlink(missing_ok=True)

    def remove(self) -> None:
        while self.path.exists():
            # Another process may remove the same folder.
            with suppress(FileNotFoundError):
                shutil.rmtree(self.path)

    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
