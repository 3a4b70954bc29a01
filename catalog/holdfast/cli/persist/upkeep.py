"""`holdfast persist gc|compact|sweep`: run upkeep now, and show what it did."""

import click

from holdfast.cli.facts import age, count, emit_json, json_option, size
from holdfast.cli.location import formerly, keep_garbage_option, open_to_look, open_to_write
from holdfast.cli.persist.arguments import ShardCommand, chosen, location_arguments
from holdfast.cli.progress import ProgressLine, note
from holdfast.cli.rows.text import render
from holdfast.text import one_line


@click.command(cls=ShardCommand, short_help="Delete garbage.")
@location_arguments
@click.argument("shard", required=False)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long garbage waits. Default: an hour.",
)
@keep_garbage_option
@formerly("--retain", "--keep-garbage")
@json_option
def gc(
    url: str,
    consensus: str | None,
    shard: str | None,
    grace: float | None,
    keep_garbage_s: float,
    as_json: bool,
) -> None:
    """Delete garbage in all shards of a location, or in one: blobs and versions that nobody needs.

    \b
    holdfast persist gc

    Garbage waits for an hour, because a reader without a lease may still need it. --grace changes that time.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.persist.admin import manual

    with (
        open_to_write(url, consensus, create=False, gc_grace_s=grace, retain_for_s=keep_garbage_s) as client,
        ProgressLine("collecting garbage of") as progress,
    ):
        done = [manual.collect(client, each) for each in progress.over(chosen(client, shard))]
    if as_json:
        emit_json(done)
        return
    rows = [
        [each.shard_id, f"{each.deleted:,}", f"{each.waiting:,}", f"{each.versions:,}"]
        for each in done
        if each.deleted or each.waiting or each.versions
    ]
    if rows:
        click.echo(render(["SHARD", "DELETED", "WAITING", "CUT OFF THE LOG"], rows), nl=False)
    deleted = sum(each.deleted for each in done)
    waiting = sum(each.waiting for each in done)
    note(f"deleted {count(deleted, 'blob')} of {count(len(done), 'shard')}; {waiting:,} wait")
    if kept := [each for each in done if each.kept]:
        click.echo(
            f"nothing of {count(len(kept), 'shard')} is deleted, such as {kept[0].shard_id}:", err=True
        )
        click.echo(f"  {kept[0].kept}", err=True)
        click.echo("'holdfast persist recover' with --accept shows all of them", err=True)


@click.command(cls=ShardCommand, short_help="Compact the batches that are due.")
@location_arguments
@click.argument("shard", required=False)
@click.option("--full", is_flag=True, help="Merge all batches into one, not only those that are due.")
@json_option
def compact(url: str, consensus: str | None, shard: str | None, full: bool, as_json: bool) -> None:
    """Compact the batches that are due in all shards of a location, or in one.

    \b
    holdfast persist compact --full
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.persist.admin import manual

    with open_to_write(url, consensus, create=False) as client, ProgressLine("compacting") as progress:
        done = [manual.compact_now(client, each, full=full) for each in progress.over(chosen(client, shard))]
    if as_json:
        emit_json(done)
        return
    changed = [each for each in done if each.batches != each.batches_before or each.rows != each.rows_before]
    rows = [
        [
            each.shard_id,
            f"{each.batches_before:,} -> {each.batches:,}",
            f"{each.rows_before:,} -> {each.rows:,}",
            f"{size(each.bytes_before)} -> {size(each.size_bytes)}",
        ]
        for each in changed
    ]
    if rows:
        click.echo(render(["SHARD", "BATCHES", "ROWS", "BYTES"], rows), nl=False)
    note(f"compacted {len(changed):,} of {count(len(done), 'shard')}")


@click.command(cls=ShardCommand, short_help="Find blobs that crashes left behind.")
@location_arguments
@click.option("--delete", is_flag=True, help="Make the orphans garbage. Without it nothing is written.")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Skip younger blobs: an upload that still runs may have written them.",
)
@keep_garbage_option
@formerly("--retain", "--keep-garbage")
@json_option
def sweep(
    url: str, consensus: str | None, delete: bool, older_than: float, keep_garbage_s: float, as_json: bool
) -> None:
    """Find orphans in a location: blobs that no version names and no writer is about to name.

    \b
    holdfast persist sweep

    Crashes leave them behind. With --delete they become garbage of their shards, and are deleted when other
    garbage is. If garbage is retained, so are they.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.persist.admin.sweep import check_age
    from holdfast.persist.admin.sweep import sweep as find

    older_than_s = check_age(older_than * 3600)
    client = (
        open_to_write(url, consensus, create=False, retain_for_s=keep_garbage_s)
        if delete
        else open_to_look(url, consensus)
    )
    with client, ProgressLine("looking at blobs of") as progress:
        found = list(find(client, older_than_s=older_than_s, delete=delete, looking_at=progress))
    if as_json:
        emit_json({"deleted": delete, "shards": [each for each in found if each.orphans or each.refused]})
        return
    orphans = [orphan for each in found for orphan in each.orphans]
    if orphans:
        rows = [[orphan.key, size(orphan.size_bytes), age(orphan.age_s)] for orphan in orphans]
        click.echo(render(["ORPHAN", "BYTES", "AGE"], rows), nl=False)
    for each in found:
        if each.refused:
            click.echo(one_line(f"left alone: {each.shard_id}: {each.refused}"), err=True)
    total = size(sum(orphan.size_bytes for orphan in orphans))
    young = sum(each.young for each in found)
    what = f"{count(len(orphans), 'orphan')} of {total} in {count(len(found), 'shard')}"
    note(f"{'released' if delete else 'found'} {what}; {young:,} too young to tell")
    if orphans and not delete:
        click.echo("nothing was deleted: pass --delete to delete", err=True)
