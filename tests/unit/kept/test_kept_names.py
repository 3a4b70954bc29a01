"""Names that others depend on: they stay as they are when the code moves.

`names.txt` has one name per line, by section. To change it on purpose, run this file as a program:
`python tests/unit/kept/test_kept_names.py`, and list the change in CHANGELOG.md.

The names are found by what users see (entry points, sources, files that ship), not by the module that defines
them today, so this file needs no change when a module moves.
"""

import ast
import difflib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from holdfast import errors
from holdfast.cli import main

ROOT = Path(__file__).resolve().parents[3]
ORGANIZATION = "00000000-0000-4000-8000-000000000001"
KEPT = Path(__file__).with_name("names.txt")
SOURCES = (ROOT / "catalog" / "holdfast", ROOT / "operator" / "holdfast_operator")
_VARIABLE = re.compile(r"HOLDFAST_[A-Z_]+|POD_[A-Z]+|KUBECONFIG|KUBECTL")


@cache
def trees() -> tuple[tuple[Path, ast.Module], ...]:
    paths = [path for source in SOURCES for path in sorted(source.rglob("*.py")) if "_pb" not in path.parts]
    return tuple((path, ast.parse(path.read_text())) for path in paths)


def metrics() -> Iterator[str]:
    """Each metric with its labels: the calls whose first argument begins with the name of the project."""
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name):
                name = node.args[0]
                if isinstance(name, ast.Constant) and re.fullmatch(
                    r"holdfast_[a-z_]+", text := str(name.value)
                ):
                    labels = [ast.literal_eval(each) for each in node.args[2:3]]
                    named = next(
                        (ast.literal_eval(k.value) for k in node.keywords if k.arg == "labelnames"), ()
                    )
                    kind = node.func.id.removeprefix("Compact")
                    yield f"{text} {kind} {' '.join([*labels[0], *named] if labels else named)}"


def words() -> Iterator[str]:
    """Condition types and reasons, which only these two enumerations define."""
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in {"ConditionType", "Reason"}:
                for each in node.body:
                    if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
                        yield f"{node.name} {each.value.value!s}"


def keys() -> Iterator[str]:
    """Labels, annotations and finalizers: what the operator's constants evaluate to."""
    for _, tree in trees():
        found: dict[str, str] = {}
        for node in tree.body:
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.value is not None
            ):
                value = _text(node.value, found)
                if value is not None:
                    found[node.target.id] = value
        yield from (value for value in found.values() if re.fullmatch(r"[a-z.]+\.(dev|io)/[a-z-]+", value))


def _text(node: ast.expr, known: Mapping[str, str]) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return known.get(name)
        case ast.JoinedStr(values=values):
            parts = [
                _text(each.value if isinstance(each, ast.FormattedValue) else each, known) for each in values
            ]
            return None if None in parts else "".join(map(str, parts))
        case _:
            return None


def variables() -> Iterator[str]:
    """Environment variables of Holdfast's own, wherever they are written."""
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and _VARIABLE.fullmatch(str(node.value)):
                yield str(node.value)


def commands() -> Iterator[str]:
    """Every command with its arguments and options."""
    scripts = {each.name: each for each in entry_points(group="console_scripts")}
    yield from _click(main, "holdfast")
    kubectl = sys.modules[scripts["kubectl-holdfast"].load().__module__]
    (plugin,) = {id(v): v for v in vars(kubectl).values() if isinstance(v, click.Group)}.values()
    yield from _click(plugin, "kubectl holdfast")
    yield from _argparse("holdfast-operator")


def _click(command: click.Command, path: str) -> Iterator[str]:
    params = [
        "|".join(each.opts) if isinstance(each, click.Option) else str(each.name).upper()
        for each in command.params
    ]
    yield " ".join([path, *params])
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            each = command.get_command(context, name)
            assert each is not None
            yield from _click(each, f"{path} {name}")


def _argparse(program: str, *path: str) -> Iterator[str]:
    (script,) = entry_points(group="console_scripts", name=program)
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit):
        script.load()([*path, "--help"])
    text = printed.getvalue()
    options = sorted(set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)))
    yield " ".join([program, *path, *options])
    if not path:
        (choices,) = re.findall(r"^  \{([a-z,-]+)\}", text, re.MULTILINE)
        for each in choices.split(","):
            yield from _argparse(program, each)


