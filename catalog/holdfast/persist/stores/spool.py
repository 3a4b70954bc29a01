"""Objects that are open for random access, outside of memory where they are large."""

import tempfile
from contextlib import suppress
from typing import Final

import pyarrow as pa

IN_MEMORY_BYTES: Final = 1024 * 1024
"""A larger object is in a temporary file while it is open: who merges many has many open."""


def opened(data: bytes) -> pa.NativeFile:
    """The bytes as an open file: in a temporary file without a name, or in memory where that can't be."""
    if len(data) > IN_MEMORY_BYTES:
        with suppress(OSError):
            return _in_file(data)
    return pa.BufferReader(data)


def _in_file(data: bytes) -> pa.NativeFile:
    with tempfile.NamedTemporaryFile(prefix="holdfast-") as file:
        file.write(data)
        file.flush()
        return pa.OSFile(file.name)
