"""Both distributions declare what they import, as an environment with nothing else shows."""

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WITH = {"botocore": "boto3", "psycopg_pool": "psycopg", "py4j": "pyspark", "urllib3": "boto3"}
"""What comes with a package that is declared, and is part of what that shows to its users."""


def imports(folder: Path) -> Iterator[tuple[str, Path]]:
    """Top-level packages that are imported below a folder, and where."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((alias.name.split(".")[0], path) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                # All of Google's packages share one name.
                parts = 2 if node.module.startswith("google.") else 1
                yield ".".join(node.module.split(".")[:parts]), path


def requirements(project: str, extras: Collection[str] | None = None) -> list[str]:
    """What a distribution declares, with some of its extras or all."""
    about = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"]
    optional = about.get("optional-dependencies", {})
    chosen = optional if extras is None else extras
    return [*about["dependencies"], *(name for extra in chosen for name in optional[extra])]


def what_the_operator_gets() -> list[str]:
    """What it declares, and what the library declares with the extras that the operator asks for."""
    own = requirements("operator")
    (extras,) = (found[1] for each in own if (found := re.fullmatch(r"holdfast\[(.*)\]", each)))
    return [*own, *requirements("catalog", extras.split(","))]


@pytest.mark.parametrize(
    ("project", "package", "wanted"),
    [
        ("catalog", "holdfast", requirements("catalog")),
        ("operator", "holdfast_operator", what_the_operator_gets()),
    ],
    ids=["catalog", "operator"],
)
def test_what_is_imported_is_declared(project: str, package: str, wanted: list[str]) -> None:
    declared = {re.split(r"[^a-z0-9_-]", name.lower())[0].replace("_", "-") for name in wanted}
    providers = packages_distributions() | {"google.protobuf": ["protobuf"]}
    missing = {
        f"{name} in {path.relative_to(ROOT)}"
        for name, path in imports(ROOT / project / package)
        if name not in sys.stdlib_module_names and name not in {"holdfast", package}
        if WITH.get(name) not in declared
        if not {dist.lower().replace("_", "-") for dist in providers.get(name, ())} & declared
    }
    assert missing == set()
