"""Writes the generated parts of the documentation's pages: `python docs/generate.py [--check]`.

A generated part is between `<!-- generated: name -->` and `<!-- end -->`. The rest of a page is written by
hand. The tables and diagrams of a move between stores come from `catalog/move/truth.py`. To find all
transitions, this program walks the steps from every state that a link or an interrupted move leaves. For each
page in `NOTEBOOKS`, it also writes a notebook next to the page. `terminals.py` draws pictures of terminals.
The numbers of benchmarks come from `bench/RESULTS.md`, and the tables of failures from `failures.toml`.

Invariants
- A part is a function of the code and of these two files only. `--check` changes nothing, and exits with 1 if
  a page is stale.
- A move may be interrupted after any step. The next move, in either direction, begins at step 1.
"""

import argparse
import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.catalog import config
from holdfast.catalog.move.link import ToLink, begins_on_persist, links_stash
from holdfast.catalog.move.truth import STATES, STEPS, Action, Backend, State, Strategy

PAGES = Path(__file__).resolve().parent
_PART = re.compile(r"^<!-- generated: ([a-z-]+) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Tombstones:
    """The tombstones of both stores; None for a store without one."""

    stash: bool | None = None
    persist: bool | None = None

    def after(self, store: Backend, value: bool) -> "Tombstones":
        """Return the tombstones after that of one store was set."""
        return Tombstones(value, self.persist) if store is Backend.STASH else Tombstones(self.stash, value)

    def state(self, strategy: Strategy) -> State:
        """Return their row of the state table."""
        (state,) = (state for state in STATES[strategy] if state.covers(self.stash, self.persist))
        return state


@dataclass(frozen=True)
class Transition:
    """The change of the tombstones by one step of a move to `target`."""

    before: Tombstones
    after: Tombstones
    target: Backend
    step: int


def _linked(strategy: Strategy, truth: Backend) -> Tombstones:
    link = ToLink(strategy, truth)
    written = (makes(link, 1)[config.TOMBSTONE] for makes in (links_stash, begins_on_persist))
    return Tombstones(*(None if value is None else bool(value) for value in written))


LINKED: Mapping[tuple[Strategy, Backend], Tombstones] = {
    (strategy, truth): _linked(strategy, truth) for strategy in Strategy for truth in Backend
}
"""The tombstones after the link of two stores, by strategy and by the store that had the catalog."""


def walk(strategy: Strategy, target: Backend, start: Tombstones) -> Iterator[tuple[int, Tombstones]]:
    """Yield the number of each step of a move, with the tombstones after it."""
    now = start
    for step in STEPS[strategy, target]:
        if step.tombstone is not None:
            now = now.after(step.store, step.tombstone)
        yield step.number, now
        if step.action is Action.CHECK and now.state(strategy).truth is target:
            return


def transitions(strategy: Strategy) -> list[Transition]:
    """Return all transitions: moves in both directions, interrupted after any step and started again."""
    found: list[Transition] = []
    waiting = [LINKED[strategy, truth] for truth in Backend]
    for start in waiting:
        for target in (Backend.PERSIST, Backend.STASH):
            before = start
            for step, after in walk(strategy, target, start):
                transition = Transition(before, after, target, step)
                if after != before and transition not in found:
                    found.append(transition)
                if after not in waiting:
                    waiting.append(after)
                before = after
    return found


def state_table(strategy: Strategy) -> str:
    """Return the state table of a strategy."""
    rows = [
        (_values(state.stash), _values(state.persist), f"**{state.truth.value}**", state.meaning)
        for state in STATES[strategy]
    ]
    return _table(("stash tombstone", "persist tombstone", "source of truth", "meaning"), rows)


def step_tables(strategy: Strategy) -> str:
    """Return the step tables of a strategy: to persist, and back."""
    start, tables = LINKED[strategy, Backend.STASH], []
    for target in (Backend.PERSIST, Backend.STASH):
        rows = []
        for number, now in walk(strategy, target, start):
            _, _, text = str(STEPS[strategy, target][number - 1]).partition(". ")
            rows.append((str(number), text, _tombstones(strategy, now), now.state(strategy).truth.value))
            start = now
        head = ("step", f"to {target.value.lower()}", _columns(strategy), "source of truth after it")
        tables.append(_table(head, rows))
    return "\n".join(tables)


def diagram(strategy: Strategy) -> str:
    """Return the reachable states and the steps between them, as a Mermaid diagram."""
    edges: dict[tuple[Tombstones, Tombstones], list[str]] = {}
    for each in transitions(strategy):
        to = each.target.value.lower()
        edges.setdefault((each.before, each.after), []).append(f"to {to}, step {each.step}")
    linked = {LINKED[strategy, truth]: truth for truth in Backend}
    states = list(dict.fromkeys([*linked, *(state for pair in edges for state in pair)]))
    lines = ["stateDiagram-v2"]
    for state in states:
        truth = state.state(strategy).truth.value
        lines.append(f'    state "{_tombstones(strategy, state)} ({truth})" as {_name(state)}')
    lines += [f"    [*] --> {_name(state)}: linked, in {truth.value}" for state, truth in linked.items()]
    for (before, after), steps in edges.items():
        lines.append(f"    {_name(before)} --> {_name(after)}: {' or '.join(steps)}")
    return "\n".join(["```mermaid", *lines, "```"]) + "\n"


def _values(values: Iterable[bool | None]) -> str:
    known = set(values)
    return "any" if known == {None, False, True} else " or ".join(_value(v) for v in sorted(known, key=str))


def _value(value: bool | None) -> str:
    return "none" if value is None else str(int(value))


def _tombstones(strategy: Strategy, tombstones: Tombstones) -> str:
    match strategy:
        case Strategy.ONE_TOMBSTONE:
            return _value(tombstones.stash)
        case Strategy.TWO_TOMBSTONES:
            return f"{_value(tombstones.stash)}, {_value(tombstones.persist)}"


def _columns(strategy: Strategy) -> str:
    match strategy:
        case Strategy.ONE_TOMBSTONE:
            return "stash tombstone"
        case Strategy.TWO_TOMBSTONES:
            return "tombstones of stash, persist"


def _name(tombstones: Tombstones) -> str:
    return f"stash_{_value(tombstones.stash)}_persist_{_value(tombstones.persist)}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


RESULTS = PAGES.parent / "bench" / "RESULTS.md"
_LIBRARIES: Mapping[str, str] = {"deltalake": "delta-rs", "pyiceberg": "PyIceberg", "lancedb": "LanceDB"}
_ALL: Mapping[str, str] = {"ours": "Holdfast", **_LIBRARIES, "DuckDB in place": "DuckDB, no history"}
_NUMBER = r"[\d,]*\d(?:\.\d+)?"
_OTHERS: Mapping[str, Iterable[str]] = {
    "append.py": ("append 10 rows / deltalake append", "append 10 rows / pyiceberg append"),
    "bulk.py": ("bulk append 4M rows of 58 B / sort + write_table",),
    "lookup.py": ("lookup of a key in 10M rows / pyarrow.dataset",),
    "sql.py": (
        "SQL, groups / DuckDB on Parquet",
        "SQL, all columns / DuckDB on Parquet",
        "SQL, a range of keys / DuckDB on Parquet",
    ),
}
"""Results that the comparison shows, by the file of the benchmark."""


@dataclass(frozen=True)
class Result:
    """A row of `bench/RESULTS.md`."""

    name: str
    ours: str
    peer: str
    unit: str
    note: str


def results(benchmark: str) -> list[Result]:
    """Return the rows of a benchmark. Raises `KeyError` if there are none."""
    _, found, text = RESULTS.read_text().partition(f"\n## {benchmark}\n")
    if not found:
        raise KeyError(f"{RESULTS} has no {benchmark}")
    lines = (
        line.strip("| ").split(" | ") for line in text.partition("\n## ")[0].splitlines() if " | " in line
    )
    rows = [[cell.strip() for cell in cells] for cells in lines]
    return [Result(*each[:4], each[-1]) for each in rows if re.fullmatch(_NUMBER, each[1])]


def table_benchmark() -> str:
    """Return the CPU time of each operation of `bench/tables.py`, with the least of each row in bold."""
    found: dict[str, dict[str, str]] = {}
    for each in results("tables.py"):
        operation, _, peer = each.name.partition(" / ")
        if peer == "goal":
            # It is the time of the clock, and no other library has done the same.
            continue
        values = found.setdefault(operation, {"ours": each.ours})
        values[peer] = each.peer
        values |= re.findall(rf"\b({'|'.join(_LIBRARIES)}) ({_NUMBER})", each.note)
    rows = []
    for operation, values in found.items():
        least = min(values.values(), key=_number)
        cells = (values.get(name, "none") for name in _ALL)
        rows.append((operation, *(f"**{cell}**" if cell == least else cell for cell in cells)))
    return _table(("CPU time in ms", *_ALL.values()), rows)


def other_benchmarks() -> str:
    """Return the results of `_OTHERS`."""
    rows = []
    for benchmark, names in _OTHERS.items():
        by_name = {each.name: each for each in results(benchmark)}
        for each in map(by_name.__getitem__, names):
            what, _, peer = each.name.partition(" / ")
            rows.append((what, each.ours, peer, each.peer, each.unit))
    return _table(("benchmark", "Holdfast", "compared with", "that one", "unit"), rows)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


FAILURES = PAGES / "failures.toml"
"""The rows of the page of failure modes, by area. Each row names its tests."""


def failures(area: str) -> str:
    """Return the table of the failures in an area."""
    rows = [(row["fails"], row["see"], row["does"], row["act"]) for row in failure_rows()[area]]
    return _table(("what fails", "what you see", "what the operator does", "what you do"), rows)


def failure_rows() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all areas."""
    return tomllib.loads(FAILURES.read_text())


PARTS: dict[str, Callable[[], str]] = {
    f"{name}-of-{strategy.name.lower().replace('_', '-')}": partial(make, strategy)
    for name, make in (("states", state_table), ("steps", step_tables), ("diagram", diagram))
    for strategy in Strategy
}
PARTS |= {f"failures-of-{area}": partial(failures, area) for area in failure_rows()}
PARTS |= {"table-benchmark": table_benchmark, "other-benchmarks": other_benchmarks}


_PICTURE = "images/terminal-"
NOTEBOOKS = ("tutorial/with-spark.md",)
"""Pages that are also Jupyter notebooks, with their Python blocks and the output of these."""
_BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def notebook(text: str) -> str:
    """Return the notebook of a page, in nbformat 4.4, with the outputs that the page shows."""
    cells: list[dict[str, object]] = []
    end = 0
    for number, block in enumerate(_BLOCK.finditer(text), 1):
        cells += _prose(text[end : block.start()])
        end = block.end()
        cells.append(
            {
                "cell_type": "code",
                "execution_count": number,
                "metadata": {},
                "outputs": [] if block[2] is None else [_output(block[2])],
                "source": _lines(block[1].rstrip("\n")),
            }
        )
    cells += _prose(text[end:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _prose(text: str) -> list[dict[str, object]]:
    if not text.strip():
        return []
    return [{"cell_type": "markdown", "metadata": {}, "source": _lines(text.strip())}]


def _output(text: str) -> dict[str, object]:
    return {"name": "stdout", "output_type": "stream", "text": _lines(text)}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def renewed(text: str) -> str:
    """Return a page with its parts generated again. Raises `KeyError` for an unknown part."""

    def part(found: re.Match[str]) -> str:
        return f"<!-- generated: {found[1]} -->\n{PARTS[found[1]]()}<!-- end -->"

    return _PART.sub(part, text)


def _pictures() -> Mapping[str, str]:
    """The pictures of terminals, by their paths: `terminals.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("docs_terminals", Path(__file__).with_name("terminals.py"))
    assert spec is not None
    assert spec.loader is not None
    terminals = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = terminals  # its dataclasses look for it there
    spec.loader.exec_module(terminals)
    found: Mapping[str, str] = terminals.pictures()
    return found


def main(argv: list[str] | None = None) -> int:
    """Write or check the pages; returns the exit code."""
    parser = argparse.ArgumentParser(prog="generate", description="Write the generated parts of the pages.")
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 if a page is stale")
    check = parser.parse_args(argv).check
    wanted = {page: renewed(page.read_text()) for page in sorted(PAGES.rglob("*.md"))}
    noted = [page for page in wanted if page.relative_to(PAGES).as_posix() in NOTEBOOKS]
    wanted |= {page.with_suffix(".ipynb"): notebook(wanted[page]) for page in noted}
    if any(_PICTURE in text for text in wanted.values()):
        wanted |= {PAGES / name: text for name, text in _pictures().items()}
    stale = {page for page, new in wanted.items() if not page.exists() or page.read_text() != new}
    for page in sorted(stale):
        if check:
            print(f"{page} differs from the code: run 'make docs'", file=sys.stderr)
        else:
            page.write_text(wanted[page])
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
