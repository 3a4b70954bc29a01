"""Rows between Arrow tables and what people and files have: drawn tables, and files by their endings."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import click
import pyarrow as pa

from holdfast.errors import BadInput

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


def cell_of(cell: object) -> str:
    """A value as a table for people shows it: on one line, and nothing that a terminal obeys."""
    from holdfast.cli.rows.formats import plain

    text = "" if cell is None else str(plain(cell))
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def show_rows(
    batches: Iterable[pa.RecordBatch],
    columns: pa.Schema,
    form: str | None,
    output: Path | None,
    *,
    limit: int | None,
    diff: bool,
) -> None:
    """Show contents, with `_diff` last, or write them: rows as often as they are there, or once with it."""
    from holdfast.cli.rows.output import check_output, write_batches

    if output is None and form in {None, "table"}:
        _show_table(batches, columns, limit=limit, diff=diff)
        return
    if form == "table":
        raise BadInput("a table is for the terminal", hint=f"give --format {_FILE_FORMATS}")
    target, form = check_output(output, form)
    rows = write_batches(batches, columns, target, form, diff=diff, limit=limit)
    if target is not None:
        click.echo(f"wrote {rows:,} row{'' if rows == 1 else 's'} to {output}", err=True)


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


def format_by_suffix(file: Path) -> str:
    """The format that the name of a file tells; `BadInput` where it tells none."""
    form = _SUFFIXES.get(file.suffix.lower())
    if form is None:
        raise BadInput(f"{file}: the format can't be told by its name", hint=f"give --format {_FILE_FORMATS}")
    return form


def _show_table(
    batches: Iterable[pa.RecordBatch], columns: pa.Schema, *, limit: int | None, diff: bool
) -> None:
    from holdfast.cli.rows.output import pieces_of

    names = [name for name in columns.names if diff or name != "_diff"]
    most = _SHOWN_ROWS if limit is None else limit
    rows: list[list[str]] = []
    hidden = 0
    for piece in pieces_of(batches, diff=diff, limit=limit):
        shown = piece.slice(0, most - len(rows)).to_pylist()
        rows += [[cell_of(cell) for cell in row.values()] for row in shown]
        hidden += piece.num_rows - len(shown)
    text = render(names, rows)
    click.echo(text + (f"... and {hidden:,} more rows (--limit, --format)\n" if hidden else ""), nl=False)
