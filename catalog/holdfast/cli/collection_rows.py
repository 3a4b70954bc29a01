"""`holdfast collection read|write|diff|tail`: rows out of a collection and into it.

Rows of a multiset come out as often as they are in it; with `--diff` once, with their count.
"""

import json
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from holdfast.cli.collection_place import (
    controller_of,
    location_option,
    refuse_dropped,
    shown,
    table_of,
    time,
)
from holdfast.cli.location import open_to_look, open_to_write
from holdfast.cli.persist_show import count
from holdfast.cli.rows import FORMATS, check_file, read_rows, write_rows
from holdfast.errors import AsOfNotYetAvailable, BadInput

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.storage import CollectionInfo

_FILE = click.Path(path_type=Path, dir_okay=False)
_AS_OF = "Milliseconds or an ISO date; default: latest."
_LIMIT = click.IntRange(1, (1 << 63) - 1)
_TAIL_FORMATS = ("table", "csv", "json")


@click.command(short_help="Show its contents as of one time.")
@location_option
@click.argument("name")
@click.option("--as-of", metavar="TIME", type=time, help=_AS_OF)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the output's name, or table.")
@click.option("--output", metavar="FILE", type=_FILE, help="Write here.")
@click.option("--limit", metavar="N", type=_LIMIT, help="At most so many rows.")
@click.option("--diff", is_flag=True, help="Each row once, with its count in _diff.")
def read(
    url: str,
    name: str,
    as_of: int | None,
    form: str | None,
    output: Path | None,
    limit: int | None,
    diff: bool,
) -> None:
    """Show the contents of a collection as of one time.

    The same time gives the same rows, whenever it is asked for, as long as it is not before the collection's
    since. Files are CSV, JSON lines, Parquet or Arrow IPC.
    """
    with (
        controller_of(open_to_look(url)) as controller,
        controller.reader(name, purpose="holdfast collection read") as reader,
    ):
        try:
            snapshot = reader.snapshot(as_of)
        except AsOfNotYetAvailable as error:
            if error.upper == 0 and as_of is None:
                raise BadInput(f"collection {name} is empty: nothing has been written yet") from error
            raise
        write_rows(snapshot.to_table(), form, output, limit=limit, diff=diff)


@click.command(short_help="Show what differs between two times.")
@location_option
@click.argument("name")
@click.option("--from", "start", metavar="TIME", type=time, required=True, help="What was before.")
@click.option("--to", "end", metavar="TIME", type=time, help="What came of it; default: latest.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the output's name, or table.")
@click.option("--output", metavar="FILE", type=_FILE, help="Write here.")
@click.option("--limit", metavar="N", type=_LIMIT, help="At most so many rows.")
def diff(
    url: str,
    name: str,
    start: int,
    end: int | None,
    form: str | None,
    output: Path | None,
    limit: int | None,
) -> None:
    """Show what differs between two times: rows that came (_diff 1) and rows that went (_diff -1)."""
    with table_of(open_to_look(url), name) as table:
        write_rows(table.diff(start, end), form, output, limit=limit, diff=True)


@click.command(short_help="Follow its changes as they come.")
@location_option
@click.argument("name")
@click.option("--as-of", metavar="TIME", type=time, help="Changes after this; default: from now on.")
@click.option("--snapshot", is_flag=True, help="The rows as of that time first.")
@click.option("--until", metavar="TIME", type=time, help="End when all changes before this are out.")
@click.option("--for", "seconds", metavar="SECONDS", type=click.FloatRange(0), help="End after so long.")
@click.option("--format", "form", type=click.Choice(_TAIL_FORMATS), default="table", show_default=True)
@click.option("--progress", is_flag=True, help="With json: tell up to when changes are complete.")
def tail(
    url: str,
    name: str,
    as_of: int | None,
    snapshot: bool,
    until: int | None,
    seconds: float | None,
    form: str,
    progress: bool,
) -> None:
    """Follow a collection: show its changes as they come, until interrupted.

    Each has the time (_time, in milliseconds) at which a row came (_diff 1) or went (_diff -1).
    """
    if progress and form != "json":
        raise BadInput("--progress is for --format json", hint="its lines are objects with 'progress'")
    deadline = None if seconds is None else monotonic() + seconds
    with table_of(open_to_look(url), name) as table, table.tail(as_of, snapshot=snapshot) as changes:
        out, told = _Changes(form), -1
        try:
            while (until is None or changes.progress < until) and not table.info.dropped:
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left < 0:
                    return
                updates = changes.next(left)
                if updates.num_rows:
                    out.show(updates)
                if progress and changes.progress > told:
                    told = changes.progress
                    click.echo(json.dumps({"progress": told}))
        except KeyboardInterrupt:
            return


