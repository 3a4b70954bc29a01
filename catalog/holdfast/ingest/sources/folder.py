"""Files in a folder of this host. The identity of a file is its inode, size and time of change.

Put files in whole: write them under a name that `files` ignores, then rename them.
"""

import heapq
import os
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from holdfast.errors import BadInput, SourceChanged, SourceStalled
from holdfast.ingest.source import Range
from holdfast.ingest.sources.files import MOST_LISTED, Files, FoundFile
from holdfast.ingest.waits import Waits


class Folder(Files):
    """The source. Links to folders are not followed."""

    def __init__(
        self,
        path: Path,
        pattern: str,
        waits: Waits,
        *,
        whole: bool,
        on_changed: str,
        raw: bool = False,
        lexical: bool = False,
    ) -> None:
        super().__init__(pattern, waits, whole=whole, on_changed=on_changed, raw=raw, lexical=lexical)
        self._path = path

    @property
    def name(self) -> str:
        """The folder's path, with its links resolved."""
        path = str(self._path.resolve())
        _check_utf8(path)
        return f"file://{path}"

    def _listing(self) -> Iterator[FoundFile]:
        return self._found(each for each in self._names() if self._is_wanted(each))

    def _following(self, last: str, bound: Container[str]) -> Iterator[FoundFile]:
        def names() -> Iterator[str]:
            for name in self._names():
                if name <= last:
                    self._check_not_late(name, last, bound)
                elif self._is_wanted(name):
                    yield name

        return self._found(heapq.nsmallest(MOST_LISTED, names()))

    def _names(self) -> Iterator[str]:
        """The paths of all files and links below the folder."""
        if not self._path.is_dir():
            raise BadInput(
                f"source folder {self._path} doesn't exist or is not a folder",
                hint="correct source.files.path; on Spark, all executors must see the folder",
            )
        folders = [""]
        while folders:
            below = folders.pop()
            try:
                with os.scandir(self._path / below) as entries:
                    for each in entries:
                        if not each.is_dir():
                            yield below + each.name
                        elif not each.is_symlink() and not each.name.startswith((".", "_")):
                            folders.append(f"{below}{each.name}/")
            except FileNotFoundError:
                continue
            except OSError as error:
                # Don't pass over a folder that can't be read.
                raise _unreadable(error) from error

    def _found(self, names: Iterable[str]) -> Iterator[FoundFile]:
        """The files with these names. Leaves out what is no file, or is gone."""
        for name in names:
            path = self._path / name
            if not path.is_file():
                continue
            _check_utf8(name)
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            yield FoundFile(name, _identity(status), status.st_size, status.st_mtime_ns)

    def _contents(self, wanted: Range) -> bytes:
        path = self._path / wanted.partition
        try:
            with path.open("rb") as file:
                before = _identity(os.fstat(file.fileno()))
                contents = file.read(wanted.end + 1)
                after = _identity(os.fstat(file.fileno()))
        except FileNotFoundError:
            raise SourceChanged(f"file {path} is gone") from None
        except OSError as error:
            raise _unreadable(error) from error
        if not before == after == wanted.identity:
            raise SourceChanged(f"file {path} is being written")
        return contents


def _check_utf8(path: str) -> None:
    """Raise `SourceStalled` for a name that no binding can have. To pass over the file would lose it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise SourceStalled(
            f"the name of file {shown} is not text in UTF-8, so it can't be bound",
            hint="rename it, or move it away; the other files wait until then",
        ) from None


def _unreadable(error: OSError) -> SourceStalled:
    return SourceStalled(
        f"can't read {error.filename}: {error.strerror}", hint="let this user read it, or move it away"
    )


def _identity(status: os.stat_result) -> str:
    return f"{status.st_ino}/{status.st_size}/{status.st_mtime_ns}"
