"""What sources of files have in common. A file is a partition, and its size is its position.

A time of the collection has all of a file or nothing.

- A file is bound with its identity. A file that changes while it is read is read again in the next step. A
  file that changed after it was bound is not read again: that is an error record, or nothing if `on_changed`
  is "ignore".
- Files whose names begin with "." or "_" or end with ".tmp" are not complete yet, and are ignored.
- If files are `lexical`, a later file has a later name. Then only the first files after the last bound one
  are looked at, and they are bound without a gap. A file that appears before the last one was missed: that is
  an error, as far as it is noticed.
- Otherwise all files are listed, so there may not be too many.
- A file that is bound may be deleted. `listed` says which bound files the last probe found.
"""

import codecs
import fnmatch
import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadInput, SourceChanged, SourceStalled
from holdfast.ingest.formats.decoded import stripped
from holdfast.ingest.source import MESSAGES, Binding, Piece, Range
from holdfast.ingest.waits import Waits
from holdfast.text import one_line

MAX_FILE_BYTES: Final = 1 << 30
"""A file must fit into memory, because all its rows get one time."""

MOST_LISTED: Final = 10_000
"""So many files are listed in all. If they are lexical, so many new ones are looked at in a step."""

CHANGED: Final = "changed/"
"""An identity that begins with this belongs to a file that changed after it was bound, and was not read."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a listing. `name` is its path below the folder. `modified` orders files."""

    name: str
    identity: str
    size_bytes: int
    modified: int


class LeftOut:
    """What a listing leaves out because it is no file: how much that is, and the first name."""

    def __init__(self) -> None:
        self.count = 0
        self.first: tuple[str, str] = ("", "")

    def add(self, name: str, kind: str) -> None:
        """Add a name, and in words what it leads to."""
        self.first = min(self.first, (name, kind)) if self.count else (name, kind)
        self.count += 1


class Files(ABC):
    """The source. `whole` says that a file is one message, otherwise each of its lines is.

    A line that is not `raw` has no white space at its ends, and a blank one is no message.
    """

    def __init__(
        self,
        pattern: str,
        waits: Waits,
        *,
        whole: bool,
        on_changed: str,
        raw: bool = False,
        lexical: bool = False,
    ) -> None:
        self._waits = waits
        self._pattern = pattern
        self._whole = whole
        self._raw = raw
        self._on_changed = on_changed
        self._lexical = lexical
        self.listed: Collection[str] = ()
        self.passed = ""
        """Of the files that are forgotten because later ones were bound, the last one."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the remap calls the folder."""

    @abstractmethod
    def _listing(self) -> Iterator[FoundFile]:
        """Return the files that `_is_wanted`. The order does not matter."""

    @abstractmethod
    def _following(self, last: str, bound: Container[str]) -> Iterator[FoundFile]:
        """Return the first `MOST_LISTED` files or more after the last one, in the order of their names.

        Raises `_late` for those before it that it finds after `passed` and that were not read.
        """

    @abstractmethod
    def _contents(self, wanted: Range) -> bytes:
        """Return the bytes of a file. Raises `SourceChanged` if it has another identity now, or is gone."""

    def probe(self, bound: Mapping[str, Binding]) -> Sequence[Range]:
        """Return the files that are not bound, by time of change and name, or by name if they are lexical."""
        if self._lexical:
            return self._next(bound)
        if self.passed:
            raise SourceStalled(
                f"files in {one_line(self.name)} were read with order Lexical, and those up to"
                f" {one_line(self.passed)} are forgotten: without that order they would be read again",
                hint="set order: Lexical in source.files again",
            )
        new: list[tuple[int, Range]] = []
        listed = set()
        for count, file in enumerate(self._listing()):
            if count >= MOST_LISTED:
                raise SourceStalled(
                    f"{one_line(self.name)} has more than {MOST_LISTED:,} files that match pattern"
                    f" '{one_line(self._pattern)}'",
                    hint="move away what was read; or set order: Lexical in source.files, if each new file"
                    " has a later name than all before it",
                )
            binding = bound.get(file.name)
            if binding is not None:
                listed.add(file.name)
                known = binding.identity.removeprefix(CHANGED)
                if known == file.identity or self._on_changed == "ignore":
                    continue
                at = binding.position
                new.append((file.modified, Range(file.name, at, at, CHANGED + file.identity, whole=True)))
                continue
            new.append((file.modified, self._range(file)))
        self.listed = listed
        self._show(new or bound)
        return [each for _, each in sorted(new, key=lambda one: (one[0], one[1].partition))]

    def _next(self, bound: Mapping[str, Binding]) -> Sequence[Range]:
        """The first files after the last one that is bound."""
        last = max(bound, default="")
        files = list(itertools.islice(self._following(last, bound), MOST_LISTED))
        if files:
            # A listing may have a file, and not an earlier one that was put in after that part was listed.
            # The next listing has both.
            again = itertools.islice(self._following(last, bound), MOST_LISTED)
            files = [each for each in again if each.name <= files[-1].name]
        found = [self._range(each) for each in files]
        self.listed = [last] if bound else []
        self._show(found or bound)
        return found

    def _range(self, file: FoundFile) -> Range:
        size = file.size_bytes
        if size > MAX_FILE_BYTES:
            raise BadInput(
                f"{self._called(file.name)} has {size:,} bytes, more than {MAX_FILE_BYTES:,}",
                hint="split it into smaller files: all rows of a file become visible at one time",
            )
        return Range(file.name, 0, size, file.identity, whole=True, size_bytes=size)

    def _show(self, known: Collection[object]) -> None:
        if not known:
            self._waits.show(
                f"no file in {one_line(self.name)} matches pattern '{one_line(self._pattern)}' yet"
            )

    def _is_late(self, name: str, bound: Container[str]) -> bool:
        """Whether a name before the last one is that of a file that was not read, if there is one."""
        return name > self.passed and name not in bound and self._is_wanted(name)

    def _late(self, name: str, last: str) -> SourceStalled:
        """The error for a file before the last one that was not read."""
        return SourceStalled(
            f"{self._called(name)} was not read, and its name comes before {one_line(last)}, which was read:"
            " with order Lexical, each new file needs a later name than all before it",
            hint="give it a later name, or move it away",
        )

    def _called(self, name: str) -> str:
        """How messages call a file."""
        return f"file {one_line(name)} in {one_line(self.name)}"

    def _note(self, left_out: LeftOut) -> None:
        """Show once what a listing leaves out."""
        if left_out.count:
            name, kind = left_out.first
            more = f" and {left_out.count - 1:,} more" if left_out.count > 1 else ""
            self._waits.note(f"left out in {one_line(self.name)}: {one_line(name)} ({kind}){more}")

    def _is_wanted(self, name: str) -> bool:
        *folders, last = name.split("/")
        hidden = any(each.startswith((".", "_")) for each in (*folders, last)) or last.endswith(".tmp")
        return not hidden and fnmatch.fnmatchcase(name, self._pattern)

    def read(self, wanted: Range) -> Iterator[Piece]:
        """Read a file. Its lines or the whole are messages; nothing for one that has changed."""
        if wanted.identity.startswith(CHANGED):
            return
        contents = self._contents(wanted)
        if len(contents) != wanted.end:
            raise SourceChanged(f"{self._called(wanted.partition)} is being written")
        contents = contents.removeprefix(codecs.BOM_UTF8)
        if self._whole:
            yield Piece(_whole(contents), wanted.end)
        elif self._raw:
            # Bindings are the same for each format of lines, so that one can follow the other.
            yield Piece(_raw_lines(contents), wanted.end, counted=_lines(contents))
        else:
            yield Piece(_lines(contents), wanted.end)

    def acknowledge(self, bound: Mapping[str, Binding]) -> None:  # noqa: B027 - nobody is told
        """Nobody is told."""

    def forget(self) -> None:  # noqa: B027 - nothing is kept
        """Nothing is kept."""

    def close(self) -> None:  # noqa: B027 - nothing is open
        """Nothing is open."""