def answers() -> Iterator[str]:
    """The keys of what commands print with --json, of a small location."""
    with tempfile.TemporaryDirectory() as folder:
        url, rows = f"file://{folder}/here", Path(folder) / "rows.csv"
        rows.write_text("id,name\n1,a\n2,b\n")

        def run(*arguments: str, code: int = 0) -> str:
            done = CliRunner().invoke(main, arguments)
            assert done.exit_code == code, (arguments, done.output)
            return done.stdout

        run("collection", "create", "flights", "--url", url, "--key", "id:int64", "--column", "name:string?")
        run("collection", "write", "flights", str(rows), "--url", url)
        run("collection", "handover", "flights", "--url", url, "--shards", "2", "--rendition", "wider")
        run("catalog", "init", "--persist", url, "--organization-id", ORGANIZATION)
        for command in ("describe", "holds", "jobs"):
            yield from _keys(
                run("collection", command, "flights", "--url", url, "--json"), f"collection {command}"
            )
        yield from _keys(run("collection", "list", "--url", url, "--json"), "collection list")
        for command in ("inspect", "verify", "gc", "holds", "names", "compact", "sweep"):
            yield from _keys(run("persist", command, url, "--json"), f"persist {command}")
        yield from _keys(run("persist", "backup", url, f"{folder}/copy", "--json"), "persist backup")
        there = (
            "--stash",
            f"sqlite://{folder}/stash.db",
            "--persist",
            url,
            "--organization-id",
            ORGANIZATION,
        )
        run("migrate", "link", *there, "--truth", "persist", "--yes")
        yield from _keys(run("migrate", "status", *there, "--json"), "migrate status")
        yield from _keys(run("catalog", "kept", *there, "--json"), "catalog kept")
        recovered = run("persist", "recover", url, "--restored", "--yes", "--json", code=1)
        yield from _keys(recovered, "persist recover")


def _keys(text: str, path: str) -> Iterator[str]:
    for line in text.splitlines() if "\n{" in text else [text]:
        yield from _paths(json.loads(line), path)


def _paths(value: Any, path: str) -> Iterator[str]:
    """Keys that are names of things, such as shards and renditions, count as one."""
    if isinstance(value, list):
        for each in value:
            yield from _paths(each, f"{path}[]")
    elif isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _paths(
                each, f"{path}.{key if re.fullmatch(r'[a-z_]+|[a-z]+[A-Z][a-zA-Z]+', key) else '*'}"
            )
    else:
        yield path


def exits() -> Iterator[str]:
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, errors.HoldfastError):
            yield f"{each.__name__} {each.exit_code}"


def jobs() -> Iterator[str]:
    """Modules that a running operator launches by name, and what a work order of each is made of."""
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
                parts = path.with_suffix("").relative_to(path.parents[len(path.parents) - 1]).parts
                start = max(i for i, part in enumerate(parts) if part in {"holdfast", "holdfast_operator"})
                yield "module " + ".".join(parts[start:])
            if isinstance(node, ast.ClassDef) and re.fullmatch(
                r"\w*(Job|Snapshot|Hydrate|Compact)Spec", node.name
            ):
                for each in node.body:
                    plain = isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each.annotation)
                    if plain and isinstance(each, ast.AnnAssign) and "spark" in path.parts:
                        yield f"spec {node.name} {ast.unparse(each.target)}"


def stored() -> Iterator[str]:
    """Packages, messages and fields of what is stored."""
    for path in sorted((ROOT / "proto").glob("*.proto")):
        text = path.read_text()
        (package,) = re.findall(r"^package ([\w.]+);", text, re.MULTILINE)
        for message in re.findall(r"^message (\w+)", text, re.MULTILINE):
            yield f"{package}.{message}"


def values() -> Iterator[str]:
    for chart in sorted((ROOT / "charts").glob("*/values.yaml")):
        yield from _flat(yaml.safe_load(chart.read_text()) or {}, chart.parent.name)


def _flat(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict) or not value:
        yield path
        return
    for key, each in value.items():
        yield from _flat(each, f"{path}.{key}")


def fields() -> Iterator[str]:
    """Fields and columns of the custom resources."""
    for path in sorted((ROOT / "crds").glob("holdfast.dev_*.yaml")):
        crd = yaml.safe_load(path.read_text())
        for version in crd["spec"]["versions"]:
            where = f"{crd['spec']['names']['kind']}.{version['name']}"
            for part in ("spec", "status"):
                schema = version["schema"]["openAPIV3Schema"]["properties"][part]
                yield from _properties(schema, f"{where}.{part}")
            yield from (f"{where} column {each['name']}" for each in version["additionalPrinterColumns"])


def _properties(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    yield path
    for name, each in schema.get("properties", {}).items():
        yield from _properties(each, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict) and "properties" in schema[key]:
            yield from _properties(schema[key], f"{path}[]")


def loggers() -> Iterator[str]:
    """The roots of the loggers, which are all that a configuration may rely on."""
    yield from (source.name for source in SOURCES)


SECTIONS = {
    "metrics": metrics,
    "conditions and reasons": words,
    "labels, annotations, finalizers": keys,
    "environment variables": variables,
    "commands": commands,
    "what commands print with --json": answers,
    "exit codes": exits,
    "programs and work orders": jobs,
    "stored messages": stored,
    "chart values": values,
    "custom resources": fields,
    "loggers": loggers,
}


def names() -> str:
    return "".join(
        f"# {section}\n" + "".join(f"{line.rstrip()}\n" for line in sorted(set(find())))
        for section, find in SECTIONS.items()
    )


def test_names_that_others_depend_on_are_kept() -> None:
    kept, found = KEPT.read_text(), names()
    assert re.findall(r"^# (.*)\n(?!#)", found, re.MULTILINE) == list(SECTIONS)
    changes = difflib.unified_diff(kept.splitlines(), found.splitlines(), "names.txt", "the code", n=0)
    assert kept == found, "\n".join(changes)


if __name__ == "__main__":
    KEPT.write_text(names())
