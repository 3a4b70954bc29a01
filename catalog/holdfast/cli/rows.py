"""Rows between Arrow tables and what people and files have: tables, CSV, JSON lines, Parquet, Arrow IPC."""

import base64
import json
import math
import sys
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import click
import pyarrow as pa

from holdfast.errors import BadInput

FORMATS: Final = ("table", "csv", "json", "parquet", "arrow")
_SUFFIXES: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_SHOWN_ROWS: Final = 50
_PIECE_ROWS: Final = 64 * 1024
_DIFF: Final = "_diff"


def table_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How many characters a line of the drawn table needs so that no cell goes over several lines."""
    widths = [max(len(line[index]) for line in (columns, *rows)) for index in range(len(columns))]
    return sum(widths) + 3 * len(widths) + 1


def render(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for people: drawn on a terminal, plain aligned columns elsewhere.

    On a narrow terminal cells go over several lines.
    """
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Column, Table
        from rich.text import Text

        table = Table(*(Column(name, overflow="fold") for name in columns))
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        console = Console()
        with console.capture() as capture:
            console.print(table)
        return capture.get()
    lines = [columns, *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


def write_rows(
    contents: pa.Table, form: str | None, output: Path | None, *, limit: int | None, diff: bool
) -> None:
    """Show or write a snapshot: rows as often as they are there, or once with `_diff`."""
    if form is None:
        form = format_by_suffix(output) if output is not None else "table"
    table = contents if diff else repeated(contents)
    if limit is not None:
        table = table.slice(0, limit)
    if form == "table":
        data = _as_table(table, limit).encode()
    else:
        if output is None and form in {"parquet", "arrow"} and sys.stdout.isatty():
            raise BadInput(f"{form} is not for a terminal", hint="give --output FILE, or pipe it")
        buffer = BytesIO()
        _encode(table, form, buffer)
        data = buffer.getvalue()
    if output is None:
        click.echo(data, nl=False)
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise BadInput(f"can't write {output}: {error.strerror}") from error
    click.echo(f"wrote {table.num_rows} rows to {output}", err=True)


def read_rows(file: Path, form: str | None) -> pa.Table:
    """The rows of a file. Raises `BadInput` where it can't be read, saying why."""
    form = form or format_by_suffix(file)
    try:
        with file.open("rb") as stream:
            return _decode(stream, form)
    except OSError as error:
        raise BadInput(f"can't read {file}: {error.strerror or error}") from error
    except pa.ArrowException as error:
        raise BadInput(f"{file} is not {form}: {error}") from error


def format_by_suffix(file: Path) -> str:
    """The format that the name of a file tells; `BadInput` where it tells none."""
    form = _SUFFIXES.get(file.suffix.lower())
    if form is None:
        raise BadInput(
            f"{file}: the format can't be told by its name", hint=f"give --format {'|'.join(FORMATS[1:])}"
        )
    return form


def repeated(contents: pa.Table) -> pa.Table:
    """Each row as often as its `_diff` says, without it; `BadInput` for negative counts."""
    pieces = list(repeated_pieces(contents))
    return pa.concat_tables(pieces) if pieces else contents.slice(0, 0).drop_columns([_DIFF])


def repeated_pieces(contents: pa.Table) -> Iterator[pa.Table]:
    """What `repeated` gives, in pieces of bounded size however large the counts are."""
    import numpy as np

    counts = contents[_DIFF].to_numpy()
    rows = contents.drop_columns([_DIFF])
    if (counts < 0).any():
        raise BadInput(
            f"{int((counts < 0).sum())} rows have negative counts: a writer took away what was not there",
            hint="use --diff to see them",
        )
    if (counts == 1).all():
        yield rows
        return
    index = done = 0
    while index < len(counts):
        # Whole rows' worth of copies as far as they fit, or a part of one row's.
        room, places, copies = _PIECE_ROWS, [], []
        while index < len(counts) and room:
            some = min(room, int(counts[index]) - done)
            places.append(index)
            copies.append(some)
            room -= some
            done += some
            if done == counts[index]:
                index, done = index + 1, 0
        yield rows.take(pa.array(np.repeat(places, copies)))


def without_bytes(schema: pa.Schema) -> pa.Schema:
    """The schema with text in place of binary, for CSV, which is text."""
    return pa.schema(
        [field.with_type(pa.string()) if pa.types.is_binary(field.type) else field for field in schema]
    )


def bytes_as_text(table: pa.Table) -> pa.Table:
    """The table with binary columns in base64, as in JSON."""
    for index, field in enumerate(table.schema):
        if pa.types.is_binary(field.type):
            texts = pa.array([_plain(cell) for cell in table.column(index).to_pylist()], pa.string())
            table = table.set_column(index, field.with_type(pa.string()), texts)
    return table


def _as_table(table: pa.Table, limit: int | None) -> str:
    shown = table if limit is not None else table.slice(0, _SHOWN_ROWS)
    rows = [["" if cell is None else str(_plain(cell)) for cell in row.values()] for row in shown.to_pylist()]
    text = render(table.column_names, rows)
    hidden = table.num_rows - shown.num_rows
    return text + (f"... and {hidden} more rows (--limit, --format)\n" if hidden else "")


def _plain(cell: Any) -> Any:
    match cell:
        case bytes():
            return base64.b64encode(cell).decode()
        case float() if not math.isfinite(cell):
            return "NaN" if math.isnan(cell) else "Infinity" if cell > 0 else "-Infinity"
        case bool() | int() | float() | str() | None:
            return cell
        case _:
            return cell.isoformat() if hasattr(cell, "isoformat") else str(cell)


def _encode(table: pa.Table, form: str, stream: BinaryIO) -> None:
    match form:
        case "csv":
            from pyarrow import csv

            csv.write_csv(bytes_as_text(table), stream)
        case "json":
            write_json_lines(table, stream)
        case "parquet":
            from pyarrow import parquet

            parquet.write_table(table, stream, compression="zstd")
        case _:
            with pa.ipc.new_file(stream, table.schema) as writer:
                writer.write_table(table)


class Output(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> int:
        """All of the data."""


def write_json_lines(table: pa.Table, stream: Output) -> None:
    """One JSON object per row and line: binary in base64, numbers that JSON has not as text ("NaN")."""
    for batch in table.to_batches():
        for row in batch.to_pylist():
            plain = {name: _plain(cell) for name, cell in row.items()}
            stream.write(json.dumps(plain, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def _decode(stream: BinaryIO, form: str) -> pa.Table:
    match form:
        case "csv":
            from pyarrow import csv

            return csv.read_csv(stream)
        case "json":
            from pyarrow import json as json_lines

            return json_lines.read_json(stream)
        case "parquet":
            from pyarrow import parquet

            return parquet.read_table(stream)
        case _:
            return pa.ipc.open_file(stream).read_all()
