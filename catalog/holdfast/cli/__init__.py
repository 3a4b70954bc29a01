"""The command `holdfast`: groups of subcommands, loaded when they are called, and how errors are told.

Invariants
- `holdfast --help` imports nothing heavy; a group's module is imported when one of its commands is asked for.
- What is wrong is one line on stderr, and a hint on a second one; no traceback unless `--debug`.
- Exit codes: 0 ok, 1 a negative answer or an uninitialized catalog, 2 bad input, 3 store unreachable,
  4 fenced.
"""

import importlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from holdfast.cli.telling import TellingGroup
from holdfast.errors import HoldfastError


class LazyGroup(NamedTuple):
    """A group of subcommands: where it is defined (`module:name`), and what its help says in one line."""

    target: str
    help: str


GROUPS: Mapping[str, LazyGroup] = {
    "catalog": LazyGroup(
        "holdfast.cli.catalog.commands:catalog", "Make, look at and repair durable catalogs."
    ),
    "collection": LazyGroup(
        "holdfast.cli.collection.commands:collection", "Make, read and write storage collections."
    ),
    "migrate": LazyGroup(
        "holdfast.cli.migrate.commands:migrate", "Move a catalog between a stash and persist, and back."
    ),
    "persist": LazyGroup(
        "holdfast.cli.persist.commands:persist", "Look at the shards of a location, and keep them in order."
    ),
}


_DEBUG = "'holdfast --debug ...' shows where it came from"


class Main(TellingGroup):
    """The top of the command line."""

    program = "holdfast"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all groups."""
        return sorted({*GROUPS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The group of that name, imported now."""
        group = GROUPS.get(cmd_name)
        if group is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = group.target.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of groups in the help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, group.help) for name, group in sorted(GROUPS.items())])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; tell what went wrong, an error of Arrow too, and exit with its code."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Not imported for this: who raises one has it.
            arrow = sys.modules.get("pyarrow")
            if arrow is None or not isinstance(error, arrow.ArrowException):
                raise
            self.trace(ctx, error)
            raise self.told(HoldfastError(f"Arrow can't do this: {error}", hint=_DEBUG)) from error


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast", prog_name="holdfast")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Durable, definite, time-travelling collections, and the catalog that names them."""
