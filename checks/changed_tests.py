"""Prints the unit tests of what changed: `python checks/changed_tests.py`, one path on each line.

The program compares the working tree with the commit where the branch left main. On main, it compares with
the commit that was pushed last. `make check` runs the tests that it prints. The rules for a changed file:

- A test under `tests/unit` is a test of itself. A helper or `conftest.py` there stands for its folder.
- A module stands for the unit tests that import it, and for those of its part that have its name in theirs.
  If there is none, the package around it stands for it, or the folder of unit tests that mirrors the package.
- The test bed, docs, and files that the project is built with have unit tests in folders of their own.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"catalog/holdfast": "", "operator/holdfast_operator": "operator", "tests/testbed": "testbed"}
"""Where modules are, and the folder of `tests/unit` that mirrors each place."""
OTHERS = {
    "docs": ("docs/test_format.py", "docs/test_links.py", "docs/test_named_commands.py"),
    "proto": ("catalog/test_proto_versions.py", "catalog/test_new_catalog_version.py"),
    "crds": ("operator/api",),
    "checks": ("release",),
    ".github": ("release",),
    ".ci": ("release",),
    "Makefile": ("release", "docs/test_named_commands.py"),
    ".pre-commit-config.yaml": ("release",),
    "pyproject.toml": ("release", "operator/test_declared_packages.py"),
}
"""Unit tests of what is no module, by the first part of its path."""


def unit_tests(changed: Iterable[str], root: Path = ROOT) -> list[Path]:
    """Return the unit tests of these paths, relative to `root`. No path is inside another one."""
    unit = root / "tests" / "unit"
    texts = {path: path.read_text() for path in sorted(unit.rglob("test_*.py"))}
    found: set[Path] = set()
    for name in changed:
        path = root / name
        if path.is_relative_to(unit):
            if path.name.startswith("test_"):
                found |= {path} & texts.keys()
            elif path.suffix == ".py":
                found.add(path.parent)
            continue
        for source, mirror in SOURCES.items():
            if path.is_relative_to(root / source) and path.suffix == ".py":
                found |= _of_module(path.relative_to(root / source), Path(source).name, unit / mirror, texts)
        found |= {unit / other for other in OTHERS.get(Path(name).parts[0], ())}
    present = {path for path in found if path.exists()}
    return sorted(path.relative_to(root) for path in present if not present.intersection(path.parents))


def _of_module(module: Path, package: str, mirror: Path, texts: dict[Path, str]) -> set[Path]:
    """Return the tests of a module, else those of the closest package around it that has some."""
    parts = module.with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    folder = _deepest(mirror, parts)
    while parts:
        dotted = re.escape(".".join([package, *parts]))
        around = re.escape(".".join([package, *parts[:-1]]))
        imports = re.compile(rf"\b{dotted}\b|\bfrom {around} import [^\n]*\b{parts[-1]}\b")
        found = {
            path
            for path, text in texts.items()
            if imports.search(text) or (path.is_relative_to(folder) and _has(path.stem, parts[-1]))
        }
        parts = parts[:-1]
        if found:
            return found
        if parts and folder == mirror.joinpath(*parts):
            return {folder}
    return set()


def _has(test: str, module: str) -> bool:
    """Whether the name of a test file has the whole words of the module's name."""
    return f"_{module}_" in f"_{test.removeprefix('test_')}_"


def _deepest(folder: Path, parts: tuple[str, ...]) -> Path:
    for part in parts:
        if not (folder / part).is_dir():
            break
        folder /= part
    return folder


def changed_files() -> list[str]:
    """Return the paths that differ from the commit where the branch left main, and new files."""
    head = _git("rev-parse", "HEAD").strip()
    left = [_git("merge-base", head, main, check=False).strip() for main in ("main", "origin/main")]
    base = next((commit for commit in left if commit not in ("", head)), head)
    differ = _git("diff", "--name-only", "--no-renames", base)
    new = _git("ls-files", "--others", "--exclude-standard")
    return [*differ.splitlines(), *new.splitlines()]


def _git(*arguments: str, check: bool = True) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=check).stdout


if __name__ == "__main__":
    sys.stdout.writelines(f"{path}\n" for path in unit_tests(changed_files()))
