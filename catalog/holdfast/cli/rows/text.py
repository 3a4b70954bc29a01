"""Rows as drawn tables, and the format of a file by its suffix."""

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Literal

from holdfast.errors import BadInput
from holdfast.text import one_line

FORMATS: Final = ("table", "csv", "json", "parquet", "arrow")
FILE_FORMATS: Final = "|".join(FORMATS[1:])
_SUFFIXES: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}


_WHOLE_CHARACTERS: Final = 24
_LEAST_CHARACTERS: Final = 12


def table_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How many characters wide the drawn table is if no cell is folded."""
    widths = [max(len(line[index]) for line in (columns, *rows)) for index in range(len(columns))]
    return sum(widths) + 3 * len(widths) + 1


def render(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> str:
    """A table for people: drawn on a terminal, plain aligned columns elsewhere.

    A terminal shows the columns in `numbers` at the right. On a narrow terminal, cells are folded over
    several lines. Control characters are escaped.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Column, Table
        from rich.text import Text

        sides: list[Literal["left", "right"]] = ["right" if name in numbers else "left" for name in columns]
        console = Console()
        table = Table(
            *(
                Column(name, overflow="fold", justify=side, no_wrap=whole)
                for name, side, whole in zip(
                    columns, sides, kept_whole(columns, rows, console.width), strict=True
                )
            )
        )
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        with console.capture() as capture:
            console.print(table)
        return capture.get()
    lines = [columns, *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


def kept_whole(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[bool]:
    """Which columns are not folded: short ones, as long as the others keep enough room.

    A folded number or moment is hard to read. A column that is not folded must fit, or it would be cut off.
    """
    widths = [max(len(line[index]) for line in (columns, *rows)) for index in range(len(columns))]
    short = [each <= _WHOLE_CHARACTERS for each in widths]
    least = sum(
        each if whole else min(each, _LEAST_CHARACTERS) for each, whole in zip(widths, short, strict=True)
    )
    fits = least + 3 * len(widths) + 1 <= width
    return [fits and whole for whole in short]


def cell_of(cell: object) -> str:
    """A value as a table for people shows it: on one line, with control characters escaped."""
    from holdfast.cli.rows.formats import plain

    found = plain(cell)
    if isinstance(found, bool | list | dict):
        # As in JSON and CSV.
        found = json.dumps(found, ensure_ascii=False)
    return one_line("" if found is None else str(found))


def check_file(file: Path, form: str | None) -> None:
    """Raise `BadInput` if the file can't be read, or if its format is not known."""
    if str(file) == "-" and sys.stdin.isatty():
        raise BadInput("standard input is a terminal", hint="give a FILE, or pipe the rows into the command")
    if form is None and str(file) == "-":
        raise BadInput("can't find out the format of standard input", hint=f"give --format {FILE_FORMATS}")
    if form is None:
        format_by_suffix(file)
    try:
        if str(file) != "-":
            file.open("rb").close()
    except OSError as error:
        raise BadInput(f"can't read {file}: {error.strerror or error}") from error


def format_by_suffix(file: Path) -> str:
    """The format of a file by its suffix. Raises `BadInput` if the suffix is not known."""
    form = _SUFFIXES.get(file.suffix.lower())
    if form is None:
        raise BadInput(f"the name of {file} doesn't show its format", hint=f"give --format {FILE_FORMATS}")
    return form
