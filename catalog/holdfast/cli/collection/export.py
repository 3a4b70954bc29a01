"""`holdfast collection export`: write a collection to Parquet files, an Iceberg or a Delta table."""

import click

from holdfast.cli.collection.place import location_options, name_argument, opened_table, time
from holdfast.cli.facts import count
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import ProgressLine, note
from holdfast.errors import BadInput


@click.command(short_help="Write the contents to Parquet, Iceberg or Delta.")
@location_options
@name_argument
@click.argument("target")
@click.option("--as-of", metavar="TIME", type=time, help="Milliseconds or an ISO date. Default: the latest.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("parquet", "iceberg", "delta")),
    default="parquet",
    show_default=True,
    help="What to write.",
)
@click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    help="A property of the Iceberg catalog, as for pyiceberg.",
)
def export(
    location: LocationUrls, name: str, target: str, as_of: int | None, form: str, properties: tuple[str, ...]
) -> None:
    """Write the contents of a collection as of one time. Nothing is written to this location.

    \b
    holdfast collection export orders /data/orders-export
    holdfast collection export orders s3://lake/orders --format delta
    holdfast collection export orders lake.shop.orders --format iceberg

    For parquet, TARGET is a folder that doesn't exist, or its URL. The file _manifest.json is written last.
    It has the time, the number of rows and a checksum. 'holdfast collection restore --create' makes a
    collection of it, also in another location. For delta, TARGET is the path or URL of a Delta table. For
    iceberg, it is CATALOG.NAMESPACE.TABLE. Both get the rows in place of those of an earlier export.

    If you repeat the command with --as-of and the time of the first run, it finds that export and writes
    nothing.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.collections.snapshots.manifest import SnapshotManifest, checksum_text
    from holdfast.tables.export import export_to
    from holdfast.tables.moments import dated
    from holdfast.text import with_date

    if properties and form != "iceberg":
        raise BadInput("--property can be used only with --format iceberg")
    if wrong := [each for each in properties if "=" not in each]:
        raise BadInput(f"property {wrong[0]!r} has no value", hint="write it as NAME=VALUE")
    given = dict(each.split("=", 1) for each in properties)
    with opened_table(location.open_to_look(), name) as opened, ProgressLine("writing") as progress:
        at = opened.complete(as_of)
        with dated(f"collection {name}"):
            found = export_to(opened, at, target, progress.rows, form, given)
    last = (
        f"checksum {checksum_text(found.checksum)}"
        if isinstance(found, SnapshotManifest)
        else f"version {found.version}"
    )
    note(f"{target} has {count(found.rows, 'row')} of {name} as of {with_date(found.as_of)}, {last}")
