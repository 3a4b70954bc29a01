"""`holdfast persist export`: the contents of a shard at a time, as a file for other tools."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import click

from holdfast.cli.files import regular_target, replacing
from holdfast.cli.location import open_to_look
from holdfast.cli.persist_show import Progress, location_arguments
from holdfast.errors import AsOfNotYetAvailable, BadInput

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("parquet", "arrow", "csv", "json")


@click.command(short_help="Write the contents at a time to a file.")
@location_arguments
@click.argument("shard")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--as-of", type=click.IntRange(min=0), metavar="TIME", help="If not given, the latest one.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="If not given, by the name of FILE.")
@click.option("--diff", is_flag=True, help="Write each row once, with its count as _diff.")
def export(
    url: str, consensus: str | None, shard: str, file: Path, as_of: int | None, form: str | None, diff: bool
) -> None:
    """Write the contents of SHARD in the location at URL to FILE: Parquet, Arrow, CSV or JSON lines.

    A file of that name is replaced when the new one is whole; what is no regular file (a device, a pipe) is
    refused. FILE - is standard output. Rows come in their order, with bounded memory; one that is there n
    times stands n times. CSV and JSON have binary in base64, JSON has numbers that it does not know as "NaN",
    "Infinity" and "-Infinity". Nothing is written to the location.
    """
    import pyarrow as pa

    from holdfast.cli.rows import format_by_suffix
    from holdfast.persist.schema import TIME

    target = regular_target(file)
    if target is None and form is None:
        raise BadInput("standard output has no name that tells the format", hint="give --format")
    form = form or format_by_suffix(file)
    if target is None and form in {"parquet", "arrow"} and sys.stdout.isatty():
        raise BadInput(f"{form} is not for a terminal", hint="give a file, or pipe it")
    with open_to_look(url, consensus) as client:
        reader = client.reader(shard, purpose="export")
        if as_of is None:
            upper = reader.upper()
            if upper == 0:
                raise AsOfNotYetAvailable(0, 0)
            as_of = upper - 1
        updates = reader.schema.arrow_updates
        columns = pa.schema([field for field in updates if field.name != TIME])
        rows = _write(reader.snapshot(as_of), columns, target, form, diff=diff)
    click.echo(f"wrote {rows:,} rows as of {as_of} to {file if target else 'standard output'}", err=True)


def _write(
    batches: "Iterable[pa.RecordBatch]", columns: "pa.Schema", file: Path | None, form: str, *, diff: bool
) -> int:
    """All batches to a file, or to standard output; how many rows."""
    import pyarrow as pa

    from holdfast.tables.rows import repeated_pieces

    name = file or "standard output"
    output: AbstractContextManager[BinaryIO | _Counted]
    output = replacing(file) if file is not None else _standard_output()
    progress = Progress("writing rows:")
    rows = 0
    try:
        with (
            output as stream,
            _writer(form, stream, columns if diff else columns.remove(len(columns) - 1)) as writer,
        ):
            for batch in batches:
                table = pa.Table.from_batches([batch])
                for piece in (table,) if diff else repeated_pieces(table):
                    writer.write_table(piece)
                    rows += piece.num_rows
                    progress(f"{rows:,}")
    except OSError as error:
        raise BadInput(f"can't write {name}: {error.strerror or error}") from error
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise BadInput(
            f"can't write {name}: {form} does not hold what is there: {error}", hint="try --format parquet"
        ) from error
    finally:
        progress.done()
    return rows


@contextmanager
def _standard_output() -> "Iterator[_Counted]":
    stream = sys.stdout.buffer
    # Arrow asks where it is, which a pipe can't tell.
    yield _Counted(stream)
    stream.flush()


def _writer(form: str, stream: "BinaryIO | _Counted", columns: "pa.Schema") -> Any:
    """What writes tables of these columns, as a context."""
    import pyarrow as pa

    match form:
        case "parquet":
            from pyarrow import parquet

            return parquet.ParquetWriter(stream, columns, compression="zstd")
        case "csv":
            from pyarrow import csv

            from holdfast.cli.row_formats import without_bytes

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

    def write_table(self, table: "pa.Table") -> None:
        """The rows, binary in base64."""
        from holdfast.cli.row_formats import bytes_as_text

        self._writer.write_table(bytes_as_text(table))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


class _JsonLines:
    def __init__(self, stream: "BinaryIO | _Counted") -> None:
        self._stream = stream

    def write_table(self, table: "pa.Table") -> None:
        """One object per row and line."""
        from holdfast.cli.row_formats import write_json_lines

        write_json_lines(table, self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
