"""Sorted rows that don't fit in memory, in temporary files that are written once and read repeatedly.

A temporary file has no name. It is deleted when the process ends in any way.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO, Final

import pyarrow as pa

from holdfast.errors import Determinate

_FILE_BUFFER: Final = 256 * 1024


class Spill:
    """Sorted rows in a temporary file without a name. It writes `batches`, and can be read repeatedly.

    Raises `Determinate` if there is no space for it.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], level: int = 0) -> None:
        self.level = level
        self.largest_batch = 0
        """The bytes of the largest batch."""
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(buffering=_FILE_BUFFER)  # noqa: SIM115 - until `close`
        except OSError as error:
            raise _no_room(error) from error
        try:
            self._write(batches)
        except BaseException:
            # On a full disk, close fails too.
            with suppress(OSError):
                self._file.close()
            raise

    def _write(self, batches: Iterable[pa.RecordBatch]) -> None:
        writer = None
        for batch in batches:
            try:
                writer = writer or pa.ipc.new_stream(pa.PythonFile(self._file, "w"), batch.schema)
                writer.write_batch(batch)
            except OSError as error:
                raise _no_room(error) from error
            self.largest_batch = max(self.largest_batch, int(batch.nbytes))
        try:
            if writer is not None:
                writer.close()
            self._file.flush()
        except OSError as error:
            raise _no_room(error) from error

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self._file.seek(0, 2)
        if not self._file.tell():
            return
        self._file.seek(0)
        try:
            yield from pa.ipc.open_stream(pa.PythonFile(self._file, "r"))
        except OSError as error:
            raise _no_room(error) from error

    def close(self) -> None:
        """Close the file, which frees its space."""
        self._file.close()


def _no_room(error: OSError) -> Determinate:
    return Determinate(
        f"can't use a temporary file in {tempfile.gettempdir()}: {error.strerror or error}",
        hint="free some space, or set TMPDIR to a folder with more space",
    )
