"""`holdfast persist holds`: show who holds the since back, and how far. Nothing is written."""

import click

from holdfast.cli.facts import age, count, emit_list, frontier, list_option
from holdfast.cli.location import open_to_look
from holdfast.cli.persist.arguments import ShardCommand, chosen, location_arguments
from holdfast.cli.progress import note
from holdfast.cli.rows.text import render
from holdfast.errors import CLOSED


@click.command(cls=ShardCommand, short_help="Show the holds of shards.")
@location_arguments
@click.argument("shard", required=False)
@list_option
def holds(url: str, consensus: str | None, shard: str | None, form: str) -> None:
    """Show the holds on the since of all shards of a location, or of one shard.

    \b
    holdfast persist holds

    A leased hold ends when its holder has not renewed it for its whole lease. A critical hold never ends by
    itself. Its token is shown as a fingerprint.
    """  # noqa: D301 - the escape is for the formatter of the help
    with open_to_look(url, consensus) as client:
        found = [client.inspect(each) for each in chosen(client, shard)]
    listed = [(info, hold) for info in found for hold in info.holds]
    # The hold that is farthest behind keeps the most from compaction.
    listed.sort(key=lambda each: (each[0].upper - each[1].since, each[0].shard_id), reverse=True)
    records = [
        {
            "shard_id": info.shard_id,
            "upper": info.upper,
            "id": hold.id,
            "kind": hold.kind,
            "purpose": hold.purpose,
            "since": hold.since,
            "hostname": hold.hostname or None,
            "lease_s": hold.lease_s,
            "version": hold.version,
            "token": hold.token or None,
        }
        for info, hold in listed
    ]
    if emit_list(form, records):
        return
    rows = [
        [
            info.shard_id,
            frontier(hold.since),
            "" if info.upper >= CLOSED else f"{max(0, info.upper - hold.since):,}",
            hold.purpose,
            hold.hostname or "-",
            "never ends" if hold.lease_s is None else f"{age(hold.lease_s)} lease",
            hold.token or "-",
        ]
        for info, hold in listed
    ]
    if rows:
        click.echo(render(["SHARD", "HELD AT", "BEHIND", "FOR", "BY", "ENDS", "TOKEN"], rows), nl=False)
    note(f"{count(len(rows), 'hold')} on {count(len(found), 'shard')}")
