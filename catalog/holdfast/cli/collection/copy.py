"""`holdfast collection copy`: copy a collection, or all of a location, with its history."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.collection.place import location_options
from holdfast.cli.completing import complete_tables, forget_tables
from holdfast.cli.facts import count, emit_json, json_option, shown_moment
from holdfast.cli.location import LocationUrls, complete_names, located
from holdfast.cli.progress import ProgressLine, note
from holdfast.errors import BadInput, CopiesRefused
from holdfast.locations import is_name
from holdfast.text import one_line

if TYPE_CHECKING:
    from holdfast.collections.copying import CopiedTable


@click.command(short_help="Copy a collection or a whole location, or update the copy.")
@location_options
@click.argument("name", required=False, shell_complete=complete_tables)
@click.option(
    "--to", metavar="URL", required=True, shell_complete=complete_names, help="The target location."
)
@click.option("--to-consensus", metavar="URL", help="Its consensus store, if --to names only a blob store.")
@click.option("--as", "new_name", metavar="NAME", help="The name of the copy. Default: the same.")
@click.option("--all", "everything", is_flag=True, help="Copy all collections of the location.")
@json_option
def copy(
    location: LocationUrls,
    name: str | None,
    to: str,
    to_consensus: str | None,
    new_name: str | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Copy a collection to another location, with its columns, its policies and its history.

    \b
    holdfast copy orders --to /backup/tables
    holdfast copy --all --to @backup

    You can read the copy at each time from the since of the collection up to its upper when the copy began.
    Writers may continue. To copy what they write later, run the command again: it brings the copy up to date,
    unless others have written to it. With --all, all copies have the uppers of one moment. If some can't be
    copied, the command shows why, copies the others, and ends with exit code 1. Catalogs are not copied: see
    'holdfast migrate'.

    The copy of a collection that a source feeds also has its offsets and its errors, at each of these times.
    To move it, end 'holdfast ingest', copy once more, and start 'holdfast ingest' with the location of the
    copy: it goes on exactly there. Once it was fed there, it can't be brought up to date any more.

    Until it is complete and checked, a copy is called NAME.copying. If the command is interrupted, run it
    again: it continues.
    """  # noqa: D301 - the escape is for the formatter of the help
    if (name is None) is not everything:
        raise BadInput("what is to be copied?", hint="give the NAME of a collection, or --all")
    if everything and new_name is not None:
        raise BadInput("--as can't be used with --all")
    if is_name(to) and to_consensus is not None:
        raise BadInput(f"{to} names a whole location", hint="leave out --to-consensus")
    target = located(to, to_consensus)
    from holdfast.tables.copying import copy_table, copy_tables

    with ProgressLine("copying", after_s=1) as progress:
        found: list[CopiedTable] = []

        def show(copied: "CopiedTable") -> None:
            found.append(copied)
            if not as_json:
                _show(copied)

        def on_rows(what: str, rows: int) -> None:
            progress.part(rows, None, f"{what}: {count(rows, 'row')}")

        stores = {"consensus": location.consensus, "to_consensus": target.consensus}
        if name is None:
            try:
                copy_tables(
                    location.url,
                    target.url,
                    **stores,
                    on_rows=on_rows,
                    on_table=show,
                    on_gone=lambda id_: click.echo(f"collection {id_} was dropped: not copied", err=True),
                )
            except CopiesRefused as error:
                for refused, why in error.refused.items():
                    click.echo(one_line(f"not copied: {refused}: {why}"), err=True)
                if as_json:
                    emit_json({"copied": found})
                raise
        else:
            show(copy_table(location.url, name, target.url, new_name=new_name, **stores, on_rows=on_rows))
    forget_tables(target.url, target.consensus)
    if as_json:
        emit_json({"copied": found})
    elif everything:
        total = sum(each.rows for each in found)
        note(f"{count(len(found), 'collection')} with {count(total, 'row')}")


def _show(copied: "CopiedTable") -> None:
    times = f"times from {shown_moment(copied.since)}, complete up to {shown_moment(copied.upper)}"
    what = "up to date" if copied.was_there else "copied"
    if copied.brought_from is not None:
        what = "brought up to date"
    click.echo(
        f"{what}: {copied.name} ({copied.id}) with {count(copied.rows, 'row')} and"
        f" {count(copied.changes, 'change')}; {times}; checksum {copied.checksum}"
    )
    if copied.was_fed:
        note(
            f"{copied.name} has the offsets and errors of its source. To go on there, end 'holdfast ingest'"
            " of the collection that was copied, copy once more, and start it with the location of the copy"
        )
