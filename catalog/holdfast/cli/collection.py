"""`holdfast collection`: make, look at, read and write the collections of a location.

Reading commands open the location without writing anything to it; the others look first, so that what they
refuse leaves it as it was, and only `create` makes a location. Rows of a multiset come out as often as
they are in it; with `--diff` once, with their count. What is heavy is imported in the commands.
"""

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.asking import confirm, somebody_answers
from holdfast.cli.location import open_to_look, open_to_write
from holdfast.cli.rows import FORMATS, read_rows, render, write_rows
from holdfast.errors import CLOSED, AsOfNotYetAvailable, BadInput, NotWritable, StoreUnreachable

if TYPE_CHECKING:
    from holdfast.persist import PersistClient
    from holdfast.storage import CollectionInfo, CollectionSpec, StorageController

LOOKS = ("table", "json")


def _time(text: str) -> int:
    """A collection time: milliseconds since the epoch, or an ISO 8601 date or timestamp (UTC by default)."""
    try:
        time = int(text) if text.isdecimal() else _milliseconds(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise BadInput(f"'{_short(text)}' is neither milliseconds since the epoch nor an ISO date") from None
    if not 0 <= time < CLOSED:
        raise BadInput(
            f"time {_short(text)} is out of range",
            hint="times go from 0 (1970-01-01) to 2^64 - 1, in milliseconds",
        )
    return time


def _milliseconds(moment: datetime) -> int:
    since_epoch = moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.fromtimestamp(0, UTC)
    return since_epoch // timedelta(milliseconds=1)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


@click.group()
def collection() -> None:
    """Make, read and write storage collections."""


def _location(command: Callable[..., None]) -> Callable[..., None]:
    """Which location a command is about."""
    return click.option(
        "--url",
        metavar="URL",
        envvar="HOLDFAST_URL",
        required=True,
        show_envvar=True,
        help="The location, such as file:///dir.",
    )(command)


@contextlib.contextmanager
def _controller(client: "PersistClient") -> Iterator["StorageController"]:
    from holdfast.storage import StorageController

    with client, StorageController(client, who="holdfast collection") as controller:
        yield controller


@collection.command("list")
@_location
@click.option("--format", "look", type=click.Choice(LOOKS), default="table", show_default=True)
def list_(url: str, look: str) -> None:
    """Show all collections: their shards, and the times for which they can be read."""
    with _controller(open_to_look(url)) as controller:
        found = [_facts(controller, info) for info in controller.list_collections()]
    if look == "json":
        click.echo(json.dumps(found, indent=2))
        return
    columns = ("name", "id", "state", "shards", "since", "upper")
    rows = [[_shown(fact[column]) for column in columns] for fact in found]
    click.echo(render([column.upper() for column in columns], rows), nl=False)


@collection.command()
@_location
@click.argument("name")
@click.option("--format", "look", type=click.Choice(LOOKS), default="table", show_default=True)
def describe(url: str, name: str, look: str) -> None:
    """Show one collection, by name or id: its columns, renditions and frontiers."""
    with _controller(open_to_look(url)) as controller:
        info = controller.describe(name)
        facts = _facts(controller, info)
    facts["metadata_shard"] = info.metadata_shard
    facts["columns"] = [
        {
            "name": column.name,
            "type": column.type,
            "nullable": column.nullable,
            "key": column in info.schema.key,
        }
        for column in info.schema.columns
    ]
    facts["renditions"] = [
        {
            "id": rendition.id,
            "start": rendition.start,
            "shards": list(rendition.shards),
            "hash_columns": list(rendition.hash_columns),
        }
        for rendition in info.renditions
    ]
    if look == "json":
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(_described(facts), nl=False)


@collection.command()
@_location
@click.argument("name")
@click.option("--as-of", metavar="TIME", type=_time, help="Milliseconds or an ISO date; default: latest.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the output's name, or table.")
@click.option("--output", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Write here.")
@click.option("--limit", metavar="N", type=click.IntRange(1, (1 << 63) - 1), help="At most so many rows.")
@click.option("--diff", is_flag=True, help="Each row once, with its count in _diff.")
def read(
    url: str,
    name: str,
    as_of: int | None,
    form: str | None,
    output: Path | None,
    limit: int | None,
    diff: bool,
) -> None:
    """Show the contents of a collection as of one time."""
    with (
        _controller(open_to_look(url)) as controller,
        controller.reader(name, purpose="holdfast collection read") as reader,
    ):
        try:
            snapshot = reader.snapshot(as_of)
        except AsOfNotYetAvailable as error:
            if error.upper == 0 and as_of is None:
                raise BadInput(f"collection {name} is empty: nothing has been written yet") from error
            raise
        write_rows(snapshot.to_table(), form, output, limit=limit, diff=diff)


@collection.command()
@_location
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--format", "form", type=click.Choice(FORMATS[1:]), help="Default: by the file's name.")
@click.option("--at", metavar="TIME", type=_time, help="The time of the rows; default: now.")
@click.option(
    "--new-upper", metavar="TIME", type=_time, help="What is complete then; default: just after the rows."
)
def write(url: str, name: str, file: Path, form: str | None, at: int | None, new_upper: int | None) -> None:
    """Append the rows of a file, all at one time, or at their own where they have a column _time.

    A column _diff tells how often to add a row; -1 takes it away.
    """
    from holdfast.persist.canonical import prepare_updates, time_bounds

    rows = read_rows(file, form)
    with _controller(open_to_look(url)) as controller:
        info = controller.describe(name)
        upper = controller.frontiers(name).upper
        if at is None:
            at = max(upper, controller.client.clock.wall_ms())
    updates = prepare_updates(info.schema, rows, default_time=at)
    first, last = time_bounds(updates) or (at, at)
    if first < upper:
        raise BadInput(
            f"collection {name} is complete up to {upper}: nothing can be added at {first}",
            hint=f"write at {upper} or later",
        )
    if new_upper is None:
        new_upper = last + 1
    elif new_upper <= last:
        raise BadInput(
            f"--new-upper {new_upper} is not above the last time of the rows, {last}",
            hint=f"give {last + 1} or more",
        )
    with _controller(open_to_write(url, create=False)) as controller:
        writer = controller.writer(info.collection_id, purpose="holdfast collection write")
        writer.append(updates, upper, new_upper)
    click.echo(f"wrote {updates.num_rows} updates to {name}: complete up to {_shown(new_upper)}", err=True)


@collection.command()
@_location
@click.argument("name")
@click.option("--id", "collection_id", metavar="ID", help="Its id for ever; default: a new UUID.")
@click.option(
    "--key", "keys", metavar="NAME:TYPE", multiple=True, help="A key column; a type may end in '?'."
)
@click.option("--column", "columns", metavar="NAME:TYPE", multiple=True, help="A column; '?' means nullable.")
@click.option("--shards", type=int, default=1, show_default=True)
def create(
    url: str,
    name: str,
    collection_id: str | None,
    keys: tuple[str, ...],
    columns: tuple[str, ...],
    shards: int,
) -> None:
    """Create a collection; the same again, with the same id, is answered with the one that is there."""
    from holdfast.persist import Schema
    from holdfast.storage import CollectionSpec

    schema = Schema.of(key=_columns(keys), value=_columns(columns))
    spec = CollectionSpec(collection_id or str(uuid.uuid4()), name, schema, shards)
    info = _existing(url, spec)
    if info is None:
        with _controller(open_to_write(url, create=True)) as controller:
            info = controller.create_collection(spec)
    click.echo(f"collection {info.name} ({info.collection_id}) with {info.shards} shards")


@collection.command()
@_location
@click.argument("name")
@click.option("--force", is_flag=True, help="Don't wait for its readers.")
@click.option("--yes", is_flag=True, help="Don't ask.")
def drop(url: str, name: str, force: bool, yes: bool) -> None:
    """Drop a collection and all its data, for ever."""
    with _controller(open_to_look(url)) as controller:
        info = controller.describe(name)
    if not yes:
        if not somebody_answers():
            raise BadInput(f"dropping {info.name} needs a yes", hint="give --yes")
        confirm(f"Drop {info.name} ({info.collection_id}) and all its data?")
    with _controller(open_to_write(url, create=False)) as controller:
        info = controller.drop_collection(info.collection_id, force=force)
    click.echo(f"dropped {info.name} ({info.collection_id})")


def _existing(url: str, spec: "CollectionSpec") -> "CollectionInfo | None":
    """The collection if it was created from this spec already; None where it can be created.

    Raises what refuses to create it, with nothing written.
    """
    # Where there is no location yet, or none that can be opened, the open for writing tells.
    with contextlib.suppress(StoreUnreachable), _controller(open_to_look(url)) as controller:
        try:
            return controller.create_collection(spec)
        except NotWritable:
            return None
    return None


def _facts(controller: "StorageController", info: "CollectionInfo") -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": info.name,
        "id": info.collection_id,
        "state": info.state.name.capitalize(),
        "shards": len(info.holding.shards),
        "since": None,
        "upper": None,
    }
    if not info.dropped:
        frontiers = controller.frontiers(info.collection_id)
        facts["since"], facts["upper"] = frontiers.since, frontiers.upper
    return facts


def _described(facts: dict[str, Any]) -> str:
    lines = [(key, _shown(value)) for key, value in facts.items() if not isinstance(value, list)]
    for rendition in facts["renditions"]:
        hashed = ", ".join(rendition["hash_columns"])
        lines.append((f"rendition {rendition['id']}", f"from {rendition['start']}, by hash of {hashed}"))
        lines += [("", shard) for shard in rendition["shards"]]
    width = max(len(key) for key, _ in lines)
    columns = [
        [each["name"], each["type"], "yes" if each["nullable"] else "", "yes" if each["key"] else ""]
        for each in facts["columns"]
    ]
    listed = "".join(f"{key:<{width}}  {value}\n" for key, value in lines)
    return f"{listed}\n{render(('COLUMN', 'TYPE', 'NULLABLE', 'KEY'), columns)}"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return "closed" if value == CLOSED else str(value)


def _columns(given: tuple[str, ...]) -> dict[str, str]:
    columns = {}
    for each in given:
        name, colon, type_ = each.partition(":")
        if not colon:
            raise BadInput(f"column '{each}' has no type", hint="write it as name:type, such as id:int64")
        columns[name] = type_
    return columns
