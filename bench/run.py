"""Run every benchmark of this folder, print one table and write it to `RESULTS.md` beside them.

With names of files as arguments (`append snapshot`), run only those and write nothing. Each file runs in its
own process, one after the other. A file that fails is reported, and makes the exit code 1; a missed goal
does not.
"""

import ast
import datetime as dt
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import console, table_of

HERE = Path(__file__).resolve().parent
NOT_BENCHMARKS = {"common.py", "run.py"}
LIBRARIES = ("polars", "pyarrow", "duckdb", "deltalake", "pyiceberg", "protobuf")


def main() -> int:
    """Run all of them."""
    terminal = console()
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    only = sys.argv[1:]
    files = sorted(path for path in HERE.glob("*.py") if path.name not in NOT_BENCHMARKS)
    if unknown := set(only) - {path.stem for path in files}:
        terminal.print(f"no such benchmark: {', '.join(sorted(unknown))}")
        return 2
    files = [path for path in files if not only or path.stem in only]
    for path in files:
        terminal.print(f"running {path.name}")
        done = subprocess.run(
            [sys.executable, str(path), "--json"], stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            failed.append(path.name)
        rows += [json.loads(line) | {"file": path.name} for line in done.stdout.splitlines()]
    terminal.print(table_of(rows))
    if not only:
        (HERE / "RESULTS.md").write_text(report(rows, failed, files))
    if failed:
        terminal.print(f"[red]failed: {', '.join(failed)}[/red]")
    return 1 if failed else 0


def report(rows: list[dict[str, Any]], failed: list[str], files: list[Path]) -> str:
    """The text of `RESULTS.md`."""
    met = sum(row["met"] for row in rows)
    lines = [
        "# Benchmark results",
        "",
        f"Written by `make bench` on {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC."
        f" {met} of {len(rows)} goals met." + (f" Failed to run: {', '.join(failed)}." if failed else ""),
        "",
        f"Machine: {machine()}.",
        "",
        "Ratio = ours / peer in the row's unit, both measured in turns in one process.",
        "",
        "| benchmark | ours | peer | unit | ratio | goal | met | note |",
        "|---|---:|---:|---|---:|---|---|---|",
    ]
    for row in rows:
        numbers = f"{number(row['ours'])} | {number(row['peer'])} | {row['unit']} | {row['ratio']:.3g}"
        goal = f"{row['goal']['op']} {row['goal']['value']:g} | {'yes' if row['met'] else '**no**'}"
        lines.append(f"| {row['name']} | {numbers} | {goal} | {row['note']} |")
    for path in files:
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        lines += ["", f"## {path.name}", "", docstring]
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """A number for people."""
    return f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"


def machine() -> str:
    """What the numbers were measured on."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    load = os.getloadavg()[1]
    return (
        f"{cores} cores ({processor()}), {memory:.0f} GiB, {platform.system()} {platform.release()},"
        f" Python {platform.python_version()}, {versions}; load average over 5 minutes {load:.1f}"
    )


def processor() -> str:
    """The name of the processor, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
    ]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
