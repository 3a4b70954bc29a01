"""Code that all benchmarks share: rows with a goal, paired measurements, and the command line.

A row compares us with a peer in the same process, on the same machine, in the same minute. Both are warmed
up, then run in turns, so that a busy machine or a cold disk affects both. Each number is a median.
`ratio` is ours / peer in the row's unit. A goal for a duration is `<=`, one for a rate `>=`.
A missed goal is reported and fails nothing.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Column, Table


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for the ratio."""

    op: Literal["<=", ">="]
    value: float

    def met(self, ratio: float) -> bool:
        """Return whether the ratio reaches the goal."""
        return ratio <= self.value if self.op == "<=" else ratio >= self.value


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison; `ours` and `peer` are in `unit`, `note` says what the numbers leave out."""

    name: str
    ours: float
    peer: float
    unit: str
    goal: Goal
    note: str = ""

    @property
    def ratio(self) -> float:
        """Ours / peer."""
        return self.ours / self.peer

    def to_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return {
            "name": self.name,
            "ours": round_to(self.ours),
            "peer": round_to(self.peer),
            "unit": self.unit,
            "ratio": round_to(self.ratio),
            "goal": {"op": self.goal.op, "value": self.goal.value},
            "met": self.goal.met(self.ratio),
            "note": self.note,
        }


def round_to(value: float, digits: int = 4) -> float:
    """Return the value rounded to `digits` significant digits."""
    return float(f"{value:.{digits}g}")


def in_turns(
    *actions: Callable[[], object],
    rounds: int,
    warmup: int = 1,
    in_a_row: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Return the seconds of each action in each round, without `warmup` rounds before.

    The actions run in turns, each `in_a_row` times. Each round begins with another action.
    """
    seconds: list[list[float]] = [[] for _ in actions]
    for number in range(-warmup, rounds):
        for step in range(len(actions)):
            which = (step + number) % len(actions)
            for _ in range(in_a_row):
                start = clock()
                actions[which]()
                elapsed = clock() - start
                if number >= 0:
                    seconds[which].append(elapsed)
    return seconds


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@contextmanager
def scratch() -> Iterator[Path]:
    """Create an empty folder, on the disk that TMPDIR names; it is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        yield Path(folder)


def main(rows: Callable[[], Iterable[Row]]) -> None:
    """Run one benchmark file and print a table, or with `--json` one object per line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    as_json = parser.parse_args().json
    done = []
    for row in rows():
        done.append(row.to_json())
        if as_json:
            print(json.dumps(done[-1]), flush=True)
    if not as_json:
        console().print(table_of(done))


def console() -> Console:
    """Return a console for the terminal, or one that is wide enough for the table."""
    return Console(width=None if sys.stdout.isatty() else 120)


def table_of(rows: Iterable[dict[str, Any]]) -> Table:
    """Return the rows (in their JSON form) as a table for the terminal."""
    table = Table(Column("benchmark", no_wrap=True), "ours", "peer", "unit", "ratio", "goal", "met")
    for row in rows:
        met = "[green]yes[/green]" if row["met"] else "[red]no[/red]"
        goal = f"{row['goal']['op']} {row['goal']['value']:g}"
        numbers = [
            f"{row[name]:,.4g}" if row[name] < 1e4 else f"{row[name]:,.0f}" for name in ("ours", "peer")
        ]
        table.add_row(row["name"], *numbers, row["unit"], f"{row['ratio']:.3g}", goal, met)
    return table


def log(message: str) -> None:
    """Print progress to stderr, separate from the results."""
    print(message, file=sys.stderr, flush=True)
