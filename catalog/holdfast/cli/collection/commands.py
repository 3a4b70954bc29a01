"""`holdfast collection`: create, show, read and write the collections of a location.

Reading commands open the location without writing to it. The others check with such a client first, so that a
refused command leaves the location unchanged. Only `create` creates a location. Commands import heavy modules
when they run.
"""

import contextlib
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.asking import confirm, somebody_answers
from holdfast.cli.collection.change import (
    advance,
    alter,
    comment,
    drop_column,
    handover,
    rename,
    rename_column,
    restore,
    retain,
    upkeep,
)
from holdfast.cli.collection.copy import copy
from holdfast.cli.collection.edit import count as count_rows
from holdfast.cli.collection.edit import delete, merge, update
from holdfast.cli.collection.export import export
from holdfast.cli.collection.history import history
from holdfast.cli.collection.place import (
    column_facts,
    columns_of,
    comments_of,
    controller_of,
    location_options,
    name_argument,
    named,
)
from holdfast.cli.collection.revert import revert
from holdfast.cli.collection.rows import diff, read, tail
from holdfast.cli.collection.show import describe, holds, jobs, list_
from holdfast.cli.collection.source import errors, offsets
from holdfast.cli.collection.sql import sql
from holdfast.cli.collection.write import write
from holdfast.cli.completing import forget_tables
from holdfast.cli.facts import count, emit_json, json_option, tell
from holdfast.cli.location import LocationUrls, formerly, keep_garbage_option
from holdfast.cli.progress import ProgressLine, note
from holdfast.errors import (
    BadInput,
    HoldfastError,
    NotWritable,
    StoreUnreachable,
)
from holdfast.file_formats import FILE_FORMATS

if TYPE_CHECKING:
    from holdfast.collections import CollectionInfo, CollectionSpec, StorageController


@click.group()
def collection() -> None:
    """Create, read and write collections: tables that keep their history.

    \b
    holdfast create orders --key id:int64 --column 'note:string?'
    holdfast write orders new.csv --upsert
    holdfast collection describe orders

    Give --url, or set HOLDFAST_URL. If the location has its own consensus store, such as Postgres, also give
    --consensus, or set HOLDFAST_CONSENSUS_URL. NAME is the name of a collection or its id. A TIME is a number
    of milliseconds since 1970, or an ISO 8601 date or timestamp. A timestamp without a zone is in UTC.
    """  # noqa: D301 - the escape is for the formatter of the help


@collection.command(short_help="Create a collection.")
@location_options
@click.argument("name")
@click.option("--id", "collection_id", metavar="ID", help="Its permanent id. Default: a new UUID.")
@click.option(
    "--key",
    "keys",
    metavar="NAME:TYPE",
    multiple=True,
    help="A key column. A type may end in '?' (nullable).",
)
@click.option("--column", "columns", metavar="NAME:TYPE", multiple=True, help="A column; '?' means nullable.")
@click.option("--comment", "comments", metavar="NAME:TEXT", multiple=True, help="The comment of a column.")
@click.option("--shards", type=int, default=1, show_default=True, help="The number of shards.")
@click.option(
    "--from",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take the columns and the rows of a file.",
)
@click.option("--format", "form", type=click.Choice(FILE_FORMATS), help="Of FILE. Default: by its name.")
@click.option("--json", "as_json", is_flag=True, help="Show the collection as JSON.")
@click.option(
    "--retain",
    "period",
    metavar="PERIOD",
    default="7d",
    show_default=True,
    help="How much history it keeps, such as 12h, or forever.",
)
def create(
    location: LocationUrls,
    name: str,
    collection_id: str | None,
    keys: tuple[str, ...],
    columns: tuple[str, ...],
    comments: tuple[str, ...],
    shards: int,
    file: Path | None,
    form: str | None,
    as_json: bool,
    period: str,
) -> None:
    """Create a collection. If you repeat the command with the same --id, it shows the existing collection.

    \b
    holdfast create orders --key id:int64 --column 'note:string?'
    holdfast create orders --from orders.csv --key id

    With --from, the columns, their types and the rows come from a file of CSV, JSON lines, Parquet or Arrow.
    --key NAME names a key column, which must not be null. --column NAME:TYPE, and --key NAME:TYPE, replace a
    type that was found. The collection and its rows become visible at one time, or not at all.

    Types: bool, int8 to int64, uint8 to uint64, float32, float64, string, binary, date32, timestamp,
    timestamp_utc, decimal128(p,s), timestamp(UNIT), timestamp(UNIT,ZONE), time(UNIT), where UNIT is s, ms, us
    or ns, list<T>, struct<NAME: T, ...> and map<T, T>, where T? may be null.

    'write --upsert' and 'write --delete' find rows by the key columns.
    """  # noqa: D301 - the escape is for the formatter of the help
    if file is not None:
        made = _create_from(
            location, name, file, form, collection_id, keys, columns, comments, shards, period
        )
        _show_created(made, as_json=as_json)
        return
    if form is not None:
        raise BadInput("--format can be used only with --from")
    from holdfast.collections import CollectionSpec
    from holdfast.collections.periods import period_ms
    from holdfast.persist import Schema

    if not keys and not columns:
        raise BadInput(
            f"collection {name} needs columns",
            hint="give --key NAME:TYPE, --column NAME:TYPE, or --from FILE",
        )
    schema = Schema.of(key=columns_of(keys), value=columns_of(columns))
    id_ = collection_id or str(uuid.uuid4())
    retain_ms = period_ms(period)
    spec = CollectionSpec(id_, name, schema, shards, comments=comments_of(comments), retain_ms=retain_ms)
    info = _existing(location, spec)
    if info is None:
        with controller_of(location.open_to_write(create=True)) as controller:
            info = controller.create_collection(spec)
        forget_tables(location.url, location.consensus)
    _show_created(info, as_json=as_json)


