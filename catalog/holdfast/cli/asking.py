"""Questions at a terminal."""

import signal
import sys

import click


def somebody_answers() -> bool:
    """Return whether there is a terminal to ask at."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> None:
    """Ask on stderr, and end the command unless the answer is yes."""
    # Polars handles SIGINT so that a read continues after it. Without this, Ctrl-C would not end the
    # question.
    signal.siginterrupt(signal.SIGINT, True)
    click.confirm(question, abort=True, err=True)
