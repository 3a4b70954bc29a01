"""The CRDs only grow: docs/reference/api-compatibility.md says what that means.

`frozen/` has the CRDs of the last release without their descriptions, and before the first release those that
were frozen for it. A release renews them: run this file as a program. It refuses what would break objects
that exist. `tests/apiserver/test_operator_crd_versions.py` creates objects under both.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from holdfast_operator.api import generate

Schema = Mapping[str, Any]

FROZEN: Final = Path(__file__).with_name("frozen")
SPEC_LEAVES = {"Catalog": 116, "CatalogMigration": 9, "StorageCollection": 231, "CollectionSnapshot": 19}
"""More leaves need a reason, because a user must find a field in the output of `kubectl explain`. A Catalog
and a StorageCollection have 42 of an affinity each, which users know from pods."""
LIMITS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    **dict.fromkeys(("minimum", "minLength", "minItems", "minProperties"), int.__gt__),
    **dict.fromkeys(("maximum", "maxLength", "maxItems", "maxProperties"), int.__lt__),
}
"""Each limit, and whether its first value allows less than the second."""
COMPARED: Final = frozenset(
    {"pattern", "format", "enum", "x-kubernetes-validations", "properties", "required"}
    | {"items", "additionalProperties", *LIMITS}
)
"""What may change in some ways, which `breaks` knows. Everything else stays."""
COLUMNS: Final = "additionalPrinterColumns"


def breaks(was: Schema, now: Schema, path: str) -> Iterator[str]:
    """What a schema says of objects that the earlier schema accepts, and that would be refused or changed."""
    for key in sorted((was.keys() | now.keys()) - COMPARED):
        if was.get(key) != now.get(key):
            yield f"{path}: {key} was {was.get(key)} and is {now.get(key)}"
    for key, allows_less in LIMITS.items():
        if key in now and (key not in was or allows_less(now[key], was[key])):
            yield f"{path}: {key} was {was.get(key)} and is {now[key]}"
    for key in ("pattern", "format"):
        if key in now and now[key] != was.get(key):
            yield f"{path}: {key} was {was.get(key)} and is {now[key]}"
    if "enum" in now and (lost := sorted(set(was.get("enum", ["any value"])) - set(now["enum"]))):
        yield f"{path}: {', '.join(lost)} is no longer allowed"
    rules = {each["rule"] for each in was.get("x-kubernetes-validations", ())}
    for each in now.get("x-kubernetes-validations", ()):
        if each["rule"] not in rules:
            yield f"{path}: the rule '{each['message']}' is new"
    yield from _broken_fields(was, now, path)
    for key, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if (key in was) != (key in now):
            yield f"{path}: {key} was {was.get(key)} and is {now.get(key)}"
        elif key in was:
            yield from breaks(was[key], now[key], f"{path}{suffix}")


def _broken_fields(was: Schema, now: Schema, path: str) -> Iterator[str]:
    before, after = was.get("properties", {}), now.get("properties", {})
    for name in sorted(set(now.get("required", ())) - set(was.get("required", ()))):
        yield f"{path}.{name}: {'has become' if name in before else 'is new and'} required"
    for name in sorted(before.keys() - after.keys()):
        yield f"{path}.{name}: is gone"
    for name in sorted(after.keys() - before.keys()):
        if "default" in after[name]:
            yield f"{path}.{name}: is new and has a default"
    for name in sorted(before.keys() & after.keys()):
        yield from breaks(before[name], after[name], f"{path}.{name}")


def outline(crd: Mapping[str, Any]) -> dict[str, Any]:
    """What a CRD says around its schema. Its columns may change."""
    (version,) = crd["spec"]["versions"]
    around = {key: each for key, each in crd["spec"].items() if key != "versions"}
    return {**around, "version": {key: version[key] for key in version.keys() - {"schema", COLUMNS}}}


def missing(was: Any, now: Any, path: str) -> Iterator[str]:
    """What an outline no longer has. It may have more."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was):
            yield from missing(was[key], now.get(key), f"{path}.{key}")
    elif isinstance(was, list) and isinstance(now, list):
        yield from (f"{path}: {each} is gone" for each in was if each not in now)
    elif was != now:
        yield f"{path}: was {was} and is {now}"


