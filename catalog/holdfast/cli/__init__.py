"""The command `holdfast`: groups of subcommands, loaded on demand, and how errors are shown.

Invariants
- `holdfast --help` imports nothing heavy. The module of a group is imported when one of its commands runs.
- An error is one line on stderr, and its hint a second line. A traceback is shown only with `--debug`.
- Exit codes: 0 ok, 1 a negative result or an uninitialized catalog, 2 bad input, 3 store unreachable,
  4 fenced, 130 interrupted by Ctrl-C, 141 nobody reads the output any more. The last two are silent.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import click

from holdfast.cli.telling import TellingGroup
from holdfast.errors import BadInput, HoldfastError


class LazyCommand(NamedTuple):
    """A command or a group of them: where it is defined (`module:name`), and its one-line help."""

    target: str
    help: str


GROUPS: Mapping[str, LazyCommand] = {
    "catalog": LazyCommand("holdfast.cli.catalog.commands:catalog", "Create, inspect and repair catalogs."),
    "collection": LazyCommand(
        "holdfast.cli.collection.commands:collection", "Create, read and write collections."
    ),
    "console": LazyCommand("holdfast.cli.console:console", "Show a location in a browser."),
    "completion": LazyCommand(
        "holdfast.cli.completing:completion", "Show the completion script for a shell."
    ),
    "ingest": LazyCommand("holdfast.cli.ingest:ingest", "Feed a collection from a source."),
    "migrate": LazyCommand(
        "holdfast.cli.migrate.commands:migrate", "Move a catalog between a stash and persist, and back."
    ),
    "persist": LazyCommand(
        "holdfast.cli.persist.commands:persist", "Inspect and maintain the shards of a location."
    ),
}

_COLLECTION = "holdfast.cli.collection.commands"
SECTIONS: Mapping[str, Mapping[str, LazyCommand]] = {
    "Read": {
        "ls": LazyCommand(f"{_COLLECTION}:list_", "Show all collections."),
        "read": LazyCommand(f"{_COLLECTION}:read", "Show the contents as of one time."),
        "count": LazyCommand(f"{_COLLECTION}:count_rows", "Show the number of rows."),
        "sql": LazyCommand(f"{_COLLECTION}:sql", "Run a query on the collections of a location."),
        "diff": LazyCommand(f"{_COLLECTION}:diff", "Show the differences between two times."),
        "history": LazyCommand(f"{_COLLECTION}:history", "Show who wrote what, and when."),
        "tail": LazyCommand(f"{_COLLECTION}:tail", "Follow the changes of a collection."),
    },
    "Write": {
        "write": LazyCommand(f"{_COLLECTION}:write", "Append, upsert or delete the rows of a file."),
        "merge": LazyCommand(f"{_COLLECTION}:merge", "Compare the rows of a file by key, and change them."),
        "update": LazyCommand(f"{_COLLECTION}:update", "Set columns of the rows that a condition chooses."),
        "delete": LazyCommand(f"{_COLLECTION}:delete", "Delete the rows that a condition chooses."),
    },
    "Collections": {
        "create": LazyCommand(f"{_COLLECTION}:create", "Create a collection, perhaps from a file."),
        "copy": LazyCommand(f"{_COLLECTION}:copy", "Copy a collection, or all, with the history."),
        "drop": LazyCommand(f"{_COLLECTION}:drop", "Drop a collection and delete its data."),
    },
}
"""Short names of commands of `holdfast collection`, as the help groups them."""

VERBS: Mapping[str, LazyCommand] = {
    name: verb for section in SECTIONS.values() for name, verb in section.items()
}
"""All short names."""

_DESTRUCTIVE: Final = frozenset(
    {
        "abandon",
        "delete",
        "detach",
        "drop",
        "drop-column",
        "edit",
        "fence",
        "gc",
        "link",
        "load",
        "recover",
        "release",
        "restore",
        "retain",
        "revert",
        "rollback",
        "run",
    }
)
"""Commands of groups that take something away. No hint leads from a mistyped word to them."""

INTERRUPTED: Final = 130
NOT_READ: Final = 141
_DEBUG = "'holdfast --debug ...' shows the traceback"


class Main(TellingGroup):
    """The top of the command line."""

    program = "holdfast"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted({*GROUPS, *VERBS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with that name, imported now."""
        found = GROUPS.get(cmd_name) or VERBS.get(cmd_name)
        if found is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = found.target.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with. The hint for an unknown one names what may be meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            groups = [name for name in GROUPS if self._has(ctx, name, args[0])]
            if groups and args[0] in _DESTRUCTIVE:
                shown = " and ".join(f"'{self.program} {each} --help'" for each in groups)
                raise BadInput(error.format_message(), hint=f"see {shown}") from None
            inside = [f"{name} {args[0]}" for name in groups]
            meant = inside or get_close_matches(args[0], self.list_commands(ctx), 3)
            if not meant:
                raise
            shown = " or ".join(f"'{self.program} {each}'" for each in meant)
            raise BadInput(error.format_message(), hint=f"did you mean {shown}?") from None

    def _has(self, ctx: click.Context, group: str, name: str) -> bool:
        """Return whether a group has a command with this name."""
        command = self.get_command(ctx, group)
        return isinstance(command, click.Group) and name in command.commands

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands to the help, without importing them."""
        width = max(map(len, [*GROUPS, *VERBS]))
        for section, commands in {**SECTIONS, "Everything else": GROUPS}.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), command.help) for name, command in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Show its error, including an error of Arrow, and exit with the error's code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                # The terminal shows ^C, and the prompt comes on the next line.
                click.echo(err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # What is left in the buffer goes nowhere, without a word.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(NOT_READ) from None
        except Exception as error:
            # Arrow is not imported for this check: a process that raised one of its errors has loaded it.
            arrow = sys.modules.get("pyarrow")
            if arrow is None or not isinstance(error, arrow.ArrowException):
                raise
            self.trace(ctx, error)
            raise self.told(HoldfastError(f"Arrow can't do this: {error}", hint=_DEBUG)) from error


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast", prog_name="holdfast")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Store collections that keep their history, and catalogs that name them.

    \b
    export HOLDFAST_URL=/data/shop
    holdfast create orders --from orders.csv --key id
    holdfast read orders --where "count > 3"

    'holdfast COMMAND --help' describes a command.
    """  # noqa: D301 - the escape is for the formatter of the help
