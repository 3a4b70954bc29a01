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
    help="Of the link; one-tombstone for a new one.",
)
migration_id_option = click.option(
    "--id",
    "migration_id",
    metavar="ID",
    required=True,
    help="Its name: the same resumes it, another one has another.",
)
yes_option = click.option("--yes", is_flag=True, help="Don't ask.")
generation_option = click.option(
    "--deploy-generation", metavar="G", type=u64, help="If not given, the greatest of the two stores."
)


def backend_named(name: str) -> "Backend":
    """The store that an option names."""
    from holdfast.catalog.move.truth import Backend

    return Backend[name.upper()]


def holder() -> str:
    """Who this process is, in fence tokens."""
    return f"{socket.gethostname()}:{os.getpid()}"


def with_strategy(place: LinkedPlace, strategy: str | None) -> LinkedPlace:
    """The place, to be linked with the strategy of the option."""
    from holdfast.catalog.move.truth import Strategy

    chosen = None if strategy is None else Strategy[strategy.upper().replace("-", "_")]
    return replace(place, strategy=chosen)


def agree(place: str, what: str, needs: str, *, yes: bool) -> None:
    """Say who is fenced, and ask; where nobody can be asked, `needs` tells what needs --yes."""
    if not yes and not somebody_answers():
        raise BadInput(f"{needs} needs a yes", hint="give --yes")
    click.echo(f"fencing every process that writes to {place}{what and '; '}{what}", err=True)
    if not yes:
        confirm("Go on?")
