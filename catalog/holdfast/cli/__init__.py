"""The command `holdfast`: groups of subcommands, loaded when they are called, and how errors are told.

Invariants
- `holdfast --help` imports nothing heavy; a group's module is imported when one of its commands is asked for.
- What is wrong is one line on stderr, and a hint on a second one; no traceback unless `--debug`.
- Exit codes: 0 ok, 1 a negative answer or an uninitialized catalog, 2 bad input, 3 store unreachable,
  4 fenced.
"""

import importlib
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from holdfast.errors import BadInput, HoldfastError


class LazyGroup(NamedTuple):
    """A group of subcommands: where it is defined (`module:name`), and what its help says in one line."""

    target: str
    help: str


GROUPS: Mapping[str, LazyGroup] = {
    "catalog": LazyGroup("holdfast.cli.catalog:catalog", "Make, look at and repair durable catalogs."),
    "collection": LazyGroup(
        "holdfast.cli.collection:collection", "Make, read and write storage collections."
    ),
    "migrate": LazyGroup(
        "holdfast.cli.migrate:migrate", "Move a catalog between a stash and persist, and back."
    ),
    "persist": LazyGroup(
        "holdfast.cli.persist:persist", "Look at the shards of a location, and keep them in order."
    ),
}


_DEBUG = "'holdfast --debug ...' shows where it came from"


class Main(click.Group):
    """The top of the command line."""

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

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the options before the first command; tell what is wrong with them."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise _told(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; tell what went wrong and exit with its code."""
        try:
            return super().invoke(ctx)
        except (click.UsageError, HoldfastError) as error:
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            raise _told(error) from error
        except Exception as error:
            # Not imported for this: who raises one has it.
            arrow = sys.modules.get("pyarrow")
            if arrow is None or not isinstance(error, arrow.ArrowException):
                raise
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            raise _told(HoldfastError(f"Arrow can't do this: {error}", hint=_DEBUG)) from error


def _told(error: click.UsageError | HoldfastError) -> click.ClickException | click.exceptions.Exit:
    """Say in one line, and one for the hint, what went wrong; what ends the command with its exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "holdfast"
        error = BadInput(error.format_message(), hint=f"see '{command} --help'")
    click.echo(f"holdfast: {' '.join(str(error).split())}", err=True)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)
    return click.exceptions.Exit(error.exit_code)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast", prog_name="holdfast")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Durable, definite, time-travelling collections, and the catalog that names them."""
