"""Reads some of a part's bytes, and verifies exactly those that it reads.

The shard's state has a checksum of a part's footer, and the footer has one of each block before it. So the
first read in a process reads the footer, and keeps the checksums. It and later reads read the blocks that
they need, and compare each of them with its own checksum. So no unverified byte decides what is read or
skipped, at any time, and a lookup costs a few blocks. Of a part from an earlier build, the state has only a
checksum of all of it. The first read in a process then reads all of it.

The checksums of one part take 4 bytes per block. They are kept for the last `_MOST_PARTS` parts of a shard,
as long as its client is open. So are footers, and what was derived from them: at most `_FOOTER_BYTES` of a
shard. A footer that is no longer kept is read again, and verified by the checksums of its blocks.

The decoded rows of a part with few rows are kept too, and those of row groups in which rows were looked up:
at most `_ROWS_BYTES` of a part and `_GROUP_BYTES` of a row group, and at most `_ALL_ROWS_BYTES` in the
process, those that were used last. They were verified when they were read, and a stored part never changes.
So to look up a few keys again decodes nothing again.
"""

import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import CorruptBlob, Determinate
from holdfast.forks import ForkLock, fork_count
from holdfast.persist.parts.dictionaries import columns_with_dictionary, decoded, decoded_bytes
from holdfast.persist.parts.part_store import PartGone
from holdfast.persist.rows.blocks import BLOCK_BYTES, all_blocks, checksums
from holdfast.persist.rows.groups import GroupBounds, bounds_through
from holdfast.persist.rows.part import UNREADABLE, check_footer, check_size, read_error
from holdfast.persist.rows.row_filter import PartBounds
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.machine import Machine, read_twice, retry
from holdfast.persist.state.state import Part
from holdfast.persist.stores.random_input import RandomInput

_READ_BYTES: Final = 64 * BLOCK_BYTES
# To read so many bytes that nobody wants takes less time than another request.
_GAP_BYTES: Final = 1024 * 1024
_MOST_PARTS: Final = 1024
_FOOTER_BYTES: Final = 64 * 1024 * 1024
# About what a footer takes in memory, with what is derived from it, for each column of a row group and for
# each row group.
_CHUNK_BYTES: Final = 1024
_GROUP_FOOTER_BYTES: Final = 8 * 1024
_ROWS_BYTES: Final = 1024 * 1024
_GROUP_BYTES: Final = 4 * 1024 * 1024
_ALL_ROWS_BYTES: Final = 64 * 1024 * 1024
_MOST_ROWS: Final = 16 * 1024
# What is counted for a part in addition to its rows, so that the number of parts has a bound.
_LEAST_BYTES: Final = 16 * 1024
_WHOLE: Final = -1

_lock: Final = ForkLock()
_kept: "WeakKeyDictionary[Machine, _KeptParts]" = WeakKeyDictionary()


