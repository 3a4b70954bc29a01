"""A table or the result of a query as text, and as a small page for notebooks."""

from collections.abc import Callable, Sequence
from contextlib import closing
from html import escape
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.persist import Column, Schema
from holdfast.tables.cells import cells_of
from holdfast.text import one_line

_ROWS: Final = 10
_CELL: Final = 100


def columns_shown(schema: Schema) -> str:
    """The columns with their types, key columns first: "key id int64; note string?"."""
    key, values = _columns(schema.key), _columns(schema.value)
    return "; ".join(each for each in (f"key {key}" if key else "", values) if each)


def page(name: str, columns: str, scan: Callable[[int], pa.RecordBatchReader]) -> str:
    """A name, the columns and a few rows, as HTML. `scan` gets the number of rows that are needed.

    Shows the error if they can't be read.
    """
    head = f"<p><b>{escape(name)}</b>: {escape(columns)}</p>"
    names, rows, end = _few(scan)
    if not names:
        return f"{head}<p>{escape(end)}</p>"
    lines = [_line("th", names), *(_line("td", row) for row in rows)]
    return f"{head}<table>{''.join(lines)}</table>{f'<p>{end}</p>' if end else ''}"


def text(scan: Callable[[int], pa.RecordBatchReader]) -> str:
    """A few rows as lines of text, like `page`. Each line begins with a line feed."""
    names, found, end = _few(scan)
    rows = [[one_line(_short(each)) for each in row] for row in (names, *found)] if found else []
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "".join(f"\n{line}" for line in (*lines, *filter(None, [end])))


def _few(scan: Callable[[int], pa.RecordBatchReader]) -> tuple[list[str], list[Sequence[Any]], str]:
    """The names of the columns, a few rows, and what follows them. No names if they can't be read."""
    batches: list[pa.RecordBatch] = []
    try:
        with closing(scan(_ROWS + 1)) as reader:
            for batch in reader:
                batches.append(batch)
                if sum(each.num_rows for each in batches) > _ROWS:
                    break
            table = pa.Table.from_batches(batches, reader.schema).slice(0, _ROWS + 1)
        rows: list[Sequence[Any]] = list(zip(*map(cells_of, table.columns), strict=True))
    except (HoldfastError, ValueError, OverflowError) as error:
        # Python's dates end with the year 9999.
        return [], [], str(error)
    return table.column_names, rows[:_ROWS], "and more rows" if len(rows) > _ROWS else ""


def _columns(columns: Sequence[Column]) -> str:
    return ", ".join(f"{each.name} {each.type}{'?' if each.nullable else ''}" for each in columns)


def _line(tag: str, cells: Any) -> str:
    return f"<tr>{''.join(f'<{tag}>{_cell(cell)}</{tag}>' for cell in cells)}</tr>"


def _cell(value: Any) -> str:
    return escape(_short(value))


def _short(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _CELL else f"{text[:_CELL]}..."
