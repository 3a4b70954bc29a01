"""Writes the tables of values in the charts' READMEs: `python charts/generate.py [--check]`.

A table stands between `<!-- generated: values <chart> -->` and `<!-- end -->`, and is made from the chart's
values.yaml: one row for each value, with its default and the comment before it.

Invariants
- A value without a comment is an error: nothing that users can set is left untold.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHARTS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Value:
    """One value of a chart: its path with dots, its default and its meaning."""

    path: str
    default: Any
    meaning: str


def values(text: str) -> list[Value]:
    """The values of a values.yaml, in its order. Raises `ValueError` naming one that has no comment."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return list(_values(root, "", text.splitlines())) if root is not None else []


def _values(node: yaml.Node, prefix: str, lines: Sequence[str]) -> Iterator[Value]:
    assert isinstance(node, yaml.MappingNode)
    for key, child in node.value:
        path = f"{prefix}{key.value}"
        meaning = _comment(lines, key.start_mark.line)
        if isinstance(child, yaml.MappingNode) and child.value and not meaning:
            yield from _values(child, f"{path}.", lines)
        elif not meaning:
            raise ValueError(f"{path} has no comment before it")
        else:
            yield Value(path, yaml.SafeLoader("").construct_document(child), meaning)


def _comment(lines: Sequence[str], line: int) -> str:
    found: list[str] = []
    while line > 0 and lines[line - 1].strip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].strip().removeprefix("#").strip())
    return " ".join(found)


def table(chart: str) -> str:
    """The table of a chart's values."""
    rows = [
        f"| `{each.path}` | `{json.dumps(each.default)}` | {each.meaning} |"
        for each in values((CHARTS / chart / "values.yaml").read_text())
    ]
    return "\n".join(["| value | default | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def page(chart: str) -> str:
    """The README of a chart as it should be."""
    text = (CHARTS / chart / "README.md").read_text()
    begin, end = f"<!-- generated: values {chart} -->\n", "<!-- end -->\n"
    before, found, after = text.partition(begin)
    _, closed, rest = after.partition(end)
    if not (found and closed):
        raise ValueError(f"{chart}/README.md has no place for the values: {begin.strip()} ... {end.strip()}")
    return f"{before}{begin}{table(chart)}{end}{rest}"


def main(argv: list[str] | None = None) -> int:
    """Write or check the tables; returns the exit code."""
    parser = argparse.ArgumentParser(prog="generate", description="Write the tables of values of the charts.")
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 where a table is stale")
    args = parser.parse_args(argv)
    code = 0
    for chart in sorted(path.parent.name for path in CHARTS.glob("*/Chart.yaml")):
        readme, wanted = CHARTS / chart / "README.md", page(chart)
        if args.check and readme.read_text() != wanted:
            print(f"{readme} is not what values.yaml says: run 'make crds'", file=sys.stderr)
            code = 1
        elif not args.check:
            readme.write_text(wanted)
    return code


if __name__ == "__main__":
    sys.exit(main())
