"""Reads some of a part's bytes, and verifies exactly those that it reads.

The shard's state has one checksum for a whole part. So the first read in a process reads all of it, compares
that checksum, and keeps the checksum of each block. Later reads read the blocks that they need, and compare
each of them with its own checksum. So no unverified byte decides what is read or skipped, at any time, and a
lookup in a part that was read before costs a few blocks.

The checksums of one part take 4 bytes per block. They are kept for the last parts of a shard, as long as its
client is open.
"""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import CorruptBlob, Determinate
from holdfast.persist.parts.part_store import PartGone
from holdfast.persist.rows.groups import GroupBounds, bounds_through
from holdfast.persist.rows.part import UNREADABLE, check_footer, read_error
from holdfast.persist.rows.row_filter import PartBounds
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.machine import Machine, read_twice, retry
from holdfast.persist.state.state import Part
from holdfast.persist.stores.random_input import RandomInput

BLOCK_BYTES: Final = 16 * 1024
_READ_BYTES: Final = 64 * BLOCK_BYTES
_MOST_PARTS: Final = 1024

_lock: Final = threading.Lock()
_kept: "WeakKeyDictionary[Machine, OrderedDict[str, KnownPart]]" = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class KnownPart:
    """What a process remembers of a part that it has verified."""

    part: Part
    blocks: "array[int]"
    metadata: pq.FileMetaData
    bounds: PartBounds
    groups: dict[Schema, list[GroupBounds]]

    def groups_through(self, schema: Schema, own: Schema) -> list[GroupBounds]:
        """The bounds of the row groups as rows of `schema`. The part was written under `own`."""
        if schema not in self.groups:
            self.groups[schema] = bounds_through(schema, own, self.metadata)
        return self.groups[schema]


def known_part(machine: Machine, part: Part) -> KnownPart:
    """Return what is known of a stored part. If this process has not verified it yet, read all of it.

    Raises:
        PartGone: its blob does not exist.
        CorruptBlob: its bytes are damaged.
    """
    known = _known(machine, part)
    if known is None:
        known = read_twice(machine.location, str(part.blob_key), lambda: _verified(machine, part))
        _keep(machine, known)
    return known


@contextmanager
def open_known(machine: Machine, known: KnownPart) -> Iterator[pa.NativeFile]:
    """Open a part for random access. What is read through the file is verified.

    Raises `PartGone` if its blob does not exist any more. Reading raises `CorruptBlob` for damaged bytes.
    """
    with _open(machine, known.part) as file:
        blocks = _BlockFile(file, known.part, known.blocks)
        with pa.PythonFile(blocks, mode="r") as verified:
            yield verified


def forget(machine: Machine, part: Part) -> bool:
    """Verify a part as a whole before its next read. Return whether it was known."""
    machine.location.blob.forget(str(part.blob_key))
    with _lock:
        return _kept.get(machine, OrderedDict()).pop(str(part.blob_key), None) is not None


def _known(machine: Machine, part: Part) -> KnownPart | None:
    with _lock:
        found = _kept.setdefault(machine, OrderedDict())
        known = found.get(str(part.blob_key))
        # Two histories of a shard may differ in what they say of a part.
        if known is None or (known.part.crc32c, known.part.size_bytes) != (part.crc32c, part.size_bytes):
            return None
        found.move_to_end(str(part.blob_key))
        return known


def _keep(machine: Machine, known: KnownPart) -> None:
    with _lock:
        found = _kept.setdefault(machine, OrderedDict())
        found[str(known.part.blob_key)] = known
        while len(found) > _MOST_PARTS:
            found.popitem(last=False)


def _open(machine: Machine, part: Part) -> pa.NativeFile:
    key = str(part.blob_key)

    def attempt() -> pa.NativeFile:
        file = machine.location.blob.open_input(key, part.size_bytes + 1)
        if file is None:
            raise PartGone(key)
        return file

    return retry(attempt, machine.config, machine.clock)


def _verified(machine: Machine, part: Part) -> KnownPart:
    """Read all of a part, and compare it with the state."""
    return retry(lambda: _read_whole(machine, part), machine.config, machine.clock)


def _read_whole(machine: Machine, part: Part) -> KnownPart:
    key, crc32c = str(part.blob_key), 0
    blocks = array("I")
    with _open(machine, part) as file:
        try:
            if (size := file.size()) != part.size_bytes:
                found = f"more than {part.size_bytes} bytes" if size > part.size_bytes else f"{size} bytes"
                raise CorruptBlob(key, f"{part.size_bytes} bytes", found)
            for start in range(0, size, _READ_BYTES):
                data = file.read_at(min(_READ_BYTES, size - start), start)
                crc32c = google_crc32c.extend(crc32c, data)
                blocks.extend(_checksums(data))
        except OSError as error:
            raise Determinate(f"can't read {key}: {error}") from error
        if crc32c != part.crc32c:
            raise CorruptBlob(key, f"crc32c {part.crc32c:08x}", f"{crc32c:08x}")
        own = machine.schema_of(part)
        try:
            with pa.PythonFile(_BlockFile(file, part, blocks), mode="r") as verified:
                metadata = pq.read_metadata(verified)
            check_footer(metadata, own, key=key)
        except UNREADABLE as error:
            raise read_error(error, key) from error
    return KnownPart(part, blocks, metadata, PartBounds(own, metadata), {})


def _checksums(data: bytes) -> list[int]:
    starts = range(0, len(data), BLOCK_BYTES)
    return [google_crc32c.value(data[start : start + BLOCK_BYTES]) for start in starts]


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
        first = self.at // BLOCK_BYTES
        start = first * BLOCK_BYTES
        data = self._file.read_at(min(self.size, -(-end // BLOCK_BYTES) * BLOCK_BYTES) - start, start)
        expected = self._blocks[first : -(-end // BLOCK_BYTES)].tolist()
        if _checksums(data) != expected:
            what = f"the verified bytes from {start} to {start + len(data)}"
            raise CorruptBlob(str(self._part.blob_key), what, "other bytes")
        found: bytes = data[self.at - start : end - start]
        self.at = end
        return found
