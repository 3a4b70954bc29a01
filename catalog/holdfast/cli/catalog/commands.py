"""`holdfast catalog`: the group of commands, and those that make a catalog or look at it.

What is heavy is imported in the commands, so that their help is quick; bad input is found before the store is
touched, and a refused command leaves it as it was.
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
from holdfast.cli.files import regular_target, replacing
from holdfast.cli.numbers import u64
from holdfast.errors import BadInput, StoreUnreachable, Uninitialized

if TYPE_CHECKING:
    from holdfast.catalog import OpenableCatalog


@click.group()
def catalog() -> None:
    """Make, look at and repair durable catalogs."""


@catalog.command(short_help="Make a new catalog.")
@catalog_options
@click.option(
    "--deploy-generation",
    type=u64,
    default=0,
    show_default=True,
    help="The generation of the deployment that may write to it first.",
)
def init(place: CatalogPlace, deploy_generation: int) -> None:
    """Write the initial objects of a new catalog.

    An initialized one is left alone, and nobody is fenced.
    """
    # Where there is no location yet, or none that can be opened, the open for writing tells.
    with contextlib.suppress(StoreUnreachable), place.open_to_look() as openable:
        if openable.is_initialized():
            click.echo(f"already initialized: {_state(openable)}")
            return
    with place.open_to_write(create=True) as openable:
        made = openable.initialize(
            deploy_generation=deploy_generation,
            holder=f"{socket.gethostname()}:{os.getpid()}",
            purpose="holdfast catalog init",
        )
        verb = "initialized" if made else "already initialized:"
        click.echo(f"{verb} {_state(openable)}")


@catalog.command(short_help="Show everything as JSON.")
@catalog_options
@click.option(
    "--target", metavar="FILE", type=click.Path(path_type=Path), help="Write to FILE instead of showing it."
)
@click.option(
    "--as-of",
    metavar="T",
    type=u64,
    help="At this time; if not given, the latest.",
)
def dump(place: CatalogPlace, target: Path | None, as_of: int | None) -> None:
    """Show everything as JSON: by object type, one object a line, with its key and its value.

    'edit' and 'delete' take them as they stand there, 'load' takes all of it. A catalog of an older version
    is shown as it is. A FILE is replaced when the new one is whole.
    """
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


@catalog.command(short_help="Show the durable epoch.")
@catalog_options
def epoch(place: CatalogPlace) -> None:
    """Show the durable epoch: how often the catalog was opened for writing."""
    with place.open_to_look() as openable:
        durable = openable.epoch()
        if durable is None:
            raise Uninitialized(f"the catalog in {openable.place} is not initialized")
    click.echo(durable)


def _state(openable: "OpenableCatalog") -> str:
    version = openable.config("user_version")
    return f"catalog {openable.place}, version {version}, epoch {openable.epoch()}"


for command in (load, edit, delete, fence, kept, upgrade_check):
    catalog.add_command(command)
