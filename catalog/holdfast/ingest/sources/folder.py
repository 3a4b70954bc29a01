"""Files in a folder of this host. The identity of a file is its inode, size and time of change.

Put files in whole: write them under a name that `files` ignores, then rename them.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import BadInput, SourceChanged, SourceStalled
from holdfast.ingest.source import Range
from holdfast.ingest.sources.files import Files, FoundFile
from holdfast.ingest.waits import Waits


class Folder(Files):
    """The source. Links to folders are not followed."""

    def __init__(
        self, path: Path, pattern: str, waits: Waits, *, whole: bool, on_changed: str, raw: bool = False
    ) -> None:
        super().__init__(pattern, waits, whole=whole, on_changed=on_changed, raw=raw)
        self._path = path

    @property
    def name(self) -> str:
        """The folder's path, with its links resolved."""
        path = str(self._path.resolve())
        _check_utf8(path)
        return f"file://{path}"

    def _listing(self) -> Iterator[FoundFile]:
        if not self._path.is_dir():
            raise BadInput(
                f"source folder {self._path} doesn't exist or is not a folder",
                hint="correct source.files.path; on Spark, all executors must see the folder",
            )
        for folder, folders, names in os.walk(self._path, onerror=_refuse):
            folders[:] = [each for each in folders if not each.startswith((".", "_"))]
            for each in names:
                path = Path(folder, each)
                name = path.relative_to(self._path).as_posix()
                if not self._is_wanted(name) or not path.is_file():
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


def _refuse(error: OSError) -> None:
    """Don't pass over a folder that can't be read."""
    if not isinstance(error, FileNotFoundError):
        raise _unreadable(error) from error


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
