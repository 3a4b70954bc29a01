"""Files in a folder of this host. The identity of a file is its inode, size and time of change.

Put files in whole: write them under a name that `files` ignores, then rename them.

A name that leads to no regular file is left out and counted: a broken link, a named pipe, a socket, a device.
A link to a file counts as a file. Links to folders are not followed, so a loop of links has an end.
"""

import errno
import heapq
import os
import stat
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Final

from holdfast.errors import BadInput, SourceChanged, SourceStalled
from holdfast.ingest.source import Range
from holdfast.ingest.sources.files import MOST_LISTED, Files, FoundFile, LeftOut, check_utf8
from holdfast.ingest.waits import Waits
from holdfast.text import one_line

_NOTHING: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""The errors of a path that leads to nothing. The last one is that of a loop of links."""


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
        path = os.path.realpath(self._path)
        check_utf8(path, "the folder")
        return f"file://{path}"

    def _listing(self) -> Iterator[FoundFile]:
        return self._found(each for each in self._names() if self._is_wanted(each))

    def _following(self, last: str, bound: Container[str]) -> Iterator[FoundFile]:
        def names() -> Iterator[str]:
            for name in self._names():
                if name <= last:
                    # What is gone by now is not late.
                    if self._is_late(name, bound) and any(self._found([name])):
                        raise self._late(name, last)
                elif self._is_wanted(name):
                    yield name

        return self._found(heapq.nsmallest(MOST_LISTED, names()))

    def _names(self) -> Iterator[str]:
        """The paths of all files and links to files below the folder. Notes at the end what is left out."""
        left_out = LeftOut()
        folders = [""]
        while folders:
            below = folders.pop()
            try:
                with os.scandir(self._path / below) as entries:
                    for each in entries:
                        name = below + each.name
                        if each.is_dir(follow_symlinks=False):
                            if not each.name.startswith((".", "_")):
                                folders.append(f"{name}/")
                        elif each.is_file(follow_symlinks=False) or self._leads_to_file(each, name, left_out):
                            yield name
            except OSError as error:
                # Don't pass over a folder that can't be read.
                if error.errno not in _NOTHING:
                    raise _unreadable(self._path / below, error) from error
                if not below:
                    raise BadInput(
                        f"source folder {one_line(str(self._path))} doesn't exist or is not a folder",
                        hint="correct source.files.path; on Spark, all executors must see the folder",
                    ) from None
        self._note(left_out)

    def _leads_to_file(self, entry: os.DirEntry[str], name: str, left_out: LeftOut) -> bool:
        """Whether an entry that is neither a file nor a folder is a link to a file."""
        if not self._is_wanted(name):
            return False
        status = _status(Path(entry.path))
        if status is not None and stat.S_ISREG(status.st_mode):
            return True
        if status is not None or entry.is_symlink():
            left_out.add(name, _kind(status))
        return False

    def _found(self, names: Iterable[str]) -> Iterator[FoundFile]:
        """The files with these names. Leaves out what is gone, or is no file any more."""
        for name in names:
            status = _status(self._path / name)
            if status is not None and stat.S_ISREG(status.st_mode):
                check_utf8(name, "file")
                yield FoundFile(name, _identity(status), status.st_size, status.st_mtime_ns)

    def _contents(self, wanted: Range) -> bytes:
        path = self._path / wanted.partition
        try:
            with open(path, "rb", opener=_opened) as file:
                # By now it may be a named pipe, which may have no end.
                if _identity(os.fstat(file.fileno())) == wanted.identity:
                    contents = file.read(wanted.end + 1)
                    if _identity(os.fstat(file.fileno())) == wanted.identity:
                        return contents
        except OSError as error:
            status = _status(path)
            if status is None:
                raise SourceChanged(f"{self._called(wanted.partition)} is gone") from None
            if _identity(status) == wanted.identity:
                raise _unreadable(path, error) from error
        raise SourceChanged(f"{self._called(wanted.partition)} is being written")


def _opened(path: str, flags: int) -> int:
    """Open a file. This doesn't wait for a writer if it is a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _status(path: Path) -> os.stat_result | None:
    """What a path leads to. None: nothing. Raises `SourceStalled` if nobody can know."""
    try:
        return path.stat()
    except OSError as error:
        # The path exists, so the path of the link's target is too long.
        is_long = error.errno == errno.ENAMETOOLONG and os.path.lexists(path)
        if error.errno not in _NOTHING and not is_long:
            raise _unreadable(path, error) from error
        return None


def _kind(status: os.stat_result | None) -> str:
    """What a path that is no file leads to, in words."""
    if status is None:
        return "a broken link"
    kinds = (
        (stat.S_ISDIR, "a link to a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((kind for is_kind, kind in kinds if is_kind(status.st_mode)), "a device")


def _unreadable(path: Path, error: OSError) -> SourceStalled:
    return SourceStalled(
        f"can't read {one_line(str(path))}: {error.strerror}",
        hint="let this user read it, or move it away; the other files wait until then",
    )


def _identity(status: os.stat_result) -> str:
    # Without ctime: that also changes when a file is renamed or gets other rights.
    return f"{status.st_ino}/{status.st_size}/{status.st_mtime_ns}"
