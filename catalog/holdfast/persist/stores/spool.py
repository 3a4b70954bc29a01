"""Opens the bytes of an object for random access. Large objects are put in a temporary file."""

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import pyarrow as pa

IN_MEMORY_BYTES: Final = 1024 * 1024
"""A larger object is in a temporary file while it is open, because a merge may have many objects open."""


def opened(data: bytes) -> pa.NativeFile:
    """Open the bytes as a temporary file without a name, or in memory if they are small or that fails."""
    if len(data) > IN_MEMORY_BYTES:
        with suppress(OSError):
            return _in_file(data)
    return pa.BufferReader(data)


def opened_spans(size: int, spans: Mapping[int, bytes]) -> pa.NativeFile:
    """Open a temporary file of `size` bytes with these bytes at these places, and zeros elsewhere.

    Raises `OSError` if that fails.
    """
    with tempfile.NamedTemporaryFile(prefix="holdfast-") as file:
        file.truncate(size)
        for start, data in spans.items():
            file.seek(start)
            file.write(data)
        file.flush()
        return pa.OSFile(file.name)


def _in_file(data: bytes) -> pa.NativeFile:
    with tempfile.NamedTemporaryFile(prefix="holdfast-") as file:
        file.write(data)
        file.flush()
        return pa.OSFile(file.name)
