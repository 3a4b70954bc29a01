"""The shape of the CRDs only grows: docs/reference/api-compatibility.md says what that means.

`shape.txt` has one line for each field: its path, its type, and `required` if objects must have it. To add
fields on purpose, run this file as a program. It refuses what would break objects that exist.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_operator.api import generate

STORED = Path(__file__).with_name("shape.txt")
SPEC_LEAVES = {"Catalog": 74, "CatalogMigration": 9, "StorageCollection": 188, "CollectionSnapshot": 19}
"""More leaves need a reason, because a user must find a field in the output of `kubectl explain`."""


def fields(path: str, node: dict[str, Any], *, required: bool) -> Iterator[str]:
    """The fields of a schema: first its own line, then those of what is in it."""
    kind = node.get("type", "any")
    kind = "int-or-string" if node.get("x-kubernetes-int-or-string") else kind
    kind = "|".join(node["enum"]) if "enum" in node else kind
    yield f"{path}: {kind}{' required' if required else ''}"
    for name, child in node.get("properties", {}).items():
        yield from fields(f"{path}.{name}", child, required=name in node.get("required", ()))
    for key, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if key in node:
            yield from fields(f"{path}{suffix}", node[key], required=False)


def shape() -> list[str]:
    """The lines of all CRDs."""
    found = []
    for model in generate.RESOURCES:
        (version,) = generate.custom_resource_definition(model)["spec"]["versions"]
        for part in ("spec", "status"):
            schema = version["schema"]["openAPIV3Schema"]["properties"][part]
            found += fields(f"{model.definition.kind.value}.{part}", schema, required=False)
    return found


def leaves(lines: list[str], prefix: str) -> int:
    """The number of fields that have no fields in them."""
    paths = [line.split(":")[0] for line in lines]
    inner = {path[: path.rindex(mark)] for path in paths for mark in (".", "[]", "{}") if mark in path}
    return sum(1 for path in paths if path.startswith(prefix) and path not in inner)


def breaks(stored: list[str], found: list[str]) -> list[str]:
    """What objects that exist would trip over."""
    now = dict(line.split(": ") for line in found)
    before = dict(line.split(": ") for line in stored)
    broken = []
    for path, was in before.items():
        then, _, had = was.partition(" ")
        kind, _, has = now.get(path, "missing").partition(" ")
        if kind != then and not ("|" in kind and set(then.split("|")) <= set(kind.split("|"))):
            broken.append(f"{path}: {then} has become {kind}")
        if has and not had:
            broken.append(f"{path}: has become required")
    for path in now.keys() - before.keys():
        parent = path.rpartition(".")[0]
        if now[path].endswith(" required") and parent in before:
            broken.append(f"{path}: is new and required")
    return broken


def test_fields_are_only_added() -> None:
    stored, found = STORED.read_text().splitlines(), shape()
    assert breaks(stored, found) == []
    assert stored == found, f"new fields: run this file as a program\n{set(found) - set(stored)}"


def test_a_spec_has_no_more_leaves_than_anybody_can_read() -> None:
    found = shape()
    assert {kind: leaves(found, f"{kind}.spec.") for kind in SPEC_LEAVES} == SPEC_LEAVES


@pytest.mark.parametrize(
    ("stored", "found", "broken"),
    [
        (["A.b: string"], ["A.b: string", "A.c: string"], []),
        (["A.b: x|y"], ["A.b: x|y|z"], []),
        (["A.b: string required"], ["A.b: string"], []),
        (["A: object"], ["A: object", "A.b: object", "A.b.c: string required"], []),
        (["A.b: string"], [], ["A.b: string has become missing"]),
        (["A.b: string"], ["A.b: integer"], ["A.b: string has become integer"]),
        (["A.b: x|y"], ["A.b: x|z"], ["A.b: x|y has become x|z"]),
        (["A.b: string"], ["A.b: string required"], ["A.b: has become required"]),
        (["A: object"], ["A: object", "A.b: string required"], ["A.b: is new and required"]),
    ],
)
def test_what_breaks_objects_that_exist_is_found(
    stored: list[str], found: list[str], broken: list[str]
) -> None:
    assert breaks(stored, found) == broken


if __name__ == "__main__":
    before = STORED.read_text().splitlines() if STORED.exists() else []
    if problems := breaks(before, shape()):
        raise SystemExit("\n".join(problems))
    STORED.write_text("".join(f"{line}\n" for line in shape()))
