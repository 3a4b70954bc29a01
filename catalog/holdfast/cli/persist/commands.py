"""`holdfast persist`: the group of commands, and `inspect`."""

import json
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

import click

from holdfast.cli.facts import count, emit_list, frontier, list_option, moment, size
from holdfast.cli.location import open_to_look
from holdfast.cli.persist.arguments import ShardCommand, location_arguments
from holdfast.cli.persist.backup import backup, restore
from holdfast.cli.persist.export import export
from holdfast.cli.persist.holds import holds
from holdfast.cli.persist.names import names
from holdfast.cli.persist.recover import recover
from holdfast.cli.persist.upkeep import compact, gc, sweep
from holdfast.cli.persist.verify import verify
from holdfast.cli.progress import note
from holdfast.cli.rows.text import render, table_width
from holdfast.text import one_line

if TYPE_CHECKING:
    from holdfast.persist import ShardInfo


@click.group()
def persist() -> None:
    """Inspect and maintain the shards of a location."""


@persist.command(cls=ShardCommand, short_help="Show all shards, or one.")
@location_arguments
@click.argument("shard", required=False)
@list_option
def inspect(url: str, consensus: str | None, shard: str | None, form: str) -> None:
    """Show all shards of a location, or one: its contents and its holds.

    \b
    holdfast persist inspect
    holdfast persist inspect SHARD --format json
    """  # noqa: D301 - the escape is for the formatter of the help
    with open_to_look(url, consensus) as client:
        shards = [client.inspect(each) for each in ([shard] if shard else client.shards())]
        location_id = client.location_id
    if form != "table":
        found = [json.loads(info.to_json()) for info in shards]
        if shard and form == "json":
            click.echo(json.dumps(found[0], indent=2))
        else:
            emit_list(form, found)
    elif shard:
        click.echo(_one(shards[0]), nl=False)
    else:
        click.echo(_all(shards), nl=False)
        note(f"{count(len(shards), 'shard')} in location {location_id}")


def _all(shards: "list[ShardInfo]") -> str:
    columns = ["SHARD", "SINCE", "UPPER", "ROWS", "BYTES", "HOLDS", "USED FOR"]
    rows = [_row(info) for info in shards]
    if sys.stdout.isatty() and shutil.get_terminal_size().columns < table_width(columns, rows):
        return "".join(map(_stacked, shards))
    return render(columns, rows)


def _stacked(info: "ShardInfo") -> str:
    """A shard on several lines, for a terminal that is too narrow for the table."""
    _, since, upper, _, stored, _, used_for = _row(info)
    frontiers = "finalized" if info.finalized else f"since {since}, upper {upper}"
    facts = f"{frontiers}; {count(info.rows, 'row')} in {stored}; {count(len(info.holds), 'hold')}"
    width = max(shutil.get_terminal_size().columns, 40)
    wrapped = [
        textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        for text in (facts, f"for {used_for}" if used_for else "")
        if text
    ]
    return "\n".join([info.shard_id, *wrapped, ""])


def _row(info: "ShardInfo") -> list[str]:
    from holdfast.collections.who import without_process

    # Many processes may have written for one purpose.
    purposes = dict.fromkeys(map(without_process, (*info.writers, *(hold.purpose for hold in info.holds))))
    return [
        info.shard_id,
        frontier(info.since),
        "finalized" if info.finalized else frontier(info.upper),
        f"{info.rows:,}",
        size(info.size_bytes),
        str(len(info.holds)),
        one_line(", ".join(purposes)),
    ]


def _pending(info: "ShardInfo") -> list[tuple[str, str]]:
    """The facts that only shards of mode WRITE_SEAL have."""
    if info.mode == "APPEND":
        return []
    return [
        ("mode", info.mode),
        ("pending", f"{count(info.pending_rows, 'update')} in {_batches(info.pending)}"),
    ]


def _one(info: "ShardInfo") -> str:
    rollup = f"rollup of version {info.rollup_seqno}" if info.rollup_seqno else "no rollup yet"
    parts = f"{count(info.parts, 'part')}, {info.inline_parts} inline"
    facts = [
        ("shard", info.shard_id),
        ("key", ", ".join(info.key)),
        ("value", ", ".join(info.value)),
        *(("earlier schema", known) for known in reversed(info.schemas[:-1])),
        ("since", frontier(info.since)),
        ("upper", frontier(info.upper) + (" (finalized)" if info.finalized else "")),
        ("rows", f"{count(info.rows, 'update')}, {size(info.size_bytes)}"),
        ("batches", f"{info.batches} ({parts})"),
        *_pending(info),
        ("garbage", f"{count(info.garbage, 'blob')} to delete"),
        ("version", f"{info.seqno}, {moment(info.wall_ms)} by {info.hostname} ({info.applier_version})"),
        ("log", f"from version {max(info.gc_seqno, 1)}, {rollup}"),
        ("writers", ", ".join(dict.fromkeys(info.writers)) or "none"),
    ]
    text = render(["FACT", "VALUE"], [list(fact) for fact in facts])
    holds = [
        [frontier(hold.since), hold.kind, hold.purpose, hold.hostname or _token(hold.token)]
        for hold in info.holds
    ]
    if not holds:
        return text + "nothing holds the since\n"
    return text + "\n" + render(["HELD AT", "HOLD", "FOR", "BY"], holds)


def _batches(number: int) -> str:
    return f"{number} batch{'' if number == 1 else 'es'}"


def _token(fingerprint: str) -> str:
    """The token of a critical hold, if it has one."""
    return "" if fingerprint == "none" else f"token {fingerprint}"


for command in (holds, names, gc, compact, sweep, export, verify, backup, restore, recover):
    persist.add_command(command)
