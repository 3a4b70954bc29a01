"""`holdfast catalog kept`: the times before upgrades that stay readable. Show them or release them."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.asking import confirm, somebody_answers
from holdfast.cli.catalog.place import CatalogPlace, catalog_options
from holdfast.cli.facts import count, emit_list, list_option
from holdfast.cli.numbers import u64
from holdfast.cli.progress import note
from holdfast.cli.rows.text import render
from holdfast.errors import BadInput, Uninitialized

if TYPE_CHECKING:
    from holdfast.catalog.stores.store import Kept


@click.command(short_help="Show the times before upgrades that stay readable.")
@catalog_options
@click.option("--release", metavar="VERSION", type=u64, help="Release the kept time of this version.")
@click.option("--yes", is_flag=True, help="Don't ask before releasing.")
@list_option
def kept(place: CatalogPlace, release: int | None, yes: bool, form: str) -> None:
    """Show the times before upgrades that stay readable, one for each earlier version of the catalog format.

    \b
    holdfast catalog kept --stash sqlite:///data/catalog.db
    holdfast catalog kept --release 80 --stash sqlite:///data/catalog.db

    'dump --as-of' shows the catalog at such a time, and 'load' creates a new catalog from that dump. After a
    release you can't read the time any more, so you can't go back to that version. Its rows are deleted over
    time. Nobody is fenced.
    """  # noqa: D301 - the escape is for the formatter of the help
    if release is not None and form != "table":
        raise BadInput(f"--release and --format {form} can't be used together")
    with place.open_to_look() as openable:
        where = openable.place
        if not openable.is_initialized():
            raise Uninitialized(f"the catalog in {where} is not initialized")
        found = openable.kept_dumps()
    if release is None:
        _show(found, form)
        return
    time = next((each.time for each in found if each.version == release), None)
    if time is None:
        there = ", ".join(str(each.version) for each in found) or "none"
        raise BadInput(
            f"the catalog in {where} keeps no time of version {release}",
            hint=f"kept versions: {there}",
        )
    if not yes and somebody_answers():
        click.echo(f"releasing version {release} of catalog {where}, as of {time}", err=True)
        confirm("Go on?")
    with place.open_to_write() as openable:
        openable.release_dump(release)
    click.echo(f"released version {release}, as of {time}")


def _show(found: "list[Kept]", form: str) -> None:
    records = [{"version": each.version, "as_of": each.time} for each in found]
    if emit_list(form, records, ("version", "as_of")):
        return
    if found:
        rows = [[str(each.version), str(each.time)] for each in found]
        click.echo(render(["VERSION", "AS OF"], rows), nl=False)
    note(count(len(found), "kept time"))
