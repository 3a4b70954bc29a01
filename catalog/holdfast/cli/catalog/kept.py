"""`holdfast catalog kept`: the times before upgrades that are kept readable, to be dumped or let go of."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.asking import confirm, somebody_answers
from holdfast.cli.catalog.place import CatalogPlace, catalog_options
from holdfast.cli.facts import count, emit_json, json_option
from holdfast.cli.numbers import u64
from holdfast.cli.rows.text import render
from holdfast.errors import BadInput, Uninitialized

if TYPE_CHECKING:
    from holdfast.catalog.stores.store import Kept


@click.command(short_help="Show what is kept of times before upgrades.")
@catalog_options
@click.option("--release", metavar="VERSION", type=u64, help="Let go of what is kept of this version.")
@click.option("--yes", is_flag=True, help="Don't ask before a release.")
@json_option
def kept(place: CatalogPlace, release: int | None, yes: bool, as_json: bool) -> None:
    """Show the versions of the format of which the last time before their upgrade is kept readable.

    'dump --as-of' shows the catalog of then, and 'load' makes a new catalog of that. What is released can't
    be read any more, and there is no way back to that version; storage gives its rows up by and by. Nobody is
    fenced.
    """
    if release is not None and as_json:
        raise BadInput("--release and --json don't go together")
    with place.open_to_look() as openable:
        where = openable.place
        if not openable.is_initialized():
            raise Uninitialized(f"the catalog in {where} is not initialized")
        found = openable.kept_dumps()
    if release is None:
        _show(found, as_json=as_json)
        return
    time = next((each.time for each in found if each.version == release), None)
    if time is None:
        there = ", ".join(str(each.version) for each in found) or "none"
        raise BadInput(
            f"the catalog in {where} keeps nothing of version {release}",
            hint=f"versions that it keeps: {there}",
        )
    if not yes and somebody_answers():
        click.echo(f"letting go of version {release} of catalog {where}, as of {time}", err=True)
        confirm("Go on?")
    with place.open_to_write() as openable:
        openable.release_dump(release)
    click.echo(f"released version {release}, as of {time}")


def _show(found: "list[Kept]", *, as_json: bool) -> None:
    if as_json:
        emit_json([{"version": each.version, "as_of": each.time} for each in found])
        return
    if found:
        rows = [[str(each.version), str(each.time)] for each in found]
        click.echo(render(["VERSION", "AS OF"], rows), nl=False)
    click.echo(count(len(found), "kept time"), err=True)
