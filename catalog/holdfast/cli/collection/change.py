"""`holdfast collection handover|restore|alter|comment|retain|rename|advance|upkeep`.

They change a collection while it is in use.

If a command is interrupted, run the same command again to continue it.
"""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.asking import confirm, somebody_answers
from holdfast.cli.collection.place import (
    column_facts,
    columns_of,
    controller_of,
    location_options,
    name_argument,
    named,
    refuse_dropped,
    time,
)
from holdfast.cli.completing import complete_tables, forget_tables
from holdfast.cli.facts import count, emit_json, json_option, shown_moment, tell
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import ProgressLine, note
from holdfast.errors import BadInput, CollectionNotFound, NotCaughtUp, UniquenessViolation

if TYPE_CHECKING:
    from holdfast.collections import (
        CollectionInfo,
        CollectionSpec,
        RenditionInfo,
        RestoreSource,
        StorageController,
    )

_TRIES = 5


@click.command(short_help="Rebuild or reshard a collection while it is in use.")
@location_options
@name_argument
@click.option("--shards", metavar="N", type=int, help="The number of shards of the new rendition.")
@click.option(
    "--hash",
    "hash_columns",
    metavar="COLUMN",
    multiple=True,
    help="A column to hash by. Default: as in create.",
)
@click.option(
    "--rendition", "rendition_id", metavar="ID", help="The id of the new rendition. Default: the next."
)
@click.option(
    "--at", metavar="TIME", type=time, help="Don't hand over before TIME. Default: as soon as possible."
)
@click.option("--abort", is_flag=True, help="Give up the rendition that is being filled.")
@json_option
def handover(
    location: LocationUrls,
    name: str,
    shards: int | None,
    hash_columns: tuple[str, ...],
    rendition_id: str | None,
    at: int | None,
    abort: bool,
    as_json: bool,
) -> None:
    """Create a new rendition of a collection, fill it, and hand over to it. Readers and writers continue.

    \b
    holdfast collection handover orders --shards 8

    The contents at each time stay the same. If the command is interrupted, run it again to continue. With
    --abort, the rendition that is being filled is given up. 'advance' or the operator drops the retired
    rendition once nobody can read its times any more.
    """  # noqa: D301 - the escape is for the formatter of the help
    if abort and (shards is not None or hash_columns or at is not None):
        raise BadInput("--abort can be used only with --rendition")
    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
    refuse_dropped(info)
    id_ = info.collection_id
    if abort:
        given_up = _filling(info, rendition_id).id
        with controller_of(location.open_to_write(create=False)) as controller:
            controller.renditions.abort(id_, given_up)
        line = f"aborted rendition {given_up} of {info.name}: its data is deleted"
        tell(named(info, rendition=given_up, aborted=True), line, as_json=as_json)
        return
    found = _meant(info, shards, hash_columns, rendition_id)
    if found is not None and found.id == info.holding.id:
        with controller_of(location.open_to_look()) as controller:
            _show_current(controller, info, found, "already ", as_json=as_json)
        return
    with controller_of(location.open_to_write(create=False)) as controller:
        if found is None:
            assert shards is not None
            found = controller.renditions.create(
                id_, shards=shards, hash_columns=hash_columns, rendition_id=rendition_id or ""
            )
            note(f"rendition {found.id} with {count(shards, 'shard')} is being filled")
        with ProgressLine(f"filling {found.id}") as progress:
            taken = _hand_over(controller, id_, found, at, progress)
            progress.begin("finding differences")
            # A listener that follows the handover reads this difference instead of both renditions.
            controller.renditions.make_difference(id_)
        _show_current(controller, info, taken, as_json=as_json)


