"""Writes the CRDs and the ClusterRoles for users from the models.

`python -m holdfast_operator.api.generate crds [--chart DIR] [--check]`

Invariants
- The files depend only on the models. `--check` exits with 1 if a file is out of date.
- A CRD's template in the chart differs from the CRD only in annotations and labels from the chart's values.
- The ClusterRoles have the rights on all kinds, or on the rows of collections, and on nothing else. No user
  may write a status. The API server serves no `storagecollections/data`: the console asks who has the right
  to it.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from holdfast_operator.api.base import Resource
from holdfast_operator.api.catalog import Catalog
from holdfast_operator.api.collection import StorageCollection
from holdfast_operator.api.migration import CatalogMigration
from holdfast_operator.api.names import CATEGORY, GROUP, LABEL_NAME, VERSION, Kind
from holdfast_operator.api.snapshot import CollectionSnapshot
from holdfast_operator.api.structural import openapi_schema

RESOURCES: Final[tuple[type[Resource], ...]] = (
    Catalog,
    CatalogMigration,
    StorageCollection,
    CollectionSnapshot,
)
_KUSTOMIZATION: Final = "kustomization.yaml"
_CLUSTER_ROLES: Final = "clusterroles.yaml"
_READ: Final = ("get", "list", "watch")
_EDIT: Final = (*_READ, "create", "patch", "update", "delete")


@dataclass(frozen=True)
class Role:
    """A ClusterRole for users. `part_of` is the role of Kubernetes that contains it, or empty."""

    part_of: str
    verbs: tuple[str, ...]
    resources: tuple[str, ...] = tuple(model.definition.kind.plural for model in RESOURCES)


ROLES: Final[Mapping[str, Role]] = {
    "holdfast-viewer": Role("view", _READ),
    "holdfast-editor": Role("edit", _EDIT),
    "holdfast-admin": Role("admin", (*_EDIT, "deletecollection")),
    # Nobody has it by another role: those who see the status of a collection need not see its rows.
    "holdfast-data-reader": Role("", ("get",), (f"{Kind.STORAGE_COLLECTION.plural}/data",)),
}
"""The ClusterRoles for users."""
_HEADER: Final = "# Generated from operator/holdfast_operator/api: change the models and run 'make crds'.\n"


def custom_resource_definition(model: type[Resource]) -> dict[str, Any]:
    """Returns the CRD of one kind."""
    about = model.definition
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{about.kind.plural}.{GROUP}", "labels": {LABEL_NAME: "holdfast"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": about.kind.value,
                "listKind": f"{about.kind.value}List",
                "plural": about.kind.plural,
                "singular": about.kind.value.lower(),
                "shortNames": list(about.short_names),
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {
                            "name": column.name,
                            "type": column.type,
                            "description": column.description,
                            "jsonPath": column.path,
                            "priority": int(column.wide),
                        }
                        for column in about.columns
                    ],
                    "selectableFields": [{"jsonPath": path} for path in about.selectable],
                    "schema": {"openAPIV3Schema": openapi_schema(model)},
                }
            ],
        },
    }


def cluster_role(name: str) -> dict[str, Any]:
    """Returns one of `ROLES`."""
    role = ROLES[name]
    aggregated = {f"rbac.authorization.k8s.io/aggregate-to-{role.part_of}": "true"} if role.part_of else {}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": name,
            "labels": {LABEL_NAME: "holdfast", **aggregated},
        },
        "rules": [
            {
                "apiGroups": [GROUP],
                "resources": list(role.resources),
                "verbs": list(role.verbs),
            }
        ],
    }


def files() -> dict[str, str]:
    """Returns the text of all generated files, by name."""
    manifests = {
        f"{GROUP}_{model.definition.kind.plural}.yaml": _HEADER + _yaml(custom_resource_definition(model))
        for model in RESOURCES
    }
    manifests[_CLUSTER_ROLES] = _HEADER + "---\n".join(_yaml(cluster_role(name)) for name in ROLES)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [*manifests],
    }
    return {**manifests, _KUSTOMIZATION: _HEADER + _yaml(kustomization)}


_NAMED: Final = "metadata:\n  name: "
_LABELLED: Final = f"  labels:\n    {LABEL_NAME}: holdfast\n"
_LABELS: Final = '  labels:\n    {{- include "holdfast-crds.labels" . | nindent 4 }}\n'


def chart_files() -> dict[str, str]:
    """Returns the text of the CRDs and ClusterRoles as templates of the chart `holdfast-crds`, by name."""
    texts = files()
    crds = {name: _template(text) for name, text in texts.items() if name.startswith(GROUP)}
    documents = {name: _yaml(cluster_role(name)).replace(_LABELLED, _LABELS) for name in ROLES}
    aggregated = "".join(f"{text}---\n" for name, text in documents.items() if ROLES[name].part_of)
    others = "---\n".join(text for name, text in documents.items() if not ROLES[name].part_of)
    roles = f"{_HEADER}{{{{- if .Values.aggregatedRoles }}}}\n{aggregated}{{{{- end }}}}\n{others}"
    return {**crds, _CLUSTER_ROLES: roles}


def _template(text: str) -> str:
    """Returns one CRD as a template. It escapes braces in descriptions, which Helm would take for actions."""
    escaped = text.replace("{{", '{{ "{{" }}')
    before, named, after = escaped.partition(_NAMED)
    name, labelled, spec = after.partition(_LABELLED)
    assert named, "a CRD begins with its name"
    assert labelled, "a CRD has the label by which `kubectl wait` finds it"
    return (
        f"{before}{named}{name}{_LABELS}"
        '  {{- with include "holdfast-crds.annotations" . }}\n'
        "  annotations:\n    {{- . | nindent 4 }}\n  {{- end }}\n"
        f"{spec}"
    )


def stale(folder: Path, wanted: Mapping[str, str] | None = None) -> list[str]:
    """Returns the names of the files in `folder` that are out of date. `wanted` defaults to `files()`."""
    return [
        name
        for name, text in (files() if wanted is None else wanted).items()
        if not (folder / name).is_file() or (folder / name).read_text() != text
    ]


def _yaml(document: dict[str, Any]) -> str:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class names it
            return True

    return yaml.dump(document, Dumper=Plain, sort_keys=False, width=110, allow_unicode=True)


def main(argv: list[str] | None = None) -> int:
    """Writes or checks the files. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="generate", description="Write the CRDs from the models.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chart", type=Path, metavar="DIR", help="also write the chart's templates to DIR")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    args = parser.parse_args(argv)
    places = [(args.folder, files()), *([(args.chart, chart_files())] if args.chart else [])]
    if args.check:
        outdated = [folder / name for folder, wanted in places for name in stale(folder, wanted)]
        for path in outdated:
            print(f"{path} is out of date: run 'make crds'", file=sys.stderr)
        return 1 if outdated else 0
    for folder, wanted in places:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in wanted.items():
            (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
