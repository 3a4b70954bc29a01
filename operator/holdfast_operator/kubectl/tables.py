"""Text for terminals: tables that omit columns to fit the width, and paragraphs."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import click

_GAP: Final = 2
_COLOURS: Final = {
    "Ready": "green",
    "Stalled": "red",
    "Reconciling": "yellow",
    "Deleting": "yellow",
    "Behind": "yellow",
    "New": "yellow",
    "Suspended": "cyan",
}


@dataclass(frozen=True)
class Column:
    """A column. If the table is too wide, columns with the greatest `rank` are omitted first, and 0 never."""

    title: str
    rank: int = 0
    right: bool = False
    state: bool = False
    """Whether its cells are states, which have colours."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yields the lines of a table. Omits columns that are empty, or that don't fit into `width`."""
    widths = [
        max(len(column.title), *(len(row[index]) for row in rows)) for index, column in enumerate(columns)
    ]
    kept = [
        index
        for index, column in enumerate(columns)
        if not column.rank or any(row[index] not in {"", "-"} for row in rows)
    ]
    while sum(widths[index] + _GAP for index in kept) - _GAP > width:
        last = max(kept, key=lambda index: (columns[index].rank, index))
        if not columns[last].rank:
            break
        kept.remove(last)
    yield _line([columns[index].title for index in kept], columns, kept, widths)
    for row in rows:
        yield _line([row[index] for index in kept], columns, kept, widths)


def _line(cells: Sequence[str], columns: Sequence[Column], kept: Sequence[int], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(widths[index]) if columns[index].right else cell.ljust(widths[index])
        for cell, index in zip(cells, kept, strict=True)
    ]
    padded[-1] = padded[-1].rstrip()
    shown = [
        coloured(cell) if columns[index].state else cell for cell, index in zip(padded, kept, strict=True)
    ]
    return (" " * _GAP).join(shown)


def coloured(cell: str) -> str:
    """Returns the word of a state in its colour. Click removes the colour if the output is no terminal."""
    colour = _COLOURS.get(cell.rstrip())
    return click.style(cell, fg=colour) if colour else cell


def paragraph(text: str, width: int, indent: str = "") -> Iterator[str]:
    """Yields the text in lines of `width`. A part without blanks, such as a URL, is never split."""
    yield from textwrap.wrap(
        " ".join(text.split()),
        max(width, 40),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def facts(pairs: Sequence[tuple[str, str]], width: int, indent: str = "") -> Iterator[str]:
    """Yields names and values in two columns. Omits empty values."""
    there = [(name, value) for name, value in pairs if value not in {"", "-"}]
    longest = max((len(name) for name, _ in there), default=0)
    for name, value in there:
        first, *rest = list(paragraph(value, width - len(indent) - longest - _GAP)) or [""]
        yield f"{indent}{name:<{longest}}{' ' * _GAP}{first}"
        yield from (f"{indent}{' ' * (longest + _GAP)}{line}" for line in rest)
