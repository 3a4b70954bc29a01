"""The output of the demo: acts, checked claims, and progress."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_PLAIN_WIDTH = 132

console = Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)


class ClaimError(Exception):
    """A claim of the demo doesn't hold."""


class Screen:
    """Prints acts and checked claims."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.claims = 0

    def act(self, title: str) -> None:
        """Print the title of an act."""
        console.print(f"\n[bold]{title}[/]  [dim]{time.monotonic() - self._started:.0f} s[/]")

    def say(self, text: str) -> None:
        """Print what happens."""
        console.print(f"  {text}")

    def check(self, claim: str, holds: bool, found: object = "") -> None:
        """Print a claim that holds; raise `ClaimError` if it does not hold."""
        if not holds:
            raise ClaimError(f"{claim}: it does not; found {found}")
        self.claims += 1
        detail = f" [dim]({found})[/]" if found != "" else ""
        console.print(f"  [green]✔[/] {claim}{detail}")

    def output(self, command: str, text: str) -> None:
        """Print a command and its output."""
        console.print(f"  [bold cyan]$ {command}[/]")
        for line in text.rstrip().splitlines():
            console.print(f"  {line}", markup=False, no_wrap=True, overflow="crop")

    def rows(self, title: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        """Print a small table."""
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, justify="left" if column == columns[0] else "right")
        for row in rows:
            table.add_row(*[str(cell) for cell in row])
        console.print(table)

    @contextlib.contextmanager
    def progress(self, title: str, total: int) -> Iterator[Any]:
        """Show a progress bar in a terminal. Yields a function that advances it."""
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(title, total=total)
            yield lambda amount: bar.update(task, advance=amount)
