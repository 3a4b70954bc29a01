"""`holdfast collection delete|update|merge|count`: change or count the rows that a condition chooses.

A change is prepared with a client that writes nothing first, so that a refused command leaves no trace. It is
one commit: readers see all of it or nothing.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.collection.place import (
    controller_of,
    location_options,
    name_argument,
    named,
    opened_table,
    refuse_dropped,
    time,
)
from holdfast.cli.collection.rows import AS_OF, OR_EARLIER, time_for
from holdfast.cli.facts import count as counted
from holdfast.cli.facts import emit_json, json_option, shown_moment, tell
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import ProgressLine, note
from holdfast.errors import BadInput
from holdfast.file_formats import FILE_FORMATS, check_file
from holdfast.text import naming

if TYPE_CHECKING:
    from holdfast.collections import CollectionInfo
    from holdfast.persist import Schema
    from holdfast.tables.changes import Change, Committed
    from holdfast.tables.filters import Where

WHERE: Final = "Rows for which conditions hold: \"id >= 3 and (note is null or note like 'a%')\"."

Chosen = Callable[["Schema"], "Where"]
"""Returns the condition that the options give, for the columns of a schema."""


def _chosen_options(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add `--where`, `--key` and `--all`, and pass the condition that they give as `chosen`."""

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_chosen(
            *args: Any, where: str | None, keys: tuple[str, ...], everything: bool, **rest: Any
        ) -> None:
            command(*args, chosen=_chosen(what, where, keys, everything=everything), **rest)

        all_ = click.option("--all", "everything", is_flag=True, help="All rows.")
        key = click.option(
            "--key", "keys", metavar="KEY", multiple=True, help="The row with this key. You can repeat it."
        )
        return click.option("--where", metavar="CONDITIONS", help=WHERE)(key(all_(with_chosen)))

    return with_options


def _chosen(what: str, where: str | None, keys: tuple[str, ...], *, everything: bool) -> Chosen:
    is_given = {"--where": where is not None, "--key": bool(keys), "--all": everything}
    given = [name for name, each in is_given.items() if each]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} can't be used together")
    if not given:
        raise BadInput(
            f"{what} needs a condition: which rows?",
            hint="give --where CONDITIONS or --key KEY, or --all for all rows",
        )

    def condition(schema: "Schema") -> "Where":
        from holdfast.cli.rows.values import where_keys
        from holdfast.tables.where import parse_where

        if everything:
            return []
        return where_keys(keys, schema) if where is None else parse_where(where, schema)

    return condition


@click.command(short_help="Delete the rows that a condition chooses.")
@location_options
@name_argument
@_chosen_options("delete")
@json_option
def delete(location: LocationUrls, name: str, chosen: Chosen, as_json: bool) -> None:
    """Delete the rows of a collection that a condition chooses, in one commit.

    \b
    holdfast delete orders --where "day < '2026-01-01' and item = 'pear'"
    holdfast delete orders --key 3 --key 7

    Conditions are as in 'read'. If there are several key columns, a KEY is one line of CSV, such as
    2026-01-04,3. To delete the keys of a file, use 'write --delete'. The rows stay readable at earlier times.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.tables import Delete

    info, done = _commit(location, name, lambda schema: Delete(where=chosen(schema)), "deleting from")
    _show(info, "deleted", done.removed, done, as_json=as_json)


@click.command(short_help="Set columns of the rows that a condition chooses.")
@location_options
@name_argument
@click.option(
    "--set",
    "values",
    metavar="COLUMN=VALUE",
    multiple=True,
    required=True,
    help="The new value of a column. You can repeat it.",
)
@_chosen_options("update")
@json_option
def update(location: LocationUrls, name: str, values: tuple[str, ...], chosen: Chosen, as_json: bool) -> None:
    """Set columns of the rows of a collection that a condition chooses, in one commit.

    \b
    holdfast update orders --set count=5 --where "item = 'pear'"
    holdfast update orders --set note=null --set "item='red apple'" --key 3

    Conditions and values are as in 'read', and keys as in 'delete'. null is no value; quote it to mean the
    text. No other write is lost: if another writer was faster, the change is made again from the new rows.
    Rows that have the values already are not counted. Key columns can't be set.

    If the new value depends on the row, let 'sql' compute the rows, and write them with 'write --upsert'.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.tables import SetValues

    def change(schema: "Schema") -> "Change":
        from holdfast.cli.rows.values import values_to_set

        return SetValues(chosen(schema), values_to_set(values, schema))

    info, done = _commit(location, name, change, "updating")
    _show(info, "updated", done.added, done, as_json=as_json)


