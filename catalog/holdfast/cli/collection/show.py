"""`holdfast collection list|describe|holds|jobs`: show the records of collections and what is stored."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.collection.place import (
    ahead_ms,
    column_facts,
    controller_of,
    facts_of,
    location_options,
    name_argument,
)
from holdfast.cli.completing import remember_tables
from holdfast.cli.facts import (
    age,
    count,
    emit_list,
    json_option,
    list_option,
    moment,
    plain,
    shown,
    shown_moment,
    shown_result,
    size,
)
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import note
from holdfast.cli.rows.text import cell_of, render
from holdfast.text import one_line

if TYPE_CHECKING:
    from holdfast.collections import (
        CollectionHold,
        CollectionInfo,
        CommandRecord,
        JobRecord,
        RenditionInfo,
        StorageController,
    )

_COMMANDS = 10

R = TypeVar("R")


@click.command("list", short_help="Show all collections.")
@location_options
@list_option
def list_(location: LocationUrls, form: str) -> None:
    """Show all collections, with their shards and the times that you can read.

    \b
    holdfast ls
    holdfast ls --url s3://bucket/prefix --format json

    You can read a collection at times from its since on and before its upper.
    """  # noqa: D301 - the escape is for the formatter of the help
    with controller_of(location.open_to_look()) as controller:
        found = [facts_of(controller, info) for info in controller.list_collections()]
        now_ms = controller.client.store_or_host_ms()
    for fact in found:
        fact["ahead_ms"] = ahead_ms(fact["upper"], now_ms)
    remember_tables(location.url, location.consensus, (each["name"] for each in found))
    columns = ("name", "id", "state", "shards", "since", "upper")
    if emit_list(form, found, (*columns, "ahead_ms")):
        return
    from holdfast.collections.complete_times import to_repair

    rows = [[shown(fact[column]) for column in columns] for fact in found]
    click.echo(render([column.upper() for column in columns], rows, spare=["ID"]), nl=False)
    for fact in found:
        if "problem" in fact:
            click.echo(fact["problem"], err=True)
        if fact["ahead_ms"] is not None:
            ahead = f"AHEAD of the store's clock by {age(fact['ahead_ms'] / 1000)}"
            click.echo(f"{fact['name']} is {ahead}: {to_repair(fact['name'])}", err=True)


@click.command(short_help="Show one collection: columns, renditions, holds, history.")
@location_options
@name_argument
@json_option
def describe(location: LocationUrls, name: str, as_json: bool) -> None:
    """Show one collection: its columns, its renditions, who holds its times, and the commands run on it.

    \b
    holdfast collection describe orders

    A rendition is a stored copy of the collection with its own number of shards. At each time exactly one
    rendition is current. Rows and bytes are as stored, so updates that are not compacted yet count more than
    once. If a source feeds a rendition, its name is shown. For Postgres it has the publication and the table,
    and the replication slot is shown too.
    """  # noqa: D301 - the escape is for the formatter of the help
    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
        facts = facts_of(controller, info)
        from holdfast.collections.periods import shown_period

        facts["ahead_ms"] = ahead_ms(facts["upper"], controller.client.store_or_host_ms())
        facts["retain"] = shown_period(info.retain_ms)
        facts["metadata_shard"] = info.metadata_shard
        facts["columns"] = column_facts(info)
        facts["renditions"] = [_rendition(controller, info, each) for each in info.renditions]
        held = [] if info.dropped else controller.holds(info.collection_id)
        facts["holds"] = [plain(each) for each in held]
        facts["history"] = [_command(each) for each in controller.history(info.collection_id)]
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(_described(facts), nl=False)
    if held:
        click.echo(f"\n{_holds_table(held)}", nl=False)
    if facts["history"]:
        click.echo(f"\n{_history_table(facts['history'])}", nl=False)


@click.command(short_help="Show the holds of a collection.")
@location_options
@name_argument
@list_option
def holds(location: LocationUrls, name: str, form: str) -> None:
    """Show the holds of a collection: their holders, their since, and the retired renditions that they keep.

    \b
    holdfast collection holds orders

    A reader of a collection holds its since, so that it doesn't move. A leased hold ends with its process.
    The others end when they are released.
    """  # noqa: D301 - the escape is for the formatter of the help
    with controller_of(location.open_to_look()) as controller:
        found = controller.holds(name)
    _show_all(found, "hold", plain, _holds_table, form)


@click.command(short_help="Show the jobs of a collection.")
@location_options
@name_argument
@list_option
def jobs(location: LocationUrls, name: str, form: str) -> None:
    """Show the recorded jobs of a collection, oldest first: snapshots, hydrations, named writes and others.

    \b
    holdfast collection jobs orders

    A record shows which attempt of a job may commit, and the result of the last attempt. The progress of a
    running attempt is in its own output.
    """  # noqa: D301 - the escape is for the formatter of the help
    with controller_of(location.open_to_look()) as controller:
        found = controller.jobs(controller.describe(name).collection_id)
    _show_all(found, "job", _job, _jobs_table, form)


def _show_all(
    found: Sequence[R],
    what: str,
    facts: Callable[[R], Any],
    table: Callable[[Sequence[R]], str],
    form: str,
) -> None:
    """Show records in a format, or as a table with their number on stderr."""
    if emit_list(form, [facts(each) for each in found]):
        return
    if found:
        click.echo(table(found), nl=False)
    note(count(len(found), what))


def _job(record: "JobRecord") -> dict[str, Any]:
    return {**plain(record), "state": record.state.name.capitalize(), "result": plain(record.outcome)}


def _rendition(
    controller: "StorageController", info: "CollectionInfo", rendition: "RenditionInfo"
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": rendition.id,
        "state": rendition.state.name.capitalize(),
        "recipe": rendition.recipe.name.capitalize(),
        "held_from": plain(rendition.held_from),
        "held_to": plain(rendition.held_to),
        "start": rendition.start,
        "shards": list(rendition.shards),
        "hash_columns": list(info.names.shown_columns(rendition.hash_columns)),
        "difference_shard": rendition.difference_shard or None,
        "suspect": rendition.suspect or None,
        "upper": None,
        "rows": None,
        "bytes": None,
        "source": None,
        "slot": None,
    }
    if not rendition.dropped and not info.dropped:
        sizes = [controller.client.stored(shard) for shard in rendition.shards]
        uppers = controller.client.recent_uppers(rendition.shards)
        facts["upper"] = plain(min(uppers.values()))
        facts["rows"], facts["bytes"] = (
            sum(each.rows for each in sizes),
            sum(each.size_bytes for each in sizes),
        )
        if rendition.pipeline is not None:
            from holdfast.ingest.kept import own_slot, progress

            if (fed := progress(controller.client, rendition)) is not None:
                facts["source"], facts["slot"] = fed.source or None, own_slot(info, fed) or None
    return facts


def _command(record: "CommandRecord") -> dict[str, Any]:
    return {
        "at_ms": record.at_ms,
        "command": record.kind.name.lower(),
        "who": record.who,
        "host": record.host,
        "token": record.token,
        "result": record.result,
    }


def _described(facts: dict[str, Any]) -> str:
    lines = [
        (key, shown_moment(value) if key in ("since", "upper") else shown(value))
        for key, value in facts.items()
        if not isinstance(value, list) and key != "ahead_ms"
    ]
    if facts["ahead_ms"] is not None:
        after = [key for key, _ in lines].index("upper") + 1
        lines.insert(after, ("", f"AHEAD of the store's clock by {age(facts['ahead_ms'] / 1000)}"))
    for each in facts["renditions"]:
        lines.append((f"rendition {each['id']}", _rendition_line(each)))
        lines += [("", f"SUSPECT: {each['suspect']}")] if each["suspect"] else []
        lines += [("", f"fed from {each['source']}")] if each["source"] else []
        lines += [("", f"replication slot {each['slot']}")] if each["slot"] else []
        lines += [("", shard) for shard in each["shards"]]
        lines += [("", f"{each['difference_shard']} (differences)")] if each["difference_shard"] else []
    width = max(len(key) for key, _ in lines)
    columns = [
        [
            each["name"],
            each["type"],
            "yes" if each["nullable"] else "",
            "yes" if each["key"] else "",
            cell_of(each["comment"]),
        ]
        for each in facts["columns"]
    ]
    listed = "".join(f"{key:<{width}}  {one_line(value)}\n" for key, value in lines)
    return f"{listed}\n{render(('COLUMN', 'TYPE', 'NULLABLE', 'KEY', 'COMMENT'), columns)}"


def _rendition_line(each: dict[str, Any]) -> str:
    words = [each["state"]]
    if each["recipe"] != "Copy":
        words.append(f"({each['recipe'].lower()})")
    if each["held_from"] is not None:
        until = "" if each["held_to"] is None else f" to {each['held_to']}"
        words.append(f"from {each['held_from']}{until}")
    elif each["upper"] is not None:
        words.append(f"filled to {each['upper']}")
    words.append(f"by hash of {', '.join(each['hash_columns'])}")
    if each["rows"] is not None:
        words.append(f"with {count(each['rows'], 'row')}, {size(each['bytes'])}")
    return " ".join(words)


def _holds_table(found: "Sequence[CollectionHold]") -> str:
    rows = [
        [
            hold.kind,
            hold.purpose,
            hold.who or "-",
            hold.host or "-",
            shown(hold.since),
            "-" if hold.age_ms is None else age(hold.age_ms / 1000),
            "its own"
            if hold.own
            else "when released"
            if hold.lease_s is None
            else f"{age(hold.lease_s)} lease",
            ", ".join(hold.keeps) or "-",
        ]
        for hold in found
    ]
    return render(["HOLD", "FOR", "WHO", "HOST", "SINCE", "AGE", "ENDS", "KEEPS"], rows)


def _jobs_table(found: "Sequence[JobRecord]") -> str:
    rows = [
        [
            job.kind,
            cell_of(job.slot),
            job.state.name.capitalize(),
            str(job.attempt),
            job.by or "-",
            moment(job.started_ms),
            age((job.finished_ms - job.started_ms) / 1000) if job.finished_ms else "-",
            cell_of(job.error or ", ".join(f"{key} {value}" for key, value in job.outcome.items())) or "-",
        ]
        for job in found
    ]
    return render(["JOB", "SLOT", "STATE", "ATTEMPT", "BY", "STARTED", "TOOK", "RESULT"], rows)


def _history_table(history: list[dict[str, Any]]) -> str:
    rows = [
        [
            moment(each["at_ms"]),
            each["command"].replace("_", " "),
            each["who"] or "-",
            each["host"] or "-",
            shown_result(each["result"]) or "-",
        ]
        for each in history[-_COMMANDS:]
    ]
    return render(["WHEN", "COMMAND", "WHO", "HOST", "RESULT"], rows)
