"""Generates reference pages when the site is built: resources, commands, operator, chart values.

The pages come from the code: the models of the resources, the command trees, the metrics of the operator, and
the names that it uses in a cluster. So nobody has to keep them up to date.

Invariants
- A page is a function of the code only.
- Every field, option, metric, condition, reason and value is on its page, with its description from the code.
"""

import argparse
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from holdfast.cli import GROUPS, VERBS, main
from holdfast_operator import __main__ as operator
from holdfast_operator.api.generate import RESOURCES, custom_resource_definition
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.engine.metrics import Metrics

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
    "pattern": "matches `{}`",
    "format": "format {}",
}


_AS_IT_IS = "\b\n"
"""What marks a paragraph that click doesn't wrap."""

RESOURCES_ARE = """# Resources

This page describes the custom resources of the operator, field by field. You may leave out a field unless it
is *required*. The API server checks the rules before it stores a resource.
"""
COMMANDS_ARE = """# Commands

This page describes the command `holdfast`, as `--help` does. `holdfast --debug` shows the traceback of an
error. Exit codes: 0 ok, 1 a negative result or a catalog that isn't initialized, 2 bad input, 3 a store
can't be reached, 4 fenced, 130 interrupted by Ctrl-C, 141 nobody reads the output any more.
"""
REASONS_ARE = """## Reasons and Events

These are the reasons of conditions. An Event has the reason of the transition that it reports. A reason that
only Events have says so.
"""


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table. A `|` in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def resources() -> str:
    """Return the page of resources, with every field."""
    parts = [RESOURCES_ARE]
    for model in RESOURCES:
        crd = custom_resource_definition(model)
        names, (version,) = crd["spec"]["names"], crd["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        parts.append(
            f"## {names['kind']}\n\n`apiVersion: {crd['spec']['group']}/{version['name']}`, short name "
            f"`{names['shortNames'][0]}`. {schema.get('description', '')}\n"
        )
        for part in ("spec", "status"):
            parts.append(f"### {names['kind']} {part}\n")
            rows = list(_fields(schema["properties"][part], part, required=False))
            parts.append(table(["field", "type", "default", "meaning"], rows))
        parts.append(f"### Columns of a {names['kind']} in kubectl\n")
        columns = version["additionalPrinterColumns"]
        parts.append(
            table(
                ["column", "meaning", "from"],
                [
                    [
                        f"`{each['name'].upper()}`",
                        each["description"] + (" With `-o wide`." if each["priority"] else ""),
                        f"`{each['jsonPath']}`",
                    ]
                    for each in columns
                ],
            )
        )
    return "\n".join(parts)


def _fields(schema: Json, path: str, *, required: bool) -> Iterator[list[str]]:
    limits = [text.format(schema[name]) for name, text in _LIMITS.items() if name in schema]
    said = [
        schema.get("description", ""),
        *(f"One of: {', '.join(map(str, each))}." for each in _choices(schema)),
    ]
    if limits:
        said.append(f"({'; '.join(limits)})")
    said += [f"Rule: {each['message']}." for each in schema.get("x-kubernetes-validations", [])]
    default = (
        "*required*" if required else f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
    )
    yield [f"`{path}`", _type(schema), default, " ".join(filter(None, said))]
    within, path = (schema["items"], f"{path}[]") if "items" in schema else (schema, path)
    for name, field in within.get("properties", {}).items():
        yield from _fields(field, f"{path}.{name}", required=name in within.get("required", []))
    other = schema.get("additionalProperties")
    if isinstance(other, dict) and "properties" in other:
        for name, field in other["properties"].items():
            yield from _fields(field, f"{path}.*.{name}", required=name in other.get("required", []))


def _choices(schema: Json) -> list[list[Any]]:
    return [each["enum"] for each in (schema, schema.get("items", {})) if "enum" in each]


def _type(schema: Json) -> str:
    match schema:
        case {"type": "array", "items": dict(items)}:
            return f"list of {_type(items)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"map of {_type(values)}"
        case {"type": str(name)}:
            return name
        case _:
            return "any"


def commands() -> str:
    """Return the page of commands, with usage and options."""
    parts = [COMMANDS_ARE]
    for group in sorted(GROUPS):
        command = main.get_command(click.Context(main), group)
        assert command is not None
        if not isinstance(command, click.Group):
            parts += _command(command, f"holdfast {group}", "##")
            continue
        parts.append(f"## holdfast {group}\n\n{GROUPS[group].help}\n")
        for name, each in sorted(command.commands.items()):
            parts += _command(each, f"holdfast {group} {name}", "###")
    rows = [[f"`holdfast {name}`", f"`holdfast collection {_name_of(name)}`"] for name in VERBS]
    parts.append(f"## Short names\n\n{table(['short', 'the same as'], rows)}")
    return "\n".join(parts)


def _name_of(verb: str) -> str:
    command = main.get_command(click.Context(main), verb)
    assert command is not None
    return command.name or verb