class _KeptRows:
    """The decoded rows of the parts and row groups that were used last. Thread-safe.

    Those of a known part end with it. A forked child has none: the known parts belong to its parent.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._forks = fork_count()
        self._found: OrderedDict[tuple[int, int], pa.RecordBatch | None] = OrderedDict()
        self._groups: dict[int, tuple[weakref.ref[KnownPart], set[int]]] = {}
        # Parts that have ended. An object can end at any time, also while this thread has the lock.
        self._ended: deque[int] = deque()
        self._bytes = 0

    def get(self, known: "KnownPart", group: int = _WHOLE) -> tuple[bool, pa.RecordBatch | None]:
        """Whether a part or row group is here, and its rows, or None for one whose rows are not kept."""
        place = id(known), group
        with _lock:
            self._drop_ended()
            if place not in self._found:
                return False, None
            self._found.move_to_end(place)
            return True, self._found[place]

    def put(self, known: "KnownPart", rows: pa.RecordBatch | None, group: int = _WHOLE) -> None:
        place = id(known), group
        with _lock:
            self._drop_ended()
            if place in self._found:
                return
            self._found[place] = rows
            part = id(known)
            if part not in self._groups:
                self._groups[part] = weakref.ref(known, lambda _: self._ended.append(part)), set()
            self._groups[part][1].add(group)
            self._bytes += _counted(rows)
            while self._bytes > _ALL_ROWS_BYTES:
                (oldest, group), rows = self._found.popitem(last=False)
                self._bytes -= _counted(rows)
                self._groups[oldest][1].discard(group)

    def _drop_ended(self) -> None:
        if self._forks != fork_count():
            # Perhaps in the middle of `put` in another thread of the parent.
            self._begin()
        while self._ended:
            part = self._ended.popleft()
            for group in self._groups.pop(part)[1]:
                self._bytes -= _counted(self._found.pop((part, group)))


def _counted(rows: pa.RecordBatch | None) -> int:
    return _LEAST_BYTES + (0 if rows is None else int(rows.nbytes))


_rows: Final = _KeptRows()


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class KnownPart:
    """What a process remembers of a part that it has verified."""

    part: Part
    blocks: "array[int]"
    metadata: pq.FileMetaData
    bounds: PartBounds
    groups: dict[Schema, list[GroupBounds]]

    @property
    def footer_bytes(self) -> int:
        """About how many bytes the footer takes, with what is derived from it."""
        group_bytes = _GROUP_FOOTER_BYTES + int(self.metadata.num_columns) * _CHUNK_BYTES
        return int(self.metadata.num_row_groups) * group_bytes

    def groups_through(self, schema: Schema, own: Schema) -> list[GroupBounds]:
        """The bounds of the row groups as rows of `schema`. The part was written under `own`."""
        if schema not in self.groups:
            self.groups[schema] = bounds_through(schema, own, self.metadata)
        return self.groups[schema]


def known_part(machine: Machine, part: Part) -> KnownPart:
    """Return what is known of a stored part. If this process has not verified it yet, read what that needs.

    Raises:
        PartGone: its blob does not exist.
        CorruptBlob: its bytes are damaged.
    """
    with _lock:
        kept = _kept.setdefault(machine, _KeptParts())
        found = kept.get(part)
    if isinstance(found, KnownPart):
        return found
    known = read_twice(machine.location, str(part.blob_key), lambda: _verified(machine, part, found))
    with _lock:
        kept.put(known)
    return known


def is_known(machine: Machine, part: Part) -> bool:
    """Return whether `known_part` reads nothing of a part."""
    with _lock:
        return machine in _kept and isinstance(_kept[machine].get(part), KnownPart)


@contextmanager
def open_known(machine: Machine, known: KnownPart, groups: Sequence[int]) -> Iterator[pa.NativeFile]:
    """Open some row groups of a part for random access. What is read through the file is verified.

    Raises `PartGone` if its blob does not exist any more. Reading raises `CorruptBlob` for damaged bytes.
    """
    with open_shared(machine, known, groups) as opened, opened() as verified:
        yield verified


@contextmanager
def open_shared(
    machine: Machine, known: KnownPart, groups: Sequence[int]
) -> Iterator[Callable[[], pa.NativeFile]]:
    """The same for several threads: each calls what this yields for a file of its own.

    A store that fetches the bytes does so once.
    """
    with open_part_file(machine, known.part, _spans(known, groups)) as file:
        yield lambda: pa.PythonFile(_BlockFile(file, known.part, known.blocks), mode="r")


def small_rows(machine: Machine, known: KnownPart) -> pa.RecordBatch | None:
    """Return all updates of a part with few rows, in its own schema; None if it has more than are kept.

    Raises the errors of `open_known`, and those of Arrow for bytes that are not Parquet.
    """
    is_here, rows = _rows.get(known)
    if is_here:
        return rows
    metadata = known.metadata
    sizes = (metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    if metadata.num_rows > _MOST_ROWS or sum(sizes) > _ROWS_BYTES:
        return None
    own = machine.schema_of(known.part)
    coded = columns_with_dictionary(metadata, own, own.names)
    with (
        open_known(machine, known, range(metadata.num_row_groups)) as file,
        pq.ParquetFile(file, metadata=metadata, read_dictionary=coded, pre_buffer=False) as parquet,
    ):
        batches = parquet.read(use_threads=False).replace_schema_metadata().to_batches()
    # A dictionary may have hidden how large they are.
    is_small = 0 < sum(map(decoded_bytes, batches)) <= _ROWS_BYTES
    rows = pa.concat_batches(list(map(decoded, batches))) if is_small else None
    _rows.put(known, rows)
    return rows


def rows_of_groups(machine: Machine, known: KnownPart, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield all updates of these row groups of a part, in its own schema: one batch for each.

    Raises the errors of `open_known`, and those of Arrow for bytes that are not Parquet.
    """
    with ExitStack() as stack:
        parquet: pq.ParquetFile | None = None
        for group in groups:
            rows = _rows.get(known, group)[1]
            if rows is None:
                if parquet is None:
                    file = stack.enter_context(open_known(machine, known, groups))
                    parquet = stack.enter_context(
                        pq.ParquetFile(file, metadata=known.metadata, pre_buffer=False)
                    )
                table = parquet.read_row_group(group, use_threads=False).replace_schema_metadata()
                batches = table.to_batches()
                rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
                if rows.nbytes <= _GROUP_BYTES:
                    _rows.put(known, rows, group)
            yield rows