def _show_created(info: "CollectionInfo", *, as_json: bool) -> None:
    from holdfast.collections.periods import shown_period

    over = "1 shard" if info.shards == 1 else f"{info.shards} shards"
    kept = shown_period(info.retain_ms)
    line = f"collection {info.name} ({info.collection_id}) with {over}, keeps its history: {kept}"
    facts = named(info, shards=info.shards, retain=kept, columns=column_facts(info))
    tell(facts, line, as_json=as_json)


def _create_from(
    location: LocationUrls,
    name: str,
    file: Path,
    form: str | None,
    collection_id: str | None,
    keys: tuple[str, ...],
    columns: tuple[str, ...],
    comments: tuple[str, ...],
    shards: int,
    period: str,
) -> "CollectionInfo":
    from holdfast.tables.creating import create, refuse_taken, table_of_file

    def taken() -> list[str]:
        with controller_of(location.open_to_look()) as controller:
            return [each.name for each in controller.list_collections()]

    refuse_taken(taken, name)
    with ProgressLine(f"reading {file.name}", after_s=1) as progress:
        given = table_of_file(
            name,
            file,
            form,
            key=[each.partition(":")[0] for each in keys],
            columns=columns_of((*columns, *(each for each in keys if ":" in each))),
            shards=shards,
            comments=comments_of(comments),
            retain=period,
            collection_id=collection_id or "",
            told=progress.part,
        )
        progress.begin(f"writing {name}")
        with controller_of(location.open_to_write(create=True)) as controller:
            info, rows = create(controller, given, progress.part)
    forget_tables(location.url, location.consensus)
    note(f"{given.spec.schema}: {count(rows, 'row')} of {file}")
    return info