def undescribed(node: Any, *, named: bool = False) -> Any:
    """A part of a CRD without the descriptions of its fields. `named`: its keys are names of fields."""
    if isinstance(node, list):
        return [undescribed(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = node if named else {key: each for key, each in node.items() if key != "description"}
    return {key: undescribed(each, named=key == "properties" and not named) for key, each in kept.items()}


def crds() -> dict[str, dict[str, Any]]:
    """The CRDs of today, by the name of their file."""
    found = (undescribed(generate.custom_resource_definition(model)) for model in generate.RESOURCES)
    return {f"holdfast.dev_{each['spec']['names']['plural']}.yaml": each for each in found}


def schema(crd: Mapping[str, Any]) -> Schema:
    (version,) = crd["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]
    return found


def problems() -> list[str]:
    """What breaks objects that the frozen CRDs accept."""
    today = crds()
    found = []
    for path in sorted(FROZEN.glob("*.yaml")):
        was = yaml.safe_load(path.read_text())
        kind = was["spec"]["names"]["kind"]
        if path.name not in today:
            found.append(f"{kind}: is gone")
            continue
        found += missing(outline(was), outline(today[path.name]), kind)
        found += breaks(schema(was), schema(today[path.name]), kind)
    return found


def test_objects_of_the_last_release_stay_valid() -> None:
    assert problems() == []
    assert {path.name for path in FROZEN.iterdir()} <= crds().keys()


def test_the_frozen_crds_are_all_there() -> None:
    assert len(list(FROZEN.glob("*.yaml"))) >= 4


def leaves(node: Schema) -> int:
    """The number of fields that have no fields in them."""
    inner = [*node.get("properties", {}).values()]
    inner += [node[key] for key in ("items", "additionalProperties") if key in node]
    return sum(map(leaves, inner)) or 1


def test_a_spec_has_no_more_leaves_than_anybody_can_read() -> None:
    found = {
        crd["spec"]["names"]["kind"]: leaves(schema(crd)["properties"]["spec"]) for crd in crds().values()
    }
    assert found == SPEC_LEAVES


TEXT: Final = {"type": "string"}
SHORT: Final = {"type": "string", "maxLength": 9}


def node(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("was", "now", "broken"),
    [
        (node(b=TEXT), node(b=TEXT, c=TEXT), []),
        (node(b=TEXT | {"enum": ["x"]}), node(b=TEXT | {"enum": ["x", "y"]}), []),
        (node(b=TEXT) | {"required": ["b"]}, node(b=TEXT), []),
        (node(), node(b=node(c=TEXT) | {"required": ["c"]}), []),
        (node(b=SHORT), node(b=TEXT), []),
        (node(b=SHORT | {"pattern": "x"}), node(b=SHORT | {"maxLength": 10}), []),
        (node(b={"x-kubernetes-validations": [{"rule": "r", "message": "m"}]}), node(b={}), []),
        (node(b=TEXT), node(), ["A.b: is gone"]),
        (node(b=TEXT), node(b={"type": "integer"}), ["A.b: type was string and is integer"]),
        (node(b=TEXT), node(b=SHORT), ["A.b: maxLength was None and is 9"]),
        (node(b=SHORT), node(b=SHORT | {"maxLength": 8}), ["A.b: maxLength was 9 and is 8"]),
        (node(b={"minimum": 1}), node(b={"minimum": 2}), ["A.b: minimum was 1 and is 2"]),
        (node(b=TEXT), node(b=TEXT | {"pattern": "x"}), ["A.b: pattern was None and is x"]),
        (node(b=TEXT), node(b=TEXT | {"enum": ["x"]}), ["A.b: any value is no longer allowed"]),
        (node(b={"enum": ["x", "y"]}), node(b={"enum": ["y", "z"]}), ["A.b: x is no longer allowed"]),
        (node(b=TEXT | {"default": "x"}), node(b=TEXT), ["A.b: default was x and is None"]),
        (node(), node(b=TEXT | {"default": "x"}), ["A.b: is new and has a default"]),
        (node(b=TEXT | {"nullable": True}), node(b=TEXT), ["A.b: nullable was True and is None"]),
        (
            node(b={"minimum": 0}),
            node(b={"minimum": 0, "exclusiveMinimum": True}),
            ["A.b: exclusiveMinimum was None and is True"],
        ),
        (node(b={}), node(b={"multipleOf": 2}), ["A.b: multipleOf was None and is 2"]),
        (node(b={}), node(b={"oneOf": []}), ["A.b: oneOf was None and is []"]),
        (node(b={}), node(b={"uniqueItems": True}), ["A.b: uniqueItems was None and is True"]),
        (
            node(b={"x-kubernetes-map-type": "atomic"}),
            node(b={}),
            ["A.b: x-kubernetes-map-type was atomic and is None"],
        ),
        (node(b={}), node(b={"items": TEXT}), ["A.b: items was None and is {'type': 'string'}"]),
        (
            node(b={}),
            node(b={"x-kubernetes-validations": [{"rule": "r", "message": "m"}]}),
            ["A.b: the rule 'm' is new"],
        ),
        (node(b=TEXT), node(b=TEXT) | {"required": ["b"]}, ["A.b: has become required"]),
        (node(), node(b=TEXT) | {"required": ["b"]}, ["A.b: is new and required"]),
        ({"items": node(b=TEXT)}, {"items": node()}, ["A[].b: is gone"]),
    ],
)
def test_what_breaks_objects_that_exist_is_found(was: Schema, now: Schema, broken: list[str]) -> None:
    assert list(breaks(was, now, "A")) == broken


@pytest.mark.parametrize(
    ("path", "now"),
    [
        ("group", "x.dev"),
        ("scope", "Cluster"),
        ("names.plural", "cats"),
        ("names.shortNames", ["more"]),
        ("version.name", "v1beta1"),
        ("version.served", False),
        ("version.subresources", {}),
        ("version.selectableFields", None),
    ],
)
def test_what_breaks_clients_around_the_schema_is_found(path: str, now: Any) -> None:
    was = outline(yaml.safe_load((FROZEN / "holdfast.dev_collectionsnapshots.yaml").read_text()))
    assert not list(missing(was, was | {"conversion": {"strategy": "None"}}, "A"))
    changed = copy.deepcopy(was)
    *above, name = path.split(".")
    inner = changed[above[0]] if above else changed
    assert inner[name] != now
    inner[name] = now
    (found,) = missing(was, changed, "A")
    assert found.startswith(f"A.{path}")


if __name__ == "__main__":
    if found := problems():
        raise SystemExit("\n".join(found))
    FROZEN.mkdir(exist_ok=True)
    for name, crd in crds().items():
        (FROZEN / name).write_text(yaml.safe_dump(crd, sort_keys=False, width=120))