def _show_current(
    controller: "StorageController",
    info: "CollectionInfo",
    current: "RenditionInfo",
    when: str = "",
    *,
    as_json: bool,
) -> None:
    from holdfast.collections import Recipe

    shards, from_ = len(current.shards), current.held_from
    lines = [
        f"{info.name} is {when}{current.id} with {count(shards, 'shard')}, from {shown_moment(from_)} on"
    ]
    upper = controller.renditions.look(info.collection_id).uppers[current.id]
    if current.recipe is Recipe.SOURCE and from_ > 0 and upper <= from_:
        lines.append(
            f"readers see {current.id} once its pipeline has written it past that time: it is complete up to"
            f" {shown_moment(upper)}"
        )
    facts = {"rendition": current.id, "shards": shards, "from": from_, "upper": upper}
    tell(named(info, **facts), *lines, as_json=as_json)


@click.command(short_help="Restore a collection from a snapshot.")
@location_options
@name_argument
@click.argument("snapshot")
@click.option("--create", is_flag=True, help="Create the collection if there is none.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
def restore(location: LocationUrls, name: str, snapshot: str, create: bool, yes: bool, as_json: bool) -> None:
    """Replace the contents of a collection by those of a snapshot. SNAPSHOT is the folder, or the s3:// URL,
    that the snapshot job wrote.

    \b
    holdfast collection restore orders /data/orders-export
    holdfast collection restore copy s3://lake/orders --create

    Readers and writers continue. Rows written since the snapshot, and during the restore, are no longer in
    the collection after the restore. Earlier times keep their contents.

    A collection that is fed from a source also gets the positions in the source and the bad records of the
    snapshot. 'holdfast ingest' then continues from there.

    With --create, a new collection gets the columns of the snapshot. It can be fed from a source if the
    snapshot is of a collection that is.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.collections import RestoreSource
    from holdfast.collections.periods import shown_period
    from holdfast.collections.read_seals import begin_at_present

    source = RestoreSource.open(snapshot if "://" in snapshot else Path(snapshot).absolute())
    opened = location.open_to_write(create=True) if create else location.open_to_look()
    with controller_of(opened) as controller:
        try:
            info, is_new = controller.describe(name), False
        except CollectionNotFound:
            if not create:
                raise
            info, is_new = controller.create_collection(_new_for(name, source)), True
            forget_tables(location.url, location.consensus)
    refuse_dropped(info)
    source.check_fits(info)
    if not (yes or is_new):
        if not somebody_answers():
            raise BadInput(f"restoring {info.name} needs confirmation", hint="pass --yes")
        as_of = shown_moment(source.manifest.as_of)
        confirm(f"Restore {info.name} as of {as_of}, {count(source.manifest.rows, 'row')}?")
    with (
        controller_of(location.open_to_write(create=False)) as controller,
        ProgressLine(f"restoring {info.name}") as progress,
    ):
        if create and not info.holding.is_fed:
            # So that the rows come at a moment, not at time 2. A pipeline chooses times by itself.
            begin_at_present(controller, info.collection_id)
        progress("checking the files")
        restored = controller.restore_collection(
            info.collection_id, source, progress=lambda rows: progress.rows(rows, source.manifest.rows)
        )
        progress.begin("finding differences")
        # A listener that follows the restore reads this difference instead of both renditions.
        controller.renditions.make_difference(info.collection_id)
    manifest = source.manifest
    facts = {"rendition": restored.id, "from": restored.held_from, "rows": manifest.rows, "created": is_new}
    lines = [f"{info.name} is {restored.id}, restored, from {shown_moment(restored.held_from)} on"]
    if is_new:
        lines.append(f"{info.name} keeps its history: {shown_period(info.retain_ms)}")
    if restored.pipeline is not None:
        lines.append(
            f"its source continues from where the snapshot was: 'holdfast collection offsets {name}'"
        )
    tell(named(info, **facts), *lines, as_json=as_json)


@click.command(short_help="Add columns, or widen column types.")
@location_options
@name_argument
@click.option("--add", metavar="NAME:TYPE?", multiple=True, help="A new column. It must be nullable.")
@click.option("--type", "types", metavar="NAME:TYPE", multiple=True, help="A wider type; '?' means nullable.")
@json_option
def alter(
    location: LocationUrls, name: str, add: tuple[str, ...], types: tuple[str, ...], as_json: bool
) -> None:
    """Add nullable columns to a collection, widen column types, or make columns nullable.

    \b
    holdfast collection alter orders --add 'note:string?'
    holdfast collection alter orders --type count:int64

    Existing rows have null in new columns. Writers that don't know the new columns continue to work.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.tables.altering import altered

    if not add and not types:
        raise BadInput("nothing to alter", hint="give --add 'NAME:TYPE?' or --type NAME:TYPE")
    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
    refuse_dropped(info)
    schema = altered(info.name, info.schema, columns_of(add), columns_of(types))
    with controller_of(location.open_to_write(create=False)) as controller:
        info = controller.evolve_collection(info.collection_id, schema)
    tell(named(info, columns=column_facts(info)), f"{info.name}: {info.schema}", as_json=as_json)


@click.command(short_help="Set the comment of a column.")
@location_options
@name_argument
@click.argument("column")
@click.argument("text")
@json_option
def comment(location: LocationUrls, name: str, column: str, text: str, as_json: bool) -> None:
    """Set the comment of a column, or replace it. The empty text '' removes it.

    \b
    holdfast collection comment orders item 'the name of a fruit'

    'describe' and Spark show the comment with the column. No row changes.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.collections.record.comments import check_comments

    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
    refuse_dropped(info)
    comments = check_comments({column: text}, info.schema, f"collection {info.name}")
    with controller_of(location.open_to_write(create=False)) as controller:
        controller.comment_columns(info.collection_id, comments)
    line = f"{info.name}: {'set the comment of' if text else 'removed the comment of'} {column}"
    tell(named(info, column=column, comment=text or None), line, as_json=as_json)


@click.command(short_help="Do the work that is due, and show what the rest waits for.")
@location_options
@name_argument
@json_option
def advance(location: LocationUrls, name: str, as_json: bool) -> None:
    """Do the work that is due for a collection, such as dropping a retired rendition.

    \b
    holdfast collection advance orders

    Work that is not due yet is shown with what it waits for. The operator does this by itself. Without an
    operator, run this command now and then.
    """  # noqa: D301 - the escape is for the formatter of the help
    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
    with controller_of(location.open_to_write(create=False)) as controller:
        due = controller.advance(info.collection_id)
    done, waits = [str(step) for step in due.steps], [str(wait) for wait in due.waits]
    lines = [*(f"done: {each}" for each in done), *(f"waits: {each}" for each in waits)]
    facts = named(info, done=done, waits=waits)
    tell(facts, *(lines or [f"nothing is due for {info.name}"]), as_json=as_json)


@click.command(short_help="Set how much history a collection keeps.")
@location_options
@name_argument
@click.argument("period")
@json_option
def retain(location: LocationUrls, name: str, period: str, as_json: bool) -> None:
    """Keep the history of the last PERIOD before the latest complete time: 7d, 12h, 90m, or forever.

    \b
    holdfast collection retain orders 30d

    Writers give up earlier history, and so does 'holdfast collection upkeep'. What was given up does not come
    back with a longer period. A hold of a reader keeps history longer. 'describe' shows the period.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.collections.periods import period_ms, shown_period

    retain_ms = period_ms(period)
    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
    refuse_dropped(info)
    with controller_of(location.open_to_write(create=False)) as controller:
        controller.retain(info.collection_id, retain_ms)
    kept = shown_period(retain_ms)
    tell(named(info, retain=kept), f"{info.name} keeps its history: {kept}", as_json=as_json)


@click.command(short_help="Give a collection another name.")
@location_options
@name_argument
@click.argument("new_name")
@json_option
def rename(location: LocationUrls, name: str, new_name: str, as_json: bool) -> None:
    """Give a collection another name. Its id stays the same, and open tables keep working.

    \b
    holdfast collection rename orders purchases

    Don't rename a collection that a StorageCollection resource declares: the resource then shows an error.
    """  # noqa: D301 - the escape is for the formatter of the help
    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
        refuse_dropped(info)
        from holdfast.collections.record.spec import check_name

        check_name("collection name", new_name)
        if any(each.name == new_name != info.name for each in controller.list_collections()):
            raise UniquenessViolation(f"there is a collection {new_name}", hint="choose another name")
    with controller_of(location.open_to_write(create=False)) as controller:
        controller.rename(info.collection_id, new_name)
    forget_tables(location.url, location.consensus)
    facts = {"name": new_name, "id": info.collection_id, "before": info.name}
    tell(facts, f"renamed {info.name} to {new_name} ({info.collection_id})", as_json=as_json)


@click.command(name="rename-column", short_help="Give a column another name.")
@location_options
@name_argument
@click.argument("column")
@click.argument("new_name")
@json_option
def rename_column(location: LocationUrls, name: str, column: str, new_name: str, as_json: bool) -> None:
    """Give a column of a collection another name. Rows of earlier times have the new name too.

    \b
    holdfast collection rename-column orders item fruit

    No file is rewritten. Programs that have the table open continue, and must write with the new name. A
    collection that a source feeds, or that feeds another one, is refused. Also change the columns in the
    StorageCollection resource that declares the collection, if there is one.
    """  # noqa: D301 - the escape is for the formatter of the help
    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
    refuse_dropped(info)
    with controller_of(location.open_to_write(create=False)) as controller:
        info = controller.rename_column(info.collection_id, column, new_name)
    tell(named(info, columns=column_facts(info)), f"{info.name}: {info.schema}", as_json=as_json)


@click.command(name="drop-column", short_help="Drop a column.")
@location_options
@name_argument
@click.argument("column")
@json_option
def drop_column(location: LocationUrls, name: str, column: str, as_json: bool) -> None:
    """Drop a column of a collection. Reads at earlier times show it as before.

    \b
    holdfast collection drop-column orders note

    Its values stay stored, so rows that differ only in it stay different rows. A new column with its name is
    another column. Programs that have the table open continue, and must write without it. Key columns can't
    be dropped, nor columns that decide which shard a row goes to. A collection that a source feeds, or that
    feeds another one, is refused.
    """  # noqa: D301 - the escape is for the formatter of the help
    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
    refuse_dropped(info)
    with controller_of(location.open_to_write(create=False)) as controller:
        info = controller.drop_column(info.collection_id, column)
    time = max(each.hidden_from for each in info.names.hidden if each.shown_as == column)
    facts = named(info, **{"column": column, "from": time})
    tell(facts, f"{info.name} has no column {column} from {shown_moment(time)} on", as_json=as_json)


@click.command(short_help="Apply the retention of all collections, and do what is due.")
@location_options
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_tables)
@json_option
def upkeep(location: LocationUrls, names: tuple[str, ...], as_json: bool) -> None:
    """Give up the history that collections need not keep, and do the work that is due, as 'advance' does.

    \b
    holdfast collection upkeep
    holdfast collection upkeep orders stock

    Default: all collections of the location. Without an operator, run this command now and then for
    collections that nobody writes; writers apply the retention of their collections by themselves. Clients
    that write compact what was given up. 'holdfast persist compact' and 'holdfast persist gc' do it at once.
    """  # noqa: D301 - the escape is for the formatter of the help
    with controller_of(location.open_to_look()) as controller:
        infos = [controller.describe(name) for name in names] or [*controller.list_collections()]
        for info in infos:
            refuse_dropped(info)
    with (
        controller_of(location.open_to_write(create=False)) as controller,
        ProgressLine("working on", after_s=1) as progress,
    ):
        facts = []
        for info in infos:
            progress(info.name)
            before = controller.frontiers(info.collection_id).since
            since = controller.apply_retention(info.collection_id)
            moved = since is not None and since > before
            done = [str(step) for step in controller.advance(info.collection_id).steps]
            facts.append(named(info, since=since if moved else None, done=done))
            if as_json:
                continue
            if moved:
                click.echo(f"{info.name}: history begins at {shown_moment(since)}")
            for step in done:
                click.echo(f"{info.name}: {step}")
    if as_json:
        emit_json({"collections": facts})


