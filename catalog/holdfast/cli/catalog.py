"""`holdfast catalog`: make a durable catalog and look at it. It works beside a running database.

What is heavy is imported in the commands, so that their help is quick; bad input is found before the store is
touched.
"""

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from holdfast.errors import BadInput, Uninitialized

if TYPE_CHECKING:
    from holdfast.durable import OpenableCatalog


@click.group()
def catalog() -> None:
    """Make, look at and repair durable catalogs."""


def _catalog_options(command: Callable[..., None]) -> Callable[..., None]:
    """Which catalog a command is about."""
    for option in (
        click.option("--organization-id", metavar="UUID", help="Whose catalog it is."),
        click.option("--stash", metavar="URL", help="The stash that holds it (a later version)."),
        click.option("--persist", metavar="URL", help="The location that holds it, such as file:///dir."),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def _openable(
    mode: Literal["read", "write"], persist: str | None, stash: str | None, organization_id: str | None
) -> Iterator["OpenableCatalog"]:
    if stash is not None:
        raise BadInput(
            "--stash is not available in this version", hint="use --persist URL --organization-id UUID"
        )
    if persist is None or organization_id is None:
        missing = "--persist" if persist is None else "--organization-id"
        raise BadInput(f"{missing} is missing", hint="use --persist URL --organization-id UUID")
    from holdfast.durable import catalog_shard_id, persist_catalog
    from holdfast.persist import PersistClient

    catalog_shard_id(organization_id)
    with PersistClient.open(persist, mode=mode) as client:
        yield persist_catalog(client, organization_id)


@catalog.command()
@_catalog_options
@click.option(
    "--deploy-generation",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The generation of the deployment that may write to it first.",
)
def init(deploy_generation: int, **where: Any) -> None:
    """Write the initial objects of a new catalog; an initialized one is left alone, and nobody is fenced."""
    with _openable("write", **where) as openable:
        made = openable.initialize(
            deploy_generation=deploy_generation,
            holder=f"{socket.gethostname()}:{os.getpid()}",
            purpose="holdfast catalog init",
        )
        state = f"version {openable.config('user_version')}, epoch {openable.epoch()}"
        verb = "initialized" if made else "already initialized:"
        click.echo(f"{verb} catalog {openable.shard_id}, {state}")


@catalog.command()
@_catalog_options
@click.option("--target", metavar="FILE", type=click.Path(path_type=Path), help="Write here, not to stdout.")
@click.option("--as-of", metavar="T", type=click.IntRange(min=0), help="The catalog's time; default: latest.")
def dump(target: Path | None, as_of: int | None, **where: Any) -> None:
    """Show everything as JSON: by object type, each object's key and value."""
    with _openable("read", **where) as openable:
        text = openable.dump(as_of)
    if target is None:
        click.echo(text, nl=False)
    else:
        _write(target, text)


@catalog.command()
@_catalog_options
def epoch(**where: Any) -> None:
    """Show the durable epoch: how often the catalog was opened for writing."""
    with _openable("read", **where) as openable:
        durable = openable.epoch()
        if durable is None:
            raise Uninitialized(f"the catalog in {openable.shard_id} is not initialized")
    click.echo(durable)


def _write(target: Path, text: str) -> None:
    """Put the file there whole or not at all."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, prefix=f".{target.name}.", delete=False, encoding="utf-8"
        ) as file:
            try:
                file.write(text)
                file.close()
                Path(file.name).replace(target)
            except BaseException:
                Path(file.name).unlink()
                raise
    except OSError as error:
        raise BadInput(f"can't write {target}: {error.strerror}") from error