@click.command(short_help="Compare the rows of a file by key, and change the collection.")
@location_options
@name_argument
@click.option(
    "--from",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    default="-",
    help="The rows. Default: standard input.",
)
@click.option("--format", "form", type=click.Choice(FILE_FORMATS), help="Of FILE. Default: by its name.")
@click.option(
    "--matched",
    type=click.Choice(("update", "keep", "delete")),
    default="update",
    show_default=True,
    help="What to do with rows whose key the collection has.",
)
@click.option(
    "--missing",
    type=click.Choice(("insert", "ignore")),
    default="insert",
    show_default=True,
    help="What to do with rows whose key it doesn't have.",
)
def merge(
    location: LocationUrls, name: str, file: Path, form: str | None, matched: str, missing: str
) -> None:
    """Compare the rows of a file by key with those of a collection, and change it, in one commit.

    \b
    holdfast merge orders --from counts.csv
    holdfast merge orders --from counts.csv --missing ignore

    Matched rows get the columns that the file has, and keep their others. Inserted rows have null in columns
    that the file doesn't have. --matched keep leaves matched rows as they are, and --matched delete removes
    them. All rows of the file must have the same columns, and each key once. The file must fit into memory.
    """  # noqa: D301 - the escape is for the formatter of the help
    check_file(file, form)
    from holdfast.tables import Merge
    from holdfast.tables.files.source import RowSource, whole

    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
    refuse_dropped(info)
    with RowSource(file, form, info.schema, partial=True) as source:
        rows = whole(source)
        with naming(source.name):
            info, done = _commit(location, name, lambda _: Merge(rows, matched, missing), "merging into")
    # A row that was replaced was removed and added.
    changed = done.added + (done.removed if matched == "delete" else 0)
    told = f"merged {counted(rows.num_rows, 'row')} into {info.name}: {counted(changed, 'row')} changed"
    note(f"{told}, as of {shown_moment(done.time)}")


@click.command("count", short_help="Show the number of rows.")
@location_options
@name_argument
@click.option("--where", metavar="CONDITIONS", help=f"Only {WHERE[0].lower()}{WHERE[1:]}")
@click.option("--as-of", metavar="TIME", type=time, help=AS_OF)
@click.option("--or-earlier", is_flag=True, help=OR_EARLIER)
@json_option
def count(
    location: LocationUrls, name: str, where: str | None, as_of: int | None, or_earlier: bool, as_json: bool
) -> None:
    """Show the number of rows of a collection, or of those that a condition chooses.

    \b
    holdfast count orders
    holdfast count orders --where "item = 'pear'" --as-of 2026-01-01T12:00

    Conditions and times are as in 'read'.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.tables.moments import dated
    from holdfast.tables.scan import count as count_rows

    with opened_table(location.open_to_look(), name) as opened, ProgressLine("counting", after_s=1):
        at = as_of
        if as_of is not None:
            at = opened.reading.run(
                lambda reader: time_for(location, opened.controller, reader, as_of, or_earlier=or_earlier)
            )
        from holdfast.tables.where import parse_where

        schema = opened.info.schema if at is None else opened.info.schema_at(at)
        with dated(f"collection {name}"), naming(f"collection {name}"):
            rows = count_rows(opened, at, None if where is None else parse_where(where, schema))
        info = opened.info
    tell(named(info, rows=rows), str(rows), as_json=as_json)


def _commit(
    location: LocationUrls, name: str, change: "Callable[[Schema], Change]", doing: str
) -> "tuple[CollectionInfo, Committed]":
    """Commit a change, which is made for the columns of the collection. Returns the collection too."""
    from holdfast.tables.committing import commit

    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
    refuse_dropped(info)
    with naming(f"table {info.name}"):
        made = change(info.schema)
        # Raises on what doesn't fit before anything is opened for writing.
        made.prepare(info.name, info.schema)
    with (
        opened_table(location.open_to_write(create=False), info.collection_id) as table,
        ProgressLine(f"{doing} {info.name}", after_s=1),
    ):
        return info, commit({table: made})


def _show(info: "CollectionInfo", what: str, rows: int, done: "Committed", *, as_json: bool) -> None:
    if as_json:
        emit_json(named(info, rows=rows, time=done.time))
        return
    told = f"{what} {counted(rows, 'row')} of {info.name}"
    if what == "deleted" and done.added:
        # Only rows with negative counts are added.
        told += f", and repaired {counted(done.added, 'row')} that a writer had removed too often"
    note(f"{told}, as of {shown_moment(done.time)}")
