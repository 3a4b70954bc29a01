"""`holdfast collection read|diff|tail`: show the rows of a collection.

A row that occurs n times is shown n times. With `--diff` it is shown once, with its count.
"""

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from holdfast.cli.collection.place import controller_of, location_options, name_argument, opened_table, time
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import ProgressLine, note
from holdfast.cli.rows.text import FORMATS, cell_of
from holdfast.errors import BadInput
from holdfast.text import naming

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from holdfast.collections import CollectionReader, StorageController
    from holdfast.collections.collection_snapshot import CollectionSnapshot
    from holdfast.persist import Schema

_FILE = click.Path(path_type=Path, dir_okay=False)
AS_OF = "Milliseconds or an ISO date. Default: the latest time."
_WHERE = "Show rows for which conditions hold: \"id >= 3 and (note is null or note like 'a%')\"."
_FOR = "End after this long, counted from the start, or with --snapshot from the end of the snapshot."
_LIMIT = click.IntRange(0, (1 << 63) - 1)
_INSTEAD = "give --or-earlier, to use the latest complete time before it"
OR_EARLIER = "If a TIME is not complete, use the latest complete time before it, and show it on stderr."
_TAIL_FORMATS = ("table", "csv", "json")


@click.command(short_help="Show the contents as of one time.")
@location_options
@name_argument
@click.option("--as-of", metavar="TIME", type=time, help=AS_OF)
@click.option("--or-earlier", is_flag=True, help=OR_EARLIER)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the name of FILE, or table.")
@click.option("--output", metavar="FILE", type=_FILE, help="Write to FILE.")
@click.option("--limit", metavar="N", type=_LIMIT, help="Show at most N rows.")
@click.option("--where", metavar="CONDITIONS", help=_WHERE)
@click.option("--columns", metavar="NAMES", help="Show only these columns, separated by commas.")
@click.option("--diff", is_flag=True, help="Show each row once, with its count in _diff.")
def read(
    location: LocationUrls,
    name: str,
    as_of: int | None,
    or_earlier: bool,
    form: str | None,
    output: Path | None,
    limit: int | None,
    where: str | None,
    columns: str | None,
    diff: bool,
) -> None:
    """Show the contents of a collection as of one time.

    \b
    holdfast read orders --where "count > 3 and item in ('pear', 'plum')"
    holdfast read orders --as-of 2026-01-01T12:00 --output orders.parquet

    A read at the same time always returns the same rows. You can read at every time from the collection's
    since on that is at least two minutes past. If nobody has written since then, the command completes the
    collection up to a minute ago, if it may write to the location and no source feeds the collection.

    Conditions compare a column with = != < <= > >=, 'in (...)', 'like' or 'between', or are 'is null'. Join
    them with 'and', 'or', 'not' and parentheses. Put text into single quotes. Only what
    statistics can't exclude is read. Output files are CSV, JSON lines, Parquet or Arrow IPC.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.tables.moments import dated
    from holdfast.tables.scan import snapshot_of

    with (
        controller_of(location.open_to_look()) as controller,
        controller.reader(name, purpose="holdfast collection read") as reader,
    ):
        if as_of is not None:
            as_of = time_for(location, controller, reader, as_of, or_earlier=or_earlier)
        with dated(f"collection {name}"):
            stored, snapshot = snapshot_of(reader, as_of)
        if snapshot is None and as_of is not None:
            note(f"{reader.info.name} is empty")
        from holdfast.cli.rows.show import show_rows

        with naming(f"collection {name}"):
            batches, schema = _narrowed(snapshot, stored, where, columns)
        show_rows(batches, schema, form, output, limit=limit, diff=diff)


def _narrowed(
    snapshot: "CollectionSnapshot | None", schema: "Schema", where: str | None, columns: str | None
) -> "tuple[Iterable[pa.RecordBatch], pa.Schema]":
    """The rows that `--where` chooses, with the columns of `--columns`; none of no snapshot.

    Raises `BadInput`.
    """
    import pyarrow as pa

    from holdfast.persist.checks import check_columns
    from holdfast.persist.rows.schema import DIFF
    from holdfast.persist.rows.stored import logical_schema
    from holdfast.tables.filters import filter_of
    from holdfast.tables.where import parse_where

    rows: Iterable[pa.RecordBatch] = () if snapshot is None else snapshot
    if where is not None:
        chosen = filter_of(parse_where(where, schema), schema)
        rows = () if snapshot is None else snapshot.filtered(chosen)
    if columns is None:
        return _logical(rows, schema), logical_schema(schema.arrow_diff, schema)
    names = [each.strip() for each in columns.split(",")]
    check_columns(schema, names)
    names.append(DIFF)
    fields = pa.schema([schema.arrow_diff.field(each) for each in names])
    return _logical((batch.select(names) for batch in rows), schema), logical_schema(fields, schema)


def _logical(batches: "Iterable[pa.RecordBatch]", schema: "Schema") -> "Iterator[pa.RecordBatch]":
    from holdfast.persist.rows.stored import logical_rows

    return (logical_rows(batch, schema) for batch in batches)


@click.command(short_help="Show the differences between two times.")
@location_options
@name_argument
@click.option(
    "--start", "--from", "start", metavar="TIME", type=time, required=True, help="The earlier time."
)
@click.option(
    "--end", "--to", "end", metavar="TIME", type=time, help="The later time. Default: the latest time."
)
@click.option("--or-earlier", is_flag=True, help=OR_EARLIER)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the name of FILE, or table.")
@click.option("--output", metavar="FILE", type=_FILE, help="Write to FILE.")
@click.option("--limit", metavar="N", type=_LIMIT, help="Show at most N rows.")
def diff(
    location: LocationUrls,
    name: str,
    start: int,
    end: int | None,
    or_earlier: bool,
    form: str | None,
    output: Path | None,
    limit: int | None,
) -> None:
    """Show the differences between two times: rows that were added (_diff 1) or removed (_diff -1).

    \b
    holdfast diff orders --start 2026-01-01T09:00
    holdfast diff orders --start 2026-01-01 --end 2026-01-02 --format csv

    The times are as in 'read'.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.collections.complete_times import LEAST_MS
    from holdfast.tables import Table

    with opened_table(location.open_to_look(), name) as opened:
        table = Table(opened)

        def fitting(time: int) -> int:
            if end is None and time < LEAST_MS and not table.upper:
                return time  # The difference is empty, whatever the first time will be.
            return opened.reading.run(
                lambda reader: time_for(location, opened.controller, reader, time, or_earlier=or_earlier)
            )

        # The later time first: if that is complete, the other one needs no seal.
        times = {each: fitting(each) for each in sorted({start, start if end is None else end}, reverse=True)}
        start, end = times[start], None if end is None else times[end]
        with ProgressLine("comparing") as progress:
            progress(f"{name} at two times")
            found = table.diff(start, end)
        if not table.upper:
            note(f"{name} is empty")
        from holdfast.cli.rows.show import show_rows

        show_rows(found.to_batches(), found.schema, form, output, limit=limit, diff=True)


