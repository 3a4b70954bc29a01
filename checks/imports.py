"""Checks that imports of our packages find something: `python checks/imports.py`.

The type checker does not read the tests, so a module that moved would break them only when they run. Nothing
is imported for this check: a name is there if its module defines or imports it, or if it is a module. Modules
with `__getattr__` may have every name. Scripts for earlier builds import what those had, and are not checked.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "holdfast": ROOT / "catalog" / "holdfast",
    "holdfast_operator": ROOT / "operator" / "holdfast_operator",
}
CHECKED = ("tests", "bench", "docs", "charts", "proto")
EARLIER = {"tests/conformance/earlier_writer.py", "tests/conformance/linked_commands.py"}


def missing(text: str, packages: Mapping[str, Path]) -> Iterator[tuple[int, str]]:
    """Return the line and the dotted name of each import in a module that finds nothing."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                wanted = [(each.name, "") for each in names]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                wanted = [(module, each.name) for each in names]
            case _:
                continue
        for module, name in wanted:
            top, *parts = module.split(".")
            if top in packages and not _is_there(packages[top].joinpath(*parts), name):
                yield node.lineno, f"{module}.{name}".rstrip(".")


def _is_there(module: Path, name: str) -> bool:
    if not module.is_dir() and not module.with_suffix(".py").is_file():
        return False
    if not name or (module / name).is_dir() or (module / f"{name}.py").is_file():
        return True
    names = _names(module / "__init__.py" if module.is_dir() else module.with_suffix(".py"))
    return name in names or "__getattr__" in names


@cache
def _names(file: Path) -> frozenset[str]:
    """The names that a module binds anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())) if file.is_file() else ():
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {each.asname or each.name for each in names}
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case _:
                pass
    return frozenset(found)


def main() -> int:
    """Print the imports that find nothing. The exit code is 1 if there are some."""
    code = 0
    for folder in CHECKED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name in EARLIER:
                continue
            for line, wanted in missing(path.read_text(), PACKAGES):
                print(f"lint: {name}:{line} imports {wanted}, which does not exist", file=sys.stderr)
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
