"""What the commands of `holdfast migrate` share."""

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from holdfast.cli.asking import confirm, somebody_answers
from holdfast.cli.catalog.place import LinkedPlace
from holdfast.cli.numbers import u64
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.catalog.move.truth import Backend

BACKENDS = ["stash", "persist"]

strategy_option = click.option(
    "--strategy",
    type=click.Choice(["one-tombstone", "two-tombstones"]),
    help="The strategy of the link. A new link uses one-tombstone by default.",
)
migration_id_option = click.option(
    "--id",
    "migration_id",
    metavar="ID",
    required=True,
    help="The name of the migration. The same ID resumes it.",
)
yes_option = click.option("--yes", is_flag=True, help="Don't ask.")
generation_option = click.option(
    "--deploy-generation", metavar="G", type=u64, help="Default: the greater one of the two stores."
)


def backend_named(name: str) -> "Backend":
    """The store with this name."""
    from holdfast.catalog.move.truth import Backend

    return Backend[name.upper()]


def holder() -> str:
    """This process, as fence tokens name it."""
    return f"{socket.gethostname()}:{os.getpid()}"


def with_strategy(place: LinkedPlace, strategy: str | None) -> LinkedPlace:
    """The place with the link strategy that the option names."""
    from holdfast.catalog.move.truth import Strategy

    chosen = None if strategy is None else Strategy[strategy.upper().replace("-", "_")]
    return replace(place, strategy=chosen)


def agree(place: str, what: str, needs: str, *, yes: bool) -> None:
    """Show who is fenced, and ask. `needs` names what needs --yes if there is no terminal to ask at."""
    if not yes and not somebody_answers():
        raise BadInput(f"{needs} needs confirmation", hint="pass --yes")
    click.echo(f"fencing every process that writes to {place}{what and '; '}{what}", err=True)
    if not yes:
        confirm("Go on?")
