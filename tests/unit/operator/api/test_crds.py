"""The CRDs in crds/ match the models, and have the shape that users rely on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from holdfast_operator.api import generate
from holdfast_operator.api.catalog import Catalog, CatalogSpec
from holdfast_operator.api.collection import CollectionRetention, StorageCollection, StorageCollectionSpec
from holdfast_operator.api.migration import CatalogMigration, CatalogMigrationSpec
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.api.snapshot import CollectionSnapshot, CollectionSnapshotSpec

CRDS = Path(__file__).parents[4] / "crds"
CHART = Path(__file__).parents[4] / "charts" / "holdfast-crds" / "templates"


def schema(model: Any) -> dict[str, Any]:
    definition = generate.custom_resource_definition(model)
    return dict(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def test_the_files_are_what_the_models_say() -> None:
    assert generate.stale(CRDS) == []
    assert generate.stale(CHART, generate.chart_files()) == []


def test_a_template_is_the_crd_but_for_labels_and_annotations() -> None:
    templates = generate.chart_files()
    assert [*templates] == [name for name in generate.files() if name != "kustomization.yaml"]
    roles = [name for name in templates if not name.startswith("holdfast.dev_")]
    assert roles == ["clusterroles.yaml"]
    for name, text in templates.items():
        plain = [line for line in text.splitlines() if "{{" not in line and line != "  annotations:"]
        assert plain == [
            line
            for line in generate.files()[name].splitlines()
            if line != "    app.kubernetes.io/name: holdfast"
        ]


def test_users_get_rights_on_all_kinds_and_never_on_a_status() -> None:
    kinds = {model.definition.kind.plural for model in generate.RESOURCES}
    *steps, reader = generate.ROLES
    for name in steps:
        (rule,) = generate.cluster_role(name)["rules"]
        assert rule["apiGroups"] == ["holdfast.dev"]
        assert set(rule["resources"]) == kinds
        assert "*" not in rule["verbs"]
    verbs = [set(generate.cluster_role(name)["rules"][0]["verbs"]) for name in steps]
    assert verbs[0] < verbs[1] < verbs[2]
    rows = generate.cluster_role(reader)
    assert rows["rules"] == [
        {"apiGroups": ["holdfast.dev"], "resources": ["storagecollections/data"], "verbs": ["get"]}
    ]
    # It is part of no role of Kubernetes: those who see the status need not see the rows.
    assert list(rows["metadata"]["labels"]) == ["app.kubernetes.io/name"]


@pytest.mark.parametrize("model", generate.RESOURCES, ids=lambda model: model.definition.kind.value)
def test_a_message_names_only_a_field_that_the_kind_has(model: Any) -> None:
    fields, named = set[str](), set[str]()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            fields.update(node.get("properties", {}))
            rules = node.get("x-kubernetes-validations", [])
            named.update(*(re.findall(r"\w+SecretRef", each["message"]) for each in rules))
            node = list(node.values())
        for each in node if isinstance(node, list) else ():
            walk(each)

    walk(schema(model))
    assert named <= fields


def test_braces_in_a_description_are_no_action_of_helm() -> None:
    head = "metadata:\n  name: x\n  labels:\n    app.kubernetes.io/name: holdfast\n"
    assert generate._template(head + "d: a {{ b }}\n").endswith('d: a {{ "{{" }} b }}\n')


def test_check_tells_a_stale_file_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main([str(tmp_path)]) == 0
    assert generate.main([str(tmp_path), "--check"]) == 0
    stale = tmp_path / "holdfast.dev_catalogs.yaml"
    stale.write_text("other")
    assert generate.main([str(tmp_path), "--check"]) == 1
    assert "holdfast.dev_catalogs.yaml" in capsys.readouterr().err
    assert stale.read_text() == "other"
    chart = tmp_path / "chart"
    assert generate.main([str(tmp_path), "--chart", str(chart)]) == 0
    (chart / "holdfast.dev_catalogs.yaml").write_text("other")
    assert generate.main([str(tmp_path), "--check"]) == 0
    assert generate.main([str(tmp_path), "--chart", str(chart), "--check"]) == 1


@pytest.mark.parametrize(
    ("model", "short", "columns"),
    [
        (Catalog, ["cat"], ["Ready", "Epoch", "Truth", "Version", "Upper", "Age", "Reason"]),
        (
            CatalogMigration,
            ["catmig"],
            ["Ready", "Catalog", "Target", "Phase", "Step", "Truth", "Rows", "Age", "Reason"],
        ),
        (
            StorageCollection,
            ["coll"],
            ["Ready", "Catalog", "Since", "Upper", "Rendition", "Shards", "Next", "Age", "Reason"],
        ),
        (
            CollectionSnapshot,
            ["collsnap"],
            ["Ready", "Collection", "As-Of", "Rows", "Bytes", "Age", "Reason"],
        ),
    ],
)
def test_kubectl_get_tells_the_story(model: Any, short: list[str], columns: list[str]) -> None:
    spec = generate.custom_resource_definition(model)["spec"]
    shown = [each["name"] for each in spec["versions"][0]["additionalPrinterColumns"] if not each["priority"]]
    assert (spec["names"]["shortNames"], spec["names"]["categories"], shown) == (short, ["holdfast"], columns)


@pytest.mark.parametrize("model", generate.RESOURCES)
def test_every_field_is_described_and_structural(model: Any) -> None:
    def walk(node: dict[str, Any], path: str) -> list[str]:
        untyped = "x-kubernetes-preserve-unknown-fields" in node
        wrong = [path] if {"$ref", "allOf", "title", *(() if untyped else ("anyOf",))} & set(node) else []
        if not {"type", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"} & set(node):
            wrong.append(f"{path}: no type")
        for name, child in node.get("properties", {}).items():
            if "description" not in child:
                wrong.append(f"{path}.{name}: no description")
            wrong += walk(child, f"{path}.{name}")
        for key in ("items", "additionalProperties"):
            if isinstance(node.get(key), dict):
                wrong += walk(node[key], f"{path}[]")
        return wrong

    for part in ("spec", "status"):
        assert walk(schema(model)["properties"][part], part) == []


UNTYPED = ("maxLength", "maxItems", "maxProperties", "anyOf")
"""What bounds a field that may be a text or an object. `anyOf` says which texts and which fields."""


def unbounded(node: dict[str, Any], path: str, *, may_have_rules: bool = True) -> list[str]:
    """The parts of a schema that can have any size. An object without fields gets none from the API server.

    Within a field without a type there can be no rules, so the keys of a map there have no limit.
    """
    rules = " ".join(each["rule"] for each in node.get("x-kubernetes-validations", ()))
    match node:
        case {"x-kubernetes-preserve-unknown-fields": True}:
            wrong = [path] if not set(UNTYPED) <= set(node) else []
            may_have_rules = False
        case {"x-kubernetes-int-or-string": True} | {"type": "string"}:
            wrong = [path] if not {"maxLength", "enum"} & set(node) else []
        case {"type": "array"}:
            wrong = [path] if "maxItems" not in node else []
        case {"type": "object", "additionalProperties": _}:
            wrong = [path] if "maxProperties" not in node else []
            if may_have_rules and not re.search(r"size\(k\) <= \d|k in \[", rules):
                wrong.append(f"{path}: its keys")
        case _:
            wrong = []
    for name, child in node.get("properties", {}).items():
        wrong += unbounded(child, f"{path}.{name}", may_have_rules=may_have_rules)
    for key in ("items", "additionalProperties"):
        wrong += unbounded(node[key], f"{path}[]") if key in node else []
    return wrong


@pytest.mark.parametrize("model", generate.RESOURCES)
def test_every_field_that_users_write_has_a_limit(model: Any) -> None:
    assert unbounded(schema(model)["properties"]["spec"], "spec") == []


MAP = {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ({"type": "string"}, [".a"]),
        ({"type": "string", "pattern": "^a*$"}, [".a"]),
        ({"type": "string", "maxLength": 1}, []),
        ({"x-kubernetes-int-or-string": True}, [".a"]),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 1}, [".a[]"]),
        ({"type": "array", "items": {"type": "integer"}}, [".a"]),
        (MAP, [".a: its keys"]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, [".a", ".a: its keys"]),
        (MAP | {"x-kubernetes-validations": [{"rule": "self.all(k, size(k) <= 9)"}]}, []),
        ({"x-kubernetes-preserve-unknown-fields": True}, [".a"]),
        ({"type": "object", "x-kubernetes-preserve-unknown-fields": True, "maxProperties": 1}, [".a"]),
    ],
)
def test_a_field_without_a_limit_is_found(node: dict[str, Any], found: list[str]) -> None:
    assert unbounded({"type": "object", "properties": {"a": node}}, "") == found


MOST_APPLIED = 262_144
"""The most bytes of the annotation in which `kubectl apply` keeps what it applied."""


@pytest.mark.parametrize("model", generate.RESOURCES)
def test_kubectl_can_apply_a_crd(model: Any) -> None:
    assert len(json.dumps(generate.custom_resource_definition(model))) < MOST_APPLIED


@pytest.mark.parametrize("model", generate.RESOURCES)
def test_an_object_that_nobody_looked_at_says_so(model: Any) -> None:
    assert schema(model)["properties"]["status"]["default"] == {"observedGeneration": -1}


def test_the_samples_fit_the_models() -> None:
    documents = {
        document["kind"]: document
        for path in sorted((CRDS / "samples").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    }
    CatalogSpec.model_validate(documents["Catalog"]["spec"])
    flights = StorageCollectionSpec.model_validate(documents["StorageCollection"]["spec"])
    assert flights.catalog_ref.name == documents["Catalog"]["metadata"]["name"]
    assert flights.rendition.shards == 2
    assert set(flights.key) <= {column.name for column in flights.columns}


def test_all_samples_can_be_applied_together() -> None:
    documents = [
        document
        for path in sorted((CRDS / "samples").rglob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]
    names = [(each["kind"], each["metadata"]["name"]) for each in documents]
    assert len(names) > 8
    assert len(names) == len(set(names))
    places = [each["spec"]["organizationId"] for each in documents if each["kind"] == "Catalog"]
    assert len(places) == len(set(places))


@pytest.mark.parametrize(
    "path", sorted((CRDS / "samples" / "more").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_other_samples_fit_the_models(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        models = {
            "Catalog": CatalogSpec,
            "CatalogMigration": CatalogMigrationSpec,
            "CollectionSnapshot": CollectionSnapshotSpec,
        }
        model = models[document["kind"]]
        fields = model.model_validate(document["spec"]).model_dump(by_alias=True)
        assert document["spec"].keys() <= fields.keys()


def test_reasons_are_camel_case_and_documented() -> None:
    source = (Path(generate.__file__).parent / "names.py").read_text()
    for name in (*Reason, *ConditionType):
        assert name.isalpha()
        assert name[0].isupper()
        after = source.split(f'"{name.value}"', 1)[1]
        assert after.split("\n", 1)[1].lstrip().startswith('"""'), name


@pytest.mark.parametrize(
    ("period", "milliseconds"),
    [("250ms", 250), ("90s", 90_000), ("3m", 180_000), ("12h", 43_200_000), ("7d", 604_800_000)],
)
def test_retention_periods(period: str, milliseconds: int) -> None:
    assert CollectionRetention(period=period).milliseconds == milliseconds


@pytest.mark.parametrize("period", ["", "3 weeks", "0d", "7", "1234567890s", "7d\n"])
def test_a_bad_period_is_explained(period: str) -> None:
    with pytest.raises(ValidationError, match="must be a number with ms, s, m, h or d, such as 90s"):
        CollectionRetention(period=period)
