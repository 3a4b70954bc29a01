"""Batches of rows into a file or to standard output, in any format, with bounded memory.

Invariants
- A file takes its name when all of it is durable; one that was there before is replaced then.
- A reader of standard output that has enough (`| head`) ends the command without a word: the error goes on to
  click, which knows what to do with it.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

import pyarrow as pa

from holdfast.cli.files import regular_target, replacing
from holdfast.cli.progress import Progress
from holdfast.cli.rows.formats import bytes_as_text, without_bytes, write_json_lines
from holdfast.cli.rows.text import format_by_suffix
from holdfast.errors import BadInput
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
    """Write contents, with `_diff` last, to a regular file or (None) to standard output; how many rows.

    A row comes as often as its count says, or once with it. Raises `BadInput` where the file can't be
    written, or the format has no such values.
    """
    name = file or "standard output"
    output: AbstractContextManager[BinaryIO | _Counted]
    output = replacing(file) if file is not None else _standard_output()
    rows = 0
    try:
        with (
            # Where rows are shown at the terminal they tell by themselves how far it is.
            Progress("writing", shown=file is not None or not sys.stdout.isatty()) as progress,
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
            f"can't write {name}: {form} does not hold what is there: {error}", hint="try --format parquet"
        ) from error
    return rows


def pieces_of(batches: Iterable[pa.RecordBatch], *, diff: bool, limit: int | None) -> Iterator[pa.Table]:
    """At most `limit` rows of contents in pieces, each as often as its count says, or once with it."""
    left = limit
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for piece in (table,) if diff else repeated_pieces(table):
            yield piece if left is None else piece.slice(0, left)
            if left is not None:
                left -= piece.num_rows
                if left <= 0:
                    return


def check_output(file: Path | None, form: str | None) -> tuple[Path | None, str]:
    """Which regular file (None: standard output) is to be written, and in which format.

    Raises `BadInput` where it can't be written, or there is no telling the format.
    """
    target = None if file is None else regular_target(file)
    if target is None and form is None:
        raise BadInput("standard output has no name that tells the format", hint="give --format")
    if form is None:
        assert file is not None
        form = format_by_suffix(file)
    if target is None and form in {"parquet", "arrow"} and sys.stdout.isatty():
        raise BadInput(f"{form} is not for a terminal", hint="give a file, or pipe it")
    return target, form


@contextmanager
def _standard_output() -> "Iterator[_Counted]":
    stream = sys.stdout.buffer
    # Arrow asks where it is, which a pipe can't tell.
    yield _Counted(stream)
    stream.flush()


def _writer(form: str, stream: "BinaryIO | _Counted", columns: pa.Schema) -> Any:
    """What writes tables of these columns, as a context."""
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
    """A stream that knows how much went through it, for writing to a pipe."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._written = 0

    def write(self, data: Any) -> int:
        """All of the data."""
        self._stream.write(data)
        self._written += memoryview(data).nbytes
        return memoryview(data).nbytes

    def tell(self) -> int:
        """How many bytes were written."""
        return self._written

    def flush(self) -> None:
        """Give on what waits."""
        self._stream.flush()

    def close(self) -> None:
        """Nothing: standard output is not ours to close."""

    def readable(self) -> bool:
        """No."""
        return False

    def writable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """No."""
        return False


class _Csv:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write_table(self, table: pa.Table) -> None:
        """The rows, binary in base64."""
        self._writer.write_table(bytes_as_text(table))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


class _JsonLines:
    def __init__(self, stream: "BinaryIO | _Counted") -> None:
        self._stream = stream

    def write_table(self, table: pa.Table) -> None:
        """One object per row and line."""
        write_json_lines(table, self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