class _Changes:
    """Changes on standard output, the names of the columns once."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._headed = False

    def show(self, updates: "pa.Table") -> None:
        """Show some."""
        from io import BytesIO

        from holdfast.cli.row_formats import encode, plain

        if self._form == "table":
            names = ["_time", "_diff", *(each for each in updates.column_names if not each.startswith("_"))]
            rows = updates.select(names).to_pylist()
            if not self._headed:
                click.echo("  ".join(names))
            for row in rows:
                click.echo("  ".join("" if cell is None else str(plain(cell)) for cell in row.values()))
        else:
            buffer = BytesIO()
            encode(updates, self._form, buffer)
            data = buffer.getvalue()
            if self._form == "csv" and self._headed:
                data = data.partition(b"\n")[2]
            click.echo(data, nl=False)
        self._headed = True


@click.command(short_help="Append, upsert or delete the rows of a file.")
@location_option
@click.argument("name")
@click.argument("file", type=_FILE)
@click.option("--format", "form", type=click.Choice(FORMATS[1:]), help="Default: by the file's name.")
@click.option("--upsert", is_flag=True, help="In the place of rows that have the same key.")
@click.option("--delete", is_flag=True, help="Take away the rows that have these keys.")
@click.option("--at", metavar="TIME", type=time, help="The time of the rows; default: now.")
@click.option(
    "--new-upper", metavar="TIME", type=time, help="What is complete then; default: just after the rows."
)
def write(
    url: str,
    name: str,
    file: Path,
    form: str | None,
    upsert: bool,
    delete: bool,
    at: int | None,
    new_upper: int | None,
) -> None:
    """Append the rows of a file (- for standard input), all at one time, or at their own in a column _time.

    A column _diff tells how often to add a row; -1 takes it away. With --upsert rows take the place of those
    with the same key, with --delete all rows of the keys in the file go; both as one step.
    """
    if upsert and delete:
        raise BadInput("--upsert and --delete don't go together")
    if (upsert or delete) and (at is not None or new_upper is not None):
        raise BadInput(f"--{'upsert' if upsert else 'delete'} chooses the time", hint="leave it out")
    check_file(file, form)
    from holdfast import tables

    with controller_of(open_to_look(url)) as controller:
        info = controller.describe(name)
        refuse_dropped(info)
        rows = read_rows(file, form, info.schema)
        upper = controller.frontiers(info.collection_id).upper
        now = max(upper, controller.client.clock.wall_ms())
    own_times = at is not None or new_upper is not None or "_time" in rows.column_names
    if own_times and not (upsert or delete):
        _append(url, info, rows, upper, now if at is None else at, new_upper)
        return
    change = (tables.Upsert if upsert else tables.Delete if delete else tables.Append)(rows)
    change.prepare(info.name, info.schema)  # refuses what can't be, before anything is opened for writing
    with table_of(open_to_write(url, create=False), info.collection_id) as table:
        written = tables.write({table: change})
    done = "deleted the rows of" if delete else "put" if upsert else "wrote"
    what = count(rows.num_rows, "key" if delete else "row" if upsert else "update")
    click.echo(f"{done} {what} {'from' if delete else 'to'} {name}: complete up to {written + 1}", err=True)


def _append(
    url: str, info: "CollectionInfo", rows: "pa.Table", upper: int, at: int, new_upper: int | None
) -> None:
    """Append rows at times that were given, from the upper that the collection had."""
    from holdfast.persist.canonical import prepare_updates, time_bounds

    updates = prepare_updates(info.schema, rows, default_time=at)
    first, last = time_bounds(updates) or (at, at)
    if first < upper:
        raise BadInput(
            f"collection {info.name} is complete up to {upper}: nothing can be added at {first}",
            hint=f"write at {upper} or later",
        )
    if new_upper is None:
        new_upper = last + 1
    elif new_upper <= last:
        raise BadInput(
            f"--new-upper {new_upper} is not above the last time of the rows, {last}",
            hint=f"give {last + 1} or more",
        )
    with controller_of(open_to_write(url, create=False)) as controller:
        writer = controller.writer(info.collection_id, purpose="holdfast collection write")
        writer.append(updates, upper, new_upper)
    told = count(updates.num_rows, "update")
    click.echo(f"wrote {told} to {info.name}: complete up to {shown(new_upper)}", err=True)
