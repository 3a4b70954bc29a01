"""The checksums of the blocks of a Parquet part, which make a part of its bytes enough to verify.

The footer of a part has the CRC-32C of each block of `BLOCK_BYTES` before it. The shard's state has the size
and the CRC-32C of the footer itself. So a reader that needs a few row groups reads the footer and these.
"""

import base64
from array import array
from typing import Final, NamedTuple

import google_crc32c
import numpy as np
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


def no_sums(before: int) -> bytes:
    """Return what stands for the checksums in a footer until `put_sums`. It is as long as they are."""
    return base64.b64encode(bytes(np.dtype(_STORED).itemsize * _count(before)))


def put_sums(data: memoryview, before: int) -> None:
    """Put the checksums of the first `before` bytes of a finished file in the place of `no_sums`.

    Nobody can read what a writer of Parquet has written before it is finished. `KEY_BLOCKS` must be the last
    key of the footer.
    """
    footer = bytes(data[before:])
    blank = no_sums(before)
    start = before + footer.index(blank, footer.rindex(KEY_BLOCKS) + len(KEY_BLOCKS))
    sums = np.array(checksums(data[:before]), _STORED)
    data[start : start + len(blank)] = base64.b64encode(sums.tobytes())


def footer_of(data: bytes | memoryview) -> Footer:
    """Return the size and the checksum of the footer of a Parquet file."""
    size = int.from_bytes(data[-_END_BYTES : -_END_BYTES // 2], "little") + _END_BYTES
    return Footer(size, int(google_crc32c.value(bytes(data[-size:]))))


def checksums(data: bytes | memoryview) -> "array[int]":
    """Return the checksum of each block of bytes that begin with a block."""
    starts = range(0, len(data), BLOCK_BYTES)
    return array("I", (google_crc32c.value(bytes(data[start : start + BLOCK_BYTES])) for start in starts))


def all_blocks(footer: bytes, metadata: pq.FileMetaData, before: int, key: str) -> "array[int]":
    """Return the checksums of all blocks of a part, from its verified footer, which `before` bytes precede.

    Raises `CorruptBlob` if the footer has not exactly the checksums of these bytes.
    """
    try:
        stored = base64.b64decode((metadata.metadata or {}).get(KEY_BLOCKS, b""), validate=True)
        blocks = array("I", np.frombuffer(stored, _STORED).tolist())
    except ValueError:
        blocks = array("I")
    if len(blocks) != _count(before):
        raise CorruptBlob(key, f"checksums of {before} bytes", f"{len(blocks)} checksums")
    there = 0
    if before % BLOCK_BYTES:
        # The block that has the end of the rows has the begin of the footer too.
        there = BLOCK_BYTES - before % BLOCK_BYTES
        blocks[-1] = google_crc32c.extend(blocks[-1], footer[:there])
    return blocks + checksums(footer[there:])


def _count(size: int) -> int:
    return -(-size // BLOCK_BYTES)
