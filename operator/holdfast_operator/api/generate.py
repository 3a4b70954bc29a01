"""Writes the CRDs from the models: `python -m holdfast_operator.api.generate crds [--check]`.

Invariants
- The files are a function of the models only; `--check` exits 1 where a file is not what it should be.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from holdfast_operator.api.base import Resource
from holdfast_operator.api.catalog import Catalog
from holdfast_operator.api.collection import StorageCollection
from holdfast_operator.api.migration import CatalogMigration
from holdfast_operator.api.names import CATEGORY, GROUP, LABEL_NAME, VERSION
from holdfast_operator.api.structural import openapi_schema

RESOURCES: Final[tuple[type[Resource], ...]] = (Catalog, CatalogMigration, StorageCollection)
_HEADER: Final = "# Generated from operator/holdfast_operator/api: change the models and run 'make crds'.\n"


def custom_resource_definition(model: type[Resource]) -> dict[str, Any]:
    """The CRD of one kind."""
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
                    "schema": {"openAPIV3Schema": openapi_schema(model)},
                }
            ],
        },
    }


def files() -> dict[str, str]:
    """All generated files: name -> text."""
    manifests = {
        f"{GROUP}_{model.definition.kind.plural}.yaml": _HEADER + _yaml(custom_resource_definition(model))
        for model in RESOURCES
    }
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [*manifests],
    }
    return {**manifests, "kustomization.yaml": _HEADER + _yaml(kustomization)}


def stale(folder: Path) -> list[str]:
    """Names of the files in `folder` that aren't what the models say."""
    return [
        name
        for name, text in files().items()
        if not (folder / name).is_file() or (folder / name).read_text() != text
    ]


def _yaml(document: dict[str, Any]) -> str:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class names it
            return True

    return yaml.dump(document, Dumper=Plain, sort_keys=False, width=110, allow_unicode=True)


def main(argv: list[str] | None = None) -> int:
    """Write or check the files; returns the exit code."""
    parser = argparse.ArgumentParser(prog="generate", description="Write the CRDs from the models.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 where a file is stale")
    args = parser.parse_args(argv)
    if args.check:
        outdated = stale(args.folder)
        for name in outdated:
            print(f"{args.folder / name} is not what the models say: run 'make crds'", file=sys.stderr)
        return 1 if outdated else 0
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (args.folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
