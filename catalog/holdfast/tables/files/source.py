"""The rows of a file or of standard input in pieces, under the types of a schema, with bounded memory.

- A piece has at most some thousand rows. The first piece always exists and has the columns, even if it has no
  rows. A row of CSV may have up to 1 MiB. One batch of a compressed Arrow file is in memory as a whole.
- Parquet can only be read from its end. If it comes through a pipe, it is copied to a temporary file without
  a name.
- A file is identified by the hash of its contents: `fingerprint`. If a file changes while it is read, the
  read fails at the end.
"""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, Final, Self

import pyarrow as pa
import xxhash

from holdfast.errors import BadInput
from holdfast.file_formats import check_file, format_by_suffix
from holdfast.persist import Schema
from holdfast.tables.files.formats import check_distinct, from_csv, from_json_lines
from holdfast.text import count, naming

_PIECE_ROWS: Final = 8 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_ARROW_FILE: Final = b"ARROW1"

Told = Callable[[int, int | None, str], object]
"""Called with the amount read, the total (None: unknown), in any unit, and a text for people."""


class RowSource:
    """Rows to be read once, in a `with` block. Raises `BadInput` if they can't be read.

    JSON lines that leave columns out have nulls there. With `partial`, they don't have these columns.
    """

    def __init__(self, file: Path, form: str | None, schema: Schema, *, partial: bool = False) -> None:
        check_file(file, form)
        self._partial = partial
        self.name = "standard input" if str(file) == "-" else str(file)
        self._form = form or format_by_suffix(file)
        self._schema = schema
        try:
            self._stream: BinaryIO = sys.stdin.buffer if str(file) == "-" else file.open("rb")
        except OSError as error:
            raise BadInput(f"can't read {file}: {error.strerror or error}") from error
        self._before = self._status()
        self._rows = 0

    @property
    def size_bytes(self) -> int | None:
        """The size of a regular file; None for a pipe and the like."""
        return None if self._before is None else self._before.st_size

    def fingerprint(self, told: Told = lambda *_: None) -> str | None:
        """The hash of a regular file's contents. None if the source can be read only once."""
        if self._before is None:
            return None
        found, done, size = xxhash.xxh3_128(), 0, self._before.st_size
        with self._readable():
            while chunk := self._stream.read(_CHUNK_BYTES):
                found.update(chunk)
                done += len(chunk)
                told(done, size, _of_bytes(done, size))
            self._stream.seek(0)
        return found.hexdigest()

    def pieces(self, told: Told = lambda *_: None) -> Iterator[pa.Table]:
        """The rows in pieces. Raises `BadInput` at the end if the file changed meanwhile."""
        match self._form:
            case "csv":
                pieces = self._from_csv(told)
            case "json":
                objects = from_json_lines(self._stream, self._schema, partial=self._partial)
                pieces = self._counted(objects, told, self._stream.tell)
            case "parquet":
                pieces = self._from_parquet(told)
            case _:
                pieces = self._counted(self._from_arrow(), told)
        with self._readable(), naming(self.name):
            yield from pieces
        if self._before is not None and _identity(self._before) != _identity(self._status()):
            raise BadInput(f"{self.name} was changed while it was read", hint="write it again")

    def close(self) -> None:
        """Close the file."""
        if self._stream is not sys.stdin.buffer:
            self._stream.close()

    def _status(self) -> os.stat_result | None:
        """The status of a regular file that is read from its beginning. None for anything else."""
        try:
            status = os.fstat(self._stream.fileno())
        except OSError:
            return None
        is_file = stat.S_ISREG(status.st_mode) and self._stream is not sys.stdin.buffer
        return status if is_file else None

    def _counted(
        self, pieces: Iterator[pa.Table], told: Told, place: Callable[[], int] | None = None
    ) -> Iterator[pa.Table]:
        """The pieces. `place` returns the position in the file, if there is one."""
        size = self.size_bytes
        for piece in pieces:
            yield piece
            self._rows += piece.num_rows
            if size is None or place is None:
                told(self._rows, None, count(self._rows, "row"))
            else:
                done = place()
                told(done, size, f"{count(self._rows, 'row')}, {_of_bytes(done, size)}")

    def _from_csv(self, told: Told) -> Iterator[pa.Table]:
        # Arrow's threads read ahead. They must not read a Python file: if the process ends meanwhile, the
        # first one that needs the interpreter aborts it.
        with self._seekable() as stream, pa.OSFile(f"/dev/fd/{stream.fileno()}") as file:

            def again() -> BinaryIO:
                opened = Path(f"/dev/fd/{stream.fileno()}").open("rb")  # noqa: SIM115 - the caller closes it
                opened.seek(0)
                return opened

            yield from self._counted(from_csv(file, again, self._schema), told, file.tell)

    def _from_parquet(self, told: Told) -> Iterator[pa.Table]:
        from pyarrow import parquet

        with self._seekable() as stream, parquet.ParquetFile(stream, buffer_size=_CHUNK_BYTES) as opened:
            total = opened.metadata.num_rows
            if not total:
                yield opened.schema_arrow.empty_table()
            for batch in opened.iter_batches(_PIECE_ROWS):
                yield pa.Table.from_batches([batch])
                self._rows += batch.num_rows
                told(self._rows, total, f"{self._rows:,} of {count(total, 'row')}")

    def _from_arrow(self) -> Iterator[pa.Table]:
        with self._seekable() as stream:
            is_file = stream.read(len(_ARROW_FILE)) == _ARROW_FILE
            stream.seek(0)
            if not is_file:
                opened = pa.ipc.open_stream(stream)
                yield from _cut(opened, opened.schema)
                return
            # One batch may be the whole file. A mapped file takes no memory.
            with pa.memory_map(self.name) if self._before is not None else pa.PythonFile(stream) as mapped:
                file = pa.ipc.open_file(mapped)
                yield from _cut(map(file.get_batch, range(file.num_record_batches)), file.schema)

    @contextmanager
    def _seekable(self) -> Iterator[BinaryIO | IO[bytes]]:
        if self._before is not None:
            yield self._stream
            return
        with tempfile.TemporaryFile() as spooled:
            shutil.copyfileobj(self._stream, spooled, _CHUNK_BYTES)
            spooled.seek(0)
            yield spooled

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BadInput(f"can't read {self.name}: {error.strerror or error}") from error
        except pa.ArrowException as error:
            raise BadInput(f"{self.name} is not {self._form}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def whole(source: RowSource) -> pa.Table:
    """All rows of the source, in memory."""
    pieces = [*source.pieces()]
    with naming(source.name):
        check_distinct(pieces[0].column_names)
    return pa.concat_tables(pieces, promote_options="default")


def _cut(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    rows = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _PIECE_ROWS):
            yield pa.Table.from_batches([batch.slice(start, _PIECE_ROWS)])
        rows += batch.num_rows
    if not rows:
        yield schema.empty_table()


def _identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    return None if status is None else (status.st_size, status.st_mtime_ns, status.st_ino)


def _of_bytes(done: int, size: int) -> str:
    from rich.filesize import decimal

    return f"{decimal(done)} of {decimal(size)}"