@collection.command()
@location_options
@name_argument
@click.option("--force", is_flag=True, help="Cut off its readers and jobs, and show them.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@keep_garbage_option
@formerly("--retain", "--keep-garbage")
@json_option
def drop(
    location: LocationUrls, name: str, force: bool, yes: bool, keep_garbage_s: float, as_json: bool
) -> None:
    """Drop a collection and delete all its data, permanently.

    \b
    holdfast drop orders

    A collection that feeds another one, or has another hold that outlives its process, is left alone.
    Otherwise nobody can open it any more. The command waits up to 75 seconds for its readers to end. A
    program that ended without closing its table blocks the drop for up to a minute. If somebody still reads
    it then, or a job of it runs, its data stays: drop it again. With --force, the command shows whom it cuts
    off, and drops it at once.

    With --keep-garbage, the data stays for so long. Afterwards 'holdfast persist gc' or any client deletes
    it.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.collections import dropping

    with controller_of(location.open_to_look()) as controller:
        infos = dropping.to_drop(controller, name)
        for each in infos:
            if not force:
                dropping.refuse_durable_holds(controller, each)
            elif not yes:
                for user in dropping.users(controller, each):
                    click.echo(f"in use by {user}", err=True)
    if not yes:
        if not somebody_answers():
            raise BadInput(f"dropping {name} needs confirmation", hint="pass --yes")
        confirm(
            f"Drop {', '.join(f'{each.name} ({each.collection_id})' for each in infos)} and all its data?"
        )
    facts = []
    with (
        controller_of(location.open_to_write(create=False, retain_for_s=keep_garbage_s)) as controller,
        ProgressLine("dropping", after_s=1) as progress,
    ):
        for each in infos:
            slots, left = ([], []) if each.dropped else _slots(controller, each)
            done = dropping.drop(
                controller,
                each,
                force=force,
                on_wait=lambda user: progress(f"waits for {user}"),
                on_cut_off=lambda user: click.echo(f"cuts off {user}", err=True),
            )
            forget_tables(location.url, location.consensus)
            facts.append(named(each, cut_off=done.cut_off, slots=slots))
            if not as_json:
                click.echo(f"dropped {each.name} ({each.collection_id})")
            for slot in slots:
                click.echo(
                    f"replication slot {slot} keeps WAL: drop it in Postgres with pg_drop_replication_slot",
                    err=True,
                )
            from holdfast.ingest.sources.postgres_server import DROP_SLOTS

            for names in left:
                click.echo(
                    f"if 'holdfast ingest' was interrupted as it began to feed {each.name}, a replication"
                    f" slot is left, which keeps WAL: drop it in Postgres with {DROP_SLOTS.format(names)}",
                    err=True,
                )
    if as_json:
        emit_json({"dropped": facts})


def _slots(controller: "StorageController", info: "CollectionInfo") -> tuple[list[str], list[str]]:
    """The replication slots that belong to a collection, and expressions for the names of those left."""
    from holdfast.ingest.kept import own_slot, progress, slots_left

    slots, left = set(), set()
    for each in info.live:
        # What can't be read can be dropped.
        with contextlib.suppress(HoldfastError):
            if (fed := progress(controller.client, each)) is not None:
                slots.add(own_slot(info, fed))
                left.add(slots_left(info, each, fed))
    return sorted(slots - {""}), sorted(left - {""})


@collection.command(short_help="Release a hold that outlives its process.")
@location_options
@name_argument
@click.argument("purpose")
@json_option
def release(location: LocationUrls, name: str, purpose: str, as_json: bool) -> None:
    """Release the holds of a collection that have this PURPOSE, as 'holds' shows them.

    \b
    holdfast collection release orders 'report 7'

    Their owner may no longer find the data that the hold kept. You can't release leases, which end with their
    process, or the holds that a collection has on itself, which end with the collection.
    """  # noqa: D301 - the escape is for the formatter of the help
    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
    taken = [each for each in info.holders if each.purpose == purpose]
    if not taken:
        raise BadInput(
            f"collection {info.name} has no hold '{purpose}' that can be released",
            hint=f"'holdfast collection holds {info.name}' shows all holds",
        )
    with controller_of(location.open_to_write(create=False)) as controller:
        for each in taken:
            end = controller.release_write if each.writes else controller.release_hold
            end(info.collection_id, purpose)
    facts = named(info, purpose=purpose, released=len(taken))
    tell(facts, f"released '{purpose}' on {info.name}", as_json=as_json)


for shows in (
    list_,
    describe,
    holds,
    jobs,
    read,
    count_rows,
    diff,
    sql,
    history,
    export,
    tail,
    copy,
    offsets,
    errors,
):
    collection.add_command(shows)
for changes in (
    write,
    merge,
    update,
    delete,
    handover,
    restore,
    revert,
    alter,
    comment,
    retain,
    rename,
    rename_column,
    drop_column,
    advance,
    upkeep,
):
    collection.add_command(changes)


def _existing(location: LocationUrls, spec: "CollectionSpec") -> "CollectionInfo | None":
    """The collection, if it was already created from this spec. None if it can be created.

    Raises the error with which the creation would be refused, and writes nothing.
    """
    # If there is no location, or none that can be opened, the open for writing raises the error.
    with contextlib.suppress(StoreUnreachable), controller_of(location.open_to_look()) as controller:
        try:
            return controller.create_collection(spec)
        except NotWritable:
            return None
    return None