def _whole(contents: bytes) -> pa.RecordBatch:
    return _messages(pa.array([0], pa.int64()), pa.array([contents], pa.binary()))


def _lines(contents: bytes) -> pa.RecordBatch:
    """The lines that are not blank, numbered from 1."""
    starts, _ = _bounds(contents)
    # Offsets are where lines start, so each line has its "\n". It is stripped like other white space.
    offsets = pa.array(np.append(starts, len(contents)), pa.int32()).buffers()[1]
    lines = pa.Array.from_buffers(pa.binary(), len(starts), [None, offsets, pa.py_buffer(contents)])
    lines = stripped(lines)
    numbers = pa.array(np.arange(1, len(starts) + 1), pa.int64())
    filled = pc.greater(pc.binary_length(lines), 0)
    return _messages(numbers.filter(filled), lines.filter(filled))


def _raw_lines(contents: bytes) -> pa.RecordBatch:
    """All lines without their ends (LF or CR LF), numbered from 1."""
    data = np.frombuffer(contents, np.uint8)
    starts, ends = _bounds(contents)
    kept = np.ones(len(data), bool)
    kept[ends[ends < len(data)]] = False
    # A CR at the end of the file is no part of an end.
    before = ends[(ends > starts) & (ends < len(data))] - 1
    kept[before[data[before] == ord("\r")]] = False
    sums = np.concatenate([[0], np.cumsum(kept)])
    offsets = pa.array(sums[np.append(starts, len(data))], pa.int32()).buffers()[1]
    lines = pa.Array.from_buffers(pa.binary(), len(starts), [None, offsets, pa.py_buffer(data[kept])])
    return _messages(pa.array(np.arange(1, len(starts) + 1), pa.int64()), lines)


def _bounds(contents: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Where each line starts, and where its LF is or the file ends."""
    ends = np.flatnonzero(np.frombuffer(contents, np.uint8) == ord("\n")).astype(np.int64)
    if len(contents) and (not len(ends) or ends[-1] != len(contents) - 1):
        ends = np.append(ends, len(contents))
    return np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends, ends


def _messages(positions: pa.Array, values: pa.Array) -> pa.RecordBatch:
    count = len(positions)
    columns = [positions, pa.nulls(count, pa.int64()), pa.nulls(count, pa.binary()), values]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def check_utf8(path: str, what: str) -> None:
    """Raise `SourceStalled` for a path that no binding can have. To pass over it would lose it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise SourceStalled(
            f"the name of {what} {one_line(path)} is not text in UTF-8, so it can't be bound",
            hint="rename it, or move it away; the other files wait until then",
        ) from None
