"""Show rows at the terminal as a table, or write them to a file."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import click
import pyarrow as pa

from holdfast.cli.facts import count
from holdfast.cli.progress import ProgressLine, note
from holdfast.cli.rows.output import check_output, pieces_of, write_batches
from holdfast.cli.rows.text import cell_of, render
from holdfast.errors import BadInput
from holdfast.file_formats import FORMATS_SHOWN
from holdfast.tables.cells import rows_of

_SHOWN_ROWS: Final = 50


def show_rows(
    batches: Iterable[pa.RecordBatch],
    columns: pa.Schema,
    form: str | None,
    output: Path | None,
    *,
    limit: int | None,
    diff: bool,
    spare: Sequence[str] = (),
) -> None:
    """Show or write contents, with `_diff` as their last column.

    A row is shown as often as its count says, or with `diff` once, with its count. A narrow terminal leaves
    out the columns in `spare`.
    """
    if output is None and form in {None, "table"}:
        _show_table(batches, columns, limit=limit, diff=diff, spare=spare)
        return
    if form == "table":
        raise BadInput("the format table can't be written to a file", hint=f"give --format {FORMATS_SHOWN}")
    target, form = check_output(output, form)
    rows = write_batches(batches, columns, target, form, diff=diff, limit=limit)
    if target is not None:
        note(f"wrote {count(rows, 'row')} to {output}")


def _show_table(
    batches: Iterable[pa.RecordBatch],
    columns: pa.Schema,
    *,
    limit: int | None,
    diff: bool,
    spare: Sequence[str],
) -> None:
    names = [name for name in columns.names if diff or name != "_diff"]
    most = _SHOWN_ROWS if limit is None else limit
    rows: list[list[str]] = []
    hidden = 0
    with ProgressLine("reading", after_s=1) as progress:
        for piece in pieces_of(batches, diff=diff, limit=limit):
            shown = rows_of(piece.slice(0, most - len(rows)))
            rows += [[cell_of(cell) for cell in row.values()] for row in shown]
            hidden += piece.num_rows - len(shown)
            progress.rows(len(rows) + hidden)
    numbers = {field.name for field in columns if _is_number(field.type)}
    text = render(names, rows, numbers, spare)
    click.echo(
        text + (f"... and {count(hidden, 'more row')} (--limit, --format)\n" if hidden else ""), nl=False
    )


def _is_number(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(is_kind(type_) for is_kind in kinds)