def _command(command: click.Command, path: str, level: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    help_ = inspect.cleandoc(command.help or "").partition("\f")[0]
    yield f"{level} {path}\n\n```text\n{command.get_usage(context)}\n```\n"
    yield "\n\n".join(map(_paragraph, help_.split("\n\n"))) + "\n"
    rows = [record for each in command.params if (record := each.get_help_record(context)) is not None]
    if rows:
        yield table(["option", "meaning"], [[f"`{name}`", text] for name, text in rows])
    if isinstance(command, click.Group):
        for name, each in sorted(command.commands.items()):
            yield from _command(each, f"{path} {name}", f"{level}#")


def _paragraph(text: str) -> str:
    """A paragraph of a help text. Examples, which click doesn't wrap, stay as they are."""
    if text.startswith(_AS_IT_IS):
        return f"```text\n{text.removeprefix(_AS_IT_IS)}\n```"
    return " ".join(text.split()).replace("<", "\\<")


def the_operator() -> str:
    """Return the page of the operator: flags, variables, metrics, conditions, reasons and Events."""
    parts = [
        "# Operator\n\nThe command `holdfast-operator`, its metrics, and its conditions and Events.\n",
        "## Commands of the operator\n",
        *_parsers(operator._parser()),  # noqa: SLF001 - the command exposes no other parser
        "## Environment variables\n",
        table(["variable", "meaning"], [[f"`{name}`", meaning] for name, meaning in VARIABLES.items()]),
        "## Metrics\n\nServed at `/metrics`. The same server has `/healthz` and `/readyz`.\n",
        table(["metric", "kind", "labels", "meaning"], _metrics()),
        "## Conditions\n\n`Ready`, `Reconciling` and `Stalled` follow kstatus.\n",
        table(["condition", "meaning"], _documented(ConditionType)),
        REASONS_ARE,
        table(["reason", "meaning"], _documented(Reason)),
    ]
    return "\n".join(parts)


VARIABLES: Mapping[str, str] = {
    "KUBECONFIG": "The cluster to use. In a pod without it, the pod's own cluster, with its service account.",
    "POD_NAME": "The operator's identity in a Lease. Without it: the host, the process and a random number.",
    "POD_NAMESPACE": "The namespace of the Lease, unless you set `--lease-namespace`.",
    "AWS_*": "The operator's credentials for S3, as every AWS client reads them.",
    "PGUSER, PGPASSWORD": "The operator's credentials for Postgres. libpq reads its other variables too.",
    "TMPDIR": "The folder for temporary files of catalog upgrades and of large batches.",
    "HOLDFAST_URL, HOLDFAST_BLOB_URL": "The default of `--url` of all commands. Commands of catalogs use it "
    "only with `--organization-id`.",
    "HOLDFAST_CONSENSUS_URL": "The default of `--consensus` of all commands.",
    "HOLDFAST_CONFIG": "The file that names locations. Default: `~/.config/holdfast/config.toml`.",
    "HOLDFAST_SECRETS": "The folder of the Secrets that a `source` names. It has a folder for each of them, "
    "with a file for each key. The operator sets it in the pods of Spark jobs.",
    "HOLDFAST_STORE_KEYS": "The folder with the keys that Spark opens locations with, instead of the "
    "environment. It has a file for each key, named like its variable. The operator sets it in the pods of "
    "Spark jobs.",
    "JAVA_HOME, SPARK_*": "In the pods of Spark jobs: set by Spark and by the image.",
}
"""The environment variables of the library and the operator, by name."""


def _parsers(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public API for its tree
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for name, each in action.choices.items():
                usage = " ".join(each.format_usage().removeprefix("usage: ").split())
                yield f"### {parser.prog} {name}\n\n```text\n{usage}\n```\n"
                yield table(["argument", "default", "meaning"], list(_arguments(each)))


def _arguments(parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._HelpAction):  # noqa: SLF001
            continue
        name = max(action.option_strings, key=len) if action.option_strings else action.dest
        value = action.metavar or ("|".join(action.choices) if action.choices else "")
        plain = action.default in (None, False, [], argparse.SUPPRESS)
        meaning = (action.help or "") % {"default": action.default} if action.help else ""
        yield [f"`{name} {value}`".replace(" `", "`"), "" if plain else f"`{action.default}`", meaning]


def _metrics() -> list[list[str]]:
    found = []
    for metric in vars(Metrics()).values():
        labels = getattr(metric, "_labelnames", None)
        if labels is None:
            continue
        (family,) = metric.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found.append(
            [f"`{name}`", family.type, ", ".join(f"`{each}`" for each in labels), family.documentation]
        )
    return sorted(found)


def _documented(names: type[StrEnum]) -> list[list[str]]:
    """Return the members of an enumeration, each with the docstring after it."""
    after = re.findall(
        r'^    ([A-Z_]+) = "\w+"[^\n]*\n    """(.*?)"""', inspect.getsource(names), re.MULTILINE | re.DOTALL
    )
    said = dict(after)
    return [[f"`{each.value}`", said[each.name]] for each in names]


def values() -> str:
    """Return the page of chart values."""
    spec = importlib.util.spec_from_file_location("charts_generate", ROOT / "charts" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    charts = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = charts  # its dataclasses look their module up there
    spec.loader.exec_module(charts)
    parts = ["# Chart values\n\nThe values that you can set with `helm install --set` or `--values`.\n"]
    charts_ = ("holdfast-operator", "holdfast-crds")
    return "\n".join([*parts, *(f"## {chart}\n\n{charts.table(chart)}" for chart in charts_)])


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/resources.md": resources,
    "reference/commands.md": commands,
    "reference/operator.md": the_operator,
    "reference/chart-values.md": values,
}
"""The function that generates each page, by its path in the site."""
