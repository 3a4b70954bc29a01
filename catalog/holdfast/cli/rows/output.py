"""Writing batches of rows to a file or to standard output, in any format, with bounded memory.

Invariants
- A new file appears under its name only when all of it is durable. Only then is an existing file replaced.
- If the reader of standard output closes it early (`| head`), the command ends silently: click handles the
  error.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

import pyarrow as pa

from holdfast.cli.files import regular_target, replacing
from holdfast.cli.progress import ProgressLine
from holdfast.errors import BadInput
from holdfast.file_formats import FORMATS_SHOWN, format_by_suffix
from holdfast.tables.files.formats import bytes_as_text, without_bytes, write_json_lines
from holdfast.tables.rows import repeated_pieces


def write_batches(
    batches: Iterable[pa.RecordBatch],
    columns: pa.Schema,
    file: Path | None,
    form: str,
    *,
    diff: bool,
    limit: int | None = None,
) -> int:
    """Write contents, with `_diff` as their last column, to a file or (None) to standard output.

    Returns the number of rows written. A row is written as often as its count says, or with `diff` once, with
    its count. Raises `BadInput` if the file can't be written, or if the format can't express a value.
    """
    name = file or "standard output"
    output: AbstractContextManager[BinaryIO | _Counted]
    output = replacing(file) if file is not None else _standard_output()
    rows = 0
    try:
        with (
            # Rows that are shown at the terminal are progress enough.
            ProgressLine("writing", shown=file is not None or not sys.stdout.isatty()) as progress,
            output as stream,
            _writer(form, stream, columns if diff else columns.remove(len(columns) - 1)) as writer,
        ):
            progress.rows(0)
            for piece in pieces_of(batches, diff=diff, limit=limit):
                writer.write_table(piece)
                rows += piece.num_rows
                progress.rows(rows)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BadInput(f"can't write {name}: {error.strerror or error}") from error
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise BadInput(
            f"can't write {name}: {form} can't express a value: {error}", hint="try --format parquet"
        ) from error
    return rows


def pieces_of(batches: Iterable[pa.RecordBatch], *, diff: bool, limit: int | None) -> Iterator[pa.Table]:
    """Return at most `limit` rows, in pieces.

    With `diff`, each row occurs once, with its count in `_diff`. Otherwise it is repeated by its count.
    """
    left = limit
    if left == 0:
        return
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for piece in (table,) if diff else repeated_pieces(table):
            yield piece if left is None else piece.slice(0, left)
            if left is not None:
                left -= piece.num_rows
                if left <= 0:
                    return


def check_output(file: Path | None, form: str | None) -> tuple[Path | None, str]:
    """Return the regular file to write (None: standard output), and its format.

    Raises `BadInput` if it can't be written, or if nothing shows which format it has.
    """
    target = None if file is None else regular_target(file)
    if target is None and form is None:
        raise BadInput("can't choose a format for standard output", hint=f"give --format {FORMATS_SHOWN}")
    if form is None:
        assert file is not None
        form = format_by_suffix(file)
    if target is None and form in {"parquet", "arrow"} and sys.stdout.isatty():
        raise BadInput(f"{form} can't be shown at a terminal", hint="give a file, or pipe it")
    return target, form


@contextmanager
def _standard_output() -> "Iterator[_Counted]":
    stream = sys.stdout.buffer
    # Arrow asks the stream for its position, which a pipe doesn't have.
    yield _Counted(stream)
    stream.flush()


def _writer(form: str, stream: "BinaryIO | _Counted", columns: pa.Schema) -> Any:
    """A context whose value writes tables with these columns."""
    match form:
        case "parquet":
            from pyarrow import parquet

            return parquet.ParquetWriter(stream, columns, compression="zstd")
        case "csv":
            from pyarrow import csv

            return _Csv(csv.CSVWriter(stream, without_bytes(columns)))
        case "json":
            return _JsonLines(stream)
        case _:
            return pa.ipc.new_file(stream, columns)


class _Counted:
    """A stream that counts the bytes written to it, for writing to a pipe."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._written = 0

    def write(self, data: Any) -> int:
        """Write all of the data."""
        self._stream.write(data)
        self._written += memoryview(data).nbytes
        return memoryview(data).nbytes

    def tell(self) -> int:
        """The number of bytes written so far."""
        return self._written

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def close(self) -> None:
        """Do nothing: standard output stays open."""

    def readable(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False."""
        return False


class _Csv:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write_table(self, table: pa.Table) -> None:
        """Write the rows, with binary in base64."""
        self._writer.write_table(bytes_as_text(table))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


class _JsonLines:
    def __init__(self, stream: "BinaryIO | _Counted") -> None:
        self._stream = stream

    def write_table(self, table: pa.Table) -> None:
        """Write one JSON object per line and row."""
        write_json_lines(table, self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
