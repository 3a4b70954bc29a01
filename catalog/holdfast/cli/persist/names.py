"""`holdfast persist names`: show the names of shards. Nothing is written."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.facts import count, emit_list, list_option
from holdfast.cli.location import open_to_look
from holdfast.cli.persist.arguments import ShardCommand, location_arguments
from holdfast.cli.progress import note
from holdfast.cli.rows.text import render

if TYPE_CHECKING:
    from holdfast.persist import ShardInfo


@click.command(cls=ShardCommand, short_help="Show the names of shards.")
@location_arguments
@list_option
def names(url: str, consensus: str | None, form: str) -> None:
    """Show the names in a location and their shards.

    \b
    holdfast persist names

    The name of a finalized shard stays until it is forgotten.
    """  # noqa: D301 - the escape is for the formatter of the help
    with open_to_look(url, consensus) as client:
        found = [(name, client.inspect(shard)) for name, shard in client.names().items()]
    records = [
        {
            "name": name,
            "shard_id": info.shard_id,
            "schema": _newest(info),
            "finalized": info.finalized,
        }
        for name, info in found
    ]
    if emit_list(form, records, ("name", "shard_id", "schema", "finalized")):
        return
    rows = [[name, info.shard_id, "finalized" if info.finalized else _newest(info)] for name, info in found]
    if rows:
        click.echo(render(["NAME", "SHARD", "HAS"], rows), nl=False)
    note(count(len(rows), "name"))


def _newest(info: "ShardInfo") -> str:
    return info.schemas[-1].partition(": ")[2]
