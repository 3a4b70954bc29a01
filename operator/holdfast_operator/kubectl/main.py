"""The command `kubectl-holdfast`, which kubectl finds as `kubectl holdfast`.

Invariants
- A command's module is imported only when the command runs. None imports models, stores or a Kubernetes
  client.
- An error is one line on stderr, and a second line has a hint.
- Exit codes: 0 for success, 1 if the awaited result did not come, 2 for bad input or an unusable cluster.
"""

import importlib
from typing import Final

import click

from holdfast.cli.telling import TellingGroup
from holdfast_operator.kubectl.options import named_cluster

_COMMANDS: Final = {
    "status": ("status_command:status", "Show catalogs, collections and migrations, and what they wait for."),
    "migrate": ("migrate_command:migrate", "Move a catalog to persist or to its stash."),
    "rollback": ("migrate_command:rollback", "Roll back a migration, so that the catalog moves back."),
    "snapshot": ("collections:snapshot", "Write a snapshot of a collection."),
    "compact": ("collections:compact", "Merge the batches of each shard of a collection into one."),
    "handover": ("collections:handover", "Let the next rendition of a collection take over."),
    "restore": (
        "restore_command:restore",
        "Restore a collection from a snapshot, or create a restored catalog.",
    ),
    "holds": ("collections:holds", "Show the holds that keep retired renditions of a collection."),
    "source": ("collections:source", "Show how far the source of a collection is read."),
    "connection": ("connection_command:connection", "Show how an application opens a catalog."),
    "dump": ("connection_command:dump", "Show the command that dumps a catalog."),
    "fence": ("connection_command:fence", "Show the command that raises a catalog's fence token."),
    "abandon": ("abandon_command:abandon", "Let a resource go whose data can't be deleted; the data stays."),
    "report": ("report:report", "Write a support bundle without secrets."),
}


class Main(TellingGroup):
    """The top of the command line."""

    program = "kubectl holdfast"

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Returns the commands, the most used ones first."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Imports and returns the command of that name."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f"holdfast_operator.kubectl.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Writes the list of commands for the help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_) for name, (_, help_) in _COMMANDS.items()])


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast-operator", prog_name="kubectl holdfast")
@named_cluster
def _command(**_: object) -> None:
    """Show the catalogs and collections of a cluster, and request work from the operator.

    The plugin acts only through the Kubernetes API, like kubectl with the same kubeconfig.
    """


def main() -> None:
    """Runs the command line."""
    _command(prog_name="kubectl holdfast")


if __name__ == "__main__":
    main()
