"""How a command line tells what went wrong: one line on stderr, a hint on a second one, its exit code."""

import traceback
from typing import Any

import click

from holdfast.errors import BadInput, HoldfastError


class TellingGroup(click.Group):
    """The top of a command line, of which every error of ours and of its use is told so.

    `program` is what its lines begin with.
    """

    program = ""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the options before the first command; tell what is wrong with them."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise self.told(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; tell what went wrong and exit with its code."""
        try:
            return super().invoke(ctx)
        except (click.UsageError, HoldfastError) as error:
            self.trace(ctx, error)
            raise self.told(error) from error

    def trace(self, ctx: click.Context, error: Exception) -> None:
        """Show where an error came from, where the option `--debug` is given."""
        if ctx.params.get("debug"):
            traceback.print_exception(error)

    def told(self, error: click.UsageError | HoldfastError) -> click.ClickException | click.exceptions.Exit:
        """Say what went wrong; what ends the command with its exit code."""
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            return error
        if isinstance(error, click.UsageError):
            command = error.ctx.command_path if error.ctx else self.program
            error = BadInput(error.format_message(), hint=f"see '{command} --help'")
        click.echo(f"{self.program}: {' '.join(str(error).split())}", err=True)
        if error.hint:
            click.echo(f"  hint: {error.hint}", err=True)
        return click.exceptions.Exit(error.exit_code)
