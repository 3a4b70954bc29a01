"""The forge and the commit hooks run the make targets that people run."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
HOOKS = {
    each["id"]: each
    for each in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
}


def test_the_workflow_runs_make_targets() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert {run.split()[0] for run in runs} == {"make"}
    called = {run.split()[1] for run in runs}
    assert {"lint", "test", "test-all", "docs", "release-check"} <= called <= TARGETS


def test_ci_runs_both_parts_of_the_tests_and_leaves_none_out() -> None:
    """So each test runs: `testbed.parts` puts it into exactly one part, and CI chooses no part."""
    recipes = dict(
        re.findall(r"^(test|test-all|ci): [^\n]*\n\t@(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    command = "$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 4 --provide"
    assert recipes == {"test": f"{command} --part short", "test-all": f"{command} --part long", "ci": command}
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    assert config["testpaths"] == ["tests"]
    assert config["addopts"] == ["--import-mode=importlib", "--strict-markers", "-ra"]
    ran = re.findall(r"^make (\S+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert ran == ["setup", "ci"]


def test_the_hooks_run_make_targets() -> None:
    called = {each["entry"] for each in HOOKS.values() if each["language"] == "system"}
    assert called == {"make format", "make lint"}
    assert {each.removeprefix("make ") for each in called} <= TARGETS


@pytest.mark.parametrize(
    ("message", "fits"),
    [
        ("persist: drop empty runs in compaction\n\nThey cost a read each.\n", True),
        (f"persist: {'x' * 63}\n", True),
        (f"persist: {'x' * 64}\n", False),
        ("drop empty runs in compaction\n\npersist: not the subject\n", False),
        ("Merge branch 'main'\n", True),
    ],
)
def test_the_hook_reads_the_subject_of_a_commit(message: str, *, fits: bool) -> None:
    hook = HOOKS["commit-subject"]
    assert hook["language"] == "pygrep"
    assert hook["args"] == ["--negate", "--multiline"]
    assert bool(re.search(hook["entry"], message, re.MULTILINE | re.DOTALL)) is fits


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_what_the_forge_reads_is_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)
