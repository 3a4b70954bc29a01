"""How a command line shows errors: one line on stderr, the hint on a second line, and an exit code."""

import traceback
from typing import Any

import click

from holdfast.errors import BadInput, HoldfastError
from holdfast.text import one_line


class TellingGroup(click.Group):
    """The top group of a command line. It shows every `HoldfastError` and usage error this way.

    `program` is the prefix of the error lines.
    """

    program = ""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the options before the first command, and show what is wrong with them."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise self.told(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Show its error and exit with the error's code."""
        try:
            return super().invoke(ctx)
        except (click.UsageError, HoldfastError) as error:
            self.trace(ctx, error)
            raise self.told(error) from error

    def trace(self, ctx: click.Context, error: Exception) -> None:
        """Show the traceback of an error if `--debug` is given."""
        if ctx.params.get("debug"):
            traceback.print_exception(error)

    def told(self, error: click.UsageError | HoldfastError) -> click.ClickException | click.exceptions.Exit:
        """Show an error, and return the exception that ends the command with its exit code."""
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            return error
        if isinstance(error, click.UsageError):
            command = error.ctx.command_path if error.ctx else self.program
            message, hint = error.format_message(), f"see '{command} --help'"
            error = BadInput(message, hint=hint)
        click.echo(one_line(f"{self.program}: {' '.join(str(error).split())}"), err=True)
        if error.hint:
            click.echo(one_line(f"  hint: {error.hint}"), err=True)
        return click.exceptions.Exit(error.exit_code)
