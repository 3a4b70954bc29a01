"""Rows as drawn tables."""

import json
import sys
from collections.abc import Collection, Sequence
from typing import Final, Literal

from holdfast.file_formats import FILE_FORMATS
from holdfast.text import one_line

FORMATS: Final = ("table", *FILE_FORMATS)
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
    from holdfast.tables.files.formats import plain

    found = plain(cell)
    if isinstance(found, bool | list | dict):
        # As in JSON and CSV.
        found = json.dumps(found, ensure_ascii=False)
    return one_line("" if found is None else str(found))
