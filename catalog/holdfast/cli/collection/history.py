"""`holdfast collection history`: show who wrote what to a collection, and when."""

from pathlib import Path

import click

from holdfast.cli.collection.place import location_options, opened_table
from holdfast.cli.facts import shown_moment
from holdfast.cli.location import LocationUrls
from holdfast.cli.rows.text import FORMATS


@click.command(short_help="Show who wrote what, and when.")
@location_options
@click.argument("name")
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

    'added' and 'removed' are the numbers of rows; an updated row counts in both. The writes begin after the
    since of the collection, because earlier ones are merged. Commands are kept for 30 days. Rows of an
    unknown writer are shown as 'write'.
    """
    from holdfast.cli.rows.show import show_rows
    from holdfast.tables.history import history

    with opened_table(location.open_to_look(), name) as opened:
        since, found = history(opened, limit)
    told = f"the writes begin after {shown_moment(since)}" if since else "the writes are complete"
    if found.num_rows == limit:
        told = f"the last {limit:,} entries"
    click.echo(told, err=True)
    show_rows(found.to_batches(), found.schema, form, output, limit=limit, diff=True)
