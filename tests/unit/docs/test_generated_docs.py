"""The generated tables and diagrams of the documentation match the code, and their links work."""

import importlib.util
import json
import re
import sys
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.catalog.move.truth import STATES, STEPS, Backend, State, Strategy
from testbed.pages import RUN, blocks

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "explanation" / "moving-a-catalog.md"
VALUES = (None, False, True)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """`docs/generate.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_up_to_date(generate: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


def test_a_notebook_has_what_its_page_has(generate: ModuleType) -> None:
    for name in generate.NOTEBOOKS:
        page = ROOT / "docs" / name
        there = json.loads(page.with_suffix(".ipynb").read_text())
        cells = [("".join(each["source"]), each.get("outputs")) for each in there["cells"]]
        ran = [block for block in blocks(name, page.read_text()) if block.language in RUN]
        shown = [
            (
                []
                if block.shows is None
                else [{"name": "stdout", "output_type": "stream", "text": block.shows}]
            )
            for block in ran
        ]
        code = [
            (source, [{**each, "text": "".join(each["text"])} for each in outputs])
            for source, outputs in cells
            if outputs is not None
        ]
        assert code == [(block.text.rstrip("\n"), output) for block, output in zip(ran, shown, strict=True)]
        assert "".join(source for source, outputs in cells if outputs is None).startswith("# ")


def test_every_part_is_on_a_page(generate: ModuleType) -> None:
    found = [
        name
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for name in re.findall(r"<!-- generated: ([a-z-]+) -->", page.read_text())
    ]
    assert sorted(found) == sorted(generate.PARTS)


def test_a_page_that_differs_from_the_code_is_found(
    generate: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    monkeypatch.setattr(generate, "PAGES", tmp_path)
    assert generate.main(["--check"]) == 0
    page.write_text(PAGE.read_text().replace("moved back, or", "moved to the moon, or"))
    assert generate.main(["--check"]) == 1
    assert "make docs" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert page.read_text() == PAGE.read_text()


def test_another_table_makes_another_page(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    states = dict(STATES)
    first, *rest = states[Strategy.ONE_TOMBSTONE]
    states[Strategy.ONE_TOMBSTONE] = (State(first.stash, first.persist, first.truth, "planted"), *rest)
    monkeypatch.setattr(generate, "STATES", states)
    assert generate.renewed(PAGE.read_text()) != PAGE.read_text()
    monkeypatch.undo()
    target = (Strategy.TWO_TOMBSTONES, Backend.PERSIST)
    monkeypatch.setattr(generate, "STEPS", {**STEPS, target: STEPS[target][:-1]})
    assert generate.renewed(PAGE.read_text()) != PAGE.read_text()


@pytest.mark.parametrize("strategy", Strategy)
def test_the_diagram_has_every_transition_and_no_other(generate: ModuleType, strategy: Strategy) -> None:
    """Found in another way: by the setting steps alone, tried on every two tombstones."""
    reached = {generate.LINKED[strategy, truth] for truth in Backend}
    expected = set()
    for _ in range(9):  # as many rounds as there are states
        for stash, persist, target in product(VALUES, VALUES, Backend):
            state = generate.Tombstones(stash, persist)
            if state not in reached:
                continue
            for number, after in generate.walk(strategy, target, state):
                reached.add(after)
                step = STEPS[strategy, target][number - 1]
                before = {Backend.STASH: state.stash, Backend.PERSIST: state.persist}[step.store]
                if step.tombstone is not None and step.tombstone is not before:
                    expected.add((state, after, target, number))
                state = after
    found = {(t.before, t.after, t.target, t.step) for t in generate.transitions(strategy)}
    assert found == expected
    assert (None, False) not in {(state.stash, state.persist) for state in reached}
    assert len(reached) == {Strategy.ONE_TOMBSTONE: 3, Strategy.TWO_TOMBSTONES: 7}[strategy]
    lines = generate.diagram(strategy).splitlines()
    assert sum(" as " in line for line in lines) == len(reached)
    edges = {(before, after) for before, after, _, _ in expected}
    assert sum("-->" in line and "[*]" not in line for line in lines) == len(edges)


@pytest.mark.parametrize("strategy", Strategy)
def test_from_every_state_one_move_leads_to_its_target(generate: ModuleType, strategy: Strategy) -> None:
    for transition, target in product(generate.transitions(strategy), Backend):
        (*_, (_, end)) = generate.walk(strategy, target, transition.after)
        assert end.state(strategy).truth is target


WHY = ROOT / "docs" / "explanation" / "why-and-when.md"
GENERATED = re.compile(r"<!-- generated: ([a-z-]+) -->\n(.*?)<!-- end -->", re.DOTALL)


def test_the_numbers_of_the_comparison_are_those_of_the_results() -> None:
    text = WHY.read_text()
    parts = dict(GENERATED.findall(text))
    measured = (ROOT / "bench" / "RESULTS.md").read_text()
    for name, columns in (("table-benchmark", slice(1, None)), ("other-benchmarks", slice(1, 4, 2))):
        rows = [line.strip("| ").split(" | ") for line in parts[name].splitlines()[2:]]
        assert len(rows) >= 7
        for operation, *cells in rows:
            lines = [line for line in measured.splitlines() if line.startswith(f"| {operation} / ")]
            assert lines, operation
            for cell in [operation, *cells][columns]:
                number = cell.strip("*")
                assert number == "none" or any(re.search(rf"[| ]{number}[ ,|]", f"{line} ") for line in lines)
    # Prose has no measured numbers, which would go stale.
    assert not re.search(r"\d (?:ms|s|times|%|rows/s|MB)\b", GENERATED.sub("", text))