@click.command(short_help="Follow the changes of a collection.")
@location_options
@name_argument
@click.option("--as-of", metavar="TIME", type=time, help="Show changes after TIME. Default: the present.")
@click.option("--snapshot", is_flag=True, help="Show the rows as of that time first.")
@click.option("--until", metavar="TIME", type=time, help="End after all changes before TIME were shown.")
@click.option("--for", "seconds", metavar="SECONDS", type=click.FloatRange(0), help=_FOR)
@click.option("--format", "form", type=click.Choice(_TAIL_FORMATS), default="table", show_default=True)
@click.option("--progress", is_flag=True, help="With json: also show up to which time changes are complete.")
def tail(
    location: LocationUrls,
    name: str,
    as_of: int | None,
    snapshot: bool,
    until: int | None,
    seconds: float | None,
    form: str,
    progress: bool,
) -> None:
    """Follow a collection: show its changes as they are committed, until you interrupt the command.

    \b
    holdfast tail orders
    holdfast tail orders --as-of 2026-01-01T09:00 --format json --for 10

    Each change has the time (_time, in milliseconds) at which a row was added (_diff 1) or removed (_diff
    -1).
    """  # noqa: D301 - the escape is for the formatter of the help
    if progress and form != "json":
        raise BadInput("--progress needs --format json", hint="its lines are objects with 'progress'")
    from holdfast.collections.read_seals import check_follow
    from holdfast.tables import Table

    with opened_table(location.open_to_look(), name) as opened:
        if as_of is not None:
            check, what = partial(check_follow, opened.client), f"collection {opened.name}"
            hint = f"leave --as-of out, or see 'holdfast collection describe {opened.name}'"
            opened.reading.run(lambda reader: check(reader, as_of, what, hint))
        table = Table(opened)
        first = snapshot and (as_of or 0) < table.upper
        with table.tail(as_of, snapshot=snapshot) as changes, suppress(KeyboardInterrupt):
            out, told, start, deadline = _Changes(form), -1, changes.progress, None
            while until is None or changes.progress < until:
                if deadline is None and seconds is not None and not (first and changes.progress == start):
                    deadline = monotonic() + seconds
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left < 0:
                    return
                updates = changes.next(left)
                if updates.num_rows:
                    out.show(updates)
                if progress and changes.progress > told:
                    told = changes.progress
                    click.echo(json.dumps({"progress": told}))