def _new_for(name: str, source: "RestoreSource") -> "CollectionSpec":
    """The spec of a new collection that a snapshot is restored into."""
    from holdfast.collections import CollectionSpec
    from holdfast.collections.periods import NEW_TABLE, period_ms

    pipeline = source.manifest.pipeline
    return CollectionSpec(
        str(uuid.uuid4()),
        name,
        source.manifest.schema,
        source_fed=pipeline is not None,
        made_from="" if pipeline is None else pipeline.made_from,
        retain_ms=period_ms(NEW_TABLE),
    )


def _meant(
    info: "CollectionInfo", shards: int | None, hash_columns: tuple[str, ...], rendition_id: str | None
) -> "RenditionInfo | None":
    """The rendition that the handover goes to, or None if it is not created yet."""
    from holdfast.collections import CollectionSpec, RenditionState

    if shards is None:
        if rendition_id is None or any(each.id == rendition_id for each in info.renditions):
            return _filling(info, rendition_id)
        raise BadInput(f"{info.name} has no rendition {rendition_id}", hint="give --shards N to make it")
    # Checks the numbers and names, and chooses the hash columns if none are given.
    spec = CollectionSpec(info.collection_id, info.name, info.schema, shards, hash_columns)
    alike = [
        each
        for each in info.live
        if each.state in {RenditionState.HYDRATING, RenditionState.HOLDING}
        and (len(each.shards), each.hash_columns) == (shards, info.names.stored_columns(spec.hash_columns))
        and rendition_id in {None, each.id}
    ]
    # One that is being filled comes before the current one: an interrupted command like this left it.
    alike.sort(key=lambda each: each.state is RenditionState.HOLDING)
    if alike:
        return alike[0]
    for each in info.renditions:
        if each.id == rendition_id:
            raise BadInput(
                f"rendition {each.id} of {info.name} is {each.state.name.lower()} with"
                f" {count(len(each.shards), 'shard')} by hash of"
                f" {', '.join(info.names.shown_columns(each.hash_columns))}",
                hint="give another --rendition, or leave it out",
            )
    return None


