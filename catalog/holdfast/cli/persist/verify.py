"""`holdfast persist verify`: read all shards again and check them. Nothing is written."""

import click

from holdfast.cli.facts import count, emit_json, json_option
from holdfast.cli.location import open_to_look
from holdfast.cli.persist.arguments import ShardCommand, chosen, location_arguments
from holdfast.cli.progress import ProgressLine
from holdfast.text import one_line


@click.command(cls=ShardCommand, short_help="Read all shards again and check them.")
@location_arguments
@click.argument("shard", required=False)
@json_option
@click.pass_context
def verify(ctx: click.Context, url: str, consensus: str | None, shard: str | None, as_json: bool) -> None:
    """Read all shards of a location, or one, and check all invariants of the stored data.

    \b
    holdfast persist verify

    Each finding is one line, with the key of the damaged object. Exit code 1 means that there are findings.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.persist.admin.verify import of_store, without_log
    from holdfast.persist.admin.verify import verify as audit

    with open_to_look(url, consensus) as client, ProgressLine("reading") as progress:
        lost = of_store(client)
        # If the store itself is damaged, its logs can't be read at all.
        found = [] if lost else [audit(client, each, looking_at=progress) for each in chosen(client, shard)]
        if shard is None and not lost:
            lost = without_log(client)
    findings = [*(finding for each in found for finding in each.findings), *lost]
    rows, parts = sum(each.rows for each in found), sum(each.parts for each in found)
    if as_json:
        emit_json({"shards": len(found), "rows": rows, "parts": parts, "findings": findings})
    else:
        for finding in findings:
            click.echo(one_line(f"{finding.key}: {finding.what}"))
        what = f"{count(rows, 'row')} in {count(parts, 'part')} of {count(len(found), 'shard')}"
        told = count(len(findings), "finding") if findings else "all is well"
        click.echo(f"read {what}: {told}", err=True)
        for hint in dict.fromkeys(finding.hint for finding in findings if finding.hint):
            click.echo(one_line(f"  hint: {hint}"), err=True)
    ctx.exit(1 if findings else 0)
