"""Turns a pydantic model into the structural schema of a CRD.

Invariants
- The schema has no references, no `anyOf` with null, and no titles. Kubernetes refuses or ignores them.
- Properties are in the model's order, so that a diff of the generated file looks like a diff of the model.
- The description of a field takes precedence over the docstring of its type.
- A limit on the length of a map's keys is a CEL rule. Kubernetes takes no `propertyNames`.
"""

from typing import Any, Final

from holdfast_operator.api.base import Resource

JSON = Any

_DROPPED: Final = ("title", "$defs", "additionalProperties", "propertyNames")
_ANYTHING: Final = "x-kubernetes-preserve-unknown-fields"
_RULES: Final = "x-kubernetes-validations"
_ORDER: Final = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "default",
    "required",
    "properties",
    "items",
    "additionalProperties",
)


def openapi_schema(model: type[Resource]) -> dict[str, JSON]:
    """Returns the `openAPIV3Schema` of one kind."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    schema = _structural(raw, raw.get("$defs", {}))
    schema["description"] = model.definition.description
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **schema["properties"],
    }
    rules = [
        {"rule": rule, "message": message, "fieldPath": path}
        for rule, message, path in model.definition.rules
    ]
    return {**schema, **({_RULES: rules} if rules else {})}


def _structural(node: dict[str, JSON], definitions: dict[str, JSON]) -> dict[str, JSON]:
    node = _resolved(node, definitions)
    out = {key: value for key, value in node.items() if key not in _DROPPED}
    match node.get("type"):
        case "object" if "properties" in node:
            out["properties"] = {k: _structural(v, definitions) for k, v in node["properties"].items()}
        case "object" if node.get(_ANYTHING):
            pass
        case "object":
            out["additionalProperties"] = _structural(node["additionalProperties"], definitions)
            if rules := [*_key_rules(node.get("propertyNames", {})), *out.get(_RULES, ())]:
                out[_RULES] = rules
        case "array":
            out["items"] = _structural(node["items"], definitions)
        case "integer":
            out["format"] = "int64"
        case _:
            pass
    if "const" in out:
        out["enum"] = [out.pop("const")]
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    if out.get("default", 0) is None or out.get("default") == []:
        del out["default"]
    rank = {key: index for index, key in enumerate(_ORDER)}
    return dict(sorted(out.items(), key=lambda item: rank.get(item[0], len(rank))))


def _key_rules(names: dict[str, JSON]) -> list[dict[str, str]]:
    longest = names.get("maxLength")
    if longest is None:
        return []
    return [
        {
            "rule": f"self.all(k, size(k) <= {longest})",
            "message": f"must have keys of at most {longest} characters",
        }
    ]


def _resolved(node: dict[str, JSON], definitions: dict[str, JSON]) -> dict[str, JSON]:
    """Replaces a reference, or an `anyOf` with null, by its target. The node's own keys take precedence."""
    while True:
        if "$ref" in node:
            target = definitions[node["$ref"].removeprefix("#/$defs/")]
            rest = {k: v for k, v in node.items() if k != "$ref"}
        elif "anyOf" in node and _ANYTHING not in node:
            (target,) = (each for each in node["anyOf"] if each.get("type") != "null")
            rest = {k: v for k, v in node.items() if k != "anyOf"}
        else:
            return node
        node = {**target, **rest}
