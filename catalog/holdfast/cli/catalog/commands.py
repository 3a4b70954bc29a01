"""`holdfast catalog`: the group of commands, and the commands that create a catalog or show it.

Commands import heavy modules when they run, so that their help is fast. They check input before they open the
store, and a refused command leaves the store unchanged.
"""

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.catalog.change import delete, edit, fence, load
from holdfast.cli.catalog.check import upgrade_check
from holdfast.cli.catalog.kept import kept
from holdfast.cli.catalog.place import CatalogPlace, catalog_options
from holdfast.cli.facts import json_option, tell
from holdfast.cli.files import regular_target, replacing
from holdfast.cli.numbers import u64
from holdfast.errors import BadInput, StoreUnreachable, Uninitialized

if TYPE_CHECKING:
    from holdfast.catalog import OpenableCatalog


@click.group()
def catalog() -> None:
    """Create, inspect and repair catalogs."""


@catalog.command(short_help="Initialize a new catalog.")
@catalog_options
@click.option(
    "--deploy-generation",
    type=u64,
    default=0,
    show_default=True,
    help="The deploy generation that may write to the catalog first.",
)
@json_option
def init(place: CatalogPlace, deploy_generation: int, as_json: bool) -> None:
    """Initialize a new catalog: write its first objects.

    \b
    holdfast catalog init --stash sqlite:///data/catalog.db
    holdfast catalog init --url /data/shop --organization-id UUID

    A catalog that is already initialized is left unchanged, and nobody is fenced.
    """  # noqa: D301 - the escape is for the formatter of the help
    # If there is no location, or none that can be opened, the open for writing below raises the error.
    with contextlib.suppress(StoreUnreachable), place.open_to_look() as openable:
        if openable.is_initialized():
            _show_state(openable, made=False, as_json=as_json)
            return
    with place.open_to_write(create=True) as openable:
        made = openable.initialize(
            deploy_generation=deploy_generation,
            holder=f"{socket.gethostname()}:{os.getpid()}",
            purpose="holdfast catalog init",
        )
        _show_state(openable, made=made, as_json=as_json)


@catalog.command(short_help="Show the whole catalog as JSON.")
@catalog_options
@click.option(
    "--target",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write to FILE instead of standard output.",
)
@click.option(
    "--as-of",
    metavar="T",
    type=u64,
    help="Show the catalog as of time T. Default: the latest time.",
)
def dump(place: CatalogPlace, target: Path | None, as_of: int | None) -> None:
    """Show the whole catalog as JSON. Each line is one object with its key and value, grouped by object type.

    \b
    holdfast catalog dump --stash sqlite:///data/catalog.db --target dump.json

    'edit' and 'delete' take keys and values in the same form, and 'load' takes the whole output. A catalog of
    an older version is shown in its own format. If FILE exists, it is replaced once the new file is complete.
    """  # noqa: D301 - the escape is for the formatter of the help
    file = None if target is None else regular_target(target)
    with place.open_to_look() as openable:
        lines = (line.encode() for line in openable.dump_lines(as_of))
        if file is None:
            sys.stdout.buffer.writelines(lines)
            sys.stdout.buffer.flush()
            return
        try:
            with replacing(file) as stream:
                stream.writelines(lines)
        except OSError as error:
            raise BadInput(f"can't write {target}: {error.strerror or error}") from error


@catalog.command(short_help="Show the epoch.")
@catalog_options
@json_option
def epoch(place: CatalogPlace, as_json: bool) -> None:
    """Show the epoch of the catalog. It grows by one each time that the catalog is opened for writing.

    \b
    holdfast catalog epoch --stash sqlite:///data/catalog.db
    """  # noqa: D301 - the escape is for the formatter of the help
    with place.open_to_look() as openable:
        # Two linked stores that are in conflict refuse this. Their tokens alone don't show the conflict.
        if not openable.is_initialized():
            raise Uninitialized(f"the catalog in {openable.place} is not initialized")
        durable = openable.epoch()
        facts = {"catalog": openable.place, "epoch": durable}
    tell(facts, str(durable), as_json=as_json)


def _show_state(openable: "OpenableCatalog", *, made: bool, as_json: bool) -> None:
    place, version, epoch = openable.place, openable.config("user_version"), openable.epoch()
    verb = "initialized" if made else "already initialized:"
    facts = {"catalog": place, "initialized": made, "version": version, "epoch": epoch}
    tell(facts, f"{verb} catalog {place}, version {version}, epoch {epoch}", as_json=as_json)


for command in (load, edit, delete, fence, kept, upgrade_check):
    catalog.add_command(command)
