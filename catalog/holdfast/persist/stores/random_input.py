# ruff: noqa: D102 - the base class documents its methods
"""A file for random access, for the libraries that read Parquet. Subclasses read at `at`."""

import io
import os


class RandomInput(io.RawIOBase):
    """A file of `size` bytes with the position `at`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence]
        self.at = max(0, start + offset)
        return self.at
