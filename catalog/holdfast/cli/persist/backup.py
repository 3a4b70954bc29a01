"""`holdfast persist backup` and `restore`: copy a location to a folder, and a folder to a location."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.facts import count, emit_json, json_option, size
from holdfast.cli.location import located, url_option
from holdfast.cli.persist.arguments import ShardCommand, location_arguments
from holdfast.cli.progress import ProgressLine, note
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.persist.admin.backup import Copied


@click.command(cls=ShardCommand, short_help="Copy a location into a folder while its clients run.")
@location_arguments
@click.argument("target", type=click.Path(path_type=Path))
@json_option
def backup(url: str, consensus: str | None, target: Path, as_json: bool) -> None:
    """Copy a location into the new folder TARGET, as of one moment. Then read the copy to check it.

    \b
    holdfast persist backup /backup/shop --url /data/shop

    The consensus store must be a SQLite file. The blobs may be anywhere. Clients can write during the backup.
    TARGET appears once it is complete. A folder that is not empty is refused. Nothing is written to the
    location.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.persist.admin.backup import back_up
    from holdfast.persist.stores.url import open_stores

    whole, blob = (url, None) if consensus is None else (None, url)
    blobs, log = open_stores(whole, blob=blob, consensus=consensus, create=False, read_only=True)
    try:
        with ProgressLine("copying") as progress:
            copied = back_up(blobs, log, target.absolute(), looking_at=progress)
    finally:
        log.close()
        blobs.close()
    _show(copied, f"backed up to {target}", as_json)


@click.command(short_help="Create a location from a backup.")
@url_option
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.argument("target", metavar="[URL]", required=False)
@json_option
def restore(url: str | None, source: Path, target: str | None, as_json: bool) -> None:
    """Create a location in a folder from BACKUP, a folder that 'backup' made, and check it.

    \b
    holdfast persist restore /backup/shop --url /data/shop

    First stop every client of the location, and move its old folder away: a folder that is not empty is
    refused. The logs are created anew, so a process that knows later versions fails instead of continuing
    from the past. Leases and the write lock are released. Critical holds stay.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.locations import location_url
    from holdfast.persist.admin.backup import restore as restored
    from holdfast.persist.stores.url import folder_of

    found = located(target or url, None)
    if found.consensus is not None:
        raise BadInput("a backup is restored into one folder", hint="name one that has no consensus store")
    url = location_url(found.url)
    with ProgressLine("copying") as progress:
        copied = restored(source.absolute(), folder_of(url), looking_at=progress)
    _show(copied, f"restored to {url}", as_json)


def _show(copied: "Copied", what: str, as_json: bool) -> None:
    if as_json:
        emit_json(copied)
        return
    shards, blobs = count(copied.shards, "shard"), count(copied.blobs, "blob")
    note(f"{what}: location {copied.location_id}, {shards}, {blobs}, {size(copied.size_bytes)}")