class _KeptParts:
    """The parts of a shard that were used last: what is known of them, or only their checksums."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, KnownPart] = OrderedDict()
        self._blocks: OrderedDict[str, tuple[Part, array[int]]] = OrderedDict()

    def get(self, part: Part) -> "KnownPart | array[int] | None":
        """What is known of a part, or only the checksums of its blocks."""
        key = str(part.blob_key)
        if key not in self._blocks:
            return None
        verified, blocks = self._blocks[key]
        # Two histories of a shard may differ in what they say of a part.
        if (verified.crc32c, verified.size_bytes) != (part.crc32c, part.size_bytes):
            return None
        self._blocks.move_to_end(key)
        if key not in self._known:
            return blocks
        self._known.move_to_end(key)
        return self._known[key]

    def put(self, known: "KnownPart") -> None:
        key = str(known.part.blob_key)
        self.drop(key)
        self._blocks[key] = known.part, known.blocks
        self._known[key] = known
        while len(self._blocks) > _MOST_PARTS:
            self.drop(next(iter(self._blocks)))
        size = sum(each.footer_bytes for each in self._known.values())
        while size > _FOOTER_BYTES and len(self._known) > 1:
            size -= self._known.popitem(last=False)[1].footer_bytes

    @property
    def bytes(self) -> int:
        """About how many bytes the footers and checksums take."""
        checksums = sum(blocks.itemsize * len(blocks) for _, blocks in self._blocks.values())
        return checksums + sum(each.footer_bytes for each in self._known.values())

    def drop(self, key: str) -> bool:
        """Forget all of a part. Return whether it was known."""
        self._known.pop(key, None)
        return self._blocks.pop(key, None) is not None


def kept_bytes(machine: Machine) -> int:
    """About how many bytes the footers and checksums take that are kept for a shard."""
    with _lock:
        kept = _kept.get(machine)
        return 0 if kept is None else kept.bytes


def forget(machine: Machine, part: Part) -> bool:
    """Verify a part as a whole before its next read. Return whether it was known."""
    machine.location.blob.forget(str(part.blob_key))
    with _lock:
        return machine in _kept and _kept[machine].drop(str(part.blob_key))


def open_part_file(
    machine: Machine, part: Part, spans: Sequence[tuple[int, int]] | None = None
) -> pa.NativeFile:
    """Open a part for random access, or only some spans of it, without verifying it. Raises `PartGone`."""
    key, size, blob = str(part.blob_key), part.size_bytes, machine.location.blob

    def attempt() -> pa.NativeFile:
        file = blob.open_input(key, size + 1) if spans is None else blob.open_spans(key, size, spans)
        if file is None:
            raise PartGone(key)
        return file

    return retry(attempt, machine.config, machine.clock)


def _spans(known: KnownPart, groups: Sequence[int]) -> Sequence[tuple[int, int]]:
    """Return the blocks of these row groups, which are in ascending order. Spans that are close are one."""
    spans: list[tuple[int, int]] = []
    for group in groups:
        start, end = _extent(known.metadata.row_group(group))
        start -= start % BLOCK_BYTES
        end = min(known.part.size_bytes, end + -end % BLOCK_BYTES)
        if spans and start <= spans[-1][1] + _GAP_BYTES:
            start = spans.pop()[0]
        spans.append((start, end))
    return spans


def _extent(group: pq.RowGroupMetaData) -> tuple[int, int]:
    """Where the bytes of a row group are. Its columns follow each other."""
    first, last = group.column(0), group.column(group.num_columns - 1)
    start = first.dictionary_page_offset if first.has_dictionary_page else first.data_page_offset
    begin = last.dictionary_page_offset if last.has_dictionary_page else last.data_page_offset
    return start, begin + last.total_compressed_size


def _verified(machine: Machine, part: Part, blocks: "array[int] | None") -> KnownPart:
    """Read and verify the footer of a part.

    If the state has no checksum of it, first read and compare all of the part, unless the checksums of its
    blocks are given.
    """

    def attempt() -> KnownPart:
        if part.footer_bytes:
            return _known_by_footer(machine, part)
        with open_part_file(machine, part) as file:
            known_blocks = blocks or _blocks_of(part, file)
            with pa.PythonFile(_BlockFile(file, part, known_blocks), mode="r") as verified:
                return _known_of(machine, part, verified, lambda _: known_blocks)

    return retry(attempt, machine.config, machine.clock)


def _known_by_footer(machine: Machine, part: Part) -> KnownPart:
    key, before = str(part.blob_key), part.size_bytes - part.footer_bytes
    with open_part_file(machine, part, [(before, part.size_bytes)]) as file:
        check_size(file.size(), part.size_bytes, key)
        try:
            footer: bytes = file.read_at(part.footer_bytes, before)
        except OSError as error:
            raise Determinate(f"can't read {key}: {error}") from error
    if (found := google_crc32c.value(footer)) != part.footer_crc32c:
        raise CorruptBlob(key, f"a footer with crc32c {part.footer_crc32c:08x}", f"{found:08x}")
    return _known_of(
        machine, part, pa.BufferReader(footer), lambda metadata: all_blocks(footer, metadata, before, key)
    )


def _blocks_of(part: Part, file: pa.NativeFile) -> "array[int]":
    """Read all of a part, and compare it with the state."""
    key, crc32c = str(part.blob_key), 0
    blocks = array("I")
    try:
        check_size(file.size(), part.size_bytes, key)
        for start in range(0, part.size_bytes, _READ_BYTES):
            data = file.read_at(min(_READ_BYTES, part.size_bytes - start), start)
            crc32c = google_crc32c.extend(crc32c, data)
            blocks.extend(checksums(data))
    except OSError as error:
        raise Determinate(f"can't read {key}: {error}") from error
    if crc32c != part.crc32c:
        raise CorruptBlob(key, f"crc32c {part.crc32c:08x}", f"{crc32c:08x}")
    return blocks


def _known_of(
    machine: Machine,
    part: Part,
    file: pa.NativeFile,
    blocks_of: "Callable[[pq.FileMetaData], array[int]]",
) -> KnownPart:
    """Return what the verified footer at the end of a file says, with the checksums of all blocks."""
    key, own = str(part.blob_key), machine.schema_of(part)
    try:
        metadata = pq.read_metadata(file)
        check_footer(metadata, own, key=key)
    except UNREADABLE as error:
        raise read_error(error, key) from error
    return KnownPart(part, blocks_of(metadata), metadata, PartBounds(own, metadata), {})


def verified_bytes(file: pa.NativeFile, part: Part, blocks: "array[int]", start: int, end: int) -> bytes:
    """Read some bytes of a part, which are there. Raises `CorruptBlob` if one of their blocks is damaged."""
    first, last = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
    begin = first * BLOCK_BYTES
    data: bytes = file.read_at(min(part.size_bytes, last * BLOCK_BYTES) - begin, begin)
    if checksums(data) != blocks[first:last]:
        what = f"the verified bytes from {begin} to {begin + len(data)}"
        raise CorruptBlob(str(part.blob_key), what, "other bytes")
    return data[start - begin : end - begin]


class _BlockFile(RandomInput):
    """A part of a file, in which each block that is read is compared with its checksum."""

    def __init__(self, file: pa.NativeFile, part: Part, blocks: "array[int]") -> None:
        super().__init__(part.size_bytes)
        self._file = file
        self._part = part
        self._blocks = blocks

    def read(self, size: int = -1) -> bytes:
        """Read bytes at the position. Raises `CorruptBlob` if one of their blocks is damaged."""
        end = self.size if size < 0 else min(self.size, self.at + size)
        if end <= self.at:
            return b""
        found = verified_bytes(self._file, self._part, self._blocks, self.at, end)
        self.at = end
        return found