def _filling(info: "CollectionInfo", rendition_id: str | None) -> "RenditionInfo":
    """The rendition that is being filled, or the one with this id if it is being filled or current."""
    from holdfast.collections import RenditionState

    filling = [each for each in info.live if each.state is RenditionState.HYDRATING]
    named = [each for each in (*filling, info.holding) if each.id == rendition_id]
    if named:
        return named[0]
    if rendition_id is not None:
        there = ", ".join(each.id for each in filling) or "none"
        raise BadInput(
            f"rendition {rendition_id} of {info.name} is not being filled", hint=f"being filled: {there}"
        )
    if len(filling) != 1:
        there = ", ".join(each.id for each in filling) or "none"
        raise BadInput(
            f"which rendition of {info.name}? Being filled: {there}",
            hint="give --rendition ID, or --shards N to create one",
        )
    return filling[0]


def _hand_over(
    controller: "StorageController",
    id_: str,
    rendition: "RenditionInfo",
    at: int | None,
    progress: ProgressLine,
) -> "RenditionInfo":
    """Fill the rendition and hand over to it. Try again if writers were faster than the filling."""
    from holdfast.collections import Recipe

    for tries in range(_TRIES):
        if rendition.recipe is Recipe.COPY:
            progress.begin(f"filling {rendition.id}")
            controller.hydrate(id_, rendition.id, progress=progress.rows)
        progress.begin(f"handing over to {rendition.id}")
        try:
            return controller.renditions.hand_over(id_, rendition.id, at=at)
        except NotCaughtUp:
            if rendition.recipe is not Recipe.COPY or tries == _TRIES - 1:
                raise
    raise AssertionError("the last try returns or raises")
