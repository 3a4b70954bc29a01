"""Blocks of an Avro container file, unpacked within a bound.

A block of a few kilobytes can have gigabytes of records. fastavro unpacks a block as a whole, whatever comes
out of it. So it gets the blocks unpacked already: a file with the codec `null`.
"""

import bz2
import importlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

MOST_BLOCK_BYTES: Final = 128 << 20
"""A block may have so much, unpacked. Writers end a block after some kilobytes or one record."""
_DICTIONARY_BYTES: Final = 256 << 20
_SYNC_BYTES: Final = 16
_CRC_BYTES: Final = 4
_SIZE_BYTES: Final = 4
_MOST_VARINT: Final = 10


class TooLargeBlock(ValueError):
    """A block has too much."""


class CutFileError(Exception):
    """A file ends within a block. fastavro would take an `EOFError` for the end of the file."""


class UnpackedFile:
    """A container file as fastavro reads it: a header, then the blocks of `packed`, unpacked.

    `packed` begins behind the header of the file. `bytes` is how much was unpacked so far.
    """

    def __init__(self, header: bytes, packed: memoryview, codec: str) -> None:
        self.bytes = 0
        self._chunks = self._blocks(packed, _unpacker(codec))
        self._open = io.BytesIO(header)

    def read(self, size: int) -> bytes:
        """The next bytes, as those of a file."""
        found = self._open.read(size)
        while len(found) < size and (chunk := next(self._chunks, None)) is not None:
            self._open = io.BytesIO(chunk)
            found += self._open.read(size - len(found))
        return found

    def _blocks(self, packed: memoryview, unpack: Callable[[memoryview], bytes]) -> Iterator[bytes]:
        at = 0
        while at < len(packed):
            count, at = _varint(packed, at)
            size, at = _varint(packed, at)
            if not 0 <= size <= len(packed) - at - _SYNC_BYTES:
                raise CutFileError
            records = unpack(packed[at : at + size])
            at += size
            self.bytes += len(records)
            yield _as_varint(count) + _as_varint(len(records))
            yield records
            yield bytes(packed[at : at + _SYNC_BYTES])
            at += _SYNC_BYTES


def _unpacker(codec: str) -> Callable[[memoryview], bytes]:
    if (found := _CODECS.get(codec)) is None:
        raise ValueError(f"its codec '{codec[:20]}' is not known")
    return found


def _plain(block: memoryview) -> bytes:
    _check(len(block))
    return bytes(block)


def _deflate(block: memoryview) -> bytes:
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    found = unpacker.decompress(block, MOST_BLOCK_BYTES + 1)
    _check(len(found))
    return found


class _Unpacker(Protocol):
    """What unpacks a stream of `bz2`, `lzma` or `zstd`."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def unused_data(self) -> bytes:
        """What follows the stream."""

    def decompress(self, data: Any, /, max_length: int = -1) -> bytes:
        """The next bytes."""


def _streams(block: memoryview, unpacker: Callable[[], _Unpacker]) -> bytes:
    """The contents of streams, one after another."""
    found, left = [], bytes(block)
    size = 0
    while left:
        stream = unpacker()
        found.append(stream.decompress(left, MOST_BLOCK_BYTES - size + 1))
        size += len(found[-1])
        _check(size)
        if not stream.eof:
            raise CutFileError
        left = stream.unused_data
    return b"".join(found)


def _bzip2(block: memoryview) -> bytes:
    return _streams(block, bz2.BZ2Decompressor)


def _xz(block: memoryview) -> bytes:
    return _streams(block, lambda: lzma.LZMADecompressor(memlimit=_DICTIONARY_BYTES))


def _zstandard(block: memoryview) -> bytes:
    return _streams(block, importlib.import_module("backports.zstd").ZstdDecompressor)


def _snappy(block: memoryview) -> bytes:
    snappy = importlib.import_module("cramjam").snappy
    packed = block[: len(block) - _CRC_BYTES]
    _check(snappy.decompress_raw_len(packed))
    return bytes(snappy.decompress_raw(packed))


def _lz4(block: memoryview) -> bytes:
    _check(int.from_bytes(block[:_SIZE_BYTES], "little"))
    return bytes(importlib.import_module("cramjam").lz4.decompress_block(block))


_CODECS: Final[Mapping[str, Callable[[memoryview], bytes]]] = {
    "null": _plain,
    "deflate": _deflate,
    "bzip2": _bzip2,
    "xz": _xz,
    "zstandard": _zstandard,
    "snappy": _snappy,
    "lz4": _lz4,
}


def _check(size: int) -> None:
    if size > MOST_BLOCK_BYTES:
        raise TooLargeBlock(
            f"a block has more than {MOST_BLOCK_BYTES:,} bytes of records: write the file with smaller blocks"
        )


def _varint(packed: memoryview, at: int) -> tuple[int, int]:
    """A number of Avro, and the position after it."""
    found = 0
    for place in range(_MOST_VARINT):
        if at + place >= len(packed):
            raise CutFileError
        byte = packed[at + place]
        found |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return found >> 1 ^ -(found & 1), at + place + 1
    raise ValueError("a number has too many bytes")


def _as_varint(number: int) -> bytes:
    left, found = number << 1 ^ number >> 63, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])
