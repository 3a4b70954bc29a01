"""Files in a folder. A file is a partition, and its size is its position.

A time of the collection has all of a file or nothing.

- A file is bound with its identity: inode, size and time of change. A file that changes while it is read is
  read again in the next step. A file that changed after it was bound is not read again: that is an error
  record, or nothing if `on_changed` is "ignore".
- Put files in whole: write them under a name that begins with "." or "_" or ends with ".tmp", then rename
  them. Files with such names are ignored.
- A file that is bound may be deleted.
"""

import codecs
import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadInput, SourceChanged, SourceStalled
from holdfast.ingest.source import MESSAGES, Binding, Piece, Range

MAX_FILE_BYTES: Final = 1 << 30
"""A file must fit into memory, because all its rows get one time."""

CHANGED: Final = "changed/"
"""An identity that begins with this belongs to a file that changed after it was bound, and was not read."""


class Folder:
    """The source. `whole` says that a file is one message, otherwise each of its lines is."""

    def __init__(self, path: Path, pattern: str, *, whole: bool, on_changed: str) -> None:
        self._path = path
        self._pattern = pattern
        self._whole = whole
        self._on_changed = on_changed

    @property
    def name(self) -> str:
        """The folder's path, with its links resolved."""
        return f"file://{self._path.resolve()}"

    def probe(self, bound: Mapping[str, Binding]) -> Sequence[Range]:
        """Return the files that are not bound, by time of change and name."""
        found = []
        for name, path in self._files():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            identity = _identity(status)
            binding = bound.get(name)
            if binding is not None:
                known = binding.identity.removeprefix(CHANGED)
                if known == identity or self._on_changed == "ignore":
                    continue
                changed = Range(name, binding.position, binding.position, CHANGED + identity, whole=True)
                found.append((status.st_mtime_ns, changed))
                continue
            size = status.st_size
            if size > MAX_FILE_BYTES:
                raise BadInput(
                    f"file {path} has {size:,} bytes, more than {MAX_FILE_BYTES:,}",
                    hint="split it into smaller files: all rows of a file become visible at one time",
                )
            found.append((status.st_mtime_ns, Range(name, 0, size, identity, whole=True, size_bytes=size)))
        return [each for _, each in sorted(found, key=lambda one: (one[0], one[1].partition))]

    def _files(self) -> Iterator[tuple[str, Path]]:
        """The files by their paths below the folder. Links to folders are not followed."""
        if not self._path.is_dir():
            raise BadInput(f"source folder {self._path} doesn't exist or is not a folder")
        for folder, folders, names in os.walk(self._path, onerror=_refuse):
            folders[:] = [each for each in folders if not each.startswith((".", "_"))]
            for each in names:
                path = Path(folder, each)
                name = path.relative_to(self._path).as_posix()
                hidden = each.startswith((".", "_")) or each.endswith(".tmp")
                if not hidden and fnmatch.fnmatchcase(name, self._pattern) and path.is_file():
                    yield name, path

    def read(self, wanted: Range) -> Iterator[Piece]:
        """Read a file. Its lines or the whole are messages; nothing for one that has changed."""
        if wanted.identity.startswith(CHANGED):
            return
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
        if not before == after == wanted.identity or len(contents) != wanted.end:
            raise SourceChanged(f"file {path} is being written")
        contents = contents.removeprefix(codecs.BOM_UTF8)
        yield Piece(_whole(contents) if self._whole else _lines(contents), wanted.end)

    def acknowledge(self, bound: Mapping[str, Binding]) -> None:
        """Nobody is told."""

    def close(self) -> None:
        """Nothing is open."""


def _refuse(error: OSError) -> None:
    """Don't pass over a folder that can't be read."""
    if not isinstance(error, FileNotFoundError):
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> SourceStalled:
    return SourceStalled(
        f"can't read {error.filename}: {error.strerror}", hint="let this user read it, or move it away"
    )


def _identity(status: os.stat_result) -> str:
    return f"{status.st_ino}/{status.st_size}/{status.st_mtime_ns}"


def _whole(contents: bytes) -> pa.RecordBatch:
    return _messages(pa.array([0], pa.int64()), pa.array([contents], pa.binary()))


def _lines(contents: bytes) -> pa.RecordBatch:
    """The lines that are not blank, numbered from 1."""
    data = np.frombuffer(contents, np.uint8)
    ends = np.flatnonzero(data == ord("\n")).astype(np.int64)
    if len(contents) and (not len(ends) or ends[-1] != len(contents) - 1):
        ends = np.append(ends, len(contents))
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    # Offsets are where lines start, so each line has its "\n". It is stripped like other white space.
    offsets = pa.array(np.append(starts, len(contents)), pa.int32()).buffers()[1]
    lines = pa.Array.from_buffers(pa.binary(), len(starts), [None, offsets, pa.py_buffer(contents)])
    lines = _stripped(lines)
    numbers = pa.array(np.arange(1, len(starts) + 1), pa.int64())
    filled = pc.greater(pc.binary_length(lines), 0)
    return _messages(numbers.filter(filled), lines.filter(filled))


def _stripped(lines: pa.Array) -> pa.Array:
    """Without white space at both ends, which includes the line's end."""
    try:
        return pc.ascii_trim_whitespace(lines.cast(pa.string())).cast(pa.binary())
    except pa.ArrowInvalid:
        return pa.array([each.as_py().strip() for each in lines], pa.binary())


def _messages(positions: pa.Array, values: pa.Array) -> pa.RecordBatch:
    count = len(positions)
    columns = [positions, pa.nulls(count, pa.int64()), pa.nulls(count, pa.binary()), values]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)
