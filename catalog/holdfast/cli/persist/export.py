"""`holdfast persist export`: write the contents of a shard at a time to a file for other tools."""

from pathlib import Path

import click

from holdfast.cli.facts import count
from holdfast.cli.location import open_to_look
from holdfast.cli.persist.arguments import ShardCommand, location_arguments
from holdfast.cli.progress import note
from holdfast.errors import AsOfNotYetAvailable

FORMATS = ("parquet", "arrow", "csv", "json")


@click.command(cls=ShardCommand, short_help="Write the contents of a shard to a file.")
@location_arguments
@click.argument("shard")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--as-of", type=click.IntRange(min=0), metavar="TIME", help="Default: the latest time.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the name of FILE.")
@click.option("--diff", is_flag=True, help="Write each row once, with its count as _diff.")
def export(
    url: str, consensus: str | None, shard: str, file: Path, as_of: int | None, form: str | None, diff: bool
) -> None:
    """Write the contents of SHARD in a location to FILE: Parquet, Arrow, CSV or JSON lines.

    \b
    holdfast persist export SHARD rows.parquet

    If FILE exists, it is replaced once the new file is complete. A FILE that is not a regular file (a device,
    a pipe) is refused. FILE - is standard output. Rows are in the order of the shard, and memory is bounded.
    A row that occurs n times is written n times. CSV and JSON encode binary in base64. JSON writes the
    numbers that it can't express as "NaN", "Infinity" and "-Infinity". Nothing is written to the location.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.cli.rows.output import check_output, write_batches
    from holdfast.persist.rows.stored import logical_rows, logical_schema

    target, form = check_output(file, form)
    with open_to_look(url, consensus) as client:
        reader = client.reader(shard, purpose="export")
        if as_of is None:
            upper = reader.upper()
            if upper == 0:
                raise AsOfNotYetAvailable(0, 0)
            as_of = upper - 1
        snapshot = reader.snapshot(as_of)
        schema = snapshot.schema
        columns = logical_schema(schema.arrow_diff, schema)
        contents = (logical_rows(batch, schema) for batch in snapshot)
        rows = write_batches(contents, columns, target, form, diff=diff)
    note(f"wrote {count(rows, 'row')} as of {as_of} to {file if target else 'standard output'}")
