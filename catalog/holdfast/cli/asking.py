"""Questions at a terminal."""

import signal
import sys

import click


def somebody_answers() -> bool:
    """Whether there is a terminal to ask at."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> None:
    """Ask on stderr, and end the command unless the answer is yes."""
    # Polars handles interrupts so that a read goes on after one: the question could not be interrupted.
    signal.siginterrupt(signal.SIGINT, True)
    click.confirm(question, abort=True, err=True)
