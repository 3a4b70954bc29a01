"""`holdfast collection export`: write a collection to a folder of Parquet files."""

import click

from holdfast.cli.collection.place import location_options, name_argument, opened_table, time
from holdfast.cli.facts import count
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import ProgressLine


@click.command(short_help="Write the contents as of one time to a folder of Parquet files.")
@location_options
@name_argument
@click.argument("target")
@click.option("--as-of", metavar="TIME", type=time, help="Milliseconds or an ISO date. Default: the latest.")
def export(location: LocationUrls, name: str, target: str, as_of: int | None) -> None:
    """Write the contents of a collection as of one time to TARGET, a folder that doesn't exist, or its URL.

    The file _manifest.json is written last. It has the time, the number of rows and a checksum. If you repeat
    the command with --as-of and the time of the first run, it finds that export and writes nothing.
    'holdfast collection restore --create' makes a collection of it, also in another location. Nothing is
    written to this location.
    """
    from holdfast.collections.snapshots.manifest import checksum_text
    from holdfast.tables.export import export
    from holdfast.tables.moments import dated
    from holdfast.text import with_date

    with opened_table(location.open_to_look(), name) as opened, ProgressLine("writing") as progress:
        at = opened.complete(as_of)
        with dated(f"collection {name}"):
            found = export(opened, at, target, progress.rows)
    click.echo(
        f"{target} has {count(found.rows, 'row')} of {name} as of"
        f" {with_date(found.as_of)}, checksum {checksum_text(found.checksum)}",
        err=True,
    )
