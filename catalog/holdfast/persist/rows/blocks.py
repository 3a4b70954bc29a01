"""The checksums of the blocks of a Parquet part, which make a part of its bytes enough to verify.

The footer of a part has the CRC-32C of each block of `BLOCK_BYTES` before it. The shard's state has the size
and the CRC-32C of the footer itself. So a reader that needs a few row groups reads the footer and these.
"""

import base64
import io
from array import array
from typing import Any, Final, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import CorruptBlob

BLOCK_BYTES: Final = 16 * 1024
KEY_BLOCKS: Final = b"holdfast.blocks"
_STORED: Final = "<u4"
_END_BYTES: Final = 8
"""The length of Parquet's own footer, and a mark."""


class Footer(NamedTuple):
    """The size and the checksum of a footer, as the shard's state has them."""

    size: int
    crc32c: int


class BlockSums(io.RawIOBase):
    """A file that collects what is written in memory, and the checksum of each block of it."""

    def __init__(self) -> None:
        self._bytes = pa.BufferOutputStream()
        self._sums = array("I")
        self._crc32c = 0
        self._size = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self._size

    def write(self, data: Any, /) -> int:
        """Add bytes."""
        view = memoryview(data).cast("B")
        start = 0
        while start < len(view):
            piece = view[start : start + BLOCK_BYTES - self._size % BLOCK_BYTES]
            self._crc32c = google_crc32c.extend(self._crc32c, bytes(piece))
            self._size += len(piece)
            start += len(piece)
            if self._size % BLOCK_BYTES == 0:
                self._sums.append(self._crc32c)
                self._crc32c = 0
        self._bytes.write(data)
        return len(view)

    def sums(self) -> bytes:
        """Return the checksums of all blocks so far as the footer has them, also of the last, shorter one."""
        last = [self._crc32c] if self._size % BLOCK_BYTES else []
        return base64.b64encode(np.array([*self._sums, *last], _STORED).tobytes())

    def finish(self) -> memoryview:
        """Return all bytes. Nothing can be added afterwards."""
        return memoryview(self._bytes.getvalue()).toreadonly()


def footer_of(data: bytes | memoryview) -> Footer:
    """Return the size and the checksum of the footer of a Parquet file."""
    size = int.from_bytes(data[-_END_BYTES : -_END_BYTES // 2], "little") + _END_BYTES
    return Footer(size, int(google_crc32c.value(bytes(data[-size:]))))


def checksums(data: bytes) -> "array[int]":
    """Return the checksum of each block of bytes that begin with a block."""
    starts = range(0, len(data), BLOCK_BYTES)
    return array("I", (google_crc32c.value(data[start : start + BLOCK_BYTES]) for start in starts))


def all_blocks(footer: bytes, metadata: pq.FileMetaData, before: int, key: str) -> "array[int]":
    """Return the checksums of all blocks of a part, from its verified footer, which `before` bytes precede.

    Raises `CorruptBlob` if the footer has not exactly the checksums of these bytes.
    """
    try:
        stored = base64.b64decode((metadata.metadata or {}).get(KEY_BLOCKS, b""), validate=True)
        blocks = array("I", np.frombuffer(stored, _STORED).tolist())
    except ValueError:
        blocks = array("I")
    if len(blocks) != -(-before // BLOCK_BYTES):
        raise CorruptBlob(key, f"checksums of {before} bytes", f"{len(blocks)} checksums")
    there = 0
    if before % BLOCK_BYTES:
        # The block that has the end of the rows has the begin of the footer too.
        there = BLOCK_BYTES - before % BLOCK_BYTES
        blocks[-1] = google_crc32c.extend(blocks[-1], footer[:there])
    return blocks + checksums(footer[there:])
