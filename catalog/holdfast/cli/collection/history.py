"""`holdfast collection history`: show who wrote what to a collection, and when."""

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from holdfast.cli.collection.place import location_options, name_argument, opened_table
from holdfast.cli.facts import shown_moment, shown_result
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import note
from holdfast.cli.rows.text import FORMATS

if TYPE_CHECKING:
    import pyarrow as pa

_WIDE: Final = 100
"""A terminal with fewer columns than this shows moments in seconds."""


@click.command(short_help="Show who wrote what, and when.")
@location_options
@name_argument
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Show the last N.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the name of FILE, or table.")
@click.option(
    "--output", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Write to FILE."
)
def history(location: LocationUrls, name: str, limit: int, form: str | None, output: Path | None) -> None:
    """Show who wrote what to a collection, and when, oldest first: appends, upserts, deletes, loads, and
    commands such as alter or handover.

    \b
    holdfast history orders --limit 20

    'who' is the program, and 'user' and 'pid' are its user and its process. 'added' and 'removed' are the
    numbers of rows; an updated row counts in both. The writes begin after the since of the collection,
    because earlier ones are merged. Commands are kept for 30 days. Rows of an unknown writer are shown as
    'write'.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.cli.rows.show import show_rows
    from holdfast.tables.history import history

    with opened_table(location.open_to_look(), name) as opened:
        since, found = history(opened, limit)
    told = f"the writes begin after {shown_moment(since)}" if since else "all writes are shown"
    if found.num_rows == limit:
        told = "the last entry" if limit == 1 else f"the last {limit:,} entries"
    note(told)
    if output is None and form in {None, "table"}:
        wide = not sys.stdout.isatty() or shutil.get_terminal_size().columns >= _WIDE
        found = _for_people(found, "ms" if wide else "s")
    spare = ("pid", "host", "time", "user")
    show_rows(found.to_batches(), found.schema, form, output, limit=limit, diff=True, spare=spare)


def _for_people(found: "pa.Table", unit: str) -> "pa.Table":
    """The history with moments in a unit, however many digits they need, and details as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Arrow's own text has the digits of the unit, as in CSV.
    moments = found["when"].cast(pa.timestamp(unit), safe=False).cast(pa.string())
    details = pa.array([_detail(each) for each in found["detail"].to_pylist()], pa.string())
    names = found.column_names
    found = found.set_column(names.index("when"), "when", pc.binary_join_element_wise(moments, "Z", ""))
    return found.set_column(names.index("detail"), "detail", details)


def _detail(text: str | None) -> str | None:
    return None if text is None else shown_result(json.loads(text))
