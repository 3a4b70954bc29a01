"""Rows as drawn tables."""

import json
import sys
from collections.abc import Collection, Sequence
from typing import Final, Literal

from holdfast.file_formats import FILE_FORMATS
from holdfast.text import one_line

FORMATS: Final = ("table", *FILE_FORMATS)
_WHOLE_CHARACTERS: Final = 24
_LEAST_CHARACTERS: Final = 10


def table_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How many characters wide the drawn table is if no cell is folded."""
    widths = [max(len(line[index]) for line in (columns, *rows)) for index in range(len(columns))]
    return sum(widths) + 3 * len(widths) + 1


def render(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[str] = (),
    spare: Sequence[str] = (),
) -> str:
    """A table for people: drawn on a terminal, plain aligned columns elsewhere.

    A terminal shows the columns in `numbers` at the right. On a narrow terminal, columns in `spare` are left
    out, in this order, until the table fits. If it still doesn't fit, cells are folded over several lines.
    Control characters are escaped.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Column, Table
        from rich.text import Text

        console = Console()
        columns, rows, hidden = without_spare(columns, rows, spare, console.width)
        sides: list[Literal["left", "right"]] = ["right" if name in numbers else "left" for name in columns]
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
        narrow = f"this terminal is too narrow for {', '.join(hidden)} (--format json)\n" if hidden else ""
        return capture.get() + narrow
    lines = [columns, *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


def without_spare(
    columns: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]], list[str]]:
    """The columns and rows without the first of the spare columns, until they fit; and what is left out."""
    hidden: list[str] = []
    for name in spare:
        if table_width(columns, rows) <= width:
            break
        at = list(columns).index(name)
        columns = [*columns[:at], *columns[at + 1 :]]
        rows = [[*row[:at], *row[at + 1 :]] for row in rows]
        hidden.append(name)
    return columns, rows, hidden


def kept_whole(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[bool]:
    """Which columns are not folded: short ones, the shortest first, as long as the others keep enough room.

    A folded number or moment is hard to read. A column that is not folded must fit, or it would be cut off.
    """
    widths = [max(len(line[index]) for line in (columns, *rows)) for index in range(len(columns))]
    # Texts of several words fold well, and moments and names don't.
    words = [any(" " in line[index] for line in rows) for index in range(len(columns))]
    room = width - 3 * len(widths) - 1 - sum(min(each, _LEAST_CHARACTERS) for each in widths)
    kept = [False] * len(widths)
    for index in sorted(range(len(widths)), key=lambda index: (words[index], widths[index])):
        more = max(0, widths[index] - _LEAST_CHARACTERS)
        if widths[index] <= _WHOLE_CHARACTERS and more <= room:
            kept[index] = True
            room -= more
    return kept


def cell_of(cell: object) -> str:
    """A value as a table for people shows it: on one line, with control characters escaped."""
    from holdfast.tables.files.formats import plain

    found = plain(cell)
    if isinstance(found, bool | list | dict):
        # As in JSON and CSV.
        found = json.dumps(found, ensure_ascii=False)
    return one_line("" if found is None else str(found))
