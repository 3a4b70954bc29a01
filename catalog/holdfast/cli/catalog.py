"""`holdfast catalog`: make a durable catalog and look at it. It works beside a running database.

What is heavy is imported in the commands, so that their help is quick; bad input is found before the store is
touched, and a refused command leaves it as it was.
"""

import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.location import open_to_look, open_to_write
from holdfast.errors import BadInput, StoreUnreachable, Uninitialized

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


def _chosen(persist: str | None, stash: str | None, organization_id: str | None) -> tuple[str, str]:
    """The location and the organization that the options name, checked as far as text can be."""
    if stash is not None:
        raise BadInput(
            "--stash is not available in this version", hint="use --persist URL --organization-id UUID"
        )
    if persist is None or organization_id is None:
        missing = "--persist" if persist is None else "--organization-id"
        raise BadInput(f"{missing} is missing", hint="use --persist URL --organization-id UUID")
    from holdfast.durable import catalog_shard_id

    catalog_shard_id(organization_id)
    return persist, organization_id


@contextlib.contextmanager
def _openable(*, write: bool, **where: str | None) -> Iterator["OpenableCatalog"]:
    from holdfast.durable import persist_catalog

    url, organization_id = _chosen(**where)
    with open_to_write(url, create=True) if write else open_to_look(url) as client:
        yield persist_catalog(client, organization_id)


@catalog.command()
@_catalog_options
@click.option(
    "--deploy-generation",
    type=click.IntRange(0, (1 << 64) - 1),
    default=0,
    show_default=True,
    help="The generation of the deployment that may write to it first.",
)
def init(deploy_generation: int, **where: Any) -> None:
    """Write the initial objects of a new catalog; an initialized one is left alone, and nobody is fenced."""
    # Where there is no location yet, or none that can be opened, the open for writing tells.
    with contextlib.suppress(StoreUnreachable), _openable(write=False, **where) as openable:
        if openable.is_initialized():
            click.echo(f"already initialized: {_state(openable)}")
            return
    with _openable(write=True, **where) as openable:
        made = openable.initialize(
            deploy_generation=deploy_generation,
            holder=f"{socket.gethostname()}:{os.getpid()}",
            purpose="holdfast catalog init",
        )
        verb = "initialized" if made else "already initialized:"
        click.echo(f"{verb} {_state(openable)}")


@catalog.command()
@_catalog_options
@click.option("--target", metavar="FILE", type=click.Path(path_type=Path), help="Write here, not to stdout.")
@click.option(
    "--as-of", metavar="T", type=click.IntRange(0, (1 << 64) - 1), help="The catalog's time; default: latest."
)
def dump(target: Path | None, as_of: int | None, **where: Any) -> None:
    """Show everything as JSON: by object type, each object's key and value."""
    with _openable(write=False, **where) as openable:
        text = openable.dump(as_of)
    if target is None:
        click.echo(text, nl=False)
    else:
        _write(target, text)


@catalog.command()
@_catalog_options
def epoch(**where: Any) -> None:
    """Show the durable epoch: how often the catalog was opened for writing."""
    with _openable(write=False, **where) as openable:
        durable = openable.epoch()
        if durable is None:
            raise Uninitialized(f"the catalog in {openable.place} is not initialized")
    click.echo(durable)


def _state(openable: "OpenableCatalog") -> str:
    version = openable.config("user_version")
    return f"catalog {openable.place}, version {version}, epoch {openable.epoch()}"


def _write(target: Path, text: str) -> None:
    """Put the file there whole, durable and with the modes of any new file, or not at all."""
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    try:
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"can't write {target}: {error.strerror}") from error
