"""`holdfast collection offsets|errors`: what a source-fed collection was made from, and its bad records."""

import base64
import codecs
from typing import TYPE_CHECKING

import click

from holdfast.cli.collection.place import controller_of, location_options, name_argument, time
from holdfast.cli.facts import shown
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import note
from holdfast.cli.rows.text import FORMATS
from holdfast.errors import AsOfNotYetAvailable

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from holdfast.collections import StorageController

_AS_OF = "Milliseconds or an ISO date. Default: the latest time."


@click.command(short_help="Show which offsets of the source the contents have.")
@location_options
@name_argument
@click.option("--as-of", metavar="TIME", type=time, help=_AS_OF)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: table.")
def offsets(location: LocationUrls, name: str, as_of: int | None, form: str | None) -> None:
    """Show what the contents at one time were made from: for each partition of the source, the next position.

    \b
    holdfast collection offsets orders

    'rows' and 'checksum' describe the messages that were read last. 'behind' is the number of messages that
    Kafka had more when that was committed. For Postgres, 'source' has the publication and the table, and
    'slot' in 'identity' is the replication slot. The contents and their offsets are committed together, so
    this is exact for every readable time.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.ingest import kept

    _show(kept.offsets, "offsets", location, name, as_of, form)


@click.command(short_help="Show the records that could not be decoded.")
@location_options
@name_argument
@click.option("--as-of", metavar="TIME", type=time, help=_AS_OF)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: table.")
def errors(location: LocationUrls, name: str, as_of: int | None, form: str | None) -> None:
    """Show the bad records of a source-fed collection at one time: where they are in the source, and why.

    \b
    holdfast collection errors orders --format csv

    'key' and 'value' are cut at 16 KiB. Bytes that are no text are shown in base64. For CSV, Parquet and Avro
    files, 'position' is the number of the record, and there is no value.
    """  # noqa: D301 - the escape is for the formatter of the help
    _show(_readable_errors, "bad records", location, name, as_of, form)


def _readable_errors(controller: "StorageController", name: str, as_of: int | None) -> "tuple[int, pa.Table]":
    """The bad records, with text in the place of bytes."""
    import pyarrow as pa

    from holdfast.ingest import kept

    time_, found = kept.errors(controller, name, as_of)
    for column in ("key", "value"):
        texts = pa.array([_readable(each) for each in found[column].to_pylist()], pa.string())
        found = found.set_column(found.schema.get_field_index(column), column, texts)
    return time_, found


def _readable(raw: bytes | None) -> str | None:
    """The text in raw bytes, also if it was cut within a character. Other bytes in base64."""
    if raw is None:
        return None
    text = codecs.getincrementaldecoder("utf-8")()
    try:
        return text.decode(raw)
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(raw).decode()}"


def _show(
    read: "Callable[[StorageController, str, int | None], tuple[int, pa.Table]]",
    what: str,
    location: LocationUrls,
    name: str,
    as_of: int | None,
    form: str | None,
) -> None:
    from holdfast.cli.rows.show import show_rows

    with controller_of(location.open_to_look()) as controller:
        try:
            found_at, found = read(controller, name, as_of)
        except AsOfNotYetAvailable as error:
            if error.upper or as_of is not None or form not in {None, "table", "json"}:
                raise
            note(f"no {what}: nothing has been fed yet")
            return
    if not found.num_rows and form in {None, "table"}:
        click.echo(f"no {what} at {shown(found_at)}")
        return
    show_rows(found.to_batches(), found.schema, form, None, limit=None, diff=False)
