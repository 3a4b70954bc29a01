"""A table as text, and as a small page for notebooks."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.persist import Column, Schema
from holdfast.tables.cells import rows_of

_ROWS: Final = 10
_CELL: Final = 100


def columns_shown(schema: Schema) -> str:
    """The columns with their types, key columns first: "key id int64; note string?"."""
    key, values = _columns(schema.key), _columns(schema.value)
    return "; ".join(each for each in (f"key {key}" if key else "", values) if each)


def page(name: str, schema: Schema, scan: Callable[..., pa.RecordBatchReader]) -> str:
    """The name, the columns and a few rows of a table, as HTML. Shows the error if it can't be read."""
    head = f"<p><b>{escape(name)}</b>: {escape(columns_shown(schema))}</p>"
    try:
        rows = scan(limit=_ROWS + 1).read_all()
        found = rows_of(rows)
    except (HoldfastError, ValueError, OverflowError) as error:
        # Python's dates end with the year 9999.
        return f"{head}<p>{escape(str(error))}</p>"
    lines = [_line("th", rows.column_names), *(_line("td", row.values()) for row in found[:_ROWS])]
    more = "<p>and more rows</p>" if len(found) > _ROWS else ""
    return f"{head}<table>{''.join(lines)}</table>{more}"


def _columns(columns: Sequence[Column]) -> str:
    return ", ".join(f"{each.name} {each.type}{'?' if each.nullable else ''}" for each in columns)


def _line(tag: str, cells: Any) -> str:
    return f"<tr>{''.join(f'<{tag}>{_cell(cell)}</{tag}>' for cell in cells)}</tr>"


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= _CELL else f"{text[:_CELL]}...")
