"""`holdfast persist recover`: make the logs anew after the consensus store was lost."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.persist_show import count, emit_json, frontier, json_option, location_arguments
from holdfast.cli.progress import Progress
from holdfast.cli.rows import render
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.persist.recover import ShardPlan


@click.command(short_help="Make the logs anew after the consensus store was lost.")
@location_arguments
@click.option("--yes", is_flag=True, help="Do it. Without it nothing is written.")
@click.option(
    "--restored", is_flag=True, help="The consensus store is an older copy, even if nothing shows it."
)
@json_option
@click.pass_context
def recover(
    ctx: click.Context, url: str, consensus: str | None, yes: bool, restored: bool, as_json: bool
) -> None:
    """Make the logs of all shards of the location at URL anew from what is in its blob store.

    For a consensus store that was lost, or restored from an older copy. Stop every other client first: what
    was committed after the newest rollup of a shard is lost, and clients that know it must not go on. Without
    --yes this says what can be had again, and what not; exit code 1 where a shard can't. No blob is deleted.
    """
    from holdfast.persist.recover import Recovery
    from holdfast.persist.storage.location import BLOB_KEY
    from holdfast.persist.storage.url import open_for_recovery

    whole, blob = (url, None) if consensus is None else (None, url)
    blobs, logs, lost = open_for_recovery(whole, blob=blob, consensus=consensus, write=yes, proof=BLOB_KEY)
    try:
        with Progress("looking at") as progress:
            recovery = Recovery(blobs, logs, looking_at=progress)
        plan = recovery.plan
        if plan.healthy and not restored:
            raise BadInput(
                "the consensus store is healthy: there is nothing to recover",
                hint="if it is an older copy all the same, say so with --restored",
            )
        if yes:
            recovery.run(restored=restored)
    finally:
        logs.close()
        blobs.close()
    gone = sum(shard.seqno is None for shard in plan.shards)
    if as_json:
        emit_json({"done": yes, "plan": plan})
        ctx.exit(1 if gone else 0)
    if lost:
        click.echo(f"taken for empty: {lost}", err=True)
    columns = ["SHARD", "LOG ENDS", "COMES BACK AT", "UPPER", "LEFT OVER", "NOTE"]
    click.echo(render(columns, [_row(shard) for shard in plan.shards]), nl=False)
    verb = "recovered" if yes else "can recover"
    click.echo(f"{verb} {len(plan.shards) - gone:,} of {count(len(plan.shards), 'shard')}", err=True)
    if gone:
        verb = "lost" if yes else "would be lost"
        click.echo(
            f"{count(gone, 'shard')} {verb}: only a newer copy of the consensus store has more", err=True
        )
    click.echo("a shard that had neither a log nor a blob is not listed: nothing is left of it", err=True)
    # Of a shard that does not come back nothing is swept: it may be all that is left.
    if any(shard.unnamed for shard in plan.shards if shard.seqno is not None):
        click.echo("left over are blobs of lost appends, and orphans: 'sweep' finds them", err=True)
    if not yes:
        click.echo("nothing was written: --yes does it; stop every other client first", err=True)
    ctx.exit(1 if gone else 0)


def _row(shard: "ShardPlan") -> list[str]:
    left, head = f"{shard.unnamed:,}", str(shard.head or "-")
    if shard.seqno is None:
        return [shard.shard_id, head, "never", "-", left, shard.problem]
    note = "as it is" if shard.healthy else "what was committed later is lost"
    return [shard.shard_id, head, f"version {shard.seqno}", frontier(shard.upper or 0), left, note]
