"""Rows between Arrow tables and what people and files have: drawn tables, and files by their endings."""

import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import pyarrow as pa

from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.persist import Schema

FORMATS: Final = ("table", "csv", "json", "parquet", "arrow")
_FILE_FORMATS: Final = "|".join(FORMATS[1:])
_SUFFIXES: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_SHOWN_ROWS: Final = 50


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
    from holdfast.cli.row_formats import encode
    from holdfast.tables.rows import repeated

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
        encode(table, form, buffer)
        data = buffer.getvalue()
    if output is None:
        click.echo(data, nl=False)
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise BadInput(f"can't write {output}: {error.strerror}") from error
    click.echo(f"wrote {table.num_rows} rows to {output}", err=True)


def check_file(file: Path, form: str | None) -> None:
    """Raise `BadInput` where the rows of this file can't be read: no file, or no format is known of it."""
    if form is None and str(file) == "-":
        raise BadInput("the format of standard input is not known", hint=f"give --format {_FILE_FORMATS}")
    if form is None:
        format_by_suffix(file)
    try:
        if str(file) != "-":
            file.open("rb").close()
    except OSError as error:
        raise BadInput(f"can't read {file}: {error.strerror or error}") from error


def read_rows(file: Path, form: str | None, schema: "Schema | None" = None) -> pa.Table:
    """The rows of a file, `-` for standard input, with the types of the schema (None: guessed).

    Raises `BadInput` where it can't be read, saying why.
    """
    from holdfast.cli.row_formats import decode

    form = form or format_by_suffix(file)
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as stream:
            return decode(stream, form, schema)
    except OSError as error:
        raise BadInput(f"can't read {file}: {error.strerror or error}") from error
    except pa.ArrowException as error:
        raise BadInput(f"{file} is not {form}: {error}") from error


def format_by_suffix(file: Path) -> str:
    """The format that the name of a file tells; `BadInput` where it tells none."""
    form = _SUFFIXES.get(file.suffix.lower())
    if form is None:
        raise BadInput(f"{file}: the format can't be told by its name", hint=f"give --format {_FILE_FORMATS}")
    return form


def _as_table(table: pa.Table, limit: int | None) -> str:
    from holdfast.cli.row_formats import plain

    shown = table if limit is not None else table.slice(0, _SHOWN_ROWS)
    rows = [["" if cell is None else str(plain(cell)) for cell in row.values()] for row in shown.to_pylist()]
    text = render(table.column_names, rows)
    hidden = table.num_rows - shown.num_rows
    return text + (f"... and {hidden} more rows (--limit, --format)\n" if hidden else "")
