"""Which tests a run does: each is in one part, tiers are built or listed, and a budget ends a run."""

import subprocess
import sys
from pathlib import Path

import pytest

from testbed.refusals import not_run

TESTS = Path(__file__).resolve().parents[2]

MARKED = """
import pytest

@pytest.mark.long
def test_long(): pass

@pytest.mark.node
def test_node(): pass

@pytest.mark.node
@pytest.mark.long
def test_long_node(): pass

@pytest.mark.s3
def test_tier(): pass

@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_some(seed): pass

@pytest.mark.long
class TestAll:
    def test_one(self): pass
"""

TIERS = """
import pytest

@pytest.mark.s3
def test_s3(): pass

@pytest.mark.helm
@pytest.mark.parametrize("number", range(2))
def test_helm(number): pass

def test_plain(): pass
"""

REFUSING = """
import os
import testbed.pytest_plugin
from testbed.errors import Unavailable

def provide(tier):
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{tier}\\n")
    raise Unavailable(f"{tier} can't be\\nbuilt")

testbed.pytest_plugin.provide = provide
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "testbed.pytest_plugin", "--strict-markers"),
            *("-p", "no:cacheprovider", "--rootdir", folder, *arguments, folder),
        ],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHONPATH": str(TESTS),
            "HOLDFAST_CACHE": str(folder / "cache"),
            "LOG": str(folder / "log"),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def collected(folder: Path, *arguments: str) -> list[str]:
    done = run(folder, "--collect-only", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_each_test_is_in_one_part(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(MARKED)
    short, long, both = (collected(tmp_path, *part) for part in (["--part=short"], ["--part=long"], []))
    assert sorted(short) == ["test_some[1]", "test_tier"]
    assert sorted(short + long) == sorted(both)
    assert len(both) == 7


@pytest.mark.long
def test_a_tier_that_can_not_be_built_is_tried_once_and_listed(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(TIERS)
    (tmp_path / "conftest.py").write_text(REFUSING)
    done = run(tmp_path, "--provide", "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted((tmp_path / "log").read_text().split()) == ["helm", "s3"]
    lines = [line for line in done.stdout.splitlines() if line.startswith("not run")]
    assert lines == [
        "not run: tier helm, 4 tests: helm can't be built",
        "not run: tier s3, 2 tests: s3 can't be built",
    ]
    assert "2 passed, 6 skipped" in done.stdout


@pytest.mark.parametrize("provide", [(), ("--provide",)])
def test_a_required_tier_that_can_not_be_built_fails(tmp_path: Path, provide: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(TIERS)
    (tmp_path / "conftest.py").write_text(REFUSING)
    done = run(tmp_path, *provide, HOLDFAST_REQUIRE="helm")
    assert done.returncode == 1
    assert "1 passed, 1 skipped, 2 errors" in done.stdout
    assert "HOLDFAST_REQUIRE names helm, but helm can't be" in done.stdout


def test_nothing_is_built_unless_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TIERS)
    (tmp_path / "conftest.py").write_text(REFUSING)
    done = run(tmp_path)
    assert "1 passed, 3 skipped" in done.stdout
    assert "not run: tier helm, 2 tests: helm, crane not built yet" in done.stdout
    assert not (tmp_path / "log").exists()


@pytest.mark.long
def test_no_test_starts_after_the_budget(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    done = run(tmp_path, "--budget=0.000001")
    assert done.returncode == 0
    assert "not run: 2 tests: the time of --budget is over; run `make test`" in done.stdout
    assert "2 passed" in run(tmp_path, "--budget=60").stdout


def test_a_line_has_one_tier_and_one_reason() -> None:
    skipped = ["Skipped: s3: no Go", "Skipped: kube: no Go", "Skipped: s3: no Go", "Skipped: not on Linux"]
    assert list(not_run(skipped)) == [
        "not run: tier kube, 1 test: no Go",
        "not run: tier s3, 2 tests: no Go",
    ]
    (line,) = not_run([f"Skipped: node: {'why ' * 200}"])
    assert len(line) < 400