def time_for(
    location: LocationUrls,
    controller: "StorageController",
    reader: "CollectionReader",
    time: int,
    *,
    or_earlier: bool,
) -> int:
    """The time to read at: `time`, once it is complete; with `or_earlier` the latest complete one before it.

    A collection that nobody has written is empty at each time that is past.
    """
    from holdfast.collections.complete_times import at_or_before
    from holdfast.collections.read_seals import complete_with
    from holdfast.text import with_date

    what = f"collection {reader.info.name}"
    upper = reader.upper() if or_earlier else 0
    if not upper:
        open_ = partial(location.open_to_write, create=False)
        complete_with(open_, controller, reader, time, what, _INSTEAD)
        return time
    found = at_or_before(time, reader.since(), upper, what)
    note(f"as of {with_date(found)}")
    return found


class _Changes:
    """Writes changes to standard output, with the names of the columns once."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._names: list[str] = []
        self._widths: list[int] = []
        self._told: list[str] = []

    def show(self, updates: "pa.Table") -> None:
        """Write some changes."""
        from io import BytesIO

        from holdfast.tables.files.formats import write_json_lines

        if self._form == "table":
            self._show_table(updates)
        elif self._form == "csv":
            self._show_csv(updates)
        else:
            buffer = BytesIO()
            write_json_lines(updates, buffer)
            click.echo(buffer.getvalue(), nl=False)

    def _show_table(self, updates: "pa.Table") -> None:
        from holdfast.tables.cells import rows_of

        names = ["_time", "_diff", *(each for each in updates.column_names if not each.startswith("_"))]
        rows = [[cell_of(value) for value in row.values()] for row in rows_of(updates.select(names))]
        if names != self._names:
            # Columns may be added while this runs. Later rows keep the widths of the first ones.
            self._widths = [max(map(len, cells)) for cells in zip(names, *rows, strict=True)]
            self._names = names
            rows.insert(0, names)
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, self._widths, strict=True))
            click.echo("  ".join(cells).rstrip())

    def _show_csv(self, updates: "pa.Table") -> None:
        from io import BytesIO

        from pyarrow import csv

        from holdfast.tables.files.formats import bytes_as_text

        names = self._names or updates.column_names
        added = [each for each in updates.column_names if each not in names]
        if added and self._told != added:
            # A file has one header. Rows below a second header would be read under the first.
            click.echo(
                f"not shown, as it was added since the start: {', '.join(added)}; tail again", err=True
            )
            self._told = added
        buffer = BytesIO()
        headed = csv.WriteOptions(include_header=not self._names)
        csv.write_csv(bytes_as_text(updates.select(names)), buffer, headed)
        click.echo(buffer.getvalue(), nl=False)
        self._names = names
