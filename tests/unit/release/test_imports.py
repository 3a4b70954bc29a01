"""The check of imports finds a module, a name and a submodule that are not there, and nothing else."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def check() -> ModuleType:
    """`checks/imports.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("imports_check", ROOT / "checks" / "imports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_finds_what_is_missing(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "__init__.py").write_text("from os import path as there\nONE: int = 1\n")
    (tmp_path / "part" / "module.py").write_text("def f(): pass\nif True:\n    class C: pass\n")
    (tmp_path / "lazy.py").write_text("def __getattr__(name): ...\n")
    text = """
import other.gone
import ours.part.module
import ours.gone
from ours import part, lazy, gone
from ours.part import ONE, there, module, absent
from ours.part.module import C, f, g
from ours.lazy import anything
def inner():
    from ours.part.gone import x
"""
    found = list(check.missing(text, {"ours": tmp_path}))
    assert found == [
        (4, "ours.gone"),
        (5, "ours.gone"),
        (6, "ours.part.absent"),
        (7, "ours.part.module.g"),
        (10, "ours.part.gone.x"),
    ]


def test_the_tests_import_what_is_there(check: ModuleType) -> None:
    assert check.main() == 0
