"""Runs every benchmark in this folder, prints one table, and writes it to `RESULTS.md` in the same folder.

With names of files as arguments (`append snapshot`), it runs only those, and keeps the other results.
Each file runs in its own process, one after the other. If a file fails, it is reported and the exit code
is 1. A missed goal doesn't change the exit code.
"""

import ast
import datetime as dt
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import console, table_of

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
BY_HAND = {"builds.py"}
NOT_BENCHMARKS = {*BY_HAND, "builds_worker.py", "common.py", "run.py", "table_rows.py"}
LIBRARIES = ("polars", "pyarrow", "duckdb", "deltalake", "pyiceberg", "lancedb", "protobuf")


def main() -> int:
    """Run all benchmarks, or those in the arguments; return the exit code."""
    terminal = console()
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    only = sys.argv[1:]
    files = sorted(path for path in HERE.glob("*.py") if path.name not in NOT_BENCHMARKS)
    if unknown := set(only) - {path.stem for path in files}:
        terminal.print(f"no such benchmark: {', '.join(sorted(unknown))}")
        return 2
    sections = read_sections(RESULTS.read_text()) if RESULTS.exists() else {}
    names = sorted({path.name for path in files} | (BY_HAND & sections.keys()))
    sections = {name: sections.get(name, "") for name in names}
    for path in [path for path in files if not only or path.stem in only]:
        terminal.print(f"running {path.name}")
        load = os.getloadavg()[1]
        done = subprocess.run(
            [sys.executable, str(path), "--json"], stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            failed.append(path.name)
            continue
        found = [json.loads(line) for line in done.stdout.splitlines()]
        rows += found
        sections[path.name] = section(path, found, load)
        RESULTS.write_text(report(sections))
    terminal.print(table_of(rows))
    if failed:
        terminal.print(f"[red]failed: {', '.join(failed)}[/red]")
    return 1 if failed else 0


def read_sections(report: str) -> dict[str, str]:
    """Return the sections of a report by the names of their files."""
    _, *sections = re.split(r"^## (\S+\.py)\n", report, flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(sections[::2], sections[1::2], strict=True)}


def report(sections: Mapping[str, str]) -> str:
    """Return the text of `RESULTS.md`."""
    goals = [line for text in sections.values() for line in text.splitlines() if line.startswith("| ")]
    met, missed = (sum(f"| {answer} |" in line for line in goals) for answer in ("yes", "**no**"))
    never = [name for name, text in sections.items() if not text]
    lines = [
        "# Benchmark results",
        "",
        f"Written by `make bench`, one file at a time. {met} of {met + missed} goals met."
        + (f" Never run to the end: {', '.join(never)}." if never else ""),
        "",
        "The ratio is ours / peer in the row's unit. Both are measured in turns in one process.",
    ]
    for name, text in sections.items():
        if text:
            lines += ["", f"## {name}", "", text]
    return "\n".join(lines) + "\n"


def section(path: Path, rows: Sequence[dict[str, Any]], load: float) -> str:
    """Return the section of one file: the results, when and where they were measured, and how."""
    lines = [
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC, {machine()}; load average before {load:.1f}.",
        "",
        "| benchmark | ours | peer | unit | ratio | goal | met | note |",
        "|---|---:|---:|---|---:|---|---|---|",
    ]
    for row in rows:
        numbers = f"{number(row['ours'])} | {number(row['peer'])} | {row['unit']} | {row['ratio']:.3g}"
        goal = f"{row['goal']['op']} {row['goal']['value']:g} | {'yes' if row['met'] else '**no**'}"
        lines.append(f"| {row['name']} | {numbers} | {goal} | {row['note']} |")
    return "\n".join([*lines, "", ast.get_docstring(ast.parse(path.read_text())) or ""]).strip()


def number(value: float) -> str:
    """Format a number."""
    return f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"


def machine() -> str:
    """Describe the machine and the versions of the libraries."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    return (
        f"{cores} cores ({processor()}), {memory:.0f} GiB, {platform.system()} {platform.release()},"
        f" Python {platform.python_version()}, {versions}"
    )


def processor() -> str:
    """Return the name of the processor, or its architecture if the name is unknown."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
    ]
    return names[0] if names else platform.session.machine()


if __name__ == "__main__":
    sys.exit(main())
