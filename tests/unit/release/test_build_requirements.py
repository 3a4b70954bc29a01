"""What builds packages has one exact version everywhere, and hashes where something is released."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXPORTED = "operator/image/build-requirements.txt"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())


def project(folder: str = ".") -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def test_all_that_builds_packages_has_an_exact_version_and_hashes() -> None:
    group = project()["dependency-groups"]["build"]
    assert [each for each in group if "==" not in each] == []
    text = (ROOT / EXPORTED).read_text()
    exported = re.findall(r"^(\S+==\S+) \\\n    --hash=sha256:", text, re.MULTILINE)
    assert len(exported) == text.count("==")
    assert set(group) <= set(exported)
    constraints = project()["tool"]["uv"]["build-constraint-dependencies"]
    assert constraints == [each for each in exported if not each.startswith("uv==")]


@pytest.mark.parametrize("distribution", ["catalog", "operator"])
def test_a_wheel_is_built_with_that_version(distribution: str) -> None:
    (backend,) = project(distribution)["build-system"]["requires"]
    assert backend in project()["dependency-groups"]["build"]


@pytest.mark.parametrize("path", ["operator/Dockerfile", "Makefile"])
def test_what_is_installed_to_build_with_is_verified(path: str) -> None:
    text = (ROOT / path).read_text().replace("\\\n", " ")
    commands = re.findall(r"\bpip install .*", text)
    assert commands
    assert [each for each in commands if not re.search(r"--require-(build-)?hashes", each)] == []


def test_a_release_verifies_what_its_wheels_are_built_with() -> None:
    text = (ROOT / "checks" / "release.py").read_text()
    assert re.findall(r'\[UV, "build".*\]', text) == [
        '[UV, "build", "--quiet", *what, "--build-constraints", REQUIREMENTS, "--require-hashes"]'
    ]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_installs_nothing_by_itself(workflow: Path) -> None:
    assert re.findall(r"\b(?:pip|pipx|uv|npm|go|curl|wget) (?:install|tool|-)", workflow.read_text()) == []
