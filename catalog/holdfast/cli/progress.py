"""The progress of long work, for people at a terminal, and lines about its result.

Invariants
- Nothing is written with `--quiet`, and nothing is ever written to stdout.
- Progress is written only if stderr is a terminal.
- The line disappears when the work ends, even by an error: use it in a `with` block. A command writes its
  result after that.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import click

from holdfast.text import count

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_F = TypeVar("_F", bound=Callable[..., Any])
_BAR_WIDTH: Final = 24
_ROOM_FOR_BAR: Final = 72
_QUIET: Final = "holdfast.quiet"


def quiet_option(command: _F) -> _F:
    """Add the option `--quiet`, which `is_quiet` returns."""

    def hush(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
        if value:
            context.meta[_QUIET] = True

    return click.option(
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=hush,
        help="Show neither progress nor what was done.",
    )(command)


def is_quiet() -> bool:
    """Return whether the command that runs was given `--quiet`."""
    context = click.get_current_context(silent=True)
    return context is not None and _QUIET in context.meta


def note(text: str) -> None:
    """Write a line about the result to stderr, such as how many rows were written. Not with `--quiet`."""
    if not is_quiet():
        click.echo(text, err=True)


class ProgressLine:
    """One line on stderr: the work, a bar if the total is known, and the current item.

    With `after_s`, the line appears so many seconds after the `with` block began, in a thread of its own.
    """

    def __init__(self, what: str, *, shown: bool = True, after_s: float = 0.0) -> None:
        self._what = what
        self._shown = shown and sys.stderr.isatty() and not is_quiet()
        self._lock = threading.RLock()
        self._waiting = threading.Timer(after_s, self._appear) if self._shown and after_s else None
        self._last: tuple[str, int | None, int | None] = ("", None, None)
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __call__(self, now: str) -> None:
        """Show the current item. The bar only shows that work goes on."""
        self._show(now, None, None)

    def begin(self, what: str) -> None:
        """Begin other work. Its elapsed time starts at zero."""
        if self._bar is not None and self._task is not None:
            # Draws the final progress even if the work was short.
            self._bar.refresh()
            self._bar.remove_task(self._task)
            self._task = None
        self._what = what
        self._show("", None, None)

    def rows(self, done: int, total: int | None = None) -> None:
        """Show how many rows are done, and the total if it is known."""
        self._show(count(done, "row") if total is None else f"{done:,} of {count(total, 'row')}", done, total)

    def part(self, done: int, total: int | None, now: str) -> None:
        """Show how much is done, in any unit, and `now` as text."""
        self._show(now, done, total)

    def over(self, items: Iterable[str]) -> Iterator[str]:
        """Return the items, and show each one when it is taken."""
        known = list(items)
        for index, item in enumerate(known):
            self._show(item, index, len(known))
            yield item

    def done(self) -> None:
        """Remove the line."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.cancel()
            self._shown = False
            bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def __enter__(self) -> Self:
        if self._waiting is not None:
            self._waiting.daemon = True
            self._waiting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done()

    def _show(self, now: str, done: int | None, total: int | None) -> None:
        with self._lock:
            self._last = (now, done, total)
            if self._shown and self._waiting is None:
                self._draw(now, done, total)

    def _appear(self) -> None:
        with self._lock:
            self._waiting = None
            self._show(*self._last)

    def _draw(self, now: str, done: int | None, total: int | None) -> None:
        if self._bar is None:
            self._bar = _started()
        if self._task is None:
            self._task = self._bar.add_task(self._what, total=None, now=now)
        self._bar.update(self._task, completed=done or 0, total=total, now=now)


def _started() -> "Bar":
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    def text(told: str, **column: object) -> TextColumn:
        fitted = Column(no_wrap=True, overflow="ellipsis", **column)  # type: ignore[arg-type]
        return TextColumn(told, style="none", markup=False, table_column=fitted)

    console = Console(stderr=True)
    columns: list[str | ProgressColumn] = [text("{task.description}"), text("{task.fields[now]}", ratio=1)]
    if console.width >= _ROOM_FOR_BAR:
        columns.insert(1, BarColumn(bar_width=_BAR_WIDTH))
        columns.append(TimeElapsedColumn())
    bar = Bar(*columns, console=console, transient=True)
    bar.start()
    return bar
