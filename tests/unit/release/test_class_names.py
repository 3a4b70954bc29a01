"""The check of class names finds a name with two meanings, and an exception that is no longer needed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """`checks/class_names.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("class_names", ROOT / "checks" / "class_names.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(tmp_path: Path) -> Path:
    source = tmp_path / "shop"
    (source / "_pb").mkdir(parents=True)
    (source / "a.py").write_text("class Step: ...\nclass _Own: ...\nclass Cart: ...\n")
    (source / "b.py").write_text("class Step: ...\nclass _Own: ...\n\ndef f():\n    class Cart: ...\n")
    (source / "_pb" / "c.py").write_text("class Cart: ...\n")
    return source


def test_a_name_with_two_meanings_is_found(check: ModuleType, package: Path) -> None:
    (line,) = check.problems({"shop": package}, [])
    assert "class Step is defined 2 times" in line
    assert "shop/a.py:1, shop/b.py:1" in line


def test_an_exception_that_is_not_needed_is_found(check: ModuleType, package: Path) -> None:
    assert check.problems({"shop": package}, ["shop Step # why"]) == []
    (line,) = check.problems({"shop": package}, ["shop Cart # why", "shop Step # why"])
    assert "delete the line 'shop Cart'" in line
    assert len(check.problems({"shop": package}, ["shop Step # why", "shop Step # why"])) == 1


def test_an_exception_without_a_reason_is_found(check: ModuleType, package: Path) -> None:
    for line in ("shop Step", "shop Step #"):
        (problem,) = check.problems({"shop": package}, [line])
        assert "write the reason behind the line 'shop Step'" in problem


def test_one_name_in_two_distributions_is_allowed(check: ModuleType, package: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.py").write_text("class Cart: ...\n")
    assert check.problems({"shop": package, "other": other}, ["shop Step # why"]) == []


def test_the_exceptions_are_those_that_are_needed(check: ModuleType) -> None:
    assert check.problems(check.DISTRIBUTIONS, check.EXCEPTIONS.read_text().splitlines()) == []
