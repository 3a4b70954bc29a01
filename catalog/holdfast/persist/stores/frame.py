"""The frame around each stored message (docs/reference/FORMAT.md).

A frame has 4 bytes of magic, uint16 format version, uint16 zero, uint32 CRC32C of magic, version, zero and
body, all little-endian, and then the body. A frame with a good checksum and a newer version raises
`VersionTooNew`. Any other unexpected bytes raise `CorruptBlob`, which names the key.
"""

import struct
from typing import Final, TypeVar

import google_crc32c
from google.protobuf.message import DecodeError, Message

from holdfast.errors import CorruptBlob, VersionTooNew
from holdfast.persist.stores.formats import check_format

_M = TypeVar("_M", bound=Message)

MOST_BYTES: Final = 1 << 31
"""More than a frame has: its body is one protobuf message, which has less than 2 GiB."""

_HEADER: Final = struct.Struct("<4sHHI")
_PREFIX: Final = struct.Struct("<4sHH")


def seal(magic: bytes, version: int, body: bytes) -> bytes:
    """Return the frame around `body`."""
    prefix = _PREFIX.pack(magic, version, 0)
    crc = int(google_crc32c.extend(google_crc32c.value(prefix), body))
    return prefix + crc.to_bytes(4, "little") + body


def unseal(magic: bytes, newest: int, data: bytes, key: str) -> bytes:
    """Return the body of a frame whose version is at most `newest`. Errors name it by `key`.

    Raises:
        CorruptBlob: the bytes are not a frame of this kind, or were changed.
        VersionTooNew: the frame is intact and has a newer format.
        Deprecated: the frame is intact and has a format that is no longer supported.
    """
    if len(data) < _HEADER.size:
        raise CorruptBlob(key, f"at least {_HEADER.size} bytes", f"{len(data)}")
    found, version, _, crc = _HEADER.unpack_from(data)
    if found != magic:
        raise CorruptBlob(key, f"magic {magic!r}", repr(found))
    body = data[_HEADER.size :]
    actual = google_crc32c.extend(google_crc32c.value(data[: _PREFIX.size]), body)
    if actual != crc:
        raise CorruptBlob(key, f"crc32c {crc:08x}", f"{actual:08x}")
    check_format(version, newest, where=key, what="format version")
    return body


def parse(message: _M, body: bytes, key: str) -> _M:
    """Parse the body of a frame into `message`, and return it.

    Raises:
        CorruptBlob: the body is not a message of this type.
        VersionTooNew: it has fields that this Holdfast does not know.
    """
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise CorruptBlob(key, f"a {type(message).__name__} message", str(error)) from None
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise VersionTooNew(f"{key} has fields that this Holdfast does not know")
    return message
